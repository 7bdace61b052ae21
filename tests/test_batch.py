"""Batches and packed strings: one meaning, whatever the columns are made of."""

from __future__ import annotations

import pickle
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.batch import Batch
from odradek.engine import PackedBytes
from odradek.types import Columns, Position, Record, TimestampType

from .columns import ENGINES, LOGS, RECORDS, TP, decode, numbers, pack, packed, plain, using

VALUES = st.lists(st.none() | st.binary(max_size=8), max_size=12)
KINDS = st.sampled_from(["i", "q"])


# ---- packed strings -----------------------------------------------------------------------------------------


@given(VALUES, KINDS, st.data())
def test_packed_strings_read_like_a_list(values: list[bytes | None], kind: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(-len(values) - 1, len(values) + 1))
    stop = data.draw(st.integers(-len(values) - 1, len(values) + 1))
    strings = pack(values, kind)
    for actual, expected in [(strings, values), (strings[start:stop], values[start:stop])]:
        assert actual == expected and actual.tolist() == expected and list(actual) == expected
        assert [actual[n] for n in range(-len(expected), len(expected))] == expected + expected
        assert bool(actual) is bool(expected)
        assert actual.payload_bytes == sum(len(value or b"") for value in expected)
        assert actual.null_count == expected.count(None)
        assert actual == pack(expected, kind) and actual != [*expected, b""]
    with pytest.raises(IndexError):
        strings[len(values)]


def test_a_slice_of_packed_strings_shares_their_memory() -> None:
    strings = pack([b"one", b"two", b"three"])
    assert strings[1:].data is strings.data
    with pytest.raises(ValueError, match="tolist"):
        strings[::2]


def test_packed_strings_are_no_keys_and_say_what_they_are() -> None:
    strings = pack([b"one", b"three"])
    assert strings != (b"one", b"three") and b"three" in strings
    assert repr(strings) == "<PackedBytes 2 strings, 8 bytes>"
    with pytest.raises(TypeError):
        hash(strings)


# ---- pickling -----------------------------------------------------------------------------------------------


@given(VALUES, KINDS, st.integers(0, 12))
def test_packed_strings_survive_pickling(values: list[bytes | None], kind: str, start: int) -> None:
    strings = pack(values, kind)[start:]
    again = pickle.loads(pickle.dumps(strings))
    assert type(again) is PackedBytes and again == strings and again.offsets.format == kind


def test_a_pickled_slice_leaves_the_rest_behind() -> None:
    strings = pack([b"x" * 100_000, b"wanted", b"x" * 100_000])
    assert len(pickle.dumps(strings[1:2])) < 1000


@pytest.mark.parametrize("engine", ENGINES)
@given(LOGS)
def test_batches_survive_pickling(engine: str, log: bytes) -> None:
    with using(engine):
        batch = Batch(TP, decode(log, "raw"))
        batch.values  # noqa: B018  what is kept for the next time is not sent along twice
        again = pickle.loads(pickle.dumps(batch))
        assert (again.partition, list(again)) == (TP, list(batch))
        assert {row: str(error) for row, error in again.corrupt.items()} == {
            row: str(error) for row, error in batch.corrupt.items()
        }
        assert type(again.columns.values) is type(batch.columns.values)


# ---- batches ------------------------------------------------------------------------------------------------


@given(LOGS, KINDS, st.integers(0, 5), st.integers(0, 30))
def test_a_batch_reads_the_same_whatever_its_columns_are(log: bytes, kind: str, start: int, stop: int) -> None:
    with using("pure"):
        lists = decode(log, "raw").slice(start, stop)
        buffers = packed(decode(log, "raw"), kind).slice(start, stop)
        one, other = Batch(TP, lists), Batch(TP, buffers)
        assert list(one) == list(other) and one.values == other.values and len(one) == len(other)
        assert repr(one) == repr(other)
        assert lists.payload_bytes == buffers.payload_bytes
        assert all(type(record) is Record and type(record.position) is int for record in other)
        if len(one):
            assert (one.position, one.next_position) == (other.position, other.next_position)


@given(RECORDS, KINDS)
def test_records_are_the_rows_of_their_columns(columns: Columns, kind: str) -> None:
    batch = Batch(TP, packed(columns, kind))
    assert list(batch) == list(Batch(TP, columns)) == rows_of(columns)
    assert pickle.loads(pickle.dumps(list(batch))) == list(batch)


def rows_of(columns: Columns) -> list[Record]:
    """What the fields of `Columns` mean, row by row."""
    c = columns
    return [
        Record(
            value=c.values[row],
            key=c.keys[row] if c.keys else None,
            headers=c.headers[row] if c.headers else (),
            timestamp=c.timestamps[row] if c.timestamps and c.timestamps[row] >= 0 else None,
            timestamp_type=TimestampType(c.timestamp_types[row])
            if c.timestamp_types and c.timestamp_types[row] >= 0
            else None,
            position=Position(c.positions[row]),
            next_position=Position(c.next_positions[row]),
            inner_index=c.inner_indexes[row] if c.inner_indexes else 0,
            partition=TP,
        )
        for row in range(len(c.values))
    ]


@pytest.mark.parametrize("nexts", [[10, 20, 30], [10, 20, 40], [10, 10, 30], [11, 20, 30]])
def test_positions_that_do_not_follow_one_another_stay_as_they_are(nexts: list[int]) -> None:
    columns = Columns(pack([b"a", b"b", b"c"]), numbers([0, 10, 20]), numbers(nexts))
    assert [(r.position, r.next_position) for r in Batch(TP, columns)] == list(zip([0, 10, 20], nexts, strict=True))


def test_values_are_made_once() -> None:
    batch = Batch(TP, packed(plain([b"one", b"two"])))
    assert batch.values is batch.values == [b"one", b"two"]


def test_an_empty_batch_is_false_and_says_so() -> None:
    for columns in (plain([]), packed(plain([]))):
        batch = Batch(TP, columns)
        assert not batch and list(batch) == [] and batch.values == []
        assert repr(batch) == "<Batch orders/3-1 empty>"


def test_a_record_of_packed_columns_owns_its_value() -> None:
    """It would keep a megabyte alive otherwise."""
    (record,) = Batch(TP, packed(plain([b"x" * 1000])))
    assert type(record.value) is bytes and sys.getsizeof(record.value) < 1100
