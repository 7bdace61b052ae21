"""`odradek offsets`: the positions of a topic's partitions, now or at a time."""

from __future__ import annotations

import click

import odradek as od
from odradek.cli.cluster_queries import extents, find_partitions
from odradek.cli.json_records import partition_id
from odradek.cli.options import JSON, clustered, examples, moment
from odradek.cli.output import echo_failures, echo_rows
from odradek.core.admin import OffsetListing, OffsetSpec, Results

__all__ = ["offsets"]

_MEANINGS = {each.name.lower().replace("_", "-"): each for each in OffsetSpec}


@click.command(
    epilog=examples(
        "odradek offsets orders",
        "odradek offsets orders --at -1h",
        "odradek offsets orders --at 2026-11-21T12:00 --json",
        "odradek offsets orders --of max-timestamp",
    )
)
@click.argument("topic")
@click.option("--at", metavar="TIME", help="2026-11-21T12:00, -15m, or seconds since the epoch.")
@click.option(
    "--of",
    "meaning",
    type=click.Choice(list(_MEANINGS)),
    help="Of the record with the highest timestamp (3.0 and later), or where tiered storage begins or ends (3.5, 3.9, "
    "4.2).",
)
@JSON
@clustered
def offsets(url: str, topic: str, at: str | None, meaning: str | None, as_lines: bool) -> int:
    """Print the oldest position and the end of each partition of TOPIC, or its position at TIME.

    The position at TIME is that of the first message of that time or a later one, or the end if there is none. Brokers
    before 0.10.1 keep no timestamps: they answer from the age of their segment files, with the newest segment boundary
    that is certainly not later than TIME, or with the oldest position if all segments are newer.
    """
    if at is not None and meaning is not None:
        raise click.UsageError("--at and --of exclude each other")
    if meaning is not None:
        listed = od.run(_listed, url, topic, _MEANINGS[meaning])
        rows = [[partition_id(p), each.position, each.timestamp] for p, each in sorted(listed.done.items())]
        echo_rows(["partition", "position", "timestamp"], rows, as_lines)
        return echo_failures(listed.failed)
    time = None if at is None else od.AtTime(moment(at))
    head = ["partition", "earliest", "latest"] if time is None else ["partition", "position"]
    echo_rows(head, od.run(_offsets, url, topic, time), as_lines)
    return 0


async def _listed(url: str, topic: str, meaning: OffsetSpec) -> Results[od.TopicPartition, OffsetListing]:
    async with od.connect(url) as k:
        return await k.admin.list_offsets(dict.fromkeys(await find_partitions(k, topic), meaning))


async def _offsets(url: str, topic: str, time: od.AtTime | None) -> list[list[object]]:
    async with od.connect(url) as k:
        partitions = await find_partitions(k, topic)
        if time is not None:
            positions = await k.positions(topic, time)
            return [[partition_id(p), positions.get(p)] for p in partitions]
        known = await extents(k, topic)
        return [[partition_id(p), *known.get(p, (None, None))] for p in partitions]
