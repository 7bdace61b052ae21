"""`odradek mirror status`: how far a mirror is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import odradek as od
from odradek.cli.mirror.options import FILE, needs_mirror
from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_rows, iso_time

if TYPE_CHECKING:
    from odradek.mirror.status import PartitionStatus

__all__ = ["status"]

HEAD = ("topic", "partition", "to", "to_partition", "records", "position", "end", "lag", "lag_seconds", "committed")


@click.command(
    epilog=examples("odradek mirror status leave07.toml", "odradek mirror status leave07.toml --fail-over 1000")
)
@FILE
@click.option("--fail-over", type=click.IntRange(min=0), metavar="N", help="Exit with 1 if the lag exceeds N.")
@JSON
@needs_mirror
def status(file: str, fail_over: int | None, as_lines: bool) -> int:
    """Print how far each partition is: records copied, position and end on the source, lag, time of the last commit.

    Positions and lag are in records; in bytes where the source is Kafka 0.7. The exit code is 1 also if a lag is not
    known, because a broker is away, or the mirror has not begun.
    """
    from odradek.mirror.config import load
    from odradek.mirror.status import status as ask

    state = od.run(ask, load(file))
    echo_rows(HEAD, [_row(partition) for partition in state.partitions], as_lines)
    if not state.partitions:
        click.echo("odradek: the mirror has not begun", err=True)
    if state.finished is not None:
        click.echo(f"odradek: the mirror was finished at {iso_time(state.finished / 1000)}", err=True)
    return int(state.lag is None or (fail_over is not None and state.lag > fail_over))


def _row(partition: PartitionStatus) -> list[object]:
    seconds = None if partition.lag_seconds is None else round(partition.lag_seconds, 1)
    target = partition.target
    return [
        partition.source.topic, partition.source.name, target.topic, None if target.partition < 0 else target.partition,
        partition.records, partition.position, partition.end, partition.lag, seconds,
        iso_time(None if partition.at is None else partition.at / 1000),
    ]  # fmt: skip
