"""The engine of readers and consumers: keeps the read-ahead filled, for streams to take from.

One `BrokerFetcher` per broker does the fetching; `core.fetch.partition_set` has the decisions of the user's side. An
error that ends a background task is raised from `check` in the user's task.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import count
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary, WeakSet

import anyio

from odradek.client.consumer.broker_fetcher import BrokerFetcher
from odradek.client.consumer.fetch_settings import FetchSettings
from odradek.client.consumer.observation import ReaderObservation
from odradek.client.tasks import ShieldedTaskGroup
from odradek.core.fetch.cursor import Cursor
from odradek.core.fetch.partition_set import PartitionSet
from odradek.core.interfaces import ProtocolDriver, RoutingTable
from odradek.core.missing_partitions import any_missing
from odradek.core.states import CursorState
from odradek.errors import Closed, CorruptMessage, OdradekError, OffsetOutOfRange
from odradek.io.notifier import Notifier
from odradek.types import Position, StartPosition, TopicPartition

__all__ = ["Fetcher"]

log = logging.getLogger("odradek.fetch")

MAX_REPORTS = 1000
"""Reports of corrupt messages kept for the user."""

REFRESH_PAUSE_S = 1.0
"""Shortest time between two refreshes of the metadata (s): while a broker is away every attempt asks for one, and in
0.7 each reads every node again."""

_taken: WeakKeyDictionary[ProtocolDriver, set[int]] = WeakKeyDictionary()
"""The numbers of the open fetchers of each cluster."""


class Fetcher(PartitionSet):
    """Reader-ahead of partitions. An asynchronous context manager; inside it, add and remove partitions at any time.

    Args:
        driver: The cluster.
        settings: Limits and waits.
        group: The group of a consumer, for the observer.
        topics: Topics whose partitions are read when there are some.
        on_table: Called with every new routing table.
        on_resolved: Awaited with a partition and the position the broker named for it (start by meaning, or reset),
            before anything is fetched from there.
        on_out_of_range: Called with a partition whose log does not have its position, before another one is asked for.
        on_truncated: Called with a partition whose log was truncated, and its end then, when it continues there.
    """

    def __init__(
        self,
        driver: ProtocolDriver,
        settings: FetchSettings,
        *,
        group: str | None = None,
        topics: Iterable[str] = (),
        on_table: Callable[[RoutingTable], None] | None = None,
        on_resolved: Callable[[TopicPartition, Position], Awaitable[None]] | None = None,
        on_out_of_range: Callable[[TopicPartition], None] | None = None,
        on_truncated: Callable[[TopicPartition, Position], None] | None = None,
    ) -> None:
        self.available = Notifier()
        """Notified when records can be taken, or no more will come."""
        super().__init__(settings.limits, self.available.notify)
        self.driver, self.settings = driver, settings
        self.observation: ReaderObservation | None = None
        """Told of records, if the cluster has an observer."""
        if driver.observer is not None:
            limit, committed = settings.limits.read_ahead_bytes, settings.decoder.read_committed
            self.observation = ReaderObservation(driver.observer, group, limit, read_committed=committed)
        self.reports: deque[CorruptMessage] = deque(maxlen=MAX_REPORTS)
        self.decompress_slots: anyio.Semaphore
        """One slot per core; its holder finds a free thread in `threads`."""
        self.threads: anyio.CapacityLimiter
        self.failure: Exception | None = None
        """The error that ended a background task."""
        self.failure_seen = False
        """True once it was raised in the user's task."""
        self._on_table, self._on_resolved, self._on_out_of_range = on_table, on_resolved, on_out_of_range
        self._on_truncated = on_truncated
        self._topics = frozenset(topics)
        self._compared: RoutingTable | None = None
        self._tasks = ShieldedTaskGroup(self.fail)
        self._brokers: dict[int, BrokerFetcher] = {}
        self._skipping: WeakSet[Cursor] = WeakSet()
        self._refreshing = self._is_stale = False
        self._closed = True
        self._number = -1

    async def __aenter__(self) -> Self:
        await self._tasks.start()
        taken = _taken.setdefault(self.driver, set())
        self._number = next(number for number in count() if number not in taken)
        taken.add(self._number)
        cores = os.cpu_count() or 1
        self.decompress_slots, self.threads = anyio.Semaphore(cores), anyio.CapacityLimiter(cores)
        self._closed = False
        self.spawn(self._follow_metadata)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        try:
            await self._tasks.stop()
        finally:
            _taken[self.driver].discard(self._number)
            if self.observation is not None:
                self.observation.ended()

    def close(self) -> None:
        """Stop delivering: a waiting task gets Closed."""
        self._closed = True
        self.available.notify()

    def spawn(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run `work` until the block ends; an error that ends it is raised from `check`."""
        self._tasks.spawn(work, *args)

    def fail(self, error: Exception) -> None:
        """End everything: the user's task gets `error`."""
        self.failure = self.failure or error
        self.available.notify()

    def check(self) -> None:
        """Raise the error that ended a background task, or Closed."""
        if self.failure is not None:
            self.failure_seen = True
            raise self.failure
        if self._closed:
            raise Closed("this reader is not open; use it inside `async with`")

    @property
    def poll_purpose(self) -> str:
        """The purpose of the connections for long polls. No other open fetcher of the cluster has it: a broker answers
        the requests of a connection one after the other, so that each would wait for the long polls of the others."""
        return f"poll {self._number}" if self._number else "poll"

    @property
    def fetches(self) -> int:
        """Requests sent so far."""
        return sum(broker.fetches for broker in self._brokers.values())

    @property
    def fetched_bytes(self) -> int:
        """Log bytes of their responses, compressed as they are in the log."""
        return sum(broker.fetched_bytes for broker in self._brokers.values())

    # ---- partitions ----

    def add(self, cursors: Iterable[Cursor]) -> None:
        """Begin to read them, if there are any; a task that waits for partitions is woken in any case."""
        table = self.driver.metadata.table
        for cursor in cursors:
            self.insert(cursor)
            self.compare_topic(cursor)
            self._assign_to_broker(cursor, table)
        if self._lacks_partitions():
            self._refresh_soon()
        self.available.notify()

    def seek(self, partition: TopicPartition, start: StartPosition, skip: int = 0) -> None:
        """Forget what was read ahead and continue from `start`, in the topic as it is known now. See `PartitionSet`."""
        super().seek(partition, start, skip)
        self.compare_topic(self.cursors[partition])

    def topic_id(self, partition: TopicPartition) -> bytes | None:
        """Return the id of the topic whose records are delivered of a partition now; None: not known."""
        cursor = self.cursors.get(partition)
        return None if cursor is None else cursor.topic_id

    def compare_topics(self) -> None:
        """Use the topics that there are now. Called before the result of a fetch counts, too: its records may be those
        of a new log, at a position in the former one."""
        table = self.driver.metadata.table
        if table is not self._compared:
            self._compared = table
            for cursor in self.cursors.values():
                self.compare_topic(cursor)

    def compare_topic(self, cursor: Cursor) -> None:
        """Reset a cursor, or let it fail, whose position is one in a topic that was deleted and made again."""
        topic_id = self.driver.metadata.table.topic_id(cursor.partition.topic)
        error = None if topic_id is None else cursor.compare_topic(topic_id, self.settings.policy.reset)
        if error is None:
            return
        self.on_out_of_range(cursor, error)
        self.on_stopped(cursor)
        if (quota := cursor.share.quota) is not None:
            quota.scheduler.enqueue(cursor)

    def clear(self) -> None:
        """Drop every partition with everything read ahead. Responses in flight no longer matter."""
        self.remove_all()
        for broker in self._brokers.values():
            broker.scheduler.clear()

    def _assign_to_broker(self, cursor: Cursor, table: RoutingTable) -> None:
        """Assign a cursor to the loops of its broker; it stays with the last one while no broker serves it."""
        leader = None if cursor.replica is None else table.brokers.get(cursor.replica)
        if leader is None and (leader := table.leader(cursor.partition)) is None:
            return
        if (broker := self._brokers.get(leader.id)) is None:
            broker = self._brokers[leader.id] = BrokerFetcher(leader.id, self)
            broker.start()
        broker.scheduler.join(cursor)

    async def _follow_metadata(self) -> None:
        table = self.driver.metadata.table
        while True:
            if self._on_table is not None:
                self._on_table(table)
            self.compare_topics()
            for cursor in self.cursors.values():
                cursor.replica = None  # another one may be nearer now: its leader knows
                self._assign_to_broker(cursor, table)
            for broker in self._brokers.values():
                broker.on_table_changed()
            self.available.notify()
            table = await self.driver.metadata.wait_for_newer(table.version, self._needed_topics)

    def _needed_topics(self) -> Collection[str]:
        return self._topics.union([cursor.partition.topic for cursor in self.cursors.values() if not cursor.at_end])

    # ---- called by broker fetchers ----

    def on_out_of_range(self, cursor: Cursor, error: OffsetOutOfRange) -> None:
        """Tell the owner that the position of a cursor is not in its log, and where it continues."""
        if cursor.state is CursorState.RESOLVING:
            log.warning("%s: %s; continuing at %r", cursor.partition, error.message(), cursor.start)
        if self._on_out_of_range is not None and (cursor.at_end or not isinstance(cursor.start, int)):
            self._on_out_of_range(cursor.partition)

    def on_stopped(self, cursor: Cursor) -> None:
        """Deliver the error of a cursor that failed without a fetch, or count it as ended or restarted."""
        cursor.update()
        self.available.notify()

    def report_skipped(self, cursor: Cursor) -> None:
        """Keep reports for the user. One line in the log when messages begin to be skipped, and one afterwards."""
        if reports := cursor.take_reports():
            if cursor not in self._skipping:
                self._skipping.add(cursor)
                log.warning("skipping corrupt messages: %s", reports[0])
            self.reports += reports
        if not reports or cursor.at_end:
            self._skipping.discard(cursor)
            log.warning("%s: %d corrupt messages skipped", cursor.partition, cursor.end_of_skipped())

    async def on_position_resolved(self, partition: TopicPartition, position: Position) -> None:
        """Tell the owner that the broker named a position."""
        if self._on_resolved is not None:
            await self._on_resolved(partition, position)

    def on_truncated(self, partition: TopicPartition, end: Position) -> None:
        """Tell the owner that the log was truncated to `end`, from where it is read on."""
        if self._on_truncated is not None:
            self._on_truncated(partition, end)

    @property
    def held_bytes(self) -> int:
        """Memory of what is read ahead (bytes)."""
        return sum([broker.scheduler.held_bytes for broker in self._brokers.values()])

    def set_replica(self, cursor: Cursor, broker_id: int | None) -> None:
        """Fetch a partition from a replica that its leader prefers (KIP-392), or from its leader again."""
        if cursor.assigned and cursor.replica != broker_id:
            cursor.replica = broker_id
            self._assign_to_broker(cursor, self.driver.metadata.table)

    def refresh_metadata(self, partition: TopicPartition | None = None) -> None:
        """Read the metadata again: at once, or a moment after the last time. Not after an error of a partition whose
        topic does not exist, which is looked for in any case."""
        exists = partition is None or self.driver.metadata.table.partitions(partition.topic)
        if not (exists or self.driver.logs.names_brokers):
            return
        self._refresh_soon()

    def _lacks_partitions(self) -> bool:
        """Return True if a partition is read that the routing table does not have."""
        if self.driver.logs.names_brokers:
            return False
        reading = [partition for partition, cursor in self.cursors.items() if not cursor.at_end]
        return any_missing(reading, self.driver.metadata.table)

    def _refresh_soon(self) -> None:
        self._is_stale = True
        if not self._refreshing:
            self._refreshing = True
            self.spawn(self._refresh_metadata)

    async def _refresh_metadata(self) -> None:
        failed = False
        try:
            while self._is_stale or self._lacks_partitions():
                self._is_stale = False
                try:
                    await self.driver.metadata.refresh()
                    failed = False
                except OdradekError as error:  # what failed is retried, and asks again
                    if not failed:
                        log.warning("cannot refresh metadata: %s", error)
                    failed = True
                await anyio.sleep(REFRESH_PAUSE_S)
        finally:
            self._refreshing = False
