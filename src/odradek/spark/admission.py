"""The end of a micro-batch.

A streaming query asks for the next offsets at every trigger: `end_offsets` returns the ends of the logs, `should_read`
says if it is time to read, and `end_of_micro_batch` limits how much is read now.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from odradek.spark.offsets import Offsets
from odradek.spark.planning import BYTES, Extent, PositionUnit, SplitPoint
from odradek.types import Position, TopicPartition

__all__ = [
    "MicroBatchEnd",
    "ReadLimits",
    "backlog",
    "end_of_micro_batch",
    "end_offsets",
    "has_new_partitions",
    "should_read",
]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of a micro-batch, in the unit of positions (`PositionUnit`).

    Args:
        max_size: Approximate maximum to read; None: no limit.
        min_size: Wait until this much is available,
        max_delay_s: but no longer than this (s).
    """

    max_size: int | None = None
    min_size: int = 0
    max_delay_s: float = 900.0


class MicroBatchEnd(NamedTuple):
    """The end of a micro-batch, as far as it is known without reading the logs.

    Args:
        ends: End positions of the partitions for which it is known.
        cuts: For the others: the ends of their shares, which have to be moved to a message boundary.
    """

    ends: dict[TopicPartition, Position]
    cuts: tuple[SplitPoint, ...]

    def with_boundaries(self, boundaries: Mapping[SplitPoint, int | None]) -> dict[TopicPartition, Position]:
        """All ends. A cut without a boundary (None) goes on to its ceiling, the next boundary that is known: more
        than its share, but never less than the log has."""
        ends = dict(self.ends)
        for cut in self.cuts:
            boundary = boundaries[cut]
            ends[cut.partition] = Position(cut.ceiling if boundary is None else boundary)
        return dict(sorted(ends.items()))


def end_offsets(start: Offsets, logs: Mapping[TopicPartition, Extent]) -> dict[TopicPartition, Position]:
    """The offsets behind everything that logs have now.

    A partition that is new enters at its earliest message, without being read yet: a checkpoint then says where it
    began, should the batch be read again after retention has moved on. A partition that is not there (its broker is
    down) stays where it is.
    """
    ends = dict(start)
    for partition, log in logs.items():
        ends[partition] = Position(log.latest if partition in start else log.earliest)
    return dict(sorted(ends.items()))


def has_new_partitions(start: Offsets, logs: Mapping[TopicPartition, Extent]) -> bool:
    """Return True if a new partition has something to read."""
    return any(log.latest > log.earliest for partition, log in logs.items() if partition not in start)


def backlog(start: Offsets, end: Offsets, logs: Mapping[TopicPartition, Extent]) -> dict[TopicPartition, int]:
    """Return how much each partition has between two offsets; none where it is 0."""
    waiting = {}
    for partition, last in end.items():
        first = start.get(partition, last)
        log = logs.get(partition)
        if log is not None and first != last:
            waiting[partition] = last - (log.earliest if first > last else max(first, min(log.earliest, last)))
    return {partition: size for partition, size in waiting.items() if size > 0}


def should_read(waiting: int, limits: ReadLimits, *, now: float, last: float) -> bool:
    """Return True if a micro-batch should start.

    Args:
        waiting: Size of the backlog.
        limits: The limits from the options.
        now: Time of any clock (s).
        last: Time of the last micro-batch on that clock, or of the start of the query.
    """
    return waiting > 0 and (waiting >= limits.min_size or now - last >= limits.max_delay_s)


def end_of_micro_batch(
    start: Offsets,
    end: Offsets,
    logs: Mapping[TopicPartition, Extent],
    max_size: int | None,
    unit: PositionUnit = BYTES,
) -> MicroBatchEnd:
    """Return the end of a micro-batch in [start, end) that may read `max_size`.

    Shares are proportional to backlogs. Shares smaller than the unit's `min_share` are pooled and given to some of the
    partitions, in rotation. If there is any backlog, some of it is read.
    """
    waiting = backlog(start, end, logs)
    total = sum(waiting.values())
    if max_size is None or total <= max_size:
        return MicroBatchEnd(dict(end), ())
    shares = {partition: size * max_size // total for partition, size in waiting.items()}
    _put_together(shares, waiting, start, unit.min_share)
    ends: dict[TopicPartition, Position] = {}
    cuts: list[SplitPoint] = []
    for partition, last in end.items():
        if partition not in waiting or shares[partition] >= waiting[partition]:
            ends[partition] = last
        elif not shares[partition]:
            ends[partition] = start[partition]
        else:
            begin = last - waiting[partition]
            boundaries = _end_of_share(
                SplitPoint(partition, begin + shares[partition], begin, last), logs[partition].boundaries
            )
            if isinstance(boundaries, SplitPoint):
                cuts.append(boundaries)
            else:
                ends[partition] = boundaries
    return MicroBatchEnd(ends, tuple(cuts))


def _put_together(
    shares: dict[TopicPartition, int], waiting: Mapping[TopicPartition, int], start: Offsets, least: int
) -> None:
    """Give what small shares come to together to some of the partitions that have them.

    They take turns, and only offsets need to be remembered for that: the sum of theirs grows by a share for each
    partition that is served.
    """
    small = sorted(partition for partition, share in shares.items() if share < min(least, waiting[partition]))
    pool = sum(shares[partition] for partition in small)
    first = sum(start[partition] for partition in small) // least
    shares.update(dict.fromkeys(small, 0))
    for step in range(len(small)):
        partition = small[(first + step) % len(small)]
        shares[partition] = min(least, waiting[partition], max(pool, 1))
        pool -= shares[partition]
        if pool < max(least // 4, 1):
            break


def _end_of_share(cut: SplitPoint, boundaries: tuple[int, ...]) -> SplitPoint | Position:
    """A known boundary in the second half of the share or right at its end, or the cut between two of them."""
    behind = bisect_right(boundaries, cut.position)
    near = boundaries[behind - 1] if behind else 0
    if 2 * near >= cut.floor + cut.position:
        return Position(near)
    ceiling = min(cut.ceiling, boundaries[behind]) if behind < len(boundaries) else cut.ceiling
    return cut._replace(floor=max(cut.floor, near), ceiling=ceiling)
