"""Variable-length integers, tagged fields and runs of integers: what generated encoders and decoders call.

Readers raise IndexError where the bytes end too early and Malformed where they make no sense; `decode` turns both into
RemoteProtocolError and says where.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from odradek.engine import Buffer
from odradek.wire.kafka.schema import UnknownTags

__all__ = [
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

MAX_STRING_BYTES = 0x7FFF  # Kafka's limit; without compact lengths an int16 says the same


class Malformed(ValueError):
    """Bytes that no peer writes; the text says why."""


class TooShort(Malformed):
    """Bytes that announce more than there are.

    Args:
        text: What is announced.
        needed: The least number of bytes for it.
    """

    def __init__(self, text: str, needed: int) -> None:
        super().__init__(text)
        self.needed = needed


class Unwritable(ValueError):
    """A value that the version has no bytes for; the text says why."""


def read_uvarint(data: Buffer, start: int) -> tuple[int, int]:
    """Return an unsigned integer of at most 32 bits and the position after it."""
    value = data[start]
    if value < 1 << 7:
        return value, start + 1
    value += (data[start + 1] << 7) - (1 << 7)  # without the bit that said that another byte follows
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
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def long_string(size: int) -> bytes:
    """Encode the compact length of a string that does not fit one byte."""
    if size > MAX_STRING_BYTES:
        raise Unwritable(f"{size} bytes of UTF-8, more than {MAX_STRING_BYTES}")
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
    """Describe the size of a string or of bytes that cannot be."""
    if size < 0:
        return Malformed("null, which is not legal" if size == -1 else f"a size of {size} bytes")
    return TooShort(f"{size} bytes are announced, {left} are left", size)


def count_error(count: int, left: int) -> Malformed:
    """Describe a number of elements that cannot be."""
    if count < 0:
        return Malformed("null, which is not legal" if count == -1 else f"{count} elements")
    return TooShort(f"{count} elements are announced, {left} bytes are left", count)


def tag_error(size: int, used: int) -> Malformed:
    """Describe a tagged field whose size and content differ."""
    return Malformed(f"a tagged field of {size} bytes has content of {used}")


class StructTable(dict[int, struct.Struct]):
    """The layouts of so many integers of one size in a row, kept for small numbers of them.

    Args:
        code: The format character of one.
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
