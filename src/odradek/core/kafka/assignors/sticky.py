"""Sticky assignor: as balanced as possible, and within that each member keeps as much as possible (KIP-54).

First the claims are resolved: which member owned what. Then one of two algorithms assigns the partitions: `EqualShares`
if all members subscribe to the same topics, else `Balancer`. Both follow racks as far as balance allows (KIP-881).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

from odradek.core.kafka.assignors.balancer import Balancer
from odradek.core.kafka.assignors.equal_shares import EqualShares
from odradek.core.kafka.assignors.model import NO_GENERATION, Assignment, GroupMember, Topics, subscribed_topics
from odradek.core.kafka.assignors.racks import Racks
from odradek.core.kafka.assignors.user_data import decode_sticky, encode_sticky
from odradek.core.kafka.partitions import java_hash_order
from odradek.types import TopicPartition

__all__ = ["Claims", "StickyAssignor", "assign_sticky", "resolve_claims", "same_topics"]


class StickyAssignor:
    """Sticky assignment under the eager protocol: the user data of members has what they owned."""

    name: ClassVar[str] = "sticky"
    cooperative: ClassVar[bool] = False

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the partitions owned before, and their generation."""
        return encode_sticky(owned, generation)

    def claims(
        self, owned: Sequence[TopicPartition], generation: int, user_data: bytes | None
    ) -> tuple[Sequence[TopicPartition], int]:
        """Return the claims of the user data. An eager member has given up everything before it joins, so the
        fields of its subscription are empty."""
        return decode_sticky(user_data)

    def assign(self, topics: Topics, members: Collection[GroupMember]) -> Assignment:
        """Assign the partitions, moving as few as balance allows."""
        return assign_sticky(topics, members)


@dataclass(frozen=True, slots=True)
class Claims:
    """Ownership before this rebalance.

    Args:
        owned: Member id -> the partitions it owned, according to the newest generation that claims each.
        disputed: Partitions that two members of the same generation claim: neither keeps them.
        earlier: Partition -> the member that owned it in an earlier generation than the last one.
    """

    owned: Mapping[str, list[TopicPartition]]
    disputed: Set[TopicPartition]
    earlier: Mapping[TopicPartition, str]


def resolve_claims(topics: Topics, members: Collection[GroupMember]) -> Claims:
    """Resolve conflicting claims: the highest generation wins. If two claims have the same generation, neither wins.

    Claims to partitions that do not exist are dropped.
    """
    newest = max((member.generation for member in members), default=NO_GENERATION)
    claimants: dict[TopicPartition, list[GroupMember]] = {}
    by_id = {member.member_id: member for member in members}
    for member in map(by_id.__getitem__, java_hash_order(by_id)):
        for partition in member.owned:
            if 0 <= partition.partition < len(topics.get(partition.topic, ())):
                claimants.setdefault(partition, []).append(member)
    owned: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
    disputed: set[TopicPartition] = set()
    earlier: dict[TopicPartition, str] = {}
    for partition, claiming in claimants.items():
        claiming.sort(key=lambda member: -member.generation)
        if len(claiming) > 1 and claiming[0].generation == claiming[1].generation:
            disputed.add(partition)
        else:
            owned[claiming[0].member_id].append(partition)
        old = next((member for member in claiming if member.generation < newest), None)
        if old is not None:
            earlier[partition] = old.member_id
    return Claims(owned, disputed, earlier)


def same_topics(members: Collection[GroupMember]) -> bool:
    """Return True if all members subscribe to the same topics."""
    return len({member.topics for member in members}) == 1


def assign_sticky(topics: Topics, members: Collection[GroupMember]) -> Assignment:
    """Assign the partitions, moving as few as balance allows."""
    if not members:
        return {}
    wanted = {topic: topics[topic] for topic in subscribed_topics(topics, members)}
    claims, racks = resolve_claims(wanted, members), Racks(wanted, members)
    if same_topics(members):
        return EqualShares(wanted, claims.owned, racks).assign()
    return Balancer(wanted, members, claims.owned, claims.earlier, racks).assign()
