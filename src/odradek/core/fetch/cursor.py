"""One partition on its way from the decoder to the user: its state, its position, and a queue of decoded columns.

Pure: the scheduler sends its fetches and accepts their responses, the user's task takes its records; both pass `now`.
Everything that its state machine (`core.states.CURSOR`) depends on is written here alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from itertools import accumulate, islice, takewhile
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from odradek.core.fetch.read_ahead import (
    Buffered,
    ReadAheadBudget,
    bytes_to_request,
    expected_expansion,
)
from odradek.core.interfaces import LogDecoder, PartitionFetch
from odradek.core.states import CURSOR, CursorEvent, CursorState
from odradek.engine import PackedBytes
from odradek.errors import CorruptMessage, LogTruncated, OdradekError, OffsetOutOfRange
from odradek.types import Columns, Position, PositionSpec, StartPosition, TopicPartition

if TYPE_CHECKING:
    from odradek.core.fetch.scheduler import StreamQuota

__all__ = ["Cursor", "CursorFetch", "ExactPosition"]

T = TypeVar("T")

CORRUPT_ROW_BYTES = 640
"""Memory of the CorruptMessage of a row handed over raw: the object, its attributes and texts."""

_AT_END = (CursorState.ENDED, CursorState.FAILED)

MIN_OBSERVED_BYTES = 1024
"""A few bytes say nothing about what the next megabyte will expand to."""


class ExactPosition(NamedTuple):
    """A place between two messages: a position, and how many messages of a compressed wrapper that starts there were
    delivered already (positions inside a wrapper do not exist, specification 2.3)."""

    position: Position
    inner: int = 0


class CursorFetch(PartitionFetch):
    """A cursor's part of a fetch. `had_tail`: its decoder keeps a partial message of an earlier fetch."""

    __slots__ = ("_memory", "cursor", "had_tail", "quota")

    def __init__(self, cursor: Cursor, decoder: LogDecoder, max_bytes: int, quota: StreamQuota, memory: int) -> None:
        super().__init__(decoder, max_bytes)
        self.cursor = cursor
        self.had_tail = decoder.fetch_position != decoder.position
        self.quota, self._memory = quota, memory
        quota.reserved += memory

    @property
    def is_current(self) -> bool:
        """The cursor still waits for it: it was neither unassigned nor moved by a seek meanwhile."""
        return self.cursor.fetch is self

    def release(self) -> None:
        """Release the memory it has reserved."""
        self.quota.reserved -= self._memory
        self._memory = 0


