"""Leader of a classic consumer group: it computes the assignment of all members (kafka-specification.md 5.2)."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.core.kafka.assignors import Assignment, Assignor, GroupMember, Topics

__all__ = ["GroupLeader"]


class GroupLeader:
    """The leader's view of one generation.

    Args:
        assignor: The assignor that the coordinator chose.
        members: All members of the generation.
    """

    def __init__(self, assignor: Assignor, members: Sequence[GroupMember]) -> None:
        self._assignor, self._members = assignor, members
        self._partition_counts: dict[str, int] | None = None

    @property
    def topics(self) -> frozenset[str]:
        """The topics to which the members subscribe."""
        return frozenset(topic for member in self._members for topic in member.topics)

    def assign(self, topics: Topics) -> Assignment:
        """Return the assignment of all members."""
        self._partition_counts = self._count(topics)
        return self._assignor.assign(topics, self._members)

    def must_rejoin(self, topics: Topics) -> bool:
        """Return True if the partition counts are no longer those of the assignment. A static leader that returned
        without assigning (JoinGroup 9, `skip_assignment`) compares with the first counts it gets."""
        counts = self._count(topics)
        if self._partition_counts is None:
            self._partition_counts = counts
        return counts != self._partition_counts

    def _count(self, topics: Topics) -> dict[str, int]:
        return {topic: len(topics.get(topic, ())) for topic in self.topics}
