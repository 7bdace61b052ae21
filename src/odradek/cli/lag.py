"""`odradek lag`: the distance of a consumer group from the end of its partitions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import anyio
import click

import odradek as od
from odradek.cli.cluster_queries import PartitionExtent, extents
from odradek.cli.options import JSON, clustered, examples
from odradek.cli.output import echo_json, table
from odradek.types import Position, TopicPartition

__all__ = ["lag"]

WATCH_SECONDS = 2.0


class PartitionLag(NamedTuple):
    """The lag of a group on one partition.

    Args:
        group: The group's name.
        partition: The partition.
        committed: The position the group committed, or None.
        end: The end of the partition.
        lag: Distance from the committed position, or from the oldest one if that is later, to the end.
    """

    group: str
    partition: TopicPartition
    committed: Position | None
    end: Position
    lag: int


@click.command(
    epilog=examples(
        "odradek lag",
        "odradek lag billing",
        "odradek lag billing --watch",
        "odradek lag billing --fail-over 1000000 || page-on-call",
    )
)
@click.argument("group", required=False)
@click.option("--watch", is_flag=True, help="Print again every two seconds, until Ctrl-C.")
@click.option("--fail-over", type=click.IntRange(min=0), metavar="N", help="Exit with 1 if a group's lag exceeds N.")
@JSON
@clustered
def lag(url: str, group: str | None, watch: bool, fail_over: int | None, as_lines: bool) -> int:
    """Print the lag of GROUP on each partition (in messages; in Kafka 0.7: bytes), or the total of every group."""
    return od.run(_lag, url, group, watch, fail_over, as_lines)


async def _lag(url: str, group: str | None, watch: bool, limit: int | None, as_lines: bool) -> int:
    async with od.connect(url) as k:
        while True:
            groups = [group] if group is not None else await k.driver.groups()
            rows = [row for name in groups for row in await _lag_of_group(k, name)]
            if group is not None and not rows:
                raise click.ClickException(f"{group}: this group has no committed positions")
            _print(rows, group is None, as_lines, clear=watch)
            for row in rows:
                if row.committed is not None and row.committed > row.end:
                    click.echo(f"{row.group}: {row.partition}: {row.committed} is beyond the end, {row.end}", err=True)
            if limit is not None and any(total > limit for total in _totals(rows).values()):
                return 1
            if not watch:
                return 0
            await anyio.sleep(WATCH_SECONDS)


async def _lag_of_group(k: od.Cluster, group: str) -> list[PartitionLag]:
    """Return the lag on every partition of the topics for which the group has committed a position."""
    committed = await k.admin.group_positions(group)
    rows: list[PartitionLag] = []
    for topic in sorted({partition.topic for partition in committed}):
        known = await extents(k, topic)
        rows += (_row(group, p, committed.get(p), extent) for p, extent in known.items())
    return rows


def _row(group: str, partition: TopicPartition, committed: Position | None, extent: PartitionExtent) -> PartitionLag:
    begin = max(extent.earliest, committed or 0)
    return PartitionLag(group, partition, committed, extent.latest, max(0, extent.latest - begin))


def _totals(rows: Iterable[PartitionLag]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for row in rows:
        totals[row.group] = totals.get(row.group, 0) + row.lag
    return totals


def _print(rows: list[PartitionLag], totals_only: bool, as_lines: bool, *, clear: bool) -> None:
    totals = _totals(rows)
    if as_lines:
        for row in [] if totals_only else rows:
            echo_json({**row._asdict(), "topic": row.partition.topic, "partition": row.partition.name})
        for group, total in totals.items():
            echo_json({"group": group, "lag": total})
        return
    if clear:
        click.clear()  # does nothing unless standard output is a terminal
    if totals_only:
        click.echo(table(["group", "lag"], list(totals.items())))
        return
    head = ["topic", "partition", "committed", "end", "lag"]
    click.echo(table(head, [[r.partition.topic, r.partition.name, _or_dash(r.committed), r.end, r.lag] for r in rows]))
    click.echo(f"total {sum(totals.values())}")


def _or_dash(position: Position | None) -> object:
    return "-" if position is None else position
