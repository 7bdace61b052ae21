"""`Consumer.each`: a handler for every record, many at a time, ordered by key or partition, with contiguous commits."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import count
from random import random
from typing import Any

import anyio
from anyio.abc import TaskGroup

from odradek.batch import Batch
from odradek.client.consumer.dead_letters import FailedRecord, due_at, failed_attempts, send_dead_letter, send_to_retry
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.streams import Stream
from odradek.client.options import HandlerArguments
from odradek.core.backoff import Backoff
from odradek.core.fetch.keyed_queues import KeyedQueues
from odradek.core.fetch.progress import DeliveredSpan, PartitionProgress
from odradek.errors import ConfigError, CorruptMessage, OdradekError, Undelivered, Unsupported
from odradek.io.cancellation import is_cancelled
from odradek.io.notifier import Notifier
from odradek.types import Record, TopicPartition

__all__ = ["HANDLER", "HandlerPool"]

HANDLER = "a coroutine function that takes a record"

MAX_DELAY_S = 60.0
"""A record of a retry topic is looked at again after this time at the latest (s): clocks are set meanwhile."""

log = logging.getLogger("odradek.each")


class HandlerJob:
    """One record that waits for a handler or is being handled. Jobs are numbered in the order of delivery."""

    __slots__ = ("corrupt", "number", "record", "scope", "span", "started_at", "warned")

    def __init__(self, number: int, record: Record, span: DeliveredSpan, corrupt: CorruptMessage | None) -> None:
        self.number, self.record, self.span = number, record, span
        self.corrupt = corrupt
        """Why it could not be decoded (`corrupt="raw"`): no handler gets it."""
        self.scope: anyio.CancelScope
        self.started_at = 0.0
        self.warned = False

    @property
    def payload_bytes(self) -> int:
        return len(self.record.value or b"")


class HandlerPool:
    """One call of `Consumer.each`: takes records from the read-ahead and runs a bounded number of handlers.

    Args:
        handle: The user's coroutine function.
        options: The user's choices.
        fetcher: Delivers the records.
        progress: Returns a partition's progress; each record is delivered as a span of its own.
        changed: Notified whenever a handler has ended, and when records were dropped.
        read_ahead_bytes: Maximum payload that waits for a handler, on top of what the fetcher holds (bytes).
        limit_s: How long a rebalance waits for a handler: one that takes longer is named in the log (s).
    """

    def __init__(
        self,
        handle: Callable[[Record], Awaitable[object]],
        options: HandlerArguments,
        fetcher: Fetcher,
        progress: Callable[[TopicPartition], PartitionProgress],
        changed: Notifier,
        read_ahead_bytes: int,
        limit_s: float,
    ) -> None:
        self._handle, self._options, self._fetcher = handle, options, fetcher
        self._progress, self._changed = progress, changed
        self._read_ahead_bytes, self._limit_s = read_ahead_bytes, limit_s
        self._stream: Stream[Batch] = Stream(fetcher, Batch, observed=False)  # what is not due is put back
        self._queues: KeyedQueues[HandlerJob] = KeyedQueues()
        self._running: set[HandlerJob] = set()
        self._unfinished: dict[TopicPartition, HandlerJob] = {}  # by partition the first job that ended undone
        self._numbers = count()
        self._workers = 0
        self._waiting_bytes = 0
        self._waiting: Counter[TopicPartition] = Counter()
        self._paused: set[TopicPartition] = set()
        self._delayed: set[TopicPartition] = set()  # retry topics whose next record is not due yet
        self._retry_topics = list(options["retry_topics"])
        self._high_water = 2 * options["parallel"]
        self._failure: BaseException | None = None
        self._dead_letter_producer: Any = None
        self._tasks: TaskGroup

    # ---- what the consumer needs at a rebalance ----

    def busy(self, partitions: Collection[TopicPartition]) -> bool:
        """Return True while handlers run for one of these partitions."""
        return any(job.record.partition in partitions for job in self._running)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the waiting records of these partitions. Running handlers continue."""
        chosen = set(partitions)
        for job in self._queues.drop(lambda job: job.record.partition in chosen):
            self._waiting_bytes -= job.payload_bytes
            self._end_undone(job)
        for partition in chosen:
            del self._waiting[partition]
        self._paused -= chosen
        self._delayed -= chosen
        self._changed.notify()

    def cancel(self, partitions: Collection[TopicPartition]) -> None:
        """Cancel the handlers that run for these partitions."""
        for job in self._running:
            if job.record.partition in partitions:
                log.warning("cancelled because its partition is revoked: %s", self._describe(job))
                job.scope.cancel()

    def unfinished(self) -> list[Record]:
        """Return the first record of each partition that no handler finished, once `run` has ended."""
        return [job.record for job in self._unfinished.values() if job.span.counts]

    # ---- running ----

    async def run(self, dead_letter_producer: Callable[[], AbstractAsyncContextManager[Any]] | None) -> None:
        """Run until cancelled, or until a handler fails for good. Raises its error."""
        producer: AbstractAsyncContextManager[Any] = nullcontext()
        if self._options["dead_letter"] is not None or self._retry_topics:
            if dead_letter_producer is None:
                raise ConfigError(
                    "dead_letter and retry_topics need a consumer that was made with dead_letter_producer"
                )
            producer = dead_letter_producer()
        try:
            async with producer as self._dead_letter_producer, anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._name_slow_handlers)
                await self._dispatch()
        except Undelivered as error:  # sends that were cancelled: their records are not done, and are delivered again
            log.warning("dead letters and retries: %s", error)
            if isinstance(error.__cause__, anyio.get_cancelled_exc_class()):
                raise error.__cause__ from None
        finally:
            for reason, partitions in (("handlers", self._paused), ("delay", self._delayed)):
                self._fetcher.resume(reason, [p for p in partitions if p in self._fetcher.cursors])
            self.drop([*self._waiting])
        if self._failure is not None:
            raise self._failure

    async def _dispatch(self) -> None:
        try:
            await self._dispatch_loop()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the pool with `error`, which is not raised as a group of exceptions."""
        self._failure = self._failure or error
        self._tasks.cancel_scope.cancel()

    async def _dispatch_loop(self) -> None:
        """Take batches from the read-ahead while fewer than `read_ahead_bytes` wait for a handler."""
        while True:
            version = self._changed.version
            if self._waiting_bytes >= self._read_ahead_bytes:
                await self._changed.wait(version)
                continue
            batch = await self._stream.next_batch(self._high_water)
            if batch is not None and (due := self._due(batch)) is not None:
                self._enqueue(due)

    def _due(self, batch: Batch) -> Batch | None:
        """Return the part of a batch that is due: all of it, unless it is of a retry topic. The rest is put back, and
        its partition is paused until then; all others continue."""
        if batch.partition.topic not in self._retry_topics:
            return batch
        now_ms = time.time() * 1000
        for row, record in enumerate(batch):
            if (wait_ms := due_at(record) - now_ms) > 0:
                self._fetcher.put_back(batch.partition, batch.columns, len(batch) - row)
                self._fetcher.pause("delay", [batch.partition])
                self._delayed.add(batch.partition)
                self._tasks.start_soon(self._continue_later, batch.partition, wait_ms / 1000)
                return Batch(batch.partition, batch.columns.slice(0, row)) if row else None
        return batch

    async def _continue_later(self, partition: TopicPartition, seconds: float) -> None:
        """Look at the next record again; at once, if its partition was revoked and is back by then."""
        await anyio.sleep(min(seconds, MAX_DELAY_S))
        self._delayed.discard(partition)
        if partition in self._fetcher.cursors:
            self._fetcher.resume("delay", [partition])

    def _enqueue(self, batch: Batch) -> None:
        records = list(batch)
        try:
            keys = self._queue_keys(batch, records)
        except Exception:
            self._stream.put_back([batch])
            raise
        if self._fetcher.observation is not None:
            queue = self._fetcher.cursors[batch.partition].queue
            self._fetcher.observation.delivered(batch.partition, batch.columns, queue)
        progress = self._progress(batch.partition)
        for row, (key, record) in enumerate(zip(keys, records, strict=True)):
            span = progress.deliver(record.next_position)
            job = HandlerJob(next(self._numbers), record, span, batch.corrupt.get(row))
            self._queues.put(key, job)
            self._waiting_bytes += job.payload_bytes
        self._waiting[batch.partition] += len(records)
        if self._waiting[batch.partition] >= self._high_water:
            self._paused.add(batch.partition)
            self._fetcher.pause("handlers", [batch.partition])
        for _ in range(min(self._queues.ready, self._options["parallel"] - self._workers)):
            self._workers += 1
            self._tasks.start_soon(self._work)

    def _queue_keys(self, batch: Batch, records: Sequence[Record]) -> list[Hashable]:
        """Return for each record what must be handled one after the other."""
        if self._options["order"] == "partition":
            return [batch.partition] * len(records)
        if self._options["order"] == "none":
            return [object() for _ in records]
        if self._options["key"] is None and batch.columns.keys is None:
            raise Unsupported("each(order='key')", "records with keys (Kafka 0.8 and later), or key=lambda record: ...")
        key_of: Callable[[Record], Any] = self._options["key"] or (lambda record: record.key)
        keys = [None if row in batch.corrupt else key_of(record) for row, record in enumerate(records)]
        try:
            set(keys)
        except TypeError as error:
            raise TypeError(f"key must return something hashable: {error}") from None
        return [batch.partition if key is None else ("key", key) for key in keys]

    async def _work(self) -> None:
        """Handle records one after the other, while a key is ready."""
        try:
            while self._failure is None and (popped := self._queues.pop()) is not None:
                key, job = popped
                self._on_started(job)
                try:
                    await self._run_job(job)
                finally:
                    self._queues.finish(key)
                    self._changed.notify()
        finally:
            self._workers -= 1

    def _on_started(self, job: HandlerJob) -> None:
        partition = job.record.partition
        self._waiting[partition] -= 1
        self._waiting_bytes -= job.payload_bytes
        if partition in self._paused and self._waiting[partition] <= self._high_water // 2:
            self._paused.discard(partition)
            if partition in self._fetcher.cursors:
                self._fetcher.resume("handlers", [partition])

    async def _run_job(self, job: HandlerJob) -> None:
        """Handle one record and end its span: done, or undone."""
        job.started_at = anyio.current_time()
        self._running.add(job)
        try:
            with anyio.CancelScope() as job.scope:
                await self._call_with_retries(job)
                job.span.done()
        except (GeneratorExit, anyio.get_cancelled_exc_class()):
            raise
        except BaseException as error:  # also KeyboardInterrupt: raised from `run`, once, in the user's task
            self._fail(error)
        finally:
            self._running.discard(job)
            if job.span.open:
                self._end_undone(job)

    def _end_undone(self, job: HandlerJob) -> None:
        job.span.abandon()
        former = self._unfinished.get(job.record.partition)
        if former is None or job.number < former.number or not former.span.counts:
            self._unfinished[job.record.partition] = job

    async def _call_with_retries(self, job: HandlerJob) -> None:
        if job.corrupt is not None:
            await self._give_up(FailedRecord(job.record, job.corrupt, 0), job)
            return
        attempt, backoff = 0, self._options["backoff"] or Backoff()
        while True:
            error = await self._call(job)
            if error is None:
                return
            if attempt == self._options["retries"]:
                await self._retry_later_or_give_up(job, error, attempt + 1)
                return
            log.info("attempt %d failed: %s: %.1000r", attempt + 1, self._describe(job), error)
            await anyio.sleep(backoff.delay(attempt, random()))
            attempt += 1

    async def _call(self, job: HandlerJob) -> Exception | None:
        """Call the handler. Returns its error."""
        try:
            await self._handle(job.record)
        except TypeError as error:
            return error if _is_raised_below(error) else TypeError(f"handle must be {HANDLER}: {error}")
        except Exception as error:
            return error
        except anyio.get_cancelled_exc_class() as cancelled:
            if is_cancelled():
                raise
            failure = OdradekError(f"{self._describe(job)}: it awaited something that was cancelled elsewhere")
            failure.__cause__ = cancelled
            return failure
        return None

    async def _retry_later_or_give_up(self, job: HandlerJob, error: Exception, attempts: int) -> None:
        """Write a record to the next retry topic; to the dead letters if there is none."""
        record, topics = job.record, self._retry_topics
        is_retried = record.topic in topics
        earlier = failed_attempts(record) if is_retried else 0
        failure = FailedRecord(record, error, earlier + attempts, is_retried)
        left = topics[topics.index(record.topic) + 1 :] if is_retried else topics
        if not left:
            await self._give_up(failure, job)
            return
        delay_s = self._options["retry_topics"][left[0]]
        log.info("sending to %s, due in %g s: %s: %.1000r", left[0], delay_s, self._describe(job), error)
        due_ms = int((time.time() + delay_s) * 1000)
        if not await send_to_retry(self._dead_letter_producer, left[0], failure, due_ms):
            log.warning("too large for %s: %s", left[0], self._describe(job))
            await self._give_up(failure, job)

    async def _give_up(self, failure: FailedRecord, job: HandlerJob) -> None:
        topic = self._options["dead_letter"]
        if topic is None:
            raise failure.error
        log.warning("sending to %s: %s: %.1000r", topic, self._describe(job), failure.error)
        await send_dead_letter(self._dead_letter_producer, topic, failure)

    async def _name_slow_handlers(self) -> None:
        """Log the handlers that a rebalance would cancel."""
        while True:
            await anyio.sleep(self._limit_s / 4)
            started_before = anyio.current_time() - 0.8 * self._limit_s
            for job in [job for job in self._running if job.started_at < started_before and not job.warned]:
                job.warned = True
                log.warning("slow: %s; a rebalance waits at most %g s", self._describe(job), self._limit_s)

    def _describe(self, job: HandlerJob) -> str:
        name = getattr(self._handle, "__qualname__", repr(self._handle))
        seconds = anyio.current_time() - job.started_at
        return f"handler {name} has been running for {seconds:.1f} s on {job.record.partition}@{job.record.position}"


def _is_raised_below(error: Exception) -> bool:
    """Return True if the function that caught the error called the one that raised it: the error is not about the call
    itself."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None
