"""The engine without dependencies: CPython's own lists, struct and zlib; cramjam for LZ4."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any
from zlib import crc32

from odradek.engine.columns import PlainColumns
from odradek.engine.interface import NO_LIMIT, Buffer
from odradek.engine.pure_append import PythonAppender, PythonBatch, PythonBuffer, murmur2
from odradek.engine.pure_crc32c import crc32c
from odradek.engine.pure_encode import encode_batch, encode_batches, encode_messages
from odradek.engine.pure_records import ListRecordBuilder, check_batches, scan_messages

__all__ = [
    "NAME",
    "Appender",
    "BatchBase",
    "BufferBase",
    "ColumnBuilder",
    "PayloadBuilder",
    "RecordBuilder",
    "check_batches",
    "check_run",
    "crc32",
    "crc32c",
    "encode_batch",
    "encode_batches",
    "encode_frame",
    "encode_messages",
    "encode_run",
    "fit",
    "lz4_content",
    "murmur2",
    "scan_messages",
    "unpack",
]

NAME = "pure"

ENTRY = struct.Struct(">iHI")
"""Head of a magic-1 entry: i32 length, i8 magic and i8 attributes as one number, u32 crc (specification.md 2.1)."""

_PLAIN = 0x0100  # magic 1, no attributes: what every 0.7 writer emits for a message that is not compressed
_COMPRESSION = 0xFF03  # the magic and the two compression bits; other attribute bits are ignored (specification.md 2.1)

_WINDOW, _MAX_WINDOW = 64 << 10, 256 << 10
"""Bytes copied at a time from a buffer that is not `bytes`, because slices of views cost a quarter more. The first
window is small enough to cost the shortest run at most a tenth more; the largest one fits into a processor's cache."""


def _cut(data: Buffer, start: int, stop: int, base: int, max_entry: int) -> tuple[list[bytes], list[int]]:
    """Return the payloads of a run, and the position after each."""
    view = memoryview(data)
    whole = view.obj
    if type(whole) is bytes and len(view) == len(whole):
        return _slices(whole, start, stop, base, max_entry)
    values: list[bytes] = []
    nexts: list[int] = []
    size = _WINDOW
    while True:
        limit = min(start + size, stop)
        window = view[start:limit]
        large = size > _MAX_WINDOW  # one entry, which would be copied twice
        some, ends = _slices(window if large else bytes(window), 0, len(window), base + start, max_entry)
        values += map(bytes, some) if large else some
        nexts += ends
        start = ends[-1] - base if ends else start
        wanted = 4 + int.from_bytes(view[start : start + 4], "big")  # a negative length reads as one beyond every end
        if limit == stop or limit - start >= max(wanted, ENTRY.size) or wanted > min(stop - start, max_entry):
            return values, nexts
        size = max(wanted, min(4 * size, _MAX_WINDOW))


def _slices(data: bytes | memoryview, start: int, stop: int, base: int, max_entry: int) -> tuple[list[Any], list[int]]:
    """Return the same with payloads that are slices."""
    values: list[Any] = []
    nexts: list[int] = []
    unpack_from, crc_of = ENTRY.unpack_from, crc32
    longest, pos, last = max_entry - 4, start, stop - ENTRY.size
    while pos <= last:
        length, kind, crc = unpack_from(data, pos)
        end = pos + 4 + length
        if kind == _PLAIN:
            body = pos + 10
        elif kind <= 0xFF:  # magic 0 has no attributes: its crc starts a byte earlier
            body, crc = pos + 9, kind << 24 | crc >> 8
        elif kind & _COMPRESSION == _PLAIN:
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
    return values, nexts


