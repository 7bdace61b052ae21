"""Whose turn it is to be fetched from one broker, and for how many bytes. No awaits.

A cursor that can be fetched stands in one of these places: the queue of its lot (`offer`), a fetch or a thread
(`pick`, until `Cursor.land`), the waiting room of those whose last answer was empty (`rest`), or nowhere: held back,
or starved until the reader takes something from it. What a turn costs depends on who is in it, not on how many there
are.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from odradek.client.consumer.cursor import Cursor
from odradek.client.notifier import Notifier
from odradek.core.backoff import Backoff
from odradek.core.fetch.read_ahead import ReadAheadBudget, ReadAheadQuota
from odradek.core.interfaces import LogDecoder
from odradek.core.states import CursorState

__all__ = ["FetchScheduler", "PartitionFetch", "StreamQuota", "offer"]

POLL_S = 50e-6
"""Partitions that had nothing are asked again after so many seconds for each of them, at the earliest: asking one takes
both sides about a quarter of that, so that thousands of quiet partitions never keep a core busy."""

TOGETHER = 0.5
"""Who would be asked again within this part of the longest pause is asked now, in one request with others."""


class PartitionFetch(NamedTuple):
    """One partition's part of a fetch. `had_tail`: its decoder keeps a partial message of an earlier one."""

    cursor: Cursor
    decoder: LogDecoder
    size: int
    had_tail: bool


class StreamQuota(ReadAheadQuota):
    """The partitions of one broker that one stream delivers, and those of them that wait for their turn."""

    def __init__(self, budget: ReadAheadBudget, turns: FetchScheduler) -> None:
        super().__init__(budget)
        self.turns = turns
        self.due: deque[Cursor] = deque()
        self.sealed = 0
        """So many fetches have brought compressed messages that wait for room to be opened."""
        self.unsealed = Notifier()
        """Rings when there may be room to open them."""

    def stir(self) -> None:
        """Something was taken, or landed: go on if that was what the next one waited for."""
        if self.full and self.relieve():
            self.turns.work.ring()
        if self.sealed and self.may_open:
            self.unsealed.ring()

    @property
    def may_open(self) -> bool:
        """What was opened before has left room, or nobody else will make any."""
        return self.free >= 0 or not self.listed


def offer(cursor: Cursor, by: FetchScheduler | None = None) -> None:
    """It may be its turn soon, or there is a position to search. `by` looks for work next, and need not be told."""
    lot = cursor.account
    if not (cursor.owned and isinstance(lot, StreamQuota)):
        return
    if cursor.state is CursorState.SEARCHING:
        lot.turns.searching[cursor] = None
        lot.turns.sought.ring()
    elif cursor.state is CursorState.FETCHING and not (cursor.queued or cursor.in_flight or cursor.holds):
        cursor.queued = True
        lot.due.append(cursor)
        if lot.turns is not by:
            lot.turns.work.ring()


class FetchScheduler:
    """The cursors of one broker.

    Args:
        budget: The read-ahead they share with those of other brokers.
        idle: How long one waits that had nothing.
        news: Rung when a reader that waits for more should take what there is.
    """

    def __init__(self, budget: ReadAheadBudget, idle: Backoff, news: Notifier) -> None:
        self.work = Notifier()
        """Rings when there may be something to fetch."""
        self.sought = Notifier()
        """Rings when there may be a position to search."""
        self.searching: dict[Cursor, None] = {}
        self._budget, self._idle, self._news = budget, idle, news
        self._lots: dict[int, StreamQuota] = {}
        self._resting: list[tuple[float, int, Cursor]] = []
        self._number = count()

    def clear(self) -> None:
        for lot in self._lots.values():
            lot.unsealed.ring()
        self._lots.clear()
        self._resting.clear()
        self.searching.clear()

    def join(self, cursor: Cursor) -> None:
        """It is served by this broker from now on."""
        if (lot := self._lots.get(cursor.stream)) is None:
            lot = self._lots[cursor.stream] = StreamQuota(self._budget, self)
        if cursor.account is not lot:
            cursor.queued = False
            cursor.join(lot)
            offer(cursor)

    def rest(self, cursor: Cursor, now: float, jitter: float) -> None:
        """The broker had nothing for it. Who calls it looks for work next."""
        if not isinstance(cursor.account, StreamQuota) or cursor.account.turns is not self:
            offer(cursor)  # another one serves it now
            return
        delay = max(self._idle.delay(cursor.empty_turns, jitter), POLL_S * len(self._resting))
        cursor.empty_turns += 1
        cursor.poll_at = now + delay
        heappush(self._resting, (cursor.poll_at, next(self._number), cursor))

    def pick(self, now: float) -> tuple[list[PartitionFetch], float]:
        """The next fetch, and when to look again if there is nothing to fetch (s)."""
        self._wake(now)
        wants: list[PartitionFetch] = []
        left = self._budget.limits.response
        for stream in list(self._lots):
            lot = self._lots[stream] = self._lots.pop(stream)  # streams take turns at being the first
            left -= self._pick_from(lot, left, wants)
        if wants and (self._resting or any(lot.due and not lot.full for lot in self._lots.values())):
            self.work.ring()  # somebody else has to look after the others
        return wants, self._resting[0][0] - now if self._resting else math.inf

    def _wake(self, now: float) -> None:
        """Those who have rested long enough, and with them those who nearly have."""
        resting = self._resting
        if not resting or resting[0][0] > now:
            return
        soon = now + TOGETHER * self._idle.max_s
        while resting and resting[0][0] <= soon:
            at, _, cursor = heappop(resting)
            if cursor.poll_at == at and cursor.owned and cursor.account is self._lots.get(cursor.stream):
                offer(cursor)

    def _pick_from(self, lot: StreamQuota, most: int, wants: list[PartitionFetch]) -> int:
        """Add wants of one lot, of `most` bytes together or a little more. Returns of how many."""
        lot.refresh()
        total, eager = 0, (lot.eager + 1) // 2  # the rest is for the next fetch, which goes out at the same time
        while lot.due and total < most and lot.relieve():
            cursor = lot.due[0]
            if size := self._ask(cursor, lot):
                if cursor.eager and not eager:
                    break
                if not (size := lot.grant(size, cursor.growth)):
                    self._news.ring()  # a reader waiting for a full batch gets what there is
                    break
                eager -= cursor.eager
                total += size
                wants.append(_departed(cursor, size))
            lot.due.popleft()
        return total

    def _ask(self, cursor: Cursor, lot: StreamQuota) -> int:
        """What it asks for; 0: it has no room, or is not any more what it was when it was offered."""
        if not cursor.queued or cursor.account is not lot or not cursor.owned:
            return 0
        if cursor.state is CursorState.FETCHING and not cursor.holds and not cursor.in_flight:
            if size := cursor.ask(self._budget):
                return size
            cursor.hungry = True
            self._news.ring()
        cursor.queued = False
        return 0


def _departed(cursor: Cursor, size: int) -> PartitionFetch:
    decoder = cursor.decoder
    assert decoder is not None
    cursor.queued = False
    cursor.depart(size)
    return PartitionFetch(cursor, decoder, size, decoder.fetch_position != decoder.position)
