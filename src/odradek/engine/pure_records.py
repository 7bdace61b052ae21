"""Records of Kafka 0.8 and later, decoded in plain Python: message sets of magic 0 and 1, record batches of magic 2."""

from __future__ import annotations

import struct
from zlib import crc32

from odradek.engine.columns import PlainColumns
from odradek.engine.interface import NO_LIMIT, Buffer
from odradek.engine.packed import Headers
from odradek.engine.pure_crc32c import crc32c

__all__ = ["ListRecordBuilder", "check_batches", "scan_messages", "to_int64"]

_NONE = -1
MESSAGE = struct.Struct(">qiIbb")
"""Head of a message of magic 0 or 1: i64 offset, i32 size of what follows, u32 CRC-32, i8 magic, i8 attributes."""

BATCH = struct.Struct(">qiibIhiqqqhii")
"""Header of a batch of magic 2 (specification.md 3.3)."""

_COMPRESSION, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 8, 16, 32

_LONG, _INT = struct.Struct(">q"), struct.Struct(">i")
_MIN_OFFSET, _MAX_OFFSET = -1 << 63, (1 << 63) - 1
_MIN_SIZE = 14
_Row = tuple[bytes | None, bytes | None, int, int, Headers]


class ListRecordBuilder:
    """A `RecordBuilder` over lists."""

    __slots__ = ("_headers", "_keys", "_nexts", "_positions", "_times", "_types", "_values")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._positions: list[int] = []
        self._nexts: list[int] = []
        self._headers: list[Headers] = []
        self._times: list[int] = []
        self._types: list[int] = []

    def __len__(self) -> int:
        return len(self._values)

    def decode_batch(
        self,
        data: Buffer,
        start: int,
        stop: int,
        count: int,
        base_offset: int,
        last_delta: int,
        first_offset: int,
        timestamp: int,
        append_time: bool,
    ) -> tuple[int, int, int]:
        body = _bytes(data, start, stop)
        at = decoded = 0
        behind = base_offset
        before = len(self._values)
        append = self._append_row
        while decoded < count:
            try:
                row, end = _record(body, at)
            except (IndexError, ValueError):
                break
            value, key, delta, time_delta, headers = row
            if not 0 <= delta <= last_delta:
                break
            at = end
            decoded += 1
            offset = base_offset + delta
            behind = max(behind, offset + 1)
            if offset >= first_offset:
                time = timestamp if append_time else to_int64(timestamp + time_delta)
                append(value, key, offset, headers, time, int(append_time))
        if decoded == count and at == len(body) and len(self._values) > before:
            self._nexts[-1] = base_offset + last_delta + 1
        return start + at, decoded, behind

    def decode_batches(
        self,
        data: Buffer,
        start: int,
        stop: int,
        first_offset: int,
        max_entry: int = NO_LIMIT,
        max_decompressed: int = 0,
        transactional: bool = False,
        checked: bool = False,
    ) -> tuple[int, int, int]:
        view = memoryview(data)[: max(stop, 0)]
        if not 0 <= start <= stop <= len(data):
            raise ValueError(f"{start}:{stop} does not lie within {len(data)} bytes of data")
        behind = _MIN_OFFSET
        while (plain := _plain_batch(view, start, max_entry, transactional, checked)) is not None:
            end, count, base_offset, last_delta, timestamp, append_time = plain
            rows = len(self._values)
            body = start + BATCH.size
            index, number, _ = self.decode_batch(
                view, body, end, count, base_offset, last_delta, first_offset, timestamp, append_time
            )
            if index != end or number != count:
                self._truncate(rows)
                break
            start, behind = end, max(behind, base_offset + last_delta + 1)
        return start, behind, 0

    def decode_messages(
        self,
        data: Buffer,
        start: int,
        stop: int,
        first_offset: int,
        shift: int = 0,
        append_time: int | None = None,
        max_entry: int = NO_LIMIT,
    ) -> tuple[int, int]:
        body = _bytes(data, start, stop)
        at, behind = 0, _MIN_OFFSET
        while (message := _message(body, at, max_entry)) is not None:
            value, key, own, time, kind, end = message
            offset = own + shift
            if not 0 <= offset < _MAX_OFFSET:
                break
            if append_time is not None:
                time, kind = append_time, 1
            if offset >= first_offset:
                self._append_row(value, key, offset, (), time, kind)
            behind, at = max(behind, offset + 1), end
        return start + at, behind

    def append(self, value: Buffer, position: int, next_position: int) -> None:
        self._append_row(bytes(value), None, position, (), _NONE, _NONE)
        self._nexts[-1] = next_position

    def _append_row(
        self, value: bytes | None, key: bytes | None, position: int, headers: Headers, time: int, kind: int
    ) -> None:
        self._values.append(value)
        self._keys.append(key)
        self._positions.append(position)
        self._nexts.append(position + 1)
        self._headers.append(headers)
        self._times.append(time)
        self._types.append(kind)

    def _truncate(self, rows: int) -> None:
        for name in self.__slots__:
            del getattr(self, name)[rows:]

    def take(self) -> PlainColumns:
        keys = self._keys if any(key is not None for key in self._keys) else None
        headers = self._headers if any(self._headers) else None
        timed = any(kind != _NONE for kind in self._types)
        times = (self._times, self._types) if timed else (None, None)
        taken = PlainColumns(self._values, self._positions, self._nexts, None, keys, headers, *times)
        self._begin()
        return taken


