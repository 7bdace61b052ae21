"""The seam: the loops that touch every message, as pure functions over buffers.

A compiled twin replaces these functions by name, so they take buffers and integers, keep no state, and give lists. What
they leave to the caller - wrappers, damage, cut ends - is rare and lives in `kafka07`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import Any
from zlib import crc32

__all__ = ["ENTRY", "NO_LIMIT", "Buffer", "crc32", "decode_run", "encode_run"]

Buffer = bytes | bytearray | memoryview

NO_LIMIT = 4 + 0x7FFFFFFF
"""Bytes of the largest entry that a length field can announce."""

ENTRY = struct.Struct(">iHI")
"""Head of a magic-1 entry: i32 length, i8 magic and i8 attributes read as one number, u32 crc (specification 2.1)."""

_PLAIN = 0x0100  # magic 1, no attributes: what every 0.7 writer emits for a message that is not compressed
_CODEC = 0xFF03  # the magic and the two codec bits; the upper attribute bits are ignored (specification 2.1)


def decode_run(
    data: bytes | memoryview, start: int, stop: int, base: int = 0, max_entry: int = NO_LIMIT
) -> tuple[list[bytes], list[int]]:
    """Cut a run of plain, whole, valid messages out of `data[start:stop]`.

    Stops in front of the first entry that is anything else - incomplete, compressed, damaged, larger than `max_entry`
    bytes - and leaves it to the caller; also, now and then, in front of a good one in the last bytes. Each payload is
    copied once, into a `bytes` of its own.

    Returns:
        The payloads, and for each of them the position behind it; `base` is the position of `data[0]`.
    """
    values: list[Any] = []
    nexts: list[int] = []
    unpack, crc_of = ENTRY.unpack_from, crc32
    longest, pos, last = max_entry - 4, start, stop - ENTRY.size
    while pos <= last:
        length, kind, crc = unpack(data, pos)
        end = pos + 4 + length
        if kind == _PLAIN:
            body = pos + 10
        elif kind <= 0xFF:  # magic 0 has no attributes: its crc starts a byte earlier
            body, crc = pos + 9, kind << 24 | crc >> 8
        elif kind & _CODEC == _PLAIN:
            body = pos + 10
        else:
            break
        if not body <= end <= stop or length > longest:
            break
        value = data[body:end]
        if crc_of(value) != crc:
            break
        values.append(value)
        nexts.append(end + base)
        pos = end
    return (values if type(data) is bytes else list(map(bytes, values))), nexts


def encode_run(values: Sequence[bytes], attributes: int = 0) -> bytes:
    """Magic-1 entries of these payloads, one behind the other."""
    parts: list[bytes] = [b""] * (2 * len(values))
    parts[0::2] = map(ENTRY.pack, map((6).__add__, map(len, values)), repeat(_PLAIN | attributes), map(crc32, values))
    parts[1::2] = values
    return b"".join(parts)
