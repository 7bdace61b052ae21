"""Positions that transactions of a member's own process store for its group, before Kafka 2.5.

A coordinator answers EndTxn before the marker of the transaction has reached the partition with the group's positions;
until then OffsetFetch returns the positions from before the transaction. From 2.5 on it refuses to (KIP-447). Before,
a member that joins again in that moment would read them, and what the transaction has processed would be processed
again: a coordinator that is elected just then makes the moment last for seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from odradek.types import Position, TopicPartition

__all__ = ["TransactionPositions"]

REMEMBERED_S = 60.0
"""Time for which a committed position counts if the coordinator names an earlier one (s): longer than it takes to write
the marker, and short enough for members elsewhere that go back on purpose."""


class TransactionPositions:
    """Positions in transactions of one process, for the partitions of one member.

    Attributes:
        open: How many transactions have sent positions and not ended: positions cannot be read meanwhile.
    """

    def __init__(self) -> None:
        self.open = 0
        self._committed: dict[TopicPartition, tuple[Position, float]] = {}

    def begin(self) -> None:
        """Note that a transaction is about to send positions."""
        self.open += 1

    def end(self, committed: Mapping[TopicPartition, Position], now: float) -> None:
        """Note that it has ended.

        Args:
            committed: The positions that are certainly committed: none if it was aborted, or its outcome is not known.
            now: The time (s).
        """
        self.open -= 1
        self._committed |= {partition: (position, now) for partition, position in committed.items()}

    def forget(self, partitions: Mapping[TopicPartition, Position]) -> None:
        """Note that the member stores other positions of these partitions, which may be earlier ones."""
        for partition in partitions:
            self._committed.pop(partition, None)

    def newest(
        self, read: Mapping[TopicPartition, Position | None], now: float
    ) -> dict[TopicPartition, Position | None]:
        """Return the positions that the coordinator has named, or will name: those that were committed since."""
        return {partition: self._newest(partition, position, now) for partition, position in read.items()}

    def _newest(self, partition: TopicPartition, position: Position | None, now: float) -> Position | None:
        committed, at = self._committed.get(partition, (None, 0.0))
        if committed is None:
            return position
        if now > at + REMEMBERED_S or (position is not None and position >= committed):
            del self._committed[partition]
            return position
        return committed
