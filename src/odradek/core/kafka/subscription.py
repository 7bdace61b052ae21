"""Subscriptions and assignments that members of a classic consumer group exchange (kafka-specification.md 5.1)."""

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

SUBSCRIPTION_VERSION = 3  # older readers ignore the fields they do not know
ASSIGNMENT_VERSION = 0  # later versions add nothing


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
        assignor: The assignor whose user data is included.
        topics: The topics the member subscribes to.
        owned: The partitions it keeps while it rejoins; empty under the eager protocol.
        previous: The partitions it had before this rebalance, for the user data.
        generation: The generation in which it got them.
        rack: The rack it runs in.
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
    """Decode a member for the leader's assignor. Raises RemoteProtocolError if its subscription is malformed."""
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
    """Encode the assignment of one member."""
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions)), ASSIGNMENT_VERSION)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode this member's assignment; empty bytes mean none. Raises RemoteProtocolError if it is malformed."""
    return _flat(decode_versioned(ConsumerProtocolAssignment, data)[0].assigned_partitions) if data else []


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    return tuple(TopicPartitions(topic=t, partitions=tuple(n)) for t, n in by_topic(partitions).items())


def _flat(topics: Iterable[TopicPartitions]) -> list[TopicPartition]:
    return [TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions]
