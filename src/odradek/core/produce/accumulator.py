"""Records on their way out: batches per partition, and when a broker's next request is due.

Pure: the clock is an argument (`now`, seconds, any origin), and so is randomness (`randrange`). The accumulator returns
    what its caller has to do: `append` returns the brokers that became due, outcomes come as `Effects`. The rules:

- A batch grows until it is full or its first record is `latency` old; then a request takes the oldest batch of every
  partition of that broker (MULTIPRODUCE), up to `request_bytes`. If nothing is in flight to a broker, it is sent
  everything at once if a caller waits for one of the records, or if its last request left `latency` ago: otherwise a
  quick broker would be sent request after request with next to nothing in each.
- Order per partition: batches leave in the order they were made, several of one partition may be in flight. A batch
  that comes back waits until nothing of its partition is in flight, and goes out again before everything newer -
  unless `reorder`, which sends it at once.
- A batch that may have been written keeps its records, its bytes and its partition until it has an outcome: it is
  never split or moved, and its time runs out only once no answer can come any more.
- Where brokers recognise repeated batches (`ProducerSequences`), a batch gets its stamp when it is first taken.
- A record that was sent to a partition which its topic does not have waits until the caller has read the metadata
  again (`missing`), and is then rejected (`refuse_missing`).
- A batch that the driver's `RefusalPolicy` isolates shares a request only with others like it, with nothing else in
  flight to that broker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from odradek import engine
from odradek.core.interfaces import (
    PartitionBatch,
    PartitionResult,
    ProducerRecord,
    ProducerSequences,
    RefusalPolicy,
    RoutingTable,
)
from odradek.core.produce.batch import (
    PACKED_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    AccumulatorLimits,
    BrokerProduceRequest,
    Effects,
    ProduceBatch,
)
from odradek.core.produce.batch_states import BatchState
from odradek.core.produce.broker_queue import BrokerQueue
from odradek.core.produce.live_batches import LiveBatches
from odradek.core.produce.packed_records import EncodedRecords, PackedRecords
from odradek.core.produce.partition_queue import PartitionQueue, TopicQueues
from odradek.core.produce.partitioners import Partitioner
from odradek.core.produce.router import Router
from odradek.engine import PackedBytes
from odradek.errors import MessageTooLarge, NotWritten, OdradekError, OutcomeUnknown, Rejected
from odradek.types import TopicPartition

__all__ = ["Accumulator"]

_new_effects = tuple.__new__  # without a Python function that names the fields


class Accumulator:
    """Records of all partitions on their way to brokers. Every method is synchronous; the caller does the waiting.

    Args:
        limits: See `AccumulatorLimits`.
        partitioner: Returns an index, or None (no preference), for a record.
        randrange: Randomness, for records without preference.
        record_size: Bytes of a record on the wire.
        table: The leaders of partitions now.
        refusals: The policy for batches of lost requests.
        sequences: Identifies batches, if the producer is idempotent.
        numbers_by_broker: See `LogAccess.names_brokers`.

    Attributes:
        live: Every batch without an outcome.
        table: The routing table.
        topics: Every topic that was added.
        missing: Not empty: records wait for partitions that their topics do not have, see `take_missing`.
        record_overhead: Bytes on the wire of a record that is only a value, beyond that value.
    """

    def __init__(
        self,
        limits: AccumulatorLimits,
        partitioner: Partitioner,
        randrange: Callable[[int], int],
        record_size: Callable[[ProducerRecord], int],
        table: RoutingTable,
        refusals: RefusalPolicy,
        sequences: ProducerSequences | None = None,
        *,
        numbers_by_broker: bool = False,
    ) -> None:
        self.limits, self.table = limits, table
        self.live = LiveBatches(limits, record_size, sequences)
        self._router = Router(limits, partitioner, randrange, table, self.live, sequences, numbers_by_broker)
        self.topics: Mapping[str, TopicQueues] = self._router.topics
        self.missing: Mapping[PartitionQueue, None] = self._router.missing
        self.record_overhead = self.live.sizes.record
        self._buffer_bytes = limits.buffer_bytes
        self._due = self._router.due
        self._refusals, self._sequences = refusals, sequences
        self._metadata_is_stale = False
        self._back_off: dict[PartitionQueue, int] = {}
        self._fatal: OdradekError | None = None

    def broker_queue(self, broker: int) -> BrokerQueue:
        """Return what waits for a broker: always the same object."""
        return self._router.broker(broker)

    # ---- records in ----------------------------------------------------------------------------------------

    def fits(self, size: int) -> bool:
        """Return True if the buffer has space now for a record of `size` bytes on the wire."""
        return self.live.buffered_bytes + size + RECORD_OVERHEAD_BYTES <= self._buffer_bytes

    def appender(self, max_record: int, max_run: int) -> Callable[[object, object, object], bool | None]:
        """Return what appends a record (topic, value, key) like `append`, without partition and waiter, if that is all
        there is to do, and otherwise returns False or None: see `engine.Appender`.

        Args:
            max_record: Size of the largest record that need not be checked (bytes).
            max_run: Each time that it would append so many records, it returns None.
        """
        if not self._router.keyless_is_sticky:
            return lambda topic, value, key: False
        sizes = self.live.sizes
        return engine.active.Appender(
            self._router.topics,
            self.live,
            self._router.key_hash,
            sizes.record,
            sizes.key_byte,
            RECORD_OVERHEAD_BYTES,
            max_record,
            max_run,
        ).append

    def append(
        self,
        topic: TopicQueues,
        size: int,
        record: bytes | ProducerRecord | EncodedRecords,
        partition: TopicPartition | None,
        waiter: object | None,
        now: float,
    ) -> Collection[int] | None:
        """Append a record, which may be a plain value, to its partition's batch. The records of a batch that is encoded
        already are a batch of their own.

        Args:
            topic: Its topic.
            size: Its bytes on the wire.
            record: The record, or an encoded batch, which has an explicit partition.
            partition: Where it has to go, if its sender said so.
            waiter: The caller that waits for its outcome.
            now: The time (s).

        Returns:
            The brokers that became due: a first batch began, one is full, or the first of the records has a waiter.
            None if the buffer has no space; nothing was appended.

        Raises:
            ConfigError: The partitioner chose a partition that does not exist; nothing was appended. So it is with
                what the partitioner itself raises.
        """
        if type(record) is EncodedRecords:
            return self._append_encoded(topic, size, record, partition, waiter, now)
        live, sticky = self.live, False
        buffered = live.buffered_bytes + size + RECORD_OVERHEAD_BYTES
        if buffered > self._buffer_bytes:
            return None
        if partition is not None:
            queue = topic.queues.get(partition) or self._router.partition(topic, partition)
        elif self._router.keyless_is_sticky and (type(record) is bytes or record[1] is None):
            queue, sticky = topic.sticky, True
        else:
            chosen = self._router.choose(topic, record.key if isinstance(record, tuple) else None)
            queue, sticky = (topic.sticky, True) if chosen is None else (chosen, False)
        # Records for an explicit partition never share a batch with others: if the partition loses its broker, those
        # that may move do, and these wait.
        batch = queue.open
        if batch is None or batch.size + size > batch.max_size or batch.explicit_partition is (partition is None):
            batch = self._router.next_batch(queue, size, now, explicit=partition is not None, sticky=sticky)
        batch.records.append(record)
        batch.size += size
        live.buffered_bytes = buffered
        if waiter is not None:
            rows = len(batch.records)
            batch.add_waiter(rows - 1, rows, waiter)
            broker_queue = batch.queue.broker_queue
            if broker_queue is not None and not broker_queue.has_waiters:
                broker_queue.has_waiters, self._due[broker_queue.broker] = True, None
        if batch.size >= batch.max_size:  # in `batch.queue`, which `next_batch` may have chosen instead of `queue`
            batch.queue.close()
        return self._pop_due() if self._due else ()

    def _append_encoded(
        self,
        topic: TopicQueues,
        size: int,
        records: EncodedRecords,
        partition: TopicPartition | None,
        waiter: object,
        now: float,
    ) -> Collection[int] | None:
        assert partition is not None
        if not self.fits(size):
            return None
        queue = self._router.partition(topic, partition)
        batch = self._router.next_batch(queue, size, now, explicit=True, sticky=False, packed=True)
        batch.records, batch.size = records, size
        self.live.buffered_bytes += batch.buffered_bytes
        batch.add_waiter(0, len(records), waiter)
        self._note_waiter(batch)
        batch.queue.close()
        return self._pop_due()

    def append_run(
        self,
        topic: TopicQueues,
        values: Sequence[object],
        start: int,
        max_record: int,
        partition: TopicPartition | None,
        waiter: object,
        now: float,
    ) -> tuple[int, Collection[int]]:
        """Append plain values from `values[start:]` (a list, or a `PackedBytes`) to one batch: as many as it and the
        buffer have space for, up to the first that is anything but bytes or longer than `max_record`. Or so with
        `PackedRecords`, which have keys only for an explicit partition.

        Appends nothing if the partitioner has to see each record.

        Returns:
            The index after the last one appended, and the brokers that became due.
        """
        sticky, packed = partition is None, not isinstance(values, list)
        end, size = self._fit(values, start, start + 1, self._buffer_bytes, 0, max_record)
        size += self.record_overhead
        if end == start or (sticky and not self._router.keyless_is_sticky) or not self.fits(size):
            return start, ()
        queue = topic.sticky if partition is None else self._router.partition(topic, partition)
        batch = queue.open
        full = batch is None or batch.size + size > batch.max_size
        if batch is None or full or packed or batch.explicit_partition is sticky:
            batch = self._router.next_batch(queue, size, now, explicit=not sticky, sticky=sticky, packed=packed)
        stop = self._guess_stop(values, start, size, batch.max_size - batch.size)
        end = self._fill(batch, values, start, stop, max_record, waiter)
        return end, self._pop_due()

    def _guess_stop(self, values: Sequence[object], start: int, size: int, space: int) -> int:
        """Return how far to look at most: the pure engine looks at everything it is given before it says what fits.
        For a list it is a guess by the first value's size; if it was too low, the next call continues in the batch."""
        if type(values) is PackedRecords:
            return len(values)
        if not isinstance(values, PackedBytes):
            return min(start + max(1, space // size), len(values))
        offsets, entry = values.offsets, self.record_overhead
        base = offsets[start] + entry * start
        beyond = bisect_right(range(len(offsets)), space + base, start, key=lambda row: offsets[row] + entry * row)
        return max(start + 1, beyond - 1)

    def _fill(
        self, batch: ProduceBatch, values: Sequence[object], start: int, stop: int, max_record: int, waiter: object
    ) -> int:
        """Append values from `start` on, at least one, and close the batch if it takes no more. Return the index after
        the last one."""
        entry, fit, packed = self.record_overhead, self._fit, not isinstance(values, list)
        overhead = PACKED_OVERHEAD_BYTES if packed else RECORD_OVERHEAD_BYTES
        end, size = fit(values, start, stop, batch.max_size - batch.size, entry, max_record)
        if end == start:  # larger than a batch: it travels alone
            end, size = fit(values, start, start + 1, self._buffer_bytes, entry, max_record)
        # Records that fit into the batch may not fit into the buffer, where each record takes more than its bytes on
        # the wire.
        space = self._buffer_bytes - self.live.buffered_bytes
        if size + (entry + overhead) * (end - start) > space:
            end, size = fit(values, start, end, space, entry + overhead, max_record)
        size += entry * (end - start)
        first = len(batch)
        batch.add(values, start, end)
        batch.size += size
        self.live.buffered_bytes += size + overhead * (end - start)
        batch.add_waiter(first, len(batch), waiter)
        self._note_waiter(batch)
        if batch.size >= batch.max_size or packed:
            batch.queue.close()
        return end

    def _note_waiter(self, batch: ProduceBatch) -> None:
        """Note that a caller waits for a record of a batch, if that is new to the queue of its broker."""
        if (broker_queue := batch.queue.broker_queue) is not None and not broker_queue.has_waiters:
            broker_queue.has_waiters, self._due[broker_queue.broker] = True, None

    def _fit(
        self, values: Sequence[object], start: int, stop: int, max_bytes: int, row_bytes: int, max_row: int
    ) -> tuple[int, int]:
        """Count how many of `values[start:stop]` fit (see `Engine.fit`)."""
        if type(values) is PackedRecords:
            return self.live.sizes.fit(values, start, stop, max_bytes, row_bytes, max_row)
        return engine.active.fit(values, start, stop, max_bytes, row_bytes, max_row)

    def _pop_due(self) -> Collection[int]:
        if not self._due:
            return ()
        due = tuple(self._due)
        self._due.clear()
        return due

    # ---- outcomes ------------------------------------------------------------------------------------------

    def complete(self, request: BrokerProduceRequest, results: Sequence[PartitionResult] | None) -> Effects:
        """Handle the broker's answer: one result per batch, in order, or None: it has them all. A batch whose error is
        retriable is sent again; all others are finished."""
        self._router.brokers[request.broker].remove(request)
        if results is None:
            self.live.finish_all(request.batches)
        else:
            for batch, result in zip(request.batches, results, strict=True):
                if batch.state is not BatchState.FINISHED:
                    self._apply_result(batch, result)
        self._return_all(request)
        return self.effects()

    def _apply_result(self, batch: ProduceBatch, result: PartitionResult) -> None:
        if self._sequences is not None:
            result = self._sequences.resolve(batch, result)
        if result.error is None:
            self.live.finish(batch, result)
        elif batch.may_be_written or not self._divide(batch, result, result.error):
            self._refused_by_broker(batch, result.error)

    def _divide(self, batch: ProduceBatch, result: PartitionResult, error: OdradekError) -> bool:
        """Send parts of a batch that was refused as a whole: its halves if it was too large, or what is left without
        the records that the broker objects to. Return False if there is nothing to divide."""
        count = len(batch)
        bad = {row: why for row, why in result.record_errors.items() if 0 <= row < count}
        is_too_large = isinstance(error, MessageTooLarge)
        if count < 2 or not (is_too_large or (bad and not error.retriable)) or self.live.decode(batch) is not None:
            return False
        if is_too_large:
            batch.queue.topic.note_too_large(batch)
            batch.queue.take_back(self.live.replace(batch, (range(count // 2), range(count // 2, count))))
            return True
        for row in sorted(bad):
            refused = self.live.part(batch, batch.queue, [row])
            refused.fail(Rejected, f"{error}: {bad[row]}" if bad[row] else str(error), error)
            self.live.finish(refused)
        batch.queue.take_back(self.live.replace(batch, [[row for row in range(count) if row not in bad]]))
        return True

    def _refused_by_broker(self, batch: ProduceBatch, error: OdradekError) -> None:
        batch.note_failure(error)
        self._metadata_is_stale |= error.refresh_metadata
        self._note_fatal(error)
        if not error.retriable:
            kind = OutcomeUnknown if batch.may_be_written else Rejected
            batch.fail(kind, str(error), error)
            self.live.finish(batch)
        elif batch.overdue:
            self.live.time_out(batch, batch.overdue)
        else:
            self._back_off[batch.queue] = batch.attempts
            batch.queue.take_back([batch])

    def retry(self, request: BrokerProduceRequest, error: OdradekError, *, answered: bool = False) -> Effects:
        """Handle a request that failed as a whole; `error.sent` says whether it may have been applied. Its batches are
        sent again, except those whose time is over and those that the refusal policy gives up, and none if trying again
        cannot help.

        Args:
            answered: It was isolated, and the broker had just answered on its connection.
        """
        self._router.brokers[request.broker].remove(request)
        batches = [batch for batch in request.batches if not batch.finished]
        for batch in batches:
            batch.note_failure(error)
        self._metadata_is_stale |= error.refresh_metadata
        self._note_fatal(error)
        # 0.7 refuses a produce by closing the connection, as if the line had been cut. So the policy has such batches
        # sent again in smaller requests, each after a question that the broker answers: one that is closed upon even
        # so, twice, is refused. Later releases answer, and their policy refuses nothing here.
        refused = self._refusals.request_failed(batches, error, answered=answered)
        for batch in batches:
            if not error.retriable:
                batch.fail(OutcomeUnknown if batch.may_be_written else NotWritten, str(error), error)
                self.live.finish(batch)
            elif batch in refused:
                why, hint = self._refusals.describe(batch)
                batch.fail(OutcomeUnknown, why, error, hint)
                self.live.finish(batch)
            elif batch.overdue:
                self.live.time_out(batch, batch.overdue)
            else:
                batch.queue.take_back([batch])
        self._return_all(request)
        return self.effects()

    def requeue(self, request: BrokerProduceRequest) -> Effects:
        """Take back a request that was not sent after all, as if it had not been taken."""
        self._router.brokers[request.broker].remove(request)
        for batch in request.batches:
            batch.forget_attempt()
            if not batch.finished:
                batch.queue.take_back([batch])
        self._return_all(request)
        return self.effects()

    def split(self, request: BrokerProduceRequest, batch: ProduceBatch) -> None:
        """Take a batch of several records, which was never sent, out of a request; it goes out in two halves, unless
        its records cannot be decoded for that."""
        if (error := self.live.decode(batch)) is not None:
            self.reject(request, batch, error)
            return
        request.batches.remove(batch)
        batch.answer()
        batch.queue.in_flight -= 1
        batch.queue.topic.note_too_large(batch)
        middle = len(batch) // 2
        batch.queue.merge(self.live.replace(batch, (range(middle), range(middle, len(batch)))))
        self._regroup(batch.queue)

    def reject(self, request: BrokerProduceRequest, batch: ProduceBatch, error: OdradekError) -> None:
        """Finish a batch of a request that cannot be written in any way, so that it was not sent."""
        request.batches.remove(batch)
        batch.answer()
        batch.queue.in_flight -= 1
        batch.fail(OutcomeUnknown if batch.may_be_written else Rejected, str(error), error)
        self.live.finish(batch)
        self._regroup(batch.queue)
        batch.queue.offer()  # what could not be sent while this one was in flight

    def effects(self) -> Effects:
        """Return what is to be done since the last call."""
        live = self.live
        due = self._pop_due() if self._due else ()
        effects = _new_effects(Effects, (live.finished, due, self._metadata_is_stale, self._back_off, self._fatal))
        live.finished, self._metadata_is_stale, self._back_off, self._fatal = [], False, {}, None
        return effects

    def _note_fatal(self, error: OdradekError) -> None:
        if error.fatal or error.fence:
            self._fatal = self._fatal or error

    def _return_all(self, request: BrokerProduceRequest) -> None:
        for batch in request.batches:
            queue = batch.queue
            if queue.returned or queue.orphaned:
                self._regroup(queue)
            elif queue.candidate is None and queue.batches:
                queue.offer()  # what could not be sent while others were in flight

    def _regroup(self, queue: PartitionQueue) -> None:
        """Queue batches again that came back, once nothing of their partition is in flight that may come back too."""
        # Batches 1, 2 and 3 were in flight, 2 came back, and 1 and 3 may come back as well: sent now, 2 might be
        # written before 1 or behind 3. With sequences the broker refuses 3 until it has 2, so that it comes back
        # (OUT_OF_ORDER_SEQUENCE_NUMBER). They are sorted by age when the last one has a result.
        if queue.in_flight and not self.limits.reorder:
            queue.offer()
            return
        if queue.returned:
            if self._sequences is not None:
                self._give_up(self._sequences.resolve_refusals(queue.partition))
            returned, queue.returned = queue.returned, ()
            queue.merge([batch for batch in returned if not batch.finished])
        # The table lost the partition while its batches were in flight: only now is it known what was not written.
        if queue.orphaned and not queue.in_flight:
            self._router.reassign(queue)

    def _give_up(self, batches: Iterable[PartitionBatch]) -> None:
        """Finish batches that cannot be sent again, because the broker would not recognise them."""
        for batch in batches:
            assert isinstance(batch, ProduceBatch)
            kind = OutcomeUnknown if batch.may_be_written else NotWritten
            batch.fail(kind, f"cannot be sent again: {batch.last_error}", batch.last_error)
            self.live.finish(batch)

    # ---- routing -------------------------------------------------------------------------------------------

    def topic(self, name: str, compression: str) -> TopicQueues:
        """Add a topic. Its records wait until it is `learned`."""
        batch_bytes = self.limits.batch_bytes
        if compression != "none":
            batch_bytes = min(batch_bytes, self.limits.compressed_batch_bytes)
        topic = self._router.topics[name] = TopicQueues(name, compression, batch_bytes)
        return topic

    def forget_missing(self) -> None:
        """Forget the topics that have neither partitions nor records: they were deleted."""
        waiting = {batch.queue.topic for batch in self.live}
        for topic in tuple(self.topics.values()):
            if topic.is_missing and topic not in waiting:
                del self._router.topics[topic.name]

    def learned(self, topic: TopicQueues) -> Effects:
        """Follow the routing table, which has this topic now; before, partitions were only guessed."""
        topic.known = True
        self._router.route_topic(topic)
        return self.effects()

    def offer_all(self) -> Effects:
        """Look again at every partition: more batches may be sent than before."""
        for topic in self.topics.values():
            for queue in topic.queues.values():
                if queue.candidate is None and queue.batches:
                    queue.offer()
        return self.effects()

    def route(self, table: RoutingTable) -> Effects:
        """Replace the routing table."""
        self.table = table
        self._router.route(table)
        return self.effects()

    def take_missing(self) -> dict[PartitionQueue, int]:
        """Return the queues that are `missing`, to be passed to `still_missing` and `refuse_missing` after the metadata
        has been read again. Records that come later are noted in `missing` again."""
        return self._router.take_missing()

    def still_missing(self, queues: Mapping[PartitionQueue, int]) -> dict[PartitionQueue, int]:
        """Return those of the queues whose partitions the table still does not have, and that have records."""
        return self._router.still_missing(queues)

    def refuse_missing(self, queues: Mapping[PartitionQueue, int]) -> Effects:
        """Reject the records of those queues whose partitions the table still does not have."""
        self._router.refuse_missing(queues)
        return self.effects()
