"""Inner parts of a producer: the buffer and the callers that wait for space in it, the senders, their outcomes, and the
time limits of records."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from copy import copy
from dataclasses import replace
from threading import get_ident

import anyio

from odradek.client.producer.lookups import ClusterLookups
from odradek.client.producer.observation import ProducerObservation
from odradek.client.producer.results import Ack, BufferWaiter, BufferWaiters, Failed, Failures, PendingSend, Purged
from odradek.client.producer.sender import Sender, SenderOptions, Senders
from odradek.client.tasks import ShieldedTaskGroup
from odradek.core.interfaces import (
    ProducerRecord,
    ProducerSequences,
    ProducerTransactions,
    ProtocolDriver,
)
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.batch import AccumulatorLimits, Effects, FlushWaiter, ProduceBatch
from odradek.core.produce.packed_records import EncodedRecords
from odradek.core.produce.partition_queue import TopicQueues
from odradek.core.produce.partitioners import Partitioner
from odradek.errors import (
    Closed,
    DeadlineError,
    DeliveryError,
    Fenced,
    NotWritten,
    OdradekError,
    OutcomeUnknown,
    TransactionAborted,
    UsageError,
)
from odradek.io.transport import on_asyncio
from odradek.types import Position, TopicPartition

__all__ = ["Dispatcher"]

NOT_STARTED = Closed("this producer is not open; use it inside `async with`")
PURGED = "purged"
"""Reason in the errors of records that `purge` drops."""
_new_ack = tuple.__new__  # without a Python function that names the fields
NO_TRANSACTION = UsageError("no transaction is open: send records inside `async with producer.transaction()`")


class Dispatcher:
    """Buffer, senders and background tasks of a producer. `start`, then anything else, then `stop`, in one task.

    Args:
        driver: The cluster.
        limits: For the accumulator.
        options: For the senders.
        partitioner: Returns an index, or None, for a record.
        transactions: The transactions that all records are part of, if any.
    """

    def __init__(
        self,
        driver: ProtocolDriver,
        limits: AccumulatorLimits,
        options: SenderOptions,
        partitioner: Partitioner,
        transactions: ProducerTransactions | None = None,
    ) -> None:
        self.transactions = transactions
        self.transaction_ends: anyio.Event | None = None
        """Set when the transaction that ends now has ended."""
        self.abort_transaction: Callable[[], None] | None = None
        """Begins to abort the open transaction, whose block has not ended."""
        self.failures = Failures(limits.buffer_bytes)
        self.written = self.failed = 0
        self.closed_reason: Exception | None = NOT_STARTED
        self.failure: Exception | None = None
        self.buffer_waiters = BufferWaiters()
        self._sequences: ProducerSequences | None = transactions
        if transactions is None and options.acks < 0 and not limits.reorder:
            self._sequences = driver.producer_sequences()
        if self._sequences is None and driver.refuses_batches and options.acks and not limits.reorder:
            limits = replace(limits, partition_in_flight=1)
        chance = random.Random().random
        self.accumulator = Accumulator(
            limits,
            partitioner,
            lambda count: int(chance() * count),  # `randrange` takes five times as long
            driver.record_size,
            driver.metadata.table,
            driver.refusal_policy(),
            self._sequences,
            numbers_by_broker=driver.logs.names_brokers,
        )
        self.observation: ProducerObservation | None = None
        """Told of batches, if the cluster has an observer."""
        if driver.observer is not None:
            self.observation = ProducerObservation(
                driver.observer, self.accumulator.live, limits.buffer_bytes, self.buffer_waiters
            )
        self.senders = Senders(self._new_sender)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread = 0
        """The thread in which it was started."""
        self.clock: Callable[[], float] = anyio.current_time
        """That of the event loop."""
        self.threads: anyio.CapacityLimiter
        """For compression: as many as there are cores."""
        self._driver, self._limits, self._options = driver, limits, options
        self._flushes: dict[FlushWaiter, anyio.Event] = {}
        self._dropping = ""  # why everything unsent is given up
        self._stopping = False
        self._background = ShieldedTaskGroup(self.fail)
        self._lookups = ClusterLookups(
            driver.metadata, self.accumulator, options.backoff, self, self._needed_topics, self._wake_all_senders
        )

    async def start(self) -> None:
        """Start the tasks. Raises Closed the second time, and what `ProducerTransactions.initialize` raises."""
        if self.closed_reason is not NOT_STARTED:
            raise Closed("this producer was already closed; create a new one")
        if on_asyncio():
            self.loop = asyncio.get_running_loop()
            self.clock = self.loop.time  # anyio's, without 0.7 us of asking which loop runs
        self.thread = get_ident()
        self.threads = anyio.CapacityLimiter(os.cpu_count() or 1)
        await self._background.start()
        self._lookups.start()
        self.spawn(self._expire)
        if self.transactions is not None:
            await self._start_transactions(self.transactions)
            return
        if self._sequences is not None and not self._sequences.ready:
            self._lookups.identify(self._sequences)
        self.closed_reason = None
        self._admit()

    async def stop(self, within: float) -> None:
        """Flush for at most `within` seconds, unaffected by scopes around it; then fail what remains."""
        self._refuse(Closed("the producer has exited"))
        self._stopping = True

        def fail_remaining(kind: type[BaseException] | None, *_: object) -> None:
            late = f"not delivered within the {within:g} s of exit_within"
            self._fail_remaining(late if kind is None else "the exit was cancelled")

        async with AsyncExitStack() as stack:  # every step, also when a native cancellation ends one of them
            stack.callback(self._report_end)
            stack.push_async_callback(self._background.stop)
            stack.push(fail_remaining)
            with anyio.move_on_after(within, shield=True):
                if self.abort_transaction is not None:
                    self.abort_transaction()
                if self.transaction_ends is not None:
                    await self.transaction_ends.wait()
                await self.flush()

    def _report_end(self) -> None:
        self.end_transaction()
        if self.observation is not None:
            self.observation.ended()

    def check_open(self) -> None:
        """Raise why no records are accepted, if so: Fenced if the producer has ended so, otherwise Closed; the error of
        its transaction if that is why; UsageError in another thread."""
        if isinstance(self.closed_reason, UsageError | TransactionAborted | Fenced):
            raise copy(self.closed_reason) from self.closed_reason.__cause__
        if self.closed_reason is not None:
            raise Closed(str(self.closed_reason)) from self.closed_reason.__cause__
        self._check_thread()

    def _check_thread(self) -> None:
        if get_ident() != self.thread:
            raise UsageError(
                "this producer was used in another thread than that of its `async with` block: call it there, for "
                "example through loop.call_soon_threadsafe or anyio.from_thread"
            )

    async def read_table(self) -> None:
        """Read the routing table (see `SenderHost`)."""
        await self._lookups.read_table()

    def spawn(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Start a background task (see `SenderHost`)."""
        self._background.spawn(task, *args)

    # ---- records in ----------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Let records join open batches at once, unless none are accepted, or some wait for space: those go first."""
        at_once = self.closed_reason is None and not self.buffer_waiters
        self.accumulator.live.admit(self._limits.buffer_bytes if at_once else 0)

    def add_topic(self, name: str, compression: str) -> TopicQueues:
        """Add a topic on its first record. Its records wait here until its partitions are known."""
        topic = self.accumulator.topic(name, compression)
        self._load(topic)
        return topic

    def _load(self, topic: TopicQueues) -> None:
        topic.loaded_at = self.clock()
        self._lookups.load_topic(topic)

    def _needed_topics(self) -> Collection[str]:
        """Return the topics of which there are partitions or records. Any other one is looked up again, and created,
        when there is a record."""
        if not self.buffer_waiters:
            self.accumulator.forget_missing()
        return self.accumulator.topics

    def try_append(
        self,
        topic: TopicQueues,
        size: int,
        record: bytes | ProducerRecord | EncodedRecords,
        partition: TopicPartition | None,
        send: PendingSend | None,
    ) -> bool:
        """Append a record, or the records of an encoded batch, if there is space and no other record waits for it.
        Batches that become due are sent soon."""
        if self.buffer_waiters:
            return False
        due = self.accumulator.append(topic, size, record, partition, send, self.clock())
        if due:
            self._wake_senders(due)
        if partition is not None:
            self.check_missing()
        return due is not None

    def check_missing(self) -> None:
        """Look up the partitions that records were sent to and that are missing in the routing table, if any are."""
        if self.accumulator.missing:
            self._lookups.check_missing()

    def append_run(
        self,
        topic: TopicQueues,
        values: Sequence[object],
        start: int,
        max_record: int,
        partition: TopicPartition | None,
        send: PendingSend,
    ) -> int:
        """Append what there is space for, and send what is due: see `Accumulator.append_run`."""
        if self.buffer_waiters:
            return start
        end, due = self.accumulator.append_run(topic, values, start, max_record, partition, send, self.clock())
        send.remaining += end - start
        for broker in due:
            self.senders[broker].drain()
        if partition is not None:
            self.check_missing()
        return end

    async def wait_for_space(self, waiter: BufferWaiter) -> None:
        """Wait until the record is appended, in its order. Cancellation: either it was, or nothing happened."""
        self.buffer_waiters.add(waiter)
        self._admit()
        try:
            with anyio.move_on_after(self._limits.deliver_within):
                await waiter.event.wait()
        finally:
            self.buffer_waiters.remove(waiter)
            self._append_waiting()  # the next one may fit where this one did not
        if waiter.error is not None:
            raise waiter.error
        if not waiter.appended:
            self.check_open()
            late = NotWritten(waiter.records(), f"no space in the buffer within {self._limits.deliver_within:g} s")
            self.fail_transaction(late)
            raise late

    def _append_waiting(self) -> None:
        """Append the records that wait for space, in their order, as long as they fit."""
        while (waiter := self.buffer_waiters.first()) is not None and self.accumulator.fits(waiter.size):
            self.buffer_waiters.remove(waiter)
            try:
                due = self.accumulator.append(
                    waiter.topic, waiter.size, waiter.record, waiter.partition, waiter.send, self.clock()
                )
            except Exception as error:  # the partitioner is the user's
                waiter.error = error
            else:
                waiter.appended = True
                self._wake_senders(due or ())
            waiter.event.set()
        self._admit()
        self.check_missing()

    def _refuse(self, reason: Exception) -> None:
        """Accept no more records."""
        self.closed_reason = reason
        self._admit()
        self.buffer_waiters.drop()

    # ---- records out ---------------------------------------------------------------------------------------

    def apply(self, effects: Effects) -> None:
        """Do what the accumulator returned: tell callers, wake senders, use the space that is free now."""
        if effects.finished:
            self._report(effects.finished)
        if effects.due:
            self._wake_senders(effects.due)
        if effects.finished:
            if self.buffer_waiters:
                self._append_waiting()
            if self._flushes:
                self._end_flushes()
        if effects.refresh_metadata:
            self._lookups.refresh()
        if self.accumulator.missing:
            self._lookups.check_missing()
        if self._sequences is not None and (self._dropping or not self._sequences.ready):
            self._follow_sequences(self._sequences)
        # Last, because it ends everything: what has a result keeps it.
        if effects.fatal is not None:
            self.fail(effects.fatal)

    def _follow_sequences(self, sequences: ProducerSequences) -> None:
        if not sequences.ready:
            self._lookups.identify(sequences)
        if self._dropping and self.accumulator.live:
            self._drop_unsent()

    def _wake_senders(self, brokers: Collection[int]) -> None:
        for broker in brokers:
            self.senders[broker].wake()

    def _wake_all_senders(self) -> None:
        self._wake_senders(tuple(self.senders))

    def _new_sender(self, broker: int) -> Sender:
        sender = Sender(broker, self.accumulator, self._driver, self._options, self, self.clock)
        self.spawn(sender.run)
        return sender

    def _report(self, batches: Sequence[ProduceBatch]) -> None:
        """Tell the callers that wait for the outcomes of these batches."""
        for batch in batches:
            if batch.error is None:
                self.written += len(batch.records)
                if batch.waiter_runs or not batch.queue.topic.registered:
                    self._acknowledge(batch)
            else:
                self._fail_records(batch, batch.error)
        if self.observation is not None:
            self.observation.finished(batches, self.clock())
        self.accumulator.live.reuse(batches)

    def _acknowledge(self, batch: ProduceBatch) -> None:
        result, topic = batch.result, batch.queue.topic
        base, timestamp = (None, None) if result is None else (result.position, result.timestamp)
        repeated = batch.may_be_written and batch.stamp is None
        for start, stop, send in batch.waiter_runs:
            # A broker names the offset of the first record, and gives those behind it the following ones.
            position = None if base is None else Position(base + start)
            ack = batch.partition, position, stop - start, self._options.acks != 0, repeated, timestamp
            send.add_ack(_new_ack(Ack, ack))
        if not topic.registered:
            topic.registered = True
            self._lookups.refresh()  # a list of brokers, unlike ZooKeeper, tells of new partitions only when asked

    def _fail_records(self, batch: ProduceBatch, error: DeliveryError) -> None:
        self.failed += len(batch)
        self.fail_transaction(error)
        partition = batch.partition if batch.queue is not batch.queue.topic.unassigned else None
        for record, send in zip(batch.as_records(), batch.waiters(), strict=True):
            failed = Failed(record, batch.queue.topic.name, partition, error)
            if send is None or send.abandoned:
                self.failures.add(failed)
            else:
                send.add_failure(failed)

    async def flush(self) -> None:
        """Wait until everything appended so far has an outcome; it is due at once."""
        flush = self.accumulator.live.flush()
        self.apply(self.accumulator.effects())
        if not flush.left:
            return
        done = self._flushes[flush] = anyio.Event()
        try:
            await done.wait()
        finally:
            self._flushes.pop(flush, None)

    def _end_flushes(self) -> None:
        for flush in [flush for flush in self._flushes if not flush.left]:
            self._flushes.pop(flush).set()

    # ---- transactions --------------------------------------------------------------------------------------

    async def _start_transactions(self, transactions: ProducerTransactions) -> None:
        try:
            self.spawn(transactions.run, self._offer_all, self._transaction_failed)
            with anyio.move_on_after(self._limits.deliver_within) as scope:
                await transactions.initialize()
            if scope.cancelled_caught:
                raise DeadlineError(
                    f"registering transactional id {transactions.transactional_id}{_because(transactions)}",
                    self._limits.deliver_within,
                )
        except BaseException:
            await self._background.stop()
            raise
        self.closed_reason = NO_TRANSACTION

    def begin(self, transactions: ProducerTransactions, abort: Callable[[], None]) -> None:
        """Open a transaction: all records belong to it from now on. Raises why that is not possible.

        Args:
            transactions: Those of this producer.
            abort: Called if the producer stops before the block of the transaction has ended: begins to abort it.
        """
        self._check_thread()
        if self.closed_reason is None:
            raise UsageError("a transaction of this producer is open already: it has one at a time")
        if self.closed_reason is not NO_TRANSACTION:
            self.check_open()
        self.closed_reason = None
        self._admit()
        transactions.begin()
        self.abort_transaction = abort

    def fail_transaction(self, error: OdradekError) -> None:
        """Let the open transaction, if there is one, only be aborted: a record of it failed."""
        if self.transactions is not None:
            self.transactions.fail(error)

    def refuse_records(self, reason: Exception) -> None:
        """Accept no more records for now: the transaction ends."""
        if self.failure is None and not self._stopping:
            self._refuse(reason)

    def end_transaction(self) -> None:
        """Record the end of a transaction, after which another one may begin."""
        self._dropping = ""
        self.refuse_records(NO_TRANSACTION)
        if self.transaction_ends is not None:
            self.transaction_ends.set()
            self.transaction_ends = None

    async def drop(self, why: str) -> None:
        """Give up all records that have not left, and wait until the others have an outcome."""
        self._dropping = why
        self._drop_unsent()
        await self.flush()

    def _drop_unsent(self) -> None:
        why, self._dropping = self._dropping, ""  # `apply` would come back here
        for batch in tuple(self.accumulator.live):
            self._time_out(batch, why)
        self.apply(self.accumulator.effects())
        self._dropping = why

    def _offer_all(self) -> None:
        self.apply(self.accumulator.offer_all())

    def _transaction_failed(self, error: OdradekError, fatal: bool) -> None:
        """Stop what can no longer be committed: the records that wait, and the callers that wait for them."""
        if fatal:
            self.fail(error)
        elif self.failure is None and self.transactions is not None:
            aborted = TransactionAborted(self.transactions.transactional_id, str(error))
            aborted.__cause__ = error
            self.refuse_records(aborted)
            self._dropping = f"the transaction failed: {error}"
            self._drop_unsent()

    # ---- time and failure ----------------------------------------------------------------------------------

    async def _expire(self) -> None:
        """Time out batches. Looks at every batch, and so at most a hundred times while one lives.

        A deleted topic whose records waited for it in vain is looked up again, so that brokers create it if they are
        configured to: while records keep coming, it is never forgotten, and would not be new to any of them.
        """
        while True:
            now = self.clock()
            for batch in self.accumulator.live.expired(now):
                self._time_out(batch)
                topic = batch.queue.topic
                if topic.is_missing and batch.created_at > topic.loaded_at:
                    self._load(topic)
            self.apply(self.accumulator.effects())
            await anyio.sleep(max(self.accumulator.live.next_expiry(now) - now, self._limits.deliver_within / 100))

    def _time_out(self, batch: ProduceBatch, why: str = "") -> None:
        """Finish a batch whose time is over, or that is given up. One that is on the wire waits for its
        outcome: that comes within the request time-out, and until then the batch may still be written."""
        if batch.finished:
            return
        if batch.request is None or self.senders[batch.request.broker].withdraw(batch.request):
            if batch in self.accumulator.live:
                self.accumulator.live.time_out(batch, why)
        else:
            batch.note_overdue(why or self.accumulator.live.late)

    def purge(self, in_flight: bool) -> Purged:
        """Give up all records: see `Producer.purge`."""
        self.check_open()
        waiting, live = self.buffer_waiters.drop(PURGED), self.accumulator.live
        # The newest go first: the sequence numbers of what was taken back are then free again, without a gap.
        for batch in reversed(tuple(live)):
            if batch.request is not None:
                self.senders[batch.request.broker].withdraw(batch.request)
        counts: Counter[type[DeliveryError] | None] = Counter()
        for batch in reversed(tuple(live)):  # withdrawn, records may have moved to other batches
            if batch.request is None or in_flight:
                live.time_out(batch, PURGED)
            else:
                batch.note_overdue(PURGED)
            outcome = None if batch.error is None else type(batch.error)
            counts[outcome] += len(batch)
        self.apply(self.accumulator.effects())
        return Purged(waiting + counts[NotWritten], counts[OutcomeUnknown], counts[None])

    def _fail_remaining(self, why: str, cause: Exception | None = None) -> None:
        """Finish everything that is left. Withdraw first the requests that the network has not been given."""
        live = self.accumulator.live
        while live:
            batch = next(iter(live))
            if batch.request is not None:
                self.senders[batch.request.broker].withdraw(batch.request)
            if batch in live:  # withdrawn, its records may have moved to other batches
                self.accumulator.live.time_out(batch, why, cause)
        self.apply(self.accumulator.effects())

    def fail(self, error: Exception) -> None:
        """End the producer: refuse new records and finish those it has. See `SenderHost`."""
        if self.failure is not None:
            return
        self.failure = error
        stopped = _reason_to_refuse(error)
        self._refuse(stopped)
        if self.transactions is not None:
            self.transactions.stop(error if isinstance(error, OdradekError) else stopped)
        self._fail_remaining(f"the producer stopped: {error}", error)


def _reason_to_refuse(error: Exception) -> OdradekError:
    """Return what calls raise after the producer has ended because of an error."""
    stopped: OdradekError
    if isinstance(error, Fenced):
        stopped = copy(error)
    else:
        stopped = Closed(f"the producer stopped: {type(error).__name__}: {error}")
    stopped.__cause__ = error
    return stopped


def _because(transactions: ProducerTransactions) -> str:
    return f" ({transactions.problem})" if transactions.problem is not None else ""
