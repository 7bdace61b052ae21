"""`odradek lag`: the distance of a consumer group from the end of its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import anyio
import click

import odradek as od
from odradek.cli.options import JSON, clustered, examples
from odradek.cli.output import echo_json, table
from odradek.core.admin import PartitionLag
from odradek.types import TopicPartition

__all__ = ["lag"]

WATCH_SECONDS = 2.0


Lags = Mapping[str, Mapping[TopicPartition, PartitionLag]]


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
            lags = {name: await k.admin.lag(name) for name in groups}
            if group is not None and not lags[group]:
                raise click.ClickException(f"{group}: this group has no committed positions")
            _print(lags, group is None, as_lines, clear=watch)
            _warn(lags)
            if limit is not None and any(total > limit for total in _totals(lags).values()):
                return 1
            if not watch:
                return 0
            await anyio.sleep(WATCH_SECONDS)


def _warn(lags: Lags) -> None:
    for group, rows in lags.items():
        for partition, row in rows.items():
            if row.committed is not None and row.committed > row.end:
                click.echo(f"{group}: {partition}: {row.committed} is beyond the end, {row.end}", err=True)


def _totals(lags: Lags) -> dict[str, int]:
    """Return the lag of each group that has positions."""
    return {group: sum(row.lag for row in rows.values()) for group, rows in lags.items() if rows}


def _print(lags: Lags, totals_only: bool, as_lines: bool, *, clear: bool) -> None:
    totals = _totals(lags)
    if as_lines:
        for group, rows in {} if totals_only else lags.items():
            for p, row in rows.items():
                echo_json({"group": group, "topic": p.topic, "partition": p.name, **asdict(row)})
        for group, total in totals.items():
            echo_json({"group": group, "lag": total})
        return
    if clear:
        click.clear()  # does nothing unless standard output is a terminal
    if totals_only:
        click.echo(table(["group", "lag"], list(totals.items())))
        return
    for rows in lags.values():
        _print_partitions(rows)
    click.echo(f"total {sum(totals.values())}")


def _print_partitions(rows: Mapping[TopicPartition, PartitionLag]) -> None:
    """Print the partitions of one group, with its members if it has any."""
    head = ["topic", "partition", "committed", "end", "lag", "member"]
    lines = [[p.topic, p.name, _or_dash(r.committed), r.end, r.lag, _or_dash(r.member)] for p, r in rows.items()]
    shown = len(head) if any(row.member for row in rows.values()) else len(head) - 1
    click.echo(table(head[:shown], [line[:shown] for line in lines]))


def _or_dash(value: object) -> object:
    return "-" if value is None else value
