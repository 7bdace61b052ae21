"""Columns: cut, joined and picked like the rows they stand for, whatever they are made of."""

from __future__ import annotations

import pickle
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.batch import Batch
from odradek.engine import HeaderColumns, PackedBytes
from odradek.engine.columns import COLUMN_NAMES
from odradek.errors import CorruptMessage
from odradek.types import Columns, Record, TimestampType

from .columns import RECORDS, TP, pack, pack_headers, packed, plain

KINDS = st.sampled_from(["", "i", "q"])


def made_of(columns: Columns, kind: str) -> Columns:
    """These columns as lists, or packed with offsets of 4 or 8 bytes."""
    return packed(columns, kind) if kind else columns


def rows_of(columns: Columns) -> list[tuple[Record, str | None]]:
    """The records of some columns, each with its error."""
    records = Batch(TP, columns)
    return [(record, columns.corrupt[n].reason if n in columns.corrupt else None) for n, record in enumerate(records)]


# ---- columns ------------------------------------------------------------------------------------------------


@given(RECORDS, KINDS, st.integers(-1, 13), st.integers(-1, 13))
def test_a_slice_of_columns_has_the_rows_of_a_slice_of_a_list(
    columns: Columns, kind: str, start: int, stop: int
) -> None:
    actual = made_of(columns, kind).slice(start, stop)
    assert rows_of(actual) == rows_of(columns)[max(start, 0) : max(stop, 0)]
    assert type(actual.values) is (PackedBytes if kind else list)


@given(RECORDS, KINDS)
def test_a_slice_of_everything_is_the_same_object(columns: Columns, kind: str) -> None:
    columns = made_of(columns, kind)
    assert columns.slice(0, len(columns.values)) is columns.slice(-1, 100) is columns


@given(st.lists(st.tuples(RECORDS, KINDS), max_size=4))
def test_concatenated_columns_have_the_rows_of_all_parts(parts: list[tuple[Columns, str]]) -> None:
    actual = Columns.concat([made_of(*part) for part in parts])
    assert rows_of(actual) == [row for columns, _ in parts for row in rows_of(columns)]


def test_one_part_is_not_copied() -> None:
    columns = packed(plain([b"one", b"two"]))
    assert Columns.concat([columns]) is columns


@given(RECORDS, KINDS, st.data())
def test_picked_rows_come_in_the_order_asked_for(columns: Columns, kind: str, data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.sampled_from(range(len(columns.values)))) if columns.values else st.just([]))
    everything = rows_of(columns)
    assert rows_of(made_of(columns, kind).pick(rows)) == [everything[row] for row in rows]


@given(RECORDS, KINDS, st.integers(0, 12))
def test_columns_survive_pickling(columns: Columns, kind: str, start: int) -> None:
    part = made_of(columns, kind).slice(start, 12)
    again = pickle.loads(pickle.dumps(part))
    assert rows_of(again) == rows_of(columns)[start:]
    assert [type(getattr(again, name)) for name in COLUMN_NAMES] == [type(getattr(part, name)) for name in COLUMN_NAMES]


@given(RECORDS, KINDS)
def test_the_payload_is_values_keys_and_headers(columns: Columns, kind: str) -> None:
    size = sum(
        len(record.value or b"")
        + len(record.key or b"")
        + sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
        for record in Batch(TP, columns)
    )
    assert made_of(columns, kind).payload_bytes == size


@pytest.mark.parametrize("kind", ["", "i"])
def test_every_further_column_counts_in_the_memory_of_a_row(kind: str) -> None:
    one = made_of(plain([b"x"]), kind)
    keyed = one.replace(keys=[b"k"])
    timed = keyed.replace(timestamps=[1], timestamp_types=[0])
    assert one.memory_bytes < keyed.memory_bytes - 1 and keyed.memory_bytes < timed.memory_bytes


def test_a_part_without_timestamps_has_none_beside_one_that_has() -> None:
    old, new = (
        plain([b"old"]),
        plain([b"new"]).replace(timestamps=[5], timestamp_types=[TimestampType.LOG_APPEND_TIME]),
    )
    actual = [(record.timestamp, record.timestamp_type) for record in Batch(TP, Columns.concat([old, new]))]
    assert actual == [(None, None), (5, TimestampType.LOG_APPEND_TIME)]


def test_errors_follow_their_rows() -> None:
    error = CorruptMessage("orders/3-1", 11, "CRC mismatch")
    columns = plain([b"a", b"b", b"c"]).replace(corrupt={1: error})
    assert columns.slice(1, 3).corrupt == {0: error} and not columns.slice(2, 3).corrupt
    assert columns.pick([2, 1, 1]).corrupt == {1: error, 2: error}
    assert Columns.concat([columns, columns]).corrupt == {1: error, 4: error}


# ---- packed columns -----------------------------------------------------------------------------------------

HEADERS = st.lists(
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3).map(tuple), max_size=8
)


@given(HEADERS, st.integers(-9, 9), st.integers(-9, 9))
def test_headers_read_like_a_list(rows: list[tuple[tuple[str, bytes | None], ...]], start: int, stop: int) -> None:
    headers = pack_headers(rows)
    for actual, expected in ((headers, rows), (headers[start:stop], rows[start:stop])):
        assert actual == expected and list(actual) == actual.tolist() == expected
        assert [actual[n] for n in range(-len(expected), len(expected))] == expected + expected
        assert actual == pack_headers(expected) and actual != [*expected, ()]
        again = pickle.loads(pickle.dumps(actual))
        assert type(again) is HeaderColumns and again == actual
        assert again.payload_bytes == actual.payload_bytes


def test_headers_refuse_what_a_list_refuses() -> None:
    headers = pack_headers([(("a", b"1"),), ()])
    assert repr(headers) == "<HeaderColumns 2 rows, 1 headers>" and headers != ((("a", b"1"),), ())
    with pytest.raises(IndexError, match="row 2 of 2"):
        headers[2]
    with pytest.raises(ValueError, match="not supported"):
        headers[::2]
    with pytest.raises(TypeError):
        hash(headers)


def test_a_pickled_slice_of_headers_leaves_the_rest_behind() -> None:
    headers = pack_headers([(("a", b"x" * 100_000),), (("b", b"wanted"),)])
    assert len(pickle.dumps(headers[1:])) < 1000


def test_a_validity_of_another_length_is_refused() -> None:
    offsets = memoryview(array("i", [0, 1, 2]))
    with pytest.raises(ValueError, match="validity has 1 rows, offsets have 2"):
        PackedBytes(offsets, memoryview(b"ab"), memoryview(b"\1"))
    assert pack([b"a", None, b""]).tolist() == [b"a", None, b""]
