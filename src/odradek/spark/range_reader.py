"""Ranges of logs on their way from brokers to one task.

Each range is read by one worker from its start to its end. Where positions are bytes (0.7), it asks for nothing past
the end, and must land on that exactly; where they are offsets, batches are larger than ranges and offsets have holes,
so it reads until it is at the end or past it, and leaves out what is not in the range. Several workers read different
ranges at the same time, as many as there are fetches to be read ahead; rows of one range keep their order. What is read
and not taken yet is bounded by `fetchBytes` times `fetchAhead`, in memory.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from random import random
from types import TracebackType
from typing import NamedTuple, Self

import anyio
import anyio.to_thread

from odradek.core.backoff import Backoff
from odradek.core.fetch.read_ahead import MIN_FETCH_BYTES, smoothed_expansion
from odradek.core.interfaces import LogDecoder, PartitionFetch, ProtocolDriver
from odradek.errors import CorruptMessage, DeadlineError, LogTruncated, OdradekError, OffsetOutOfRange
from odradek.io.notifier import Notifier
from odradek.spark.brokers import extent_of
from odradek.spark.errors import check_range_end
from odradek.spark.gaps import Loss, PositionGap
from odradek.spark.options import SourceOptions
from odradek.spark.planning import Range
from odradek.spark.rules import decoder_options, explained, lost, skipped
from odradek.types import Broker, Columns, KiB, Position, TopicPartition

__all__ = ["ColumnsChunk", "CompletedRange", "RangeReader"]

log = logging.getLogger("odradek.spark")

PAUSES = Backoff(first_s=0.05, max_s=1.0)

REFRESH_S = 1.0
"""Time between two looks for a leader where nothing reports changes (s)."""

OPEN_INLINE = 8 * KiB
"""Compressed bytes up to which data is decompressed on the event loop: handing it to a thread takes longer."""

ANY_SIZE = 1 << 31
"""Stands for what is left of a range whose size in bytes is not known."""

FIRST_BYTES = 4 * MIN_FETCH_BYTES
"""Size of the first fetch of a topic."""


class ColumnsChunk(NamedTuple):
    """Rows of one partition."""

    partition: TopicPartition
    rows: Columns


class CompletedRange(NamedTuple):
    """The range [start, end) of a partition was read to its end, and gave so many rows, all of them before this."""

    partition: TopicPartition
    start: int
    end: int
    rows: int


class RangeReader:
    """Reads ranges; an asynchronous context manager, which ends all reading when it is left.

    Args:
        driver: The protocol driver of the cluster.
        ranges: What to read; they are begun in this order.
        options: Limits, and what to do about damage and loss.
    """

    def __init__(self, driver: ProtocolDriver, ranges: Sequence[Range], options: SourceOptions) -> None:
        self.driver, self.options = driver, options
        self.memory = MemoryBudget(options.fetch_bytes * options.fetch_ahead)
        self._growth: dict[str, float] = {}
        self._ranges = iter(ranges)
        self._running = min(options.fetch_ahead, len(ranges))
        self._chunks: list[ColumnsChunk | CompletedRange] = []
        self._held = 0
        self._failure: Exception | None = None
        self._arrived = Notifier()

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        for _ in range(self._running):
            self._tasks.start_soon(self._work)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def _work(self) -> None:
        try:
            for part in self._ranges:
                await _RangeTask(self, part).run()
        except Exception as error:
            self._failure = self._failure or error
        finally:
            self._running -= 1
            self._arrived.notify()

    def deliver(self, chunk: ColumnsChunk, memory: int) -> None:
        """Rows, with the memory that was claimed for them."""
        self._chunks.append(chunk)
        self._held += memory
        self._arrived.notify()

    def complete(self, part: CompletedRange) -> None:
        """A range was read to its end."""
        self._chunks.append(part)
        self._arrived.notify()

    async def take(self) -> list[ColumnsChunk | CompletedRange]:
        """Return what arrived since the last call, waiting for something; nothing at the end.

        Raises the first error of a range, after everything that arrived before it.
        """
        while not self._chunks and self._running and self._failure is None:
            version = self._arrived.version
            await self._arrived.wait(version)
        chunks, self._chunks = self._chunks, []
        self.memory.give_back(self._held)
        self._held = 0
        if not chunks and self._failure is not None:
            raise self._failure
        return chunks

    def learn(self, topic: str, size: int, memory: int) -> None:
        """Update the estimate of a topic's expansion. It falls slowly: compression may vary."""
        growth = max(1.0, memory / max(size, KiB))
        self._growth[topic] = smoothed_expansion(self._growth.get(topic), growth)

    def ask(self, topic: str, left: int) -> tuple[int, int]:
        """Return the bytes to ask for, of those that are left, and the memory to claim for what they become. As long as
        that is not known of a topic (gzip can make 1000 of a byte), little is asked for, and nothing else meanwhile.
        """
        growth = self._growth.get(topic)
        if growth is None:
            return min(FIRST_BYTES, self.options.fetch_bytes, left), self.memory.limit
        size = min(max(int(self.memory.limit / growth), MIN_FETCH_BYTES), self.options.fetch_bytes, left)
        return size, int(size * growth)


