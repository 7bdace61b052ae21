"""Events of a reader or a consumer, for an observer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING

import anyio

from odradek.core.fetch.cursor import CursorFetch
from odradek.core.fetch.row_queue import RowQueue
from odradek.core.observer_calls import ObserverCalls
from odradek.errors import OdradekError
from odradek.types import Broker, Columns, Position, TopicPartition

if TYPE_CHECKING:
    from odradek.core.interfaces import Assignment, Membership, RebalanceListener

__all__ = ["ReaderObservation"]

_numbers = count(1)


class ReaderObservation:
    """Report one reader or consumer to an observer. Nothing here is called per record.

    Args:
        calls: The observer.
        group: The group of a consumer.
        limit: The read-ahead (bytes).
        read_committed: The end of a partition is that of what is committed.
    """

    def __init__(self, calls: ObserverCalls, group: str | None, limit: int, *, read_committed: bool) -> None:
        self._calls, self._group, self._limit, self._read_committed = calls, group, limit, read_committed
        self._number = next(_numbers)
        self._ends: dict[TopicPartition, Position] = {}
        self._assigned: set[TopicPartition] = set()  # as far as the observer was told

    # ---- records --------------------------------------------------------------------------------------------

    def fetched(self, broker: Broker, fetches: Iterable[CursorFetch]) -> None:
        """A response has arrived. Parts without records and errors are no events."""
        for fetch in fetches:
            end = fetch.last_stable if self._read_committed else fetch.high_watermark
            partition = fetch.cursor.partition
            if end is not None:
                self._ends[partition] = end
            if fetch.received or fetch.error is not None:
                self._calls.part_fetched(self._number, broker, partition, fetch.received, end, fetch.error)

    def read_ahead(self, held: int) -> None:
        """The read-ahead takes so much memory now (bytes)."""
        self._calls.read_ahead_level(self._number, held, self._limit)

    def ended(self) -> None:
        """The reader or consumer has ended."""
        self._calls.read_ahead_level(self._number, 0, 0)

    def delivered(self, partition: TopicPartition, columns: Columns, queue: RowQueue | None = None) -> None:
        """These rows, taken from this queue if there is one, are handed to the application. Those of them that it was
        told of before they were put back are no event."""
        if queue is not None and queue.reported:
            again = min(queue.reported, len(columns))
            queue.reported -= again
            columns = columns.slice(again, len(columns))
            if not len(columns):
                return
        end = self._ends.get(partition)
        lag = None if end is None else max(0, end - columns.next_positions[-1])
        self._calls.batch_delivered(self._number, self._group, partition, len(columns), columns.payload_bytes, lag)

    # ---- the group ------------------------------------------------------------------------------------------

    async def commit(
        self,
        commit: Callable[[Mapping[TopicPartition, Position], Mapping[TopicPartition, str]], Awaitable[None]],
        positions: Mapping[TopicPartition, Position],
        metadata: Mapping[TopicPartition, str],
    ) -> None:
        """Commit, and report the outcome. A commit that is cancelled is no event: it has none."""
        begun = anyio.current_time()
        try:
            await commit(positions, metadata)
        except OdradekError as error:
            self._committed(positions, begun, error)
            raise
        self._committed(positions, begun, None)

    def _committed(
        self, positions: Mapping[TopicPartition, Position], begun: float, error: OdradekError | None
    ) -> None:
        self._calls.commit_finished(self._group, positions, anyio.current_time() - begun, error)

    def listener(self, consumer: RebalanceListener, membership: Membership) -> RebalanceListener:
        """Return a listener that reports rebalances, and passes them on to a consumer."""
        return _ObservedListener(self, consumer, membership)

    def left(self, begun: float) -> None:
        """The consumer has left its group, which began at this time."""
        self.taken("left", tuple(self._assigned), "the consumer has left its block", anyio.current_time() - begun)

    def assigned(self, partitions: Collection[TopicPartition], reason: str, begun: float) -> None:
        """Partitions were given to this consumer, in a rebalance that began at this time."""
        self._assigned.update(partitions)
        seconds = anyio.current_time() - begun
        self._calls.rebalanced(self._group, "assigned", tuple(partitions), reason, seconds)

    def taken(self, kind: str, partitions: Collection[TopicPartition], reason: str, seconds: float) -> None:
        """Partitions were taken from this consumer. Those that were lost while they were assigned are no event."""
        known = tuple([partition for partition in partitions if partition in self._assigned])
        self._assigned.difference_update(known)
        for partition in known:
            self._ends.pop(partition, None)
        self._calls.rebalanced(self._group, kind, known, reason, seconds)


class _ObservedListener:
    """Report what a consumer is told of its group (`core.interfaces.RebalanceListener`)."""

    def __init__(self, observation: ReaderObservation, consumer: RebalanceListener, membership: Membership) -> None:
        self._observation, self._consumer, self._membership = observation, consumer, membership
        self._begun: float | None = anyio.current_time()  # of the rebalance that has not ended with an assignment
        self._reason, self._losses = "joined the group", 0

    async def assign(self, assignment: Assignment) -> None:
        losses, begun = self._losses, anyio.current_time() if self._begun is None else self._begun
        await self._consumer.assign(assignment)
        if losses == self._losses:
            reason, self._reason, self._begun = self._reason, "the assignment has changed", None
            self._observation.assigned(assignment.partitions.keys(), reason, begun)

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        begun = anyio.current_time()
        self._begun = begun if self._begun is None else self._begun
        await self._consumer.revoke(partitions)
        seconds = anyio.current_time() - begun
        self._observation.taken("revoked", partitions, "the assignment has changed", seconds)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        self._begun = anyio.current_time() if self._begun is None else self._begun
        self._reason, self._losses = "joined the group again", self._losses + 1
        self._consumer.lost(partitions)
        self._observation.taken("lost", partitions, self._membership.why_lost, 0.0)
