"""The epochs of the leaders that wrote what was read, for commits and from them (KIP-320).

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
        self._committed: dict[TopicPartition, tuple[int, int]] = {}  # position, and the epoch of the record before it

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

    def record_committed(self, partition: TopicPartition, position: int, epoch: int) -> None:
        """Remember the epoch that a committed position was read with."""
        self._committed[partition] = position, epoch

    def of_committed(self, partition: TopicPartition, position: int, leader_epoch: int) -> int:
        """Return the epoch to compare with the log before it is read from a committed position on; -1 if there is none:
        positions between those committed may be of any epoch. A leader that is not known to be of this epoch or a later
        one cannot compare it: its log is another one, or the metadata is old.

        Args:
            partition: The partition.
            position: Where reading begins.
            leader_epoch: The epoch of the leader, as far as it is known.
        """
        committed, epoch = self._committed.get(partition, (-1, NO_EPOCH))
        return epoch if committed == position and epoch <= leader_epoch else NO_EPOCH

    def forget_committed(self, partition: TopicPartition) -> None:
        """Forget a committed position whose epoch the log does not have."""
        self._committed.pop(partition, None)


def _position(entry: tuple[int, int]) -> int:
    return entry[0]
