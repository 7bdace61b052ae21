"""The engine under reader and consumer: it keeps the read-ahead filled and gives it to streams.

One `BrokerFetcher` per broker does the fetching; here is what they share, and the reader's side. Whatever kills a
background task is raised from `take` in the user's task.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

import anyio

from odradek.client.consumer.broker_fetcher import BrokerFetcher
from odradek.client.consumer.cursor import Cursor
from odradek.client.consumer.fetch_settings import FetchSettings, fetch_settings
from odradek.client.consumer.positions import ask_positions
from odradek.client.consumer.scheduler import StreamQuota, offer
from odradek.client.notifier import Notifier
from odradek.client.tasks import ShieldedTaskGroup
from odradek.core.fetch.read_ahead import ReadAheadBudget
from odradek.core.interfaces import ProtocolDriver, RoutingTable
from odradek.core.states import CursorState
from odradek.errors import Closed, ConfigError, CorruptMessage
from odradek.types import Columns, Position, StartPosition, TopicPartition

__all__ = ["FetchSettings", "Fetcher", "Notifier", "ask_positions", "fetch_settings"]

log = logging.getLogger("odradek.fetch")


class Fetcher:
    """Keeps partitions read ahead. An asynchronous context manager; inside it, add and remove partitions at will.

    Args:
        era: The cluster.
        settings: Limits and waits.
        on_table: Called with every new routing table.
        on_found: Awaited with a partition and the position the broker named for it (start by meaning, or reset),
            before anything is fetched from there.
    """

    def __init__(
        self,
        driver: ProtocolDriver,
        settings: FetchSettings,
        *,
        on_table: Callable[[RoutingTable], None] | None = None,
        on_found: Callable[[TopicPartition, Position], Awaitable[None]] | None = None,
    ) -> None:
        self.driver, self.settings = driver, settings
        self.budget = ReadAheadBudget(settings.limits)
        self.cursors: dict[TopicPartition, Cursor] = {}
        self.reports: deque[CorruptMessage] = deque(maxlen=1000)
        self.news = Notifier()
        """Rings when there is something to take, or nothing ever again."""
        self.hands: anyio.Semaphore
        self.threads: anyio.CapacityLimiter
        """For opening compressed messages: as many as there are cores. Whoever has one of `hands` finds a thread."""
        self._on_table = on_table
        self._on_found = on_found
        self._background = ShieldedTaskGroup(self.fail)
        self._links: dict[int, BrokerFetcher] = {}
        self._lists: dict[int, deque[Cursor]] = {}
        self.failure: Exception | None = None
        """What killed a background task."""
        self.failure_seen = False
        """The user's task got it."""
        self._closed = True

    async def __aenter__(self) -> Self:
        await self._background.start()
        cores = os.cpu_count() or 1
        self.hands, self.threads = anyio.Semaphore(cores), anyio.CapacityLimiter(cores)
        self._closed = False
        self.spawn(self._route)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self._background.stop()

    def close(self) -> None:
        """Deliver nothing any more: whoever waits gets Closed."""
        self._closed = True
        self.news.ring()

    def spawn(self, work: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run `work` until the block ends; what it dies of is raised from `take`."""
        self._background.spawn(work, *args)

    def fail(self, error: Exception) -> None:
        """Everything is over: the user's task gets `error`."""
        self.failure = self.failure or error
        self.news.ring()

    def check(self) -> None:
        """Raise what killed a background task, or Closed."""
        if self.failure is not None:
            self.failure_seen = True
            raise self.failure
        if self._closed:
            raise Closed("it is used as `async with`, and not outside of it")

    # ---- partitions ----

    def add(self, cursors: Iterable[Cursor]) -> None:
        """Begin to read them, if there are any; whoever waits for partitions is woken in any case."""
        table = self.driver.metadata.table
        for cursor in cursors:
            if (former := self.cursors.get(cursor.partition)) is not None:
                self._drop(former)
            self.cursors[cursor.partition] = cursor
            cursor.owned = True
            self._note(cursor)
            self._lead(cursor, table)
        self.news.ring()

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop these partitions with everything read ahead; others go on. Responses in flight no longer matter."""
        for partition in partitions:
            if (cursor := self.cursors.pop(partition, None)) is not None:
                quota = cursor.account
                self._drop(cursor)
                if isinstance(quota, StreamQuota):
                    quota.turns.searching.pop(cursor, None)
                    quota.stir()
        self.news.ring()

    def clear(self) -> None:
        """Drop every partition with everything read ahead. Answers in flight count for nothing."""
        for cursor in self.cursors.values():
            self._drop(cursor)
        self.cursors.clear()
        self._lists.clear()
        for link in self._links.values():
            link.turns.clear()
        self.news.ring()

    def _drop(self, cursor: Cursor) -> None:
        cursor.owned = False
        cursor.join(None)
        self.budget.partitions -= cursor.counted

    def cursor(self, partition: TopicPartition) -> Cursor:
        """Raises ConfigError for a partition that is not read here."""
        try:
            return self.cursors[partition]
        except KeyError:
            raise ConfigError(f"{partition} is not read here (now)") from None

    def hold(self, reason: str, partitions: Iterable[TopicPartition]) -> None:
        """Neither deliver nor fetch them."""
        for partition in partitions:
            self.cursor(partition).holds.add(reason)

    def release(self, reason: str, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            cursor = self.cursor(partition)
            cursor.holds.discard(reason)
            self.changed(cursor)
            offer(cursor)

    def seek(self, partition: TopicPartition, start: StartPosition, skip: int = 0) -> None:
        """Forget what was read ahead and go on from `start`, after `skip` messages of the wrapper there."""
        cursor = self.cursor(partition)
        cursor.seek(start, skip)
        self._relieved(cursor)

    def put_back(self, partition: TopicPartition, columns: Columns, rows: int) -> None:
        """Take the last `rows` rows of a batch back, to be delivered next."""
        if rows and partition in self.cursors:
            self.cursors[partition].put_back(columns, rows)
            self.changed(self.cursors[partition])

    def _lead(self, cursor: Cursor, table: RoutingTable) -> None:
        """Hand it to the loops of the broker that serves it; of the last one while there is none."""
        if (leader := table.leader(cursor.partition)) is None:
            return
        if (link := self._links.get(leader.id)) is None:
            link = self._links[leader.id] = BrokerFetcher(leader.id, self)
            link.start()
        link.turns.join(cursor)

    async def _route(self) -> None:
        """Follow the routing table."""
        table = self.driver.metadata.table
        while True:
            if self._on_table is not None:
                self._on_table(table)
            for cursor in self.cursors.values():
                self._lead(cursor, table)
            for link in self._links.values():
                link.stir()
            self.news.ring()
            table = await self.driver.metadata.changed(table.version)

    # ---- what a cursor has ----

    def changed(self, cursor: Cursor) -> None:
        """Its link has something new for it, or it was held and is not any more."""
        if cursor.owned:
            self._note(cursor)
            if cursor.listed:
                self.news.ring()
        if cursor.reports:
            log.warning("%d corrupt messages skipped; first: %s", len(cursor.reports), cursor.reports[0])
            self.reports += cursor.reports
            cursor.reports = []

    def _note(self, cursor: Cursor) -> None:
        """Whether it has something to deliver, and whether anything may still come of it."""
        if cursor.counted is cursor.over:
            self.budget.partitions += 1 if cursor.set_counted(not cursor.over) else -1
            self.news.ring()
        if cursor.deliverable and not cursor.listed:
            cursor.set_listed(True)
            self._lists.setdefault(cursor.stream, deque()).append(cursor)
        if isinstance(cursor.account, StreamQuota):
            cursor.account.stir()

    def _relieved(self, cursor: Cursor) -> None:
        """Something was taken from it, perhaps everything: it may go on."""
        self._note(cursor)
        if cursor.state is CursorState.SEARCHING or (cursor.hungry and cursor.ask(self.budget)):
            cursor.hungry = False
            offer(cursor)

    async def found(self, partition: TopicPartition, position: Position) -> None:
        """The broker named a position for it."""
        if self._on_found is not None:
            await self._on_found(partition, position)

    # ---- delivery: the user's task ----

    def take(
        self, stream: int | None, max_records: int | None, max_wait: float
    ) -> tuple[TopicPartition, Columns] | float:
        """The next rows of one partition, round robin; or how long at most to wait for `news`.

        Raises the error of a partition whose good records are all delivered, once; the others go on afterwards.
        """
        self.check()
        now = anyio.current_time()
        wait = math.inf
        unripe: list[Cursor] = []
        try:
            for cursor in self._waiting(stream):
                if cursor.ripe(max_records, max_wait, now):
                    try:
                        return cursor.partition, cursor.take(max_records, now)
                    finally:
                        self._relieved(cursor)
                unripe.append(cursor)
                wait = min(wait, cursor.since + max_wait - now)
            return wait
        finally:
            for cursor in unripe:
                self._note(cursor)

    def take_some(self, stream: int | None, max_bytes: int) -> list[tuple[TopicPartition, Columns]]:
        """Rows of several partitions, round robin: payloads of at most `max_bytes` together, but one row at least.
        Empty when there is nothing now.

        Raises the error of a partition whose good records are all delivered, once, when nothing comes before it.
        """
        self.check()
        now, left = anyio.current_time(), max_bytes
        found: list[tuple[TopicPartition, Columns]] = []
        for cursor in self._waiting(stream):
            if found and cursor.next_bytes > left:
                self._note(cursor)
                break
            try:
                found.append((cursor.partition, cursor.take_bytes(left, now)))
            finally:
                self._relieved(cursor)
            left -= found[-1][1].payload_bytes
        return found

    def _waiting(self, stream: int | None) -> Iterator[Cursor]:
        """Those with something to deliver, off their lists: streams take turns, and in each its partitions."""
        for number in list(self._lists) if stream is None else [stream]:
            self._lists[number] = waiting = self._lists.pop(number, deque())
            while waiting:
                cursor = waiting.popleft()
                cursor.set_listed(False)
                if cursor.deliverable and cursor.owned:
                    yield cursor
                elif isinstance(cursor.account, StreamQuota):
                    cursor.account.stir()

    def over(self) -> bool:
        """Every partition is read to its end, and delivered."""
        return not self.budget.partitions
