"""The plan of a query, decided without reading logs: which range of which log is read in which task.

All functions work on values: the offsets of a query (`offsets`), and the extents of logs (`Extent`). Three steps lead
from there to tasks, and brokers are asked only between them:

1. `clip_to_logs`: the ranges to read, and the gaps that the logs no longer have.
2. `propose_splits`: where to split ranges. At known boundaries (segment starts) a split is free; elsewhere it is a
   proposal, which `boundary.BoundarySearch` moves to the start of a message, if it can prove one.
3. `split` at the boundaries found, and `pack` into tasks.

In a streaming query, `admission` comes first: it limits the micro-batch.

What positions count depends on the protocol (`PositionUnit`): bytes in 0.7, records later. Sizes are in that unit.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from odradek.errors import ConfigError
from odradek.spark.errors import DataLoss
from odradek.spark.gaps import Loss, PositionGap
from odradek.spark.offsets import Offsets, PartitionPosition, Positions
from odradek.types import EARLIEST, LATEST, AtTime, MiB, Position, PositionSpec, TopicPartition

__all__ = [
    "BYTES",
    "MIN_SPLIT",
    "RECORDS",
    "Extent",
    "PlannedTask",
    "PositionUnit",
    "Range",
    "ReadableRanges",
    "SplitPoint",
    "TaskSizing",
    "check_order",
    "clip_to_logs",
    "pack",
    "positions",
    "propose_splits",
    "resolve_per_partition",
    "size_tasks",
    "split",
]

MIN_SPLIT = 4 * MiB
"""Ranges are not divided into smaller pieces: proving a cut takes one or two of these four."""

SLACK = 1.25
"""A piece may be so much larger than wanted before it is worth a proof to divide it."""


class PositionUnit(NamedTuple):
    """A unit of positions.

    Args:
        name: In words.
        min_split: Ranges are not divided into smaller pieces.
        min_share: A partition is not given less of a micro-batch, if it has more.
        task_size: Default maximum size of a task.
        exact: True if every message begins and ends at a position that is known: a range ends exactly where a message
            does. False: any number is a boundary, and not every position has a message.
    """

    name: str
    min_split: int
    min_share: int
    task_size: int
    exact: bool


BYTES = PositionUnit("bytes", MIN_SPLIT, 16 * MiB, 128 * MiB, exact=True)
"""0.7. Finding where a share ends takes 1 to 3 MiB (`boundary`)."""

RECORDS = PositionUnit("records", 1, 1, 1_000_000, exact=False)
"""0.8 and later: offsets."""


class Extent(NamedTuple):
    """The extent of a log.

    Args:
        earliest: Position of its first message.
        latest: Position of the next message to be written.
        boundaries: Known message boundaries, ascending: in 0.7 the segment starts.
        broker: Id of the broker that serves it; -1: unknown.
    """

    earliest: int
    latest: int
    boundaries: tuple[int, ...] = ()
    broker: int = -1


class Range(NamedTuple):
    """A part of a log, [start, end)."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Length, in the unit of its positions."""
        return self.end - self.start


class SplitPoint(NamedTuple):
    """A place where a message boundary is wanted.

    Args:
        partition: The log.
        position: The place; a boundary at or after it will do.
        floor: The nearest known boundary before it.
        ceiling: The nearest known boundary behind it.
    """

    partition: TopicPartition
    position: int
    floor: int
    ceiling: int


class ReadableRanges(NamedTuple):
    """The ranges to read, and the gaps that the logs no longer have."""

    ranges: tuple[Range, ...]
    gaps: tuple[PositionGap, ...]


class PlannedTask(NamedTuple):
    """The ranges of one Spark task, in reading order."""

    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        """Sum of the sizes of its ranges."""
        return sum(r.size for r in self.ranges)


class TaskSizing(NamedTuple):
    """The division of work into tasks.

    Args:
        tasks: Maximum number of tasks.
        split_size: Size above which a range is split.
    """

    tasks: int
    split_size: int


# ---- from options to positions -------------------------------------------------------------------------------


def resolve_per_partition(
    partitions: Iterable[TopicPartition], wanted: Positions, option: str
) -> dict[TopicPartition, PartitionPosition]:
    """The place of each partition.

    Raises:
        ConfigError: Places are given for partitions one by one, but not for exactly these (as in Spark).
    """
    known = list(partitions)
    if isinstance(wanted, PositionSpec | AtTime):
        return dict.fromkeys(known, wanted)
    for wrong, text in (
        (sorted(set(known) - wanted.keys()), "says nothing about"),
        (sorted(wanted.keys() - set(known)), "names partitions that are not part of this query:"),
    ):
        if wrong:
            more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
            raise ConfigError(f"option {option} {text} {', '.join(map(str, wrong[:10]))}{more}")
    return {partition: wanted[partition] for partition in known}


