"""The records of log directories: files are read in a thread, the partitions in turns, and some MiB ahead."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import NamedTuple, Self

import anyio.to_thread

from odradek.batch import Batch
from odradek.client.tasks import ShieldedTaskGroup
from odradek.core.fetch.read_range import ReadRange
from odradek.core.interfaces import Extent
from odradek.errors import Closed, CorruptMessage, OdradekError, OffsetOutOfRange, TopicRecreated
from odradek.io.notifier import Notifier
from odradek.mirror.stored import SourcePosition
from odradek.segments import KafkaLog, SegmentedLog, SegmentFile
from odradek.types import Columns, MiB, Position, TopicPartition

__all__ = ["ChosenLog", "DirectoryBatches", "PartitionReading", "WholeLog"]

log = logging.getLogger(__name__)

CHUNK = MiB
"""Decoded at a time (bytes)."""

READ_AHEAD = 8 * MiB
"""Memory of the rows that are decoded and not taken yet, after which no more are decoded (bytes)."""

AT_ONCE = 32
"""Partitions that are read in turns, each with an open file; the next begins when one of them has ended."""


class WholeLog(KafkaLog):
    """A log of 0.8 or later that is read to its last whole batch: no high watermark ends it, and transactions that have
    not ended count as aborted."""

    @property
    def high_watermark(self) -> None:
        return None

    @property
    def last_stable_offset(self) -> Position:
        return self.end

    def warn_of_open_transactions(self) -> None:
        """Say which transactions have not ended. Raises OSError."""
        for state in self.producers:
            if state.open_since is not None:
                what = "records of a transaction that has not ended are left out"
                text = '%s: %s: of producer %d, since offset %d (isolation = "read_uncommitted" copies them)'
                log.warning(text, self.partition, what, state.producer_id, state.open_since)


class ChosenLog(NamedTuple):
    """The copy of a partition that is read, and its extent."""

    files: SegmentedLog
    extent: Extent


class PartitionReading:
    """Reads the files of one partition. Not thread-safe, but threads may take turns.

    Args:
        chosen: Its log.
        start: Where reading begins; None: with the first record.
        end: Where it ends; None: with the log.
        read_committed: Leave out records of transactions that were not committed.
        over_gaps: Read on where a file of 0.7 is missing.
        keep_encoded: As for readers.
    """

    def __init__(
        self,
        chosen: ChosenLog,
        start: SourcePosition | None,
        end: int | None,
        *,
        read_committed: bool,
        over_gaps: bool,
        keep_encoded: str | None = None,
    ) -> None:
        self._files, self._extent = chosen
        self._read_committed, self._over_gaps, self._keep_encoded = read_committed, over_gaps, keep_encoded
        self.partition: TopicPartition = self._files.partition
        self.start = start or SourcePosition(self._files.start, 0, self._topic_id)
        """What is read first."""
        # At the end of the log there may be damage, which has to be met.
        self._end = None if end is None or end >= self._extent.latest else Position(end)
        self._at: int = self.start.position
        self._rows = self._read()

    @property
    def _topic_id(self) -> str | None:
        return self._extent.topic_id or None

    def next(self) -> Batch | None:
        """Return the next rows; None if there are no more. Raises OdradekError, and then does not go on."""
        try:
            columns = next(self._rows, None)
        except CorruptMessage as error:
            raise self._damage(error) from error
        except OSError as error:
            raise OdradekError(f"{self.partition} at {self._at}: {error}") from error
        return None if columns is None else Batch(self.partition, columns)

    def close(self) -> None:
        """Close its file."""
        self._rows.close()

    def after(self, columns: Columns) -> SourcePosition:
        """Return what comes after these rows."""
        last, at, inner = columns.positions[-1], columns.next_positions[-1], columns.inner_indexes
        return SourcePosition(at, inner[-1] + 1 if inner is not None and at == last else 0, self._topic_id)

    def _read(self) -> Generator[Columns, None, None]:
        self._check_start()
        first, skip, _ = self.start
        span = ReadRange(skip, self._end, 0)
        if span.ends_at(Position(first)):
            return
        for columns in self._decode(first):
            self._at = columns.next_positions[-1]
            rows = span.clip(columns, Position(first), Position(self._at))
            if len(rows):
                yield rows
            if span.ends_at(Position(self._at)):
                return

    def _check_start(self) -> None:
        """Raise OffsetOutOfRange if the log does not have what is to be read."""
        at, first, end = self.start.position, self._files.start, self._files.end
        if self._topic_id is not None and self.start.topic_id not in (None, self._topic_id):
            raise TopicRecreated(str(self.partition), at)
        if not first <= at <= end:
            context = f"{self.partition} at {at}: the log in its directory is from {first} to {end}"
            raise OffsetOutOfRange(1, "OFFSET_OUT_OF_RANGE", context)

    def _decode(self, first: int) -> Iterator[Columns]:
        if isinstance(self._files, WholeLog):
            if self._read_committed:
                self._files.warn_of_open_transactions()
            return self._files.columns(
                first, max_bytes=CHUNK, read_committed=self._read_committed, keep_encoded=self._keep_encoded
            )
        return self._decode_messages(first)

    def _decode_messages(self, at: int) -> Iterator[Columns]:
        """Yield the rows of 0.7: the segments must be adjacent, and all but the last end with a whole message."""
        last = self._files.segments[-1]
        for segment in self._files.segments:
            if at < segment.start:
                self._meet_gap(at, segment)
            at = max(at, segment.start)
            if at < segment.end:
                until = None if segment is last else segment.end
                yield from SegmentedLog(self.partition, (segment,)).columns(at, until, max_bytes=CHUNK)
                at = segment.end

    def _meet_gap(self, at: int, following: SegmentFile) -> None:
        error = CorruptMessage(
            str(self.partition), at, f"no file has this: the next one, {following.path}, begins later"
        )
        if not self._over_gaps:
            raise error
        log.warning("%s: reading on there", error)

    def _damage(self, error: CorruptMessage) -> CorruptMessage:
        """Return the error with the name of the file."""
        files = self._files.segments
        number = bisect_right([file.start for file in files], error.position)
        path = str(files[max(number - 1, 0)].path)
        reason = error.reason if path in error.reason else f"{path}: {error.reason}"
        return CorruptMessage(error.partition, error.position, reason)


class DirectoryBatches:
    """The records of several partitions, as `sources.SourceBatches`. Used as `async with`, once.

    Args:
        readings: Of each partition.
    """

    def __init__(self, readings: Sequence[PartitionReading]) -> None:
        self._readings = {reading.partition: reading for reading in readings}
        self._positions = {reading.partition: reading.start for reading in readings}
        self._ready: deque[Batch] = deque()
        self._ready_bytes = 0
        self._ended = False
        self._error: OdradekError | None = None  # raised once all that is ready was taken
        self._changed = Notifier()
        self._tasks = ShieldedTaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.start()
        self._tasks.spawn(self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._error = self._error or Closed("the block of these batches has ended")
        try:
            await self._tasks.stop()
        finally:
            self._ready.clear()
            for reading in self._readings.values():
                reading.close()

    async def next_batch(self) -> Batch | None:
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            await self._changed.wait(self._changed.version)
        batch = self._ready.popleft()
        self._ready_bytes -= batch.columns.memory_bytes
        self._positions[batch.partition] = self._readings[batch.partition].after(batch.columns)
        self._changed.notify()
        return batch

    def positions(self) -> dict[TopicPartition, SourcePosition]:
        return dict(self._positions)

    def lags(self) -> dict[TopicPartition, int]:
        return {}

    async def _read(self) -> None:
        try:
            await self._read_all()
        except OdradekError as error:
            self._error = self._error or error
        self._changed.notify()

    async def _read_all(self) -> None:
        waiting = iter(self._readings.values())
        active = deque(islice(waiting, AT_ONCE))
        while active:
            while self._ready_bytes >= READ_AHEAD:
                await self._changed.wait(self._changed.version)
            reading = active.popleft()
            batch = await anyio.to_thread.run_sync(reading.next)  # a cancellation waits for it
            if batch is None:
                active.extend(islice(waiting, 1))
                continue
            active.append(reading)
            self._ready.append(batch)
            self._ready_bytes += batch.columns.memory_bytes
            self._changed.notify()
        self._ended = True
