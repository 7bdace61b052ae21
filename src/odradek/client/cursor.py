"""One partition on its way from the decoder to the reader: a queue of decoded columns with its accounts.

No awaits: the fetcher's loops fill it, the reader's task empties it, both in one event loop.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate, islice, repeat, takewhile
from math import inf
from typing import NamedTuple

from odradek.codec import Packed
from odradek.core.fetch_plan import Holding
from odradek.core.interfaces import Decoder
from odradek.core.states import CURSOR, CursorEvent, CursorState
from odradek.errors import CorruptMessage, OdradekError
from odradek.types import Columns, Position, Start, TopicPartition

__all__ = ["Cursor", "Place", "cut"]


class Place(NamedTuple):
    """An exact place between two messages: a position, and how many messages of a wrapper that starts there were
    delivered already (positions inside a wrapper do not exist, specification 2.3)."""

    position: Position
    inner: int = 0


class Chunk:
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
        if isinstance(values, Packed):
            stop = bisect_right(values.offsets, values.offsets[first] + max_bytes, lo=first + 1)
            return max(1, stop - 1 - first)
        ends = accumulate(map(len, islice(values, first, None)))
        return max(1, sum(1 for _ in takewhile(max_bytes.__ge__, ends)))


class Cursor:
    """One partition.

    Args:
        partition: Which.
        start: Where to begin; anything but a position is asked of the broker.
        skip: With a position: how many messages of the wrapper there were delivered before (`Place.inner`).
        until: Where to end, or None.
        stream: Which of a consumer's streams delivers it.
    """

    def __init__(
        self, partition: TopicPartition, start: Start, *, skip: int = 0, until: Position | None = None, stream: int = 0
    ) -> None:
        self.partition = partition
        self.stream = stream
        self.until = until
        self.holds: set[str] = set()
        """Why it is not delivered now: `user` (pause), `handlers` (they have enough of it)."""
        self.in_flight = False
        self.starved = False
        """It had no room at the last plan: taking from it makes room."""
        self.listed = False
        """It is in its stream's list of cursors with something to deliver."""
        self.attempts = 0
        self.not_before = 0.0
        self.reports: list[CorruptMessage] = []
        self._begin(start, skip)

    def _begin(self, start: Start, skip: int) -> None:
        self.state = CURSOR.start
        self.start = start
        self.decoder: Decoder | None = None
        self.error: OdradekError | None = None
        self.queue: deque[Chunk] = deque()
        self.rows = 0
        self.since = 0.0
        self.attempts, self.not_before = 0, 0.0
        self._memory = 0
        self._growth: float | None = None
        self._skip = skip
        self._rest: Position | None = None  # the first message cut off at `until`: it counts as not read
        self._retried_at: Position | None = None

    # ---- where it is ----

    @property
    def place(self) -> Place | None:
        """What the reader gets next; None while it has to be asked for."""
        if self.queue:
            chunk = self.queue[0]
            inner = chunk.columns.inner_indexes
            return Place(Position(chunk.columns.positions[chunk.start]), inner[chunk.start] if inner else 0)
        if self.decoder is not None:
            return Place(self.decoder.position if self._rest is None else self._rest, self._skip)
        return Place(Position(self.start), self._skip) if isinstance(self.start, int) else None

    @property
    def deliverable(self) -> bool:
        return not self.holds and (self.rows > 0 or self.error is not None)

    @property
    def over(self) -> bool:
        """Nothing will come of it any more."""
        return self.state in (CursorState.ENDED, CursorState.BROKEN) and not self.rows and self.error is None

    @property
    def holding(self) -> Holding:
        """For the fetch plan. A lone partial message counts as nothing, so that its rest may always be asked for."""
        tail = self.decoder.pending_bytes if self.decoder is not None and self.rows else 0
        return Holding(self._memory + tail, self._growth)

    # ---- filled by the fetcher ----

    def found(self, position: Position, decoder: Decoder) -> None:
        self.state = CURSOR.after(self.state, CursorEvent.FOUND)
        self.start, self.decoder = position, decoder
        self.attempts = 0
        self._end_if_reached()

    def seek(self, start: Start, skip: int = 0) -> None:
        """Forget everything and begin elsewhere. What a fetch in flight still brings goes to the old decoder."""
        CURSOR.after(self.state, CursorEvent.SEEK)
        self._begin(start, skip)

    def fail(self, error: OdradekError) -> None:
        """The reader gets `error` after everything queued."""
        self.state = CURSOR.after(self.state, CursorEvent.FAIL)
        self.error = error

    def out_of_range(self, start: Start) -> None:
        """The log no longer has its position: search `start` once everything queued is delivered."""
        self.state = CURSOR.after(self.state, CursorEvent.OUT_OF_RANGE)
        self.start, self.decoder, self._skip = start, None, 0

    def drop_tail(self) -> bool:
        """Go back to the last message boundary; False when it is there already. Whatever was cut off is fetched
        again: after a lost connection the broker may have been truncated in between (specification 4.5)."""
        decoder = self.decoder
        if decoder is None or decoder.fetch_position == decoder.position:
            return False
        decoder.reset(decoder.position)
        return True

    def absorb(self, received: int, had_tail: bool, now: float) -> bool:
        """Queue what the decoder made of `received` bytes. True when there is news for the reader.

        An error that came out of bytes of two fetches is looked at once more in one piece before it is believed: the
        connection may have been replaced in between, and the log with it.
        """
        decoder = self.decoder
        assert decoder is not None
        before = decoder.pending_bytes
        columns = decoder.take()
        payload = before - decoder.pending_bytes
        self.reports += decoder.take_reports()
        again = decoder.error is not None and had_tail and self._retried_at != decoder.position
        if again:  # also what came out of the broken entry itself, a wrapper, will come again
            columns = cut(columns, 0, bisect_left(columns.positions, decoder.position))
        news = self._enqueue(self._trim(columns), payload, received, now)
        if self._end_if_reached():  # damage behind `until` is none of our business
            return True
        if again:
            self._retried_at = decoder.position
            decoder.reset(decoder.position)
        elif decoder.error is not None:
            self.fail(decoder.error)
            return True
        return news

    def _enqueue(self, columns: Columns, payload: int, received: int, now: float) -> bool:
        rows = len(columns.values)
        if not rows:
            return False
        memory = payload + columns.row_bytes * rows
        if not self.rows:
            self.since = now
        self.queue.append(Chunk(columns, memory))
        self.rows += rows
        self._memory += memory
        if received:
            self._growth = memory / max(received, 1024)  # a few bytes say nothing about the next megabyte
        return True

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

    def end_of_log(self) -> bool:
        """The log has nothing behind what was fetched. True when that is news: it ends inside the message that should
        be the last before `until`. What a broker shows of a healthy log ends with a message (specification 3.1, 4.3),
        so the rest will never come."""
        decoder = self.decoder
        if self.until is None or decoder is None or self.state is not CursorState.FETCHING:
            return False
        if not decoder.position < self.until <= decoder.fetch_position:
            return False
        self.fail(CorruptMessage(str(self.partition), decoder.position, "the log ends inside this message"))
        return True

    def _end_if_reached(self) -> bool:
        if self.until is None or self.decoder is None or self.decoder.position < self.until:
            return False
        self.state = CURSOR.after(self.state, CursorEvent.REACH)
        return True

    # ---- emptied by the reader ----

    @property
    def next_bytes(self) -> float:
        """Bytes of its next row's payload; more than any when that is an error."""
        return len(self.queue[0].columns.values[self.queue[0].start]) if self.rows else inf

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
        columns = self._shift(max_records)
        while max_records is not None and self.rows and len(columns.values) < max_records:
            columns = _join(columns, self._shift(max_records - len(columns.values)))
        self.since = now
        return columns

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
            self._memory -= chunk.memory
        return columns

    def put_back(self, columns: Columns, rows: int) -> None:
        """Take back the last `rows` rows of what `take` gave."""
        if rows:
            memory = columns.payload_bytes + columns.row_bytes * len(columns.values)
            chunk = Chunk(columns, memory, len(columns.values) - rows)
            self.queue.appendleft(chunk)
            self.rows += rows
            self._memory += chunk.memory


