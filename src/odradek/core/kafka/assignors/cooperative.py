"""Cooperative sticky assignor: sticky, but a partition moves to another member in two rounds (KIP-429)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from odradek.core.kafka.assignors.model import NO_GENERATION, Assignment, GroupMember, Topics
from odradek.core.kafka.assignors.sticky import assign_sticky, resolve_claims, same_topics
from odradek.core.kafka.assignors.user_data import decode_generation, encode_generation
from odradek.types import TopicPartition

__all__ = ["CooperativeStickyAssignor"]


class CooperativeStickyAssignor:
    """Sticky assignment under the cooperative protocol: partitions that another member still owns are left out.

    Members keep their partitions while they rejoin. The owner of a partition that is missing in its assignment revokes
    it and rejoins; the second round assigns it to its new owner.
    """

    name: ClassVar[str] = "cooperative-sticky"
    cooperative: ClassVar[bool] = True

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the generation; the owned partitions are in the subscription."""
        return encode_generation(generation)

    def claims(
        self, owned: Sequence[TopicPartition], generation: int, user_data: bytes | None
    ) -> tuple[Sequence[TopicPartition], int]:
        """Return the partitions of the subscription and its generation: from the field, or from the user data of
        members that have no such field (before 3.4)."""
        return owned, generation if generation != NO_GENERATION else decode_generation(user_data)

    def assign(self, topics: Topics, members: Collection[GroupMember]) -> Assignment:
        """Assign the partitions, without those that another member has to give up first."""
        assignment = assign_sticky(topics, members)
        if same_topics(members):
            claims = resolve_claims(topics, members)
            owner = {partition: member for member, partitions in claims.owned.items() for partition in partitions}
            return {
                member: [p for p in partitions if owner.get(p, member) == member and p not in claims.disputed]
                for member, partitions in assignment.items()
            }
        # If several members claim a partition that is assigned to one of them, that one keeps it; the others give it up
        # now.
        claimed = {member.member_id: frozenset(member.owned) for member in members}
        anyone = frozenset().union(*claimed.values())
        return {
            member: [p for p in partitions if p in claimed[member] or p not in anyone]
            for member, partitions in assignment.items()
        }
