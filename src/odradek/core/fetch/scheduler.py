"""Choose the partitions to fetch next from one broker, and how many bytes of each.

Pure: the loops of one broker ask for the next fetch (`next_fetch`), send it, and queue its cursors again once they have
the result (`requeue`); `now` and jitter are arguments, and so are the callbacks that wake the loops. A cursor that can
be fetched is in exactly one place, which its state names: the queue of its quota (READY), a fetch (IN_FLIGHT), the
back-off heap (BACKING_OFF), or none, until the user resumes it or takes records (PAUSED, OUT_OF_QUOTA). The cost of a
fetch depends on the partitions in it, not on how many there are.

Partitions that had nothing last time are quiet. If there are many partitions, and a long poll has opened a fetch
session, the quiet ones are all in the long polls of another loop (`next_poll`): their fetches stay part of one poll
after the other until they have a result, so that a poll costs next to nothing for each. Otherwise a long poll is one of
the fetches, for as many as there is memory for.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from odradek.core.backoff import Backoff
from odradek.core.fetch.cursor import Cursor, CursorFetch
from odradek.core.fetch.fetch_size import FetchSize
from odradek.core.fetch.read_ahead import ReadAheadBudget
from odradek.core.fetch.stream_quota import StreamQuota
from odradek.core.states import CursorState
from odradek.types import AtTime, PositionSpec

__all__ = ["FetchPolicy", "FetchScheduler", "NextFetch", "SchedulerCallbacks"]

IDLE_POLL_S = 50e-6
"""Poll interval per idle partition: with n of them, each is polled at most once every n times this long (s). Polling
one takes client and broker about a quarter of it, so thousands of idle partitions never keep a core busy."""

MANY_PARTITIONS = 64
"""Partitions of one broker up to which long polls are among the fetches, each of which has memory for about so many. If
there are more, a loop of its own has the polls; a record of a few does not pay for the change of tasks."""

OPENING_POLL_S = 0.001
"""Wait of the first long poll of many partitions (s): it opens the session that all of them are polled in."""

SESSION_WAIT = 2
"""A long poll in a session waits so many times longer than others: its beginning and its end cost the broker a look at
every log. It is still shorter than `TopicCheck` is sure of a topic (2 s)."""

COALESCE_FRACTION = 0.5
"""Partitions due within this fraction of the longest idle pause are polled now, in one request with others."""


class FetchPolicy(NamedTuple):
    """Policy for responses that bring nothing.

    Args:
        idle: Back-off between polls of a partition that has nothing new.
        retry: Back-off after a passing error of a partition.
        reset: Where to continue when the log does not have a position; None: the partition fails.
        long_poll_s: How long a broker holds back a response that would be empty (s); 0: it cannot.
    """

    idle: Backoff
    retry: Backoff
    reset: PositionSpec | AtTime | None = None
    long_poll_s: float = 0.0


class SchedulerCallbacks(NamedTuple):
    """Callbacks of a scheduler. They must not call back into it.

    Args:
        work: There may be something to fetch.
        resolve: There may be a position to resolve.
        space: There may be space to decompress.
        available: A user who waits for a full batch should take what there is.
    """

    work: Callable[[], None]
    resolve: Callable[[], None]
    space: Callable[[], None]
    available: Callable[[], None]


class NextFetch(NamedTuple):
    """Instruction for a fetch loop: send these fetches, or wait.

    Args:
        fetches: To be sent in one request; none: nothing can be fetched now.
        max_wait: How long the broker may wait until it has something (s). More than 0 is a long poll: send it on a
            connection of its own, so that it delays no other fetch, and call `long_poll_finished` afterwards.
        wait: Without fetches: when to ask again at the latest (s from now).
        max_bytes: Maximum log bytes of the response to a long poll in a session (bytes); 0: it is another fetch.
    """

    fetches: Sequence[CursorFetch]
    max_wait: float
    wait: float
    max_bytes: int = 0


class FetchScheduler:
    """The cursors of one broker.

    Args:
        budget: The read-ahead they share with those of other brokers.
        policy: See FetchPolicy.
        callbacks: See SchedulerCallbacks.
    """

    def __init__(self, budget: ReadAheadBudget, policy: FetchPolicy, callbacks: SchedulerCallbacks) -> None:
        self.callbacks = callbacks
        self.resolving: dict[Cursor, None] = {}
        """Cursors whose position has to be resolved."""
        self.fetch_size = FetchSize(budget.limits)
        self._budget, self._policy = budget, policy
        self._quotas: dict[int, StreamQuota] = {}
        self._backing_off: list[tuple[float, int, Cursor]] = []
        self._entry_number = count()
        self.in_session = False
        """Quiet partitions are polled by a loop of its own: there are many, and a fetch session."""
        self._long_poll_in_flight = False
        self._may_open = True  # no long poll has tried in vain
        self._next_poll_at = -math.inf

    @property
    def held_bytes(self) -> int:
        """Memory that its partitions hold (bytes)."""
        return sum([quota.held for quota in self._quotas.values()])

    def clear(self) -> None:
        """Forget all cursors."""
        self._quotas.clear()
        self._backing_off.clear()
        self.resolving.clear()
        self.callbacks.space()

    def join(self, cursor: Cursor) -> None:
        """Serve this cursor from now on."""
        if (quota := self._quotas.get(cursor.stream)) is None:
            quota = self._quotas[cursor.stream] = StreamQuota(self._budget, self)
        if cursor.share.quota is not quota:
            cursor.share.join(quota)
            if cursor.state is CursorState.BACKING_OFF:
                cursor.poll()
            self.enqueue(cursor)

    def enqueue(self, cursor: Cursor, *, wake: bool = True) -> None:
        """Queue a cursor that can be fetched, or whose position can be resolved. `wake=False`: the caller looks for
        work next."""
        quota = cursor.share.quota
        if cursor.state is CursorState.RESOLVING:
            self.resolving[cursor] = None
            self.callbacks.resolve()
        elif cursor.state is CursorState.READY and quota is not None:
            quota.ready[cursor] = None
            if wake:
                self.callbacks.work()

    def unblock(self, cursor: Cursor) -> None:
        """Records were taken from it, or it was resumed or sought: continue with it if that was what it waited for."""
        if cursor.state is CursorState.RESOLVING or cursor.unblock():
            self.enqueue(cursor)

    # ---- what is next ----

    def next_fetch(self, now: float) -> NextFetch:
        """Return the next fetch, or when to ask again if there is nothing to fetch."""
        self._end_back_off(now)
        fetches: list[CursorFetch] = []
        left = max(self._budget.limits.response_bytes, self.fetch_size.bytes)
        for stream in list(self._quotas):
            quota = self._quotas[stream] = self._quotas.pop(stream)  # another stream is the first next time
            left -= self._add_fetches(quota, left, fetches)
        if fetches and (self._backing_off or any(quota.ready and not quota.full for quota in self._quotas.values())):
            self.callbacks.work()  # the other loop has to look after the rest
        wait = self._backing_off[0][0] - now if self._backing_off else math.inf
        return NextFetch(fetches, self._long_poll(fetches), wait)

    def _long_poll(self, fetches: Sequence[CursorFetch]) -> float:
        """Return how long the broker may wait: 0 unless all of these had nothing last time, and one at a time, so that
        a loop is left for partitions that become ready meanwhile."""
        if not fetches or not self._can_poll or self.in_session:
            return 0.0
        self._long_poll_in_flight = all(fetch.cursor.empty_responses for fetch in fetches)
        if not self._long_poll_in_flight:
            return 0.0
        opens, self._may_open = self._may_open and self._has_many, False
        return OPENING_POLL_S if opens else self._policy.long_poll_s

    @property
    def _has_many(self) -> bool:
        return sum([quota.active for quota in self._quotas.values()]) > MANY_PARTITIONS

    @property
    def _can_poll(self) -> bool:
        return self._policy.long_poll_s > 0 and not self._long_poll_in_flight

    def responded(self, fetches: Sequence[CursorFetch], seconds: float) -> None:
        """Note how long a response took, before its result is completed. Partitions request more at a time from a
        distant broker (`FetchSize`).

        Args:
            fetches: The fetches of the request, which was no long poll.
            seconds: From the request to the whole response (s).
        """
        full = [fetch for fetch in fetches if fetch.received >= fetch.max_bytes]
        requested = sum([fetch.max_bytes for fetch in fetches])
        waiting = any(not fetch.cursor.queue.rows for fetch in full)
        self.fetch_size.responded(requested, seconds, full=bool(full), waiting=waiting)

    def _end_back_off(self, now: float) -> None:
        """Queue the cursors whose back-off is over, and with them those whose back-off is nearly over."""
        heap = self._backing_off
        if not heap or heap[0][0] > now:
            return
        soon = now + COALESCE_FRACTION * self._policy.idle.max_s
        while heap and heap[0][0] <= soon:
            at, _, cursor = heappop(heap)
            self._queue_again(cursor, at)

    def _queue_again(self, cursor: Cursor, at: float) -> None:
        """Queue a cursor whose back-off ends, unless its entry for this time is out of date."""
        quota = cursor.share.quota
        is_due = cursor.state is CursorState.BACKING_OFF and cursor.retry_at == at
        if is_due and quota is not None and quota.scheduler is self:
            cursor.poll()
            quota.ready[cursor] = None

    def _add_fetches(self, quota: StreamQuota, max_bytes: int, fetches: list[CursorFetch]) -> int:
        """Add fetches of one quota, of `max_bytes` together or a little more. Return how many bytes."""
        quota.refresh()
        ready, total = quota.ready, 0
        # Half of the partitions with more: the rest is for the next fetch, which is sent at the same time.
        allowed = (quota.partitions_with_more + 1) // 2
        while ready and total < max_bytes and (not quota.full or quota.try_unblock()):
            cursor = next(iter(ready))
            if size := self._wanted_bytes(cursor, quota):
                if cursor.share.has_more and not allowed:
                    break
                if not (size := quota.grant(size, cursor.share.expansion)):
                    self.callbacks.available()
                    break
                allowed -= cursor.share.has_more
                total += size
                fetches.append(cursor.send(size, quota))
            del ready[cursor]
        return total

    def _wanted_bytes(self, cursor: Cursor, quota: StreamQuota) -> int:
        """Return how many bytes it wants; 0: it is not to be fetched now."""
        if cursor.state is not CursorState.READY or cursor.share.quota is not quota:
            return 0  # the entry is out of date
        if cursor.pause_reasons:
            cursor.hold_back()
        elif size := cursor.wanted_bytes():
            return size
        else:
            cursor.fill()
            self.callbacks.available()
        return 0

    # ---- long polls in a session ----

    def next_poll(self, now: float) -> NextFetch:
        """Return the next long poll in a fetch session, of all quiet partitions, or when to ask again if there is none.

        What a poll may bring is bounded as a whole, by the quota with the least space: all of it may be of one quota.
        The partitions of a full quota are in no poll until records of it are taken.
        """
        if not self.in_session:
            self.end_polls(now)
        if not self.in_session or self._long_poll_in_flight:
            return NextFetch((), 0.0, math.inf)
        if now < self._next_poll_at:
            return NextFetch((), 0.0, self._next_poll_at - now)
        self._end_changed(now)
        self._add_quiet()
        self._next_poll_at = now + IDLE_POLL_S * sum([len(quota.polled) for quota in self._quotas.values()])
        granted = {quota: quota.grant_poll() for quota in self._quotas.values() if quota.polled}
        if not all(granted.values()):
            self.callbacks.available()
        sizes = [size for size in granted.values() if size]
        if not sizes:
            return NextFetch((), 0.0, math.inf)
        fetches = [fetch for quota, size in granted.items() if size for fetch in quota.polled]
        self._long_poll_in_flight = True
        return NextFetch(fetches, SESSION_WAIT * self._policy.long_poll_s, math.inf, min(sizes))

    def _end_changed(self, now: float) -> None:
        """End the fetches of cursors that are paused, or no longer wait for them, or are served by another broker."""
        for quota in self._quotas.values():
            changed = []
            for fetch in quota.polled:
                cursor = fetch.cursor
                if cursor.fetch is not fetch or cursor.share.quota is not quota or cursor.pause_reasons:
                    changed.append(fetch)
            self._end_polled(changed, now)

    def _end_polled(self, fetches: Iterable[CursorFetch], now: float) -> None:
        """End fetches between two polls as if they had been answered with nothing, which they were."""
        for fetch in fetches:
            del fetch.quota.polled[fetch]
            if fetch.cursor.complete(fetch, now, None):
                self.requeue(fetch.cursor, now, 0.0)
            self.callbacks.work()

    def _add_quiet(self) -> None:
        """Add the partitions that had nothing last time, whether they back off or wait to be fetched."""
        after_errors = []
        for entry in self._backing_off:
            if entry[2].attempts:
                after_errors.append(entry)
            else:
                self._queue_again(entry[2], entry[0])
        heapify(after_errors)
        self._backing_off = after_errors
        for quota in self._quotas.values():
            for cursor in [each for each in quota.ready if each.empty_responses]:
                del quota.ready[cursor]
                if size := self._wanted_bytes(cursor, quota):
                    quota.polled[cursor.send(size, quota, reserve=False)] = None

    def long_poll_finished(self, finished: Iterable[CursorFetch], *, in_session: bool) -> None:
        """Note that the response to a long poll is there, or will never be.

        Args:
            finished: Those of its fetches that are part of no other poll: they have a result, or there is none.
            in_session: A session is open for the next one.
        """
        self._long_poll_in_flight, self.in_session = False, in_session and self._has_many
        self._may_open |= self.in_session
        for fetch in finished:
            if fetch in fetch.quota.polled:
                del fetch.quota.polled[fetch]
                fetch.reserve_received()
                self.callbacks.work()  # the other loops go on with it
        if self.in_session:
            self.callbacks.work()

    def end_polls(self, now: float) -> None:
        """End the fetches that wait for the next poll: there is no session, or no broker, or there are few partitions.
        A poll in flight ends first."""
        if not (self.in_session and self._long_poll_in_flight):
            self.in_session = False
            for quota in self._quotas.values():
                self._end_polled(list(quota.polled), now)

    # ---- afterwards ----

    def requeue(self, cursor: Cursor, now: float, jitter: float) -> None:
        """Queue a cursor again that has the result of its fetch. The caller looks for work next.

        Args:
            cursor: Its `complete` has returned true.
            now: The time (s).
            jitter: In [0, 1), for back-off.
        """
        quota = cursor.share.quota
        assert quota is not None
        owner = quota.scheduler  # another one if another broker serves it now
        if cursor.state is CursorState.READY:
            quota.ready[cursor] = None
            if cursor.share.was_left_out:  # a broker has space for the first one in any case
                quota.ready.move_to_end(cursor, last=False)
        elif cursor.state is CursorState.IN_FLIGHT:
            owner.back_off(cursor, now, jitter)
        elif not cursor.at_end:
            owner.enqueue(cursor, wake=False)
        if owner is not self:
            owner.callbacks.work()

    def back_off(self, cursor: Cursor, now: float, jitter: float) -> None:
        """Fetch it again later: the broker had nothing for it, or a passing error."""
        if cursor.attempts:
            delay = self._policy.retry.delay(cursor.attempts - 1, jitter)
        elif self._can_poll and not self.in_session:
            delay = 0.0
        else:
            idle = self._policy.idle.delay(cursor.empty_responses - 1, jitter)
            delay = max(idle, IDLE_POLL_S * len(self._backing_off))
        cursor.back_off(now + delay)
        heappush(self._backing_off, (cursor.retry_at, next(self._entry_number), cursor))
        if self.in_session and self._can_poll:
            self.callbacks.work()  # the loop of the polls takes it at once

    # ---- positions ----

    def next_to_resolve(self, now: float) -> tuple[Sequence[Cursor], float]:
        """Return the cursors whose position to resolve now, and when to ask again at the latest (s from now)."""
        due: list[Cursor] = []
        wait = math.inf
        for cursor in list(self.resolving):
            if cursor.state is not CursorState.RESOLVING:
                del self.resolving[cursor]
            elif not cursor.queue.rows and not cursor.pause_reasons:  # first, records from before are delivered
                if cursor.retry_at <= now:
                    due.append(cursor)
                else:
                    wait = min(wait, cursor.retry_at - now)
        return due, wait

    def retry_resolving(self, cursor: Cursor, now: float, jitter: float) -> None:
        """Back off after its position could not be resolved, then try again."""
        cursor.resolve_later(now + self._policy.retry.delay(cursor.attempts, jitter))
