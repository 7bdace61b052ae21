"""Records in packed columns: a few buffers for any number of rows, which the engines encode as they are; and those of a
record batch that another broker has encoded."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple, cast, overload

from odradek.core.interfaces import ProducerRecord
from odradek.engine import HeaderColumns, PackedBytes
from odradek.errors import CorruptMessage
from odradek.types import NO_TIMESTAMP, Columns

__all__ = ["EncodedRecords", "PackedRecords", "WireSizes", "pack", "records_of"]

_HIGHEST_BYTE = 7 if sys.byteorder == "little" else 0


class PackedRecords(Sequence[ProducerRecord]):
    """Records with more than a value, or with a null for it, in columns. Reading a row makes a record; slices share the
    columns.

    Args:
        values: The values.
        keys: As many; None: no record has one.
        headers: As many; None: no record has any.
        timestamps: As many, 8 bytes each ('q'), none of them negative; None: no record has one.
    """

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(
        self,
        values: PackedBytes,
        keys: PackedBytes | None = None,
        headers: HeaderColumns | None = None,
        timestamps: memoryview | None = None,
    ) -> None:
        self.values, self.keys, self.timestamps = values, keys, timestamps
        self.headers = None if headers is None or headers.offsets[0] == headers.offsets[-1] else headers

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> ProducerRecord: ...
    @overload
    def __getitem__(self, index: slice) -> PackedRecords: ...
    def __getitem__(self, index: int | slice) -> ProducerRecord | PackedRecords:
        others: tuple[Any, ...] = self.keys, self.headers, self.timestamps
        value: Any = self.values[index]
        key, headers, timestamp = [None if column is None else column[index] for column in others]
        if isinstance(index, slice):
            return PackedRecords(value, key, headers, timestamp)
        return ProducerRecord(value, key, headers or (), timestamp)

    def __iter__(self) -> Iterator[ProducerRecord]:
        return map(
            ProducerRecord,
            self.values,
            repeat(None) if self.keys is None else self.keys,
            repeat(()) if self.headers is None else self.headers,
            repeat(None) if self.timestamps is None else self.timestamps,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} records>"


def pack(value: Any, key: Any = None, headers: Any = None, timestamp: Any = None) -> PackedBytes | PackedRecords | None:
    """Return columns as records that need no object each: values alone, or more than these.

    Args:
        value: The values.
        key: As many, or None.
        headers: As many, or None.
        timestamp: As many, ms since the epoch or -1 where there is none, or None.

    Returns:
        None: A column is not packed, or a timestamp is negative, -1 being no exception unless all are: each record has
        to be looked at.
    """
    is_packed = isinstance(value, PackedBytes) and isinstance(key, PackedBytes | None)
    if not (is_packed and isinstance(headers, HeaderColumns | None) and isinstance(timestamp, memoryview | None)):
        return None
    if timestamp is not None and not (bytes_of := timestamp.tobytes())[_HIGHEST_BYTE::8].isascii():
        if bytes_of.count(0xFF) < len(bytes_of):
            return None
        timestamp = None
    if key is not None and key.null_count == len(key):
        key = None
    records = PackedRecords(value, key, headers, timestamp)
    is_plain = key is None and records.headers is None and timestamp is None and not value.null_count
    return value if is_plain else records


def records_of(columns: Columns) -> Sequence[bytes | ProducerRecord]:
    """Return the records that were read, to be written: as `PackedBytes` or `PackedRecords`, if they can be packed."""
    packed = pack(columns.values, columns.keys, columns.headers, columns.timestamps)
    if packed is not None:
        return cast("Sequence[bytes | ProducerRecord]", packed)  # plain values, if they are packed, have no nulls
    rows: Iterable[tuple[Any, ...]] = zip(
        columns.values,
        repeat(None) if columns.keys is None else columns.keys,
        repeat(()) if columns.headers is None else columns.headers,
        repeat(NO_TIMESTAMP) if columns.timestamps is None else columns.timestamps,
        strict=False,
    )
    return [
        ProducerRecord(value, key, headers, None if time == NO_TIMESTAMP else time)
        for value, key, headers, time in rows
    ]


class EncodedRecords(Sequence[bytes | ProducerRecord]):
    """The records of a batch that was read and not decoded (`Columns.encoded`), to be passed on. Reading a row decodes
    all of them, which raises CorruptMessage if the batch is damaged inside.

    Args:
        columns: The batch, and nothing else.
    """

    __slots__ = ("batch", "columns")

    def __init__(self, columns: Columns) -> None:
        assert columns.encoded is not None
        self.columns, self.batch = columns, columns.encoded

    def __len__(self) -> int:
        return self.batch.records

    def __getitem__(self, index: Any) -> Any:
        return self.decoded()[index]

    def __iter__(self) -> Iterator[bytes | ProducerRecord]:
        return iter(self.decoded())

    def decoded(self) -> Sequence[bytes | ProducerRecord]:
        """Return the records."""
        return records_of(self.columns)

    def damage(self) -> CorruptMessage | None:
        """Return why the records cannot be decoded; None: they can."""
        try:
            self.decoded()
        except CorruptMessage as error:
            return error
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} records>"


class WireSizes(NamedTuple):
    """Sizes of rows of columns on the wire, as `ProtocolDriver.record_size` says it of records.

    Args:
        record: Bytes of a record that is only a value, beyond that value.
        key_byte: Bytes of a byte of a key: 0 where keys are not stored.
        header: Bytes of a header beyond its name and its value.
    """

    record: int
    key_byte: int
    header: int

    @classmethod
    def of(cls, record_size: Callable[[ProducerRecord], int]) -> WireSizes:
        """Return the sizes by this rule, which is linear."""
        record = record_size(ProducerRecord(b""))
        key_byte = record_size(ProducerRecord(b"", b"k")) - record
        return cls(record, key_byte, record_size(ProducerRecord(b"", None, (("", b""),))) - record)

    def payload(self, records: PackedRecords, start: int, stop: int) -> int:
        """Return the bytes of `records[start:stop]`, beyond `record` for each."""
        size = _span(records.values, start, stop)
        if self.key_byte and records.keys is not None:
            size += self.key_byte * _span(records.keys, start, stop)
        if (headers := records.headers) is not None:
            first, last = headers.offsets[start], headers.offsets[stop]
            size += self.header * (last - first)
            size += _span(headers.names, first, last) + _span(headers.values, first, last)
        return size

    def fit(
        self, records: PackedRecords, start: int, stop: int, max_bytes: int, row_bytes: int, max_row: int
    ) -> tuple[int, int]:
        """Count how many of `records[start:stop]` fit, like `Engine.fit`: into `max_bytes`, and into `max_row`
        together, so that no one of them can be longer."""
        limit = min(max_bytes, max_row + row_bytes)
        rows = range(start + 1, stop + 1)
        count = bisect_right(rows, limit, key=lambda end: self.payload(records, start, end) + row_bytes * (end - start))
        return start + count, self.payload(records, start, start + count)


def _span(strings: PackedBytes, start: int, stop: int) -> int:
    return int(strings.offsets[stop] - strings.offsets[start])
