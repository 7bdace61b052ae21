"""Record batches that stay encoded until their records are asked for (kafka-specification.md 3.3).

A program that passes records on has no use for them one by one: the bytes of a batch are checked by their CRC, and are
sent to another log as they are, with a new producer and a new sequence (`encode.passed_on`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

from odradek import engine
from odradek.engine import DecodedColumns, Headers
from odradek.engine.columns import PlainColumns
from odradek.errors import CorruptMessage
from odradek.types import EncodedBatch, TopicPartition
from odradek.wire.compression import CompressionError
from odradek.wire.kafka.records.batch import ROW_BYTES, BatchHeader, batch_header, body_of

__all__ = ["MIN_BYTES", "EncodedColumns", "Part", "can_stay_encoded", "encoded_batch"]

MIN_BYTES = 32 << 10
"""Smaller batches are decoded: a request has one batch for each partition, and records of several that are joined
travel faster."""

Part: TypeAlias = EncodedBatch | DecodedColumns


def can_stay_encoded(batch: BatchHeader, first_offset: int, max_bytes: int) -> bool:
    """Return True if all records of a sound batch are wanted, and another log would take the batch as it is: no offsets
    were compacted away, and the times are those of the producer.

    Args:
        batch: Its header.
        first_offset: The offset of the first record that is wanted.
        max_bytes: Maximum size of a batch when decompressed: it cannot have more records than that.
    """
    return (
        12 + batch.length >= MIN_BYTES
        and batch.base_offset >= first_offset
        and batch.record_count == batch.last_offset_delta + 1
        and batch.record_count * ROW_BYTES <= max_bytes
        and not (batch.is_append_time or batch.is_control)
        and batch.delete_horizon is None
        and min(batch.base_timestamp, batch.max_timestamp) >= 0
    )


def encoded_batch(batch: BatchHeader, entry: memoryview) -> EncodedBatch:
    """Return a whole batch."""
    whole = entry.obj
    data = whole if type(whole) is bytes and len(whole) == len(entry) else bytes(entry)
    return EncodedBatch(data, batch.record_count, batch.base_offset, batch.compression, batch.max_timestamp)


class EncodedColumns:
    """A `DecodedColumns` over batches that are encoded, and rows that are not, in order.

    The number of rows, their positions, and what they take of memory are known. Everything else decodes all of it.

    Args:
        partition: Named in errors.
        parts: What it consists of.
        max_bytes: Maximum size of a batch when decompressed.

    Raises:
        CorruptMessage: A batch cannot be decoded: from any attribute that needs its records.
    """

    __slots__ = ("_columns", "_length", "_max_bytes", "_partition", "_parts")

    def __init__(self, partition: TopicPartition, parts: Sequence[Part], max_bytes: int) -> None:
        self._partition, self._parts, self._max_bytes = partition, parts, max_bytes
        self._length = sum(map(_length, parts))
        self._columns: DecodedColumns | None = None

    def __len__(self) -> int:
        return self._length

    @property
    def encoded(self) -> EncodedBatch | None:
        """The batch, if it is one that is encoded, and nothing else."""
        return self._parts[0] if len(self._parts) == 1 and isinstance(self._parts[0], EncodedBatch) else None

    @property
    def parts(self) -> list[DecodedColumns]:
        """The same rows: batches that are encoded, and between them rows that are not."""
        if self.encoded is not None:
            return [self]
        return [self._of([part]) if isinstance(part, EncodedBatch) else part for part in self._parts]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all values, keys and headers; those of batches as they are encoded."""
        return sum(len(part.data) if isinstance(part, EncodedBatch) else part.payload_bytes for part in self._parts)

    @property
    def memory_bytes(self) -> int:
        return sum(len(part.data) if isinstance(part, EncodedBatch) else part.memory_bytes for part in self._parts)

    @property
    def positions(self) -> Sequence[int]:
        return _joined([_positions(part) for part in self._parts])

    @property
    def next_positions(self) -> Sequence[int]:
        return _joined([_positions(part, 1) for part in self._parts])

    @property
    def inner_indexes(self) -> None:
        return None

    @property
    def is_wide(self) -> bool:
        return self._decoded.is_wide

    @property
    def values(self) -> Sequence[bytes | None]:
        return self._decoded.values

    @property
    def keys(self) -> Sequence[bytes | None] | None:
        return self._decoded.keys

    @property
    def headers(self) -> Sequence[Headers] | None:
        return self._decoded.headers

    @property
    def timestamps(self) -> Sequence[int] | None:
        return self._decoded.timestamps

    @property
    def timestamp_types(self) -> Sequence[int] | None:
        return self._decoded.timestamp_types

    def value_list(self) -> list[bytes | None]:
        return self._decoded.value_list()

    def slice(self, start: int, stop: int) -> DecodedColumns:
        """Return some of the rows; batches that are cut are decoded."""
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"{start}:{stop} does not lie within {len(self)} rows")
        parts: list[Part] = []
        first = 0
        for part in self._parts:
            begin, end = max(start - first, 0), min(stop - first, _length(part))
            if begin < end:
                whole = begin == 0 and end == _length(part)
                parts.append(part if whole else self._decode(part).slice(begin, end))
            first += _length(part)
        return self._of(parts)

    @staticmethod
    def concat(parts: Sequence[Any]) -> EncodedColumns:
        first = next(part for part in parts if isinstance(part, EncodedColumns))
        inner = (part._parts if isinstance(part, EncodedColumns) else [part] for part in parts)
        return first._of(list(chain.from_iterable(inner)))

    def _of(self, parts: Sequence[Part]) -> EncodedColumns:
        return EncodedColumns(self._partition, parts, self._max_bytes)

    @property
    def _decoded(self) -> DecodedColumns:
        if self._columns is None:
            decoded: list[Any] = [self._decode(part) for part in self._parts]
            kind: Any = type(decoded[0]) if len(set(map(type, decoded))) == 1 else PlainColumns
            self._columns = decoded[0] if len(decoded) == 1 else kind.concat(decoded)
        return self._columns

    def _decode(self, part: Part) -> DecodedColumns:
        if not isinstance(part, EncodedBatch):
            return part
        batch, rows = batch_header(memoryview(part.data)), engine.active.RecordBuilder()
        try:
            body = body_of(batch, memoryview(part.data), self._max_bytes)
        except CompressionError as error:
            raise self._corrupt(part, str(error)) from None
        first, time = batch.base_offset, batch.base_timestamp
        end, count, _ = rows.decode_batch(
            body, 0, len(body), batch.record_count, first, batch.last_offset_delta, first, time, False
        )
        if count < batch.record_count or end < len(body):
            raise self._corrupt(part, f"{count} of {batch.record_count} records can be read")
        return rows.take()

    def _corrupt(self, part: EncodedBatch, reason: str) -> CorruptMessage:
        return CorruptMessage(str(self._partition), part.first_offset, reason)


def _length(part: Part) -> int:
    return part.records if isinstance(part, EncodedBatch) else len(part)


def _positions(part: Part, behind: int = 0) -> Sequence[int]:
    if isinstance(part, EncodedBatch):
        return range(part.first_offset + behind, part.first_offset + part.records + behind)
    return part.next_positions if behind else part.positions


def _joined(columns: Sequence[Sequence[int]]) -> Sequence[int]:
    return columns[0] if len(columns) == 1 else list(chain.from_iterable(columns))
