"""The checks of a 0.7.2 broker before it stores a message set (specification.md 3.1, App. H 7).

The real broker makes two passes. The first one reads the entries of level one in order and checks framing, magic, CRC
and payload size, so that the first fault decides: a message that is too large drops the set silently, any other fault
closes the connection. The second pass decompresses the wrappers, at any depth; any fault there closes the connection.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from odradek import engine as engines
from odradek.engine import Buffer
from odradek.wire.compression import CompressionError, CompressionType, DecompressedTooLarge
from odradek.wire.kafka07.compression import decompress

__all__ = ["InvalidSet", "PayloadTooLarge", "ValidSet", "check_entry", "check_set"]

MAX_DECOMPRESSED = 256 << 20
"""Maximum size of all decompressed wrappers of a set, nesting included (bytes).

The real broker ends here too, out of heap: CLOSE.
"""

_LENGTH = struct.Struct(">i")
_CRC = struct.Struct(">I")


class InvalidSet(Exception):
    """The connection is closed and nothing of the set stored."""


class PayloadTooLarge(Exception):
    """The set is dropped and nobody told."""


class ValidSet(NamedTuple):
    """`valid_bytes` of the set are stored; they hold `messages` messages, those inside wrappers included."""

    valid_bytes: int
    messages: int


class _Wrapper(NamedTuple):
    compression: int
    payload: Buffer


def check_set(data: Buffer, max_payload: int) -> ValidSet:
    """Check a message set. Raises InvalidSet or PayloadTooLarge, whichever the real broker finds first."""
    wrappers: list[_Wrapper] = []
    valid, messages = _check_entries(data, max_payload, wrappers)
    budget = MAX_DECOMPRESSED
    while wrappers:
        inner = _open(wrappers.pop(), budget)
        budget -= len(inner)
        messages += _check_entries(inner, None, wrappers)[1]  # inner messages may have any size
    return ValidSet(valid, messages)


def check_entry(entry: bytes) -> bool:
    """Return True if the CRC of one complete entry (length field included) is right, as log recovery checks it.

    Raises InvalidSet for an entry of unknown magic or too short for its magic (App. H 4).
    """
    return _crc_matches(entry, 0, len(entry))[0]


def _check_entries(data: Buffer, max_payload: int | None, wrappers: list[_Wrapper]) -> tuple[int, int]:
    """One level: bytes of complete entries, plain messages among them; wrappers are appended unopened."""
    limit = len(data) if max_payload is None else max_payload
    position = messages = 0
    while True:
        # The quick way through plain entries. 9: the head of magic 0; a magic-1 entry of the limit goes the other way.
        position, plain = engines.active.check_run(data, position, len(data), limit + 9)
        messages += plain
        entry = _other(data, position)
        if entry is None:
            return position, messages
        position, payload, compression = entry
        if len(payload) > limit:
            raise PayloadTooLarge(f"payload of {len(payload)} bytes, the limit is {limit}")
        if compression:
            wrappers.append(_Wrapper(compression, payload))
        else:
            messages += 1


def _other(data: Buffer, position: int) -> tuple[int, Buffer, int] | None:
    """An entry of any kind: where it stops, its payload and codec; None where the set ends."""
    if len(data) - position < 4:
        return None
    (length,) = _LENGTH.unpack_from(data, position)
    stop = position + 4 + length
    if length < 0:
        raise InvalidSet(f"message length {length}")
    if stop > len(data):
        if position == 0:
            raise InvalidSet("first message incomplete")
        return None
    valid, payload = _crc_matches(data, position, stop)
    if not valid:
        raise InvalidSet("bad CRC")
    return stop, payload, 0 if data[position + 4] == 0 else data[position + 5] & 3


def _crc_matches(data: Buffer, position: int, stop: int) -> tuple[bool, Buffer]:
    magic = data[position + 4] if stop > position + 4 else -1
    header = {0: 9, 1: 10}.get(magic)
    if header is None:
        raise InvalidSet(f"unknown magic {magic}")
    if stop < position + header:
        raise InvalidSet(f"message of {stop - position - 4} bytes is too short for magic {magic}")
    payload = data[position + header : stop]
    return crc32(payload) == _CRC.unpack_from(data, position + header - 4)[0], payload


def _open(wrapper: _Wrapper, budget: int) -> Buffer:
    if wrapper.compression == 3:
        raise InvalidSet("unknown codec 3")
    try:
        return decompress(CompressionType(wrapper.compression), memoryview(wrapper.payload), budget)
    except (CompressionError, DecompressedTooLarge) as error:
        raise InvalidSet(str(error)) from error
