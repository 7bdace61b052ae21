"""Byte strings in one buffer, read as the sequence they are."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Sequence

import pytest

from odradek.engine import HeaderColumns, PackedBytes

VALUES = [b"one", b"", b"three", b"four"]


@pytest.fixture(params=["i", "q"])
def packed(request: pytest.FixtureRequest) -> PackedBytes:
    return PackedBytes(memoryview(array(request.param, [0, 3, 3, 8, 12])), memoryview(b"onethreefour"))


def test_it_reads_like_a_list(packed: PackedBytes) -> None:
    assert isinstance(packed, Sequence)
    assert len(packed) == len(VALUES)
    assert list(packed) == packed.tolist() == [*map(packed.__getitem__, range(4))] == VALUES
    assert [packed[n] for n in range(-4, 0)] == VALUES
    assert packed.index(b"three") == 2
    assert b"" in packed


@pytest.mark.parametrize("index", [4, -5, 1 << 40])
def test_an_index_that_is_not_there_raises(packed: PackedBytes, index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} of 4|row {index + 4} of 4"):
        packed[index]


def test_every_slice_is_that_of_the_list(packed: PackedBytes) -> None:
    for start in (None, *range(-6, 7)):
        for stop in (None, *range(-6, 7)):
            part = packed[start:stop]
            assert part.tolist() == VALUES[start:stop]
            assert part.payload_bytes == len(b"".join(VALUES[start:stop]))
            assert part.data is packed.data


def test_a_slice_with_a_step_is_refused(packed: PackedBytes) -> None:
    with pytest.raises(ValueError, match="not supported"):
        packed[::2]


def test_it_compares_by_its_strings(packed: PackedBytes) -> None:
    assert packed == VALUES
    assert packed == PackedBytes(memoryview(array("q", [2, 5, 5, 10, 14])), memoryview(b"--onethreefour"))
    assert packed != VALUES[1:]
    assert packed != packed[1:]
    assert packed != tuple(VALUES)
    with pytest.raises(TypeError):
        hash(packed)


def test_it_says_how_much_it_holds(packed: PackedBytes) -> None:
    assert repr(packed[1:]) == "<PackedBytes 3 strings, 9 bytes>"


NULLABLE = [b"one", None, b"three", None]
HEADERS = [(("a", b"1"), ("a", None)), (), (("b", b""),)]


@pytest.fixture
def nullable() -> PackedBytes:
    offsets = memoryview(array("i", [0, 3, 3, 8, 8]))
    return PackedBytes(offsets, memoryview(b"onethree"), memoryview(bytes([1, 0, 1, 0])))


@pytest.fixture
def headers() -> HeaderColumns:
    names = PackedBytes(memoryview(array("i", [0, 1, 2, 3])), memoryview(b"aab"))
    values = PackedBytes(memoryview(array("i", [0, 1, 1, 1])), memoryview(b"1"), memoryview(bytes([1, 0, 1])))
    return HeaderColumns(memoryview(array("i", [0, 2, 2, 3])), names, values)


def test_null_rows_are_none_in_every_reading(nullable: PackedBytes) -> None:
    assert nullable.tolist() == [nullable[row] for row in range(4)] == list(nullable) == NULLABLE
    assert nullable[1:].tolist() == NULLABLE[1:]
    assert (nullable.null_count, nullable[1:3].null_count, nullable.payload_bytes) == (2, 1, 8)


def test_a_column_without_nulls_counts_none(packed: PackedBytes) -> None:
    assert packed.null_count == 0


def test_validity_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="validity has 1 rows, offsets have 2"):
        PackedBytes(memoryview(array("i", [0, 1, 2])), memoryview(b"ab"), memoryview(b"\x01"))


def test_a_pickled_slice_holds_only_its_own_strings(packed: PackedBytes, nullable: PackedBytes) -> None:
    assert pickle.loads(pickle.dumps(packed)) == packed
    part = pickle.loads(pickle.dumps(nullable[2:]))
    assert part == NULLABLE[2:]
    assert bytes(part.data) == b"three"


def test_headers_read_like_a_list(headers: HeaderColumns) -> None:
    assert len(headers) == 3
    assert headers.tolist() == [headers[row] for row in range(3)] == list(headers) == HEADERS
    assert headers[-1] == HEADERS[-1]
    assert headers.payload_bytes == 4
    assert repr(headers) == "<HeaderColumns 3 rows, 3 headers>"
    with pytest.raises(IndexError, match="row 3 of 3"):
        headers[3]


def test_every_slice_of_headers_is_that_of_the_list(headers: HeaderColumns) -> None:
    for start in range(4):
        for stop in range(4):
            assert headers[start:stop].tolist() == HEADERS[start:stop]
    assert headers[2:].payload_bytes == 1


def test_headers_compare_by_their_rows(headers: HeaderColumns) -> None:
    assert headers == HEADERS
    assert headers == headers[:]
    assert headers != headers[1:]
    assert headers != tuple(HEADERS)
    with pytest.raises(TypeError):
        hash(headers)


def test_a_pickled_slice_of_headers_holds_only_its_own(headers: HeaderColumns) -> None:
    part = pickle.loads(pickle.dumps(headers[1:]))
    assert part == HEADERS[1:]
    assert bytes(part.names.data) == b"b"
