"""The messages of a partition that are read: from a position, exact to the message, to another one."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from odradek.types import Columns, Position, StartPosition

__all__ = ["ExactPosition", "ReadRange"]


class ExactPosition(NamedTuple):
    """A place between two messages: a position, and how many messages of a compressed wrapper that starts there were
    delivered already (positions inside a wrapper do not exist, specification 2.3). With the id of the topic, if there
    is one: in another topic of the same name it is no place at all."""

    position: Position
    inner: int = 0
    topic_id: bytes | None = None


class ReadRange:
    """The start and the end of reading.

    Args:
        skip: How many messages of the wrapper at the first position were delivered before (`ExactPosition.inner`).
        until: Where to end, or None: before the first message from there on, except `until_inner` of a wrapper there.
        until_inner: See `ExactPosition.inner`.
        until_topic_id: The id of the topic that `until` is a position in; None: not known.
    """

    __slots__ = ("_cut_at", "_until_inner", "_until_topic_id", "skip", "until")

    def __init__(
        self, skip: int, until: Position | None, until_inner: int, until_topic_id: bytes | None = None
    ) -> None:
        self.until, self._until_inner, self._until_topic_id = until, until_inner, until_topic_id
        self.restart(skip)

    def restart(self, skip: int = 0) -> None:
        """Begin elsewhere, with the same end."""
        self.skip = skip
        self._cut_at: Position | None = None  # the first message left out because of `until`

    def clip(self, columns: Columns, start: StartPosition, end: Position) -> Columns:
        """Return those of at least one row that were not delivered before and that start before the end.

        Args:
            columns: Rows as they were decoded.
            start: The position where reading began.
            end: A position behind the last row.
        """
        if not self.skip and (self.until is None or end <= self.until):
            return columns
        first, stop = 0, len(columns)
        if self.skip:
            first = self._already_delivered(columns, start)
            self.skip = 0
        if self.until is not None and columns.positions[-1] >= self.until:
            stop = self._count_before_end(columns, self.until)
        return columns.slice(first, stop)

    def _already_delivered(self, columns: Columns, start: StartPosition) -> int:
        inner = columns.inner_indexes
        if inner is None:
            return 0
        n = 0
        while n < len(inner) and columns.positions[n] == start and inner[n] < self.skip:
            n += 1
        return n

    def _count_before_end(self, columns: Columns, until: Position) -> int:
        stop = bisect_left(columns.positions, until)
        inner = columns.inner_indexes or ()
        while stop < len(inner) and columns.positions[stop] == until and inner[stop] < self._until_inner:
            stop += 1
        if stop < len(columns.positions) and self._cut_at is None:
            self._cut_at = Position(columns.positions[stop])
        return stop

    def ends_at(self, position: Position) -> bool:
        """Return True if nothing from `position` on is read."""
        if self.until is None or position < self.until:
            return False
        return position > self.until or not self._until_inner

    def ends_in(self, topic_id: bytes) -> bool:
        """Return True if this topic has the end, or there is none."""
        return self.until is None or self._until_topic_id in (None, topic_id)

    def continues_at(self, position: Position) -> ExactPosition:
        """Return where reading continues when everything before `position` that is read was delivered."""
        return ExactPosition(position if self._cut_at is None else self._cut_at, self.skip)
