"""The batches that wait for one broker, and the requests in flight to it.

Nothing here looks at more partitions than it sends: the first batch of each waits here, ordered by age. A batch that
is withdrawn stays where it is and is dropped when it comes to the front, which `ProduceBatch.broker_queue` tells.
"""

from __future__ import annotations

from collections import deque
from math import inf
from operator import attrgetter

from odradek.core.produce.batch import BrokerProduceRequest, ProduceBatch

__all__ = ["MAX_REQUEST_PARTITIONS", "BrokerQueue"]

MAX_REQUEST_PARTITIONS = 10_000
"""Maximum partitions in one request: 0.7 counts them in a signed i16 (specification 1.1)."""

_by_age = attrgetter("sequence")


class BrokerQueue:
    """Batches ready to be sent to one broker, and its requests in flight.

    Attributes:
        broker: Its id.
        in_flight: Requests without an outcome, oldest first.
        last_sent_at: When the last request was taken that was not isolated (s).
        has_waiters: A caller waits for the outcome of a record that is still here, or was.
        ready: How many batches take no more records, so that they are due.
    """

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.in_flight: list[BrokerProduceRequest] = []
        self.last_sent_at = -inf
        self.has_waiters = False
        self.ready = 0
        self._batches: deque[ProduceBatch] = deque()
        self._isolated: deque[ProduceBatch] = deque()
        self._in_order = True

    def enqueue(self, batch: ProduceBatch, ready: bool) -> bool:
        """Add a batch; `ready`: it takes no more records. Return True if the broker may be due earlier now."""
        queue = self._batches
        if batch.isolate_with:
            queue, ready = self._isolated, False
        first = not queue or queue[0].broker_queue is not self
        if not first and batch.sequence < queue[-1].sequence:
            self._in_order, first = False, True
        queue.append(batch)
        batch.broker_queue = self
        if ready:
            batch.ready = True
            self.ready += 1
        return first or ready

    def withdraw(self, batch: ProduceBatch) -> None:
        """Remove a batch."""
        self.ready -= batch.ready
        batch.broker_queue, batch.ready = None, False

    def set_ready(self, batch: ProduceBatch) -> bool:
        """Note that a batch takes no more records. Return True if that makes it due."""
        if batch.ready or batch.isolate_with:
            return False
        batch.ready = True
        self.ready += 1
        return True

    @property
    def empty(self) -> bool:
        """True if nothing waits. (False proves nothing.)"""
        return not self._batches and not self._isolated

    @property
    def oldest_isolated(self) -> ProduceBatch | None:
        """The oldest batch that must be sent isolated."""
        return self._first(self._isolated) if self._isolated else None

    def due(self, latency: float) -> float | None:
        """Return when a batch that is not isolated is due (s): one that takes no more records is due already."""
        oldest = self._first(self._batches)
        if oldest is None:
            return None
        created_at = oldest.created_at
        if self.ready:
            return created_at
        if self.in_flight:
            return created_at + latency
        if self.has_waiters:
            return created_at
        return max(created_at, min(created_at, self.last_sent_at) + latency)

    def drain(self, size: int) -> list[ProduceBatch]:
        """Remove and return the oldest batches, up to `size` bytes, but at least one."""
        drained: list[ProduceBatch] = []
        first, queue = self._first, self._batches
        while len(drained) < MAX_REQUEST_PARTITIONS:
            batch = first(queue)
            if batch is None or (batch.size > size and drained):
                break
            queue.popleft()
            self.withdraw(batch)
            drained.append(batch)
            size -= batch.size
        return drained

    def drain_isolated(self, size: int) -> list[ProduceBatch]:
        """Remove and return the oldest isolated batches that may share a request, up to `size` bytes."""
        drained: list[ProduceBatch] = []
        most = MAX_REQUEST_PARTITIONS
        while (batch := self._first(self._isolated)) is not None:
            most = min(most, batch.isolate_with)
            if len(drained) >= most or (batch.size > size and drained):
                break
            self._isolated.popleft()
            self.withdraw(batch)
            drained.append(batch)
            size -= batch.size
        return drained

    def _first(self, queue: deque[ProduceBatch]) -> ProduceBatch | None:
        if not self._in_order:
            self._sort()
        while queue:
            batch = queue[0]
            if batch.broker_queue is self:
                return batch
            queue.popleft()
        return None

    def _sort(self) -> None:
        """Batches that were returned are older than those that came meanwhile: sort once for all of them."""
        for queue in (self._batches, self._isolated):
            batches = sorted(queue, key=_by_age)
            queue.clear()
            queue.extend(batches)
        self._in_order = True
