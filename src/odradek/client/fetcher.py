"""The engine under reader and consumer: one loop per broker that keeps the read-ahead filled.

Every turn of a loop is one fetch of all partitions its broker serves, sized by `core.fetch_plan`. The loops follow the
tables of `core.states`: CURSOR for each partition, LINK for each broker. Whatever kills a background task is raised
from `take` in the user's task.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import random
from types import TracebackType
from typing import Literal, Self

import anyio

from odradek.client.background import Background
from odradek.client.cursor import Cursor
from odradek.client.tuning import Tuning
from odradek.core.backoff import Backoff
from odradek.core.fetch_plan import LEAST_BYTES, FetchLimits, plan
from odradek.core.interfaces import BrokerApi, DecoderOptions, Era, FetchResult, RoutingTable
from odradek.core.states import LINK, CursorState, LinkEvent, LinkState
from odradek.errors import (
    BrokerError,
    Closed,
    ConfigError,
    CorruptMessage,
    DeadlineError,
    OdradekError,
    RemoteProtocolError,
    TransportError,
)
from odradek.types import EARLIEST, Anchor, AtTime, Broker, Columns, Position, Start, TopicPartition

__all__ = ["Bell", "FetchSettings", "Fetcher", "ask_positions", "fetch_settings"]

log = logging.getLogger("odradek.fetch")

OUT_OF_RANGE = "OffsetOutOfRange"
AGAIN = (TransportError, DeadlineError, RemoteProtocolError)
"""What the lost-connection procedure is for. Anything else is about one partition, or a mistake of ours."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How a fetcher behaves.

    Args:
        limits: Bounds in bytes.
        decoder: How messages are decoded.
        reset: Where a partition goes on whose position the log no longer has; None raises the broker's error.
        idle: How long to wait when no partition had anything: 0.7 answers at once, so this is the polling interval.
            It starts short for the sake of latency and grows for the sake of the broker (Scala: 1 s from the start).
        lost: How long to wait after a lost connection.
    """

    limits: FetchLimits
    decoder: DecoderOptions = field(default_factory=DecoderOptions)
    reset: Anchor | None = None
    idle: Backoff = field(default_factory=lambda: Backoff(first_s=0.005, max_s=0.1))
    lost: Backoff = field(default_factory=Backoff)


def fetch_settings(
    tuning: Tuning, *, ahead: int, corrupt: str, max_message: int, reset: Anchor | Literal["fail"]
) -> FetchSettings:
    """From the options of readers and consumers. Raises ConfigError for one that cannot work."""
    if ahead <= 0 or max_message <= 0:
        raise ConfigError(f"ahead and max_message are numbers of bytes, not {ahead} and {max_message}")
    if corrupt not in ("fail", "skip", "raw"):
        raise ConfigError(f"corrupt is 'fail', 'skip' or 'raw', not {corrupt!r}")
    limits = FetchLimits(ahead=ahead, part=tuning.fetch_bytes, least=min(LEAST_BYTES, ahead, tuning.fetch_bytes))
    idle = Backoff(first_s=min(0.005, tuning.fetch_idle), max_s=tuning.fetch_idle)
    decoder = DecoderOptions(max_message_bytes=max_message, corrupt=corrupt)
    return FetchSettings(limits, decoder, None if reset == "fail" else reset, idle, tuning.backoff)


class Bell:
    """Wakes whoever waits. Counting makes it impossible to miss a ring: read `count`, look around, then wait for it
    to move. Ringing costs nothing while nobody waits."""

    def __init__(self) -> None:
        self.count = 0
        self._event: anyio.Event | None = None

    def ring(self) -> None:
        self.count += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, count: int, seconds: float = math.inf) -> None:
        """Return once it rang after `count` was read, or after `seconds`. Cancellation: safe."""
        if self.count != count:
            return
        if self._event is None:
            self._event = anyio.Event()
        with anyio.move_on_after(seconds):
            await self._event.wait()


class Link:
    """One broker's state, and what its loop remembers from turn to turn."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.state = LINK.start
        self.empty_turns = 0
        self.failures = 0

    def on(self, event: LinkEvent) -> bool:
        """Step. True when the state changed: worth a line in the log, once."""
        before, self.state = self.state, LINK.after(self.state, event)
        return self.state is not before


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
        era: Era,
        settings: FetchSettings,
        *,
        on_table: Callable[[RoutingTable], None] | None = None,
        on_found: Callable[[TopicPartition, Position], Awaitable[None]] | None = None,
    ) -> None:
        self.settings = settings
        self.cursors: dict[TopicPartition, Cursor] = {}
        self.reports: deque[CorruptMessage] = deque(maxlen=1000)
        self.news = Bell()
        """Rings when there is something to take, or nothing ever again."""
        self._era = era
        self._on_table = on_table
        self._on_found = on_found
        self._work = Bell()
        self._background = Background(self.fail)
        self._led: dict[int, list[Cursor]] = {}
        self._links: dict[int, Link] = {}
        self._lists: dict[int, deque[Cursor]] = {}
        self.failure: Exception | None = None
        """What killed a background task."""
        self.failure_seen = False
        """The user's task got it."""
        self._closed = True

    async def __aenter__(self) -> Self:
        await self._background.start()
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
        for cursor in cursors:
            self.cursors[cursor.partition] = cursor
        self._regroup()

    def clear(self) -> None:
        """Drop every partition with everything read ahead. Answers in flight count for nothing."""
        self.cursors.clear()
        self._lists.clear()
        self._regroup()

    def cursor(self, partition: TopicPartition) -> Cursor:
        """Raises ConfigError for a partition that is not read here."""
        try:
            return self.cursors[partition]
        except KeyError:
            raise ConfigError(f"{partition} is not read here (now)") from None

    def _owns(self, cursor: Cursor) -> bool:
        return self.cursors.get(cursor.partition) is cursor

    def hold(self, reason: str, partitions: Iterable[TopicPartition]) -> None:
        """Neither deliver nor fetch them."""
        for partition in partitions:
            self.cursor(partition).holds.add(reason)

    def release(self, reason: str, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            cursor = self.cursor(partition)
            cursor.holds.discard(reason)
            self._list(cursor)
        self._work.ring()
        self.news.ring()

    def seek(self, partition: TopicPartition, start: Start) -> None:
        """Forget what was read ahead and go on from `start`."""
        self.cursor(partition).seek(start)
        self._work.ring()

    def put_back(self, partition: TopicPartition, columns: Columns, rows: int) -> None:
        """Take the last `rows` rows of a batch back, to be delivered next."""
        if rows and partition in self.cursors:
            self.cursors[partition].put_back(columns, rows)
            self._list(self.cursors[partition])
            self.news.ring()

    def _regroup(self) -> None:
        """Who serves what changed: hand each cursor to the loop of its broker, and start loops that are missing."""
        self._led = {}
        table = self._era.coordination.table
        for cursor in self.cursors.values():
            if (leader := table.leader(cursor.partition)) is not None:
                self._led.setdefault(leader.id, []).append(cursor)
        for broker_id in self._led.keys() - self._links.keys():
            self._links[broker_id] = Link(broker_id)
            self.spawn(self._serve, self._links[broker_id])
        self._work.ring()
        self.news.ring()

    # ---- delivery: the user's task ----

    def take(
        self, stream: int | None, max_records: int | None, max_wait: float
    ) -> tuple[TopicPartition, Columns] | float:
        """The next rows of one partition, round robin; or how long at most to wait for `news`.

        Raises the error of a partition whose good records are all delivered, once; the others go on afterwards.
        """
        self.check()
        now = anyio.current_time()
        wait, unripe = math.inf, []
        try:
            for cursor in self._waiting(stream):
                if cursor.ripe(max_records, max_wait, now):
                    return cursor.partition, self._taken(cursor, partial(cursor.take, max_records, now))
                unripe.append(cursor)
                wait = min(wait, cursor.since + max_wait - now)
            return wait
        finally:
            for cursor in unripe:
                self._list(cursor)

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
                self._list(cursor)
                break
            columns = self._taken(cursor, partial(cursor.take_bytes, left, now))
            found.append((cursor.partition, columns))
            left -= columns.payload_bytes
        return found

    def _waiting(self, stream: int | None) -> Iterator[Cursor]:
        """Those with something to deliver, off their lists: streams take turns, and in each its partitions."""
        for number in list(self._lists) if stream is None else [stream]:
            self._lists[number] = waiting = self._lists.pop(number, deque())
            while waiting:
                cursor = waiting.popleft()
                cursor.listed = False
                if cursor.deliverable and self._owns(cursor):
                    yield cursor

    def _taken(self, cursor: Cursor, take: Callable[[], Columns]) -> Columns:
        chunks = len(cursor.queue)
        try:
            return take()
        finally:
            self._list(cursor)
            if len(cursor.queue) < chunks and (cursor.starved or cursor.state is CursorState.SEARCHING):
                self._work.ring()  # there is room again, or everything from before the reset is delivered

    def _list(self, cursor: Cursor) -> None:
        """It may have something to deliver: put it at the end of its stream's list."""
        if cursor.deliverable and not cursor.listed:
            cursor.listed = True
            self._lists.setdefault(cursor.stream, deque()).append(cursor)

    def over(self) -> bool:
        """Every partition is read to its end, and delivered."""
        return all(cursor.over for cursor in self.cursors.values())

    # ---- the loops ----

    async def _route(self) -> None:
        """Follow the routing table."""
        table = self._era.coordination.table
        while True:
            if self._on_table is not None:
                self._on_table(table)
            self._regroup()
            table = await self._era.coordination.changed(table.version)

    async def _serve(self, link: Link) -> None:
        """The loop of one broker."""
        while True:
            count = self._work.count
            if wait := await self._turn(link):
                await self._work.wait(count, wait)

    async def _turn(self, link: Link) -> float:
        """Fetch once, if there is anything to fetch. Returns how long at most to wait before the next turn (s)."""
        broker = self._era.coordination.table.brokers.get(link.broker_id)
        if broker is None:
            if link.state is not LinkState.AWAY and link.on(LinkEvent.GO):
                log.warning("broker %d left; its partitions wait for it", link.broker_id)
            return math.inf
        if link.state is LinkState.AWAY:
            link.on(LinkEvent.COME)
        cursors = [c for c in self._led.get(link.broker_id, ()) if not c.holds and not c.in_flight]
        wait = await self._search(broker, [c for c in cursors if c.state is CursorState.SEARCHING])
        wants = self._wants([c for c in cursors if c.state is CursorState.FETCHING and self._owns(c)])
        if not wants:
            return wait
        try:
            received = await self._fetch(self._era.broker(broker, purpose="fetch"), wants)
        except AGAIN as error:
            await anyio.sleep(self._lost(link, broker, wants, error))
            return 0.0
        self._answered(link, broker)
        link.empty_turns = 0 if received else link.empty_turns + 1
        return 0.0 if received else min(wait, self.settings.idle.delay(link.empty_turns - 1, random()))

    def _wants(self, cursors: Sequence[Cursor]) -> list[tuple[Cursor, int]]:
        sharing = sum(1 for cursor in self.cursors.values() if not cursor.over)
        asks = plan([c.holding for c in cursors], sharing, self.settings.limits)
        for cursor, ask in zip(cursors, asks, strict=True):
            cursor.starved = ask == 0
            if cursor.starved:
                self._list(cursor)
                self.news.ring()  # a reader waiting for a full batch gets what there is
        return [(cursor, ask) for cursor, ask in zip(cursors, asks, strict=True) if ask]

    async def _fetch(self, api: BrokerApi, wants: Sequence[tuple[Cursor, int]]) -> int:
        """One round trip. Returns how many bytes came, or errors: what makes the next turn follow at once."""
        sent = [(cursor.decoder, ask) for cursor, ask in wants if cursor.decoder is not None]
        tails = [decoder.fetch_position != decoder.position for decoder, _ in sent]
        for cursor, _ in wants:
            cursor.in_flight = True
        try:
            results = await api.fetch(sent)
        finally:
            for cursor, _ in wants:
                cursor.in_flight = False
        now = anyio.current_time()
        return sum(self._absorb(c, r, t, now) for (c, _), r, t in zip(wants, results, tails, strict=True))

    def _absorb(self, cursor: Cursor, result: FetchResult, had_tail: bool, now: float) -> int:
        if result.decoder is not cursor.decoder or not self._owns(cursor):
            return 0  # sought elsewhere or revoked meanwhile
        if result.error is not None:
            self._refused(cursor, result.error)
            return 1
        if cursor.absorb(result.received, had_tail, now) if result.received else cursor.end_of_log():
            self._list(cursor)
            self.news.ring()
        self._report(cursor)
        return result.received

    def _report(self, cursor: Cursor) -> None:
        if cursor.reports:
            log.warning("%d corrupt messages skipped; first: %s", len(cursor.reports), cursor.reports[0])
            self.reports += cursor.reports
            cursor.reports = []

    def _refused(self, cursor: Cursor, error: BrokerError) -> None:
        if error.name == OUT_OF_RANGE:
            if cursor.drop_tail():
                return  # the message boundary may still be there
            if (reset := self.settings.reset) is not None:
                log.warning("%s: position %s is not in the log; going to %r", cursor.partition, cursor.place, reset)
                cursor.out_of_range(reset)
                return
        cursor.fail(error)
        self._list(cursor)
        self.news.ring()

    def _lost(self, link: Link, broker: Broker, wants: Sequence[tuple[Cursor, int]], error: OdradekError) -> float:
        """The lost-connection procedure: keep what is complete, drop the tails. Returns how long to wait (s)."""
        now = anyio.current_time()
        for cursor, _ in wants:
            if cursor.decoder is not None and cursor.state is CursorState.FETCHING:
                cursor.absorb(0, True, now)
                cursor.drop_tail()
                self._list(cursor)
        self.news.ring()
        if link.on(LinkEvent.BREAK):
            log.warning("broker %d at %s: %s; trying again", broker.id, broker.address, error)
        link.failures += 1
        return self.settings.lost.delay(link.failures - 1, random())

    def _answered(self, link: Link, broker: Broker) -> None:
        if link.on(LinkEvent.ANSWER) and link.failures:
            log.warning("broker %d at %s answers again after %d failures", broker.id, broker.address, link.failures)
        link.failures = 0

    # ---- positions ----

    async def _search(self, broker: Broker, cursors: Sequence[Cursor]) -> float:
        """Find where to begin. Returns when to try again (s)."""
        wait = math.inf
        for cursor in cursors:
            if cursor.rows:
                continue  # first what was read before the position got lost
            left = cursor.not_before - anyio.current_time()
            if left <= 0:
                left = await self._search_one(broker, cursor)
            wait = min(wait, left)
        return wait

    async def _search_one(self, broker: Broker, cursor: Cursor) -> float:
        start = cursor.start
        if isinstance(start, int):
            self._found(broker, cursor, Position(start))
            return math.inf
        try:
            position = await _ask(self._era.broker(broker, purpose="control"), cursor.partition, start)
        except AGAIN as error:
            delay = self.settings.lost.delay(cursor.attempts, random())
            cursor.attempts += 1
            cursor.not_before = anyio.current_time() + delay
            if cursor.attempts == 1:
                log.warning("%s: where does %r lie? %s; asking again", cursor.partition, start, error)
            return delay
        if self._owns(cursor) and cursor.start is start:
            if self._on_found is not None:
                await self._on_found(cursor.partition, position)
            if self._owns(cursor) and cursor.start is start:
                self._found(broker, cursor, position)
        return math.inf

    def _found(self, broker: Broker, cursor: Cursor, position: Position) -> None:
        api = self._era.broker(broker, purpose="fetch")
        cursor.found(position, api.decoder(cursor.partition, position, self.settings.decoder))
        if cursor.over:
            self.news.ring()


async def _ask(api: BrokerApi, partition: TopicPartition, at: Anchor | AtTime) -> Position:
    """One position. Before the oldest segment there is only the beginning."""
    for anchor in (at, EARLIEST):
        if found := await api.positions(partition, anchor):
            return found[0]
    raise RemoteProtocolError(f"{partition}: the broker names no first position")


async def ask_positions(
    era: Era, wanted: Mapping[TopicPartition, Anchor | AtTime]
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OdradekError]]:
    """Positions by meaning, all asked for at once: what was found, and why the others were not.

    A partition nobody serves now is in neither. Cancellation: safe.
    """
    found: dict[TopicPartition, Position] = {}
    errors: dict[TopicPartition, OdradekError] = {}

    async def one(broker: Broker, partition: TopicPartition, at: Anchor | AtTime) -> None:
        try:
            found[partition] = await _ask(era.broker(broker, purpose="control"), partition, at)
        except OdradekError as error:
            errors[partition] = error

    async with anyio.create_task_group() as tasks:
        for partition, at in wanted.items():
            if (broker := era.coordination.table.leader(partition)) is not None:
                tasks.start_soon(one, broker, partition, at)
    return found, errors
