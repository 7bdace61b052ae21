"""Where reading begins and ends, exact to the message inside a compressed wrapper."""

from __future__ import annotations

import pytest

from odradek.core.fetch.read_range import ExactPosition, ReadRange
from odradek.types import Columns, Position


def rows(*positions: int, inner: list[int] | None = None) -> Columns:
    values = [b"%d" % row for row in range(len(positions))]
    return Columns(values, list(positions), [*positions[1:], positions[-1] + 10], inner)


WRAPPER = rows(0, 50, 50, 50, 80, inner=[0, 0, 1, 2, 0])
"""A plain message at 0, a wrapper of three at 50, and a plain message at 80."""


def clipped(read: ReadRange, columns: Columns, start: int) -> Columns:
    return read.clip(columns, start, Position(columns.next_positions[-1]))


def test_without_bounds_everything_is_read() -> None:
    whole = ReadRange(0, None, 0)
    assert clipped(whole, WRAPPER, 0) is WRAPPER
    assert not whole.ends_at(Position(1 << 60))
    assert whole.continues_at(Position(90)) == ExactPosition(Position(90))


def test_messages_of_a_wrapper_that_were_delivered_before_are_skipped_once() -> None:
    read = ReadRange(2, None, 0)
    assert read.continues_at(Position(50)) == ExactPosition(Position(50), 2)
    assert clipped(read, WRAPPER.slice(1, 5), 50).values == [b"3", b"4"]
    assert clipped(read, WRAPPER.slice(1, 5), 50).values == [b"1", b"2", b"3", b"4"]


def test_nothing_is_skipped_where_the_log_has_no_wrapper_any_more() -> None:
    read = ReadRange(2, None, 0)
    assert clipped(read, rows(50, 60), 50).values == [b"0", b"1"]


def test_the_number_to_skip_is_forgotten_when_reading_begins_elsewhere() -> None:
    read = ReadRange(2, Position(80), 0)
    clipped(read, WRAPPER, 0)
    read.restart(1)
    assert read.skip == 1 and read.continues_at(Position(70)) == ExactPosition(Position(70), 1)


@pytest.mark.parametrize(
    ("until", "until_inner", "values", "goes_on_at"),
    [
        (80, 0, [b"0", b"1", b"2", b"3"], 80),
        (81, 0, [b"0", b"1", b"2", b"3", b"4"], 90),
        (50, 0, [b"0"], 50),
        (50, 2, [b"0", b"1", b"2"], 50),
        (50, 9, [b"0", b"1", b"2", b"3"], 80),
        (60, 0, [b"0", b"1", b"2", b"3"], 80),
        (0, 0, [], 0),
    ],
)
def test_reading_ends_before_the_first_message_from_the_end_on(
    until: int, until_inner: int, values: list[bytes], goes_on_at: int
) -> None:
    read = ReadRange(0, Position(until), until_inner)
    assert clipped(read, WRAPPER, 0).values == values
    assert read.continues_at(Position(90)).position == goes_on_at


def test_rows_of_later_responses_do_not_move_where_reading_continues() -> None:
    read = ReadRange(0, Position(50), 0)
    clipped(read, rows(40, 50, 60), 40)
    clipped(read, rows(70, 80), 40)
    assert read.continues_at(Position(90)) == ExactPosition(Position(50))


@pytest.mark.parametrize(
    ("until_inner", "position", "ends"), [(0, 49, False), (0, 50, True), (2, 50, False), (2, 51, True)]
)
def test_a_wrapper_at_the_end_is_still_fetched_if_messages_of_it_are_read(
    until_inner: int, position: int, ends: bool
) -> None:
    assert ReadRange(0, Position(50), until_inner).ends_at(Position(position)) is ends
