"""Ranges of logs on their way from brokers or files to one task.

Each range is read by one worker from its start to its end. Where positions are bytes (0.7), it asks for nothing past
the end, and must land on that exactly; where they are offsets, batches are larger than ranges and offsets have holes,
so it reads until it is at the end or past it, and leaves out what is not in the range. Several workers read different
ranges at the same time, as many as there are fetches to be read ahead; rows of one range keep their order. The rows
that are read and not taken yet are bounded by `fetchBytes` times `fetchAhead`, in memory.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Generator
from random import random
from typing import NamedTuple, Self

import anyio
import anyio.to_thread

from odradek.client.consumer.positions import is_removed
from odradek.core.backoff import Backoff
from odradek.core.fetch.fetch_size import EntrySizes
from odradek.core.fetch.read_ahead import MIN_FETCH_BYTES, decaying_maximum
from odradek.core.interfaces import Extent, LogDecoder, PartitionFetch, ProtocolDriver
from odradek.errors import (
    SKIP_HINT,
    CorruptMessage,
    DeadlineError,
    LogTruncated,
    MessageTooLarge,
    OdradekError,
    OffsetOutOfRange,
    TopicRecreated,
)
from odradek.io.notifier import Notifier
from odradek.ranges.catalog import SHOWN_WITHIN_S
from odradek.ranges.planning import BoundaryMismatch, Loss, PositionGap, Range, TaskPlan, clip_to_logs
from odradek.ranges.process import connected
from odradek.ranges.request import ClusterConnection, ReadRequest, log_skipped
from odradek.types import Broker, Columns, KiB, Position, TopicPartition

__all__ = ["ColumnsChunk", "CompletedRange", "RangeReader", "read_task"]

log = logging.getLogger(__name__)

PAUSES = Backoff(first_s=0.05, max_s=1.0)

OPEN_INLINE = 8 * KiB
"""Compressed bytes up to which data is decompressed on the event loop: handing it to a thread takes longer."""

FIRST_BYTES = 4 * MIN_FETCH_BYTES
"""Size of the first fetch of a topic."""


class ColumnsChunk(NamedTuple):
    """Rows of one partition."""

    partition: TopicPartition
    rows: Columns


class CompletedRange(NamedTuple):
    """The range [start, end) of a partition was read to its end, and gave `rows` rows, all of them before this."""

    partition: TopicPartition
    start: int
    end: int
    rows: int


Chunk = ColumnsChunk | CompletedRange


class RangeReader:
    """Reads ranges of a cluster, begun in their order. An asynchronous context manager: it ends all reading."""

    def __init__(self, driver: ProtocolDriver, task: TaskPlan, request: ReadRequest) -> None:
        self.driver, self.request, self.topic_ids = driver, request, task.topic_ids
        self.held = 0  # bytes of memory, together with what fetches in flight are expected to become
        self._limit = request.fetch_bytes * request.fetch_ahead
        self._freed = Notifier()
        self.growth: dict[str, float] = {}  # of a topic from log to memory; falls slowly, as compression may vary
        self.offset_bytes: dict[str, float] = {}  # of a topic in the log, where positions are offsets; falls slowly
        self._ranges = iter(task.ranges)
        self._running = min(request.fetch_ahead, len(task.ranges))
        self._chunks: list[Chunk] = []
        self._waiting = 0  # bytes of memory of these chunks
        self._failure: Exception | None = None
        self._arrived = Notifier()

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        for _ in range(self._running):
            self._tasks.start_soon(self._work)
        return self

    async def __aexit__(self, *error: object) -> None:
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

    def deliver(self, chunk: Chunk, memory: int = 0) -> None:
        """Hand over rows, with the memory that was claimed for them, or the end of a range."""
        self._chunks.append(chunk)
        self._waiting += memory
        self._arrived.notify()

    async def take(self) -> list[Chunk]:
        """Return what arrived since the last call, waiting for something; nothing at the end.

        Raises the first error of a range, after everything that arrived before it.
        """
        while not self._chunks and self._running and self._failure is None:
            await self._arrived.wait(self._arrived.version)
        chunks, self._chunks = self._chunks, []
        self.correct(self._waiting, 0)
        self._waiting = 0
        if not chunks and self._failure is not None:
            raise self._failure
        return chunks

    async def claim(self, topic: str, left: int) -> tuple[int, int]:
        """Return the bytes to ask for, of those that are left, and the memory that is claimed for what they become, as
        soon as there is room. Until the expansion of a topic is known (gzip can make 1000 bytes of one), a task
        requests little, one fetch at a time. A claim larger than the limit is granted when nothing else is held.
        """
        while True:
            growth, maximum = self.growth.get(topic), min(self.request.fetch_bytes, left)
            if growth is None:
                size, memory = min(FIRST_BYTES, maximum), self._limit
            else:
                size = min(max(int(self._limit / growth), MIN_FETCH_BYTES), maximum)
                memory = int(size * growth)
            if not self.held or self.held + memory <= self._limit:
                self.held += memory
                return size, memory
            await self._freed.wait(self._freed.version)

    def correct(self, claimed: int, memory: int) -> None:
        """Replace a claim by the memory that is in use."""
        self.held += memory - claimed
        if memory < claimed:
            self._freed.notify()


class _RangeTask:
    """One range."""

    def __init__(self, reader: RangeReader, part: Range) -> None:
        self._reader, self._part, self._request = reader, part, reader.request
        self._start = part.start  # moved on where the log has lost its beginning
        self._rows = 0  # delivered since then
        self._exact = reader.driver.logs.unit.exact
        self._replica: int | None = None  # that the leader names instead of itself
        self._decoder: LogDecoder | None = None
        self._entries = EntrySizes()
        self._missing_since: float | None = None  # when brokers began to say that there is no such partition
        self._attempts = 0
        self._progress_at = anyio.current_time()

    async def run(self) -> None:
        """Raises BoundaryMismatch, CorruptMessage, MessageTooLarge, DataLoss, DeadlineError."""
        while (decoder := self._decoder) is None or decoder.fetch_position < self._part.end:
            if not await self._step():
                return
        if self._exact and decoder.position != self._part.end:
            raise BoundaryMismatch(str(self._part.partition), self._start, self._part.end, decoder.position)
        self._complete(self._part.end)

    def _complete(self, end: int) -> None:
        if self._start < end:
            self._reader.deliver(CompletedRange(self._part.partition, self._start, end, self._rows))
        self._rows = 0

    async def _step(self) -> bool:
        """Send one fetch. Return False when nothing more of the range will come, and the loss policy allows that."""
        broker = await self._broker()
        if self._is_recreated():  # maybe with fewer partitions
            return await self._on_recreated()
        if broker is None:
            if self._is_deleted:
                return self._lose_rest(Loss.GONE)
            await self._wait("", OdradekError("no registered broker has it"))
            return True
        self._missing_since = None
        api = self._reader.driver.broker(broker, purpose="fetch")
        if self._decoder is None:
            position = Position(self._start)
            self._decoder = api.decoder(self._part.partition, position, self._request.decoder_options(defer=True))
        decoder, begin = self._decoder, self._decoder.position
        size, claimed = await self._claim(self._part.end - decoder.fetch_position)
        fetch = PartitionFetch(decoder, self._entries.whole(size))
        failure: OdradekError | None = None
        try:
            await api.fetch([fetch])
        except OdradekError as error:
            if not error.retriable:
                raise
            failure = error
        self._entries.observe(fetch.next_entry_bytes)
        await self._hand_over(fetch, begin, claimed)
        if decoder.position > begin or fetch.received:
            self._attempts, self._progress_at = 0, anyio.current_time()
        if failure is not None:
            decoder.reset(decoder.position)  # the log may have been truncated meanwhile
            await self._wait(f"broker {broker.id}: ", failure)
        elif not fetch.received and not await self._skip_removed(broker, fetch):
            return await self._on_empty_response(broker, fetch)
        return True

    async def _claim(self, left: int) -> tuple[int, int]:
        """Return what `RangeReader.claim` does, for this much of the range."""
        topic = self._part.partition.topic
        if not self._exact:
            left = int(left * self._reader.offset_bytes.get(topic, FIRST_BYTES)) + MIN_FETCH_BYTES
        size, claimed = await self._reader.claim(topic, left)
        if not self._attempts:  # rows that are taken slowly do not use up the time for bytes to come
            self._progress_at = anyio.current_time()
        return size, claimed

    async def _hand_over(self, fetch: PartitionFetch, begin: int, claimed: int) -> None:
        """Deliver what was decoded from `begin` on, then raise what came in its way."""
        decoder = fetch.decoder
        if decoder.deferred_bytes > OPEN_INLINE:
            await anyio.to_thread.run_sync(fetch.decompress)  # a cancellation waits for it: the thread has the decoder
        elif decoder.deferred_bytes:
            fetch.decompress()
        rows = decoder.take()
        topic, size = self._part.partition.topic, decoder.position - begin
        if not self._exact:  # whole batches are read, and the range's end may be in the middle of one
            if size:
                offset_bytes = self._reader.offset_bytes
                offset_bytes[topic] = decaying_maximum(offset_bytes.get(topic), fetch.received / size)
            size = fetch.received
            rows = rows.slice(bisect_left(rows.positions, self._start), bisect_left(rows.positions, self._part.end))
        memory = rows.memory_bytes
        self._reader.correct(claimed, memory)
        if rows.values:
            growth = self._reader.growth
            growth[topic] = decaying_maximum(growth.get(topic), max(1.0, memory / max(size, KiB)))
            self._rows += len(rows.values)
            self._reader.deliver(ColumnsChunk(self._part.partition, rows), memory)
        log_skipped(decoder.take_reports())
        if not self._exact and decoder.fetch_position >= self._part.end:
            return  # damage behind the range does not matter
        if decoder.error is not None:
            raise decoder.error
        if isinstance(fetch.error, CorruptMessage):  # the decoder failed
            raise fetch.error

    def _is_recreated(self) -> bool:
        """Return True if there is another topic of this name than the one that the range is of."""
        topic = self._part.partition.topic
        planned, now = self._reader.topic_ids.get(topic), self._reader.driver.metadata.table.topic_id(topic)
        return planned is not None and now is not None and now.hex() != planned

    async def _on_recreated(self) -> bool:
        """Read the metadata again, because what this process knows may be older than the topic of the range. If it is
        not, the topic was made again since it was planned, and the rest is lost. Return what `_step` returns."""
        try:
            await self._reader.driver.metadata.refresh()
        except OdradekError as error:
            if not error.retriable:
                raise
            await self._wait("", error)
            return True
        return True if not self._is_recreated() else self._lose_rest(Loss.RECREATED)

    @property
    def _is_deleted(self) -> bool:
        """True if brokers have said for a while that the partition does not exist, as when a query is planned. In 0.7 a
        broker that is away takes its logs with it."""
        since = self._missing_since
        return since is not None and anyio.current_time() - since >= SHOWN_WITHIN_S

    def _lose_rest(self, loss: Loss) -> bool:
        """Lose the rest of the range with its topic. Return False: there is no more."""
        at, end = self._start if self._decoder is None else self._decoder.position, self._part.end
        self._request.check_loss([PositionGap(self._part.partition, loss, at, end, -1, -1, end)])
        self._complete(at)
        return False

    # ---- when nothing comes ----

    async def _broker(self) -> Broker | None:
        """Return the broker to read the log from, if there is one now."""
        metadata, partition = self._reader.driver.metadata, self._part.partition
        replica = metadata.table.brokers.get(-1 if self._replica is None else self._replica)
        if replica is None and metadata.table.leader(partition) is None:
            await self._refresh()
        return replica or metadata.table.leader(partition)

    async def _wait(self, who: str, error: OdradekError) -> None:
        deadline_s = self._request.poll_deadline_s
        if anyio.current_time() - self._progress_at >= deadline_s:
            raise DeadlineError(f"{self._where}: {who}{error}", deadline_s) from error
        if not self._attempts:
            log.warning("%s: %s%s; retrying", self._where, who, error)
        await anyio.sleep(PAUSES.delay(self._attempts, random()))
        self._attempts += 1
        if error.refresh_metadata:
            await self._refresh()

    async def _refresh(self) -> None:
        """Read the metadata of the topic again, unless partitions stay on their brokers: for the first time in a new
        process."""
        if self._reader.driver.logs.names_brokers:
            return
        metadata, partition = self._reader.driver.metadata, self._part.partition
        try:
            await metadata.table_for_topic(partition.topic)
            table = await metadata.refresh()
        except OdradekError as error:
            if not error.retriable:
                raise
            self._missing_since = None
            return
        if partition in table.partitions(partition.topic):
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = anyio.current_time()

    @property
    def _where(self) -> str:
        position = self._start if self._decoder is None else self._decoder.position
        return f"{self._part.partition}: reading at {position} of [{self._part.start}, {self._part.end})"

    async def _on_empty_response(self, broker: Broker, fetch: PartitionFetch) -> bool:
        """Handle an empty response: the log has lost records since the query was planned, or its broker does not show
        them yet. Return what `_step` returns."""
        decoder, error = fetch.decoder, fetch.error
        if isinstance(error, TopicRecreated):  # noticed where brokers have ids, and fetches name topics (2.8 to 3.0)
            return self._lose_rest(Loss.RECREATED)
        trouble = error or OdradekError("it sends nothing of what the log has")
        if not self._exact and (error is None or error.retriable or error.refresh_metadata):
            self._replica = fetch.preferred_replica  # or read again who leads the partition
            if self._replica is None or error is not None:
                await self._wait(f"broker {broker.id}: ", trouble)
                if error is None:
                    await self._refresh()  # the topic may have been made again
            return True
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
        gap = await self._gap(decoder.position, error)
        if gap is None:
            await self._wait(f"broker {broker.id}: ", trouble)
            return True
        self._request.check_loss([gap])
        self._complete(gap.start)
        self._start, self._decoder = gap.resumed, None
        return gap.resumed < self._part.end

    async def _skip_removed(self, broker: Broker, fetch: PartitionFetch) -> bool:
        """Move to the end of the range if compaction has removed the rest of it. Return True if so."""
        api = self._reader.driver.broker(broker, purpose="fetch")
        if not await is_removed(api, fetch, self._part.end, self._request.decoder_options()):
            return False
        fetch.decoder.reset(Position(self._part.end))
        return True

    async def _gap(self, position: int, error: OdradekError | None) -> PositionGap | None:
        """Return the loss that the broker's extents show, or None if they show none."""
        partition, extents = self._part.partition, dict[TopicPartition, Extent]()
        if error is None or not error.refresh_metadata:  # the broker has the partition
            try:
                logs, committed = self._reader.driver.logs, self._request.read_committed
                if not (extents := await logs.extents([partition], read_committed=committed)):
                    return None
                if committed and extents[partition].latest < self._part.end:  # an open transaction is no loss
                    extents = await logs.extents([partition]) or extents
            except OdradekError as failure:
                if not failure.retriable:
                    raise
                return None
        start, end = {partition: Position(position)}, {partition: Position(self._part.end)}
        return next(iter(clip_to_logs(start, end, extents)[1]), None)


# ---- one task ------------------------------------------------------------------------------------------------


def read_task(task: TaskPlan, request: ReadRequest) -> Generator[Chunk, None, None]:
    """Yield the rows of a task's ranges, and each range when it was read to its end.

    Raises OdradekError or OSError if a range cannot be read as it was planned.
    """
    try:
        if isinstance(request.where, ClusterConnection):
            with (
                connected(request.where, request.poll_deadline_s) as (portal, cluster),
                portal.wrap_async_context_manager(RangeReader(cluster.driver, task, request)) as reader,
            ):
                while chunks := portal.call(reader.take):
                    yield from chunks
            return
        from odradek.ranges.directories import read_files

        for part in task.ranges:
            topic_id = task.topic_ids.get(part.partition.topic)
            yield from read_files(part, task.paths[part.partition], request, topic_id)
    except CorruptMessage as error:
        if error.hint == SKIP_HINT:  # with the option as users know it, if one helps
            error.hint = request.names.corrupt
        raise
    except MessageTooLarge as error:
        name = request.names.max_message_bytes
        raise MessageTooLarge(error.partition, error.position, error.size, error.limit, name) from None
