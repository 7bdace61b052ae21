"""Acknowledgements to runs, against a model that looks at one record after the other."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.encoded import encoded_columns, undecodable

from odradek.client.producer.results import Ack
from odradek.core.interfaces import ProducerRecord
from odradek.mirror.index import UnknownOffset, runs_of
from odradek.mirror.stored import Run
from odradek.types import Columns, Position, TopicPartition

TO = TopicPartition("t", 0)


@st.composite
def cuts(draw: st.DrawFn, rows: int) -> list[tuple[int, int]]:
    """Return ranges that are rows in order."""
    inside = draw(st.sets(st.integers(1, rows - 1))) if rows > 1 else set()
    return list(pairwise([0, *sorted(inside), rows]))


@st.composite
def positions_on_source(draw: st.DrawFn, *, inner: bool) -> list[tuple[int, int]]:
    """Return where records are on the source: with holes; of 0.7 some are in one compressed message."""
    rows, at = [], 0
    for _ in range(draw(st.integers(1, 30))):
        at += draw(st.sampled_from([1, 1, 1, 1, 2, 50]))
        size = draw(st.integers(1, 4)) if inner else 1
        rows += [(at, number) for number in range(size)]
    first = draw(st.integers(0, len(rows) - 1)) if inner else 0  # a bookmark may be inside of a message
    return rows[first:]


def columns(rows: list[tuple[int, int]]) -> Columns:
    inner = [number for _, number in rows]
    positions = [at for at, _ in rows]
    return Columns([b""] * len(rows), positions, [at + 1 for at in positions], inner if any(inner) else None)


def acks_of(ranges: list[tuple[int, int]], gaps: list[int]) -> tuple[list[Ack], list[int]]:
    """Return acknowledgements, and the offset of each row."""
    acks: list[Ack] = []
    offsets: list[int] = []
    at = 100
    for (start, stop), gap in zip(ranges, gaps, strict=True):
        at += gap
        acks.append(Ack(TO, Position(at), stop - start, True, False))
        offsets += range(at, at + stop - start)
        at += stop - start
    return acks, offsets


def naive(rows: list[tuple[int, int]], offsets: list[int], *, by_offset: bool) -> tuple[Run, ...]:
    runs: list[Run] = []
    for (at, inner), offset in zip(rows, offsets, strict=True):
        last = runs[-1] if runs else None
        follows = last is not None and last.offset + last.records == offset
        if last is not None and follows and (not by_offset or last.position + last.records == at):
            runs[-1] = last._replace(records=last.records + 1)
        else:
            runs.append(Run(at, inner, offset, 1))
    return tuple(runs)


@pytest.mark.parametrize("by_offset", [True, False], ids=["offsets", "bytes"])
@settings(max_examples=20)
@given(data=st.data())
def test_as_one_record_after_the_other(by_offset: bool, data: st.DataObject) -> None:
    rows = data.draw(positions_on_source(inner=not by_offset))
    parts = [columns(rows[start:stop]) for start, stop in data.draw(cuts(len(rows)))]
    ranges = data.draw(cuts(len(rows)))
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 1, 7]), min_size=len(ranges), max_size=len(ranges)))
    acks, offsets = acks_of(ranges, gaps)
    assert runs_of(parts, acks, offsets=by_offset) == naive(rows, offsets, by_offset=by_offset)


@settings(max_examples=20)
@given(data=st.data())
def test_each_record_is_found_by_arithmetic(data: st.DataObject) -> None:
    rows = data.draw(positions_on_source(inner=False))
    ranges = data.draw(cuts(len(rows)))
    acks, offsets = acks_of(ranges, [3] * len(ranges))
    runs = runs_of([columns(rows)], acks, offsets=True)
    for (at, _), offset in zip(rows, offsets, strict=True):
        run = max(run for run in runs if run.position <= at)
        assert run.offset + at - run.position == offset and at - run.position < run.records


def test_an_offset_that_is_not_known() -> None:
    acks = [Ack(TO, Position(4), 1, True, False), Ack(TO, None, 1, True, True)]
    with pytest.raises(UnknownOffset, match="did not say where they are") as raised:
        runs_of([columns([(0, 0), (1, 0)])], acks, offsets=True)
    assert raised.value.retriable


def test_record_batches_that_are_not_decoded_are_runs_like_others() -> None:
    rows = [ProducerRecord(b"", None, (), 5)] * 4
    parts = [Columns.concat([encoded_columns(rows, first_offset=10), columns([(14, 0)])]), undecodable(3)]
    acks = [Ack(TO, Position(at), count, True, False) for at, count in ((100, 4), (104, 1), (110, 3))]
    assert runs_of(parts, acks, offsets=True) == (Run(10, 0, 100, 5), Run(0, 0, 110, 3))
