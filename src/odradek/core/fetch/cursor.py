"""One partition on its way from the decoder to the user: its state and its position.

It has a queue of decoded rows (`RowQueue`) and a share of the read-ahead (`QuotaShare`). Pure: the scheduler sends its
fetches, their responses are passed to `complete`, the user's task takes its rows; all pass `now`. Everything that its
state machine (`core.states.CURSOR`) depends on is written here alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from odradek.core.fetch.quota_share import QuotaShare
from odradek.core.fetch.read_ahead import ReadAheadBudget
from odradek.core.fetch.read_range import ExactPosition, ReadRange
from odradek.core.fetch.row_queue import RowQueue
from odradek.core.fetch.stream_quota import StreamQuota
from odradek.core.interfaces import LogDecoder, PartitionFetch
from odradek.core.states import CURSOR, CursorEvent, CursorState
from odradek.errors import (
    AuthFailed,
    BrokerError,
    CorruptMessage,
    LogTruncated,
    OdradekError,
    OffsetOutOfRange,
    TopicRecreated,
)
from odradek.types import AtTime, Columns, Position, PositionSpec, StartPosition, TopicPartition, Watermarks

__all__ = ["Cursor", "CursorFetch"]

_AT_END = (CursorState.ENDED, CursorState.FAILED)
_BLOCKED = (CursorState.RESOLVING, CursorState.OUT_OF_QUOTA, CursorState.PAUSED)

_NO_REASONS: frozenset[str] = frozenset()

_next_state = CURSOR.after


class CursorFetch(PartitionFetch):
    """A cursor's part of a fetch. `had_tail`: its decoder keeps a partial message of an earlier fetch."""

    __slots__ = ("cursor", "had_tail", "quota", "reserved_bytes")

    def __init__(self, cursor: Cursor, decoder: LogDecoder, max_bytes: int, quota: StreamQuota, had_tail: bool) -> None:
        super().__init__(decoder, max_bytes)
        self.cursor, self.quota, self.had_tail = cursor, quota, had_tail
        self.reserved_bytes = int(max_bytes * cursor.share.expansion)
        """Memory that its quota keeps free for the result (bytes)."""

    def reserve_received(self) -> None:
        """Keep memory free for what has come, from now on."""
        self.reserved_bytes = int(self.received * self.cursor.share.expansion)
        self.quota.reserve(self.reserved_bytes)

    @property
    def is_current(self) -> bool:
        """The cursor still waits for it: it was neither unassigned nor moved by a seek meanwhile."""
        return self.cursor.fetch is self


