"""Records on their way out: batches per partition, and when a broker's next request is due.

Pure: the clock is an argument (`now`, seconds, any origin), and so is randomness (`randrange`). What has to be done
outside is returned: `append` returns the brokers that became due, outcomes come as `Effects`. The rules:

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
- A batch that the driver's `RefusalPolicy` isolates shares a request only with others like it, with nothing else in
  flight to that broker.
- Records of a partition that lost its broker go to the topic's other partitions, keyed ones by the new list, before
  newer ones there; records sent to an explicit partition wait for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter

from odradek import arguments, engine
from odradek.core.interfaces import (
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
    FlushWaiter,
    PartitionQueue,
    ProduceBatch,
    TopicQueues,
)
from odradek.core.produce.broker_queue import BrokerQueue
from odradek.core.produce.partitioners import Partitioner
from odradek.engine import PackedBytes
from odradek.errors import ConfigError, MessageTooLarge, NotWritten, OdradekError, OutcomeUnknown, Rejected
from odradek.types import TopicPartition

__all__ = ["Accumulator"]

_by_age = attrgetter("sequence")


class Accumulator:
    """Records of all partitions on their way to brokers. Every method is synchronous; the caller does the waiting.

    Args:
        limits: See `AccumulatorLimits`.
        partitioner: Returns an index, or None (no preference), for a record.
        randrange: Randomness, for records without preference.
        record_size: Bytes of a record on the wire.
        table: Who serves what now.
        refusals: What a lost request says about its batches.
        sequences: Identifies batches, if the producer is idempotent.
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
    ) -> None:
        self.limits, self.table = limits, table
        self.topics: dict[str, TopicQueues] = {}
        self.live: dict[ProduceBatch, None] = {}
        self.buffered_bytes = 0
        self.record_overhead = record_size(ProducerRecord(b""))
        """Bytes on the wire of a record that is only a value, beyond that value."""
        self._keyless_is_sticky: bool = getattr(partitioner, "keyless_is_sticky", False)
        self._partitioner, self._randrange, self._record_size = partitioner, randrange, record_size
        self._refusals, self._sequences = refusals, sequences
        self._brokers: dict[int, BrokerQueue] = {}
        self._flushes: list[FlushWaiter] = []
        self._sequence = 0
        self._finished: list[ProduceBatch] = []
        self._due: dict[int, None] = {}
        self._metadata_is_stale = self._back_off = False
        self._fatal: OdradekError | None = None

    # ---- records in ----------------------------------------------------------------------------------------

    def fits(self, size: int) -> bool:
        """Return True if the buffer has space now for a record of `size` bytes on the wire."""
        return self.buffered_bytes + size + RECORD_OVERHEAD_BYTES <= self.limits.buffer_bytes

    def append(
        self,
        topic: TopicQueues,
        record: bytes | ProducerRecord,
        size: int,
        now: float,
        partition: TopicPartition | None = None,
        waiter: object = None,
    ) -> Collection[int]:
        """Append a record, which may be a plain value, to its partition's batch.

        Returns:
            The brokers that became due: a first batch began, one is full, or the first of the records has a waiter.

        Raises:
            ConfigError: The partitioner chose a partition that does not exist; nothing was appended. So it is with
                what the partitioner itself raises.
        """
        if partition is None:
            queue = self._choose(topic, record.key if isinstance(record, tuple) else None, size)
        else:
            queue = self._queue(topic, partition)
        batch, limit = queue.open, self.limits.batch_bytes
        if batch is None or batch.size + size > limit or batch.explicit_partition is (partition is None):
            batch = self._begin(queue, now, partition is not None)
        batch.records.append(record)
        batch.size += size
        self.buffered_bytes += size + RECORD_OVERHEAD_BYTES
        if waiter is not None:
            self._add_waiter(batch, len(batch.records) - 1, waiter)
        if batch.size >= limit:
            self._close(queue)
        return self._pop_due() if self._due else ()

    def append_run(
        self,
        topic: TopicQueues,
        values: Sequence[object],
        start: int,
        max_record: int,
        now: float,
        partition: TopicPartition | None,
        waiter: object,
    ) -> tuple[int, Collection[int]]:
        """Append plain values from `values[start:]` (a list, or a `PackedBytes`) to one batch: as many as it and the
        buffer have space for, up to the first that is anything but bytes or longer than `max_record`.

        Appends nothing if the partitioner has to see each record.

        Returns:
            The index after the last one appended, and the brokers that became due.
        """
        first = values[start]
        if type(first) is not bytes or len(first) > max_record or not (partition or self._keyless_is_sticky):
            return start, ()
        size = self.record_overhead + len(first)
        if not self.fits(size):
            return start, ()
        queue = self._choose(topic, None, size) if partition is None else self._queue(topic, partition)
        batch = self._batch_for(queue, size, now, partition is not None, isinstance(values, PackedBytes))
        stop = self._guess_stop(values, start, size, self.limits.batch_bytes - batch.size)
        end = self._fill(batch, values, start, stop, max_record, waiter)
        return end, self._pop_due()

    def _guess_stop(self, values: Sequence[object], start: int, size: int, space: int) -> int:
        """Return how far to look at most: the pure engine looks at everything it is given before it says what fits.
        For a list it is a guess by the first value's size; if it was too low, the next call continues in the batch."""
        if not isinstance(values, PackedBytes):
            return min(start + max(1, space // size), len(values))
        offsets, entry = values.offsets, self.record_overhead
        base = offsets[start] + entry * start
        beyond = bisect_right(range(len(offsets)), space + base, start, key=lambda row: offsets[row] + entry * row)
        return max(start + 1, beyond - 1)

    def _batch_for(self, queue: PartitionQueue, size: int, now: float, explicit: bool, packed: bool) -> ProduceBatch:
        """Return the open batch that a record of this size goes into."""
        batch = queue.open
        full = batch is None or batch.size + size > self.limits.batch_bytes
        if batch is None or full or packed or batch.explicit_partition is not explicit:
            batch = self._begin(queue, now, explicit)
        return batch

    def _fill(
        self, batch: ProduceBatch, values: Sequence[object], start: int, stop: int, max_record: int, waiter: object
    ) -> int:
        """Append values from `start` on, at least one, and close the batch if it takes no more. Return the index after
        the last one."""
        entry, fit = self.record_overhead, engine.active.fit
        overhead = PACKED_OVERHEAD_BYTES if isinstance(values, PackedBytes) else RECORD_OVERHEAD_BYTES
        end, size = fit(values, start, stop, self.limits.batch_bytes - batch.size, entry, max_record)
        if end == start:  # larger than a batch: it travels alone
            end, size = fit(values, start, start + 1, self.limits.buffer_bytes, entry, max_record)
        space = self.limits.buffer_bytes - self.buffered_bytes
        if size + (entry + overhead) * (end - start) > space:
            end, size = fit(values, start, end, space, entry + overhead, max_record)
        size += entry * (end - start)
        first = len(batch)
        batch.add(values, start, end)
        batch.size += size
        self.buffered_bytes += size + overhead * (end - start)
        self._add_waiter(batch, first, waiter)
        if batch.size >= self.limits.batch_bytes or isinstance(values, PackedBytes):
            self._close(batch.queue)
        return end

    def _choose(self, topic: TopicQueues, key: bytes | None, size: int) -> PartitionQueue:
        if not topic.choices:
            return topic.unassigned
        if key is not None or not self._keyless_is_sticky:
            queue = self._preferred(topic, key)
            if queue is not None:
                return queue
        queue = topic.sticky
        if queue.open is not None and queue.open.size + size > self.limits.batch_bytes:
            self._close(queue)
        if queue.open is None:
            queue = topic.sticky = topic.choices[self._randrange(len(topic.choices))]
        return queue

    def _preferred(self, topic: TopicQueues, key: bytes | None) -> PartitionQueue | None:
        count = len(topic.choices)
        index = self._partitioner(topic.name, key, count)
        if index is None:
            return None
        try:
            if index >= 0:
                return topic.choices[index]
        except (IndexError, TypeError):
            pass
        raise ConfigError(f"the partitioner chose {arguments.shown(index)} of {count} partitions of {topic.name}")

    def _queue(self, topic: TopicQueues, partition: TopicPartition) -> PartitionQueue:
        queue = topic.queues.get(partition)
        if queue is None:
            queue = topic.queues[partition] = PartitionQueue(topic, partition)
            self._update_leader(queue)
        return queue

    def _begin(self, queue: PartitionQueue, now: float, explicit: bool) -> ProduceBatch:
        self._sequence += 1
        batch = queue.open = ProduceBatch(queue, self._sequence, now, explicit)
        self.live[batch] = None
        batch.queued = True
        queue.batches.append(batch)
        self._offer(queue)
        return batch

    def _add_waiter(self, batch: ProduceBatch, first: int, waiter: object) -> None:
        """Note who waits for the records of an open batch from `first` on."""
        batch.add_waiter(first, len(batch.records), waiter)
        queue = batch.queue
        if queue.broker_queue is not None and not queue.broker_queue.has_waiters:
            queue.broker_queue.has_waiters = True
            self._due[queue.broker_queue.broker] = None

    def _close(self, queue: PartitionQueue) -> None:
        """Add nothing more to the open batch, which is due now."""
        queue.open = None
        self._offer(queue)

    def _offer(self, queue: PartitionQueue) -> None:
        """Offer the first batch of a partition, if it may be sent, to its broker, which may be due then."""
        broker, head, candidate = queue.broker_queue, None, queue.candidate
        if broker is not None and queue.batches and not (queue.returned and not self.limits.reorder):
            head = queue.batches[0]
            if self._sequences is not None and not self._sequences.may_send(head):
                head = None
        if candidate is not head and candidate is not None and candidate.broker_queue is not None:
            candidate.broker_queue.withdraw(candidate)
        queue.candidate = head
        if broker is None or head is None:
            return
        ready = queue.open is not head
        if broker.enqueue(head, ready) if candidate is not head else ready and broker.set_ready(head):
            self._due[broker.broker] = None

    def _pop_due(self) -> Collection[int]:
        due, self._due = self._due, {}
        return due

    # ---- requests out --------------------------------------------------------------------------------------

    def has_nothing(self, broker: int) -> bool:
        """Return True if nothing waits for a broker: a quick look before `next_request`."""
        return self._broker(broker).empty

    def next_request(self, broker: int, now: float) -> BrokerProduceRequest | None:
        """Return the next request for a broker if one is due; its batches are in flight from now on."""
        queue = self._broker(broker)
        if not self._may_send(queue):
            return None
        if queue.oldest_isolated is not None:
            if queue.in_flight:
                return None
            return self._send(queue, broker, queue.drain_isolated(self.limits.request_bytes), isolated=True)
        due = queue.due(self.limits.latency)
        if due is None or due > now:
            return None
        queue.last_sent_at = now
        batches = queue.drain(self.limits.request_bytes)
        if self._sequences is not None:
            batches = self._in_sequence(batches, self._sequences)
        request = self._send(queue, broker, batches, isolated=False) if batches else None
        queue.has_waiters = queue.has_waiters and not queue.empty
        return request

    def _in_sequence(self, batches: list[ProduceBatch], sequences: ProducerSequences) -> list[ProduceBatch]:
        """Return the batches that may be sent, with stamps. The others are offered again when the batches of their
        partition that they wait for have an outcome."""
        allowed = []
        for batch in batches:
            if not sequences.may_send(batch):
                batch.queue.candidate = None
                continue
            if batch.stamp is None:
                sequences.assign(batch)
            allowed.append(batch)
        return allowed

    def next_due(self, broker: int) -> float | None:
        """Return when `next_request` may have something (s) if nothing else happens before; None: only an answer can
        help."""
        queue = self._broker(broker)
        if not self._may_send(queue):
            return None
        if (isolated := queue.oldest_isolated) is not None:
            return None if queue.in_flight else isolated.created_at
        return queue.due(self.limits.latency)

    def in_flight(self, broker: int) -> Sequence[BrokerProduceRequest]:
        """Return the requests of a broker without an outcome, oldest first."""
        return tuple(self._broker(broker).in_flight)

    def _may_send(self, queue: BrokerQueue) -> bool:
        if self._sequences is not None and not self._sequences.ready:
            return False
        in_flight = queue.in_flight
        return len(in_flight) < self.limits.in_flight and not (in_flight and in_flight[-1].isolated)

    def _send(
        self, queue: BrokerQueue, broker: int, batches: list[ProduceBatch], *, isolated: bool
    ) -> BrokerProduceRequest:
        request = BrokerProduceRequest(broker, batches, isolated)
        for batch in batches:
            partition = batch.queue
            partition.batches.popleft()
            partition.in_flight += 1
            partition.candidate = None
            if partition.open is batch:
                partition.open = None
            if partition.batches:
                self._offer(partition)
            batch.queued, batch.request = False, request
            batch.attempts += 1
        queue.in_flight.append(request)
        return request

    def _broker(self, broker: int) -> BrokerQueue:
        queue = self._brokers.get(broker)
        if queue is None:
            queue = self._brokers[broker] = BrokerQueue(broker)
        return queue

    # ---- outcomes ------------------------------------------------------------------------------------------

    def complete(self, request: BrokerProduceRequest, results: Sequence[PartitionResult]) -> Effects:
        """Take in the broker's answer: one result per batch, in order. A batch whose error is retriable is sent again;
        all others are finished."""
        self._remove_in_flight(request)
        for batch, result in zip(request.batches, results, strict=True):
            if batch.finished:
                continue
            if self._sequences is not None:
                result = self._sequences.resolve(batch, result)
            if result.error is None:
                batch.result = result
                self.finish(batch)
            elif not batch.may_be_written and self._divide(batch, result, result.error):
                pass
            else:
                self._refused_by_broker(batch, result.error)
        self._return_all(request)
        return self.effects()

    def _divide(self, batch: ProduceBatch, result: PartitionResult, error: OdradekError) -> bool:
        """Send parts of a batch that was refused as a whole: its halves if it was too large, or what is left without
        the records that the broker objects to. Return False if there is nothing to divide."""
        count = len(batch)
        if isinstance(error, MessageTooLarge) and count > 1:
            batch.queue.returned += self._replace(batch, (range(count // 2), range(count // 2, count)))
            return True
        bad = {row: why for row, why in result.record_errors.items() if 0 <= row < count}
        if not bad or count < 2 or error.retriable:
            return False
        for row in sorted(bad):
            refused = self._part(batch, batch.queue, [row])
            refused.fail(Rejected, f"{error}: {bad[row]}" if bad[row] else str(error), error)
            self.finish(refused)
        batch.queue.returned += self._replace(batch, [[row for row in range(count) if row not in bad]])
        return True

    def _replace(self, batch: ProduceBatch, parts: Iterable[Sequence[int]]) -> list[ProduceBatch]:
        """Replace a batch that was not written by batches of these rows of it, and return them."""
        made = [self._part(batch, batch.queue, rows) for rows in parts if rows]
        if self._sequences is not None:
            self._sequences.divide(batch, made)
        self._forget(batch)
        return made

    def _refused_by_broker(self, batch: ProduceBatch, error: OdradekError) -> None:
        batch.last_error = error
        batch.may_be_written |= error.sent
        self._metadata_is_stale |= error.refresh_metadata
        self._back_off |= error.retriable
        self._note_fatal(error)
        if not error.retriable:
            kind = OutcomeUnknown if batch.may_be_written else Rejected
            batch.fail(kind, str(error), error)
            self.finish(batch)
        elif batch.overdue:
            self.time_out(batch)
        else:
            batch.queue.returned.append(batch)

    def retry(self, request: BrokerProduceRequest, error: OdradekError, *, answered: bool = False) -> Effects:
        """Take in that a request failed as a whole; `error.sent` says whether it may have been applied. Its batches are
        sent again, except those whose time is over and those that the refusal policy gives up, and none if trying again
        cannot help.

        Args:
            answered: It was isolated, and the broker had just answered on its connection.
        """
        self._remove_in_flight(request)
        batches = [batch for batch in request.batches if not batch.finished]
        for batch in batches:
            batch.last_error = error
            batch.may_be_written |= error.sent
        self._back_off = error.retriable and not answered
        self._metadata_is_stale |= error.refresh_metadata
        self._note_fatal(error)
        refused = self._refusals.request_failed(batches, error, answered=answered)
        for batch in batches:
            if not error.retriable:
                batch.fail(OutcomeUnknown if batch.may_be_written else NotWritten, str(error), error)
                self.finish(batch)
            elif batch in refused:
                why, hint = self._refusals.describe(batch)
                batch.fail(OutcomeUnknown, why, error, hint)
                self.finish(batch)
            elif batch.overdue:
                self.time_out(batch)
            else:
                batch.queue.returned.append(batch)
        self._return_all(request)
        return self.effects()

    def requeue(self, request: BrokerProduceRequest) -> Effects:
        """Take back a request that was not sent after all, as if it had not been taken."""
        self._remove_in_flight(request)
        for batch in request.batches:
            batch.attempts -= 1
            if not batch.finished:
                batch.queue.returned.append(batch)
        self._return_all(request)
        return self.effects()

    def split(self, request: BrokerProduceRequest, batch: ProduceBatch) -> None:
        """Take a batch of several records, which was never sent, out of a request; it goes out in two halves."""
        request.batches.remove(batch)
        batch.request = None
        batch.queue.in_flight -= 1
        middle = len(batch) // 2
        self._merge(batch.queue, self._replace(batch, (range(middle), range(middle, len(batch)))))
        self._regroup(batch.queue)

    def reject(self, request: BrokerProduceRequest, batch: ProduceBatch, error: OdradekError) -> None:
        """Finish a batch of a request that cannot be written in any way, so that it was not sent."""
        request.batches.remove(batch)
        batch.request = None
        batch.queue.in_flight -= 1
        batch.fail(OutcomeUnknown if batch.may_be_written else Rejected, str(error), error)
        self.finish(batch)
        self._regroup(batch.queue)

    def finish(self, batch: ProduceBatch) -> None:
        """End a batch that has an outcome: its buffer space is free, and the next `Effects` has it."""
        batch.finished = True
        self._forget(batch)
        self._finished.append(batch)

    def effects(self) -> Effects:
        """Return what is to be done since the last call."""
        effects = Effects(self._finished, self._pop_due(), self._metadata_is_stale, self._back_off, self._fatal)
        self._finished, self._metadata_is_stale, self._back_off, self._fatal = [], False, False, None
        return effects

    def _note_fatal(self, error: OdradekError) -> None:
        if error.fatal or error.fence:
            self._fatal = self._fatal or error

    def _forget(self, batch: ProduceBatch) -> None:
        """Remove a batch that is finished, or replaced by its parts."""
        queue = batch.queue
        del self.live[batch]
        self.buffered_bytes -= batch.buffered_bytes
        if batch.stamp is not None and self._sequences is not None:
            self._sequences.release(batch, may_be_written=batch.may_be_written or batch.request is not None)
        if queue.open is batch:
            queue.open = None
        if batch.queued:
            batch.queued = False
            queue.batches.remove(batch)
            self._offer(queue)
        if self._flushes:
            for flush in self._flushes:
                flush.left -= batch.sequence <= flush.last
            self._flushes = [flush for flush in self._flushes if flush.left]

    def _remove_in_flight(self, request: BrokerProduceRequest) -> None:
        self._broker(request.broker).in_flight.remove(request)
        for batch in request.batches:
            batch.request = None
            batch.queue.in_flight -= 1

    def _return_all(self, request: BrokerProduceRequest) -> None:
        for batch in request.batches:
            queue = batch.queue
            if queue.returned or queue.orphaned:
                self._regroup(queue)
            elif self._sequences is not None:
                self._offer(queue)  # what could not be sent while others were in flight

    def _regroup(self, queue: PartitionQueue) -> None:
        """Queue batches again that came back, once nothing of their partition is in flight that may come back too."""
        if queue.in_flight and not self.limits.reorder:
            self._offer(queue)
            return
        if queue.returned:
            returned, queue.returned = queue.returned, []
            self._merge(queue, [batch for batch in returned if not batch.finished])
        if queue.orphaned and not queue.in_flight:
            self._reassign(queue)

    def _merge(self, queue: PartitionQueue, batches: list[ProduceBatch]) -> None:
        """Queue batches by age. The open batch is closed: it must not keep growing ahead of a newer one."""
        if batches:
            for batch in batches:
                batch.queued = True
            queue.batches = deque(sorted([*batches, *queue.batches], key=_by_age))
            queue.open = None
        self._offer(queue)

    def _part(self, whole: ProduceBatch, queue: PartitionQueue, rows: Sequence[int]) -> ProduceBatch:
        """Return some rows of a batch, in their order, as a batch of its age. Forget the whole afterwards."""
        part = ProduceBatch(queue, whole.sequence, whole.created_at, whole.explicit_partition)
        waiters = whole.waiters()
        part.attempts, part.last_error = whole.attempts, whole.last_error
        if rows[-1] - rows[0] + 1 == len(rows):
            part.add(whole.records, rows[0], rows[-1] + 1)
        else:
            part.records = [whole.records[row] for row in rows]
        for row, waiter in enumerate([waiters[row] for row in rows]):
            if waiter is not None:
                part.add_waiter(row, row + 1, waiter)
        part.size = sum(map(self._size_of, part.records))
        self.live[part] = None
        self.buffered_bytes += part.buffered_bytes
        for flush in self._flushes:
            flush.left += part.sequence <= flush.last
        return part

    def _size_of(self, record: bytes | ProducerRecord) -> int:
        return self._record_size(record) if isinstance(record, ProducerRecord) else self.record_overhead + len(record)

    # ---- time ----------------------------------------------------------------------------------------------

    def expired(self, now: float) -> list[ProduceBatch]:
        """Return the batches older than `deliver_within` that are not `overdue` yet."""
        latest = now - self.limits.deliver_within
        return [batch for batch in self.live if batch.created_at <= latest and not batch.overdue]

    def next_expiry(self, now: float) -> float:
        """Return the time before which no batch expires (s)."""
        created = (batch.created_at for batch in self.live if not batch.overdue)
        return min(created, default=now) + self.limits.deliver_within

    def time_out(self, batch: ProduceBatch, why: str = "") -> None:
        """Finish a batch whose time is over, saying what is known about it; so `effects` has it."""
        why = why or f"not delivered within {self.limits.deliver_within:g} s"
        topic = batch.queue.topic
        where = batch.partition if batch.queue is not topic.unassigned else f"{topic.name}: {topic.why}"
        tries = f"{batch.attempts} attempt{'' if batch.attempts == 1 else 's'}"
        last = f", the last failed: {batch.last_error}" if batch.last_error is not None else ""
        kind = OutcomeUnknown if batch.may_be_written or batch.request is not None else NotWritten
        batch.fail(kind, f"{why} ({where}; {tries}{last})", batch.last_error)
        self.finish(batch)

    def flush(self) -> FlushWaiter:
        """Close what is open, so that it is due; the result tells when all of it has an outcome."""
        for batch in self.live:
            if batch.queue.open is batch:
                self._close(batch.queue)
        flush = FlushWaiter(self._sequence, len(self.live))
        if flush.left:
            self._flushes.append(flush)
        return flush

    # ---- routing -------------------------------------------------------------------------------------------

    def topic(self, name: str, compression: str) -> TopicQueues:
        """Add a topic. Its records wait until it is `learned`."""
        topic = self.topics[name] = TopicQueues(name, compression)
        return topic

    def learned(self, topic: TopicQueues) -> Effects:
        """Take in that the routing table has this topic; before, it could only guess."""
        topic.known, topic.why = True, "no live broker has it"
        self._route(topic)
        return self.effects()

    def route(self, table: RoutingTable) -> Effects:
        """Replace the routing table."""
        self.table = table
        for topic in self.topics.values():
            if topic.known:
                self._route(topic)
        return self.effects()

    def _route(self, topic: TopicQueues) -> None:
        topic.choices = [self._queue(topic, partition) for partition in self.table.partitions(topic.name)]
        choices = set(topic.choices)
        for queue in (topic.unassigned, *topic.queues.values()):
            self._update_leader(queue)
            queue.orphaned = queue not in choices
            if queue.orphaned and queue.open is not None and not queue.open.explicit_partition:
                queue.open = None  # nothing more belongs here
            if queue.orphaned and not queue.in_flight:
                self._reassign(queue)

    def _update_leader(self, queue: PartitionQueue) -> None:
        """Follow the broker that serves the partition now."""
        known = queue.topic.known and queue is not queue.topic.unassigned
        leader = self.table.leader(queue.partition) if known else None
        broker = None if leader is None else self._broker(leader.id)
        if broker is not queue.broker_queue:
            queue.broker_queue = broker
            self._offer_again(queue)

    def _offer_again(self, queue: PartitionQueue) -> None:
        if queue.candidate is not None and queue.candidate.broker_queue is not None:
            queue.candidate.broker_queue.withdraw(queue.candidate)
        queue.candidate = None
        self._offer(queue)

    def _reassign(self, queue: PartitionQueue) -> None:
        """Move what may be moved to partitions that can be chosen; it stays while there are none."""
        topic = queue.topic
        movable = [batch for batch in queue.batches if not (batch.explicit_partition or batch.may_be_written)]
        if not topic.choices or not movable:
            return
        # One target for all records without preference: what was in one partition stays in order.
        target = topic.choices[self._randrange(len(topic.choices))]
        moved: dict[PartitionQueue, list[ProduceBatch]] = {}
        for batch in movable:
            for chosen, rows in self._destinations(batch, target).items():
                moved.setdefault(chosen, []).append(self._part(batch, chosen, rows))
            self._forget(batch)
        for chosen, parts in moved.items():
            self._merge(chosen, parts)

    def _destinations(self, batch: ProduceBatch, target: PartitionQueue) -> dict[PartitionQueue, list[int]]:
        """Return which rows go where. A record that the partitioner fails on is rejected, alone."""
        rows: dict[PartitionQueue, list[int]] = {}
        for row, record in enumerate(batch.records):
            key = record.key if isinstance(record, ProducerRecord) else None
            try:
                chosen = self._preferred(target.topic, key) or target
            except Exception as error:  # the partitioner is the user's
                failed = self._part(batch, batch.queue, [row])
                failed.fail(Rejected, f"the partitioner failed: {type(error).__name__}: {error}", error)
                self.finish(failed)
            else:
                rows.setdefault(chosen, []).append(row)
        return rows
