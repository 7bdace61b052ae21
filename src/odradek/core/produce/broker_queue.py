"""One broker as the accumulator sees it: whose turn it is, and what it has not answered.

Nothing here looks at more lanes than it takes: each lane's first batch stands in one of three queues by age. A lane
whose first batch has changed is filed anew, and what it leaves behind in a queue is dropped when it comes to the front.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf

from odradek.core.produce.batch import PartitionQueue, ProduceBatch, ProduceRequest

__all__ = ["REQUEST_PARTS", "BrokerQueue"]

REQUEST_PARTS = 10_000
"""Most partitions in one request: 0.7 counts them in a signed i16 (specification 1.1)."""


_SUSPECT, _CLOSED, _OPEN = _KINDS = range(3)


_Entry = tuple[int, int, int, ProduceBatch]
"""Age of a batch, number of the filing, kind, batch."""


class BrokerQueue:
    """See the module. `flying`: requests without an outcome, oldest first. `left_at`: when the last one was taken
    that was not a suspect's. `hurried`: somebody waits for the outcome of a record that is still here, or was."""

    def __init__(self) -> None:
        self.flying: list[ProduceRequest] = []
        self.left_at = -inf
        self.hurried = False
        self._queues: tuple[list[_Entry], ...] = tuple([] for _ in _KINDS)
        self._filings = count()

    def file(self, lane: PartitionQueue, head: ProduceBatch) -> bool:
        """`head` is what the lane wants to send next. Returns whether that is news."""
        kind = _SUSPECT if head.suspect else _OPEN if lane.open is head else _CLOSED
        filed = lane.filed
        if filed is not None and filed[3] is head and filed[2] == kind:
            return False
        lane.filed = entry = (head.number, next(self._filings), kind, head)
        heappush(self._queues[kind], entry)
        return True

    @property
    def idle(self) -> bool:
        """Nobody waits for anything. (Not to be idle proves nothing.)"""
        return not any(self._queues)

    @property
    def suspect(self) -> ProduceBatch | None:
        """The oldest batch that has to go alone."""
        entry = self._first(_SUSPECT)
        return None if entry is None else entry[3]

    def due(self, latency: float) -> float | None:
        """When a batch is due that is not a suspect: closed ones were when they were born."""
        entry = self._first(_CLOSED)
        if entry is not None:
            return entry[3].born
        entry = self._first(_OPEN)
        if entry is None:
            return None
        born = entry[3].born
        if self.flying:
            return born + latency
        return born if self.hurried else max(born, min(born, self.left_at) + latency)

    def portion(self, size: int) -> list[ProduceBatch]:
        """The oldest batches that are no suspects, up to so many bytes, but at least one; they are filed no more."""
        portion: list[ProduceBatch] = []
        while len(portion) < REQUEST_PARTS:
            closed, opened = self._first(_CLOSED), self._first(_OPEN)
            entry = opened if closed is None or (opened is not None and opened < closed) else closed
            if entry is None or (portion and entry[3].size > size):
                break
            batch = entry[3]
            batch.lane.filed = None
            heappop(self._queues[entry[2]])
            portion.append(batch)
            size -= batch.size
        return portion

    def _first(self, kind: int) -> _Entry | None:
        queue = self._queues[kind]
        while queue and queue[0][3].lane.filed is not queue[0]:
            heappop(queue)
        return queue[0] if queue else None