class BufferedColumns:
    """Columns whose rows before `start` are delivered. Their memory is held until the last row is."""

    __slots__ = ("columns", "memory", "start", "stop")

    def __init__(self, columns: Columns, start: int = 0) -> None:
        self.columns, self.start, self.stop = columns, start, len(columns.values)
        self.memory = columns.payload_bytes + columns.row_bytes * self.stop + CORRUPT_ROW_BYTES * len(columns.corrupt)

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def rows_within(self, max_bytes: int) -> int:
        """Return how many rows have payloads of at most `max_bytes` together; at least 1."""
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
        start: Where to begin; anything but a position is resolved by the broker.
        skip: With a position: how many messages of the wrapper there were delivered before (`ExactPosition.inner`).
        until: Where to end, or None: before the first message from there on, except `until_inner` of a wrapper there.
        until_inner: See `ExactPosition.inner`.
        stream: Which of a consumer's streams delivers it.
    """

    def __init__(
        self,
        partition: TopicPartition,
        start: StartPosition,
        *,
        skip: int = 0,
        until: Position | None = None,
        until_inner: int = 0,
        stream: int = 0,
    ) -> None:
        self.partition = partition
        self.stream = stream
        self.until, self._until_inner = until, until_inner
        self.state = CURSOR.start
        self.pause_reasons: set[str] = set()
        """Why it is neither fetched nor delivered now: `user` (pause), `handlers` (they have enough of it)."""
        self.quota: StreamQuota | None = None
        """What its memory counts against; None until a broker that serves it is known."""
        self.fetch: CursorFetch | None = None
        """The fetch in flight."""
        self.replica: int | None = None
        """Id of the broker to fetch from instead of the leader."""
        self.in_ready_queue = False
        """It is queued for delivery."""
        self.has_more = False
        """Its last response was as long as it could be."""
        self.active = False
        """Something may still come of it, so it has a share of the read-ahead."""
        self.empty_responses = 0
        """How many there were in a row."""
        self.retry_at = 0.0
        """When the back-off ends."""
        self.attempts = 0
        """Passing errors in a row."""
        self.skipped = 0
        """Corrupt messages left out since the last part without one."""
        self._reports: list[CorruptMessage] = []
        self._memory = self._tail = 0
        self._begin(start, skip)

    def _begin(self, start: StartPosition, skip: int) -> None:
        self.start = start
        self.decoder: LogDecoder | None = None
        self.error: OdradekError | None = None
        self.fetch = None
        self.queue: deque[BufferedColumns] = deque()
        self.rows = 0
        self.first_row_at = 0.0
        self.empty_responses = self.attempts = 0
        self.retry_at = 0.0
        self._set_has_more(False)
        self._hold(-self._memory, -self._tail)
        self._skipped_before = 0
        self._own_expansion: float | None = None
        self._max_wanted: int | None = None
        self._skip = skip
        self._next = Position(0)
        self._cut_at: Position | None = None  # the first message not delivered because of `until`
        self._retried_at: Position | None = None

    def _transition(self, event: CursorEvent) -> None:
        self.state = CURSOR.after(self.state, event)

    # ---- where it is ----

    @property
    def exact_position(self) -> ExactPosition | None:
        """The position of the next record to deliver; None while it is being resolved. Does not touch the decoder,
        which a thread may be using."""
        if self.queue:
            first = self.queue[0]
            inner = first.columns.inner_indexes
            return ExactPosition(Position(first.columns.positions[first.start]), inner[first.start] if inner else 0)
        if self.decoder is not None:
            return ExactPosition(self._next if self._cut_at is None else self._cut_at, self._skip)
        return ExactPosition(Position(self.start), self._skip) if isinstance(self.start, int) else None

    @property
    def assigned(self) -> bool:
        """True while a fetcher reads the partition; False before and after."""
        return self.state is not CursorState.UNASSIGNED

    @property
    def deliverable(self) -> bool:
        return not self.pause_reasons and (self.rows > 0 or self.error is not None)

    @property
    def out_of_quota(self) -> bool:
        """True if its quota has no space for more of it."""
        return self.state is CursorState.OUT_OF_QUOTA or (self.quota is not None and self.quota.full)

    @property
    def at_end(self) -> bool:
        """True if nothing more will be fetched of it, unless it is sought."""
        return self.state in _AT_END

    @property
    def finished(self) -> bool:
        """True if nothing more will be delivered of it, unless it is sought."""
        return self.at_end and not self.rows and self.error is None

    # ---- what it counts for ----

    @property
    def buffered(self) -> Buffered:
        """The memory it holds. A partial message alone counts as nothing, so that its rest may always be fetched."""
        tail = int(self._tail * self.expansion) + 1 if self.rows else 0
        return Buffered(self._memory + tail, self._observed_expansion)

    @property
    def expansion(self) -> float:
        """Memory that one fetched byte is expected to become (bytes)."""
        return expected_expansion(self._observed_expansion)

    @property
    def expansion_known(self) -> bool:
        return self._observed_expansion is not None

    @property
    def _observed_expansion(self) -> float | None:
        """Its own, or before anything was fetched, that of the partitions it shares its quota with."""
        return self.quota.expansion if self._own_expansion is None and self.quota is not None else self._own_expansion

    def join(self, quota: StreamQuota | None) -> None:
        """Count against another quota from now on."""
        self._count(-1)
        self.quota = quota
        self._count(1)

    def _count(self, sign: int) -> None:
        if (quota := self.quota) is not None:
            quota.held += sign * (self._memory + self._tail)
            quota.deliverable += sign * self.in_ready_queue
            quota.with_more += sign * self.has_more
            quota.active += sign * self.active

    def _hold(self, memory: int, tail: int = 0) -> None:
        self._memory += memory
        self._tail += tail
        if self.quota is not None:
            self.quota.held += memory + tail

    def set_in_ready_queue(self, value: bool) -> None:
        if self.quota is not None:
            self.quota.deliverable += value - self.in_ready_queue
        self.in_ready_queue = value

    def update_active(self) -> int:
        """Find out whether anything may still come of it. Return by how much the number of active partitions grows."""
        state = self.state
        over = state is CursorState.UNASSIGNED or (state in _AT_END and not self.rows and self.error is None)
        change = (not over) - self.active
        if change:
            self.active = not self.active
            if self.quota is not None:
                self.quota.active += change
        return change

    def _set_has_more(self, value: bool) -> None:
        if self.quota is not None:
            self.quota.with_more += value - self.has_more
        self.has_more = value

    def wanted_bytes(self, budget: ReadAheadBudget) -> int:
        """Return how many bytes it may request, as far as its own share goes."""
        size = bytes_to_request(self.buffered, budget.share, budget.limits)
        if self._own_expansion is None:
            return min(size, budget.limits.first_fetch_bytes)
        return size if self._max_wanted is None else min(size, max(self._max_wanted, budget.limits.min_bytes))

    # ---- what happens to it ----

    def assign(self) -> None:
        """Begin to read it."""
        self._transition(CursorEvent.ASSIGN)

    def unassign(self) -> None:
        """Stop reading it. A fetch in flight no longer matters."""
        self._transition(CursorEvent.UNASSIGN)
        self.fetch = None
        self.join(None)

    def seek(self, start: StartPosition, skip: int = 0) -> None:
        """Forget everything and begin elsewhere. A fetch in flight no longer matters."""
        self._transition(CursorEvent.SEEK)
        self._begin(start, skip)

    def resolved(self, position: Position, decoder: LogDecoder) -> None:
        """Begin at this position."""
        self.start, self.decoder, self._next = position, decoder, position
        self.attempts = self.empty_responses = 0
        if not self._end_if_reached():
            self._transition(CursorEvent.RESOLVE)

    def resolve_later(self, at: float) -> None:
        """Resolving its position has failed; try again at this time."""
        self.attempts += 1
        self.retry_at = at

    def send(self, max_bytes: int, quota: StreamQuota) -> CursorFetch:
        """Return its part of the fetch that is about to be sent."""
        assert self.decoder is not None
        self._transition(CursorEvent.SEND)
        self.fetch = CursorFetch(self, self.decoder, max_bytes, quota, int(max_bytes * self.expansion))
        return self.fetch

    def fill(self) -> None:
        """Mark it out of quota: there was no space when its fetch was due. Taking records from it makes some."""
        self._transition(CursorEvent.FILL)

    def hold_back(self) -> None:
        """Mark it paused: there was a reason to pause when its fetch was due."""
        self._transition(CursorEvent.PAUSE)

    def unblock(self, budget: ReadAheadBudget) -> bool:
        """Return True if it waits for the next fetch again: no reason to pause is left, or there is space."""
        if self.state is CursorState.PAUSED and not self.pause_reasons:
            self._transition(CursorEvent.RESUME)
        elif self.state is CursorState.OUT_OF_QUOTA and self.wanted_bytes(budget):
            self._transition(CursorEvent.DRAIN)
        else:
            return False
        return True

    def poll(self) -> None:
        """The back-off is over."""
        self._transition(CursorEvent.POLL)

    def back_off(self, until: float) -> None:
        """Wait before the next fetch."""
        self.retry_at = until
        self._transition(CursorEvent.BACK_OFF)

    def fail(self, error: OdradekError) -> None:
        """Stop; the user gets `error` after everything queued."""
        self._transition(CursorEvent.FAIL)
        self.error = error
        self._hold(0, -self._tail)

    def connection_lost(self, now: float) -> None:
        """Keep what was decoded of its fetch, and fetch the rest again: after a lost connection the broker may have
        been truncated in between (specification 4.5)."""
        self.fetch = None
        self._accept_rows(0, 0, True, now)
        if self.state is CursorState.IN_FLIGHT:
            self._drop_tail()
            self._transition(CursorEvent.RECEIVE)

    def complete(self, fetch: CursorFetch, now: float, reset: PositionSpec | None) -> None:
        """Accept the result of its fetch. It stays in flight if it has to back off.

        Args:
            fetch: The result.
            now: The time (s).
            reset: Where to continue when the log does not have its position; None: fail.
        """
        self.fetch = None
        if fetch.error is not None:
            self._reject(fetch.error, reset)
        elif not fetch.received:
            self._accept_empty()
        else:
            self.attempts = self.empty_responses = 0
            self._max_wanted = None if fetch.received >= fetch.max_bytes else 2 * fetch.received
            self._set_has_more(fetch.received >= fetch.max_bytes)
            self._accept_rows(fetch.received, fetch.max_bytes, fetch.had_tail, now)
            if self.state is CursorState.IN_FLIGHT:
                self._transition(CursorEvent.RECEIVE)

    def _reject(self, error: OdradekError, reset: PositionSpec | None) -> None:
        out_of_range = isinstance(error, OffsetOutOfRange)
        if out_of_range and self._drop_tail():
            self._transition(CursorEvent.RECEIVE)  # the message boundary may still be there
        elif out_of_range and reset is not None:
            self._transition(CursorEvent.OUT_OF_RANGE)
            # Resolved once everything queued is delivered.
            self.start = Position(error.end) if isinstance(error, LogTruncated) else reset
            self.decoder, self._skip = None, 0
            self._hold(0, -self._tail)
        elif error.retriable:
            self._drop_tail()
            self.attempts += 1
        else:
            self.fail(error)

    def _accept_empty(self) -> None:
        """The log has nothing after what was fetched. That is an error when it ends inside the message that should be
        the last before `until`: what a broker shows of a healthy log ends with a message (specification 3.1, 4.3), so
        the rest will never come."""
        decoder = self.decoder
        assert decoder is not None
        self.attempts = 0
        self._max_wanted = 0
        self._set_has_more(False)
        if self.until is not None and decoder.position < self.until <= decoder.fetch_position:
            self.fail(CorruptMessage(str(self.partition), decoder.position, "the log ends inside this message"))
        else:
            self.empty_responses += 1

    def _drop_tail(self) -> bool:
        """Go back to the last message boundary. Return False if it is there already."""
        decoder = self.decoder
        assert decoder is not None
        if decoder.fetch_position == decoder.position:
            return False
        decoder.reset(decoder.position)
        self._hold(0, -self._tail)
        return True

    def _accept_rows(self, received: int, requested: int, had_tail: bool, now: float) -> None:
        """Queue what the decoder made of `received` bytes.

        An error found in bytes of two fetches is checked once more in one part before it is believed: the connection
        may have been replaced in between, and the log with it.
        """
        decoder = self.decoder
        assert decoder is not None
        columns = decoder.take()
        if decoder.skipped > self._skipped_before:
            self.skipped += decoder.skipped - self._skipped_before
            self._skipped_before = decoder.skipped
            self._reports += decoder.take_reports()
        again = decoder.error is not None and had_tail and self._retried_at != decoder.position
        if again:  # messages decoded from the broken entry itself, a wrapper, will be fetched again
            columns = columns.slice(0, bisect_left(columns.positions, decoder.position))
        used = received + self._tail - decoder.pending_bytes
        if columns.values:
            self._enqueue(self._clip(columns), used, now)
        self._next = decoder.position
        if self._end_if_reached():  # damage after `until` does not matter
            return
        if again:
            self._retried_at = decoder.position
            decoder.reset(decoder.position)
        elif decoder.error is not None:
            self.fail(decoder.error)
            return
        if (tail := decoder.pending_bytes) != self._tail:
            self._hold(0, tail - self._tail)

    def _enqueue(self, columns: Columns, used: int, now: float) -> None:
        buffered = BufferedColumns(columns)
        if not (rows := buffered.stop):
            return
        if not self.rows:
            self.first_row_at = now
        self.queue.append(buffered)
        self.rows += rows
        self._hold(buffered.memory)
        if used > 0:
            self._own_expansion = buffered.memory / max(used, MIN_OBSERVED_BYTES)
            if self.quota is not None:
                self.quota.observe_expansion(self._own_expansion)

    def _clip(self, columns: Columns) -> Columns:
        """Return the rows that were not delivered before a bookmark and that start before `until`."""
        start, stop = 0, len(columns.values)
        if self._skip and stop:
            start = self._already_delivered(columns)
            self._skip = 0
        if self.until is not None and columns.positions[-1] >= self.until:
            stop = bisect_left(columns.positions, self.until)
            inner = columns.inner_indexes or ()
            while stop < len(inner) and columns.positions[stop] == self.until and inner[stop] < self._until_inner:
                stop += 1
            if stop < len(columns.positions) and self._cut_at is None:
                self._cut_at = Position(columns.positions[stop])
        return columns.slice(start, stop)

    def _already_delivered(self, columns: Columns) -> int:
        inner, first = columns.inner_indexes, self.start
        if inner is None:
            return 0
        n = 0
        while n < len(inner) and columns.positions[n] == first and inner[n] < self._skip:
            n += 1
        return n

    def _end_if_reached(self) -> bool:
        if self.until is None or self.decoder is None or self.decoder.position < self.until:
            return False
        if self.decoder.position == self.until and self._until_inner:
            return False
        self._transition(CursorEvent.REACH)
        self._hold(0, -self._tail)
        return True

    # ---- messages left out ----

    def take_reports(self) -> list[CorruptMessage]:
        """Return reports of the messages left out since the last call, the latest 1000 of each response."""
        reports, self._reports = self._reports, []
        return reports

    def end_of_skipped(self) -> int:
        """Return how many were left out in a row, and count from 0 again."""
        skipped, self.skipped = self.skipped, 0
        return skipped

    # ---- emptied by the user's task ----

    @property
    def next_bytes(self) -> float:
        """Payload of its next row (bytes); infinite if that is an error."""
        return len(self.queue[0].columns.values[self.queue[0].start] or b"") if self.rows else inf

    def batch_ready(self, max_records: int | None, max_wait: float, now: float) -> bool:
        """Return True if it has a full batch, has waited long enough, or will get no more for now."""
        if max_wait <= 0 or max_records is None or self.rows >= max_records or self.out_of_quota:
            return True
        return self.at_end or self.state is CursorState.RESOLVING or now >= self.first_row_at + max_wait

    def take(self, max_records: int | None, now: float) -> Columns:
        """Take at most `max_records` rows (None: as they were decoded). Raises its error when no rows are left."""
        if not self.rows:
            error, self.error = self.error, None
            assert error is not None
            raise error
        parts = [self._pop_rows(max_records)]
        if max_records is not None:
            missing = max_records - len(parts[0].values)
            while self.rows and missing:
                parts.append(self._pop_rows(missing))
                missing -= len(parts[-1].values)
        self.first_row_at = now
        return parts[0] if len(parts) == 1 else Columns.concat(parts)

    def take_bytes(self, max_bytes: int, now: float) -> Columns:
        """Take rows that were decoded together: payloads of at most `max_bytes`, or one row. Raises like `take`."""
        if not self.rows:
            return self.take(None, now)
        self.first_row_at = now
        return self._pop_rows(self.queue[0].rows_within(max_bytes))

    def _pop_rows(self, max_records: int | None) -> Columns:
        first = self.queue[0]
        stop = first.stop if max_records is None else first.start + min(max_records, first.rows)
        columns = first.columns.slice(first.start, stop)
        self.rows -= stop - first.start
        first.start = stop
        if stop == first.stop:
            self.queue.popleft()
            self._hold(-first.memory)
        return columns

    def put_back(self, columns: Columns, rows: int) -> None:
        """Take back the last `rows` rows of what `take` returned."""
        if rows:
            buffered = BufferedColumns(columns, len(columns.values) - rows)
            self.queue.appendleft(buffered)
            self.rows += rows
            self._hold(buffered.memory)
