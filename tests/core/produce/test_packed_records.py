"""Records in columns: what they are row by row, which columns can be records, and what rows of them take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.columns import PRODUCER_RECORDS, numbers, pack_headers, packed_records
from tests.columns import pack as strings

from odradek.core.interfaces import ProducerRecord
from odradek.core.produce.packed_records import PackedRecords, WireSizes, pack
from odradek.engine import PackedBytes

ROWS = [
    ProducerRecord(b"a", b"k", (("h", b"1"), ("h", None)), 7),
    ProducerRecord(None, None, (), 0),
    ProducerRecord(b"", b"", (("", b""),), 1 << 40),
]


def record_size(record: ProducerRecord) -> int:
    headers = sum(5 + len(name.encode()) + len(value or b"") for name, value in record.headers)
    return 20 + len(record.value or b"") + len(record.key or b"") + headers


def value_size(record: ProducerRecord) -> int:
    """As in 0.7, which does not store keys; records with headers are refused there."""
    return 10 + len(record.value or b"")


def test_rows_of_columns_are_records() -> None:
    packed = packed_records(ROWS)
    assert len(packed) == 3
    assert list(packed) == ROWS
    assert [packed[row] for row in (0, 1, 2)] == [packed[row] for row in (-3, -2, -1)] == ROWS
    assert list(packed[1:]) == ROWS[1:]
    assert packed[1:].values.data is packed.values.data
    assert repr(packed) == "<PackedRecords 3 records>"
    with pytest.raises(IndexError):
        packed[3]


def test_columns_that_are_not_there_are_no_key_no_headers_and_no_timestamp() -> None:
    packed = PackedRecords(strings([b"a", None]))
    assert list(packed) == [packed[0], packed[1]] == [ProducerRecord(b"a"), ProducerRecord(None)]


def test_rows_without_headers_have_no_such_column_whatever_others_have() -> None:
    packed = packed_records(ROWS)
    assert packed.headers is not None
    assert packed[1:2].headers is None
    assert list(packed[1:2]) == ROWS[1:2]


TIMES = numbers([5, 0])


@pytest.mark.parametrize(
    ("columns", "made"),
    [
        ((strings([b"a", b"b"]),), PackedBytes),
        ((strings([b"a", b"b"]), strings([None, None]), pack_headers([(), ()]), numbers([-1, -1])), PackedBytes),
        ((strings([]), strings([]), pack_headers([])), PackedBytes),
        ((strings([b"a", None]),), PackedRecords),
        ((strings([b"a", b"b"]), strings([None, b""])), PackedRecords),
        ((strings([b"a", b"b"]), None, pack_headers([(), (("h", None),)])), PackedRecords),
        ((strings([b"a", b"b"]), None, None, TIMES), PackedRecords),
        ((strings([b"a", b"b"]), None, None, numbers([5, -1])), None),
        ((strings([b"a", b"b"]), None, None, numbers([-2, -2])), None),
        (([b"a", b"b"],), None),
        ((strings([b"a", b"b"]), [None, b""]), None),
        ((strings([b"a", b"b"]), None, [(), ()]), None),
        ((strings([b"a", b"b"]), None, None, [5, 0]), None),
    ],
    ids=[
        "values",
        "columns of nothing",
        "no rows",
        "null value",
        "keys",
        "headers",
        "times",
        "some have no time",
        "negative times",
        "list of values",
        "list of keys",
        "list of headers",
        "list of times",
    ],
)
def test_columns_are_taken_as_they_are_if_no_record_needs_a_look(columns: tuple[Any, ...], made: type | None) -> None:
    packed = pack(*columns)
    assert type(packed) is (type(None) if made is None else made)
    if isinstance(packed, PackedBytes):
        assert packed is columns[0]


@given(rows=PRODUCER_RECORDS, size=st.sampled_from([record_size, value_size]), data=st.data())
def test_rows_take_as_much_as_their_records(rows: list[ProducerRecord], size: Any, data: st.DataObject) -> None:
    if size is value_size:
        rows = [row._replace(headers=()) for row in rows]
    packed, sizes = packed_records(rows), WireSizes.of(size)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    taken = sizes.payload(packed, start, stop) + sizes.record * (stop - start)
    assert taken == sum(map(size, rows[start:stop]))


@given(
    rows=PRODUCER_RECORDS.filter(len),
    start=st.integers(0, 3),
    max_bytes=st.integers(0, 200),
    row_bytes=st.integers(0, 30),
    max_row=st.integers(-1, 60),
)
def test_as_many_rows_fit_as_together_are_within_both_limits(
    rows: list[ProducerRecord], start: int, max_bytes: int, row_bytes: int, max_row: int
) -> None:
    start = min(start, len(rows))
    sizes = WireSizes.of(record_size)
    payloads = [record_size(row) - sizes.record for row in rows[start:]]
    end, total = sizes.fit(packed_records(rows), start, len(rows), max_bytes, row_bytes, max_row)
    count = end - start

    def fits(count: int) -> bool:
        limit = min(max_bytes, max_row + row_bytes)
        return sum(payloads[:count]) + count * row_bytes <= limit

    assert total == sum(payloads[:count])
    assert count == 0 or fits(count)
    assert count == len(payloads) or not fits(count + 1)
    assert all(payload <= max_row for payload in payloads[:count])
