"""Positions that groups of the source have committed, as offsets on the target: decided from the index. Pure.

A committed position is where the next record begins. On the target that is the offset of the first copied record that
is not before it. Where positions of the source are offsets this is arithmetic. Those of 0.7 are bytes, of which
the index has one for each run: how many records are between has to be counted in the source (`Uncounted`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from odradek.mirror.stored import CopyProgress, IndexEntry, Run, SourcePosition

__all__ = ["Deleted", "Exact", "NotMirrored", "PartitionIndex", "Translation", "Uncounted"]


class Exact(NamedTuple):
    """The position is known.

    Args:
        offset: Of the first copied record that the group has not had, or where the next one copied will be.
    """

    offset: int


class Uncounted(NamedTuple):
    """The position is within a run, or at its end.

    Args:
        run: The run.
        end: Where its last record ends on the source.
    """

    run: Run
    end: SourcePosition


class NotMirrored(NamedTuple):
    """The position is beyond what is mirrored.

    Args:
        since: Where on the source copying will continue; None: nothing of the partition was copied yet.
        offset: The end of what is mirrored.
    """

    since: SourcePosition | None
    offset: int


class Deleted(NamedTuple):
    """The source had deleted records behind the position before they were copied.

    Args:
        offset: Of the first record that was copied.
    """

    offset: int


Translation = Exact | Uncounted | NotMirrored | Deleted


class PartitionIndex:
    """The index of one source partition.

    Args:
        entries: What the topic of the mirror says of it, in any order.
        progress: How far it is copied; None: nothing was copied yet.
        begin: Where the target partition begins, and the first record will be while there is none.
    """

    def __init__(self, entries: Iterable[IndexEntry], progress: CopyProgress | None, begin: int) -> None:
        self.progress = progress
        copied_to = None if progress is None else progress.target_next
        self.end = begin if copied_to is None else max(begin, copied_to)
        self._take(sorted(run for entry in entries for run in entry.runs))

    def _take(self, runs: list[Run]) -> None:
        self.runs = runs
        self._starts = [run[:2] for run in runs]
        self._offsets = [run.offset for run in runs]
        self._records_before = list(accumulate((run.records for run in runs), initial=0))

    def translate(self, position: int, *, earliest: int, offsets: bool) -> Translation:
        """Return where a committed position is on the target.

        Args:
            position: It.
            earliest: Where the log of the source begins now.
            offsets: Positions of the source are offsets.
        """
        at = (position, 0)
        number = bisect_right(self._starts, at) - 1
        if number < 0 and position < earliest:
            return Deleted(self._first_from(0))
        if self.progress is None:
            return NotMirrored(None, self.end)
        if at > self.progress.next[:2]:
            return NotMirrored(self.progress.next, self.end)
        if number < 0:
            return Exact(self._first_from(0))
        if at == self.progress.next[:2]:
            return Exact(self.end)
        if offsets or at == self._starts[number]:
            return Exact(self._offset_in(self.runs[number], position - self.runs[number].position))
        return Uncounted(self.runs[number], self._end_of(number))

    def counted(self, run: Run, position: int, records: int) -> Exact:
        """Return where a position is that so many records of a run come before; `translate` knows it from now on, and
        counts from there."""
        if 0 < records < run.records:
            number = self.runs.index(run)
            parts = run._replace(records=records), Run(position, 0, run.offset + records, run.records - records)
            self._take([*self.runs[:number], *parts, *self.runs[number + 1 :]])
        return Exact(self._offset_in(run, records))

    def _offset_in(self, run: Run, records: int) -> int:
        """Return the offset of the first record of or behind a run that so many records of the run come before."""
        if records < run.records:
            return run.offset + records
        return self._first_from(bisect_right(self._starts, run[:2]))

    def records_from(self, offset: int) -> int:
        """Return how many of the copied records are at an offset of the target or behind it."""
        number = bisect_left(self._offsets, offset) - 1
        if number < 0:
            return self._records_before[-1]
        run = self.runs[number]
        return self._records_before[-1] - self._records_before[number] - min(offset - run.offset, run.records)

    def _first_from(self, number: int) -> int:
        """Return the offset of the first record of a run, or (behind the last one) of the next record there will be."""
        return self.runs[number].offset if number < len(self.runs) else self.end

    def _end_of(self, number: int) -> SourcePosition:
        following = self._starts[number + 1] if number + 1 < len(self.runs) else None
        assert self.progress is not None
        return self.progress.next if following is None else SourcePosition(*following)
