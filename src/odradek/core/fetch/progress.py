"""Marks of done records -> the position that may be committed. One `PartitionProgress` per partition.

The rule is contiguity: a position may be committed when everything delivered before it is done, in whatever order the
marks came. Spans are compared only by the order of their delivery, so compressed wrappers need no special case: all but
a wrapper's last message resume at the wrapper's start (specification 2.3), and that is what gets committed.

Finished spans next to each other are merged, so memory follows the spans being processed, not the records done.
"""

from __future__ import annotations

from collections.abc import Collection

from odradek.core.states import OWNERSHIP, OwnershipEvent, OwnershipState
from odradek.types import Position

__all__ = ["DeliveredSpan", "PartitionProgress"]


class DeliveredSpan:
    """A run of records delivered to the user. Ends as done, or abandoned (revoked, or dropped unprocessed)."""

    __slots__ = ("_delivered", "_next", "_previous", "_progress", "next_position", "open", "reached")

    def __init__(self, progress: PartitionProgress, next_position: Position) -> None:
        self.next_position = next_position
        self.reached: Position | None = None
        """Everything in it before this position is done."""
        self.open = True
        """It is being processed."""
        self._progress = progress
        self._previous: DeliveredSpan | None = None
        self._next: DeliveredSpan | None = None
        self._delivered = 1  # spans merged into this one, and itself

    @property
    def complete(self) -> bool:
        """True if all its records are done."""
        return not self.open and self.reached == self.next_position

    @property
    def counts(self) -> bool:
        """True while marking it as done may move the committed position."""
        return self._progress.counts

    def reach(self, position: Position) -> None:
        """Mark everything in it before `position` as done; the record at `position` is not."""
        if self.open:
            self.reached = min(position, self.next_position)

    def cut(self, next_position: Position) -> None:
        """End it at `next_position`: the records from there on were taken back before the user got them."""
        if self.open:
            self.next_position = min(next_position, self.next_position)
            self._progress.nothing_before = None

    def leave_to_transactions(self) -> None:
        """Leave the positions of its partition to transactions: nothing else stores them from now on."""
        self._progress.stored_by_transactions = True
        self._progress.committed = None  # the transaction may store a position whatever becomes of its end

    def done(self) -> bool:
        """Mark all of it as done. Returns False if that no longer counts: its partition was revoked, lost or moved."""
        if self._close():
            self.reached = self.next_position
            self._progress._merge(self)
        return self._progress.counts and self.complete

    def abandon(self) -> None:
        """End its processing. Records up to the one reached stay done; no later one can be committed."""
        self._close()

    def _close(self) -> bool:
        if not self.open:
            return False
        self.open = False
        self._progress.in_hand -= 1
        return True


