"""Logs of an in-memory cluster, and the decoder that a client reads them with: records instead of bytes."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from odradek.core.interfaces import DecoderOptions, ProducerRecord, Stamp
from odradek.core.kafka.broker_errors import broker_error
from odradek.errors import CorruptMessage, LogTruncated, MessageTooLarge, OdradekError, OffsetOutOfRange
from odradek.types import Columns, Position, TimestampType, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["TOPIC_NAME", "MemoryDecoder", "MemoryLog", "StoredRecord", "columns_of", "compressed_bytes", "record_bytes"]

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

RECORD_OVERHEAD_BYTES = 10
"""Size of a record beyond its value, key and headers (bytes), so that empty ones count, too."""

REMEMBERED_BATCHES = 5
"""Batches of each producer with stamps by which a log recognises one that is sent again."""

MAX_REPORTS = 1000
"""Reports of corrupt records that a decoder keeps, as `core.interfaces.LogDecoder.take_reports` says."""


def record_bytes(record: ProducerRecord) -> int:
    """Return what a record counts towards limits (bytes): value, key, headers, and a constant."""
    headers = sum(len(name.encode()) + len(value or b"") for name, value in record.headers)
    return RECORD_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"") + headers


def compressed_bytes(records: Sequence[ProducerRecord]) -> int:
    """Return what a compressed batch counts towards limits (bytes): with any compression what zlib makes of it."""
    headers = [part for record in records for name, value in record.headers for part in (name.encode(), value or b"")]
    payload = [part for record in records for part in (bytes(RECORD_OVERHEAD_BYTES), record.key, record.value) if part]
    return len(zlib.compress(b"".join(payload + headers)))


NONE_CORRUPT: Mapping[int, CorruptMessage] = MappingProxyType({})


class StoredRecord(NamedTuple):
    """A record in a log.

    Args:
        partition: Where it is stored.
        offset: Its position there.
        record: The record as it was sent.
        timestamp: The record's own, or the time of the cluster's clock when it was stored (ms since the epoch).
        timestamp_type: Origin of the timestamp: the producer (CREATE_TIME) or the broker (LOG_APPEND_TIME).
    """

    partition: TopicPartition
    offset: int
    record: ProducerRecord
    timestamp: int
    timestamp_type: TimestampType = TimestampType.CREATE_TIME

    @property
    def value(self) -> bytes | None:
        """Payload of the record."""
        return self.record.value

    @property
    def key(self) -> bytes | None:
        """Key of the record."""
        return self.record.key


def columns_of(stored: Sequence[StoredRecord], corrupt: Mapping[int, CorruptMessage] = NONE_CORRUPT) -> Columns:
    """Return records as columns.

    Args:
        stored: The records, in order.
        corrupt: Row number -> error, of those that are damaged: they have nothing but their value.
    """
    keys = [None if row in corrupt else each.key for row, each in enumerate(stored)]
    headers = [() if row in corrupt else tuple(each.record.headers) for row, each in enumerate(stored)]
    return Columns(
        [(each.value or b"") if row in corrupt else each.value for row, each in enumerate(stored)],
        [each.offset for each in stored],
        [each.offset + 1 for each in stored],
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        timestamps=[each.timestamp for each in stored],
        timestamp_types=[each.timestamp_type for each in stored],
        corrupt=corrupt,
    )


class MemoryLog:
    """The records of one partition, by offset. The marker at the end of a transaction takes an offset, too."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.records: list[StoredRecord] = []
        self.start = self.end = Position(0)
        self.corrupt: dict[int, str] = {}
        """Damage of each record that a test has damaged, by offset."""
        self.truncations: list[Position] = []
        """The end that each truncation left. Their number is the leader epoch."""
        self.batches: dict[int, deque[tuple[Stamp, Position, int]]] = {}
        """The latest batches of each producer with stamps, by its id; where they are stored, and their timestamps."""
        self.open: dict[int, list[int]] = {}
        """The offsets of the records in each open transaction, by the id of its producer."""
        self.aborted: set[int] = set()
        """The offsets of records in transactions that were aborted."""

    @property
    def last_stable(self) -> Position:
        """The end of what `read_committed` consumers may read: the first record of the oldest open transaction."""
        first = min((offsets[0] for offsets in self.open.values()), default=self.end)
        return Position(max(self.start, first))

    def append(
        self,
        records: Sequence[ProducerRecord],
        now_ms: int,
        stamp: Stamp | None = None,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    ) -> list[StoredRecord]:
        """Append records; return them as they are stored. Those with the stamp of a transactional id are part of its
        transaction."""
        of_log = timestamp_type is TimestampType.LOG_APPEND_TIME
        times = [now_ms if of_log or record.timestamp is None else record.timestamp for record in records]
        stored = [
            StoredRecord(self.partition, offset, record, timestamp, timestamp_type)
            for offset, (record, timestamp) in enumerate(zip(records, times, strict=True), self.end)
        ]
        if stamp is not None:
            producer = stamp.producer.producer_id
            batch = stamp, self.end, max((each.timestamp for each in stored), default=now_ms)
            self.batches.setdefault(producer, deque(maxlen=REMEMBERED_BATCHES)).append(batch)
            if stamp.producer.transactional_id is not None:
                self.open.setdefault(producer, []).extend(each.offset for each in stored)
        self.records += stored
        self.end = Position(self.end + len(stored))
        return stored

    def stored_before(self, stamp: Stamp) -> Position | None:
        """Return where a batch is stored already; None: it is the next one of its producer.

        Raises:
            BrokerError: OUT_OF_ORDER_SEQUENCE_NUMBER: a batch before it is missing.
        """
        latest = self.batches.get(stamp.producer.producer_id, ())
        batches = [(known, position) for known, position, _ in latest if known.producer == stamp.producer]
        if (position := dict(batches).get(stamp)) is not None:
            return position
        if not latest and stamp.producer.transactional_id is None:
            return None  # a broker that does not know a producer takes any sequence for its first one
        if stamp.base_sequence != (batches[-1][0].following if batches else 0):
            raise broker_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, str(self.partition))
        return None

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Write the marker that ends the transaction of a producer."""
        offsets = self.open.pop(producer_id, [])
        if not committed:
            self.aborted.update(offsets)
        self.end = Position(self.end + 1)

    def row(self, offset: int) -> int:
        """Return the row of the first record from an offset on."""
        return bisect_left(self.records, offset, key=attrgetter("offset"))

    def has(self, offset: int) -> bool:
        """Return True if there is a record at an offset."""
        row = self.row(offset)
        return row < len(self.records) and self.records[row].offset == offset

    def read(
        self, position: int, max_bytes: int, *, read_committed: bool = False
    ) -> tuple[list[StoredRecord], Position]:
        """Return the records from a position on until they have `max_bytes`, and the position after them; the last may
        exceed it. With `read_committed`, those of transactions are left out that are open or were aborted."""
        stop = self.last_stable if read_committed else self.end
        records: list[StoredRecord] = []
        for row in range(self.row(position), len(self.records)):
            stored = self.records[row]
            if stored.offset >= stop:
                break
            if max_bytes <= 0:
                return records, Position(stored.offset)
            if not (read_committed and stored.offset in self.aborted):
                records.append(stored)
            max_bytes -= record_bytes(stored.record)
        return records, Position(max(position, stop))

    def at_time(self, timestamp: int) -> Position:
        """Return the offset of the first record at or after a timestamp (ms); the end if none is."""
        return Position(next((stored.offset for stored in self.records if stored.timestamp >= timestamp), self.end))

    def newest_before(self, position: Position, count: int) -> list[Position]:
        """Return a position, the offsets of records before it, and the start: newest first, at most `count`."""
        row = self.row(position)
        earlier = [stored.offset for stored in reversed(self.records[max(0, row - count + 1) : row])]
        if self.start < min([position, *earlier]):
            earlier.append(self.start)
        return [position, *map(Position, earlier)][:count]

    def delete_before(self, position: int) -> None:
        """Drop the records before a position, as retention does."""
        self.start = Position(min(max(self.start, position), self.end))
        del self.records[: self.row(self.start)]

    def truncate(self, end: int) -> None:
        """Drop the records from an offset on, as the election of a leader does that never had them."""
        end = min(max(self.start, end), self.end)
        del self.records[self.row(end) :]
        self.corrupt = {offset: reason for offset, reason in self.corrupt.items() if offset < end}
        kept = {producer: [offset for offset in offsets if offset < end] for producer, offsets in self.open.items()}
        self.open = {producer: offsets for producer, offsets in kept.items() if offsets}
        self.aborted = {offset for offset in self.aborted if offset < end}
        for batches in self.batches.values():
            while batches and batches[-1][1] >= end:
                batches.pop()
        self.batches = {producer: batches for producer, batches in self.batches.items() if batches}
        self.end = Position(end)
        self.truncations.append(self.end)

    def error_at(self, position: Position, leader_epoch: int | None) -> OdradekError | None:
        """Return why a client cannot read on from a position, or None.

        Args:
            position: The offset that it asks for.
            leader_epoch: That of the last answer it had; None before the first.
        """
        if leader_epoch is not None and position > (end := min(self.truncations[leader_epoch:], default=position)):
            return LogTruncated(str(self.partition), position, end, leader_epoch)
        if self.start <= position <= self.end:
            return None
        context = f"{self.partition} at {position} (the log has {self.start} to {self.end})"
        return OffsetOutOfRange(1, "OFFSET_OUT_OF_RANGE", context)


class MemoryDecoder:
    """Implements `core.interfaces.LogDecoder` for records: a broker passes them to `accept`."""

    deferred_bytes = 0
    source: object = None

    def __init__(
        self, partition: TopicPartition, position: Position, options: DecoderOptions, topic_id: bytes | None = None
    ) -> None:
        self.partition, self.topic_id = partition, topic_id
        self.skipped = 0
        """See `LogDecoder.skipped`."""
        self.leader_epoch: int | None = None
        """That of the last answer; None before the first."""
        self._options, self.read_committed = options, options.read_committed
        self._reports: deque[CorruptMessage] = deque(maxlen=MAX_REPORTS)
        self.reset(position)

    def reset(self, position: Position) -> None:
        """Forget everything not taken, and continue from `position`."""
        self.position = self.fetch_position = position
        self.error: OdradekError | None = None
        self._records: list[StoredRecord] = []
        self._corrupt: dict[int, CorruptMessage] = {}

    @property
    def pending_bytes(self) -> int:
        """Memory held (bytes)."""
        return sum(record_bytes(stored.record) for stored in self._records)

    def feed(self, data: memoryview) -> None:
        """Raise NotImplementedError: an in-memory cluster has no bytes."""
        raise NotImplementedError("an in-memory cluster has records, not bytes")

    def decompress_deferred(self) -> None:
        """Do nothing: nothing is compressed here."""

    def accept(
        self, records: Sequence[StoredRecord], until: Position, corrupt: Mapping[int, str], leader_epoch: int
    ) -> None:
        """Accept the next records of the log, up to the first that cannot be handed over.

        Args:
            records: In order, from `fetch_position` on.
            until: The position after them, and after what is not handed over behind them.
            corrupt: The damage of damaged records, by offset.
            leader_epoch: That of the log.
        """
        self.leader_epoch = leader_epoch
        for stored in records:
            if stored.offset in corrupt:
                self._accept_corrupt(stored, corrupt[stored.offset])
            elif (size := record_bytes(stored.record)) > (limit := self._options.max_message_bytes):
                self.error = MessageTooLarge(str(self.partition), stored.offset, size, limit, "max_message_bytes")
            else:
                self._records.append(stored)
            if self.error is not None:
                return
            self.position = self.fetch_position = Position(stored.offset + 1)
        self.position = self.fetch_position = until

    def _accept_corrupt(self, stored: StoredRecord, reason: str) -> None:
        error = CorruptMessage(str(self.partition), stored.offset, reason)
        if self._options.corrupt == "raw":
            self._corrupt[len(self._records)] = error
            self._records.append(stored)
        elif self._options.corrupt == "skip":
            self.skipped += 1
            self._reports.append(error)
        else:
            self.error = error

    def take(self) -> Columns:
        """Return everything accepted since the last take, and forget it. A corrupt record has nothing but its value."""
        taken, self._records = self._records, []
        corrupt, self._corrupt = self._corrupt, {}
        return columns_of(taken, corrupt)

    def take_reports(self) -> list[CorruptMessage]:
        """Return the latest 1000 reports of records skipped since the last call, and forget them."""
        reports = list(self._reports)
        self._reports.clear()
        return reports
