"""Racks of members and replicas, for the sticky algorithms (KIP-881)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from odradek.core.kafka.assignors.model import GroupMember, Topics, rack_aware
from odradek.types import TopicPartition

__all__ = ["Racks"]


class Racks:
    """Racks of members and partitions. `in_use` is False if racks do not matter; then no partition is far from any
    member."""

    def __init__(self, topics: Topics, members: Collection[GroupMember]) -> None:
        self._topics = topics
        racks = {member.member_id: member.rack for member in members if member.rack}
        replicas = [partition for partitions in topics.values() for partition in partitions]
        self.in_use = rack_aware(set(racks.values()), replicas)
        self._racks = racks if self.in_use else {}
        self._members = Counter(self._racks.values())

    def far(self, member: str, partition: TopicPartition) -> bool:
        """Return True if the member has a rack and no replica of the partition is in it."""
        rack = self._racks.get(member)
        return rack is not None and rack not in self._topics[partition.topic][partition.partition]

    def scarcest_first(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Sort partitions by the number of members near them, the fewest first; equal ones keep their order."""
        return sorted(partitions, key=lambda p: sum(self._members[r] for r in self._topics[p.topic][p.partition]))

    def next_near(self, partition: TopicPartition, members: Sequence[str], start: int) -> int:
        """Return the index of the first member in the partition's racks, searching in a circle from `start`; -1 if
        there is none."""
        replicas = self._topics[partition.topic][partition.partition]
        for i in range(len(members)):
            index = (start + i) % len(members)
            if self._racks.get(members[index]) in replicas:
                return index
        return -1
