"""The producer: records in, acks or truthful errors out.

    async with cluster.producer() as out:
        ack = await out.send("orders", b"...")      # written, or an error that says what is known
        await out.put("orders", b"...")             # accepted; failures surface in out.failures and at exit

Records of a partition share batches, batches share requests, and requests are pipelined: a call costs about a
microsecond, whatever the round trip. An ack means what the cluster's protocol lets a broker acknowledge, see `acks`;
docs/topics/delivery.md says what it promises on each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, cast

import anyio
from anyio.lowlevel import checkpoint

from odradek import arguments
from odradek.batch import Batch
from odradek.client.options import DRIVER, ProducerOptions, Tuning
from odradek.client.producer.dispatcher import Dispatcher
from odradek.client.producer.results import (
    Ack,
    Acks,
    BufferWaiter,
    Failed,
    Failures,
    PendingSend,
    Purged,
    undelivered,
)
from odradek.client.producer.rows import ROWS_AT_ONCE, Row, fields, runs
from odradek.client.producer.sender import SenderOptions
from odradek.client.producer.transaction import Transaction
from odradek.client.producer.validator import TOPIC, RecordValidator
from odradek.core.interfaces import ProducerRecord, ProtocolDriver
from odradek.core.produce.batch import RECORD_OVERHEAD_BYTES, AccumulatorLimits
from odradek.core.produce.packed_records import EncodedRecords, PackedRecords
from odradek.core.produce.partitioners import Partitioner
from odradek.errors import Closed, ConfigError, DeliveryError, Fenced, OdradekError, Unsupported, UsageError
from odradek.types import KiB, TopicPartition
from odradek.wire.compression import parse_compression

if TYPE_CHECKING:
    from odradek.client.producer.arrow_input import Data

__all__ = ["Producer", "ProducerStatistics"]

YIELD_EVERY_PUTS = 256
"""Records that `put` accepts before it lets other tasks run: that costs some microseconds, a record less than one."""

_FLAG = arguments.flag()
ACKS = {"all": -1, 1: 1, 0: 0}
"""The option `acks` as the number on the wire."""


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """Counters of a producer.

    `accepted`, `written` and `failed` count records; `requests` and `retries` count requests; `buffered` and
    `buffered_bytes` are records without an outcome and the memory they take; `waiting` counts calls that wait for space
    in the buffer.
    """

    accepted: int
    written: int
    failed: int
    requests: int
    retries: int
    buffered: int
    buffered_bytes: int
    waiting: int


class Producer:
    """Sends records. Made by `Cluster.producer`, which documents the options; used as `async with`.

    One event loop, any number of tasks; not for other threads.

    **Cancellation.** Until a record has space in the buffer, a cancelled call did nothing. After that the record stays
    on its way, and if it fails, that is in `failures`.

    **Exit** flushes for at most `exit_within` seconds, also when the block is cancelled, and raises Undelivered for
    what was not delivered and for all failures that were not taken. An exception of the block is not masked: it
    propagates with Undelivered's text as a note, and `failures` has the records. If the block was cancelled,
    Undelivered replaces the cancellation, because nothing else would report the loss. So it is with a native
    `Task.cancel` that comes during the exit, which it ends.
    """

    @arguments.with_options(ProducerOptions)
    def __init__(self, driver: ProtocolDriver, **options: Unpack[ProducerOptions]) -> None:
        resolved: Any = arguments.resolve(ProducerOptions, options)
        self._configure(DRIVER("driver", driver), **resolved)

    def _configure(
        self,
        driver: ProtocolDriver,
        *,
        latency: float,
        buffer_bytes: int,
        deliver_within: float,
        exit_within: float,
        compression: str,
        compression_by_topic: Mapping[str, str] | None,
        partitioner: Partitioner | None,
        acks: Literal["all", 1, 0],
        reorder: bool,
        max_message_bytes: int,
        transactional_id: str | None,
        transaction_timeout: float,
        tuning: Tuning | None,
    ) -> None:
        tuning = tuning or Tuning()
        if transactional_id is not None and (acks != "all" or reorder):
            raise ConfigError('transactional_id needs acks="all" and reorder=False: a transaction has all its records')
        by_topic = dict(compression_by_topic or {})
        names = {parse_compression(each).type.name.lower() for each in (compression, *by_topic.values())}
        for name in names - driver.compressions:
            known = ", ".join(sorted(driver.compressions))
            raise ConfigError(f"compression {name!r} is not supported by this cluster: choose from {known}")
        limits = AccumulatorLimits(
            buffer_bytes=buffer_bytes,
            batch_bytes=tuning.batch_bytes or min(driver.batch_bytes, buffer_bytes // 4),
            compressed_batch_bytes=tuning.batch_bytes or driver.compressed_batch_bytes,
            request_bytes=tuning.request_bytes,
            in_flight=tuning.in_flight,
            latency=latency,
            deliver_within=deliver_within,
            reorder=reorder,
        )
        sending = SenderOptions(ACKS[acks], max_message_bytes, tuning.backoff)
        self._exit_within, self._deliver_within, self._puts = exit_within, deliver_within, 0
        self._transactions = (
            None if transactional_id is None else driver.producer_transactions(transactional_id, transaction_timeout)
        )
        self._dispatcher = Dispatcher(
            driver, limits, sending, partitioner or driver.default_partitioner(), self._transactions
        )
        self._accumulator = self._dispatcher.accumulator
        self._validator = RecordValidator(
            driver, self._dispatcher, max_message_bytes, buffer_bytes - RECORD_OVERHEAD_BYTES, compression, by_topic
        )
        self._append = self._validator.appender(YIELD_EVERY_PUTS)

    async def __aenter__(self) -> Self:
        """Start. With a transactional id: register it at the cluster, within `deliver_within`. Cancellation: safe.

        Raises:
            Closed: The producer was started before: it cannot be reused.
            DeadlineError, BrokerError, Fenced: The transactional id could not be registered.
        """
        await self._dispatcher.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._dispatcher.stop(self._exit_within)
        except anyio.get_cancelled_exc_class() as cancelled:  # natively
            if not self.failures:
                raise
            error = cancelled
        if not self.failures:
            if self._dispatcher.failure is not None and error is None:
                raise self._dispatcher.failure
            return
        report = undelivered(self.failures)
        if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
            raise report from (error or self._dispatcher.failure)
        error.add_note(str(report))

    @property
    def failures(self) -> Failures:
        """Failed records without a waiting caller: see `Failures`."""
        return self._dispatcher.failures

    # ---- transactions --------------------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Return a transaction, to be used as `async with`: what is sent in its block is committed as a whole when
        the block ends, or aborted as a whole when it ends with an exception. See `Transaction`.

        Raises:
            UsageError: The producer has no `transactional_id`.
        """
        if self._transactions is None:
            raise UsageError("this producer has no transactions: make it with a transactional_id")
        return Transaction(
            self._dispatcher, self._transactions, commit_within=self._deliver_within, abort_within=self._exit_within
        )

    # ---- records in ----------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: TopicPartition | int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: int | None = None,
    ) -> Ack:
        """Write a record and return once it is acknowledged, as the option `acks` says.

        Many tasks may wait in `send` at once; their records share batches.
        Cancellation: see the class; a failure of a record on its way goes to `failures`.

        Args:
            value: The payload; None is a tombstone (0.8.1 and later).
            key: Chooses the partition; 0.7 does not store it.
            partition: Send it there and nowhere else, and wait for its broker: a TopicPartition or, where partitions
                have plain numbers (not in 0.7), a number. There, a partition that the topic does not have is refused
                after about a second, when the metadata has been read twice; a topic without any is waited for.
            headers: Names and values (0.11 and later).
            timestamp: Milliseconds since the epoch (0.10 and later); None: the time at which its batch is encoded.

        Raises:
            Rejected: It will never be written; its text or its cause says why.
            NotWritten: It was certainly not written within `deliver_within`.
            OutcomeUnknown: It may or may not have been written within `deliver_within`, plus the request time-out if
                it was on the wire at that moment.
            Fenced: Another producer took over the identity of this one, which has ended: every later call raises this,
                too. If it came while the record was on its way, its cause is the Rejected, NotWritten or OutcomeUnknown
                that says what is known of the record.
            Closed: The producer has ended for another reason, or is not open.
            Unsupported: This cluster has no null values, headers or timestamps.
            TypeError: An argument of another type.
        """
        dispatcher = self._dispatcher
        pending = PendingSend(dispatcher.loop)
        try:
            valid = self._validator.validate(topic, value, key, headers, timestamp, partition)
            pending.remaining, now = 1, dispatcher.clock()
            due = None if dispatcher.buffer_waiters else self._accumulator.append(*valid, pending, now)
            if due is None:
                await dispatcher.wait_for_space(BufferWaiter(*valid, pending))
            else:  # to an idle broker in this very step, which saves the caller a step of the loop
                for broker in due:
                    dispatcher.senders[broker].drain(now)
                if partition is not None:
                    dispatcher.check_missing()
            await pending.wait()
        except BaseException:
            pending.abandon(self.failures)
            raise
        if pending.failed:
            raise _copy_error(pending.failed[0])
        return pending.acks[0]

    async def put(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: TopicPartition | int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: int | None = None,
    ) -> None:
        """Accept a record. Waits while the buffer is full, for at most `deliver_within`; calls that wait are served in
        their order. A failure of the record surfaces in `failures` and at exit.

        Cancellation: a cancelled `put` that was still waiting for space did nothing.
        Arguments and errors: as `send`; NotWritten: there was no space.
        """
        appended: bool | None = False
        if partition is None and timestamp is None and not headers:
            appended = self._append(topic, value, key)
            if appended:
                return  # it joined the open batch of its partition, which is nearly always so
        self._puts += 1
        if appended is None or self._puts >= YIELD_EVERY_PUTS:
            self._puts = 0
            await checkpoint()
        valid = self._validator.validate(topic, value, key, headers, timestamp, partition)
        if not self._dispatcher.try_append(*valid, None):
            await self._dispatcher.wait_for_space(BufferWaiter(*valid, None))

    def try_put(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: TopicPartition | int | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp: int | None = None,
    ) -> bool:
        """Accept a record now, or return False: the buffer is full, or other calls wait for space. Otherwise as `put`.

        Never waits, so that no other task runs: nothing is sent until the caller waits for something.
        """
        return self._dispatcher.try_append(
            *self._validator.validate(topic, value, key, headers, timestamp, partition), None
        )

    async def send_many(
        self, topic: str, rows: Iterable[Row] | Batch, *, partition: TopicPartition | int | None = None
    ) -> Acks:
        """Write many records and return once each has an outcome. Waits for space in the buffer as it goes.

        The columns of a `Batch` go from its memory to the wire as those of `send_arrow` do.

        Cancellation: as `send`. An exception of `rows` propagates; the rows before it stay on their way.

        Args:
            rows: Values, (key, value) pairs, or `ProducerRecord` records; or a `Batch` of a reader or consumer, whose
                records keep their keys, headers and timestamps.
            partition: Send all rows there.

        Returns:
            The acks, and every record that failed, with its error: no record's failure is raised. A record that the
            cluster cannot store - with a null value, a header or a timestamp in 0.7 - fails alone.

        Raises:
            NotWritten: There was no space within `deliver_within`; the rows before stay on their way.
            CorruptMessage: `rows` is a batch with records that could not be decoded (`corrupt="raw"`): nothing of it
                was sent.
        """
        return await self._send_runs(topic, runs(rows), partition)

    async def send_arrow(
        self,
        topic: str,
        data: Data,
        *,
        value: str | None = None,
        key: str | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        partition: TopicPartition | int | None = None,
    ) -> Acks:
        """Write the rows of Arrow data and return once each has an outcome, as `send_many`.

        Columns are encoded straight from the Arrow buffers: no Python object is made for a row unless it fails.
        (Views are copied, 4096 rows at a time; adjacent chunks of less than 64 KiB are copied together.) Every row
        becomes a `ProducerRecord`, and takes as long as one does in `send_many`, where keys choose the partition, where
        only some rows have a timestamp, and where the cluster cannot store a column. Do not change the data meanwhile.

        Args:
            data: A pyarrow Table, RecordBatch, Array or ChunkedArray.
            value: The column of values: binary or string, large or not, or a view of either; strings are sent as
                UTF-8. By default the only column, or else the one called `value`.
            key: A column of keys, which choose the partition; a row whose key is null has none.
            headers: A column of lists of structs with fields `key` and `value` (Kafka 0.11 and later).
            timestamp: A column of timestamps, or of integers: milliseconds since the epoch (Kafka 0.10 and later).
            partition: Send all rows there.

        Returns:
            As `send_many`; a row that failed is shown as a `ProducerRecord`. A row that the cluster cannot store - with
            a null value, a header or a timestamp in 0.7 - fails alone.

        Raises:
            NotWritten: There was no space within `deliver_within`; the rows before stay on their way.
            TypeError: `data` is not Arrow, or a column has a type that cannot be sent. Nothing was sent; nor in the
                next two cases.
            ConfigError: Several columns could be meant, a time is before 1970, or pyarrow is missing
                (`pip install odradek[arrow]`).
            ValueError: The name of a header is null or not UTF-8, or a time is out of range. Also for damaged
                data, of which rows before may have been sent.
        """
        from odradek.client.producer import arrow_input  # here, because it needs pyarrow

        return await self._send_runs(
            topic, cast("Iterable[Sequence[Row]]", arrow_input.runs(data, value, key, headers, timestamp)), partition
        )

    async def _send_runs(
        self, topic: str, runs: Iterable[Sequence[Row]], partition: TopicPartition | int | None
    ) -> Acks:
        self._dispatcher.check_open()
        TOPIC("topic", topic)
        where = None if partition is None else self._validator.partition(topic, partition)
        pending = PendingSend(self._dispatcher.loop)
        try:
            for run in runs:
                for part in self._validator.parts(topic, run, where):
                    await self._append_rows(topic, part, where, pending)
            await pending.wait()
        except BaseException:
            pending.abandon(self.failures)
            raise
        return Acks(tuple(pending.acks), tuple(pending.failed))

    async def _append_rows(
        self, topic: str, run: Sequence[Row], partition: TopicPartition | None, pending: PendingSend
    ) -> None:
        """Append the rows of a list or of columns: those of columns and plain values a batch at a time, others one by
        one. A batch that is encoded already is appended as it is."""
        if isinstance(run, EncodedRecords):
            valid = self._validator.encoded(topic, run, partition)
            pending.remaining += len(run)
            if self._dispatcher.try_append(*valid, pending):
                await checkpoint()
            else:
                await self._dispatcher.wait_for_space(BufferWaiter(*valid, pending))
            return
        row = work = 0
        while row < len(run):
            first, end = run[row], row
            if type(first) is bytes or type(run) is PackedRecords:
                end = self._append_values(topic, run, row, partition, pending)
            if end == row:
                if (waiter := self._append_row(topic, first, partition, pending)) is not None:
                    await self._dispatcher.wait_for_space(waiter)
                end = row + 1
            work += end - row + len(first) // KiB  # large ones take time, too
            row = end
            if work >= ROWS_AT_ONCE:
                work = 0
                await checkpoint()

    def _append_values(
        self, name: str, run: Sequence[Row], row: int, partition: TopicPartition | None, pending: PendingSend
    ) -> int:
        """Append values from a row on, as far as none of them needs a closer look; return the row to continue at."""
        topic, dispatcher = self._accumulator.topics.get(name), self._dispatcher
        if topic is None or dispatcher.closed_reason is not None:
            return row
        return dispatcher.append_run(topic, run, row, self._validator.unchecked_value, partition, pending)

    def _append_row(
        self, topic: str, row: Row, partition: TopicPartition | None, pending: PendingSend
    ) -> BufferWaiter | None:
        """Append a row, or note why it is refused. Return a waiter if there is no space for it."""
        pending.remaining += 1
        record = fields(row)
        try:
            valid = self._validator.validate(topic, *record, partition)
        except (DeliveryError, Unsupported) as error:
            pending.add_failure(Failed(ProducerRecord(*record), topic, partition, error))
            return None
        return None if self._dispatcher.try_append(*valid, pending) else BufferWaiter(*valid, pending)

    async def flush(self) -> None:
        """Wait until everything accepted so far has an outcome; what is waiting for its batch is sent at once.

        Takes at most `deliver_within`, and the request time-out. Says nothing about the outcomes: see `failures`.
        Cancellation: safe.
        """
        self._dispatcher.check_open()
        await self._dispatcher.flush()

    def purge(self, *, in_flight: bool = False) -> Purged:
        """Drop what has been accepted and has no outcome. Nothing of it is sent any more, or again. Returns at once.

        What waits here, or for space in the buffer, fails with NotWritten, or with OutcomeUnknown if an attempt may
        have been written. What is on the wire gets the outcome of that request, and one that fails is not repeated.
        Calls of `send` and `send_many` raise or return these failures; those of `put` are in `failures`, as always.
        Records that are sent later are written as if nothing had happened, in their order and once.

        Args:
            in_flight: Do not wait for requests on the wire, either: their records fail with OutcomeUnknown now.

        Raises:
            UsageError: The producer has transactions: leave the block of one with an exception, which aborts it.
            Closed, Fenced: As `send`.
        """
        _FLAG("in_flight", in_flight)
        if self._transactions is not None:
            raise UsageError("a transaction cannot lose some of its records: raise in its block, which aborts it")
        return self._dispatcher.purge(in_flight)

    def statistics(self) -> ProducerStatistics:
        """Return `ProducerStatistics`. Cheap; call it as often as you like."""
        dispatcher, live = self._dispatcher, self._accumulator.live
        buffered = sum(map(len, live))
        return ProducerStatistics(
            accepted=buffered + dispatcher.written + dispatcher.failed,
            written=dispatcher.written,
            failed=dispatcher.failed,
            requests=sum(sender.requests for sender in dispatcher.senders.values()),
            retries=sum(sender.retries for sender in dispatcher.senders.values()),
            buffered=buffered,
            buffered_bytes=live.buffered_bytes,
            waiting=len(dispatcher.buffer_waiters),
        )

    def __repr__(self) -> str:
        now = self.statistics()
        state = "closed" if isinstance(self._dispatcher.closed_reason, Closed | Fenced) else "open"
        return f"<{type(self).__name__} {state} {now.buffered} buffered {now.written} written {now.failed} failed>"


def _copy_error(failed: Failed) -> OdradekError:
    """Return a batch's error as the error of one record: every caller raises an object of its own. That of a producer
    that was fenced is Fenced, because of the record's."""
    error = failed.error
    if not isinstance(error, DeliveryError):
        return error
    own = type(error)([failed.record], error.why)
    own.hint, own.__cause__ = error.hint, error.__cause__
    if not isinstance(error.__cause__, Fenced):
        return own
    fenced = copy(error.__cause__)
    fenced.__cause__ = own
    return fenced