def _bytes(data: Buffer, start: int, stop: int) -> bytes:
    """Return a part of the data as `bytes`, whose slices and items are faster than those of views."""
    view = memoryview(data)
    if not 0 <= start <= stop <= len(view):
        raise ValueError(f"{start}:{stop} does not lie within {len(view)} bytes of data")
    whole = view.obj
    if type(whole) is bytes and start == 0 and stop == len(view) == len(whole):
        return whole
    return bytes(view[start:stop])


def to_int64(number: int) -> int:
    """Return a sum reduced to 64 bits, as Java adds."""
    return (number + (1 << 63) & (1 << 64) - 1) - (1 << 63)


def _record(data: bytes, at: int) -> tuple[_Row, int]:
    """Decode the record at an index. Raises IndexError or ValueError for one that is damaged."""
    size = data[at]
    if size < 0x80:
        at, size = at + 1, size >> 1 ^ -(size & 1)
    else:
        size, at = _varint(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise ValueError("a record is longer than the rest of its batch")
    at += 1  # attributes, which mean nothing
    byte = data[at]
    time, at = (byte >> 1 ^ -(byte & 1), at + 1) if byte < 0x80 else _varint(data, at, 64)
    byte = data[at]
    delta, at = (byte >> 1 ^ -(byte & 1), at + 1) if byte < 0x80 else _varint(data, at)
    key, at = _nullable(data, at, end)
    value, at = _nullable(data, at, end)
    number = data[at]
    at += 1
    headers: Headers = ()
    if number:
        headers, at = _headers(data, at - 1, end)
    if at != end:
        raise ValueError("a record does not end where its length says")
    return (value, key, delta, time, headers), end


def _nullable(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    byte = data[at]
    size, at = (byte >> 1 ^ -(byte & 1), at + 1) if byte < 0x80 else _varint(data, at)
    if size == -1:
        return None, at
    if size < 0 or at + size > end:
        raise ValueError("a field is longer than its record")
    return data[at : at + size], at + size


def _headers(data: bytes, at: int, end: int) -> tuple[Headers, int]:
    number, at = _varint(data, at)
    if not 0 <= number <= (end - at) // 2:
        raise ValueError("more headers than bytes")
    headers = []
    for _ in range(number):
        name, at = _nullable(data, at, end)
        if name is None:
            raise ValueError("a header without a name")
        value, at = _nullable(data, at, end)
        headers.append((name.decode("utf-8", "replace"), value))
    return tuple(headers), at


def check_batches(
    data: Buffer, start: int, stop: int, max_entry: int, max_decompressed: int, transactional: bool
) -> tuple[int, int]:
    if not 0 <= start <= stop <= len(data):
        raise ValueError(f"{start}:{stop} does not lie within {len(data)} bytes of data")
    view, behind = memoryview(data)[:stop], _MIN_OFFSET
    while (plain := _plain_batch(view, start, max_entry, transactional)) is not None:
        start, _, base_offset, last_delta, *_ = plain
        behind = max(behind, base_offset + last_delta + 1)
    return start, behind


def _plain_batch(
    view: memoryview, at: int, max_entry: int, transactional: bool, checked: bool = False
) -> tuple[int, int, int, int, int, bool] | None:
    """Return the plain batch at an index: the index behind it, and what its header says of its records.

    None if the bytes are anything else, or damaged. The records are not looked at.
    """
    if len(view) - at < BATCH.size:
        return None
    base, length, _, magic, crc, attributes, last, base_time, max_time, *_, count = BATCH.unpack_from(view, at)
    end = at + 12 + length
    if magic != 2 or length < BATCH.size - 12 or end > len(view) or length + 12 > max_entry:
        return None
    if attributes & (_COMPRESSION | _CONTROL | (0 if transactional else _TRANSACTIONAL)):
        return None
    if min(base, last, count) < 0 or base + last > _MAX_OFFSET - 2:
        return None
    if not checked and crc32c(view[at + 21 : end]) != crc:
        return None
    append_time = bool(attributes & _APPEND_TIME)
    return end, count, base, last, max_time if append_time else base_time, append_time


_Message = tuple[bytes | None, bytes | None, int, int, int, int]


def _message(data: bytes, at: int, max_entry: int) -> _Message | None:
    """Decode the message at an index: value, key, offset, timestamp, its type, and the index behind it.

    None if the entry is incomplete, compressed, damaged or too large.
    """
    if len(data) - at < MESSAGE.size:
        return None
    offset, size, crc, magic, attributes = MESSAGE.unpack_from(data, at)
    end = at + 12 + size
    fields = at + 18 + 8 * magic
    if magic not in (0, 1) or attributes & 7 or size < _MIN_SIZE or end > len(data) or size + 12 > max_entry:
        return None
    if end - fields < 8 or crc32(memoryview(data)[at + 16 : end]) != crc:
        return None
    time, kind = (_LONG.unpack_from(data, at + 18)[0], attributes >> 3 & 1) if magic else (_NONE, _NONE)
    size_of = _INT.unpack_from
    (key_size,) = size_of(data, fields)
    key_end = fields + 4 + max(key_size, 0)
    if key_size < -1 or key_end + 4 > end:
        return None
    (value_size,) = size_of(data, key_end)
    if value_size < -1 or key_end + 4 + max(value_size, 0) != end:
        return None
    key = None if key_size < 0 else data[fields + 4 : key_end]
    return None if value_size < 0 else data[key_end + 4 : end], key, offset, time, kind, end


def scan_messages(data: Buffer) -> tuple[int, int, int]:
    view = memoryview(data)
    at = number = last = 0
    while len(view) - at >= MESSAGE.size:
        offset, size, _, magic, attributes = MESSAGE.unpack_from(view, at)
        end = at + 12 + size
        if magic not in (0, 1) or attributes & 7 or size < _MIN_SIZE or end > len(view):
            break
        at, number, last = end, number + 1, offset
    return at, number, last


def _varint(data: bytes, at: int, bits: int = 32) -> tuple[int, int]:
    """Decode a zigzag number of 32 or 64 bits; return it and the index behind it. Raises IndexError, ValueError."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise ValueError("a number is too long")
    if number >> bits:
        raise ValueError("a number is too large")
    return number >> 1 ^ -(number & 1), at