def check_order(
    start: Mapping[TopicPartition, PartitionPosition], end: Mapping[TopicPartition, PartitionPosition]
) -> None:
    """Raise ConfigError where a query would end before it begins, as far as its options say so by themselves."""
    for partition, first in start.items():
        last = end.get(partition)
        if isinstance(first, int) and isinstance(last, int) and first > last:
            raise ConfigError(f"{partition}: starts at {first}, but ends at {last}")


def positions(
    wanted: Mapping[TopicPartition, Position | PositionSpec], logs: Mapping[TopicPartition, Extent]
) -> dict[TopicPartition, Position]:
    """Places by meaning -> positions."""
    anchors = {EARLIEST: attrgetter("earliest"), LATEST: attrgetter("latest")}
    return {
        partition: Position(anchors[position](logs[partition])) if isinstance(position, PositionSpec) else position
        for partition, position in wanted.items()
    }


# ---- data loss -----------------------------------------------------------------------------------------------


def clip_to_logs(
    start: Offsets, end: Offsets, logs: Mapping[TopicPartition, Extent], *, fail_on_data_loss: bool
) -> ReadableRanges:
    """Return the ranges between two offsets that the logs still have, and the gaps that they no longer have.

    A partition that `start` does not name is not read yet: it enters at its end (see `admission.end_offsets`). A log
    whose end is before the start offset was truncated or recreated, and is read again from its earliest message.

    Raises:
        DataLoss: There are gaps, and `fail_on_data_loss` is true.
    """
    ranges: list[Range] = []
    gaps: list[PositionGap] = []
    for partition in sorted(end):
        first, last = start.get(partition, end[partition]), end[partition]
        if first == last:
            continue
        log = logs.get(partition)
        if log is not None and log.earliest <= first < last <= log.latest:
            ranges.append(Range(partition, first, last))
        else:
            ranges += _damaged(partition, first, last, log, gaps)
    if gaps and fail_on_data_loss:
        raise DataLoss(gaps)
    return ReadableRanges(tuple(ranges), tuple(gaps))


def _damaged(
    partition: TopicPartition, first: int, last: int, log: Extent | None, gaps: list[PositionGap]
) -> Iterable[Range]:
    """What is left of a range that a log does not have as a whole; the gaps are appended."""

    def gap(loss: Loss, begin: int, end: int, resumed: int) -> PositionGap:
        earliest, latest = (-1, -1) if log is None else (log.earliest, log.latest)
        return PositionGap(partition, loss, begin, end, earliest, latest, resumed)

    if log is None:
        gaps.append(gap(Loss.GONE, first, last, last))
        return
    if first > last:
        gaps.append(gap(Loss.TRUNCATED, first, last, log.earliest))
        first = log.earliest
    if first < log.earliest:
        behind = min(log.earliest, last)
        gaps.append(gap(Loss.EXPIRED, first, behind, behind))
        first = behind
    if last > log.latest:
        gaps.append(gap(Loss.TRUNCATED, max(first, log.latest), last, last))
        last = log.latest
    if first < last:
        yield Range(partition, first, last)


# ---- dividing ------------------------------------------------------------------------------------------------


