"""The batches that wait for one broker, when its next request is due, and its requests in flight.

Nothing here looks at more partitions than it sends: the first batch of each waits here, ordered by age. A batch that
is withdrawn stays where it is and is dropped when it comes to the front, which `ProduceBatch.waiting_queue` tells.

A batch that is sent without waiting takes along all others. A batch that has waited for its `latency`, or is full,
takes along only batches that have waited nearly as long: with many partitions, whose batches have few records, the
younger ones still fill.
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

SEND_EARLY_FRACTION = 0.75
"""Share of its latency that a batch must have waited to be sent early, with another that is due. If all batches were
sent early, each would have fewer records, with keys over 1,000 partitions; if none were, every batch would be a
request."""

_by_age = attrgetter("sequence")


def _age_of_first(queue: deque[ProduceBatch]) -> int:
    return queue[0].sequence


class BrokerQueue:
    """Batches ready to be sent to one broker, and its requests in flight.

    Args:
        broker: Its id.
        limits: The limits of the accumulator.
        due: Brokers that became due: this one is added to them.
        sequences: Identifies batches, if the producer is idempotent.

    Attributes:
        waiting: Batches that take more records.
        closed: Batches that take none, so that they are due.
        isolated: Batches that must be sent isolated. If these three are empty, no batch waits; if no batch waits, they
            may still have withdrawn ones.
        backing_off: Partitions of which nothing is sent before a time (s), because the broker answered "later".
        in_flight: Requests without an outcome, oldest first.
        last_sent_at: When the last request was taken that was not isolated (s).
        has_waiters: A caller waits for the outcome of a record that is still here, or was: it need not wait for its
            latency.
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
        self.waiting: deque[ProduceBatch] = deque()
        self.closed: deque[ProduceBatch] = deque()
        self.isolated: deque[ProduceBatch] = deque()
        self.backing_off: dict[PartitionQueue, float] = {}
        self._back_off_ends = inf  # the first of these times, or earlier
        self._limits, self._due, self._sequences = limits, due, sequences
        self._in_order = True

    # ---- batches in ----------------------------------------------------------------------------------------

    def offer(self, queue: PartitionQueue) -> None:
        """Follow a partition whose first batch is another one, or takes no more records. Its batches do not wait here
        while earlier ones have yet to come back, unless `reorder`."""
        # Batches 1 and 2 are in flight, 1 comes back to be sent again, and 3 is queued: if 3 left now, it would be
        # written before 1. While `returned` has a batch, nothing is offered; `_regroup` does it once 2 has a result.
        head = queue.batches[0] if queue.batches and (self._limits.reorder or not queue.returned) else None
        if (
            queue in self.backing_off
            or queue.in_flight >= self._limits.partition_in_flight
            or (
                head is not None and self._sequences is not None and not self._sequences.may_send(head, queue.in_flight)
            )
        ):
            head = None
        # An older batch was queued again, or the candidate was finished while it waited here.
        if queue.candidate is not head and queue.candidate is not None:
            self.withdraw(queue)
        if head is None:
            return
        waiting = self.isolated if head.isolate_with else self.waiting if queue.open is head else self.closed
        if head.waiting_queue is waiting:
            return
        # The broker becomes due when a batch is full, or when the oldest that still fills is another one: the first, or
        # one behind a withdrawn one. A batch behind another that waits is taken along, or becomes due after it.
        if waiting is self.closed or not waiting or waiting[0].waiting_queue is not waiting:
            self._due[self.broker] = None
        elif head.sequence < waiting[-1].sequence:  # it comes back, or from a broker that led its partition before
            self._in_order = False
            self._due[self.broker] = None
        waiting.append(head)
        head.wait_in(waiting)
        queue.candidate = head

    def offer_newest(self, queue: PartitionQueue, batch: ProduceBatch) -> None:
        """Queue the batch that was just opened, if it is the only one of its partition, and nothing keeps it from
        being sent: what `offer` does then, in less time."""
        waiting = self.waiting
        if not waiting or waiting[0].waiting_queue is not waiting:
            self._due[self.broker] = None
        waiting.append(batch)
        batch.wait_in(waiting)
        queue.candidate = batch

    def withdraw(self, queue: PartitionQueue) -> None:
        """Remove the batch of a partition, if one waits here."""
        batch, queue.candidate = queue.candidate, None
        if batch is not None:
            batch.withdraw()

    def back_off(self, queue: PartitionQueue, until: float) -> None:
        """Send nothing of a partition before a time (s); all others continue. Its next leader is asked at once."""
        if queue.broker_queue is self:
            self.backing_off[queue] = max(until, self.backing_off.get(queue, until))
            self._back_off_ends = min(until, self._back_off_ends)
            self.withdraw(queue)

    def forget(self, queue: PartitionQueue) -> None:
        """Remove a partition that another broker leads now."""
        self.withdraw(queue)
        self.backing_off.pop(queue, None)

    def _end_back_offs(self, now: float) -> None:
        for queue in [queue for queue, until in self.backing_off.items() if until <= now]:
            del self.backing_off[queue]
            queue.offer()
        self._back_off_ends = min(self.backing_off.values(), default=inf)

    # ---- requests out --------------------------------------------------------------------------------------

    def next_request(self, now: float) -> BrokerProduceRequest | None:
        """Return the next request if one is due; its batches are in flight from now on."""
        if not self._may_send():
            return None
        if now >= self._back_off_ends:
            self._end_back_offs(now)
        isolated = bool(self.isolated) and self._oldest(self.isolated) is not None
        until = self._due_until(now, isolated)
        if until == -inf:
            return None
        request = BrokerProduceRequest(self.broker, [], isolated)
        self._fill(request, isolated, until)
        if not request.batches:
            return None
        for batch in request.batches:
            if batch.compression != "none" and batch.encoded is None:
                request.compressed = True
            queue = batch.queue
            queue.batches.popleft()
            queue.in_flight += 1
            queue.candidate = None
            if queue.open is batch:
                queue.open = None
            if queue.batches:  # the next one of the partition may be in flight at the same time, but in another request
                self.offer(queue)
        self.in_flight.append(request)
        if not isolated:
            self.last_sent_at = now
        self.has_waiters = self.has_waiters and bool(self.waiting or self.closed or self.isolated)
        return request

    def next_due(self) -> float | None:
        """Return when `next_request` may have something (s) if nothing else happens before; None: only an answer can
        help."""
        if not self._may_send():
            return None
        if (isolated := self._oldest(self.isolated)) is not None:
            return None if self.in_flight else isolated.created_at
        if (closed := self._oldest(self.closed)) is not None:
            return closed.created_at
        oldest = self._oldest(self.waiting)
        if oldest is None:
            return self._back_off_ends if self.backing_off else None
        return min(self._due_at(oldest), self._back_off_ends if self.backing_off else inf)

    def _may_send(self) -> bool:
        if self._sequences is not None and not self._sequences.ready:
            return False
        in_flight = self.in_flight
        return not in_flight or (len(in_flight) < self._limits.in_flight and not in_flight[-1].isolated)

    def _due_until(self, now: float, isolated: bool) -> float:
        """Return the age of the youngest batches that are sent now, as the time they began (s); -inf: none is due."""
        if isolated:
            return -inf if self.in_flight else inf
        if self.has_waiters and self._in_order and not self.in_flight:
            return inf  # what `_due_at` says of any batch then: since it began
        aged = now - SEND_EARLY_FRACTION * self._limits.latency
        oldest = self._oldest(self.waiting)
        if oldest is not None and (due := self._due_at(oldest)) <= now:
            return inf if due == oldest.created_at else max(aged, oldest.created_at)
        return -inf if self._oldest(self.closed) is None else aged

    def _due_at(self, oldest: ProduceBatch) -> float:
        """Return when batches that take more records are due (s)."""
        created_at, latency = oldest.created_at, self._limits.latency
        if self.in_flight:
            return created_at + latency
        if self.has_waiters:
            return created_at
        return max(created_at, min(created_at, self.last_sent_at) + latency)

    def _fill(self, request: BrokerProduceRequest, isolated: bool, until: float) -> None:
        """Move the oldest batches that may share a request, up to `request_bytes`, but at least one. Batches that take
        more records are moved only if they began by then."""
        batches, sequences = request.batches, self._sequences
        maximum, left = MAX_REQUEST_PARTITIONS, self._limits.request_bytes
        queues = [self.isolated if isolated else self.closed or self.waiting]
        if not isolated and self.closed and self.waiting:  # neither must starve while the other alone fills a request
            queues = sorted((self.closed, self.waiting), key=_age_of_first)
        for waiting in queues:
            while waiting and len(batches) < maximum:
                batch = waiting[0]
                if batch.waiting_queue is waiting:
                    maximum = min(maximum, batch.isolate_with) if batch.isolate_with else maximum
                    full = batches and (batch.size > left or len(batches) >= maximum)
                    if full or (batch.created_at > until and waiting is self.waiting):
                        break
                    # It might when it was offered. Meanwhile another batch of its partition may have been refused, or
                    # the transaction may have begun to end.
                    if sequences is None or sequences.may_send(batch, batch.queue.in_flight):
                        if sequences is not None and batch.stamp is None:
                            sequences.assign(batch)
                        left -= batch.size
                        batches.append(batch)
                        batch.send(request)
                    else:  # offered again when the batches of its partition that it waits for have an outcome
                        self.withdraw(batch.queue)
                waiting.popleft()

    def _oldest(self, waiting: deque[ProduceBatch]) -> ProduceBatch | None:
        """Return the first batch that was not withdrawn, after dropping those that were."""
        if not self._in_order:
            self._sort()
        while waiting:
            batch = waiting[0]
            if batch.waiting_queue is waiting:
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
            batch.answer()
            batch.queue.in_flight -= 1
