"""The epochs of the leaders that wrote what was read, so that commits can carry them (KIP-320).

A consumer that continues at a committed position compares its epoch with the log, and notices if the log was truncated.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from odradek.types import TopicPartition

__all__ = ["LeaderEpochs"]

NO_EPOCH = -1
MAX_EPOCHS = 32
"""Epochs that are remembered of each partition: the later ones."""


class LeaderEpochs:
    """The first positions read in each epoch, by partition. All readers and consumers of a cluster share one: a record
    has the same epoch for all of them."""

    def __init__(self) -> None:
        self._read: dict[TopicPartition, list[tuple[int, int]]] = {}  # position and epoch, both ascending

    def record(self, partition: TopicPartition, position: int, epoch: int) -> None:
        """Remember that what was read from `position` on, up to wherever, ended in this epoch.

        A log whose epochs do not ascend is another one than before: what was read of that is forgotten.
        """
        known = self._read.setdefault(partition, [])
        index = bisect_right(known, position, key=_position)
        if index and known[index - 1][1] == epoch:
            return
        following = known[index] if index < len(known) else None
        if following is not None and following[1] == epoch:
            known[index] = (position, epoch)
        elif (index and known[index - 1][1] > epoch) or (following is not None and following[1] < epoch):
            self._read[partition] = [(position, epoch)]
        else:
            known.insert(index, (position, epoch))
            del known[:-MAX_EPOCHS]

    def before(self, partition: TopicPartition, position: int) -> int:
        """Return the epoch of the record before a position; -1 if it was not read."""
        known = self._read.get(partition, ())
        index = bisect_left(known, position, key=_position)
        return known[index - 1][1] if index else NO_EPOCH


def _position(entry: tuple[int, int]) -> int:
    return entry[0]
