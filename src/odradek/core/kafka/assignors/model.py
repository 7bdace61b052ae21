"""Arguments and results of an assignor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar, Protocol

from odradek.core.kafka.partitions import java_order
from odradek.types import TopicPartition

__all__ = [
    "NO_GENERATION",
    "Assignment",
    "Assignor",
    "GroupMember",
    "Topics",
    "WithoutUserData",
    "all_partitions",
    "member_order",
    "rack_aware",
    "subscribed_topics",
    "without_racks",
]

NO_GENERATION = -1

Topics = Mapping[str, Sequence[Set[str]]]
"""Topic -> the racks of the replicas of each of its partitions, by partition number. The length is the number of
partitions; a set is empty if the racks are unknown."""

Assignment = dict[str, list[TopicPartition]]
"""Member id -> its partitions. Every member has an entry."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member as its subscription describes it to the leader.

    Args:
        member_id: The id that the coordinator assigned.
        topics: The topics the member subscribes to.
        instance_id: The name of a static member, or None.
        rack: The rack the member runs in, or None.
        owned: The partitions it claims to own, from its subscription or its user data.
        generation: The generation in which it got them; -1 if it does not say.
    """

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    rack: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION


class Assignor(Protocol):
    """A rule that assigns partitions to members.

    Members agree on a `name` in JoinGroup. `cooperative` is True if members keep their partitions while they rejoin.
    """

    name: ClassVar[str]
    cooperative: ClassVar[bool]

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the user data of a member's subscription, for the leader's assignor."""
        ...

    def claims(
        self, owned: Sequence[TopicPartition], generation: int, user_data: bytes | None
    ) -> tuple[Sequence[TopicPartition], int]:
        """Return the partitions that a member claims, and their generation, from the fields and user data it sent."""
        ...

    def assign(self, topics: Topics, members: Collection[GroupMember]) -> Assignment:
        """Assign the partitions of `topics` to the members. Topics without partitions are left out."""
        ...


class WithoutUserData:
    """Base class of assignors without user data."""

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return None: there is no user data."""
        return None

    def claims(
        self, owned: Sequence[TopicPartition], generation: int, user_data: bytes | None
    ) -> tuple[Sequence[TopicPartition], int]:
        """Return the fields of the subscription."""
        return owned, generation


def without_racks(counts: Mapping[str, int]) -> Topics:
    """Return topics with these numbers of partitions and unknown racks."""
    return {topic: (frozenset(),) * count for topic, count in counts.items()}


def member_order(member: GroupMember) -> tuple[int, bytes]:
    """Return the sort key of members: static ones first, by instance id; then the others, by member id."""
    if member.instance_id is not None:
        return 0, java_order(member.instance_id)
    return 1, java_order(member.member_id)


def subscribed_topics(topics: Topics, members: Iterable[GroupMember]) -> list[str]:
    """Return the topics that have partitions and a subscriber, sorted."""
    wanted = {topic for member in members for topic in member.topics}
    return sorted((topic for topic in wanted if topics.get(topic)), key=java_order)


def all_partitions(topics: Topics, names: Iterable[str]) -> list[TopicPartition]:
    """Return every partition of these topics, in the order of the names and by number."""
    return [TopicPartition(topic, partition) for topic in names for partition in range(len(topics[topic]))]


def rack_aware(member_racks: Set[str], partition_racks: Collection[Set[str]]) -> bool:
    """Return True if racks matter: members and replicas share some, and not every partition is in every rack."""
    everywhere: set[str] = set().union(*partition_racks)
    return not member_racks.isdisjoint(everywhere) and any(racks != everywhere for racks in partition_racks)