class PartitionProgress:
    """Progress of one assigned partition, and whether marks still count (`core.states.OWNERSHIP`).

    Args:
        position: Where delivery starts; everything before it counts as processed. It is None until that is known.
        committed: The position that is stored now; None: there is none, or a commit of unknown outcome may have
            replaced it.
        topic_id: The id of the topic that these are positions in, or None while it is not known.
    """

    __slots__ = (
        "_first",
        "_floor",
        "_last",
        "committed",
        "in_hand",
        "log_gone",
        "nothing_before",
        "outstanding",
        "state",
        "stored_by_transactions",
        "text",
        "topic_id",
    )

    def __init__(
        self, position: Position | None, committed: Position | None = None, topic_id: bytes | None = None
    ) -> None:
        self.state = OWNERSHIP.start
        self.topic_id = topic_id
        self.log_gone = False
        """The log no longer has what was delivered: it may be processed, but its positions say nothing about the log
        that is there now, and none is committed until another one is known (`restart`)."""
        self._floor = position
        self._first: DeliveredSpan | None = None
        self._last: DeliveredSpan | None = None
        self.nothing_before: Position | None = None
        """Between the last record delivered and this position there is nothing to deliver; None: not known."""
        self.committed = committed
        self.text: tuple[Position, str] | None = None
        """The position that was stored last, and the text with it; None: none was given."""
        self.in_hand = 0
        """Spans being processed."""
        self.outstanding = 0
        """Spans delivered from the first one on that is not done: they hold back a commit."""
        self.stored_by_transactions = False
        """Brokers keep the latest position, and that of a transaction counts from the moment it was sent: another
        commit between that moment and the end of the transaction would replace it."""

    def apply(self, event: OwnershipEvent) -> None:
        """Change the state of the partition's ownership."""
        self.state = OWNERSHIP.after(self.state, event)

    @property
    def counts(self) -> bool:
        """True while marks count: the partition was not released, lost or moved, and its log is still there."""
        return self.state is not OwnershipState.ENDED and not self.log_gone

    def deliver(self, next_position: Position) -> DeliveredSpan:
        """Record that the records up to `next_position` are delivered to the user now."""
        span = DeliveredSpan(self, next_position)
        last = self._last
        if last is None:
            self._first = span
        else:
            span._previous, last._next = last, span
        self._last = span
        self.in_hand += 1
        self.outstanding += 1
        return span

    @property
    def position(self) -> Position | None:
        """Everything before this position is processed: it may be committed."""
        reached = None if self._first is None else self._first.reached
        return self._floor if reached is None else self._not_before_floor(reached)

    @property
    def to_commit(self) -> Position | None:
        """`position` if it is known and not stored already, nor to be stored by a transaction, else None."""
        if self._first is None and self._floor == self.committed:
            return None  # as all quiet partitions, of which there may be thousands
        position = self.to_commit_again
        return None if position == self.committed else position

    @property
    def to_commit_again(self) -> Position | None:
        """The same whether it is stored already or not."""
        return None if self.stored_by_transactions or self.log_gone else self.position

    def position_after(self, spans: Collection[DeliveredSpan]) -> Position | None:
        """Return the position that may be committed once these spans are done; None if a span before them is not."""
        span, position, left = self._first, self._floor, len(spans)
        while span is not None and (span in spans or span.complete):
            position, left = span.next_position, left - (span in spans)
            span = span._next
        if left or position is None:
            return None
        behind = position if span is not None or self.nothing_before is None else max(position, self.nothing_before)
        return self._not_before_floor(behind)

    def _not_before_floor(self, position: Position) -> Position:
        return position if self._floor is None or position > self._floor else self._floor

    def process_until(self, position: Position) -> None:
        """Count everything before `position` as processed, whether it was delivered yet or not. Does nothing if more
        than that is processed."""
        while (span := self._first) is not None and span.next_position <= position:
            span.abandon()
            span.reached = span.next_position  # a later mark of it counts, and changes nothing
            self.outstanding -= span._delivered
            self._unlink(span)
        self._floor = self._not_before_floor(position)
        self._pass_over()

    def pass_over(self, position: Position) -> None:
        """Note that nothing is left to deliver before `position`: once everything delivered is processed, so is what
        follows it up to there (ends of transactions, records of those that were aborted, what was compacted away)."""
        self.nothing_before = position
        self._pass_over()

    def _pass_over(self) -> None:
        if self._first is None and self._floor is not None and self.nothing_before is not None:
            self._floor = self._not_before_floor(self.nothing_before)

    def truncate(self, end: Position) -> None:
        """Note that the log was truncated to `end`, from where it is delivered next: whatever was delivered from there
        on says nothing about the records that are there now."""
        self._floor = None if self._floor is None else min(self._floor, end)
        self.nothing_before = None
        span = self._first
        while span is not None:
            span.next_position = min(span.next_position, end)
            span.reached = None if span.reached is None else min(span.reached, end)
            span = span._next

    def compare_topic(self, topic_id: bytes | None) -> None:
        """Compare its topic with the one that brokers have now; None: not known."""
        self.topic_id = self.topic_id or topic_id
        if topic_id not in (None, self.topic_id):
            self.log_gone = True

    def restart(self, position: Position | None, topic_id: bytes | None = None) -> PartitionProgress:
        """Return the progress of the same partition from another position (seek, reset), in this topic. Marks for
        records delivered before no longer count. A position that was stored for a log that is gone may be gone with
        it."""
        self.apply(OwnershipEvent.MOVE)
        return PartitionProgress(position, None if self.log_gone else self.committed, topic_id)

    def _merge(self, span: DeliveredSpan) -> None:
        """Join a span that is done with its finished neighbours, and forget it when it is the first."""
        following, previous = span._next, span._previous
        if following is not None and following.complete:
            span.next_position = span.reached = following.next_position
            span._delivered += following._delivered
            self._unlink(following)
        if previous is not None and previous.complete:
            previous.next_position = previous.reached = span.next_position
            previous._delivered += span._delivered
            self._unlink(span)
        elif span is self._first:
            self._floor = self._not_before_floor(span.next_position)
            self.outstanding -= span._delivered
            self._unlink(span)
            self._pass_over()

    def _unlink(self, span: DeliveredSpan) -> None:
        following, previous = span._next, span._previous
        if previous is None:
            self._first = following
        else:
            previous._next = following
        if following is None:
            self._last = previous
        else:
            following._previous = previous
        span._next = span._previous = None