class ListPayloadBuilder:
    """A `PayloadBuilder` over a list."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: list[bytes] = []

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self._values))

    def __len__(self) -> int:
        return len(self._values)

    def decode_run(self, data: Buffer, start: int, stop: int) -> int:
        _check_range(data, start, stop)
        values, nexts = _cut(data, start, stop, 0, NO_LIMIT)
        self._values += values
        return nexts[-1] if nexts else start

    def append(self, value: Buffer) -> None:
        self._values.append(bytes(value))

    def tolist(self) -> list[bytes]:
        return self._values


class ListColumnBuilder:
    """A `ColumnBuilder` over lists."""

    __slots__ = ("_inner", "_nexts", "_positions", "_values")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._values: list[bytes] = []
        self._positions: list[int] = []
        self._nexts: list[int] = []
        self._inner: list[int] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def decode_run(self, data: Buffer, start: int, stop: int, base: int = 0, max_entry: int = NO_LIMIT) -> int:
        _check_range(data, start, stop, base)
        values, nexts = _cut(data, start, stop, base, max_entry)
        if not values:
            return start
        self._values += values
        self._positions.append(base + start)
        self._positions += nexts[:-1]
        self._nexts += nexts
        if self._inner is not None:
            self._inner += [0] * len(values)
        return nexts[-1] - base

    def append(self, value: Buffer, position: int, next_position: int, inner_index: int = 0) -> None:
        if inner_index and self._inner is None:
            self._inner = [0] * len(self._values)
        self._values.append(bytes(value))
        self._positions.append(position)
        self._nexts.append(next_position)
        if self._inner is not None:
            self._inner.append(inner_index)

    def add_wrapper(self, values: ListPayloadBuilder, position: int, next_position: int) -> None:
        count = len(values)
        if not count:
            return
        if self._inner is None and count > 1:
            self._inner = [0] * len(self._values)
        if self._inner is not None:
            self._inner += range(count)
        self._values += values.tolist()
        self._positions += [position] * count
        self._nexts += [position] * (count - 1)
        self._nexts.append(next_position)

    def take(self) -> PlainColumns:
        taken = PlainColumns(self._values, self._positions, self._nexts, self._inner)
        self._begin()
        return taken


PayloadBuilder, ColumnBuilder, RecordBuilder = ListPayloadBuilder, ListColumnBuilder, ListRecordBuilder
Appender = PythonAppender
BatchBase = PythonBatch
BufferBase = PythonBuffer


def check_run(data: Buffer, start: int, stop: int, max_entry: int = NO_LIMIT) -> tuple[int, int]:
    _check_range(data, start, stop)
    _, nexts = _cut(data, start, stop, 0, max_entry)
    return (nexts[-1], len(nexts)) if nexts else (start, 0)


def encode_run(values: Sequence[bytes | None], attributes: int = 0) -> bytes:
    if not 0 <= attributes <= 0xFF:
        raise OverflowError("a number does not fit into its field")
    rows: list[Any] = values if isinstance(values, list) else list(values)
    parts: list[bytes] = [b""] * (2 * len(rows))
    try:
        parts[0::2] = map(ENTRY.pack, map((6).__add__, map(len, rows)), repeat(_PLAIN | attributes), map(crc32, rows))
    except struct.error:
        raise OverflowError("a number does not fit into its field") from None
    parts[1::2] = rows
    return b"".join(parts)


def encode_frame(
    head: bytes, heads: Sequence[bytes], runs: Sequence[Sequence[Any]], tail: bytes, max_run: int
) -> bytes | None:
    if len(heads) != len(runs):
        raise ValueError(f"{len(heads)} heads for {len(runs)} runs")
    payloads = [[record[0] if isinstance(record, tuple) else record for record in run] for run in runs]
    if not all(isinstance(value, bytes) for values in payloads for value in values):
        raise TypeError("a payload is not bytes")
    parts = [head]
    for own, values in zip(heads, payloads, strict=True):
        encoded = encode_run(values)
        if len(encoded) > max_run:
            return None
        parts += own, len(encoded).to_bytes(4, "big", signed=True), encoded
    size = sum(map(len, parts))
    return b"".join([size.to_bytes(4, "big", signed=True), *parts, tail])


def fit(
    values: Sequence[object],
    start: int,
    stop: int,
    max_bytes: int,
    row_bytes: int,
    max_row: int,
    nullable: bool = False,
) -> tuple[int, int]:
    if not 0 <= start <= stop <= len(values):
        raise ValueError(f"{start}:{stop} does not lie within {len(values)} values")
    rows: list[Any] = list(values[start:stop])
    if set(map(type, rows)) != {bytes}:
        if nullable:
            rows = [b"" if row is None else row for row in rows]
        rows = rows[: next((i for i, row in enumerate(rows) if type(row) is not bytes), len(rows))]
    lengths = list(map(len, rows))
    if lengths and max(lengths) > max_row:
        del lengths[next(i for i, length in enumerate(lengths) if length > max_row) :]
    ends = list(accumulate(lengths))
    count = bisect_right(range(len(ends)), max_bytes, key=lambda row: ends[row] + row_bytes * (row + 1))
    return start + count, ends[count - 1] if count else 0


def lz4_content(blocks: Sequence[tuple[Buffer, bool, int]], max_bytes: int) -> memoryview:
    import cramjam

    content, end = memoryview(bytearray(min(sum(most for _, _, most in blocks), max_bytes))), 0
    for data, is_stored, most in blocks:
        free = content[end : end + most]
        try:
            if is_stored:
                free[: len(data)] = data
                end += len(data)
            else:
                # Without a length cramjam takes the first 4 bytes for one, wherever the rest could be a block.
                end += cramjam.lz4.decompress_block_into(data, free, len(free))
        except (cramjam.DecompressionError, ValueError):
            raise (OverflowError("too many bytes") if len(free) < most else ValueError("bad data")) from None
    return content[:end].toreadonly()


def unpack(offsets: Buffer, data: Buffer, validity: Buffer | None = None) -> list[bytes | None]:
    view = memoryview(offsets)
    _check_view(view, "iql")  # the last is what some call 8 bytes
    _check_range(data, 0, 0)
    ends: list[int] = view.tolist()
    valid = None if validity is None else _check_validity(validity, max(0, len(ends) - 1))
    if any(not 0 <= a <= b <= len(data) for a, b in pairwise(ends)):
        raise ValueError("offsets do not ascend within their data")
    first = ends[0] if ends else 0
    data = bytes(memoryview(data)[first : ends[-1] if ends else 0])  # a slice of many may be of little
    values: list[bytes | None] = [data[a - first : b - first] for a, b in pairwise(ends)]
    return values if valid is None else [value if ok else None for value, ok in zip(values, valid, strict=True)]


def _check_validity(validity: Buffer, rows: int) -> bytes:
    _check_range(validity, 0, 0)
    if len(validity) != rows:
        raise ValueError(f"validity is for {len(validity)} rows, not {rows}")
    return bytes(validity)


_MAX_POSITION = (1 << 63) - 1


def _check_range(data: Buffer, start: int, stop: int, base: int = 0) -> None:
    """Raise the errors of the interface."""
    if type(data) is not bytes:
        _check_view(memoryview(data), "Bc")
    if not 0 <= start <= stop <= len(data):
        raise ValueError(f"{start}:{stop} does not lie within {len(data)} bytes of data")
    if not -1 << 63 <= base <= _MAX_POSITION - stop:
        raise OverflowError("a number does not fit into its field")


def _check_view(view: memoryview, formats: str) -> None:
    if view.format not in formats or view.ndim != 1 or (view.nbytes and not view.c_contiguous):
        raise BufferError(f"a contiguous buffer of format {' or '.join(formats)} is needed")
