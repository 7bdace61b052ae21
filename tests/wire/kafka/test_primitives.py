"""Variable-length integers, tagged fields and tables of layouts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.wire.kafka.primitives import (
    INTEGERS,
    Malformed,
    StructTable,
    TooShort,
    Unwritable,
    count_error,
    encode_uvarint,
    length_error,
    long_string,
    read_unknown_tags,
    read_uvarint,
    write_tags,
)


@given(value=st.integers(0, 2**32 - 1), before=st.binary(max_size=3))
def test_an_unsigned_integer_comes_back(value: int, before: bytes) -> None:
    encoded = before + encode_uvarint(value)
    assert read_uvarint(encoded + b"\xff", len(before)) == (value, len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (16383, "ff7f"), (16384, "808001"), (2**32 - 1, "ffffffff0f")],
)
def test_unsigned_integers_are_written_low_bits_first(value: int, encoded: str) -> None:
    assert encode_uvarint(value).hex() == encoded


def test_more_than_32_bits_and_cut_integers_are_refused() -> None:
    with pytest.raises(Malformed, match="more than 32 bits"):
        read_uvarint(bytes.fromhex("ffffffff1f"), 0)
    for size in range(5):
        with pytest.raises(IndexError):
            read_uvarint(bytes.fromhex("ffffffff0f")[:size], 0)


@given(tags=st.dictionaries(st.integers(0, 2**31), st.binary(max_size=200), max_size=5))
def test_tagged_fields_come_back_in_the_order_of_their_numbers(tags: dict[int, bytes]) -> None:
    parts: list[bytes] = []
    write_tags(parts.append, tuple(tags.items()))
    encoded = b"".join(parts)
    assert read_unknown_tags(encoded, 0) == (tuple(sorted(tags.items())), len(encoded))


def test_the_longest_string_has_32767_bytes() -> None:
    assert read_uvarint(long_string(32767), 0)[0] == 32768
    with pytest.raises(Unwritable, match="32768 bytes in UTF-8"):
        long_string(32768)


def test_an_error_says_how_many_bytes_it_takes_at_least() -> None:
    for error in (length_error(9, 3), count_error(9, 3)):
        assert isinstance(error, TooShort)
        assert error.needed == 9
    for error in (length_error(-1, 3), length_error(-5, 3), count_error(-1, 3), count_error(-5, 3)):
        assert not isinstance(error, TooShort)


def test_a_table_keeps_the_layouts_of_small_numbers_only() -> None:
    table = StructTable("i")
    assert table[3].unpack_from(INTEGERS["i"][3].pack(1, 2, 3), 0) == (1, 2, 3)
    assert table[100_000].size == 400_000
    assert list(table) == [3]
