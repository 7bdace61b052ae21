"""The round-robin assignor: all partitions of all topics in a circle (specification 5.1)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from odradek.core.kafka.assignors.model import (
    Assignment,
    GroupMember,
    Topics,
    all_partitions,
    member_order,
    subscribed_topics,
)
from odradek.core.kafka.partitions import TopicPartition

__all__ = ["RoundRobinAssignor"]


class RoundRobinAssignor:
    """Topics by name, partitions by number, members in order: each partition to the next member that subscribed."""

    name: ClassVar[str] = "roundrobin"
    cooperative: ClassVar[bool] = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None

    def claims(
        self, owned: Sequence[TopicPartition], generation: int, user_data: bytes | None
    ) -> tuple[Sequence[TopicPartition], int]:
        return owned, generation

    def assign(self, topics: Topics, members: Collection[GroupMember]) -> Assignment:
        circle = sorted(members, key=member_order)
        assignment: Assignment = {member.member_id: [] for member in members}
        position = 0
        for partition in all_partitions(topics, subscribed_topics(topics, members)):
            # Ends: every topic here has a subscriber.
            while partition.topic not in circle[position].topics:
                position = (position + 1) % len(circle)
            assignment[circle[position].member_id].append(partition)
            position = (position + 1) % len(circle)
        return assignment
