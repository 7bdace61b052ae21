"""`odradek pipeline replay`: send rows of a table back to topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import odradek as od
from odradek.cli.options import CLUSTER, JSON, QUIET, examples
from odradek.cli.output import echo_json, progress
from odradek.cli.pipeline.options import APPLY, BATCH, FILE, SINCE, UNTIL, load_flows, needs_pipeline
from odradek.io.drivers import zookeeper_url

if TYPE_CHECKING:
    from odradek.pipeline.config import Pipeline
    from odradek.pipeline.replay import Replay

__all__ = ["replay"]


@click.command(
    epilog=examples(
        "odradek pipeline replay pipeline.toml --topic orders-again",
        "odradek pipeline replay pipeline.toml --batch 3:9 --topic orders-again --apply",
        f"odradek pipeline replay pipeline.toml --flow orders --cluster {zookeeper_url('other:2181')} --apply",
        "odradek pipeline replay pipeline.toml --dead --topic orders-retry --apply",
    )
)
@FILE
@click.option("--flow", metavar="NAME", help="The flow to send; required if there are several.")
@BATCH
@SINCE
@UNTIL
@click.option("--topic", metavar="NAME", help="Target topic (default: the topic each row came from).")
@CLUSTER
@click.option("--dead", is_flag=True, help="Send dead letters instead of rows of the table.")
@click.option("--value", default="value", show_default=True, metavar="COLUMN", help="Column to send.")
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File that records what is confirmed (default: in `run.state`).",
)
@APPLY
@JSON
@QUIET
@needs_pipeline
def replay(
    file: str,
    flow: str | None,
    numbers: tuple[str, ...],
    since: float | None,
    until: float | None,
    topic: str | None,
    cluster: str | None,
    dead: bool,
    value: str,
    state: Path | None,
    apply: bool,
    as_lines: bool,
    quiet: bool,
) -> int:
    """Send rows of a table to topics, at least once; run again, it continues where it ended.

    Confirmed rows are recorded every 32 MiB or so; after a replay was killed, only rows sent since the last record are
    sent twice. Rows of one log keep their order, their keys and their headers. Without
    --cluster, rows go to the pipeline's own cluster.
    """
    from odradek.pipeline.committed import open_committed, select
    from odradek.pipeline.replay import Replay, ReplayProgress

    loaded, names = load_flows(file, [flow] if flow else [])
    if len(names) > 1:
        raise click.UsageError(f"the file has several flows; choose one with --flow: {', '.join(names)}")
    url = _target(loaded, cluster, topic)
    table = open_committed(loaded, names[0])
    batches = select(table.batches, numbers=numbers, since=since, until=until)
    plan = Replay(table, batches, topic=topic, value=value, target=url, dead=dead)
    default = Path(loaded.run.state) / "replay" / f"{plan.identity[:16]}.json"
    done = ReplayProgress.load(state or default, plan.identity)
    sent = 0
    if apply:
        with progress(f"{names[0]}: rows", plan.rows - done.rows, quiet=quiet) as advance:
            sent = od.run(_replay, plan, url, done, advance)
    _print_result(plan, done, sent, apply, as_lines, quiet)
    return 0


async def _replay(plan: Replay, url: str, done: Any, advance: Callable[[int], None]) -> int:
    from odradek.pipeline.replay import replay as send

    async with od.connect(url) as k:
        return await send(plan, k, done, advance)


def _target(loaded: Pipeline, cluster: str | None, topic: str | None) -> str:
    from odradek.pipeline.source import cluster_url

    own = cluster_url(loaded)
    url = cluster or own
    if url is None:
        raise click.UsageError("the pipeline reads log directories; name the target with --cluster URL")
    if url == own and topic is None:
        raise click.UsageError(
            "rows would go back to the topics that the pipeline reads; give --topic, or another --cluster"
        )
    return url


def _print_result(plan: Replay, done: Any, sent: int, applied: bool, as_lines: bool, quiet: bool) -> None:
    fields = {
        "flow": plan.table.name, "batches": len(plan.batches), "rows": plan.rows, "topic": plan.topic,
        "applied": applied, "sent": sent, "confirmed": done.rows, "ended": done.ended, "state": str(done.path),
    }  # fmt: skip
    if as_lines:
        echo_json(fields)
    elif not quiet:
        where = plan.topic or "the topics they came from"
        what = "dead letters" if plan.dead else "rows"
        click.echo(f"{plan.table.name}: {plan.rows} {what} of {len(plan.batches)} batches to {where}")
        click.echo(f"{done.rows} confirmed, {sent} of them now; recorded in {done.path}")
        if not applied:
            click.echo("nothing was sent; use --apply to send")
