"""Hashes of records in any batches, chunks, rows of runs, and what differs: tables, and records at random."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.columns import packed

from odradek.batch import Batch
from odradek.mirror.comparing import (
    Chunk,
    ChunkHash,
    MessagePosition,
    chunks_of,
    differing,
    kind_of_difference,
    offset_on_target,
    remaining,
    rows_before,
    split_by_runs,
    without_origin,
)
from odradek.mirror.stored import IndexEntry, Run
from odradek.types import NO_TIMESTAMP, Columns, Record, TopicPartition

P = TopicPartition("t", 0)
CREATED, APPENDED, NONE = 0, 1, -1

Row = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]
STRINGS = st.none() | st.binary(max_size=3)
ROWS: st.SearchStrategy[Row] = st.tuples(
    STRINGS, STRINGS, st.lists(st.tuples(st.text(max_size=2), STRINGS), max_size=2).map(tuple), st.integers(0, 3)
)


def columns(rows: Sequence[Row], types: int = CREATED, *, position: int = 0, **changes: Any) -> Columns:
    """Columns of records: value, key, headers, timestamp."""
    values, keys, headers, stamps = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    made = Columns(
        values, range(position, position + len(rows)), range(position + 1, position + len(rows) + 1), None, keys,
        headers, stamps, [types] * len(rows),
    )  # fmt: skip
    return made.replace(**changes)


def hashed(*parts: Columns) -> ChunkHash:
    made = ChunkHash()
    for part in parts:
        made.add(part)
    return made


# ---- hashes --------------------------------------------------------------------------------------------------


@given(st.lists(ROWS, max_size=12), st.lists(st.integers(0, 12), max_size=4), st.sampled_from(["", "i", "q"]))
def test_batches_and_engines_make_no_difference(rows: list[Row], cuts: list[int], kind: str) -> None:
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    whole = columns(rows)
    divided = packed(whole, kind) if kind else whole
    parts = [divided.slice(start, stop) for start, stop in pairwise(bounds)]
    assert hashed(whole).same(hashed(*parts))
    assert hashed(whole).following("") == hashed(*parts).following("")
    assert hashed(*parts).bytes == sum(part.payload_bytes for part in parts)


@given(st.lists(ROWS, max_size=4), st.lists(ROWS, max_size=4), st.sampled_from(["i", "q"]))
def test_only_the_same_records_have_the_same_hash(left: list[Row], right: list[Row], kind: str) -> None:
    same = hashed(columns(left)).same(hashed(packed(columns(right), kind)))
    assert same is (left == right)


def test_a_column_that_is_not_there_is_as_one_of_nothing() -> None:
    rows: list[Row] = [(b"a", None, (), 1), (None, None, (), 2)]
    assert hashed(columns(rows)).same(hashed(columns(rows, keys=None, headers=None)))


ROW: Row = (b"v", b"k", (), 5)
LATER: Row = (b"v", b"k", (), 6)


@pytest.mark.parametrize(
    ("source", "target", "same"),
    [
        (columns([ROW]), columns([LATER]), False),
        (columns([ROW]), columns([LATER], APPENDED), True),
        (columns([ROW], APPENDED), columns([LATER]), False),  # the mirror keeps the broker's time
        (columns([ROW], APPENDED), columns([ROW]), True),
        (columns([ROW], timestamps=None, timestamp_types=None), columns([LATER]), True),
        (columns([ROW]), columns([LATER], timestamps=None, timestamp_types=None), True),
        (columns([(*ROW[:3], NO_TIMESTAMP)]), columns([LATER]), True),
        (columns([ROW]), columns([(*ROW[:3], NO_TIMESTAMP)]), False),
        # some of them have one: they are to be compared one by one
        (columns([ROW, (*ROW[:3], NO_TIMESTAMP)]), columns([ROW, LATER]), False),
        (columns([ROW, ROW]), columns([ROW, ROW], timestamp_types=[CREATED, APPENDED]), False),
        (columns([(*ROW[:3], NO_TIMESTAMP)], NONE), columns([LATER]), True),
    ],
)
def test_timestamps_count_where_both_sides_have_them(source: Columns, target: Columns, same: bool) -> None:
    assert hashed(source).same(hashed(target)) is same
    assert hashed(packed(source)).same(hashed(packed(target))) is same


# ---- chunks --------------------------------------------------------------------------------------------------


def entry(*runs: tuple[int, int, int, int]) -> IndexEntry:
    return IndexEntry(P, tuple(Run(*run) for run in runs))


def test_chunks_join_transactions_until_they_are_large_enough() -> None:
    entries = [entry((5, 0, 10, 3)), entry((8, 0, 14, 1), (12, 0, 15, 1)), entry((20, 2, 17, 4)), entry((30, 0, 30, 1))]
    assert chunks_of(entries, MessagePosition(2), MessagePosition(40), 4) == [
        Chunk(
            MessagePosition(2), MessagePosition(20, 2), 10, 17, (Run(5, 0, 10, 3), Run(8, 0, 14, 1), Run(12, 0, 15, 1))
        ),
        Chunk(MessagePosition(20, 2), MessagePosition(30), 17, 30, (Run(20, 2, 17, 4),)),
        Chunk(MessagePosition(30), MessagePosition(40), 30, 31, (Run(30, 0, 30, 1),)),
    ]
    assert [chunk.records for chunk in chunks_of(entries, MessagePosition(2), MessagePosition(40), 4)] == [5, 4, 1]


def test_without_transactions_there_is_one_chunk() -> None:
    assert chunks_of([], MessagePosition(3), MessagePosition(9), 4) == [
        Chunk(MessagePosition(3), MessagePosition(9), 0, 0, ())
    ]


@pytest.mark.parametrize(
    ("source", "target", "offsets", "runs"),
    [
        (0, 0, True, [(5, 0, 10, 3), (9, 0, 13, 2)]),
        (5, 10, True, [(5, 0, 10, 3), (9, 0, 13, 2)]),
        (6, 0, True, [(6, 0, 11, 2), (9, 0, 13, 2)]),
        (6, 12, True, [(7, 0, 12, 1), (9, 0, 13, 2)]),
        (8, 0, True, [(9, 0, 13, 2)]),
        (0, 14, True, [(10, 0, 14, 1)]),
        (11, 0, True, None),
        (0, 15, True, None),
        (5, 10, False, [(5, 0, 10, 3), (9, 0, 13, 2)]),
        (6, 0, False, [(9, 0, 13, 2)]),
        (0, 11, False, [(9, 0, 13, 2)]),
        (0, 14, False, None),
    ],
)
def test_what_both_logs_still_have(
    source: int, target: int, offsets: bool, runs: list[tuple[int, int, int, int]] | None
) -> None:
    left = remaining(entry((5, 0, 10, 3), (9, 0, 13, 2)), source, target, offsets=offsets)
    assert left == (None if runs is None else entry(*runs))


@pytest.mark.parametrize(
    ("end", "rows"),
    [
        (MessagePosition(0), 0),
        (MessagePosition(10), 0),
        (MessagePosition(10, 2), 2),
        (MessagePosition(10, 9), 3),
        (MessagePosition(11), 3),
        (MessagePosition(40), 4),
        (MessagePosition(99), 5),
    ],
)
def test_rows_before_a_position(end: MessagePosition, rows: int) -> None:
    part = Columns([b""] * 5, [10, 10, 10, 20, 40], [20, 20, 20, 40, 50], [0, 1, 2, 0, 0])
    assert rows_before(part, end) == rows


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=5), st.integers(0, 8), st.integers(1, 12))
def test_rows_of_runs(gaps: list[tuple[int, int]], start: int, count: int) -> None:
    runs, offset = [], 3
    for gap, size in gaps:
        runs.append(Run(0, 0, offset + gap, size))
        offset += gap + size
    part = columns([ROW] * count, position=start)
    divided = [(inside, position) for inside, rows in split_by_runs(part, runs) for position in rows.positions]
    within = {run.offset + number for run in runs for number in range(run.records)}
    assert divided == [(position in within, position) for position in part.positions]


@pytest.mark.parametrize(
    ("position", "offset"), [(1, None), (2, 10), (4, 12), (5, None), (7, None), (8, 20), (9, None)]
)
def test_offsets_on_the_target(position: int, offset: int | None) -> None:
    assert offset_on_target([Run(2, 0, 10, 3), Run(8, 0, 20, 1)], position) == offset


def test_headers_of_the_origin_are_left_out_where_there_are_all_four() -> None:
    origin = tuple((f"odradek.{name}", b"") for name in ("cluster", "topic", "partition", "position"))
    rows: list[Row] = [(b"", b"", (("a", b""), *origin), 0), (b"", b"", origin[1:], 0), (b"", b"", origin, 0)]
    assert without_origin(columns(rows)).headers == [(("a", b""),), origin[1:], ()]
    bare = columns([ROW], headers=None)
    assert without_origin(bare) is bare


# ---- one by one ----------------------------------------------------------------------------------------------


def records(text: str) -> list[Record]:
    return list(Batch(P, columns([(letter.encode(), None, (), 0) for letter in text])))


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        ("a", "", "missing"), ("", "a", "extra"), ("a", "b", "value"), ("ab", "ba", "order"), ("ab", "b", "missing"),
        ("abcd", "d", "missing"), ("d", "abcd", "extra"), ("ab", "xab", "extra"), ("abc", "xbc", "value"),
        ("abb", "ba", "order"), ("aab", "ba", "extra"),
    ],
)  # fmt: skip
def test_kinds_of_differences(source: str, target: str, kind: str) -> None:
    assert kind_of_difference(records(source), records(target)) == kind


def test_all_that_differs_is_named() -> None:
    left, right = [
        next(iter(Batch(P, columns([row])))) for row in ((b"a", b"b", (), 1), (b"c", None, (("h", None),), 2))
    ]
    assert differing(left, right) == ["value", "key", "headers", "timestamp"]
    assert differing(left._replace(timestamp=None), left) == []
    assert differing(left, left) == []
