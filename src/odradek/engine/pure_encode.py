"""Records of Kafka 0.8 and later, encoded in plain Python."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import count, repeat
from typing import Any
from zlib import crc32

from odradek.engine.packed import Headers
from odradek.engine.pure_crc32c import crc32c
from odradek.engine.pure_records import to_int64

__all__ = ["encode_batch", "encode_batches", "encode_messages"]

_NONE = -1
_LONG, _INT = struct.Struct(">q"), struct.Struct(">i")

_HEAD = struct.Struct(">qiib")
"""Header of a batch up to its CRC: offset, length, leader epoch, magic (specification.md 3.3)."""

_COVERED = struct.Struct(">hiqqqhii")
"""Header of a batch behind its CRC, which covers this and the records."""


def encode_batch(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    timestamps: Sequence[int] | None = None,
    attributes: int = 0,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compress: Callable[[bytes], bytes] | None = None,
) -> bytes:
    rows = len(values)
    base, latest = (timestamps[0], max(timestamps)) if timestamps else (_NONE, _NONE)
    body = _records(values, keys, headers, timestamps, base)
    if compress is not None:
        body = compress(body)
    producer = producer_id, producer_epoch, base_sequence
    try:
        covered = _COVERED.pack(attributes, rows - 1, base, latest, *producer, rows)
        head = _HEAD.pack(base_offset, _HEAD.size - 12 + 4 + len(covered) + len(body), _NONE, 2)
    except struct.error:
        raise _overflow() from None
    crc = crc32c(body, crc32c(covered))
    return b"".join((head, crc.to_bytes(4, "big"), covered, body))


def encode_batches(runs: Sequence[Sequence[Any]], stamps: Sequence[tuple[int, int, int, int]], now: int) -> list[bytes]:
    if len(runs) != len(stamps):
        raise ValueError(f"{len(stamps)} stamps for {len(runs)} runs")
    made = []
    for run, (attributes, producer_id, epoch, sequence) in zip(runs, stamps, strict=True):
        rows = [_plain(record, now) for record in run]
        values, keys, times = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
        made.append(encode_batch(values, keys, None, times, attributes, 0, producer_id, epoch, sequence))
    return made


def _plain(record: Any, now: int) -> tuple[bytes | None, bytes | None, int]:
    """Return value, key and timestamp of a record without headers."""
    if isinstance(record, bytes):
        return record, None, now
    if not isinstance(record, tuple) or len(record) != 4 or len(record[2]):
        raise TypeError("a record must be a tuple of value, key and timestamp, without headers")
    value, key, _, time = record
    if not all(each is None or isinstance(each, bytes) for each in (value, key)):
        raise TypeError("a value or key is not bytes")
    return value, key, now if time is None else time


def _records(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[Headers] | None,
    timestamps: Sequence[int] | None,
    base_timestamp: int,
) -> bytes:
    rows = _same_length(values, keys, headers, timestamps)
    parts: list[bytes] = []
    small, sizes = _VARINTS, len(_VARINTS)
    for delta, (value, key, pairs, time) in enumerate(rows):
        since = b"\0" if time is None else _varint_of(to_int64(_checked(time) - base_timestamp))
        record = [b"\0", since, _varint_of(delta), *_field(key), *_field(value), b"\0"]
        if pairs:
            record.pop()
            record += _header_fields(pairs)
        body = b"".join(record)
        size = len(body)
        parts.append(small[size] if size < sizes else _encoded(_int(size)))
        parts.append(body)
    return b"".join(parts)


def _encoded(number: int) -> bytes:
    """Return a number in zigzag form."""
    rest = number << 1 ^ number >> 63
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_VARINTS = [_encoded(number) for number in range(4096)]
_NULL = _encoded(-1)


def _varint_of(number: int) -> bytes:
    return _VARINTS[number] if 0 <= number < 4096 else _encoded(number)


def _same_length(values: Sequence[Any], *columns: Sequence[Any] | None) -> Iterable[tuple[Any, ...]]:
    for column in columns:
        if column is not None and len(column) != len(values):
            raise ValueError(f"a column has {len(column)} rows, not {len(values)}")
    return zip(values, *(repeat(None) if column is None else column for column in columns), strict=False)


def _checked(time: int) -> int:
    if not -1 << 63 <= time < 1 << 63:
        raise _overflow()
    return time


def _int(number: int) -> int:
    if number > 0x7FFFFFFF:
        raise _overflow()
    return number


def _overflow() -> OverflowError:
    return OverflowError("a number does not fit into its field")


def _field(value: bytes | None) -> tuple[bytes, ...]:
    return (_NULL,) if value is None else (_varint_of(_int(len(value))), value)


def _header_fields(pairs: Headers) -> list[bytes]:
    fields = [_varint_of(len(pairs))]
    for name, value in pairs:
        fields += *_field(name.encode()), *_field(value)
    return fields


def encode_messages(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    magic: int = 1,
    attributes: int = 0,
    offset: int = 0,
) -> bytes:
    parts: list[bytes] = []
    pack = struct.Struct(">bbq" if magic else ">bb").pack
    for at, (value, key, time) in zip(count(offset), _same_length(values, keys, timestamps), strict=False):
        times = (_NONE if time is None else _checked(time),) if magic else ()
        body = b"".join((pack(magic, attributes, *times), *_sized(key), *_sized(value)))
        parts += _LONG.pack(at), _INT.pack(_int(len(body) + 4)), crc32(body).to_bytes(4, "big"), body
    return b"".join(parts)


def _sized(value: bytes | None) -> tuple[bytes, ...]:
    return (b"\xff\xff\xff\xff",) if value is None else (_INT.pack(_int(len(value))), value)
