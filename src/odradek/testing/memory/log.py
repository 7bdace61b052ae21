"""Logs of an in-memory cluster, and the decoder that a client reads them with: records instead of bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from odradek.core.interfaces import DecoderOptions, ProducerRecord
from odradek.errors import CorruptMessage, MessageTooLarge, OdradekError
from odradek.types import Columns, Position, TimestampType, TopicPartition

__all__ = ["MemoryDecoder", "MemoryLog", "StoredRecord", "record_bytes"]

RECORD_OVERHEAD_BYTES = 10
"""Size of a record beyond its value, key and headers (bytes), so that empty ones count, too."""


def record_bytes(record: ProducerRecord) -> int:
    """Return what a record counts towards limits (bytes): value, key, headers, and a constant."""
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    return RECORD_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"") + headers


class StoredRecord(NamedTuple):
    """A record in a log.

    Args:
        partition: Where it is stored.
        offset: Its position there.
        record: What was sent.
        timestamp: The record's own, or the time of the cluster's clock when it was stored (ms since the epoch).
    """

    partition: TopicPartition
    offset: int
    record: ProducerRecord
    timestamp: int

    @property
    def value(self) -> bytes | None:
        """Payload of the record."""
        return self.record.value

    @property
    def key(self) -> bytes | None:
        """Key of the record."""
        return self.record.key

    @property
    def timestamp_type(self) -> TimestampType:
        """Origin of the timestamp: the producer (CREATE_TIME) or the broker (LOG_APPEND_TIME)."""
        return TimestampType.LOG_APPEND_TIME if self.record.timestamp is None else TimestampType.CREATE_TIME


class MemoryLog:
    """The records of one partition, by offset."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.records: list[StoredRecord] = []
        self.start = self.end = Position(0)

    def append(self, records: Sequence[ProducerRecord], now_ms: int) -> list[StoredRecord]:
        """Append records; return them as they are stored."""
        stored = [
            StoredRecord(self.partition, offset, record, now_ms if record.timestamp is None else record.timestamp)
            for offset, record in enumerate(records, self.end)
        ]
        self.records += stored
        self.end = Position(self.end + len(stored))
        return stored

    def read(self, position: int, max_bytes: int) -> list[StoredRecord]:
        """Return the records from a position on until they have `max_bytes`; the last may exceed it."""
        records: list[StoredRecord] = []
        for stored in self.records[position - self.start :]:
            if max_bytes <= 0:
                break
            records.append(stored)
            max_bytes -= record_bytes(stored.record)
        return records

    def at_time(self, timestamp: int) -> Position:
        """Return the offset of the first record at or after a timestamp (ms); the end if none is."""
        return Position(next((stored.offset for stored in self.records if stored.timestamp >= timestamp), self.end))

    def newest_before(self, position: Position, count: int) -> list[Position]:
        """Return a position and the offsets before it, newest first, at most `count` together."""
        row = bisect_left(self.records, position, key=attrgetter("offset"))
        earlier = self.records[max(0, row - count + 1) : row]
        return [position, *(Position(stored.offset) for stored in reversed(earlier))][:count]

    def delete_before(self, position: int) -> None:
        """Drop the records before a position, as retention does."""
        start = min(max(self.start, position), self.end)
        del self.records[: start - self.start]
        self.start = Position(start)


class MemoryDecoder:
    """Implements `core.interfaces.LogDecoder` for records: a broker passes them to `accept`."""

    skipped = 0
    deferred_bytes = 0

    def __init__(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> None:
        self.partition = partition
        self._max_message_bytes = options.max_message_bytes
        self.reset(position)

    def reset(self, position: Position) -> None:
        """Forget everything not taken, and continue from `position`."""
        self.position = self.fetch_position = position
        self.error: OdradekError | None = None
        self._records: list[StoredRecord] = []

    @property
    def pending_bytes(self) -> int:
        """Memory held (bytes)."""
        return sum(record_bytes(stored.record) for stored in self._records)

    def feed(self, data: memoryview) -> None:
        """Raise NotImplementedError: an in-memory cluster has no bytes."""
        raise NotImplementedError("an in-memory cluster has records, not bytes")

    def decompress_deferred(self) -> None:
        """Do nothing: nothing is compressed here."""

    def accept(self, records: Sequence[StoredRecord]) -> None:
        """Accept the next records of the log, up to the first that is too large."""
        for stored in records:
            if self.error is not None:
                return
            if (size := record_bytes(stored.record)) > self._max_message_bytes:
                partition, limit = str(self.partition), self._max_message_bytes
                self.error = MessageTooLarge(partition, stored.offset, size, limit, "max_message_bytes")
                return
            self._records.append(stored)
            self.position = self.fetch_position = Position(stored.offset + 1)

    def take(self) -> Columns:
        """Return everything accepted since the last take, and forget it."""
        taken, self._records = self._records, []
        keys = [stored.key for stored in taken]
        headers = [tuple(stored.record.headers) for stored in taken]
        return Columns(
            [stored.value for stored in taken],
            [stored.offset for stored in taken],
            [stored.offset + 1 for stored in taken],
            keys=keys if any(key is not None for key in keys) else None,
            headers=headers if any(headers) else None,
            timestamps=[stored.timestamp for stored in taken],
            timestamp_types=[stored.timestamp_type for stored in taken],
        )

    def take_reports(self) -> list[CorruptMessage]:
        """Return nothing: no message is ever corrupt here."""
        return []
