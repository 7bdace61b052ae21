"""Range assignor: per topic, consecutive partitions for each member (kafka-specification.md 5.1; KIP-881 for racks)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from odradek.core.kafka.assignors.model import (
    Assignment,
    GroupMember,
    Topics,
    WithoutUserData,
    member_order,
    rack_aware,
    subscribed_topics,
)
from odradek.types import TopicPartition

__all__ = ["RangeAssignor"]


class RangeAssignor(WithoutUserData):
    """Per topic: partitions in order, members in order, and the first `partitions % members` get one more.

    If members and replicas have racks, partitions are first assigned to members in the same rack, within the same
    shares. Topics with the same subscribers and the same number of partitions stay co-partitioned: partition n of all
    of them is assigned to the same member, or its racks are ignored.
    """

    name: ClassVar[str] = "range"
    cooperative: ClassVar[bool] = False

    def assign(self, topics: Topics, members: Collection[GroupMember]) -> Assignment:
        """Assign the partitions."""
        assignment: Assignment = {member.member_id: [] for member in members}
        in_order = sorted(members, key=member_order)
        shares = [
            _TopicShares(topic, topics[topic], [m for m in in_order if topic in m.topics], assignment)
            for topic in subscribed_topics(topics, members)
        ]
        by_rack = any(share.rack_aware for share in shares)
        if by_rack:
            _assign_by_rack(shares)
        for share in shares:
            share.assign_ranges(lambda _member, _partition: True)
        if by_rack:
            for partitions in assignment.values():
                partitions.sort()
        return assignment


class _TopicShares:
    """One topic while its partitions are being assigned."""

    def __init__(
        self, topic: str, racks: Sequence[Collection[str]], members: Sequence[GroupMember], assignment: Assignment
    ) -> None:
        self.topic, self.racks, self.assignment = topic, [set(r) for r in racks], assignment
        self.members = {member.member_id: member.rack or "" for member in members}
        self.unassigned = dict.fromkeys(range(len(racks)))
        self.quota, self.extra = divmod(len(racks), len(members))
        self.taken = dict.fromkeys(self.members, 0)
        self.rack_aware = rack_aware({rack for rack in self.members.values() if rack}, self.racks)

    def remaining(self, member: str) -> int:
        """Return how many more partitions this member may get."""
        return max(0, self.quota + (self.extra > 0) - self.taken[member])

    def same_rack(self, member: str, partition: int) -> bool:
        rack = self.members[member]
        return not rack or rack in self.racks[partition]

    def add(self, member: str, partitions: Sequence[int]) -> None:
        self.assignment[member] += [TopicPartition(self.topic, partition) for partition in partitions]
        self.taken[member] += len(partitions)
        if self.taken[member] > self.quota:
            self.extra -= 1
        for partition in partitions:
            del self.unassigned[partition]

    def assign_ranges(self, eligible: Callable[[str, int], bool]) -> None:
        """Assign to each member, in order, the first partitions it is eligible for, up to its share."""
        for member in self.members:
            chosen = [p for p in self.unassigned if eligible(member, p)][: self.remaining(member)]
            if chosen:
                self.add(member, chosen)


def _assign_by_rack(shares: Sequence[_TopicShares]) -> None:
    together: dict[tuple[tuple[tuple[str, str], ...], int], list[_TopicShares]] = {}
    for share in shares:
        together.setdefault((tuple(share.members.items()), len(share.racks)), []).append(share)
    for group in together.values():
        if len(group) > 1:
            _assign_co_partitioned(group)
        elif group[0].rack_aware:
            group[0].assign_ranges(group[0].same_rack)


def _assign_co_partitioned(group: Sequence[_TopicShares]) -> None:
    """Assign partition n of all these topics to the first member that is in a rack of each of them."""
    if not any(group[0].members.values()):
        return  # no member has a rack: plain ranges are co-partitioned already
    for partition in range(len(group[0].racks)):
        for member in group[0].members:
            if all(share.remaining(member) and share.same_rack(member, partition) for share in group):
                for share in group:
                    share.add(member, [partition])
                break
