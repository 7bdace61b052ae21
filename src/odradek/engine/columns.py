"""Decoded columns made of sequences: what the pure engine gives, and columns made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

from odradek.engine.packed import HeaderColumns, Headers, PackedBytes

__all__ = [
    "COLUMN_NAMES",
    "HEADER_BYTES",
    "PACKED_HEADER_BYTES",
    "PACKED_ROW_BYTES",
    "ROW_BYTES",
    "PlainColumns",
    "bytes_of",
]

ROW_BYTES = 120
"""Memory that CPython adds to a payload: a bytes object (33), two ints (2 x 28..32) and three pointers in lists."""

COLUMN_BYTES = 48
"""Memory that each further column adds to a row of lists: an object and a pointer to it."""

PACKED_ROW_BYTES = 24
"""Memory that packed columns add to a payload: an offset, two positions and an inner index."""

PACKED_COLUMN_BYTES = 9
"""Memory that each further column adds to a packed row: an offset or integer, and a byte for its validity or type."""

HEADER_BYTES = 160
"""Memory that CPython adds to the name and the value of a header: a tuple, a string and a bytes object."""

PACKED_HEADER_BYTES = 9
"""Memory that packed columns add to the name and the value of a header: two offsets, and a byte for its validity."""

_ABSENT = {
    "values": None,
    "positions": 0,
    "next_positions": 0,
    "inner_indexes": 0,
    "keys": None,
    "headers": (),
    "timestamps": -1,
    "timestamp_types": -1,
}
"""Value of each column in a row of a part that does not have the column."""

COLUMN_NAMES = tuple(_ABSENT)


class PlainColumns:
    """A `DecodedColumns` over sequences of one length; None: there is no such column."""

    __slots__ = COLUMN_NAMES

    def __init__(
        self,
        values: Sequence[bytes | None],
        positions: Sequence[int],
        next_positions: Sequence[int],
        inner_indexes: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        timestamps: Sequence[int] | None = None,
        timestamp_types: Sequence[int] | None = None,
    ) -> None:
        self.values, self.positions, self.next_positions = values, positions, next_positions
        self.inner_indexes, self.keys, self.headers = inner_indexes, keys, headers
        self.timestamps, self.timestamp_types = timestamps, timestamp_types

    def __len__(self) -> int:
        return len(self.values)

    @property
    def payload_bytes(self) -> int:
        size = bytes_of(self.values)
        if self.keys is not None:
            size += bytes_of(self.keys)
        return size if self.headers is None else size + _header_bytes(self.headers)

    @property
    def is_wide(self) -> bool:
        return any(isinstance(each, PackedBytes) and each.offsets.itemsize == 8 for each in (self.values, self.keys))

    @property
    def memory_bytes(self) -> int:
        optional = (self.keys is not None) + (self.headers is not None) + (self.timestamps is not None)
        if isinstance(self.values, PackedBytes):
            row_bytes, header_bytes = PACKED_ROW_BYTES + optional * PACKED_COLUMN_BYTES, PACKED_HEADER_BYTES
        else:
            row_bytes, header_bytes = ROW_BYTES + optional * COLUMN_BYTES, HEADER_BYTES
        memory = self.payload_bytes + row_bytes * len(self)
        return memory if self.headers is None else memory + header_bytes * _header_count(self.headers)

    def value_list(self) -> list[bytes | None]:
        values = self.values
        if isinstance(values, PackedBytes):
            return values.tolist()
        return values if isinstance(values, list) else list(values)

    def slice(self, start: int, stop: int) -> PlainColumns:
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"{start}:{stop} does not lie within {len(self)} rows")
        return self.map(itemgetter(slice(start, stop)))

    def map(self, change: Callable[[Sequence[Any]], Sequence[Any]]) -> PlainColumns:
        """Return these columns, each of them changed."""
        columns = (getattr(self, name) for name in COLUMN_NAMES)
        changed: list[Any] = [None if column is None else change(column) for column in columns]
        return PlainColumns(*changed)

    @staticmethod
    def concat(parts: Sequence[Any]) -> PlainColumns:
        return PlainColumns(*[_concat(parts, name) for name in COLUMN_NAMES])


def _concat(parts: Sequence[Any], name: str) -> Any:
    """Return one column of all parts; None if no part has it."""
    columns = [getattr(part, name) for part in parts]
    if parts and all(column is None for column in columns):
        return None
    rows = map(len, parts)
    filled = (repeat(_ABSENT[name], n) if each is None else each for each, n in zip(columns, rows, strict=True))
    return list(chain.from_iterable(filled))


def bytes_of(strings: Sequence[bytes | None]) -> int:
    """Return the bytes of all strings together."""
    return strings.payload_bytes if isinstance(strings, PackedBytes) else sum(map(len, filter(None, strings)))


def _header_count(headers: Sequence[Headers]) -> int:
    return headers.pairs if isinstance(headers, HeaderColumns) else sum(map(len, headers))


def _header_bytes(headers: Sequence[Headers]) -> int:
    if isinstance(headers, HeaderColumns):
        return headers.payload_bytes
    return sum(len(name.encode()) + len(value or b"") for row in headers for name, value in row)
