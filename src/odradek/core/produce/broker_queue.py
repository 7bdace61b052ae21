"""The batches that wait for one broker, when its next request is due, and its requests in flight.

Nothing here looks at more partitions than it sends: the first batch of each waits here, ordered by age. A batch that
is withdrawn stays where it is and is dropped when it comes to the front, which `ProduceBatch.broker_queue` tells.
"""

from __future__ import annotations

from collections import deque
from math import inf
from operator import attrgetter

from odradek.core.interfaces import ProducerSequences
from odradek.core.produce.batch import AccumulatorLimits, BrokerProduceRequest, ProduceBatch
from odradek.core.produce.partition_queue import PartitionQueue

__all__ = ["MAX_REQUEST_PARTITIONS", "BrokerQueue"]

MAX_REQUEST_PARTITIONS = 10_000
"""Maximum partitions in one request: 0.7 counts them in a signed i16 (specification 1.1)."""

_by_age = attrgetter("sequence")


class BrokerQueue:
    """Batches ready to be sent to one broker, and its requests in flight.

    Args:
        broker: Its id.
        limits: Those of the accumulator.
        due: Brokers that became due: this one is added to them.
        sequences: Identifies batches, if the producer is idempotent.

    Attributes:
        waiting: Batches that are not isolated. If it is empty, so is the queue; the reverse need not be true.
        isolated: Batches that must be sent isolated; likewise.
        in_flight: Requests without an outcome, oldest first.
        last_sent_at: When the last request was taken that was not isolated (s).
        has_waiters: A caller waits for the outcome of a record that is still here, or was: it need not wait for its
            latency.
        ready: How many batches take no more records, so that they are due.
    """

    def __init__(
        self,
        broker: int,
        limits: AccumulatorLimits,
        due: dict[int, None],
        sequences: ProducerSequences | None = None,
    ) -> None:
        self.broker = broker
        self.in_flight: list[BrokerProduceRequest] = []
        self.last_sent_at = -inf
        self.has_waiters = False
        self.ready = 0
        self.waiting: deque[ProduceBatch] = deque()
        self.isolated: deque[ProduceBatch] = deque()
        self._limits, self._due, self._sequences = limits, due, sequences
        self._in_order = True

    def _may_follow(self, queue: PartitionQueue, head: ProduceBatch) -> bool:
        """Return True if a batch may be sent behind those of its partition that are in flight."""
        if queue.in_flight >= self._limits.partition_in_flight:
            return False
        return self._sequences is None or self._sequences.may_send(head)

    # ---- batches in ----------------------------------------------------------------------------------------

    def offer(self, queue: PartitionQueue) -> None:
        """Take in that the first batch of a partition is another one, or takes no more records. None of the partition
        waits here while batches of it have yet to come back, unless `reorder`."""
        head = queue.batches[0] if queue.batches and (self._limits.reorder or not queue.returned) else None
        if head is not None and not self._may_follow(queue, head):
            head = None
        if queue.candidate is not head and queue.candidate is not None:
            self.withdraw(queue)
        if head is None:
            return
        waiting = self.isolated if head.isolate_with else self.waiting
        if queue.candidate is not head:
            if not waiting or waiting[0].broker_queue is not self:
                self._due[self.broker] = None
            elif head.sequence < waiting[-1].sequence:
                self._in_order = False
                self._due[self.broker] = None
            waiting.append(head)
            queue.candidate, head.broker_queue = head, self
        if queue.open is not head and not head.ready and not head.isolate_with:
            head.ready = True
            self.ready += 1
            self._due[self.broker] = None

    def withdraw(self, queue: PartitionQueue) -> None:
        """Remove the batch of a partition, if one waits here."""
        batch, queue.candidate = queue.candidate, None
        if batch is not None:
            self.ready -= batch.ready
            batch.broker_queue, batch.ready = None, False

    # ---- requests out --------------------------------------------------------------------------------------

    def next_request(self, now: float) -> BrokerProduceRequest | None:
        """Return the next request if one is due; its batches are in flight from now on."""
        if not self._may_send():
            return None
        waiting = self.waiting
        if self.isolated and self._oldest(self.isolated) is not None:
            if self.in_flight:
                return None
            waiting = self.isolated
        else:
            oldest = self._oldest(waiting)
            if oldest is None or self._due_at(oldest) > now:
                return None
            self.last_sent_at = now
        request = BrokerProduceRequest(self.broker, [], waiting is self.isolated)
        self._fill(request, waiting)
        self.has_waiters = self.has_waiters and bool(self.waiting or self.isolated)
        return request if request.batches else None

    def next_due(self) -> float | None:
        """Return when `next_request` may have something (s) if nothing else happens before; None: only an answer can
        help."""
        if not self._may_send():
            return None
        if (isolated := self._oldest(self.isolated)) is not None:
            return None if self.in_flight else isolated.created_at
        oldest = self._oldest(self.waiting)
        return None if oldest is None else self._due_at(oldest)

    def _may_send(self) -> bool:
        if self._sequences is not None and not self._sequences.ready:
            return False
        in_flight = self.in_flight
        return not in_flight or (len(in_flight) < self._limits.in_flight and not in_flight[-1].isolated)

    def _due_at(self, oldest: ProduceBatch) -> float:
        """Return when batches that are not isolated are due (s): one that takes no more records is due already."""
        created_at, latency = oldest.created_at, self._limits.latency
        if self.ready:
            return created_at
        if self.in_flight:
            return created_at + latency
        if self.has_waiters:
            return created_at
        return max(created_at, min(created_at, self.last_sent_at) + latency)

    def _fill(self, request: BrokerProduceRequest, waiting: deque[ProduceBatch]) -> None:
        """Put the oldest batches that may share a request in flight, up to `request_bytes`, but at least one. The next
        batches of their partitions wait from now on."""
        batches, sequences = request.batches, self._sequences
        most, left = MAX_REQUEST_PARTITIONS, self._limits.request_bytes
        while waiting and len(batches) < most:
            batch = waiting[0]
            if batch.broker_queue is self:
                most = min(most, batch.isolate_with) if batch.isolate_with else most
                if batches and (batch.size > left or len(batches) >= most):
                    break
                if sequences is None or self._has_stamp(batch, sequences):
                    left -= batch.size
                    batches.append(batch)
                    batch.broker_queue = None
                else:  # offered again when the batches of its partition that it waits for have an outcome
                    self.withdraw(batch.queue)
            waiting.popleft()
        for batch in batches:
            self.ready -= batch.ready
            batch.queued, batch.ready, batch.request = False, False, request
            batch.attempts += 1
            request.compressed |= batch.encoded is None and batch.compression != "none"
            queue = batch.queue
            queue.batches.popleft()
            queue.in_flight += 1
            queue.candidate = None
            if queue.open is batch:
                queue.open = None
            if queue.batches:
                self.offer(queue)
        if batches:
            self.in_flight.append(request)

    def _has_stamp(self, batch: ProduceBatch, sequences: ProducerSequences) -> bool:
        """Return True if a batch may be sent, after giving it its stamp."""
        if not sequences.may_send(batch):
            return False
        if batch.stamp is None:
            sequences.assign(batch)
        return True

    def _drain_isolated(self) -> list[ProduceBatch]:
        """Remove and return the oldest isolated batches that may share a request, up to `request_bytes`."""
        drained: list[ProduceBatch] = []
        most, left = MAX_REQUEST_PARTITIONS, self._limits.request_bytes
        while (batch := self._oldest(self.isolated)) is not None:
            most = min(most, batch.isolate_with)
            if len(drained) >= most or (batch.size > left and drained):
                break
            self.isolated.popleft()
            left -= batch.size
            drained.append(batch)
            batch.broker_queue = None
        return drained

    def _oldest(self, waiting: deque[ProduceBatch]) -> ProduceBatch | None:
        """Return the first batch that was not withdrawn, after dropping those that were."""
        if not self._in_order:
            self._sort()
        while waiting:
            batch = waiting[0]
            if batch.broker_queue is self:
                return batch
            waiting.popleft()
        return None

    def _sort(self) -> None:
        """Batches that were returned are older than those that came meanwhile: sort once for all of them."""
        for queue in (self.waiting, self.isolated):
            batches = sorted(queue, key=_by_age)
            queue.clear()
            queue.extend(batches)
        self._in_order = True

    # ---- outcomes ------------------------------------------------------------------------------------------

    def remove(self, request: BrokerProduceRequest) -> None:
        """Remove a request that has an outcome."""
        self.in_flight.remove(request)
        for batch in request.batches:
            batch.request = None
            batch.queue.in_flight -= 1
