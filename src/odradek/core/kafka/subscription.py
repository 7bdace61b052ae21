"""What members of a classic consumer group tell each other: subscriptions and assignments (specification 5.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from odradek.core.kafka.assignors import Assignor, GroupMember
from odradek.core.kafka.partitions import by_topic
from odradek.errors import RemoteProtocolError
from odradek.types import TopicPartition
from odradek.wire.kafka.embedded import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_versioned,
    encode_versioned,
)
from odradek.wire.kafka.messages.common import TopicPartitions
from odradek.wire.kafka.messages.groups import JoinGroupResponseMember

__all__ = ["decode_assignment", "decode_member", "encode_assignment", "encode_subscription"]

SUBSCRIPTION_VERSION = 3  # older readers ignore what they do not know
ASSIGNMENT_VERSION = 0  # the later ones add nothing


def encode_subscription(
    assignor: Assignor,
    topics: Iterable[str],
    *,
    owned: Sequence[TopicPartition],
    previous: Sequence[TopicPartition],
    generation: int,
    rack: str | None,
) -> bytes:
    """Encode the subscription of a member under one assignor.

    Args:
        assignor: Whose user data goes along.
        topics: What the member wants.
        owned: What it keeps while it rejoins; empty under the eager protocol.
        previous: What it had before this rebalance, for the user data.
        generation: The generation in which it got that.
        rack: Where it runs.
    """
    subscription = ConsumerProtocolSubscription(
        topics=tuple(sorted(topics)),
        user_data=assignor.user_data(previous, generation),
        owned_partitions=_by_topic(owned),
        generation_id=generation,
        rack_id=rack,
    )
    return encode_versioned(subscription, SUBSCRIPTION_VERSION)


def decode_member(assignor: Assignor, member: JoinGroupResponseMember) -> GroupMember:
    """Decode a member as the leader's assignor sees it. Raises RemoteProtocolError where that is not possible."""
    try:
        subscription, _ = decode_versioned(ConsumerProtocolSubscription, member.metadata)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"the subscription of member {member.member_id}: {error}") from None
    owned, generation = assignor.claims(
        _flat(subscription.owned_partitions), subscription.generation_id, subscription.user_data
    )
    return GroupMember(
        member.member_id,
        frozenset(subscription.topics),
        member.group_instance_id,
        subscription.rack_id,
        tuple(owned),
        generation,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode what the leader gives to one member."""
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions)), ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode what this member got; no bytes at all mean nothing. Raises RemoteProtocolError where it is nonsense."""
    return _flat(decode_versioned(ConsumerProtocolAssignment, data)[0].assigned_partitions) if data else []


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic=t, partitions=tuple(n)) for t, n in by_topic(partitions).items())


def _flat(topics: Iterable[TopicPartitions]) -> list[TopicPartition]:
    return [TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions]
