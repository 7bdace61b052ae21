"""What a query reads, decided without reading it: which range of which log, and in which task.

Everything here is a function of values: what offsets say (`offsets`), and what each log has now (`Extent`). Three steps
lead from there to tasks, and only between them are brokers asked anything:

1. `settle`: the ranges to read, and the gaps where logs do not have them any more.
2. `propose_cuts`: where ranges are to be divided. At known boundaries (segment starts) that is free; elsewhere a cut is
   a proposal, which `boundary.BoundarySearch` moves to where a message begins, if it can prove it.
3. `divide` at what was found, and `pack` into tasks.

`admission` has what comes before that in a streaming query: how far a micro-batch goes.

In 0.7 positions are bytes, so the size of a range is its length.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from odradek.errors import ConfigError
from odradek.spark.errors import DataLoss
from odradek.spark.gaps import Loss, PositionGap
from odradek.spark.offsets import Offsets, Place, Places
from odradek.types import EARLIEST, LATEST, AtTime, MiB, Position, PositionSpec, TopicPartition

__all__ = [
    "LEAST_PIECE",
    "Extent",
    "PlannedTask",
    "Range",
    "ReadableRanges",
    "SplitPoint",
    "TaskSizing",
    "check_order",
    "divide",
    "pack",
    "place_of_each",
    "positions",
    "propose_cuts",
    "settle",
    "task_count",
]

LEAST_PIECE = 4 * MiB
"""Ranges are not divided into smaller pieces: proving a cut takes one or two of these four."""

SLACK = 1.25
"""A piece may be so much larger than wanted before it is worth a proof to divide it."""


class Extent(NamedTuple):
    """What a log has now.

    Args:
        earliest: Where its first message begins.
        latest: Where the next message will be.
        boundaries: Known message boundaries, ascending: in 0.7 where segments start.
    """

    earliest: int
    latest: int
    boundaries: tuple[int, ...] = ()


class Range(NamedTuple):
    """A part of a log, [start, end)."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes."""
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
    """What there is to read, and what is missing."""

    ranges: tuple[Range, ...]
    gaps: tuple[PositionGap, ...]


