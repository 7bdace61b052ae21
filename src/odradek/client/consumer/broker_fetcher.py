"""The loops that fetch from one broker, and resolve positions at it.

    next_fetch -> BrokerClient.fetch -> (decompress, in a thread where that takes long) -> complete -> next_fetch

Two fetches are in flight at a time, each for partitions of its own, so that the broker works while its last response is
decoded; beside them, a third loop has the long polls of a fetch session. A loop queues the rows of a response, and
sends the next fetch, before the user's task runs. The decisions are those of `core.fetch.scheduler`; the state of a
broker follows the table BROKER of `core.states`, that of a partition the table CURSOR. After a lost connection, fetches
wait for the back-off of the connection.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from random import random
from typing import Protocol

import anyio
import anyio.to_thread

from odradek.client.consumer.fetch_settings import FetchSettings
from odradek.client.consumer.observation import ReaderObservation
from odradek.client.consumer.positions import is_removed, refresh_topic_ids
from odradek.core.fetch.cursor import Cursor, CursorFetch
from odradek.core.fetch.read_ahead import ReadAheadBudget
from odradek.core.fetch.scheduler import FetchScheduler, NextFetch, SchedulerCallbacks
from odradek.core.fetch.stream_quota import StreamQuota
from odradek.core.interfaces import BrokerClient, ProtocolDriver, SessionPolls
from odradek.core.states import BROKER, BrokerEvent, BrokerState, CursorState
from odradek.errors import BrokerError, OdradekError, OffsetOutOfRange
from odradek.io.gather import gather_outcomes
from odradek.io.notifier import Notifier
from odradek.types import AtTime, Broker, Position, PositionSpec, StartPosition, TopicPartition

__all__ = ["BrokerFetcher"]

log = logging.getLogger("odradek.fetch")

FETCHES_IN_FLIGHT = 2
"""Concurrent fetches per broker; a third does not help (measured)."""

INLINE_DECOMPRESS_BYTES = 16 << 10
"""Up to this many compressed bytes are decompressed on the event loop, which costs it about as much as a thread hop
(50 us): with the compiled engine 60 us for gzip and 15 us for snappy; the pure one takes two to six times as long."""

INLINE_DECODED_BYTES = 256 << 10
"""Limit of their expected decompressed size (bytes): gzip can make 1000 bytes of one."""

THREAD_DECOMPRESS_BYTES = 64 << 10
"""This many compressed bytes are worth a thread hop: those of several partitions share one up to here."""

TOGETHER_S = 0.5
"""Passing errors of partitions that come within this time after the first one with the same cause are one line in the
log (s): when a broker is fenced, or starts, all of its partitions have one."""


class FetcherHost(Protocol):
    """The fetcher, as its broker fetchers see it."""

    driver: ProtocolDriver
    settings: FetchSettings
    budget: ReadAheadBudget
    available: Notifier
    decompress_slots: anyio.Semaphore
    threads: anyio.CapacityLimiter
    observation: ReaderObservation | None

    @property
    def held_bytes(self) -> int:
        """Memory of what is read ahead (bytes)."""
        ...

    @property
    def poll_purpose(self) -> str:
        """The purpose of connections for long polls of this fetcher alone."""
        ...

    def spawn(self, work: Callable[..., Awaitable[None]], *args: object) -> None: ...

    def report_skipped(self, cursor: Cursor) -> None:
        """Report what a cursor has left out."""
        ...

    def on_stopped(self, cursor: Cursor) -> None:
        """Handle a cursor that ended or failed without a fetch."""
        ...

    def on_out_of_range(self, cursor: Cursor, error: OffsetOutOfRange) -> None:
        """Handle a position that is not in the log."""
        ...

    def compare_topics(self) -> None:
        """Use the topics that the routing table has now."""
        ...

    def compare_topic(self, cursor: Cursor) -> None:
        """Use the topic that the routing table has now, for a cursor that has got a position."""
        ...

    async def on_position_resolved(self, partition: TopicPartition, position: Position) -> None:
        """The broker named a position; nothing is fetched before this returns."""
        ...

    def on_truncated(self, partition: TopicPartition, end: Position) -> None:
        """The log was truncated to `end`; it is read on from there."""
        ...

    def set_replica(self, cursor: Cursor, broker_id: int | None) -> None:
        """Fetch a partition from this broker instead of its leader; None: from the leader."""
        ...

    def refresh_metadata(self, partition: TopicPartition | None = None) -> None:
        """An error, of this partition or of a connection, says that the routing table is out of date."""
        ...


class BrokerFetcher:
    """Fetch loops of one broker."""

    def __init__(self, broker_id: int, host: FetcherHost) -> None:
        self.broker_id = broker_id
        self.state = BROKER.start
        self.fetches = self.fetched_bytes = 0
        self._host = host
        self._last_poll: object = None
        self._retried: dict[str, list[TopicPartition]] = {}  # cause -> partitions after the first one
        self._work, self._polls, self._resolve, self._space = Notifier(), Notifier(), Notifier(), Notifier()
        callbacks = SchedulerCallbacks(self._on_work, self._resolve.notify, self._space.notify, host.available.notify)
        self.scheduler = FetchScheduler(host.budget, host.settings.policy, callbacks)

    def start(self) -> None:
        """Start its loops."""
        for _ in range(FETCHES_IN_FLIGHT):
            self._host.spawn(self._fetch_loop, self.scheduler.next_fetch, self._work)
        self._host.spawn(self._fetch_loop, self.scheduler.next_poll, self._polls)
        self._host.spawn(self._resolve_loop)

    def on_table_changed(self) -> None:
        """Check again whether the broker is registered."""
        self._on_work()
        self._resolve.notify()

    def _on_work(self) -> None:
        self._work.notify()
        if self.scheduler.in_session:
            self._polls.notify()

    def _transition(self, event: BrokerEvent) -> bool:
        """Return True if the state changed: worth one line in the log."""
        before, self.state = self.state, BROKER.after(self.state, event)
        return self.state is not before

    def _broker(self) -> Broker | None:
        """Return where it listens now, or None while it is not registered."""
        broker = self._host.driver.metadata.table.brokers.get(self.broker_id)
        if broker is None:
            if self.state is not BrokerState.ABSENT and self._transition(BrokerEvent.REMOVED):
                log.warning("broker %d is no longer registered; its partitions are paused", self.broker_id)
        elif self.state is BrokerState.ABSENT:
            self._transition(BrokerEvent.ADDED)
        return broker

    # ---- fetching ----

    async def _fetch_loop(self, what_is_next: Callable[[float], NextFetch], work: Notifier) -> None:
        while True:
            version = work.version
            if (broker := self._broker()) is None:
                self.scheduler.end_polls(anyio.current_time())  # another broker may serve the partitions
                self._last_poll = None
                await work.wait(version)
                continue
            following = what_is_next(anyio.current_time())
            if following.fetches:
                await self._fetch(broker, following)
            else:
                await work.wait(version, following.wait)

    async def _fetch(self, broker: Broker, following: NextFetch) -> None:
        """Make one round trip, and handle its result."""
        fetches, max_wait = following.fetches, following.max_wait
        client = self._host.driver.broker(broker, purpose=self._host.poll_purpose if max_wait else "fetch")
        lost = False
        self.fetches += 1
        sent_at = anyio.current_time()
        try:
            if following.max_bytes:
                fetches = await self._poll(client.polls, following)
            else:
                await client.fetch(fetches, max_wait=max_wait)
            if self._host.settings.decoder.read_committed:
                await self._skip_removed(client, fetches)
        except OdradekError as error:
            lost = self._on_failure(broker, fetches, error)
        else:
            self._on_response(broker, fetches)
            if not max_wait:
                self.scheduler.responded(fetches, anyio.current_time() - sent_at)
        finally:
            if max_wait:
                polls = client.polls
                self.scheduler.long_poll_finished(fetches, in_session=polls is not None and polls.in_session)
                if not self.scheduler.in_session:
                    self._last_poll = None
        self._handle_response(fetches, lost)
        if lost:  # together with what becomes due meanwhile
            await anyio.sleep_until(client.available_at)

    async def _poll(self, polls: SessionPolls | None, following: NextFetch) -> Sequence[CursorFetch]:
        """Make one long poll in a session. Return the fetches that are finished."""
        assert polls is not None
        fetches, max_wait, _, limit = following
        last, self._last_poll = self._last_poll, None
        self._last_poll = await polls.poll(fetches, max_wait=max_wait, max_bytes=limit, last=last)
        return [fetch for fetch in fetches if fetch.answered or fetch.error is not None]

    async def _skip_removed(self, client: BrokerClient, fetches: Sequence[CursorFetch]) -> None:
        """Move to their ends the cursors in front of which compaction has removed the rest."""
        for fetch in fetches:
            end = fetch.cursor.end_after(fetch)
            if end is not None and await is_removed(client, fetch, end, self._host.settings.decoder):
                fetch.decoder.reset(end)

    def _on_failure(self, broker: Broker, fetches: Sequence[CursorFetch], error: OdradekError) -> bool:
        """Return True if the connection was lost. Otherwise it is the error of each of these partitions, which ends
        them or has them back off."""
        if self._transition(BrokerEvent.FAILED):
            log.warning("broker %d at %s: %s; retrying", broker.id, broker.address, error)
        if lost := error.retriable and not isinstance(error, BrokerError):
            if error.refresh_metadata:  # perhaps another broker serves them now
                self._host.refresh_metadata()
        else:
            for fetch in fetches:
                fetch.error = error
        return lost

    def _on_response(self, broker: Broker, fetches: Sequence[CursorFetch]) -> None:
        if self._host.observation is not None:
            self._host.observation.fetched(broker, fetches)
        reconnected = self.state is BrokerState.BACKING_OFF
        if self._transition(BrokerEvent.RESPONDED) and reconnected:
            log.warning("broker %d at %s responds again", broker.id, broker.address)

    def _handle_response(self, fetches: Sequence[CursorFetch], lost: bool) -> None:
        """Finish the fetches whose response is decoded; leave the others to threads first."""
        compressed = [fetch for fetch in fetches if fetch.decoder.deferred_bytes and fetch.is_current]
        if _is_quick(compressed):
            for fetch in compressed:
                fetch.decompress()
        else:
            in_threads = set(compressed)
            fetches = [fetch for fetch in fetches if fetch not in in_threads]
            for group in _groups(compressed):
                self._host.spawn(self._decompress_in_thread, group[0].cursor.share.quota, group, lost)
        self._finish(fetches, lost)  # and now the next fetch is sent

    async def _decompress_in_thread(self, quota: StreamQuota, group: Sequence[CursorFetch], lost: bool) -> None:
        """Decompress a group once there is space for the result: earlier ones may have expanded to more than expected.
        Cancellation: waits for the thread, so that it never uses a decoder afterwards."""
        # Each pass begins with what happened during the last wait: a seek or a revocation may have left nothing to
        # decompress. The version is read before the question, so that memory released in between is not missed. And
        # the question is asked again once there is a slot: the group that had it before may have expanded to more than
        # expected.
        quota.decompress_waits()
        while current := [fetch for fetch in group if fetch.is_current]:
            version = self._space.version
            if not quota.can_decompress:
                quota.block()
                self._host.available.notify()  # a user who waits for a full batch gets what there is
                await self._space.wait(version)
                continue
            async with self._host.decompress_slots:
                if quota.can_decompress:
                    await anyio.to_thread.run_sync(_decompress_all, current, limiter=self._host.threads)
                    break
        quota.decompress_ends()
        self._finish(group, lost)
        self._work.notify()

    def _finish(self, fetches: Iterable[CursorFetch], lost: bool) -> None:
        self._host.compare_topics()
        now = anyio.current_time()
        reset, deliverable = self._host.settings.policy.reset, False
        for fetch in fetches:
            cursor = fetch.cursor
            self.fetched_bytes += fetch.received
            if cursor.complete(fetch, now, reset, lost=lost):
                self.scheduler.requeue(cursor, now, random())
                if fetch.error is not None and not lost:
                    self._on_partition_error(cursor, fetch.error)
                # A leader names the replica that it prefers instead of sending records (KIP-392). Whatever goes wrong
                # at the replica says nothing of the log: it may be behind, or out of sync. So the leader is asked next.
                if fetch.preferred_replica is not None:
                    self._host.set_replica(cursor, fetch.preferred_replica)
                elif lost or fetch.error is not None:
                    self._host.set_replica(cursor, None)
                if cursor.skipped:
                    self._host.report_skipped(cursor)
                deliverable |= cursor.share.is_queued or cursor.at_end
        if deliverable:
            self._host.available.notify()
        if self._host.observation is not None:
            self._host.observation.read_ahead(self._host.held_bytes)

    def _on_partition_error(self, cursor: Cursor, error: OdradekError) -> None:
        if isinstance(error, OffsetOutOfRange) and (cursor.state is CursorState.RESOLVING or cursor.at_end):
            self._host.on_out_of_range(cursor, error)
        elif cursor.state is CursorState.BACKING_OFF and cursor.attempts == 1:
            self._warn_of_retry(cursor.partition, error, str(error))
        if error.refresh_metadata:
            self._host.refresh_metadata(cursor.partition)

    def _warn_of_retry(self, partition: TopicPartition, error: OdradekError, text: str) -> None:
        cause = error.name if isinstance(error, BrokerError) else text
        if (others := self._retried.get(cause)) is None:
            self._retried[cause] = []
            self._host.spawn(self._log_retry, cause, f"{partition}: {text}")
        else:
            others.append(partition)

    async def _log_retry(self, cause: str, text: str) -> None:
        try:
            await anyio.sleep(TOGETHER_S)
        finally:
            others = self._retried.pop(cause)
            names = ", ".join(map(str, others[:3])) + (", ..." if len(others) > 3 else "")
            also = f"; {len(others)} more with the same error: {names}" if others else ""
            log.warning("%s; retrying%s", text, also)

    # ---- positions ----

    async def _resolve_loop(self) -> None:
        while True:
            version = self._resolve.version
            due: Sequence[Cursor] = ()
            wait = math.inf
            if (broker := self._broker()) is not None:
                due, wait = self.scheduler.next_to_resolve(anyio.current_time())
                await self._resolve_positions(broker, due)
            if not due:
                await self._resolve.wait(version, wait)

    async def _resolve_positions(self, broker: Broker, due: Sequence[Cursor]) -> None:
        """Resolve positions, a bounded number of requests at a time, and begin to fetch from there."""
        asked: list[tuple[Cursor, PositionSpec | AtTime]] = []
        for cursor in due:
            if isinstance(cursor.start, int):
                if cursor.goes_back:
                    self._host.on_truncated(cursor.partition, Position(cursor.start))
                self._on_resolved(broker, cursor, Position(cursor.start), None)
            else:
                asked.append((cursor, cursor.start))
        if not asked:
            return
        await refresh_topic_ids(self._host.driver)
        topic_id = self._host.driver.metadata.table.topic_id  # of the table from before the requests
        outcomes = await gather_outcomes(partial(self._ask_leader, broker), asked)
        for (cursor, start), outcome in zip(asked, outcomes, strict=True):
            if not _is_waiting(cursor, start):
                continue
            if isinstance(outcome, OdradekError):
                self._on_not_resolved(cursor, outcome)
                continue
            of_topic = topic_id(cursor.partition.topic)
            if of_topic is not None and self._host.driver.metadata.table.topic_id(cursor.partition.topic) != of_topic:
                continue  # made again meanwhile: it is resolved once more
            await self._host.on_position_resolved(cursor.partition, outcome)
            if _is_waiting(cursor, start):
                self._on_resolved(broker, cursor, outcome, of_topic)

    async def _ask_leader(self, broker: Broker, asked: tuple[Cursor, PositionSpec | AtTime]) -> Position:
        """Resolve a position at the leader: `broker` may be a replica, which has no positions."""
        driver, partition = self._host.driver, asked[0].partition
        leader = driver.metadata.table.leader(partition) or broker
        client, committed = driver.broker(leader, purpose="control"), self._host.settings.decoder.read_committed
        return await client.resolve_position(partition, asked[1], read_committed=committed)

    def _on_resolved(self, broker: Broker, cursor: Cursor, position: Position, topic_id: bytes | None) -> None:
        client = self._host.driver.broker(broker, purpose="fetch")
        cursor.resolved(position, client.decoder(cursor.partition, position, self._host.settings.decoder), topic_id)
        self._host.compare_topic(cursor)  # it may have been made again while the position was stored
        if cursor.at_end:
            self._host.on_stopped(cursor)
        elif (quota := cursor.share.quota) is not None:
            quota.scheduler.enqueue(cursor)

    def _on_not_resolved(self, cursor: Cursor, error: OdradekError) -> None:
        if error.refresh_metadata:
            self._host.refresh_metadata(cursor.partition)
        if error.retriable or cursor.refusal_raised:
            if not cursor.attempts:
                self._warn_of_retry(cursor.partition, error, f"cannot resolve {cursor.start!r}: {error}")
            self.scheduler.retry_resolving(cursor, anyio.current_time(), random())
        else:
            cursor.fail(error)
            self._host.on_stopped(cursor)


def _is_waiting(cursor: Cursor, start: StartPosition) -> bool:
    """Return True if `start` still has to be resolved: the cursor was neither unassigned nor sought meanwhile."""
    return cursor.state is CursorState.RESOLVING and cursor.start is start


def _is_quick(compressed: Sequence[CursorFetch]) -> bool:
    """Return True if decompressing takes no longer than a thread hop, as far as can be known."""
    size = expanded = 0.0
    for fetch in compressed:
        if not fetch.cursor.share.expansion_known:
            return False
        size += fetch.decoder.deferred_bytes
        expanded += fetch.decoder.deferred_bytes * fetch.cursor.share.expansion
    return size <= INLINE_DECOMPRESS_BYTES and expanded <= INLINE_DECODED_BYTES


def _groups(compressed: Iterable[CursorFetch]) -> Iterator[list[CursorFetch]]:
    """Group fetches by quota, each group worth a thread hop."""
    for _, fetches in groupby(compressed, lambda fetch: id(fetch.cursor.share.quota)):
        group: list[CursorFetch] = []
        size = 0
        for fetch in fetches:
            group.append(fetch)
            size += fetch.decoder.deferred_bytes
            if size >= THREAD_DECOMPRESS_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group


def _decompress_all(fetches: Iterable[CursorFetch]) -> None:
    for fetch in fetches:
        fetch.decompress()
