"""The epochs of the leaders that wrote what was read, for commits and from them (KIP-320).

A consumer that continues at a committed position compares its epoch with the log, and notices if the log was truncated;
so does one that begins at the end of a log, with the epoch of the leader that named it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from odradek.types import TopicPartition

__all__ = ["LeaderEpochs"]

NO_EPOCH = -1
MAX_SPANS = 32
"""Parts of the log that are remembered of each partition, the later ones, and committed positions, the latest."""


class LeaderEpochs:
    """The parts of logs that were read, each with the epoch of the leader that wrote it. All readers and consumers of a
    cluster share one: a record has the same epoch for all of them."""

    def __init__(self) -> None:
        self._read: dict[TopicPartition, list[tuple[int, int, int]]] = {}  # first, behind, epoch; apart, ascending
        self._committed: dict[TopicPartition, dict[int, int]] = {}  # of groups: position -> epoch of the record before
        self._ends: dict[TopicPartition, tuple[int, int]] = {}  # position, and the epoch of the leader that named it

    def record(self, partition: TopicPartition, first: int, behind: int, epoch: int) -> None:
        """Remember that all records from `first` up to `behind`, without it, were read and have this epoch.

        Epochs ascend in a log. Ranges that were read before and contradict this are forgotten: the log was
        truncated, or it is another one.
        """
        # Readers of a cluster share this, so parts come in any order and may overlap. A broker that lost its log to an
        # unclean election has other records at the same offsets, of a later epoch: `_agree` finds the contradiction.
        known = self._read.get(partition, [])
        if any(not _agree(span, first, behind, epoch) for span in known):
            known = []
        touching = [span for span in known if span[2] == epoch and span[0] <= behind and first <= span[1]]
        whole = min([first, *(span[0] for span in touching)]), max([behind, *(span[1] for span in touching)]), epoch
        apart = [span for span in known if span not in touching]
        self._read[partition] = sorted([*apart, whole])[-MAX_SPANS:]

    def before(self, partition: TopicPartition, position: int) -> int:
        """Return the epoch of the record right before a position; -1 if that was not read.

        Never that of an earlier one: the next member would find that this epoch ends before the position in the log,
        take the log for truncated, and rewind.
        """
        known = self._read.get(partition, ())
        return next((epoch for first, behind, epoch in known if first < position <= behind), NO_EPOCH)

    def to_commit(self, partition: TopicPartition, position: int) -> int:
        """Return the epoch to store with a position: that of the record right before it or, where that was not read,
        the one that was stored with it, or that of the leader whose log ended there; -1 if none is known."""
        committed = self._committed.get(partition, {}).get(position, NO_EPOCH)
        known = self.before(partition, position), committed, _epoch_at(self._ends.get(partition), position)
        return next((epoch for epoch in known if epoch != NO_EPOCH), NO_EPOCH)

    def record_committed(self, partition: TopicPartition, position: int, epoch: int) -> None:
        """Remember the epoch that a committed position was read with: of each group, or of the latest of many."""
        known = self._committed.setdefault(partition, {})
        known.pop(position, None)
        known[position] = epoch
        if len(known) > MAX_SPANS:
            del known[next(iter(known))]

    def of_committed(self, partition: TopicPartition, position: int, leader_epoch: int) -> int:
        """Return the epoch to compare with the log before it is read from a committed position on; -1 if there is none:
        positions between those committed may be of any epoch. A leader that is not known to be of this epoch or a later
        one cannot compare it: its log is another one, or the metadata is old.

        Args:
            partition: The partition.
            position: Where reading begins.
            leader_epoch: The epoch of the leader, as far as it is known.
        """
        epoch = self._committed.get(partition, {}).get(position, NO_EPOCH)
        return epoch if epoch <= leader_epoch else NO_EPOCH

    def record_end(self, partition: TopicPartition, position: int, epoch: int) -> None:
        """Remember the epoch of the leader whose log ended at a position. Before offset 0 there is nothing to lose."""
        if position > 0:
            self._ends[partition] = position, epoch

    def of_end(self, partition: TopicPartition, position: int, leader_epoch: int) -> int:
        """Return the epoch of the leader whose log ended at a position from which it is read on; -1 if there is none.
        Arguments as in `of_committed`."""
        return _epoch_at(self._ends.get(partition), position, leader_epoch)

    def forget_topics(self, names: Collection[str]) -> None:
        """Forget what was read of topics that were made again: their epochs begin again, too."""
        for known in (self._read, self._committed, self._ends):
            for partition in [partition for partition in known if partition.topic in names]:
                del known[partition]

    def forget_starts(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget positions, committed or at the end of a log, whose epoch the logs do not have."""
        for partition in partitions:
            self._committed.pop(partition, None)
            self._ends.pop(partition, None)


def _epoch_at(known: tuple[int, int] | None, position: int, latest: float = inf) -> int:
    """Return the epoch that is known with a position, if it is that one and no later epoch than `latest`."""
    return known[1] if known is not None and known[0] == position and known[1] <= latest else NO_EPOCH


def _agree(span: tuple[int, int, int], first: int, behind: int, epoch: int) -> bool:
    """Return True if a part of a log can be in the same log as another one."""
    return span[2] == epoch or (span[1] <= first if span[2] < epoch else behind <= span[0])