class PlannedTask(NamedTuple):
    """What one Spark task reads, in this order."""

    ranges: tuple[Range, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(r.size for r in self.ranges)


class TaskSizing(NamedTuple):
    """How much work is how divided.

    Args:
        tasks: How many tasks there are at most.
        piece: Bytes above which a range is divided.
    """

    tasks: int
    piece: int


# ---- from options to positions -------------------------------------------------------------------------------


def place_of_each(partitions: Iterable[TopicPartition], places: Places, option: str) -> dict[TopicPartition, Place]:
    """The place of each partition.

    Raises:
        ConfigError: Places are given for partitions one by one, but not for exactly these (as in Spark).
    """
    known = list(partitions)
    if isinstance(places, PositionSpec | AtTime):
        return dict.fromkeys(known, places)
    for wrong, text in (
        (sorted(set(known) - places.keys()), "says nothing about"),
        (sorted(places.keys() - set(known)), "names what is not read or not there:"),
    ):
        if wrong:
            more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
            raise ConfigError(f"option {option} {text} {', '.join(map(str, wrong[:10]))}{more}")
    return {partition: places[partition] for partition in known}


def check_order(start: Mapping[TopicPartition, Place], end: Mapping[TopicPartition, Place]) -> None:
    """Raise ConfigError where a query would end before it begins, as far as its options say so by themselves."""
    for partition, first in start.items():
        last = end.get(partition)
        if isinstance(first, int) and isinstance(last, int) and first > last:
            raise ConfigError(f"{partition}: starts at {first}, but ends at {last}")


def positions(
    places: Mapping[TopicPartition, Position | PositionSpec], logs: Mapping[TopicPartition, Extent]
) -> dict[TopicPartition, Position]:
    """Places by meaning -> positions."""
    anchors = {EARLIEST: attrgetter("earliest"), LATEST: attrgetter("latest")}
    return {
        partition: Position(anchors[place](logs[partition])) if isinstance(place, PositionSpec) else place
        for partition, place in places.items()
    }


# ---- data loss -----------------------------------------------------------------------------------------------


def settle(
    start: Offsets, end: Offsets, logs: Mapping[TopicPartition, Extent], *, fail_on_data_loss: bool
) -> ReadableRanges:
    """The ranges between two offsets that logs still have, and the gaps where they do not.

    Nothing is read of a partition that `start` does not name: it enters at its end (see `admission.target`). One whose
    end is before its start was cut off or made anew, and is read from its earliest message; that is the only way back.

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


def task_count(total: int, *, max_bytes: int, min_tasks: int, max_tasks: int) -> TaskSizing:
    """How many tasks read `total` bytes: about `max_bytes` each, within the two bounds, of which the upper one wins.
    A task costs 30 to 50 ms however little it does."""
    tasks = min(max(-(-total // max_bytes), min_tasks, 1), max(max_tasks, 1))
    return TaskSizing(tasks, max(-(-total // tasks), LEAST_PIECE))


def propose_cuts(ranges: Iterable[Range], logs: Mapping[TopicPartition, Extent], piece: int) -> list[SplitPoint]:
    """Where ranges are to be divided so that pieces have about `piece` bytes.

    A cut at a known boundary needs no proof: its floor is its position. Known boundaries are used first, and between
    two of them what is left is divided evenly.
    """
    cuts: list[SplitPoint] = []
    for part in ranges:
        if part.size > piece * SLACK:
            known = logs[part.partition].boundaries
            inner = known[bisect_right(known, part.start) : bisect_left(known, part.end)]
            cuts += _cuts(part, inner, piece)
    return cuts


def _cuts(part: Range, inner: Sequence[int], piece: int) -> Iterable[SplitPoint]:
    begin = part.start  # of the piece that is being filled
    for floor, ceiling in pairwise((part.start, *inner, part.end)):
        if ceiling - begin <= piece * SLACK:
            continue
        if floor - begin >= piece // 2:
            yield SplitPoint(part.partition, floor, floor, floor)
            begin = floor
        if ceiling - begin > piece * SLACK:
            pieces = -(-(ceiling - begin) // piece)
            for number in range(1, pieces):
                yield SplitPoint(part.partition, begin + (ceiling - begin) * number // pieces, floor, ceiling)
            begin += (ceiling - begin) * (pieces - 1) // pieces


def divide(ranges: Iterable[Range], found: Iterable[tuple[TopicPartition, int]]) -> list[Range]:
    """Ranges divided at the boundaries that were found; those outside of every range, and doubles, do not matter."""
    places: defaultdict[TopicPartition, set[int]] = defaultdict(set)
    for partition, position in found:
        places[partition].add(position)
    pieces: list[Range] = []
    for part in ranges:
        inner = sorted(place for place in places.get(part.partition, ()) if part.start < place < part.end)
        pieces += (Range(part.partition, a, b) for a, b in pairwise((part.start, *inner, part.end)))
    return pieces


# ---- packing -------------------------------------------------------------------------------------------------


def pack(pieces: Iterable[Range], tasks: int, *, fetchers: int | None = None) -> list[PlannedTask]:
    """Distribute pieces over at most so many tasks of about the same size: the largest first, each to the task that has
    least so far, which is at most a third above the best there is.

    Pieces of one broker are spread over the tasks, and tasks begin with different brokers, so that no broker serves
    all of them at once.

    Args:
        pieces: What is to be read. Empty ones are left out.
        tasks: Most tasks there may be.
        fetchers: At most so many tasks read from one broker, even if they become larger for that.
    """
    bundles = _bundles(pieces, fetchers)
    heap = [(0, number) for number in range(min(tasks, len(bundles)))]
    chosen: list[list[Range]] = [[] for _ in heap]
    for size, bundle in bundles:
        load, number = heap[0]
        chosen[number] += bundle
        heapq.heapreplace(heap, (load + size, number))
    brokers = sorted({part.partition.broker for _, bundle in bundles for part in bundle})
    turns = {broker: turn for turn, broker in enumerate(brokers)}
    return [PlannedTask(_in_order(ranges, number, turns)) for number, ranges in enumerate(chosen)]


def _bundles(pieces: Iterable[Range], fetchers: int | None) -> list[tuple[int, list[Range]]]:
    """What goes to one task together, the largest first; equals of one broker are neighbours, which spreads them."""
    alone = [(part.end - part.start, [part]) for part in pieces if part.end > part.start]
    if fetchers is not None:
        by_broker: defaultdict[int, list[Range]] = defaultdict(list)
        for _, (part,) in alone:
            by_broker[part.partition.broker].append(part)
        together = [task for ranges in by_broker.values() for task in pack(ranges, fetchers)]
        alone = [(task.size, list(task.ranges)) for task in together]
    alone.sort(key=lambda bundle: (-bundle[0], bundle[1][0].partition.broker))
    return alone


def _in_order(ranges: list[Range], number: int, turns: Mapping[int, int]) -> tuple[Range, ...]:
    """The ranges of a task in the order in which it reads them, with what is adjacent joined."""
    count = len(turns)
    ranges.sort(key=lambda part: ((turns[part.partition.broker] - number) % count, part))
    joined: list[Range] = []
    for part in ranges:
        if joined and joined[-1].partition == part.partition and joined[-1].end == part.start:
            joined[-1] = Range(part.partition, joined[-1].start, part.end)
        else:
            joined.append(part)
    return tuple(joined)
