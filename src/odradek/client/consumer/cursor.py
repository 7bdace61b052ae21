"""One partition on its way from the decoder to the reader: a queue of decoded columns with its accounts.

No awaits: its broker's loops fill it, the reader's task empties it, both in one event loop.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate, islice, takewhile
from math import inf
from typing import NamedTuple

from odradek.core.fetch.read_ahead import Buffered, ReadAheadBudget, ReadAheadQuota, ask, reckoned
from odradek.core.interfaces import LogDecoder
from odradek.core.states import CURSOR, CursorEvent, CursorState
from odradek.engine import PackedBytes
from odradek.errors import CorruptMessage, OdradekError
from odradek.types import Columns, Position, StartPosition, TopicPartition

__all__ = ["Cursor", "ExactPosition", "cut"]


class ExactPosition(NamedTuple):
    """An exact place between two messages: a position, and how many messages of a wrapper that starts there were
    delivered already (positions inside a wrapper do not exist, specification 2.3)."""

    position: Position
    inner: int = 0


class BufferedColumns:
    """Columns, of which the rows before `start` are gone, and the memory they take until the last row is gone."""

    __slots__ = ("columns", "memory", "start")

    def __init__(self, columns: Columns, memory: int, start: int = 0) -> None:
        self.columns, self.memory, self.start = columns, memory, start

    @property
    def rows(self) -> int:
        return len(self.columns.values) - self.start

    def rows_within(self, max_bytes: int) -> int:
        """How many rows have payloads of at most so many bytes together; 1 at least."""
        values, first = self.columns.values, self.start
        if isinstance(values, PackedBytes):
            stop = bisect_right(values.offsets, values.offsets[first] + max_bytes, lo=first + 1)
            return max(1, stop - 1 - first)
        ends = accumulate(len(value or b"") for value in islice(values, first, None))
        return max(1, sum(1 for _ in takewhile(max_bytes.__ge__, ends)))


class Cursor:
    """One partition.

    Args:
        partition: Which.
        start: Where to begin; anything but a position is asked of the broker.
        skip: With a position: how many messages of the wrapper there were delivered before (`ExactPosition.inner`).
        until: Where to end, or None.
        stream: Which of a consumer's streams delivers it.
    """

    def __init__(
        self,
        partition: TopicPartition,
        start: StartPosition,
        *,
        skip: int = 0,
        until: Position | None = None,
        stream: int = 0,
    ) -> None:
        self.partition = partition
        self.stream = stream
        self.until = until
        self.holds: set[str] = set()
        """Why it is not delivered now: `user` (pause), `handlers` (they have enough of it)."""
        self.account: ReadAheadQuota | None = None
        """Where its numbers are added up; None until a broker is known that serves it."""
        self.owned = False
        """It is read; False before and after."""
        self.queued = False
        """It waits for its turn to be fetched."""
        self.in_flight = False
        """A fetch, or a thread, works on its decoder. Nobody else touches that."""
        self.hungry = False
        """Its share had no room when its turn came: taking from it makes room."""
        self.listed = False
        """It is in its stream's list of cursors with something to deliver."""
        self.eager = False
        """Its last answer was as long as it could be: there is more."""
        self.counted = False
        """Something may still come of it, and it counts for that among those who share the read-ahead."""
        self.empty_turns = 0
        self.poll_at = 0.0
        self.attempts, self.not_before = 0, 0.0
        self.reports: list[CorruptMessage] = []
        self._memory = self._tail = self._reserved = 0
        self._begin(start, skip)

    def _begin(self, start: StartPosition, skip: int) -> None:
        self.state = CURSOR.start
        self.start = start
        self.decoder: LogDecoder | None = None
        self.error: OdradekError | None = None
        self.queue: deque[BufferedColumns] = deque()
        self.rows = 0
        self.since = 0.0
        self.attempts, self.not_before = 0, 0.0
        self._hold(-self._memory, -self._tail)
        self._growth: float | None = None
        self._wish: int | None = None
        self._skip = skip
        self._at = Position(0)
        self._rest: Position | None = None  # the first message cut off at `until`: it counts as not read
        self._retried_at: Position | None = None

    # ---- where it is ----

    @property
    def place(self) -> ExactPosition | None:
        """What the reader gets next; None while it has to be asked for. (It asks nothing of the decoder, which may be
        in the hands of a thread.)"""
        if self.queue:
            chunk = self.queue[0]
            inner = chunk.columns.inner_indexes
            return ExactPosition(Position(chunk.columns.positions[chunk.start]), inner[chunk.start] if inner else 0)
        if self.decoder is not None:
            return ExactPosition(self._at if self._rest is None else self._rest, self._skip)
        return ExactPosition(Position(self.start), self._skip) if isinstance(self.start, int) else None

    @property
    def deliverable(self) -> bool:
        return not self.holds and (self.rows > 0 or self.error is not None)

    @property
    def starved(self) -> bool:
        """There is no room for more of it."""
        return self.hungry or (self.account is not None and self.account.full)

    @property
    def over(self) -> bool:
        """Nothing will come of it any more."""
        return self.state in (CursorState.ENDED, CursorState.BROKEN) and not self.rows and self.error is None

    # ---- what it takes ----

    @property
    def holding(self) -> Buffered:
        """For the fetch plan. A lone partial message counts as nothing, so that its rest may always be asked for."""
        tail = int(self._tail * self.growth) + 1 if self.rows else 0
        return Buffered(self._memory + tail, self._known_growth)

    @property
    def growth(self) -> float:
        """What a byte is reckoned to grow to."""
        return reckoned(self._known_growth)

    @property
    def _known_growth(self) -> float | None:
        """Before anything came, what it did lately with its neighbours."""
        return self.account.growth if self._growth is None and self.account is not None else self._growth

    def join(self, account: ReadAheadQuota | None) -> None:
        """Its numbers are added up there from now on."""
        self._add_up(-1)
        self.account = account
        self._add_up(1)

    def _add_up(self, sign: int) -> None:
        if (account := self.account) is not None:
            account.held += sign * (self._memory + self._tail)
            account.reserved += sign * self._reserved
            account.listed += sign * self.listed
            account.eager += sign * self.eager
            account.partitions += sign * self.counted

    def _hold(self, memory: int, tail: int = 0) -> None:
        self._memory += memory
        self._tail += tail
        if self.account is not None:
            self.account.held += memory + tail

    def set_listed(self, value: bool) -> None:
        if self.account is not None:
            self.account.listed += value - self.listed
        self.listed = value

    def set_counted(self, value: bool) -> bool:
        if self.account is not None:
            self.account.partitions += value - self.counted
        self.counted = value
        return value

    def _set_eager(self, value: bool) -> None:
        if self.account is not None:
            self.account.eager += value - self.eager
        self.eager = value

    def ask(self, budget: ReadAheadBudget) -> int:
        """Bytes it may ask for, as far as its own share goes."""
        size = ask(self.holding, budget.share, budget.limits)
        return size if self._wish is None else min(size, max(self._wish, budget.limits.least))

    # ---- filled by the link ----

    def depart(self, size: int) -> None:
        """So many bytes are asked for."""
        self.in_flight, self.hungry = True, False
        self._reserve(int(size * self.growth))

    def land(self) -> None:
        """What was asked for is there, or will never be, and nobody works on the decoder any more."""
        self.in_flight = False
        self._reserve(0)

    def _reserve(self, memory: int) -> None:
        if self.account is not None:
            self.account.reserved += memory - self._reserved
        self._reserved = memory

    def found(self, position: Position, decoder: LogDecoder) -> None:
        self.state = CURSOR.after(self.state, CursorEvent.FOUND)
        self.start, self.decoder, self._at = position, decoder, position
        self.attempts = self.empty_turns = 0
        self._end_if_reached()

    def seek(self, start: StartPosition, skip: int = 0) -> None:
        """Forget everything and begin elsewhere. What a fetch in flight still brings goes to the old decoder."""
        CURSOR.after(self.state, CursorEvent.SEEK)
        self._begin(start, skip)

    def fail(self, error: OdradekError) -> None:
        """The reader gets `error` after everything queued."""
        self.state = CURSOR.after(self.state, CursorEvent.FAIL)
        self.error = error
        self._hold(0, -self._tail)

    def out_of_range(self, start: StartPosition) -> None:
        """The log no longer has its position: search `start` once everything queued is delivered."""
        self.state = CURSOR.after(self.state, CursorEvent.OUT_OF_RANGE)
        self.start, self.decoder, self._skip = start, None, 0
        self._hold(0, -self._tail)

    def drop_tail(self) -> bool:
        """Go back to the last message boundary; False when it is there already. Whatever was cut off is fetched
        again: after a lost connection the broker may have been truncated in between (specification 4.5)."""
        decoder = self.decoder
        if decoder is None or decoder.fetch_position == decoder.position:
            return False
        decoder.reset(decoder.position)
        self._hold(0, -self._tail)
        return True

    def absorb(self, received: int, asked: int, had_tail: bool, now: float) -> None:
        """Queue what the decoder made of `received` bytes, of `asked` ones.

        An error that came out of bytes of two fetches is looked at once more in one piece before it is believed: the
        connection may have been replaced in between, and the log with it.
        """
        decoder = self.decoder
        assert decoder is not None
        self.empty_turns = 0
        self._wish = None if received >= asked else 2 * received
        self._set_eager(received >= asked > 0)
        before = decoder.pending_bytes
        columns = decoder.take()
        payload = before - decoder.pending_bytes
        self.reports += decoder.take_reports()
        again = decoder.error is not None and had_tail and self._retried_at != decoder.position
        if again:  # also what came out of the broken entry itself, a wrapper, will come again
            columns = cut(columns, 0, bisect_left(columns.positions, decoder.position))
        used = received + self._tail - decoder.pending_bytes
        self._enqueue(self._trim(columns), payload, used, now)
        self._at = decoder.position
        if self._end_if_reached():  # damage behind `until` is none of our business
            return
        if again:
            self._retried_at = decoder.position
            decoder.reset(decoder.position)
        elif decoder.error is not None:
            self.fail(decoder.error)
            return
        self._hold(0, decoder.pending_bytes - self._tail)

    def _enqueue(self, columns: Columns, payload: int, used: int, now: float) -> None:
        rows = len(columns.values)
        if not rows:
            return
        memory = payload + columns.row_bytes * rows
        if not self.rows:
            self.since = now
        self.queue.append(BufferedColumns(columns, memory))
        self.rows += rows
        self._hold(memory)
        if used > 0:
            self._growth = memory / max(used, 1024)  # a few bytes say nothing about the next megabyte
            if self.account is not None:
                self.account.learn(self._growth)

    def _trim(self, columns: Columns) -> Columns:
        """Without what was delivered before a bookmark and what lies behind `until`."""
        start, stop = 0, len(columns.values)
        if self._skip and stop:
            start = self._already_delivered(columns)
            self._skip = 0
        if self.until is not None:
            stop = bisect_left(columns.positions, self.until)
            if stop < len(columns.positions) and self._rest is None:
                self._rest = Position(columns.positions[stop])
        return cut(columns, start, stop)

    def _already_delivered(self, columns: Columns) -> int:
        inner, first = columns.inner_indexes, self.start
        if inner is None:
            return 0
        n = 0
        while n < len(inner) and columns.positions[n] == first and inner[n] < self._skip:
            n += 1
        return n

    def nothing_came(self) -> bool:
        """The log has nothing behind what was fetched. False when that is an error: it ends inside the message that
        should be the last before `until`. What a broker shows of a healthy log ends with a message (specification 3.1,
        4.3), so the rest will never come."""
        decoder = self.decoder
        assert decoder is not None
        self._wish = 0
        self._set_eager(False)
        if self.until is None or not decoder.position < self.until <= decoder.fetch_position:
            return True
        self.fail(CorruptMessage(str(self.partition), decoder.position, "the log ends inside this message"))
        return False

    def _end_if_reached(self) -> bool:
        if self.until is None or self.decoder is None or self.decoder.position < self.until:
            return False
        self.state = CURSOR.after(self.state, CursorEvent.REACH)
        self._hold(0, -self._tail)
        return True

    # ---- emptied by the reader ----

    @property
    def next_bytes(self) -> float:
        """Bytes of its next row's payload; more than any when that is an error."""
        return len(self.queue[0].columns.values[self.queue[0].start] or b"") if self.rows else inf

    def ripe(self, max_records: int | None, max_wait: float, now: float) -> bool:
        """It has a full batch, or has waited long enough, or has nothing more to come for now."""
        if max_wait <= 0 or max_records is None or self.rows >= max_records or self.starved:
            return True
        return self.state is not CursorState.FETCHING or now >= self.since + max_wait

    def take(self, max_records: int | None, now: float) -> Columns:
        """At most `max_records` rows (None: as they were decoded), or its error when no rows are left."""
        if not self.rows:
            error, self.error = self.error, None
            assert error is not None
            raise error
        pieces = [self._shift(max_records)]
        if max_records is not None:
            missing = max_records - len(pieces[0].values)
            while self.rows and missing:
                pieces.append(self._shift(missing))
                missing -= len(pieces[-1].values)
        self.since = now
        return Columns.concat(pieces)

    def take_bytes(self, max_bytes: int, now: float) -> Columns:
        """As `take`, of one run of columns as they were decoded: payloads of at most `max_bytes`, or one row."""
        if not self.rows:
            return self.take(None, now)
        self.since = now
        return self._shift(self.queue[0].rows_within(max_bytes))

    def _shift(self, max_records: int | None) -> Columns:
        chunk = self.queue[0]
        stop = len(chunk.columns.values) if max_records is None else chunk.start + min(max_records, chunk.rows)
        columns = cut(chunk.columns, chunk.start, stop)
        self.rows -= stop - chunk.start
        chunk.start = stop
        if not chunk.rows:
            self.queue.popleft()
            self._hold(-chunk.memory)
        return columns

    def put_back(self, columns: Columns, rows: int) -> None:
        """Take back the last `rows` rows of what `take` gave."""
        if rows:
            memory = columns.payload_bytes + columns.row_bytes * len(columns.values)
            chunk = BufferedColumns(columns, memory, len(columns.values) - rows)
            self.queue.appendleft(chunk)
            self.rows += rows
            self._hold(memory)


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """Rows `start` to `stop`; the very same columns when that is all of them."""
    return columns.slice(start, stop)
