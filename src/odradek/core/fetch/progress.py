"""Done marks -> the position that may be committed. One `PartitionProgress` per partition.

The rule is contiguity: a position is committable when everything handed out before it is done, in whatever order the
marks came. Positions are only compared by the order they were handed out in, so compressed wrappers need no special
case: all but a wrapper's last message resume at the wrapper's start (specification 2.3), which is what gets committed.
"""

from __future__ import annotations

from collections import deque

from odradek.types import Position

__all__ = ["DeliveredSpan", "PartitionProgress"]


class DeliveredSpan:
    """A run of records handed to the user. Ends as done, or abandoned (revoked, dropped unprocessed)."""

    __slots__ = ("_progress", "next_position", "open", "reached")

    def __init__(self, progress: PartitionProgress, next_position: Position) -> None:
        self.next_position = next_position
        self.reached: Position | None = None
        """Everything in it before this is done."""
        self.open = True
        """Somebody still works on it."""
        self._progress = progress

    @property
    def complete(self) -> bool:
        return not self.open and self.reached == self.next_position

    def reach(self, position: Position) -> None:
        """Everything in it before `position` is done; `position` itself is not."""
        if self.open:
            self.reached = position

    def cut(self, next_position: Position) -> None:
        """What lies behind `next_position` was taken back before the user got it."""
        if self.open:
            self.next_position = next_position

    def done(self) -> bool:
        """All of it is done. False when that no longer counts: its partition was revoked, lost or sought elsewhere."""
        if self._close():
            self.reached = self.next_position
            self._progress.settle()
        return self._progress.live and self.complete

    def abandon(self) -> None:
        """Nobody works on it any more. What was reached stays reached; nothing behind it can be committed."""
        self._close()

    def _close(self) -> bool:
        if not self.open:
            return False
        self.open = False
        self._progress.in_hand -= 1
        return True


class PartitionProgress:
    """How far one partition has been processed.

    Args:
        position: Where delivery starts; everything before it counts as processed. None: not known yet.
        committed: What is stored now, or None.
    """

    __slots__ = ("_floor", "_spans", "committed", "in_hand", "live")

    def __init__(self, position: Position | None, committed: Position | None = None) -> None:
        self._floor = position
        self._spans: deque[DeliveredSpan] = deque()
        self.committed = committed
        self.in_hand = 0
        """Spans somebody still works on."""
        self.live = True
        """False: revoked; late marks count for nothing."""

    def hand_out(self, next_position: Position) -> DeliveredSpan:
        """The records up to `next_position` go to the user now."""
        span = DeliveredSpan(self, next_position)
        self._spans.append(span)
        self.in_hand += 1
        return span

    @property
    def outstanding(self) -> int:
        """Spans that hold back a commit: all from the first that is not done."""
        return len(self._spans)

    @property
    def position(self) -> Position | None:
        """Everything before it is processed: what may be committed."""
        reached = self._spans[0].reached if self._spans else None
        return self._floor if reached is None else reached

    @property
    def to_commit(self) -> Position | None:
        """`position` when it is known and not what is stored already, else None."""
        position = self.position
        return None if position == self.committed else position

    def restart(self, position: Position | None) -> PartitionProgress:
        """The processing begins anew elsewhere (seek, reset): marks for what was handed out before count no more."""
        self.live = False
        return PartitionProgress(position, self.committed)

    def settle(self) -> None:
        """Forget the spans that are complete up to the first that is not."""
        spans = self._spans
        while spans and spans[0].complete:
            self._floor = spans.popleft().next_position
