"""Sticky algorithm for members that subscribe to different topics.

Partitions stay with their owners if possible; each of the others is assigned to the subscriber that has the fewest.
Then partitions move from members with many to members with few until no move brings two members closer together. The
order of the steps is that of Kafka's own assignor, so that a group may change its leader without moving partitions.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping, Sequence

from odradek.core.kafka.assignors.model import Assignment, GroupMember, Topics, all_partitions
from odradek.core.kafka.assignors.racks import Racks
from odradek.core.kafka.partitions import java_hash, java_order
from odradek.types import TopicPartition

__all__ = ["Balancer"]


class Balancer:
    """One assignment in the making.

    Args:
        topics: The topics with a subscriber.
        members: All members.
        owned: Member id -> the partitions it owned.
        earlier: Partition -> the member that owned it in an earlier generation.
        racks: The racks of members and partitions.
    """

    def __init__(
        self,
        topics: Topics,
        members: Collection[GroupMember],
        owned: Mapping[str, Sequence[TopicPartition]],
        earlier: Mapping[TopicPartition, str],
        racks: Racks,
    ) -> None:
        self._topics, self._owned, self._earlier, self._racks = topics, owned, earlier, racks
        self._wants = {member.member_id: member.topics & topics.keys() for member in members}
        self._subscribers = {
            topic: [member for member in self._wants if topic in self._wants[member]] for topic in topics
        }
        # Topics with few subscribers first: their partitions have the fewest choices.
        names = sorted(topics, key=lambda topic: (len(self._subscribers[topic]), java_order(topic)))
        self._partitions = all_partitions(topics, names)
        self._state = _State(self._wants)
        self._moves = _Moves()

    def assign(self) -> Assignment:
        """Return the balanced assignment."""
        revoked = self._keep_owned()
        unassigned = [partition for partition in self._partitions if partition not in self._state.owner]
        kept_any = any(self._state.assignment.values())
        self._assign_new(unassigned)
        for member in self._wants:
            if not self._can_change(member):
                self._state.freeze(member)
        before, imbalance = self._state.copy(), self._state.imbalance()
        if not revoked:  # moving new partitions alone may be enough
            self._reassign(unassigned)
        moved = self._reassign(self._partitions)
        if moved and kept_any and self._state.imbalance() >= imbalance:
            return before  # partitions that moved back in place of others have cost what the other moves had won
        return self._state.assignment

    def _keep_owned(self) -> bool:
        """Assign what members owned, want and are near. Return True if a member has to give up a partition."""
        revoked = False
        for member, partitions in self._owned.items():
            for partition in partitions:
                if partition.topic in self._wants[member] and not self._racks.far(member, partition):
                    self._state.add(member, partition)
                else:
                    revoked = True
        return revoked

    def _assign_new(self, partitions: Sequence[TopicPartition]) -> None:
        if self._racks.in_use:
            partitions = [partition for partition in partitions if not self._assign_one(partition, near=True)]
        for partition in partitions:
            self._assign_one(partition, near=False)

    def _assign_one(self, partition: TopicPartition, *, near: bool) -> bool:
        """Assign the partition to the subscriber (in its racks, if `near`) that has the fewest."""
        for member in self._state.fewest_first():
            if partition.topic in self._wants[member] and not (near and self._racks.far(member, partition)):
                self._state.add(member, partition)
                return True
        return False

    def _can_change(self, member: str) -> bool:
        """Return True if the member could get another partition, or lose one of its own to another member."""
        mine = self._state.assignment[member]
        maximum = sum(len(self._topics[topic]) for topic in self._wants[member])
        return len(mine) < maximum or any(len(self._subscribers[partition.topic]) > 1 for partition in mine)

    def _reassign(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move partitions until no move helps. Return True if any has moved.

        A move brings two members closer together, unless another partition moves instead: the number of passes is
        limited, because nothing proves that these come to an end.
        """
        movable = [partition for partition in partitions if len(self._subscribers[partition.topic]) > 1]
        for number in range(len(movable) * len(self._wants)):
            moved = False
            for partition in movable:
                target = self._better_owner(partition)
                if target is not None:
                    self._move(partition, target)
                    moved = True
            if not moved:
                return number > 0
        return bool(movable)

    def _better_owner(self, partition: TopicPartition) -> str | None:
        """Return the earlier owner, or else the subscriber with the fewest, if that has at least two fewer."""
        maximum = self._state.count(self._state.owner[partition]) - 1
        earlier = self._earlier.get(partition)
        if earlier and partition.topic in self._wants[earlier] and self._state.count(earlier) < maximum:
            return earlier
        fewest = next(m for m in self._state.fewest_first() if partition.topic in self._wants[m])
        return fewest if self._state.count(fewest) < maximum else None

    def _move(self, partition: TopicPartition, target: str) -> None:
        partition = self._moves.instead_of(partition, self._state.owner[partition], target)
        source = self._state.owner[partition]
        self._moves.record(partition, source, target)
        self._state.remove(source, partition)
        self._state.add(target, partition)


