"""The plan of a query, decided without reading logs: how much of which log is read, and in which task.

All functions work on values: the offsets of a query (`values`), and the extents of logs (`Extent`). A streaming query
asks for the end of its next micro-batch first: `end_offsets` returns the ends of the logs, and `end_of_micro_batch`
limits how much is read now. Three steps lead from offsets to tasks, and logs are asked only between them:

1. `clip_to_logs`: the ranges to read, and the gaps that the logs no longer have.
2. `propose_splits`: where to split ranges. At known boundaries (segment starts) a split is free; elsewhere it is a
   proposal, which `LogAccess.boundary` moves to the start of a message, if it can prove one.
3. `split` at the boundaries found, and `pack` into tasks.

The protocol decides what positions count (`PositionUnit`): bytes in 0.7, records later. Sizes are in that unit.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from odradek.core.interfaces import BYTES, Extent, Extents, PositionUnit, SplitPoint
from odradek.errors import OdradekError
from odradek.ranges.offsets import NO_IDS, Offsets, TopicIds
from odradek.types import Position, TopicPartition

__all__ = [
    "BoundaryMismatch",
    "DataLoss",
    "Loss",
    "PositionGap",
    "Range",
    "TaskPlan",
    "clip_to_logs",
    "end_of_micro_batch",
    "end_offsets",
    "gone",
    "has_shorter",
    "in_current_topics",
    "of_topics",
    "pack",
    "propose_splits",
    "split",
    "topic_ids",
    "with_boundaries",
    "within",
]

SPLIT_TOLERANCE = 1.25
"""A range is split only if it is larger than this multiple of the wanted size: each split costs a proof."""


class Range(NamedTuple):
    """A part of a log, [start, end)."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """Length, in the unit of its positions."""
        return self.end - self.start


class TaskPlan(NamedTuple):
    """The work of one task: its ranges, in reading order, their log directories (none in a cluster), and the ids of the
    topics that they are ranges of."""

    ranges: tuple[Range, ...]
    paths: Mapping[TopicPartition, str]
    topic_ids: TopicIds = NO_IDS


# ---- the end of a micro-batch --------------------------------------------------------------------------------


def end_offsets(start: Offsets, logs: Extents) -> dict[TopicPartition, Position]:
    """The offsets behind everything that logs have now.

    A partition that is new enters at its earliest message, without being read yet: a checkpoint then says where it
    began, should the batch be read again after retention has moved on. A partition that is not there (its broker is
    down) stays where it is.
    """
    ends = {partition: Position(log.latest if partition in start else log.earliest) for partition, log in logs.items()}
    return dict(sorted({**start, **ends}.items()))


def within(logs: Extents, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, Extent]:
    """Return the ends of a run, clipped to the logs as they are now: a log that was created again may be shorter than
    its former end."""
    return {
        partition: log._replace(latest=min(log.latest, max(ends[partition], log.earliest)))
        for partition, log in logs.items()
        if partition in ends
    }


def end_of_micro_batch(
    start: Offsets, end: Offsets, logs: Extents, max_size: int | None, unit: PositionUnit = BYTES
) -> tuple[dict[TopicPartition, Position], list[SplitPoint]]:
    """Return the ends of a micro-batch in [start, end) that may read `max_size`, and the cuts among them. A range with
    a cut should end at a message boundary there. Its end is the cut's ceiling, the next boundary that is known, for
    when
    none can be proved: more than its share, but nothing that the log does not have. No end may be behind that of its
    log (see `end_offsets`).

    Shares are proportional to backlogs. Shares smaller than the unit's `min_share` are pooled and given to some of the
    partitions, in rotation. If there is any backlog, some of it is read.
    """
    waiting = {part.partition: part.size for part in clip_to_logs(start, end, logs)[0]}
    total = sum(waiting.values())
    if max_size is None or total <= max_size:
        return dict(end), []
    shares = {partition: size * max_size // total for partition, size in waiting.items()}
    _put_together(shares, waiting, start, unit.min_share)
    ends: dict[TopicPartition, Position] = {}
    cuts: list[SplitPoint] = []
    for partition, last in end.items():
        size, share = waiting.get(partition, 0), shares.get(partition, 0)
        if share >= size:
            ends[partition] = last
        elif not share:  # a log that ends before the start is read from its beginning: later it may be longer
            ends[partition] = min(start[partition], Position(last - size))
        else:
            floor, at, known = last - size, last - size + share, logs[partition].boundaries
            behind = bisect_right(known, at)
            near = known[behind - 1] if behind else 0
            if 2 * near >= floor + at:  # a boundary in the second half of the share, or right at its end
                ends[partition] = Position(near)
            else:
                ends[partition] = Position(min((last, *known[behind : behind + 1])))
                cuts.append(SplitPoint(partition, at, max(floor, near), ends[partition]))
    return ends, cuts


def with_boundaries(ends: Offsets, boundaries: Mapping[SplitPoint, int | None]) -> dict[TopicPartition, Position]:
    """Return the ends of a micro-batch, those of its cuts where a boundary was proved."""
    return {**ends, **{cut.partition: Position(at) for cut, at in boundaries.items() if at is not None}}


def _put_together(
    shares: dict[TopicPartition, int], waiting: Mapping[TopicPartition, int], start: Offsets, minimum: int
) -> None:
    """Give what small shares come to together to some of the partitions that have them.

    They take turns, and only offsets need to be remembered for that: the sum of theirs grows by a share for each
    partition that is served.
    """
    small = sorted(partition for partition, share in shares.items() if share < min(minimum, waiting[partition]))
    pool = sum(shares[partition] for partition in small)
    first = sum(start[partition] for partition in small) // minimum
    shares.update(dict.fromkeys(small, 0))
    for step in range(len(small)):
        partition = small[(first + step) % len(small)]
        shares[partition] = min(minimum, waiting[partition], max(pool, 1))
        pool -= shares[partition]
        if pool < max(minimum // 4, 1):
            break


# ---- data loss -----------------------------------------------------------------------------------------------


class Loss(Enum):
    """The way in which a log lost the data to be read."""

    EXPIRED = "deleted by retention"
    TRUNCATED = "cut off at the end, or the log was created again"
    GONE = "no broker has this partition"
    RECREATED = "the topic was deleted and made again"


class PositionGap(NamedTuple):
    """The missing range [start, end) of one partition."""

    partition: TopicPartition
    loss: Loss
    start: int
    end: int
    earliest: int  # what the log has now; -1 if it is gone
    latest: int
    resumed: int  # where reading continues in the range, or its end

    def __str__(self) -> str:
        has = "" if self.latest < 0 else f", the log now has [{self.earliest}, {self.latest})"
        wanted = f"everything from {self.start} on" if self.start == self.end else f"[{self.start}, {self.end})"
        return f"{self.partition}: {self.loss.value}: wanted {wanted}{has}"


class DataLoss(OdradekError):
    """Data that a query has to read is no longer in the logs, and that is an error. `gaps` has all of it; `skip` is the
    option that goes on behind it."""

    def __init__(self, gaps: Sequence[PositionGap], skip: str) -> None:
        super().__init__(tuple(gaps), skip)  # errors are pickled: arguments are the whole state
        self.gaps = tuple(gaps)
        self.hint = f"{skip} goes on behind what is missing and records it"

    def message(self) -> str:
        more = f"; and {len(self.gaps) - 10} more partitions" if len(self.gaps) > 10 else ""
        return f"data was lost: {'; '.join(map(str, self.gaps[:10]))}{more}"


class BoundaryMismatch(OdradekError):
    """A range of a log was read to its end, and that is not where a message ends: the last whole one ended at `landed`.

    Nothing of the range may be kept: a neighbouring range would have the same bytes again, or begin inside a message.
    """

    hint = (
        "the log changed under the query, a damaged message is in the way, or the offset was never a message boundary: "
        "read from the start of its segment"
    )

    def __init__(self, partition: str, start: int, end: int, landed: int) -> None:
        super().__init__(partition, start, end, landed)
        self.partition, self.start, self.end, self.landed = partition, start, end, landed

    def message(self) -> str:
        return (
            f"{self.partition}: the messages from {self.start} on end at {self.landed}, "
            f"not at {self.end} where the range ends"
        )


def topic_ids(logs: Extents) -> dict[str, str]:
    """Return the ids of the topics of logs, as far as they are known."""
    return {partition.topic: log.topic_id for partition, log in sorted(logs.items()) if log.topic_id}


def has_shorter(gaps: Iterable[PositionGap]) -> bool:
    """Return True if one of the gaps up to the ends of logs (see `end_offsets`) is of a log that ends before its start:
    there may be nothing to read yet, but once it has grown nothing tells of the loss."""
    return any(gap.start > gap.end for gap in gaps)


def gone(start: Offsets, known: Iterable[TopicPartition], logs: Extents) -> list[PositionGap]:
    """Return the gaps of those of the known partitions that are not there now: what followed their start is lost."""
    missing = ((partition, start[partition]) for partition in sorted(known) if partition not in logs)
    return [PositionGap(partition, Loss.GONE, at, at, -1, -1, at) for partition, at in missing]


def of_topics(logs: Extents, ids: TopicIds) -> dict[TopicPartition, Extent]:
    """Return the logs of these topics: not those of topics that were made again since."""
    return {p: log for p, log in logs.items() if log.topic_id in ("", ids.get(p.topic, log.topic_id))}


def in_current_topics(
    start: Offsets, ids: TopicIds, logs: Extents, now: TopicIds
) -> tuple[dict[TopicPartition, Position], list[PositionGap]]:
    """Return start offsets as positions in the topics there are now, and the gaps where those are other ones.

    A position in a topic that was deleted and made again says nothing about the new log, however long that is: it is
    read from its earliest message on. Records that the former log had after the position are lost. Offsets
    without ids, as earlier versions have written them, are taken to be in the topics that there are.

    Args:
        start: Offsets.
        ids: The topics they are positions in.
        logs: The logs there are now; partitions that are not there now begin at 0 when they come.
        now: Their topics.
    """
    offsets, gaps = dict(start), []
    for partition, at in sorted(start.items()):
        known = ids.get(partition.topic)
        if known is not None and now.get(partition.topic, known) != known:
            earliest, latest, *_ = logs.get(partition, Extent(0, -1))
            offsets[partition] = Position(earliest)
            gaps.append(PositionGap(partition, Loss.RECREATED, at, at, earliest, latest, earliest))
    return offsets, gaps


def clip_to_logs(start: Offsets, end: Offsets, logs: Extents) -> tuple[list[Range], list[PositionGap]]:
    """Return the ranges between two offsets that the logs still have, and the gaps that they no longer have.

    A partition that `start` does not name is not read yet: it enters at its end (see `end_offsets`). A log whose end is
    before the start offset was truncated or recreated, and is read again from its earliest message.
    """
    ranges: list[Range] = []
    gaps: list[PositionGap] = []
    for partition, last in sorted(end.items()):
        first, log = start.get(partition, last), logs.get(partition)
        if first == last:
            continue
        if log is None:
            gaps.append(PositionGap(partition, Loss.GONE, first, last, -1, -1, last))
            continue
        earliest, latest, *_ = log
        if first > last:
            gaps.append(PositionGap(partition, Loss.TRUNCATED, first, last, earliest, latest, earliest))
            first = Position(earliest)
        if first < earliest:
            behind = min(earliest, last)
            gaps.append(PositionGap(partition, Loss.EXPIRED, first, behind, earliest, latest, behind))
            first = Position(behind)
        if last > latest:
            gaps.append(PositionGap(partition, Loss.TRUNCATED, max(first, latest), last, earliest, latest, last))
        if first < min(last, latest):
            ranges.append(Range(partition, first, min(last, latest)))
    return ranges, gaps


# ---- tasks ---------------------------------------------------------------------------------------------------


def propose_splits(ranges: Iterable[Range], logs: Extents, split_size: int) -> list[SplitPoint]:
    """Propose where to split ranges so that the parts have about `split_size`.

    A split at a known boundary needs no proof: its floor is its position. Known boundaries are used first; the rest
    between two of them is divided evenly.
    """
    cuts: list[SplitPoint] = []
    for partition, begin, end in ranges:  # `begin` moves on to the piece that is being filled
        known = logs[partition].boundaries
        inner = known[bisect_right(known, begin) : bisect_left(known, end)]
        for floor, ceiling in pairwise((begin, *inner, end)):
            if ceiling - begin > split_size * SPLIT_TOLERANCE and floor - begin >= split_size // 2:
                cuts.append(SplitPoint(partition, floor, floor, floor))
                begin = floor
            if (size := ceiling - begin) > split_size * SPLIT_TOLERANCE:
                parts = -(-size // split_size)
                at = [begin + size * number // parts for number in range(1, parts)]
                cuts += (SplitPoint(partition, position, floor, ceiling) for position in at)
                begin = at[-1]
    return cuts


Leader = Callable[[TopicPartition], int]


def split(ranges: Iterable[Range], boundaries: Iterable[tuple[TopicPartition, int]]) -> list[Range]:
    """Ranges divided at the boundaries that were found; those outside of every range, and doubles, do not matter."""
    known = sorted(set(boundaries))
    parts: list[Range] = []
    for partition, start, end in ranges:
        inner = known[bisect_right(known, (partition, start)) : bisect_left(known, (partition, end))]
        parts += (Range(partition, a, b) for a, b in pairwise((start, *(position for _, position in inner), end)))
    return parts


def pack(parts: Iterable[Range], tasks: int, *, leader: Leader, fetchers: int | None = None) -> list[tuple[Range, ...]]:
    """Distribute ranges over at most `tasks` tasks of about the same size: the largest range first, each to the task
    with the least data so far. The largest task is at most a third above the best possible. Return the ranges of each,
    in reading order.

    Pieces of one broker are spread over the tasks, and tasks begin with different brokers, so that no broker serves
    all of them at once.

    Args:
        leader: Returns the id of the broker that serves a partition.
        fetchers: Maximum number of tasks that read from one broker, even if they become larger for that.
    """
    groups: list[Sequence[Range]] = [(part,) for part in parts if part.size > 0]  # each goes to one task
    if fetchers is not None:
        by_broker: defaultdict[int, list[Range]] = defaultdict(list)
        for (part,) in groups:
            by_broker[leader(part.partition)].append(part)
        groups = [task for ranges in by_broker.values() for task in pack(ranges, fetchers, leader=leader)]
    # Ranges of one broker with the same size become neighbours, which spreads them over the tasks.
    groups.sort(key=lambda group: (-_size(group), leader(group[0].partition)))
    heap = [(0, number) for number in range(min(tasks, len(groups)))]
    chosen: list[list[Range]] = [[] for _ in heap]
    for group in groups:
        load, number = heap[0]
        chosen[number] += group
        heapq.heapreplace(heap, (load + _size(group), number))
    brokers = sorted({leader(part.partition) for group in groups for part in group})
    order = {broker: index for index, broker in enumerate(brokers)}
    return [_in_order(ranges, number, order, leader) for number, ranges in enumerate(chosen)]


def _size(ranges: Iterable[Range]) -> int:
    return sum(part.size for part in ranges)


def _in_order(ranges: list[Range], number: int, order: Mapping[int, int], leader: Leader) -> tuple[Range, ...]:
    """The ranges of a task in the order in which it reads them, with what is adjacent joined."""
    ranges.sort(key=lambda part: ((order[leader(part.partition)] - number) % len(order), part))
    joined: list[Range] = []
    for part in ranges:
        if joined and joined[-1].partition == part.partition and joined[-1].end == part.start:
            joined[-1] = Range(part.partition, joined[-1].start, part.end)
        else:
            joined.append(part)
    return tuple(joined)
