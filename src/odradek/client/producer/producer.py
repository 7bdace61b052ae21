"""The producer: records in, acks or truthful errors out.

    async with k.producer() as out:
        ack = await out.send("orders", b"...")      # written, or an error that says what is known
        await out.put("orders", b"...")             # accepted; failures surface in out.failures and at exit

Kafka 0.7 acknowledges nothing. By default each produce request is *confirmed* by a cheap request right behind it on
the same connection: the broker serves a connection strictly in order and closes it on a produce it refuses, so an
answer proves the append. It proves no more: the records are in the broker's file, but neither forced to its disk nor
visible to consumers before its next flush, and there is no second copy. They survive the broker's process, not the
loss of its machine (specification 4.3, 4.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import anyio
from anyio.lowlevel import checkpoint

from odradek.client.options import Tuning
from odradek.client.producer.dispatcher import Dispatcher
from odradek.client.producer.results import Ack, Acks, BufferWaiter, Failed, Failures, PendingSend, undelivered
from odradek.client.producer.sender import SenderOptions
from odradek.core.interfaces import ProducerRecord, ProtocolDriver
from odradek.core.produce.batch import RECORD_OVERHEAD_BYTES, AccumulatorLimits, TopicQueues, as_record
from odradek.core.produce.partitioners import KeyHash, Partitioner
from odradek.errors import ConfigError, DeliveryError, MessageTooLarge, OdradekError, Rejected, Unsupported
from odradek.types import KiB, MiB, TopicPartition

if TYPE_CHECKING:
    from odradek.client.producer.arrow_input import Data

__all__ = ["Producer", "ProducerStatistics"]

BURST = 128
"""So many records are taken without giving the loop a turn: one turn costs some microseconds, a record about one."""

RUN = 512
"""The same for rows of `send_many`; and so many are taken from an iterator at once."""

Row = bytes | tuple[bytes | None, bytes] | ProducerRecord
"""What `send_many` takes: a value, a (key, value) pair, or a whole record."""


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What a producer has done and holds.

    `accepted`, `written` and `failed` count records; `requests` and `retries` count requests; `buffered` and
    `buffered_bytes` are records without an outcome yet and the room they take; `waiting` counts calls in front of a
    full buffer.
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
    """Sends records. Made by `Cluster.producer`, which documents the arguments; used as `async with`.

    One event loop, any number of tasks; not for other threads.

    **Cancellation.** Until a record has room in the buffer, a cancelled call did nothing. After that the record stays
    on its way, and if it fails, that is in `failures`.

    **Exit** flushes for at most `exit_within` seconds, also when the block is cancelled, and raises Undelivered for
    what did not make it and for all failures nobody took. An exception of the block is not masked: it propagates
    with Undelivered's text as a note, and `failures` has the records. Only a cancelled block is replaced by
    Undelivered, because nothing else would tell.
    """

    def __init__(
        self,
        driver: ProtocolDriver,
        *,
        latency: float = 0.01,
        buffer_bytes: int = 64 * MiB,
        deliver_within: float = 30,
        exit_within: float = 10,
        compression: str = "none",
        compression_by_topic: Mapping[str, str] | None = None,
        partitioner: Partitioner | None = None,
        confirm: bool = True,
        reorder: bool = False,
        max_message_bytes: int = 1_000_000,
        tuning: Tuning | None = None,
    ) -> None:
        tuning = tuning or Tuning()
        _reasonable(latency=latency, exit_within=exit_within)
        _positive(buffer_bytes=buffer_bytes, deliver_within=deliver_within, max_message_bytes=max_message_bytes)
        self._room, self._safe = (
            buffer_bytes - RECORD_OVERHEAD_BYTES,
            min(max_message_bytes, buffer_bytes - RECORD_OVERHEAD_BYTES),
        )
        self._driver, self._max, self._compression, self._compression_by_topic = (
            driver,
            max_message_bytes,
            compression,
            dict(compression_by_topic or {}),
        )
        self._measure, self._burst = driver.record_bytes, 0
        limits = AccumulatorLimits(
            buffer_bytes=buffer_bytes,
            batch_bytes=tuning.batch_bytes,
            request_bytes=tuning.request_bytes,
            in_flight=tuning.in_flight,
            latency=latency,
            deliver_within=deliver_within,
            reorder=reorder,
        )
        options = SenderOptions(confirm, max_message_bytes, tuning.backoff)
        self._exit_within = exit_within
        self._outbox = Dispatcher(driver, limits, options, KeyHash() if partitioner is None else partitioner)
        self._topics, self._entry_bytes = self._outbox.accumulator.topics, self._outbox.accumulator.entry_bytes

    async def __aenter__(self) -> Self:
        """Begin. Raises Closed the second time: a producer is used once."""
        await self._outbox.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._outbox.stop(self._exit_within)
        if not self.failures:
            if self._outbox.dead is not None and error is None:
                raise self._outbox.dead
            return
        report = undelivered(self.failures)
        if error is None or isinstance(error, anyio.get_cancelled_exc_class()):
            raise report from (error or self._outbox.dead)
        error.add_note(str(report))

    @property
    def failures(self) -> Failures:
        """Outcomes nobody waited for: see `Failures`."""
        return self._outbox.failures

    # ---- records in ----------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: TopicPartition | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        time: float | None = None,
    ) -> Ack:
        """Write a record and return once it is written: in 0.7 appended by the broker, unless `confirm=False`.

        Many tasks may wait in `send` at once; their records share batches.
        Cancellation: see the class; the outcome of a record on its way goes to `failures`.

        Args:
            key: Chooses the partition; 0.7 does not store it.
            partition: Send it there and nowhere else, and wait for its broker.
            headers: Not in 0.7.
            time: Not in 0.7.

        Raises:
            Rejected: It will never be written; its cause says why.
            NotWritten: It was surely not written within `deliver_within`.
            Unknown: It may or may not have been written within `deliver_within`.
            Unsupported: This cluster has no headers, or no time.
        """
        call = PendingSend(self._outbox.loop)
        try:
            admitted = self._admit(topic, value, key, headers, time, partition)
            if not self._outbox.offer_now(*admitted, partition, call):
                await self._outbox.wait_for_room(BufferWaiter(*admitted, partition, call))
            await call.wait()
        except BaseException:
            call.abandon(self.failures)
            raise
        if call.failed:
            raise _own(call.failed[0])
        return call.acks[0]

    async def put(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: TopicPartition | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        time: float | None = None,
    ) -> None:
        """Accept a record, waiting for room in the buffer first, for at most `deliver_within`; those who wait are
        served in their order. Its failure, if any, surfaces in `failures` and at exit.

        Cancellation: a cancelled `put` that was still waiting for room did nothing.
        Arguments and errors: as `send`; NotWritten: there was no room.
        """
        self._burst += 1
        if self._burst >= BURST:
            self._burst = 0
            await checkpoint()
        admitted = self._admit(topic, value, key, headers, time, partition)
        if not self._outbox.offer(*admitted, partition, None):
            await self._outbox.wait_for_room(BufferWaiter(*admitted, partition, None))

    def try_put(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: TopicPartition | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        time: float | None = None,
    ) -> bool:
        """Accept a record now, or say False: the buffer is full, or others wait for room. Otherwise as `put`.

        Never waits, and so never gives the loop a turn: nothing is sent while the caller does not wait for anything.
        """
        return self._outbox.offer(*self._admit(topic, value, key, headers, time, partition), partition, None)

    async def send_many(self, topic: str, rows: Iterable[Row], *, partition: TopicPartition | None = None) -> Acks:
        """Write many records and return once each has an outcome. Waits for room as it goes.

        Cancellation: as `send`. An exception of `rows` propagates; the rows before it stay on their way.

        Args:
            rows: Values, (key, value) pairs, or `ProducerRecord` records.

        Returns:
            What was written where, and every record that failed, with its error: no record's failure is raised.

        Raises:
            NotWritten: There was no room within `deliver_within`; the rows before stay on their way.
        """
        return await self._send_runs(topic, _runs(rows), partition)

    async def send_arrow(
        self,
        topic: str,
        data: Data,
        *,
        value: str | None = None,
        key: str | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        partition: TopicPartition | None = None,
    ) -> Acks:
        """Write the rows of Arrow data and return once each has an outcome, as `send_many`.

        Values alone are encoded straight from the Arrow buffers: no Python object is made for a row unless it fails.
        (Views are copied, 4096 rows at a time; adjacent chunks of less than 64 KiB are copied together.) With a null
        value or with another column, every row becomes a `ProducerRecord` and takes as long as in `send_many`. Do not
        change the data meanwhile.

        Args:
            data: A pyarrow Table, RecordBatch, Array or ChunkedArray.
            value: Which column has the values: binary or string, large or not, or a view of either; strings are sent
                as UTF-8. By default the only one, or else the one called `value`.
            key: A column of keys, which choose the partition; a row whose key is null has none.
            headers: A column of lists of structs with fields `key` and `value` (Kafka 0.11 and later).
            timestamp: A column of timestamps, or of integers: milliseconds since the epoch (Kafka 0.10 and later).
            partition: Send all rows there.

        Returns:
            As `send_many`; a row that failed is shown as a `ProducerRecord`. What the cluster cannot store - a null
            value, a header or a timestamp in 0.7 - fails row by row.

        Raises:
            NotWritten: There was no room within `deliver_within`; the rows before stay on their way.
            TypeError: `data` is not Arrow, or a column has a type that cannot be sent. Nothing was sent; nor in the
                next two cases.
            ConfigError: It is not clear which column is meant, or pyarrow is missing (`pip install odradek[arrow]`).
            ValueError: The name of a header is null.
        """
        from odradek.client.producer import arrow_input  # here, because only who uses it needs pyarrow

        return await self._send_runs(
            topic, cast("Iterable[Sequence[Row]]", arrow_input.runs(data, value, key, headers, timestamp)), partition
        )

    async def _send_runs(self, topic: str, runs: Iterable[Sequence[Row]], partition: TopicPartition | None) -> Acks:
        call = PendingSend(self._outbox.loop)
        try:
            for run in runs:
                await self._take_in(topic, run, partition, call)
            await call.wait()
        except BaseException:
            call.abandon(self.failures)
            raise
        return Acks(tuple(call.acks), tuple(call.failed))

    async def _take_in(
        self, topic: str, run: Sequence[Row], partition: TopicPartition | None, call: PendingSend
    ) -> None:
        """Take the rows of a list or a `Packed`: plain values a batch at a time, others one by one."""
        row = burst = 0
        while row < len(run):
            first = run[row]
            end = self._take_batch(topic, run, row, partition, call) if type(first) is bytes else row
            if end == row:
                if (waiter := self._enter_row(topic, first, partition, call)) is not None:
                    await self._outbox.wait_for_room(waiter)
                end = row + 1
            burst += end - row + len(first) // KiB  # large ones take their time, too
            row = end
            if burst >= RUN:
                burst = 0
                await checkpoint()

    def _take_batch(
        self, name: str, run: Sequence[Row], row: int, partition: TopicPartition | None, call: PendingSend
    ) -> int:
        """Take values from a row on, as far as nothing needs a second look at any; where to go on."""
        topic, outbox = self._topics.get(name), self._outbox
        if topic is None or outbox.refusal is not None or (partition is not None and partition.topic != name):
            return row
        return outbox.offer_run(topic, run, row, self._safe - self._entry_bytes, partition, call)

    def _enter_row(
        self, topic: str, row: Row, partition: TopicPartition | None, call: PendingSend
    ) -> BufferWaiter | None:
        """Take a row in, or say of it what it died of. Returns who waits for room, if there is none."""
        fields = _fields(row)
        try:
            admitted = self._admit(topic, *fields, partition)
        except (DeliveryError, Unsupported) as error:
            call.left += 1
            call.lost(Failed(ProducerRecord(*fields), topic, partition, error))
            return None
        return None if self._outbox.offer(*admitted, partition, call) else BufferWaiter(*admitted, partition, call)

    async def flush(self) -> None:
        """Wait until everything accepted so far has an outcome; what is waiting for its batch is sent at once.

        Takes at most `deliver_within`. Says nothing of the outcomes: see `failures`. Cancellation: safe.
        """
        self._outbox.check_open()
        await self._outbox.flush()

    def _admit(
        self,
        name: str,
        value: bytes,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        time: float | None,
        partition: TopicPartition | None,
    ) -> tuple[TopicQueues, int, bytes | ProducerRecord]:
        """Everything that can be wrong with a record before it is taken. Returns its topic, its size, and itself."""
        if self._outbox.refusal is not None:
            self._outbox.check_open()
        if not isinstance(value, bytes) or not (key is None or isinstance(key, bytes)):
            raise TypeError(f"value and key must be bytes, not {type(value).__name__} and {type(key).__name__}")
        topic = self._topics.get(name) or self._new_topic(name)
        record: bytes | ProducerRecord = value
        if key is None and not headers and time is None and type(value) is bytes:
            size = self._entry_bytes + len(value)
        else:
            record = ProducerRecord(value, key, headers, time)
            size = self._measure(record)
        if size > self._safe or headers or time is not None:  # a record is never smaller than its payload
            self._check(topic, as_record(record), size)
        if partition is not None and partition.topic != name:
            raise ConfigError(f"partition {partition} is not one of topic {name}")
        return topic, size, record

    def _check(self, topic: TopicQueues, record: ProducerRecord, size: int) -> None:
        """With a codec only the compressed size counts, and is known when the batch is encoded."""
        if size > self._room:
            too_large = MessageTooLarge(topic.name, -1, size, self._room, "buffer")
            raise Rejected([record], str(too_large)) from too_large
        self._driver.check(topic.name, record, self._max if topic.compression == "none" else self._room)

    def _new_topic(self, name: str) -> TopicQueues:
        self._driver.check(name, ProducerRecord(b""), self._max)
        return self._outbox.topic(name, self._compression_by_topic.get(name, self._compression))

    def statistics(self) -> ProducerStatistics:
        """See `ProducerStatistics`. Cheap; call it as often as you like."""
        outbox = self._outbox
        return ProducerStatistics(
            accepted=outbox.accepted,
            written=outbox.written,
            failed=outbox.failed,
            requests=sum(sender.requests for sender in outbox.senders.values()),
            retries=sum(sender.retries for sender in outbox.senders.values()),
            buffered=outbox.accepted - outbox.written - outbox.failed,
            buffered_bytes=outbox.accumulator.held,
            waiting=len(outbox.room),
        )

    def __repr__(self) -> str:
        now = self.statistics()
        state = "closed" if self._outbox.refusal is not None else "open"
        return f"<{type(self).__name__} {state} {now.buffered} buffered {now.written} written {now.failed} failed>"


def _runs(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    """Cut rows into runs. When `rows` raises, the rows before that come first."""
    if isinstance(rows, list):
        yield rows
        return
    source, error = iter(rows), None
    while error is None:
        run: list[Row] = []
        try:
            run.extend(islice(source, RUN))
        except Exception as raised:
            error = raised
        if not run:
            break
        yield run
    if error is not None:
        raise error


def _fields(row: Row) -> tuple[bytes, bytes | None, Sequence[tuple[str, bytes]], float | None]:
    """Value, key, headers and time."""
    if isinstance(row, ProducerRecord):
        return row
    if isinstance(row, tuple) and len(row) == 2:
        return row[1], row[0], (), None
    if isinstance(row, bytes):
        return row, None, (), None
    raise TypeError(f"a row is bytes, a (key, value) pair or an Outgoing, not {type(row).__name__}")


def _own(failed: Failed) -> OdradekError:
    """A batch's error as the error of one record: every caller raises an object of its own."""
    error = failed.error
    if not isinstance(error, DeliveryError):
        return error
    own = type(error)([failed.record], error.why)
    own.hint, own.__cause__ = error.hint, error.__cause__
    return own


def _positive(**options: float) -> None:
    for name, value in options.items():
        if not value > 0:
            raise ConfigError(f"{name} must be more than 0, not {value!r}")


def _reasonable(**options: float) -> None:
    for name, value in options.items():
        if not value >= 0:
            raise ConfigError(f"{name} must not be negative, not {value!r}")