class _State:
    """The assignment so far, and the members in the order of how many partitions they have."""

    def __init__(self, members: Collection[str]) -> None:
        self.assignment: Assignment = {member: [] for member in members}
        self.owner: dict[TopicPartition, str] = {}
        self._order = sorted((0, java_order(member), member) for member in members)

    def count(self, member: str) -> int:
        return len(self.assignment[member])

    def copy(self) -> Assignment:
        """Return a copy of the assignment."""
        return {member: list(partitions) for member, partitions in self.assignment.items()}

    def imbalance(self) -> int:
        """Return the sum of the differences between any two members that can still change."""
        counts = [count for count, _, _ in self._order]  # ascending
        return sum((2 * i + 1 - len(counts)) * count for i, count in enumerate(counts))

    def fewest_first(self) -> Iterator[str]:
        """Return the members that can still change, those with the fewest partitions first."""
        return (member for _, _, member in self._order)

    def add(self, member: str, partition: TopicPartition) -> None:
        self._leave_order(member)
        self.assignment[member].append(partition)
        self.owner[partition] = member
        insort(self._order, self._key(member))

    def remove(self, member: str, partition: TopicPartition) -> None:
        self._leave_order(member)
        self.assignment[member].remove(partition)
        del self.owner[partition]
        insort(self._order, self._key(member))

    def freeze(self, member: str) -> None:
        """Remove the member from the order: nothing can move to it or away from it."""
        self._leave_order(member)

    def _key(self, member: str) -> tuple[int, bytes, str]:
        return self.count(member), java_order(member), member

    def _leave_order(self, member: str) -> None:
        del self._order[bisect_left(self._order, self._key(member))]


class _Moves:
    """The moves so far, so that two members do not swap partitions of one topic."""

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, tuple[str, str]] = {}
        self._by_pair: dict[tuple[str, str, str], _HashOrder] = {}

    def instead_of(self, partition: TopicPartition, source: str, target: str) -> TopicPartition:
        """Return the partition to move to `target`: if one of the same topic has moved from there to the member that
        `partition` came from (`source`, if it has not moved yet), that one moves back, which makes one move less."""
        first, _ = self._by_partition.get(partition, (source, target))
        back = self._by_pair.get((partition.topic, target, first))
        return partition if back is None else back.first()

    def record(self, partition: TopicPartition, source: str, target: str) -> None:
        """Record a move; two in a row count as one from the first member to the last."""
        if partition in self._by_partition:
            first, last = self._by_partition.pop(partition)
            moved = self._by_pair[partition.topic, first, last]
            moved.remove(partition)
            if not moved.partitions:
                del self._by_pair[partition.topic, first, last]
            source = first
        if source != target:
            self._by_partition[partition] = source, target
            self._by_pair.setdefault((partition.topic, source, target), _HashOrder()).add(partition)


class _HashOrder:
    """Partitions of which the first one is that of a hash table in Java: Kafka's assignor takes it."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, int] = {}
        self._buckets = 16

    def add(self, partition: TopicPartition) -> None:
        self.partitions[partition] = java_hash(partition)
        if len(self.partitions) * 4 > self._buckets * 3:
            self._buckets *= 2

    def remove(self, partition: TopicPartition) -> None:
        del self.partitions[partition]

    def first(self) -> TopicPartition:
        return min(self.partitions, key=lambda partition: self.partitions[partition] % self._buckets)