class Cursor:
    """One partition.

    Args:
        partition: The partition.
        start: Where to begin; anything but a position is resolved by the broker.
        skip: With a position: how many messages of the wrapper there were delivered before (`ExactPosition.inner`).
        until: Where to end, or None: before the first message from there on, except `until_inner` of a wrapper there.
        until_inner: See `ExactPosition.inner`.
        until_topic_id: The id of the topic that `until` is a position in; None: not known.
        stream: The number of the consumer's stream that delivers it.
        topic_id: The id of the topic that `start` is a position in (`RoutingTable.topic_id`); None: not known.
    """

    __slots__ = (
        "__weakref__",
        "_delivery",
        "_next",
        "_range",
        "_reports",
        "_retried_at",
        "_skipped_before",
        "_tail",
        "attempts",
        "decoder",
        "empty_responses",
        "error",
        "fetch",
        "partition",
        "pause_reasons",
        "queue",
        "refusal_raised",
        "replica",
        "retry_at",
        "share",
        "skipped",
        "start",
        "state",
        "stream",
        "topic_id",
        "watermarks",
    )

    def __init__(
        self,
        partition: TopicPartition,
        start: StartPosition,
        *,
        skip: int = 0,
        until: Position | None = None,
        until_inner: int = 0,
        until_topic_id: bytes | None = None,
        stream: int = 0,
        topic_id: bytes | None = None,
    ) -> None:
        self.partition = partition
        self.queue, self.share = RowQueue(), QuotaShare()
        self.stream, self.topic_id = stream, topic_id
        self.state = CURSOR.start
        self.pause_reasons = _NO_REASONS
        """Why it is neither fetched nor delivered now: `user` (pause), `handlers` (they have enough of it)."""
        self.replica: int | None = None
        """Id of the broker to fetch from instead of the leader."""
        self.skipped = 0
        """Corrupt messages left out since the last part without one."""
        self.watermarks: Watermarks | None = None
        """Of the latest response that had some, without a lag."""
        self._reports: Sequence[CorruptMessage] = ()
        self._range = ReadRange(skip, until, until_inner, until_topic_id)
        self._delivery: deque[Cursor] | None = None  # where it is queued, with others of its stream
        self._begin(start)

    def _begin(self, start: StartPosition) -> None:
        self.start = start
        self.decoder: LogDecoder | None = None
        self.error: OdradekError | None = None
        self.fetch: CursorFetch | None = None
        """The fetch in flight."""
        self.empty_responses = 0
        """How many there were in a row."""
        self.attempts = 0
        """Passing errors in a row."""
        self.refusal_raised = False
        """The user has got the error of a refused request. Until a fetch succeeds, further ones are passing errors."""
        self.retry_at = 0.0
        """When the back-off ends."""
        self._skipped_before = 0
        self._tail = 0  # bytes of a partial message in the decoder
        self._next = Position(0)
        self._retried_at: Position | None = None

    def _transition(self, event: CursorEvent) -> None:
        self.state = _next_state(self.state, event)

    # ---- where it is ----

    @property
    def exact_position(self) -> ExactPosition | None:
        """The position of the next record to deliver; None while it is being resolved. Does not touch the decoder,
        which a thread may be using."""
        if (waiting := self.queue.first) is not None:
            first, row = waiting
            inner = first.inner_indexes
            return ExactPosition(Position(first.positions[row]), inner[row] if inner else 0, self.topic_id)
        if self.decoder is not None:
            return self._range.continues_at(self._next)._replace(topic_id=self.topic_id)
        if isinstance(self.start, int):
            return ExactPosition(Position(self.start), self._range.skip, self.topic_id)
        return None

    @property
    def nothing_before(self) -> Position | None:
        """A position before which nothing is left to deliver; None: rows wait, or it is not known."""
        return None if self.queue.rows or self.decoder is None else self._next

    @property
    def assigned(self) -> bool:
        """True while a fetcher reads the partition; False before and after."""
        return self.state is not CursorState.UNASSIGNED

    @property
    def deliverable(self) -> bool:
        return (self.queue.rows > 0 or self.error is not None) and not self.pause_reasons

    @property
    def blocked(self) -> bool:
        """True if it is not fetched until it is resolved or resumed, or until records are taken from it."""
        return self.state in _BLOCKED

    @property
    def out_of_quota(self) -> bool:
        """True if its quota has no space for more of it."""
        quota = self.share.quota
        return self.state is CursorState.OUT_OF_QUOTA or (quota is not None and quota.full)

    @property
    def held_bytes(self) -> int:
        """The memory it holds. A partial message alone counts as nothing, so that its rest may always be fetched."""
        queue = self.queue
        return queue.memory + int(self._tail * self.share.expansion) + 1 if queue.rows else 0

    @property
    def at_end(self) -> bool:
        """True if nothing more will be fetched of it, unless it is sought."""
        return self.state in _AT_END

    # ---- what happens to it ----

    def pop(self) -> bool:
        """Note that it was removed from the queue for delivery. Return whether it has something to deliver."""
        self.share.dequeued()
        waits = self.queue.rows > 0 or self.error is not None
        return waits and not self.pause_reasons and self.state is not CursorState.UNASSIGNED

    def update(self) -> bool:
        """Bring up to date what others count of it: after everything that happens to it, once. Queue it for delivery if
        it has something. Return whether it became active, or is not any more."""
        queue, share, state = self.queue, self.share, self.state
        waits = queue.rows > 0 or self.error is not None
        active = state is not CursorState.UNASSIGNED and (waits or state not in _AT_END)
        queues = waits and active and not share.is_queued and not self.pause_reasons
        if queues:
            assert self._delivery is not None
            self._delivery.append(self)
        return share.recount(active, queue.memory + self._tail, queues)

    @property
    def goes_back(self) -> bool:
        """True if it continues before what was read, without a seek: the log was truncated."""
        return isinstance(self.start, int) and self.start < self._next

    def assign(self, budget: ReadAheadBudget, delivery: deque[Cursor]) -> None:
        """Begin to read it.

        Args:
            budget: The read-ahead that it has a share of.
            delivery: The queue of its stream.
        """
        self.share.assign(budget)
        self._delivery = delivery
        self._transition(CursorEvent.ASSIGN)

    def unassign(self) -> None:
        """Stop reading it. A fetch in flight no longer matters."""
        self._transition(CursorEvent.UNASSIGN)
        self.fetch = None
        self.share.join(None)

    def seek(self, start: StartPosition, skip: int = 0) -> None:
        """Forget everything and begin elsewhere, perhaps in another topic of this name. A fetch in flight no longer
        matters."""
        self._transition(CursorEvent.SEEK)
        self.topic_id = None
        self.queue.drop_rows()
        self.share.forget_fetches()
        self._range.restart(skip)
        self._begin(start)

    def pause(self, reason: str) -> None:
        """Neither fetch nor deliver it until this reason is gone."""
        self.pause_reasons |= {reason}

    def resume(self, reason: str) -> None:
        """Continue, unless there is another reason to pause."""
        self.pause_reasons -= {reason}

    def resolved(self, position: Position, decoder: LogDecoder, topic_id: bytes | None = None) -> None:
        """Begin at this position, of this topic if it was asked for; one that was given is of the topic it was given
        with."""
        if not isinstance(self.start, int):
            self.topic_id = topic_id
        self.start, self.decoder, self._next = position, decoder, position
        self.attempts = self.empty_responses = self._skipped_before = 0
        if not self._end_if_reached(position):
            self._transition(CursorEvent.RESOLVE)

    def resolve_later(self, at: float) -> None:
        """Resolving its position has failed; try again at this time."""
        self.attempts += 1
        self.retry_at = at

    def send(self, max_bytes: int, quota: StreamQuota, *, reserve: bool = True) -> CursorFetch:
        """Return its part of the fetch that is about to be sent. `reserve`: keep memory free for its result."""
        assert self.decoder is not None
        self._transition(CursorEvent.SEND)
        self.fetch = fetch = CursorFetch(self, self.decoder, max_bytes, quota, self._tail > 0)
        if reserve:
            quota.reserve(fetch.reserved_bytes)
        else:
            fetch.reserved_bytes = 0
        return fetch

    def wanted_bytes(self) -> int:
        """Return how many bytes it may request, as far as its own share goes."""
        return self.share.wanted_bytes(self.held_bytes if self.queue.rows else 0)

    def fill(self) -> None:
        """Mark it out of quota: there was no space when its fetch was due. Taking records from it makes some."""
        self._transition(CursorEvent.FILL)

    def hold_back(self) -> None:
        """Mark it paused: there was a reason to pause when its fetch was due."""
        self._transition(CursorEvent.PAUSE)

    def unblock(self) -> bool:
        """Return True if it waits for the next fetch again: no reason to pause is left, or there is space."""
        if self.state is CursorState.PAUSED and not self.pause_reasons:
            self._transition(CursorEvent.RESUME)
        elif self.state is CursorState.OUT_OF_QUOTA and self.wanted_bytes():
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
        self._tail = 0

    def compare_topic(self, topic_id: bytes, reset: PositionSpec | AtTime | None) -> TopicRecreated | None:
        """Compare its topic with the one that brokers have now. If that is another one its position is out of range:
        continue at `reset`, or fail, also if its end is in the former one. Rows in the queue are delivered first; a
        fetch in flight no longer matters, for it may bring records of either log. Returns the error then."""
        if not isinstance(self.start, int):
            return None  # it is yet to be asked for
        known = self.topic_id = self.topic_id or topic_id
        if known == topic_id or self.state is CursorState.UNASSIGNED or self.at_end:
            return None
        error = TopicRecreated(str(self.partition), self.start if self.decoder is None else self._next)
        self.fetch = self.watermarks = None
        if reset is None or not self._range.ends_in(topic_id):
            self.fail(error)
        else:
            self._restart(reset)
        return error

    def lose(self) -> None:
        """Fail, because its topic was made again without this partition. Rows in the queue are delivered first."""
        at = self.exact_position
        self.fetch = self.watermarks = None
        self.fail(TopicRecreated(str(self.partition), 0 if at is None else at.position))

    # ---- responses ----

    def complete(
        self, fetch: CursorFetch, now: float, reset: PositionSpec | AtTime | None, *, lost: bool = False
    ) -> bool:
        """Accept the result of its fetch, and queue it for delivery if that has brought something. Afterwards the
        scheduler has to `requeue` it; it stays in flight until then if it has to back off.

        Args:
            fetch: The result.
            now: The time (s).
            reset: Where to continue when the log does not have its position; None: fail.
            lost: The connection was lost: there is no result, but the decoder may have been fed.

        Returns:
            Whether it waited for this; otherwise nothing has changed.
        """
        fetch.quota.released(fetch.reserved_bytes)
        if self.fetch is not fetch:
            fetch.quota.freed()
            return False
        self.fetch = None
        if fetch.high_watermark is not None:
            self.watermarks = Watermarks(fetch.log_start, fetch.high_watermark, fetch.last_stable, None)
        if lost:
            self._connection_lost(now)
        elif fetch.error is not None:
            self._reject(fetch.error, reset)
        else:
            self.refusal_raised, self.attempts = False, 0
            if fetch.received or fetch.left_out:
                self.empty_responses = 0
                self.share.received(fetch.received, fetch.max_bytes, fetch.next_entry_bytes, left_out=fetch.left_out)
                self._accept_rows(fetch.received, fetch.had_tail, now)
                if self.state is CursorState.IN_FLIGHT:
                    self._transition(CursorEvent.RECEIVE)
            else:
                self._accept_empty(fetch)
        self.update()
        return True

    def _connection_lost(self, now: float) -> None:
        """Keep what was decoded of its fetch, and fetch the rest again: after a lost connection the broker may have
        been truncated in between (specification 4.5)."""
        self._accept_rows(0, True, now)
        if self.state is CursorState.IN_FLIGHT:
            self._drop_tail()
            self._transition(CursorEvent.RECEIVE)

    def _reject(self, error: OdradekError, reset: PositionSpec | AtTime | None) -> None:
        out_of_range = isinstance(error, OffsetOutOfRange)
        if out_of_range and self._drop_tail():
            # A fetch that starts behind a partial message asks for a position inside it. A broker that was replaced
            # between the two fetches may have a log that ends in front of it: then that position is not in the log, but
            # the message boundary may still be. Only if that is refused, too, is the position lost.
            self._transition(CursorEvent.RECEIVE)
        elif out_of_range and reset is not None:
            # LogTruncated names the end of what the two logs have in common (KIP-320): `reset` would lose or repeat
            # more than was truncated.
            self._restart(Position(error.end) if isinstance(error, LogTruncated) else reset)
        elif error.retriable or self.refusal_raised:
            self._drop_tail()
            self.attempts += 1
        else:
            self.fail(error)

    def _restart(self, start: StartPosition) -> None:
        """Continue from elsewhere: it is resolved once everything queued is delivered."""
        self._transition(CursorEvent.OUT_OF_RANGE)
        self.start = start
        self.decoder = None
        self._range.skip = self._tail = 0

    def end_after(self, fetch: CursorFetch) -> Position | None:
        """Return where it ends, if a response without anything leaves it in front of that."""
        is_empty = fetch.error is None and not (fetch.received or fetch.left_out)
        return self._range.until if is_empty and self.fetch is fetch else None

    def _accept_empty(self, fetch: CursorFetch) -> None:
        """The log has nothing after what was fetched. That is an error when it ends inside the message that should be
        the last before `until`: what a broker shows of a healthy log ends with a message (specification 3.1, 4.3), so
        the rest will never come."""
        decoder, until = self.decoder, self._range.until
        assert decoder is not None
        self.share.received(0, fetch.max_bytes)
        if until is not None and decoder.position < until <= decoder.fetch_position:
            self.fail(CorruptMessage(str(self.partition), decoder.position, "the log ends inside this message"))
        elif not self._end_if_reached(decoder.position):
            self.empty_responses += 1
        else:  # the log has no records up to there
            self._next = decoder.position

    def _drop_tail(self) -> bool:
        """Go back to the last message boundary. Return False if it is there already."""
        decoder = self.decoder
        assert decoder is not None
        if decoder.fetch_position == decoder.position:
            return False
        decoder.reset(decoder.position)
        self._tail = 0
        return True

    def _accept_rows(self, received: int, had_tail: bool, now: float) -> None:
        """Queue what the decoder made of `received` bytes.

        An error found in bytes of two fetches is checked once more in one part before it is believed: the connection
        may have been replaced in between, and the log with it.
        """
        # 1. A fetch ends inside a message; the decoder keeps that tail (`had_tail` of the next one).
        # 2. The broker is replaced, and its log has other bytes at this position.
        # 3. The next fetch continues the tail with them: a checksum is wrong, though neither log is damaged.
        # So the tail is dropped and the message fetched whole, once for each position: a log that is damaged there
        # gives the same error again, and then it counts.
        decoder = self.decoder
        assert decoder is not None
        columns, error, position = decoder.take(), decoder.error, decoder.position
        if decoder.skipped != self._skipped_before:
            self._note_skipped(decoder)
        fetch_again = error is not None and had_tail and self._retried_at != position
        if fetch_again:  # messages decoded from the broken entry itself, a wrapper, will be fetched again
            columns = columns.slice(0, bisect_left(columns.positions, position))
        tail = decoder.pending_bytes
        if len(columns):
            memory = self.queue.add_rows(self._range.clip(columns, self.start, position), now)
            self.share.observe_expansion(memory, received + self._tail - tail)
        self._next = position
        if self._range.until is not None and self._end_if_reached(position):  # damage after `until` does not matter
            return
        if fetch_again:
            self._retried_at = position
            decoder.reset(position)
            tail = decoder.pending_bytes
        elif error is not None:
            self.fail(error)
            return
        self._tail = tail

    def _end_if_reached(self, position: Position) -> bool:
        if self._range.until is None or not self._range.ends_at(position):
            return False
        self._transition(CursorEvent.REACH)
        self._tail = 0
        return True

    # ---- messages left out ----

    def _note_skipped(self, decoder: LogDecoder) -> None:
        self.skipped += decoder.skipped - self._skipped_before
        self._skipped_before = decoder.skipped
        self._reports = [*self._reports, *decoder.take_reports()]

    def take_reports(self) -> Sequence[CorruptMessage]:
        """Return reports of the messages left out since the last call, the latest 1000 of each response."""
        reports, self._reports = self._reports, ()
        return reports

    def end_of_skipped(self) -> int:
        """Return how many were left out in a row, and count from 0 again."""
        skipped, self.skipped = self.skipped, 0
        return skipped

    # ---- emptied by the user's task ----

    def batch_ready(self, max_records: int | None, max_wait: float, now: float) -> bool:
        """Return True if it has a full batch, has waited long enough, or will get no more for now."""
        if max_wait <= 0 or max_records is None or self.queue.rows >= max_records or self.out_of_quota:
            return True
        return self.at_end or self.state is CursorState.RESOLVING or now >= self.queue.first_row_at + max_wait

    def take(self, max_records: int | None, now: float) -> Columns:
        """Take at most `max_records` rows (None: as they were decoded). Raises its error when no rows are left."""
        self._raise_at_error()
        return self.queue.take_rows(max_records, now)

    def take_bytes(self, max_bytes: int, now: float) -> Columns:
        """Take rows that were decoded together: payloads of at most `max_bytes`, or one row. Raises like `take`."""
        self._raise_at_error()
        return self.queue.take_rows_within(max_bytes, now)

    def _raise_at_error(self) -> None:
        if not self.queue.rows:
            error, self.error = self.error, None
            assert error is not None
            if self._range.until is None and _is_refusal(error):
                self._continue_after_refusal()
            raise error

    def _continue_after_refusal(self) -> None:
        """Request the same position again, and from now on until it is answered: operators may allow it any time. With
        an end there is no waiting for that, since reading would not come to it."""
        if self.decoder is not None:
            self.start, self.decoder = self._next, None
        self.refusal_raised = True
        self._transition(CursorEvent.CONTINUE)


def _is_refusal(error: OdradekError) -> bool:
    """Return True for an error of the request, not of the log at this position."""
    return isinstance(error, BrokerError | AuthFailed) and not isinstance(error, OffsetOutOfRange)
