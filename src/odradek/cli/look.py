"""Questions to a cluster that several commands ask."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import NamedTuple

import click

import odradek as od
from odradek.types import EARLIEST, LATEST, Position, Record, TopicPartition, by_broker

__all__ = ["PartitionExtent", "extents", "find", "last"]

MANY = 1 << 20
"""More segments than a partition has."""


class PartitionExtent(NamedTuple):
    """What there is of a partition: from its oldest position to its end."""

    earliest: Position
    latest: Position


async def find(k: od.Cluster, topic: str, wanted: str | None = None) -> list[TopicPartition]:
    """The published partitions of a topic; with `wanted` those called so: `BROKER-N`, or `N` on every broker.

    Raises click.ClickException when there are none.
    """
    found = sorted(await k.partitions(topic), key=by_broker)
    if not found:
        raise click.ClickException(f"{topic}: no broker has this topic")
    chosen = [p for p in found if wanted in (None, p.name, str(p.partition))]
    if not chosen:
        raise click.ClickException(f"{topic}: no partition {wanted} among {', '.join(p.name for p in found)}")
    return chosen


async def extents(k: od.Cluster, topic: str) -> dict[TopicPartition, PartitionExtent]:
    """What there is of each partition of a topic that a live broker serves."""
    earliest, latest = await k.positions(topic, EARLIEST), await k.positions(topic, LATEST)
    return {p: PartitionExtent(earliest[p], latest[p]) for p in sorted(earliest) if p in latest}


async def last(k: od.Cluster, partition: TopicPartition, count: int) -> tuple[list[Record], Position]:
    """The last `count` messages of a partition, and where its end is.

    0.7 can only be read forwards, from places that are known: segment by segment, then, from the last one back.
    """
    broker = k.driver.metadata.table.leader(partition)
    if broker is None:
        raise click.ClickException(f"{partition}: its broker is not there")
    marks = await k.driver.broker(broker, purpose="control").positions(partition, LATEST, MANY)
    runs: list[list[Record]] = []
    for end, begin in pairwise(marks):
        if sum(map(len, runs)) >= count:
            break
        runs.append(await _between(k, partition, begin, end, count))
    records = list(chain.from_iterable(reversed(runs)))
    return records[-count:] if count else [], marks[0]


async def _between(
    k: od.Cluster, partition: TopicPartition, begin: Position, end: Position, count: int
) -> list[Record]:
    kept: list[Record] = []
    async with k.reader({partition: begin}, until=end) as r:
        async for batch in r.batches():
            kept = [*kept, *batch][-count:]
    return kept
