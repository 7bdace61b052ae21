"""The way to one broker: the loops that fetch from it, and search positions at it.

Two fetches are under way at a time, each for partitions of its own, so that the broker works while what it sent is
decoded. What one brought is queued, and the next one is out, before the reader's task runs. Compressed messages are
opened in threads when that takes longer than going there and back; their partition stays in flight as long, and the
others go on. The state of a broker follows the table LINK of `core.states`, that of a partition the table CURSOR.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import groupby
from random import random
from typing import NamedTuple, Protocol

import anyio
import anyio.to_thread

from odradek.client.consumer.cursor import Cursor
from odradek.client.consumer.fetch_settings import FetchSettings
from odradek.client.consumer.positions import AGAIN, ask_position
from odradek.client.consumer.scheduler import FetchScheduler, PartitionFetch, StreamQuota, offer
from odradek.client.notifier import Notifier
from odradek.core.fetch.read_ahead import ReadAheadBudget
from odradek.core.interfaces import FetchResult, LogDecoder, ProtocolDriver
from odradek.core.states import LINK, BrokerEvent, BrokerState, CursorState
from odradek.errors import BrokerError, OdradekError
from odradek.types import Broker, Position, TopicPartition

__all__ = ["BrokerFetcher"]

log = logging.getLogger("odradek.fetch")

FETCHES = 2
"""So many are under way at a time: a third brings nothing more."""

OPEN_INLINE = 16 << 10
"""So many compressed bytes are opened on the loop, which takes about as long as a thread hop costs it (50 us): with the
compiled engine 60 us for gzip and 15 us for snappy; the pure one takes two to six times as long."""

OPEN_TOGETHER = 64 << 10
"""So many compressed bytes are worth a thread hop: those of several partitions are opened together up to here."""

OUT_OF_RANGE = "OffsetOutOfRange"


class FetcherHost(Protocol):
    """The fetcher, as its links see it."""

    driver: ProtocolDriver
    settings: FetchSettings
    budget: ReadAheadBudget
    news: Notifier
    hands: anyio.Semaphore
    threads: anyio.CapacityLimiter

    def spawn(self, work: Callable[..., Awaitable[None]], *args: object) -> None: ...

    def changed(self, cursor: Cursor) -> None:
        """It may have something to deliver, or be over."""
        ...

    async def found(self, partition: TopicPartition, position: Position) -> None:
        """The broker named a position; nothing is fetched before this returns."""
        ...


class FetchedPart(NamedTuple):
    """What one partition's part of a fetch came to; None: the connection was lost on the way."""

    want: PartitionFetch
    result: FetchResult | None

    @property
    def counts(self) -> bool:
        """The partition is still where it was: neither sought elsewhere nor revoked meanwhile."""
        return self.want.cursor.owned and self.want.decoder is self.want.cursor.decoder


