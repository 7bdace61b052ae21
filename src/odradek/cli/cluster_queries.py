"""Questions to a cluster that several commands ask, and what several of them have it do."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

import odradek as od
from odradek.client.consumer.positions import resolve_positions
from odradek.client.options import LARGEST_MESSAGE, Isolation
from odradek.core.interfaces import Extent
from odradek.types import EARLIEST, LATEST, Position, Record, TopicPartition, by_broker

if TYPE_CHECKING:
    from odradek.core.admin import Results

__all__ = [
    "PartitionExtent",
    "beyond_end",
    "delete_described",
    "extents",
    "find_partitions",
    "find_topics",
    "last_records",
    "message_limit",
]

T = TypeVar("T")


class PartitionExtent(NamedTuple):
    """The positions of a partition that can be read: from its oldest one to its end."""

    earliest: Position
    latest: Position


async def find_topics(k: od.Cluster, words: Sequence[str]) -> list[str]:
    """Return the topics that words name: each is a name, or a regular expression of beginnings, which begins with ^.

    Raises click.ClickException if there are none for an expression.
    """
    known = sorted(await k.topics()) if any(word[:1] == "^" for word in words) else []
    topics: dict[str, None] = {}
    for word in words:
        names = [name for name in known if re.match(word, name)] if word[:1] == "^" else [word]
        if not names:
            raise click.ClickException(f"{word}: no topic has such a name")
        topics |= dict.fromkeys(names)
    return list(topics)


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
    """Return the extent of each partition of a topic whose broker is alive. `Cluster.positions` asks again while
    leaders move, which `LogAccess.extents` does not."""
    earliest, latest = await k.positions(topic, EARLIEST), await k.positions(topic, LATEST)
    return {p: PartitionExtent(earliest[p], latest[p]) for p in sorted(earliest) if p in latest}


def message_limit(k: od.Cluster, asked: int | None, default_07: int) -> int:
    """Return the size limit of a message (bytes): as asked, or what any broker takes. Brokers that refuse no batch
    have a default of their own: 0.7 drops larger messages silently, and what looks like the size of a large one may be
    damaged."""
    return asked or (LARGEST_MESSAGE if k.driver.refuses_batches else default_07)


async def beyond_end(k: od.Cluster, positions: Mapping[TopicPartition, object]) -> dict[TopicPartition, Position]:
    """Return the partitions whose position is beyond the end, with their ends. What is no number is not beyond it."""
    exact = {p: at for p, at in positions.items() if isinstance(at, int)}
    ends: dict[TopicPartition, Position] = {}
    for topic in {partition.topic for partition in exact}:
        ends |= await k.positions(topic, LATEST)
    return {p: ends[p] for p, at in exact.items() if p in ends and at > ends[p]}


async def last_records(
    k: od.Cluster, partition: TopicPartition, count: int, max_message_bytes: int, isolation: Isolation
) -> tuple[list[Record], Position]:
    """Return the last `count` messages of a partition, and the position of its end.

    Logs can only be read forwards, from known boundaries: read range by range, from the last one back. Of messages of
    transactions that were aborted, there may be less.
    """
    logs = k.driver.logs
    extent = (await logs.extents([partition])).get(partition)
    if extent is None:
        raise click.ClickException(f"{partition}: its broker is not registered")
    if isolation == "read_committed":  # up to the first open transaction: a reader would wait for its end
        ends, _ = await resolve_positions(k.driver, {partition: LATEST}, read_committed=True)
        extent = extent._replace(latest=min(extent.latest, ends.get(partition, extent.latest)))
    boundaries = extent.boundaries[::-1] if logs.unit.exact else _boundaries(extent, count)
    ranges: list[list[Record]] = []
    for end, begin in pairwise(boundaries):
        if sum(map(len, ranges)) >= count:
            break
        wanted = {partition: Position(begin)}
        async with k.reader(wanted, until=Position(end), max_message_bytes=max_message_bytes, isolation=isolation) as r:
            ranges.append(await _tail(r, count))
    records = list(chain.from_iterable(reversed(ranges)))
    return records[-count:] if count else [], Position(extent.latest)


def _boundaries(extent: Extent, count: int) -> list[int]:
    """Return where to cut a log whose positions count messages, newest first: ranges of `count` messages, then twice as
    many and so on, because some positions may have no message."""
    boundaries, size = [extent.latest], max(1, count)
    while boundaries[-1] > extent.earliest:
        boundaries.append(max(extent.earliest, boundaries[-1] - size))
        size *= 2
    return boundaries


async def _tail(r: od.Reader, count: int) -> list[Record]:
    kept: list[Record] = []
    async for batch in r.batches():
        kept = [*kept, *batch][-count:]
    return kept


async def delete_described(
    describe: Callable[[Sequence[str]], Awaitable[Results[str, T]]],
    delete: Callable[[Sequence[str]], Awaitable[Results[str, None]]],
    names: Sequence[str],
    apply: bool,
    refusal: Callable[[str, T], od.OdradekError | None] = lambda _name, _described: None,
) -> Results[str, T]:
    """Describe items by their names, and delete them if `apply`. Return the descriptions of those that were deleted, or
    would be. Raises Unsupported if none can be deleted, whether or not they are to be.

    Args:
        describe, delete: Calls of the administration.
        names: The items.
        apply: Delete them.
        refusal: Returns the error of one that cannot be deleted as it is.
    """
    from odradek.core.admin import Results

    await delete([])
    described = await describe(names)
    failed = dict(described.failed)
    failed |= {name: error for name, each in described.done.items() if (error := refusal(name, each)) is not None}
    if apply:
        failed |= (await delete([name for name in described.done if name not in failed])).failed
    return Results({name: each for name, each in described.done.items() if name not in failed}, failed)
