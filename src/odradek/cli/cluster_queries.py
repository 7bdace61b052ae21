"""Questions to a cluster that several commands ask."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

import click

import odradek as od
from odradek.types import EARLIEST, LATEST, Position, Record, TopicPartition, by_broker

__all__ = ["PartitionExtent", "extents", "find_partitions", "last_records"]

MAX_SEGMENTS = 1 << 20
"""A number larger than that of any partition's segments."""


class PartitionExtent(NamedTuple):
    """The positions of a partition that can be read: from its oldest one to its end."""

    earliest: Position
    latest: Position


async def find_partitions(k: od.Cluster, topic: str, name: str | None = None) -> list[TopicPartition]:
    """Return the registered partitions of a topic; with `name`, those called `BROKER-N`, or `N` on every broker.

    Raises click.ClickException if there are none.
    """
    partitions = sorted(await k.partitions(topic), key=by_broker)
    if not partitions:
        raise click.ClickException(f"{topic}: no broker has this topic")
    chosen = [p for p in partitions if name in (None, p.name, str(p.partition))]
    if not chosen:
        raise click.ClickException(f"{topic}: no partition {name}; choose from {', '.join(p.name for p in partitions)}")
    return chosen


async def extents(k: od.Cluster, topic: str) -> dict[TopicPartition, PartitionExtent]:
    """Return the extent of each partition of a topic whose broker is alive."""
    earliest, latest = await k.positions(topic, EARLIEST), await k.positions(topic, LATEST)
    return {p: PartitionExtent(earliest[p], latest[p]) for p in sorted(earliest) if p in latest}


async def last_records(k: od.Cluster, partition: TopicPartition, count: int) -> tuple[list[Record], Position]:
    """Return the last `count` messages of a partition, and the position of its end.

    Kafka 0.7 can only be read forwards, from known boundaries: read segment by segment, from the last one back.
    """
    broker = k.driver.metadata.table.leader(partition)
    if broker is None:
        raise click.ClickException(f"{partition}: its broker is not registered")
    segment_starts = await k.driver.broker(broker, purpose="control").positions(partition, LATEST, MAX_SEGMENTS)
    segments: list[list[Record]] = []
    for end, begin in pairwise(segment_starts):
        if sum(map(len, segments)) >= count:
            break
        segments.append(await _read_tail(k, partition, begin, end, count))
    records = list(chain.from_iterable(reversed(segments)))
    return records[-count:] if count else [], segment_starts[0]


async def _read_tail(
    k: od.Cluster, partition: TopicPartition, begin: Position, end: Position, count: int
) -> list[Record]:
    kept: list[Record] = []
    async with k.reader({partition: begin}, until=end) as r:
        async for batch in r.batches():
            kept = [*kept, *batch][-count:]
    return kept