class BrokerFetcher:
    """One broker."""

    def __init__(self, broker_id: int, host: FetcherHost) -> None:
        self.broker_id = broker_id
        self.state = LINK.start
        self.turns = FetchScheduler(host.budget, host.settings.idle, host.news)
        self._host = host
        self._losses = 0
        self._failures = 0
        self._retry_at = -math.inf

    def start(self) -> None:
        for _ in range(FETCHES):
            self._host.spawn(self._serve)
        self._host.spawn(self._find)

    def stir(self) -> None:
        """Who serves what may have changed."""
        self.turns.work.ring()
        self.turns.sought.ring()

    def _on(self, event: BrokerEvent) -> bool:
        """Step. True when the state changed: worth a line in the log, once."""
        before, self.state = self.state, LINK.after(self.state, event)
        return self.state is not before

    def _broker(self) -> Broker | None:
        """Where it listens now, or None while it is not there."""
        broker = self._host.driver.metadata.table.brokers.get(self.broker_id)
        if broker is None:
            if self.state is not BrokerState.AWAY and self._on(BrokerEvent.GO):
                log.warning("broker %d left; its partitions wait for it", self.broker_id)
        elif self.state is BrokerState.AWAY:
            self._on(BrokerEvent.COME)
        return broker

    # ---- fetching ----

    async def _serve(self) -> None:
        """Fetch, as long as there is something to fetch."""
        while True:
            count = self.turns.work.count
            broker, now = self._broker(), anyio.current_time()
            if broker is None:
                await self.turns.work.wait(count)
            elif now < self._retry_at:
                await self.turns.work.wait(count, self._retry_at - now)
            else:
                wants, wait = self.turns.pick(now)
                await (self._fetch(broker, wants) if wants else self.turns.work.wait(count, wait))

    async def _fetch(self, broker: Broker, wants: Sequence[PartitionFetch]) -> None:
        """One round trip, and what follows from it."""
        losses = self._losses
        api = self._host.driver.broker(broker, purpose="fetch")
        try:
            results: Sequence[FetchResult | None] = await api.fetch([(want.decoder, want.size) for want in wants])
        except AGAIN as error:
            if losses == self._losses:  # otherwise the other fetch has met the same loss
                self._lost(broker, error)
            results = [None] * len(wants)
        else:
            self._answered(broker)
        self._arrived([FetchedPart(want, result) for want, result in zip(wants, results, strict=True)])

    def _lost(self, broker: Broker, error: OdradekError) -> None:
        """The lost-connection procedure: keep what is complete, drop the tails, come back later."""
        if self._on(BrokerEvent.BREAK):
            log.warning("broker %d at %s: %s; trying again", broker.id, broker.address, error)
        self._losses += 1
        self._failures += 1
        self._retry_at = anyio.current_time() + self._host.settings.lost.delay(self._failures - 1, random())

    def _answered(self, broker: Broker) -> None:
        if self._on(BrokerEvent.ANSWER) and self._failures:
            log.warning("broker %d at %s answers again after %d failures", broker.id, broker.address, self._failures)
        self._failures = 0

    # ---- what came ----

    def _arrived(self, arrivals: Sequence[FetchedPart]) -> None:
        """Land everything, or leave it to threads first."""
        closed = [arrival for arrival in arrivals if arrival.counts and arrival.want.decoder.unopened_bytes]
        if sum(arrival.want.decoder.unopened_bytes for arrival in closed) <= OPEN_INLINE:
            for arrival in closed:
                arrival.want.decoder.open()
        else:
            away = set(map(id, closed))
            arrivals = [arrival for arrival in arrivals if id(arrival) not in away]
            for group in _groups(closed):
                self._host.spawn(self._open, group[0].want.cursor.account, group)
        self._land(arrivals)  # and now the next fetch goes out

    async def _open(self, lot: StreamQuota, group: Sequence[FetchedPart]) -> None:
        """Open them in a thread, once there is room for what comes of it: the last ones may have grown to more than
        was reckoned with. Cancellation: waits for the thread, so that nobody works on a decoder afterwards."""
        lot.sealed += 1
        while counting := [arrival.want.decoder for arrival in group if arrival.counts]:
            count = lot.unsealed.count
            if not lot.may_open:
                lot.full = True
                self._host.news.ring()  # a reader waiting for a full batch gets what there is
                await lot.unsealed.wait(count)
                continue
            async with self._host.hands:
                if lot.may_open:
                    await anyio.to_thread.run_sync(_open_all, counting, limiter=self._host.threads)
                    break
        lot.sealed -= 1
        self._land(group)
        self.turns.work.ring()

    def _land(self, arrivals: Iterable[FetchedPart]) -> None:
        now = anyio.current_time()
        for arrival in arrivals:
            cursor = arrival.want.cursor
            cursor.land()
            empty = arrival.counts and self._absorb(arrival, now)
            self._host.changed(cursor)
            if empty:
                self.turns.rest(cursor, now, random())
            else:
                offer(cursor, self.turns)

    def _absorb(self, arrival: FetchedPart, now: float) -> bool:
        """True: the broker had nothing, so there is no hurry to ask again."""
        (cursor, _, size, had_tail), result = arrival
        if result is None:
            if cursor.state is CursorState.FETCHING:
                cursor.absorb(0, 0, True, now)
                cursor.drop_tail()
            return False
        if result.error is not None:
            self._refused(cursor, result.error)
            return False
        if not result.received:
            return cursor.nothing_came()
        cursor.absorb(result.received, size, had_tail, now)
        return False

    def _refused(self, cursor: Cursor, error: BrokerError) -> None:
        if error.name == OUT_OF_RANGE:
            if cursor.drop_tail():
                return  # the message boundary may still be there
            if (reset := self._host.settings.reset) is not None:
                log.warning("%s: position %s is not in the log; going to %r", cursor.partition, cursor.place, reset)
                cursor.out_of_range(reset)
                return
        cursor.fail(error)

    # ---- positions ----

    async def _find(self) -> None:
        """Search positions, as long as there are some to search."""
        while True:
            count = self.turns.sought.count
            broker = self._broker()
            wait = math.inf if broker is None else await self._search(broker)
            await self.turns.sought.wait(count, wait)

    async def _search(self, broker: Broker) -> float:
        """Find where to begin. Returns when to try again (s)."""
        wait = math.inf
        for cursor in list(self.turns.searching):
            if cursor.state is not CursorState.SEARCHING or not cursor.owned:
                self.turns.searching.pop(cursor, None)
            elif not cursor.rows and not cursor.holds:  # first what was read before the position got lost
                left = cursor.not_before - anyio.current_time()
                wait = min(wait, left if left > 0 else await self._search_one(broker, cursor))
        return wait

    async def _search_one(self, broker: Broker, cursor: Cursor) -> float:
        start = cursor.start
        if isinstance(start, int):
            self._found(broker, cursor, Position(start))
            return math.inf
        try:
            position = await ask_position(self._host.driver.broker(broker, purpose="control"), cursor.partition, start)
        except AGAIN as error:
            delay = self._host.settings.lost.delay(cursor.attempts, random())
            cursor.attempts += 1
            cursor.not_before = anyio.current_time() + delay
            if cursor.attempts == 1:
                log.warning("%s: where does %r lie? %s; asking again", cursor.partition, start, error)
            return delay
        if cursor.owned and cursor.start is start:
            await self._host.found(cursor.partition, position)
            if cursor.owned and cursor.start is start:
                self._found(broker, cursor, position)
        return math.inf

    def _found(self, broker: Broker, cursor: Cursor, position: Position) -> None:
        self.turns.searching.pop(cursor, None)
        api = self._host.driver.broker(broker, purpose="fetch")
        cursor.found(position, api.decoder(cursor.partition, position, self._host.settings.decoder))
        self._host.changed(cursor)
        offer(cursor)


def _groups(arrivals: Iterable[FetchedPart]) -> Iterator[list[FetchedPart]]:
    """Each of one lot and worth a thread hop."""
    for _, lot in groupby(arrivals, lambda arrival: id(arrival.want.cursor.account)):
        group: list[FetchedPart] = []
        size = 0
        for arrival in lot:
            group.append(arrival)
            size += arrival.want.decoder.unopened_bytes
            if size >= OPEN_TOGETHER:
                yield group
                group, size = [], 0
        if group:
            yield group


def _open_all(decoders: Iterable[LogDecoder]) -> None:
    for decoder in decoders:
        decoder.open()