def size_tasks(total: int, *, max_size: int, min_tasks: int, max_tasks: int, min_split: int = MIN_SPLIT) -> TaskSizing:
    """Divide `total` into tasks of about `max_size`, within two bounds of which the upper one wins.

    A task costs 30 to 50 ms however little it does.
    """
    tasks = min(max(-(-total // max_size), min_tasks, 1), max(max_tasks, 1))
    return TaskSizing(tasks, max(-(-total // tasks), min_split))


def propose_splits(ranges: Iterable[Range], logs: Mapping[TopicPartition, Extent], split_size: int) -> list[SplitPoint]:
    """Propose where to split ranges so that the parts have about `split_size`.

    A split at a known boundary needs no proof: its floor is its position. Known boundaries are used first; the rest
    between two of them is divided evenly.
    """
    cuts: list[SplitPoint] = []
    for part in ranges:
        if part.size > split_size * SLACK:
            known = logs[part.partition].boundaries
            inner = known[bisect_right(known, part.start) : bisect_left(known, part.end)]
            cuts += _cuts(part, inner, split_size)
    return cuts


def _cuts(part: Range, inner: Sequence[int], split_size: int) -> Iterable[SplitPoint]:
    begin = part.start  # of the piece that is being filled
    for floor, ceiling in pairwise((part.start, *inner, part.end)):
        if ceiling - begin <= split_size * SLACK:
            continue
        if floor - begin >= split_size // 2:
            yield SplitPoint(part.partition, floor, floor, floor)
            begin = floor
        if ceiling - begin > split_size * SLACK:
            parts = -(-(ceiling - begin) // split_size)
            for number in range(1, parts):
                yield SplitPoint(part.partition, begin + (ceiling - begin) * number // parts, floor, ceiling)
            begin += (ceiling - begin) * (parts - 1) // parts


def split(ranges: Iterable[Range], boundaries: Iterable[tuple[TopicPartition, int]]) -> list[Range]:
    """Ranges divided at the boundaries that were found; those outside of every range, and doubles, do not matter."""
    splits: defaultdict[TopicPartition, set[int]] = defaultdict(set)
    for partition, position in boundaries:
        splits[partition].add(position)
    parts: list[Range] = []
    for part in ranges:
        inner = sorted(position for position in splits.get(part.partition, ()) if part.start < position < part.end)
        parts += (Range(part.partition, a, b) for a, b in pairwise((part.start, *inner, part.end)))
    return parts


# ---- packing -------------------------------------------------------------------------------------------------


def by_id(partition: TopicPartition) -> int:
    """Return the broker that a partition's name has: the one that serves it in 0.7."""
    return partition.broker


def pack(
    parts: Iterable[Range], tasks: int, *, fetchers: int | None = None, leader: Callable[[TopicPartition], int] = by_id
) -> list[PlannedTask]:
    """Distribute pieces over at most so many tasks of about the same size: the largest first, each to the task that has
    least so far, which is at most a third above the best there is.

    Pieces of one broker are spread over the tasks, and tasks begin with different brokers, so that no broker serves
    all of them at once.

    Args:
        pieces: What is to be read. Empty ones are left out.
        tasks: Most tasks there may be.
        fetchers: At most so many tasks read from one broker, even if they become larger for that.
        leader: Returns the id of the broker that serves a partition.
    """
    bundles = _bundles(parts, fetchers, leader)
    heap = [(0, number) for number in range(min(tasks, len(bundles)))]
    chosen: list[list[Range]] = [[] for _ in heap]
    for size, bundle in bundles:
        load, number = heap[0]
        chosen[number] += bundle
        heapq.heapreplace(heap, (load + size, number))
    brokers = sorted({leader(part.partition) for _, bundle in bundles for part in bundle})
    order = {broker: index for index, broker in enumerate(brokers)}
    return [PlannedTask(_in_order(ranges, number, order, leader)) for number, ranges in enumerate(chosen)]


def _bundles(
    parts: Iterable[Range], fetchers: int | None, leader: Callable[[TopicPartition], int]
) -> list[tuple[int, list[Range]]]:
    """What goes to one task together, the largest first; equals of one broker are neighbours, which spreads them."""
    alone = [(part.end - part.start, [part]) for part in parts if part.end > part.start]
    if fetchers is not None:
        by_broker: defaultdict[int, list[Range]] = defaultdict(list)
        for _, (part,) in alone:
            by_broker[leader(part.partition)].append(part)
        together = [task for ranges in by_broker.values() for task in pack(ranges, fetchers, leader=leader)]
        alone = [(task.size, list(task.ranges)) for task in together]
    alone.sort(key=lambda bundle: (-bundle[0], leader(bundle[1][0].partition)))
    return alone


def _in_order(
    ranges: list[Range], number: int, order: Mapping[int, int], leader: Callable[[TopicPartition], int]
) -> tuple[Range, ...]:
    """The ranges of a task in the order in which it reads them, with what is adjacent joined."""
    count = len(order)
    ranges.sort(key=lambda part: ((order[leader(part.partition)] - number) % count, part))
    joined: list[Range] = []
    for part in ranges:
        if joined and joined[-1].partition == part.partition and joined[-1].end == part.start:
            joined[-1] = Range(part.partition, joined[-1].start, part.end)
        else:
            joined.append(part)
    return tuple(joined)
