"""Decoded rows on their way to the user: none lost, doubled or reordered, and memory counted to the last row."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek import engine
from odradek.core.fetch.row_queue import CORRUPT_ROW_BYTES, LARGE_BYTES, SLICE_BYTES, RowQueue, rows_within
from odradek.engine import PackedBytes
from odradek.errors import CorruptMessage
from odradek.types import Columns


def columns(values: list[bytes | None], first: int = 0, *, packed: bool = False) -> Columns:
    positions = list(range(first, first + len(values)))
    nexts = [position + 1 for position in positions]
    if not packed:
        return Columns(values, positions, nexts)
    known = [value or b"" for value in values]
    offsets = memoryview(b"".join(end.to_bytes(4, "little") for end in accumulate(map(len, known), initial=0))).cast(
        "i"
    )
    return Columns(PackedBytes(offsets, memoryview(b"".join(known))), positions, nexts)


def queue(*parts: Columns) -> RowQueue:
    made = RowQueue()
    for at, part in enumerate(parts):
        made.add_rows(part, float(at))
    return made


def test_no_rows_are_not_queued() -> None:
    rows = RowQueue()
    assert rows.add_rows(columns([]), 5.0) == 0
    assert (rows.rows, rows.memory, rows.next_fits(1 << 40)) == (0, 0, False)


def test_the_first_row_tells_since_when_they_wait() -> None:
    rows = queue(columns([b"a"]), columns([b"b"], 1))
    assert rows.first_row_at == 0.0
    rows.take_rows(1, 7.0)
    assert rows.first_row_at == 7.0


def test_rows_come_as_they_were_decoded_if_no_number_is_asked_for() -> None:
    first = columns([b"a", b"b"])
    rows = queue(first, columns([b"c"], 2))
    assert rows.take_rows(None, 0.0) is first
    assert rows.take_rows(None, 0.0).values == [b"c"]
    assert (rows.rows, rows.memory) == (0, 0)


def test_a_number_of_rows_is_taken_across_what_was_decoded_together() -> None:
    rows = queue(columns([b"a"]), columns([b"b", b"c"], 1), columns([b"d", b"e", b"f"], 3))
    taken = rows.take_rows(4, 0.0)
    assert (taken.values, taken.positions) == ([b"a", b"b", b"c", b"d"], [0, 1, 2, 3])
    assert rows.take_rows(4, 0.0).values == [b"e", b"f"]


def test_rows_that_take_much_memory_come_in_slices() -> None:
    values: list[bytes | None] = [bytes(SLICE_BYTES // 3)] * 16
    rows = queue(columns(values, packed=True), columns([b"a", b"b"], 16))
    assert rows.memory > LARGE_BYTES
    slices = [rows.take_rows(None, 0.0) for _ in range(7)]
    assert [len(each) for each in slices] == [3, 3, 3, 3, 3, 1, 2]
    assert [position for each in slices for position in each.positions] == list(range(18))
    assert (rows.rows, rows.memory) == (0, 0)


def test_small_rows_come_as_they_were_decoded_although_all_take_much_memory() -> None:
    part: list[bytes | None] = [bytes(SLICE_BYTES)] * 2
    rows = queue(*(columns(part, 2 * number, packed=True) for number in range(4)))
    assert rows.memory > LARGE_BYTES
    assert [len(rows.take_rows(None, 0.0)) for _ in range(4)] == [2, 2, 2, 2]


def test_memory_is_held_until_the_last_row_of_a_part_is_taken() -> None:
    rows = queue(columns([b"a" * 100, b"b"]))
    whole = rows.memory
    rows.take_rows(1, 0.0)
    assert rows.memory == whole > 101
    rows.take_rows(1, 0.0)
    assert rows.memory == 0


def test_the_report_of_a_corrupt_row_counts_as_memory() -> None:
    sound = columns([b"a"])
    broken = sound.replace(corrupt={0: CorruptMessage("t/0", 0, "its CRC is wrong")})
    assert queue(broken).memory == queue(sound).memory + CORRUPT_ROW_BYTES


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("max_bytes", "rows"), [(0, 1), (3, 1), (4, 2), (5, 2), (6, 3), (99, 3)])
def test_payloads_of_a_table_stay_within_its_bytes_but_for_one_row(packed: bool, max_bytes: int, rows: int) -> None:
    waiting = queue(columns([b"aaa", b"b", b"cc"], packed=packed))
    assert len(waiting.take_rows_within(max_bytes, 0.0).values) == rows


@pytest.mark.parametrize("start", [0, 1, 5])
def test_rows_are_counted_alike_in_lists_and_packed(start: int) -> None:
    values = [b"x" * n for n in (3, 0, 0, 7, 1, 0, 2, 2, 0)]
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value))
    offsets = memoryview(b"".join(end.to_bytes(8, "little") for end in ends)).cast("q")
    packed = PackedBytes(offsets, memoryview(b"".join(values)))
    assert engine.active.unpack(offsets, packed.data) == values
    rows = list(range(len(values)))
    for max_bytes in range(20):
        expected = max(1, max(n for n in range(len(values) - start + 1) if sum(ends_of(values, start, n)) <= max_bytes))
        for column in (values, packed):
            assert rows_within(Columns(column, rows, rows), start, max_bytes) == expected, max_bytes


def ends_of(values: list[bytes], start: int, count: int) -> list[int]:
    return [len(value) for value in values[start : start + count]]


def test_a_tombstone_has_no_payload() -> None:
    rows = queue(columns([None, b"bb"]))
    assert rows.next_fits(0)
    assert rows.take_rows_within(1, 0.0).values == [None]


def test_rows_that_are_put_back_come_first_again() -> None:
    rows = queue(columns([b"a", b"b", b"c"]), columns([b"d"], 3))
    taken = rows.take_rows(None, 0.0)
    rows.put_back(taken, 2)
    assert rows.rows == 3
    assert [bytes(rows.take_rows(1, 0.0).values[0] or b"") for _ in range(3)] == [b"b", b"c", b"d"]


def test_rows_can_be_put_back_into_an_empty_queue_and_followed_by_others() -> None:
    rows = queue(columns([b"a"]))
    taken = rows.take_rows(None, 0.0)
    rows.put_back(taken, 0)
    assert rows.rows == 0
    rows.put_back(taken, 1)
    rows.add_rows(columns([b"b"], 1), 0.0)
    assert rows.take_rows(2, 0.0).values == [b"a", b"b"]


@given(
    st.lists(st.lists(st.binary(max_size=5), min_size=1, max_size=6), max_size=6),
    st.lists(st.tuples(st.sampled_from(("take", "within", "put back")), st.integers(1, 8)), max_size=30),
)
def test_every_row_is_delivered_once_and_in_order(parts: list[list[bytes]], steps: list[tuple[str, int]]) -> None:
    expected = [value for part in parts for value in part]
    rows, first = RowQueue(), 0
    for part in parts:
        rows.add_rows(columns([*part], first), 0.0)
        first += len(part)
    delivered: list[bytes | None] = []
    taken = columns([])
    for step, number in [*steps, *[("take", 8)] * len(expected)]:
        if step == "put back":
            back = min(number, len(taken.values))
            rows.put_back(taken, back)
            del delivered[len(delivered) - back :]
            taken = columns([])
        elif rows.rows:
            taken = rows.take_rows(number, 0.0) if step == "take" else rows.take_rows_within(number, 0.0)
            delivered += taken.values
    assert delivered == expected
    assert (rows.rows, rows.memory) == (0, 0)
