"""Functions that generated encoders and decoders call: variable-length integers, tagged fields, runs of integers.

Readers raise IndexError if the bytes end too early and Malformed if they are invalid; `decode` turns both into a
RemoteProtocolError that names the place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from odradek.engine import Buffer
from odradek.wire.kafka.schema import UnknownTags

__all__ = [
    "DECODE_ERRORS",
    "INTEGERS",
    "Malformed",
    "StructTable",
    "TooShort",
    "Unwritable",
    "count_error",
    "encode_uvarint",
    "length_error",
    "long_string",
    "read_unknown_tags",
    "read_uvarint",
    "tag_error",
    "write_tags",
]

MAX_STRING_BYTES = 0x7FFF  # Kafka's limit, and the largest int16 length of versions without compact lengths


class Malformed(ValueError):
    """Invalid bytes; the text says why."""


class TooShort(Malformed):
    """A length or count that exceeds the remaining bytes.

    Args:
        text: The length or count.
        needed: The minimum number of bytes it takes.
    """

    def __init__(self, text: str, needed: int) -> None:
        super().__init__(text)
        self.needed = needed


DECODE_ERRORS = (struct.error, IndexError, UnicodeDecodeError, Malformed)
"""Exceptions that generated decoders raise."""


class Unwritable(ValueError):
    """A value that cannot be encoded in this version; the text says why."""


def read_uvarint(data: Buffer, start: int) -> tuple[int, int]:
    """Return an unsigned integer of at most 32 bits and the position after it."""
    value = data[start]
    if value < 1 << 7:
        return value, start + 1
    value += (data[start + 1] << 7) - (1 << 7)  # without the continuation bit
    if value < 1 << 14:
        return value, start + 2
    value += (data[start + 2] << 14) - (1 << 14)
    if value < 1 << 21:
        return value, start + 3
    value += (data[start + 3] << 21) - (1 << 21)
    if value < 1 << 28:
        return value, start + 4
    value += (data[start + 4] << 28) - (1 << 28)
    if value < 1 << 32:
        return value, start + 5
    raise Malformed("a length of more than 32 bits")


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned integer, 7 bits a byte, the lowest first."""
    if 0x7F < value < 0x4000:  # the length of most record batches, and faster by far
        return bytes((value & 0x7F | 0x80, value >> 7))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def long_string(size: int) -> bytes:
    """Encode the compact length of a string that does not fit one byte."""
    if size > MAX_STRING_BYTES:
        raise Unwritable(f"a string of {size} bytes in UTF-8; at most {MAX_STRING_BYTES} are allowed")
    return encode_uvarint(size + 1)


def read_unknown_tags(data: Buffer, start: int) -> tuple[UnknownTags, int]:
    """Read the tagged fields of a struct that declares none; also return the position after them."""
    count, position = read_uvarint(data, start)
    if count > (len(data) - position) // 2:
        raise count_error(count, len(data) - position)
    tags = []
    for _ in range(count):
        number, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if size > len(data) - position:
            raise length_error(size, len(data) - position)
        tags.append((number, bytes(data[position : position + size])))
        position += size
    return tuple(tags), position


def write_tags(append: Callable[[bytes], None], tags: UnknownTags) -> None:
    """Write the tagged fields of a struct in the order of their numbers."""
    append(encode_uvarint(len(tags)))
    for number, value in sorted(tags):
        append(encode_uvarint(number) + encode_uvarint(len(value)))
        append(value)


def length_error(size: int, left: int) -> Malformed:
    """Return the error for an invalid length of a string or of bytes."""
    if size < 0:
        return Malformed("null is not allowed" if size == -1 else f"a negative length, {size}")
    return TooShort(f"a length of {size} bytes, but only {left} bytes are left", size)


def count_error(count: int, left: int) -> Malformed:
    """Return the error for an invalid number of elements."""
    if count < 0:
        return Malformed("null is not allowed" if count == -1 else f"a negative count, {count}")
    return TooShort(f"a count of {count} elements, but only {left} bytes are left", count)


def tag_error(size: int, used: int) -> Malformed:
    """Return the error for a tagged field whose content does not have the size that precedes it."""
    return Malformed(f"a tagged field has a size of {size} bytes, but its content takes {used}")


class StructTable(dict[int, struct.Struct]):
    """Layouts of arrays of integers of one size, by their count. Layouts of small counts are kept.

    Args:
        code: The format character of one integer.
    """

    KEPT = 64

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code

    def __missing__(self, count: int) -> struct.Struct:
        layout = struct.Struct(f">{count}{self._code}")
        if count < self.KEPT:
            self[count] = layout
        return layout


INTEGERS = {code: StructTable(code) for code in "bhiq"}
"""The tables, by the format character of one integer."""
