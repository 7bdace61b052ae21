"""Requests of a member of a classic consumer group (kafka-specification.md 5.1, 5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from odradek.core.kafka.member_states import MemberSettings
from odradek.core.kafka.subscription import encode_assignment
from odradek.core.kafka.transaction_requests import GroupMetadata
from odradek.types import TopicPartition
from odradek.wire.kafka.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

__all__ = ["heartbeat_request", "join_request", "leave_request", "sync_request"]

PROTOCOL_TYPE = "consumer"


def join_request(settings: MemberSettings, member_id: str, subscriptions: Mapping[str, bytes]) -> JoinGroupRequest:
    """Return JoinGroup.

    Args:
        settings: Settings of the member.
        member_id: Its id; "" before the coordinator has given one.
        subscriptions: Assignor name -> encoded subscription, the preferred assignor first.
    """
    return JoinGroupRequest(
        group_id=settings.group,
        session_timeout_ms=round(settings.session_timeout_s * 1000),
        rebalance_timeout_ms=round(settings.rebalance_timeout_s * 1000),
        member_id=member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=data) for name, data in subscriptions.items()),
    )


def sync_request(
    token: GroupMetadata, assignor: str, assignment: Mapping[str, Iterable[TopicPartition]]
) -> SyncGroupRequest:
    """Return SyncGroup: with the whole assignment from the leader, with an empty one from the others."""
    return SyncGroupRequest(
        group_id=token.group,
        generation_id=token.generation,
        member_id=token.member_id,
        group_instance_id=token.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=assignor,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
            for member, partitions in assignment.items()
        ),
    )


def heartbeat_request(token: GroupMetadata) -> HeartbeatRequest:
    """Return Heartbeat."""
    return HeartbeatRequest(
        group_id=token.group,
        generation_id=token.generation,
        member_id=token.member_id,
        group_instance_id=token.instance_id,
    )


def leave_request(token: GroupMetadata, *, member_lists: bool, reason: str) -> LeaveGroupRequest:
    """Return LeaveGroup, with a list of members if `BrokerVersions.has_member_lists` of the coordinator is True."""
    if not member_lists:
        return LeaveGroupRequest(group_id=token.group, member_id=token.member_id)
    identity = MemberIdentity(member_id=token.member_id, reason=reason or None)
    return LeaveGroupRequest(group_id=token.group, members=(identity,))
