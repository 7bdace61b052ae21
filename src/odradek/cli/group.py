"""`odradek group`: lists, describes and deletes groups."""

from __future__ import annotations

from collections.abc import Sequence

import click

import odradek as od
from odradek.cli.admin import Rows, ask, echo_dry_run
from odradek.cli.cluster_queries import delete_described
from odradek.cli.lag import GroupLag
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_json, echo_rows
from odradek.core.admin import GroupDescription

__all__ = ["group"]

WITH_POSITIONS = ("classic", "consumer", "zookeeper")
"""Types of groups that commit positions."""


@click.group(
    epilog=examples(
        "odradek group list",
        "odradek group describe billing --json",
        "odradek group delete billing --apply",
    )
)
def group() -> None:
    """List, describe and delete groups. `odradek lag` prints their positions, and `odradek seek` changes them."""


@group.command(name="list", epilog=examples("odradek group list", "odradek group list --json | jq -r .group"))
@JSON
@clustered
def list_groups(url: str, as_lines: bool) -> int:
    """List all groups; what brokers do not report is left out. Those of 0.9 and 0.10.0 list none without members."""

    groups = ask(url, lambda admin: admin.list_groups())
    rows: Rows = [[each.name, each.type, each.state, each.protocol_type] for each in groups]
    echo_rows(["group", "type", "state", "protocol"], rows, as_lines)
    return 0


@group.command(epilog=examples("odradek group describe billing", "odradek group describe billing --json"))
@click.argument("name", metavar="GROUP")
@JSON
@clustered
def describe(url: str, name: str, as_lines: bool) -> int:
    """Print the members of GROUP, the partitions that each owns, and its lag on them."""

    async def main() -> tuple[GroupDescription, GroupLag | None]:
        async with od.connect(url) as k:
            described = await _described(k, name)
            has_positions = described.type in WITH_POSITIONS
            return described, GroupLag(await k.admin.lag(name), described) if has_positions else None

    described, lag = od.run(main)
    known = lag if lag and lag.rows else None
    rows: list[list[object]] = []
    for each in described.members:
        owned = [str(partition) for partition in each.partitions]
        behind = known and known.of_member(each.member_id)
        rows.append([each.member_id, each.client_id or None, each.host or None, owned, behind])
    coordinator, total = described.coordinator and described.coordinator.address, known and known.total
    if not as_lines:
        facts = {"assignor": described.assignor, "coordinator": coordinator, "lag": total}
        more = "".join(f", {fact} {value}" for fact, value in facts.items() if value not in (None, ""))
        click.echo(f"{name}: {described.state}, {described.type}{more}")
    echo_rows(["member", "client", "host", "partitions", "lag"], rows, as_lines)
    if as_lines:
        group = {"group": name, "state": described.state, "type": described.type, "assignor": described.assignor}
        echo_json({**group, "coordinator": coordinator, "members": len(rows), "lag": total})
    return 0


async def _described(k: od.Cluster, name: str) -> GroupDescription:
    """Describe a group. Raises GroupError, in words, if its brokers know no such group."""
    try:
        return (await k.admin.describe_groups(name)).check()[name]
    except od.BrokerError as error:
        if error.name != "GROUP_ID_NOT_FOUND":
            raise
        if not await k.admin.group_positions(name):
            raise od.GroupError(f"group {name!r}: no such group, neither members nor positions") from error
        raise od.GroupError(
            f"group {name!r} has positions, but no members, and brokers before 0.10.1 describe no such group: "
            f"`odradek lag {name}` prints its positions"
        ) from error


@group.command(epilog=examples("odradek group delete billing", "odradek group delete billing audit --apply"))
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@APPLY
@JSON
@clustered
def delete(url: str, names: Sequence[str], apply: bool, as_lines: bool) -> int:
    """Delete GROUPs that have no members, and their positions (1.1 and later).

    Without --apply, print what would be deleted.
    """

    deleted = ask(
        url, lambda admin: delete_described(admin.describe_groups, admin.delete_groups, names, apply, _with_members)
    )
    rows = [[name, each.state, len(each.members), apply] for name, each in deleted.done.items()]
    echo_rows(["group", "state", "members", "deleted"], rows, as_lines)
    echo_dry_run(apply or not rows, "deleted")
    return echo_failures(deleted.failed)


def _with_members(name: str, group: GroupDescription) -> od.GroupError | None:
    if not group.members:
        return None
    return od.GroupError(f"group {name!r} has {len(group.members)} members ({group.state}): stop them first")
