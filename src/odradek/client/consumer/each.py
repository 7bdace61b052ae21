"""`Consumer.each`: a handler for every record, many at a time, with order where it is wanted and contiguous commits."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from random import random
from typing import Any, Literal

import anyio
from anyio.abc import TaskGroup

from odradek.batch import Batch
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.streams import Stream
from odradek.core.backoff import Backoff
from odradek.core.fetch.keyed_queues import KeyedQueues
from odradek.core.fetch.progress import DeliveredSpan, PartitionProgress
from odradek.errors import ConfigError, Unsupported
from odradek.io.notifier import Notifier
from odradek.types import Record, TopicPartition

__all__ = ["HandlerOptions", "HandlerPool"]

log = logging.getLogger("odradek.each")


@dataclass(frozen=True, slots=True)
class HandlerOptions:
    """See `Consumer.each`."""

    parallel: int
    order: Literal["key", "partition", "none"]
    key: Callable[[Record], object] | None
    retries: int
    backoff: Backoff
    dead_letter: str | None

    def __post_init__(self) -> None:
        if self.parallel < 1 or self.retries < 0:
            raise ConfigError(f"each needs parallel >= 1 and retries >= 0, not {self.parallel} and {self.retries}")
        if self.order not in ("key", "partition", "none"):
            raise ConfigError(f"order is 'key', 'partition' or 'none', not {self.order!r}")


class HandlerJob:
    """One record on its way through a handler."""

    __slots__ = ("record", "scope", "since", "span", "warned")

    def __init__(self, record: Record, span: DeliveredSpan) -> None:
        self.record, self.span = record, span
        self.scope: anyio.CancelScope
        self.since = 0.0
        self.warned = False


class HandlerPool:
    """One call of `Consumer.each`.

    Args:
        handle: The user's coroutine function.
        options: What the user asked for.
        fetcher: Where records come from.
        progress: A partition's accounts; each record is handed out as a span of its own.
        marks: Rung whenever a handler has ended.
        read_ahead_bytes: Bytes of payload that may wait for a handler, beyond what the fetcher holds.
        limit_s: What a rebalance waits for a handler: one that takes longer is named in the log.
    """

    def __init__(
        self,
        handle: Callable[[Record], Awaitable[object]],
        options: HandlerOptions,
        fetcher: Fetcher,
        progress: Callable[[TopicPartition], PartitionProgress],
        marks: Notifier,
        read_ahead_bytes: int,
        limit_s: float,
    ) -> None:
        self._handle, self._options, self._fetcher = handle, options, fetcher
        self._progress, self._marks, self._ahead, self._limit_s = progress, marks, read_ahead_bytes, limit_s
        self._stream: Stream[Batch] = Stream(fetcher, Batch)
        self._lanes: KeyedQueues[HandlerJob] = KeyedQueues()
        self._running: set[HandlerJob] = set()
        self._workers = 0
        self._waiting_bytes = 0
        self._waiting: Counter[TopicPartition] = Counter()
        self._held: set[TopicPartition] = set()
        self._enough = 2 * options.parallel
        self._failure: Exception | None = None
        self._dead_letter_producer: Any = None
        self._tasks: TaskGroup

    # ---- what the consumer needs at a rebalance ----

    @property
    def busy(self) -> bool:
        """Handlers run."""
        return bool(self._running)

    def drop(self) -> None:
        """Forget what no handler has begun. What runs goes on."""
        for job in self._lanes.drop():
            job.span.abandon()
        self._waiting.clear()
        self._held.clear()
        self._waiting_bytes = 0
        self._marks.ring()

    def cancel(self) -> None:
        """Cancel the handlers that run."""
        for job in self._running:
            log.warning("handler cancelled, its partition is revoked: %s", self._name(job))
            job.scope.cancel()

    # ---- the work ----

    async def run(self, dead_letter_producer: Callable[[], AbstractAsyncContextManager[Any]] | None) -> None:
        """Until cancelled, or until a handler fails for good."""
        producer: AbstractAsyncContextManager[Any] = nullcontext()
        if self._options.dead_letter is not None:
            if dead_letter_producer is None:
                raise ConfigError("dead_letter needs a consumer that was made with dead_letter_producer")
            producer = dead_letter_producer()
        try:
            async with producer as self._dead_letter_producer, anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._watch)
                await self._deal_guarded()
        finally:
            self.drop()
        if self._failure is not None:
            raise self._failure

    async def _deal_guarded(self) -> None:
        try:
            await self._deal()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Errors end the whole, but not as a group of exceptions."""
        self._failure = self._failure or error
        self._tasks.cancel_scope.cancel()

    async def _deal(self) -> None:
        """Batches into lanes, as long as there is room."""
        while True:
            count = self._marks.count
            if self._waiting_bytes >= self._ahead:
                await self._marks.wait(count)
                continue
            batch = await self._stream.next_batch(self._enough)
            if batch is not None:
                self._spread(batch)

    def _spread(self, batch: Batch) -> None:
        progress = self._progress(batch.partition)
        if self._options.order == "key" and self._options.key is None and batch.columns.keys is None:
            raise Unsupported("each(order='key')", "records with keys (Kafka 0.8 and later), or key=lambda record: ...")
        for record in batch:
            self._lanes.put(self._lane(record), HandlerJob(record, progress.hand_out(record.next_position)))
            self._waiting_bytes += len(record.value or b"")
        self._waiting[batch.partition] += len(batch)
        if self._waiting[batch.partition] >= self._enough:
            self._held.add(batch.partition)
            self._fetcher.pause("handlers", [batch.partition])
        for _ in range(min(self._lanes.ready, self._options.parallel - self._workers)):
            self._workers += 1
            self._tasks.start_soon(self._work)

    def _lane(self, record: Record) -> Hashable:
        if self._options.order == "partition":
            return record.partition
        if self._options.order == "none":
            return object()
        key = record.key if self._options.key is None else self._options.key(record)
        return record.partition if key is None else ("key", key)

    async def _work(self) -> None:
        """One pair of hands: works while there is work."""
        try:
            while self._failure is None and (taken := self._lanes.take()) is not None:
                lane, job = taken
                self._begun(job)
                try:
                    await self._do(job)
                finally:
                    self._lanes.finish(lane)
                    self._marks.ring()
        finally:
            self._workers -= 1

    def _begun(self, job: HandlerJob) -> None:
        partition = job.record.partition
        self._waiting[partition] -= 1
        self._waiting_bytes -= len(job.record.value or b"")
        if partition in self._held and self._waiting[partition] <= self._enough // 2:
            self._held.discard(partition)
            if partition in self._fetcher.cursors:
                self._fetcher.resume("handlers", [partition])

    async def _do(self, job: HandlerJob) -> None:
        """Handle one record. Its span ends here, whatever happens."""
        job.since = anyio.current_time()
        self._running.add(job)
        try:
            with anyio.CancelScope() as job.scope:
                await self._try(job)
                job.span.done()
        except Exception as error:
            self._fail(error)
        finally:
            job.span.abandon()
            self._running.discard(job)

    async def _try(self, job: HandlerJob) -> None:
        attempt = 0
        while True:
            try:
                await self._handle(job.record)
                return
            except Exception as error:
                if attempt == self._options.retries:
                    await self._give_up(job, error)
                    return
                log.info("attempt %d of %s failed: %r", attempt + 1, self._name(job), error)
            await anyio.sleep(self._options.backoff.delay(attempt, random()))
            attempt += 1

    async def _give_up(self, job: HandlerJob, error: Exception) -> None:
        topic, record = self._options.dead_letter, job.record
        if topic is None:
            raise error
        log.warning("%s goes to %s: %r", self._name(job), topic, error)
        await self._dead_letter_producer.send(topic, record.value, key=record.key)

    async def _watch(self) -> None:
        """Name the handlers a rebalance would not wait for."""
        while True:
            await anyio.sleep(self._limit_s / 4)
            late = anyio.current_time() - 0.8 * self._limit_s
            for job in [job for job in self._running if job.since < late and not job.warned]:
                job.warned = True
                log.warning("slow: %s; a rebalance waits %g s at most", self._name(job), self._limit_s)

    def _name(self, job: HandlerJob) -> str:
        name = getattr(self._handle, "__qualname__", repr(self._handle))
        took = anyio.current_time() - job.since
        return f"{name} has had {job.record.partition} at {job.record.position} for {took:.1f} s"
