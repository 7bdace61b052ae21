"""Round-robin assignor: all partitions of all topics in a circle (kafka-specification.md 5.1)."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from odradek.core.kafka.assignors.model import (
    Assignment,
    GroupMember,
    Topics,
    WithoutUserData,
    all_partitions,
    member_order,
    subscribed_topics,
)

__all__ = ["RoundRobinAssignor"]


class RoundRobinAssignor(WithoutUserData):
    """Topics by name, partitions by number, members in order: each partition to the next subscriber."""

    name: ClassVar[str] = "roundrobin"
    cooperative: ClassVar[bool] = False

    def assign(self, topics: Topics, members: Collection[GroupMember]) -> Assignment:
        """Assign the partitions."""
        circle = sorted(members, key=member_order)
        assignment: Assignment = {member.member_id: [] for member in members}
        position = 0
        for partition in all_partitions(topics, subscribed_topics(topics, members)):
            # This ends because every topic here has a subscriber.
            while partition.topic not in circle[position].topics:
                position = (position + 1) % len(circle)
            assignment[circle[position].member_id].append(partition)
            position = (position + 1) % len(circle)
        return assignment
