"""Message sets: the formats of magic 0 and 1 (0.8 to 0.10), still in old topics (kafka-specification.md 3.2)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from odradek import engine
from odradek.engine import Buffer
from odradek.wire.compression import CompressionError, DecompressedTooLarge
from odradek.wire.kafka.records.batch import ROW_BYTES
from odradek.wire.kafka.records.compression import decompress

__all__ = ["HEAD_BYTES", "MIN_LENGTH", "Wrapper", "compression_of", "is_crc_right", "message_damage", "open_wrapper"]

HEAD_BYTES = 17
"""Bytes of any entry up to and with its magic."""
MIN_LENGTH = 14
"""The least a length field may say."""
_COMPRESSION, _APPEND_TIME = 7, 8


class Wrapper(NamedTuple):
    """The messages of a compressed message."""

    data: Buffer
    messages: int
    shift: int
    """Number to add to their offsets."""
    append_time: int | None
    """The timestamp of all of them, if the broker set it (ms)."""


def compression_of(entry: memoryview) -> int:
    """Return the compression of a message of magic 0 or 1: 0 for one that is not compressed."""
    return entry[HEAD_BYTES] & _COMPRESSION


def is_crc_right(entry: memoryview) -> bool:
    """Return True if the CRC of a whole message of magic 0 or 1 is that of its content."""
    return engine.active.crc32(entry[16:]) == int.from_bytes(entry[12:16], "big")


def message_damage(entry: memoryview, what: str = "message") -> str:
    """Return what is wrong with a whole message that the engine does not take, in words; "" for a sound wrapper."""
    if entry[16] > 1:
        return f"a {what} of magic {entry[16]} where 0 or 1 must be"
    if not is_crc_right(entry):
        return "CRC mismatch"
    if not 0 <= int.from_bytes(entry[:8], "big", signed=True) < (1 << 63) - 1:
        return "an offset that cannot be"
    return "" if compression_of(entry) else f"the fields of the {what} do not fill it"


def open_wrapper(entry: memoryview, max_bytes: int) -> Wrapper:
    """Decompress the messages of a wrapper, and look at their offsets.

    Offsets inside of magic 1 count from 0, and the last message has the wrapper's own; those of magic 0 are
    final. The magic that matters is the wrapper's, because sets with both exist.

    Raises:
        CompressionError: The wrapper is damaged, or holds what it may not.
    """
    magic = entry[16]
    data = decompress(compression_of(entry), _payload(entry), max_bytes, magic=magic)
    end, count, last = engine.active.scan_messages(data)
    if end < len(data) or not count:
        raise CompressionError(_wrong_inside(memoryview(data), end))
    if len(data) + ROW_BYTES * count > max_bytes:
        raise DecompressedTooLarge(f"grows beyond {max_bytes} bytes (max_decompressed_bytes)")
    offset, shift = int.from_bytes(entry[:8], "big", signed=True), 0
    if magic == 1 and offset:  # some producers leave it 0
        if not 0 <= last <= offset:
            raise CompressionError(f"a compressed message at offset {offset} whose last message is number {last}")
        shift = offset - last
    times = magic == 1 and entry[HEAD_BYTES] & _APPEND_TIME
    return Wrapper(data, count, shift, struct.unpack_from(">q", entry, 18)[0] if times else None)


def _payload(entry: memoryview) -> memoryview:
    """Return the value of a message whose fields have not been checked."""
    at = HEAD_BYTES + 1 + 8 * entry[16]
    for field in ("key", "value"):
        size = int.from_bytes(entry[at : at + 4], "big", signed=True)
        end = at + 4 + max(size, 0)
        if end > len(entry) or len(entry) < at + 4:
            raise CompressionError(f"a {field} of {size} bytes in a message of {len(entry)}")
        at, begin = end, at + 4
    if size < 0 or at != len(entry):
        raise CompressionError("a compressed message whose value does not fill it")
    return entry[begin:at]


def _wrong_inside(data: memoryview, at: int) -> str:
    if not len(data):
        return "a compressed message with nothing in it"
    if len(data) - at > HEAD_BYTES:
        if data[at + 16] > 1:
            return f"a message of magic {data[at + 16]} inside a compressed one"
        if compression_of(data[at:]):
            return "a compressed message inside a compressed one"
    return "the messages inside a compressed one do not fill it"