class MemoryBudget:
    """Bytes of memory that may be held. Claims larger than all there is are granted when nothing else is held."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._notifier = Notifier()

    def fits(self, size: int) -> bool:
        return not self.held or self.held + size <= self.limit

    async def changed(self) -> None:
        """Wait until something is given back."""
        await self._notifier.wait(self._notifier.version)

    def correct(self, claimed: int, size: int) -> None:
        """Replace a claim by the actual size."""
        self.held += size - claimed
        if size < claimed:
            self._notifier.notify()

    def give_back(self, size: int) -> None:
        if size:
            self.correct(size, 0)


class _RangeTask:
    """One range."""

    def __init__(self, reader: RangeReader, part: Range) -> None:
        self._reader, self._part, self._options = reader, part, reader.options
        self._start = part.start  # moved on where the log has lost its beginning
        self._rows = 0  # delivered since then
        self._exact = reader.options.unit.exact
        self._replica: int | None = None  # that the leader names instead of itself
        self._decoder: LogDecoder | None = None
        self._attempts = 0
        self._progress_at = anyio.current_time()

    async def run(self) -> None:
        """Read it.

        Raises:
            BoundaryMismatch: It does not end where a message does.
            CorruptMessage, MessageTooLarge: A message that cannot be read, unless it is left out or handed over raw.
            DataLoss: The log does not have all of it any more.
            DeadlineError: The broker has given nothing for too long.
        """
        while (decoder := self._decoder) is None or decoder.fetch_position < self._part.end:
            if not await self._step():
                return
        if self._exact:
            check_range_end(self._part.partition, self._start, self._part.end, decoder.position)
        self._complete(self._part.end)

    def _complete(self, end: int) -> None:
        if self._start < end:
            self._reader.complete(CompletedRange(self._part.partition, self._start, end, self._rows))
        self._rows = 0

    async def _step(self) -> bool:
        """One fetch. False: there is no more, and that is all right."""
        broker = await self._broker()
        api = self._reader.driver.broker(broker, purpose="fetch")
        if self._decoder is None:
            position = Position(self._start)
            self._decoder = api.decoder(self._part.partition, position, decoder_options(self._options, defer=True))
        decoder, begin = self._decoder, self._decoder.position
        size, claimed = await self._claim(self._part.end - decoder.fetch_position if self._exact else ANY_SIZE)
        fetch = PartitionFetch(decoder, size)
        failure: OdradekError | None = None
        try:
            await api.fetch([fetch])
        except OdradekError as error:
            if not error.retriable:
                raise
            failure = error
        await self._hand_over(fetch, begin, claimed)
        if decoder.position > begin or fetch.received:
            self._attempts, self._progress_at = 0, anyio.current_time()
        if failure is not None:
            decoder.reset(decoder.position)  # the log may have been truncated meanwhile
            await self._wait(broker, failure)
        elif not fetch.received:
            return await self._nothing(broker, fetch)
        return True

    async def _claim(self, left: int) -> tuple[int, int]:
        """What to ask for, once there is room for it."""
        topic = self._part.partition.topic
        while (asked := self._reader.ask(topic, left)) and not self._reader.memory.fits(asked[1]):
            await self._reader.memory.changed()
        self._reader.memory.held += asked[1]
        return asked

    async def _hand_over(self, fetch: PartitionFetch, begin: int, claimed: int) -> None:
        """Deliver what was decoded from `begin` on, then raise what came in its way."""
        decoder = fetch.decoder
        if decoder.deferred_bytes > OPEN_INLINE:
            with anyio.CancelScope(shield=True):  # the thread has the decoder
                await anyio.to_thread.run_sync(fetch.decompress)
        elif decoder.deferred_bytes:
            fetch.decompress()
        rows = decoder.take()
        size = decoder.position - begin if self._exact else fetch.received
        if not self._exact:
            rows = self._inside(rows)
        memory = rows.payload_bytes + rows.row_bytes * len(rows.values)
        self._reader.memory.correct(claimed, memory)
        if rows.values:
            self._reader.learn(self._part.partition.topic, size, memory)
            self._rows += len(rows.values)
            self._reader.deliver(ColumnsChunk(self._part.partition, rows), memory)
        skipped(decoder.take_reports())
        if decoder.error is not None:
            raise explained(decoder.error) from None
        if isinstance(fetch.error, CorruptMessage):  # the decoder failed
            raise fetch.error

    def _inside(self, rows: Columns) -> Columns:
        """Return the rows of the range: whole batches are read, and its end may be in the middle of one."""
        return rows.slice(bisect_left(rows.positions, self._start), bisect_left(rows.positions, self._part.end))

    # ---- when nothing comes ----

    async def _broker(self) -> Broker:
        """Return the broker to read the log from, as soon as there is one."""
        metadata = self._reader.driver.metadata
        if (replica := metadata.table.brokers.get(-1 if self._replica is None else self._replica)) is not None:
            return replica
        partition = self._part.partition
        while (broker := metadata.table.leader(partition)) is None:
            left = self._progress_at + self._options.poll_deadline_s - anyio.current_time()
            if left <= 0:
                raise self._too_long("no registered broker has it")
            if self._exact:
                with anyio.move_on_after(left):
                    await metadata.wait_for_newer(metadata.table.version)
                continue
            await self._refresh()
            if metadata.table.leader(partition) is None:
                await anyio.sleep(min(left, REFRESH_S))
        return broker

    async def _wait(self, broker: Broker, error: OdradekError) -> None:
        if anyio.current_time() - self._progress_at >= self._options.poll_deadline_s:
            raise self._too_long(f"broker {broker.id}: {error}") from error
        if not self._attempts:
            log.warning("%s: broker %d at %s: %s; retrying", self._where, broker.id, broker.address, error)
        await anyio.sleep(PAUSES.delay(self._attempts, random()))
        self._attempts += 1
        if error.refresh_metadata:
            await self._refresh()

    async def _refresh(self) -> None:
        """Read the metadata of the topic again, where nothing reports changes: for the first time in a new process."""
        if self._exact:
            return
        metadata = self._reader.driver.metadata
        try:
            await metadata.table_for_topic(self._part.partition.topic)
            await metadata.refresh()
        except OdradekError as error:
            if not error.retriable:
                raise

    def _too_long(self, why: str) -> DeadlineError:
        return DeadlineError(f"{self._where}: {why}", self._options.poll_deadline_s)

    @property
    def _where(self) -> str:
        position = self._start if self._decoder is None else self._decoder.position
        return f"{self._part.partition}: reading at {position} of [{self._part.start}, {self._part.end})"

    async def _nothing(self, broker: Broker, fetch: PartitionFetch) -> bool:
        """The log does not have what it had when the query was planned, or its broker does not show it (yet)."""
        decoder, error = fetch.decoder, fetch.error
        if not self._exact and (error is None or error.retriable or error.refresh_metadata):
            return await self._elsewhere(broker, fetch)
        if self._replica is not None:  # which may be behind its leader
            self._replica = None
            return True
        if error is not None and not (isinstance(error, OffsetOutOfRange) or error.refresh_metadata):
            raise error
        if isinstance(error, LogTruncated):  # rows were delivered that are not in the log: Spark reads the range again
            raise error
        in_message = decoder.fetch_position != decoder.position
        decoder.reset(decoder.position)
        if in_message and error is not None:
            return True  # the message boundary may still be there
        gap = await self._gap(broker, decoder.position, error)
        if gap is None:
            await self._wait(broker, error or OdradekError("it sends nothing of what the log has"))
            return True
        lost([gap], self._options)
        self._complete(gap.start)
        self._start, self._decoder = gap.resumed, None
        return gap.resumed < self._part.end

    async def _elsewhere(self, broker: Broker, fetch: PartitionFetch) -> bool:
        """Go to the replica that the leader prefers, or read again who leads the partition. True: try again."""
        self._replica = fetch.preferred_replica
        if self._replica is not None and fetch.error is None:
            return True
        await self._wait(broker, fetch.error or OdradekError("it sends nothing of what the log has"))
        return True

    async def _gap(self, broker: Broker, position: int, error: OdradekError | None) -> PositionGap | None:
        """What is lost; None when nothing is, as far as the broker says."""
        partition, end = self._part.partition, self._part.end
        if error is not None and error.refresh_metadata:  # the broker does not have the partition
            return PositionGap(partition, Loss.GONE, position, end, -1, -1, end)
        try:
            api = self._reader.driver.broker(broker, purpose="control")
            extent = await extent_of(api, partition, read_committed=self._options.read_committed)
        except OdradekError as failure:
            if not failure.retriable:
                raise
            return None
        earliest, latest, *_ = extent
        if position < earliest:
            behind = min(earliest, end)
            return PositionGap(partition, Loss.EXPIRED, position, behind, earliest, latest, behind)
        if latest < end:
            return PositionGap(partition, Loss.TRUNCATED, max(position, latest), end, earliest, latest, end)
        return None
