"""Committed positions to target offsets, against a model that has every record."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.mirror.stored import CopyProgress, IndexEntry, Run, SourcePosition
from odradek.mirror.translation import Deleted, Exact, NotMirrored, PartitionIndex, Uncounted
from odradek.types import TopicPartition

PARTITION = TopicPartition("orders", 0)


@dataclass
class Copied:
    """A log of the source, and its copy.

    Args:
        starts: Where each record is on the source.
        boundaries: Positions that a group can have committed.
        offsets: Where those that were copied are on the target: the first ones.
        index: What the mirror says of it.
    """

    starts: list[tuple[int, int]]
    boundaries: list[int]
    offsets: list[int]
    index: PartitionIndex

    def expected(self, position: int) -> int:
        """Return the offset of the first copied record from a position on."""
        return next(
            (to for at, to in zip(self.starts, self.offsets, strict=False) if at >= (position, 0)),
            self.index.end,
        )

    def count(self, start: tuple[int, int], end: tuple[int, int]) -> int:
        return sum(start <= at < end for at in self.starts)


def copied(
    starts: list[tuple[int, int]], end: int, sizes: list[int], begin: int, *, offsets: bool, boundaries: list[int]
) -> Copied:
    """Copy records in transactions of these sizes; each ends with a marker on the target."""
    entries: list[IndexEntry] = []
    targets: list[int] = []
    at, first = begin, 0
    for size in sizes:
        rows = starts[first : first + size]
        if not rows:
            break
        runs: list[Run] = []
        for number, start in enumerate(rows):
            last = runs[-1] if runs else None
            if last is not None and (not offsets or last.position + last.records == start[0]):
                runs[-1] = last._replace(records=last.records + 1)
            else:
                runs.append(Run(*start, at + number, 1))
        entries.append(IndexEntry(PARTITION, tuple(runs)))
        targets += range(at, at + len(rows))
        at += len(rows) + 1
        first += size
    done = len(targets)
    following = SourcePosition(*(starts[done] if done < len(starts) else (end, 0)))
    progress = CopyProgress(following, targets[-1] + 1 if targets else None, done)
    return Copied(starts, boundaries, targets, PartitionIndex(entries[::-1], progress, begin))


@st.composite
def logs_of_offsets(draw: st.DrawFn) -> Copied:
    gaps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 5]), max_size=30))
    start = draw(st.integers(0, 3))
    numbers = [start + at for at in accumulate(gaps)]
    end = (numbers[-1] if numbers else start) + draw(st.integers(1, 2))
    sizes = draw(st.lists(st.integers(1, 6), max_size=8))
    starts = [(number, 0) for number in numbers]
    return copied(starts, end, sizes, draw(st.integers(0, 9)), offsets=True, boundaries=list(range(start, end + 1)))


@st.composite
def logs_of_bytes(draw: st.DrawFn) -> Copied:
    """With compressed messages, which the copy may end in the middle of."""
    messages = draw(st.lists(st.tuples(st.integers(10, 40), st.integers(0, 4)), max_size=15))
    boundaries = list(accumulate((size for size, _ in messages), initial=0))
    starts = [(at, inner) for at, (_, count) in zip(boundaries, messages, strict=False) for inner in range(count)]
    sizes = draw(st.lists(st.integers(1, 6), max_size=8))
    return copied(starts, boundaries[-1], sizes, draw(st.integers(0, 9)), offsets=False, boundaries=boundaries)


@given(logs_of_offsets())
def test_an_offset_becomes_that_of_the_first_record_that_is_not_before_it(log: Copied) -> None:
    for position in log.boundaries:
        result = log.index.translate(position, earliest=0, offsets=True)
        assert log.index.progress is not None
        if position > log.index.progress.next.position:
            assert result == NotMirrored(log.index.progress.next, log.index.end)
        else:
            assert result == Exact(log.expected(position))


@given(logs_of_bytes(), st.booleans(), st.randoms(use_true_random=False))
def test_a_byte_position_becomes_that_offset_once_records_are_counted(log: Copied, back: bool, random: Random) -> None:
    for position in random.sample(log.boundaries, len(log.boundaries)):
        result = log.index.translate(position, earliest=0, offsets=False)
        if isinstance(result, Uncounted):
            run, end = result
            records = log.count(run[:2], (position, 0))
            if back:
                records = run.records - log.count((position, 0), end[:2])
            result = log.index.counted(run, position, records)
            again = log.index.translate(position, earliest=0, offsets=False)
            assert again == result or records in (0, run.records)  # it is known now, and nothing has to be counted
        assert log.index.progress is not None
        if (position, 0) > log.index.progress.next[:2]:
            assert result == NotMirrored(log.index.progress.next, log.index.end)
        else:
            assert result == Exact(log.expected(position))


@given(st.one_of(logs_of_offsets(), logs_of_bytes()))
def test_the_lag_counts_records_and_no_markers(log: Copied) -> None:
    for offset in range(log.index.end + 2):
        assert log.index.records_from(offset) == sum(to >= offset for to in log.offsets)


INDEX = [IndexEntry(PARTITION, (Run(10, 0, 100, 5), Run(20, 0, 105, 5)))]
PROGRESS = CopyProgress(SourcePosition(26), 110, 10)


@pytest.mark.parametrize(
    ("position", "earliest", "at"),
    [
        (9, 10, Deleted(100)),  # deleted before it was copied
        (9, 9, Exact(100)),  # still there, and no record: the marker of a transaction, or compacted
        (9, 500, Deleted(100)),
        (10, 500, Exact(100)),  # deleted since: what was copied counts
        (17, 500, Exact(105)),
        (25, 500, Exact(110)),
        (26, 0, Exact(110)),
        (27, 0, NotMirrored(SourcePosition(26), 110)),
    ],
)
def test_what_the_source_deleted(position: int, earliest: int, at: object) -> None:
    assert PartitionIndex(INDEX, PROGRESS, 3).translate(position, earliest=earliest, offsets=True) == at


def test_before_anything_is_copied_the_place_is_the_begin_of_the_target() -> None:
    nothing = PartitionIndex([], None, 3)
    assert nothing.translate(5, earliest=5, offsets=True) == NotMirrored(None, 3)
    assert nothing.translate(4, earliest=5, offsets=True) == Deleted(3)
    empty = PartitionIndex([], CopyProgress(SourcePosition(8)), 3)
    assert [empty.translate(at, earliest=5, offsets=True) for at in (4, 5, 8, 9)] == [
        Deleted(3),
        Exact(3),
        Exact(3),
        NotMirrored(SourcePosition(8), 3),
    ]


def test_the_end_of_what_is_mirrored_is_within_the_target() -> None:
    deleted = PartitionIndex(INDEX, PROGRESS, 120)
    assert deleted.translate(26, earliest=0, offsets=True) == Exact(120)
