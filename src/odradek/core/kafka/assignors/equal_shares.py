"""Sticky algorithm for members that all subscribe to the same topics.

Every member gets `quota` partitions, and `extra` of them one more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from odradek.core.kafka.assignors.model import Assignment, Topics, all_partitions
from odradek.core.kafka.assignors.racks import Racks
from odradek.core.kafka.partitions import java_hash_order, java_order
from odradek.types import TopicPartition

__all__ = ["EqualShares"]


class EqualShares:
    """One assignment in the making.

    Args:
        topics: The topics of all members, sorted by name.
        owned: Member id -> the partitions it owned and may keep.
        racks: The racks of members and partitions.
    """

    def __init__(self, topics: Topics, owned: Mapping[str, Sequence[TopicPartition]], racks: Racks) -> None:
        self._partitions = all_partitions(topics, topics)
        self._racks = racks
        self._owned = owned
        self._quota, self._extra = divmod(len(self._partitions), len(owned))
        self._assignment: Assignment = {member: [] for member in owned}
        # Members with fewer than `quota`, and those with exactly `quota` that may get one of the extra partitions.
        self._below: list[str] = []
        self._at_quota: deque[str] = deque()

    def assign(self) -> Assignment:
        """Keep what may be kept, then assign the rest: first within racks, then in a circle."""
        kept = self._keep_owned()
        unassigned = [partition for partition in self._partitions if partition not in kept]
        self._below.sort(key=java_order)
        self._at_quota = deque(sorted(self._at_quota, key=java_order))
        if self._racks.in_use:
            unassigned = self._fill_by_rack(self._racks.scarcest_first(unassigned))
        self._fill_in_circle(unassigned)
        return self._assignment

    def _keep_owned(self) -> set[TopicPartition]:
        """Let every member keep what it owned, up to its share. It gives up partitions that are in other racks."""
        kept: set[TopicPartition] = set()
        for member in java_hash_order(self._owned):  # Java's order: it decides who keeps the extra partitions
            mine = sorted(
                (p for p in self._owned[member] if not self._racks.far(member, p)),
                key=lambda p: (p.partition, java_order(p.topic)),
            )
            takes_extra = self._extra > 0 and len(mine) > self._quota
            mine = mine[: self._quota + takes_extra]
            self._assignment[member] += mine
            kept.update(mine)
            if len(mine) < self._quota:
                self._below.append(member)
            elif takes_extra:
                self._take_extra()
            elif self._extra:
                self._at_quota.append(member)
        return kept

    def _take_extra(self) -> None:
        self._extra -= 1
        if not self._extra:
            self._at_quota.clear()  # no member may have more than it has now

    def _fill_by_rack(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Assign partitions to members in their racks, in a circle over those below the quota, and then to those that
        may get one more. Return the partitions for which there was no such member."""
        left: list[TopicPartition] = []
        start = 0
        for partition in partitions:
            index = self._racks.next_near(partition, self._below, start)
            if index >= 0:
                filled = self._add_to_below(index, partition)
                start = index if filled else index + 1
                start = start % len(self._below) if self._below else 0
            elif (index := self._racks.next_near(partition, self._at_quota, 0)) >= 0:
                self._add_extra(index, partition)
            else:
                left.append(partition)
        return left

    def _fill_in_circle(self, partitions: Sequence[TopicPartition]) -> None:
        """Assign each partition to the next member below the quota, then one to each that may get one more."""
        index = 0
        for partition in partitions:
            if self._below:
                index %= len(self._below)
                if not self._add_to_below(index, partition):
                    index += 1
            else:
                self._add_extra(0, partition)

    def _add_to_below(self, index: int, partition: TopicPartition) -> bool:
        """Assign to a member below the quota. Return True if it has reached the quota and left that list."""
        member = self._below[index]
        self._assignment[member].append(partition)
        if len(self._assignment[member]) < self._quota:
            return False
        del self._below[index]
        if self._extra:
            self._at_quota.append(member)
        return True

    def _add_extra(self, index: int, partition: TopicPartition) -> None:
        """Assign to a member at the quota that may get one more."""
        self._assignment[self._at_quota[index]].append(partition)
        del self._at_quota[index]
        self._take_extra()
