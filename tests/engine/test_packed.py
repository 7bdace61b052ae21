"""Byte strings in one buffer, read as the sequence they are."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from odradek.engine import PackedBytes

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
