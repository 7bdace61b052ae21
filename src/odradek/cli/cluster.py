"""`odradek cluster`: brokers, features and the quorum of a cluster; the other verbs are in modules of their own."""

from __future__ import annotations

from collections.abc import Sequence

import click

import odradek as od
from odradek.cli.admin import Rows, ask, echo_dry_run, setting, unchanged
from odradek.cli.cluster_configs import configs
from odradek.cli.cluster_reassign import reassign
from odradek.cli.cluster_replicas import elect, log_dirs
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_json, echo_rows, iso_time
from odradek.core.admin import Results
from odradek.core.admin_cluster import Features

__all__ = ["cluster"]


@click.group(
    epilog=examples(
        "odradek cluster describe --json | jq -r .address",
        "odradek cluster configs 1",
        "odradek cluster reassign plan.json --apply",
    )
)
def cluster() -> None:
    """Describe and change a cluster: brokers, their configurations and directories, replicas, leaders, features."""


for verb in (configs, elect, log_dirs, reassign):
    cluster.add_command(verb)


@cluster.command(epilog=examples("odradek cluster describe", "odradek cluster describe --json | jq -r .address"))
@JSON
@clustered
def describe(url: str, as_lines: bool) -> int:
    """Print the brokers of the cluster, their racks, and which of them is the controller (0.10 and later).

    In KRaft mode clients do not hear of the controller: it is a broker that forwards requests to it.
    """
    described = ask(url, lambda admin: admin.describe_cluster())
    known = described.controller
    rows: Rows = [
        [each.id, each.address, described.racks.get(each.id), None if known is None else each.id == known]
        for each in described.brokers
    ]
    if not as_lines and described.cluster_id is not None:
        click.echo(f"cluster {described.cluster_id}")
    head = ["broker", "address", "rack", "controller"]
    if as_lines:
        head, rows = [*head, "cluster"], [[*row, described.cluster_id] for row in rows]
    echo_rows(head, rows, as_lines)
    return 0


@cluster.command(epilog=examples("odradek cluster quorum", "odradek cluster quorum --json"))
@JSON
@clustered
def quorum(url: str, as_lines: bool) -> int:
    """Print the controllers of the quorum, and the brokers that follow them (3.3 and later, in KRaft mode)."""
    described = ask(url, lambda admin: admin.describe_quorum())
    replicas = [("voter", each) for each in described.voters] + [("observer", each) for each in described.observers]
    end = max(each.end_offset for _, each in replicas)
    rows: Rows = [
        [
            each.id,
            "leader" if each.id == described.leader and role == "voter" else role,
            each.end_offset,
            end - each.end_offset,
            iso_time(each.last_caught_up),
            each.directory_id,
        ]
        for role, each in replicas
    ]
    state = {
        "leader": described.leader,
        "leader_epoch": described.leader_epoch,
        "high_watermark": described.high_watermark,
    }
    if as_lines:
        echo_json(state)
    else:
        click.echo(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in state.items()))
    echo_rows(["id", "role", "end_offset", "lag", "caught_up", "directory_id"], rows, as_lines)
    return 0


@cluster.command(
    epilog=examples(
        "odradek cluster features",
        "odradek cluster features --set metadata.version=29",
        "odradek cluster features --set share.version=0 --downgrade --apply",
    )
)
@click.option(
    "--set", "levels", multiple=True, metavar="FEATURE=LEVEL", help="A level to use; 0 turns the feature off."
)
@click.option("--downgrade", is_flag=True, help="Levels may become lower, if that loses nothing.")
@click.option("--unsafe", is_flag=True, help="With --downgrade: even if metadata is lost (3.3 and later).")
@APPLY
@JSON
@clustered
def features(url: str, levels: Sequence[str], downgrade: bool, unsafe: bool, apply: bool, as_lines: bool) -> int:
    """Print the features of the cluster, their levels, and those that brokers support; or change levels (2.7 and
    later).

    Without --apply, brokers check whether levels can change (3.3 and later).
    """
    if unsafe and not downgrade:
        raise click.UsageError("--unsafe needs --downgrade")
    if not levels:
        described = ask(url, lambda admin: admin.describe_features())
        rows: Rows = [[name, _level(described, name), *each] for name, each in sorted(described.supported.items())]
        echo_rows(["feature", "level", "lowest", "highest"], rows, as_lines)
        return 0
    wanted = dict(_feature(text) for text in levels)

    async def update() -> tuple[Features, Results[str, None]]:
        async with od.connect(url) as k:
            before = await k.admin.describe_features()
            return before, await k.admin.update_features(
                wanted, downgrade=downgrade, unsafe=unsafe, validate_only=not apply
            )

    before, results = od.run(update)
    rows = [[name, _level(before, name), wanted[name]] for name in results.done]
    echo_rows(["feature", "before", "after"], rows, as_lines)
    echo_dry_run(apply or bool(results.failed), empty=unchanged(rows))
    return echo_failures(results.failed)


def _level(described: Features, name: str) -> int | None:
    levels = described.finalized.get(name)
    return None if levels is None else levels.last


def _feature(text: str) -> tuple[str, int]:
    name, level = setting(text)
    if not level.isdecimal():
        raise click.BadParameter(f"{text!r}: expected FEATURE=LEVEL, a whole number")
    return name, int(level)