def cut(columns: Columns, start: int, stop: int) -> Columns:
    """Rows `start` to `stop`; the very same columns when that is all of them."""
    if start == 0 and stop >= len(columns.values):
        return columns
    rows = slice(start, stop)
    c = columns
    return Columns(
        c.values[rows],
        c.positions[rows],
        c.next_positions[rows],
        c.inner_indexes and c.inner_indexes[rows],
        c.keys and c.keys[rows],
        c.headers and c.headers[rows],
        c.times and c.times[rows],
        {row - start: error for row, error in c.corrupt.items() if start <= row < stop},
    )


def _join(a: Columns, b: Columns) -> Columns:
    """The rows of `a`, then those of `b`. A column that only one of them has gets its default for the other."""
    shift = len(a.values)
    inner = None
    if a.inner_indexes or b.inner_indexes:
        inner = [*(a.inner_indexes or repeat(0, shift)), *(b.inner_indexes or repeat(0, len(b.values)))]
    return Columns(
        [*a.values, *b.values],
        [*a.positions, *b.positions],
        [*a.next_positions, *b.next_positions],
        inner,
        None if a.keys is None or b.keys is None else a.keys + b.keys,
        None if a.headers is None or b.headers is None else a.headers + b.headers,
        None if a.times is None or b.times is None else a.times + b.times,
        {**a.corrupt, **{row + shift: error for row, error in b.corrupt.items()}},
    )
