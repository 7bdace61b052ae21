"""States of a member of a classic consumer group, and its reactions to errors (kafka-specification.md 5.2, 5.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from odradek.core.states import Machine
from odradek.errors import ConfigError
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = [
    "ACTIVE",
    "MAX_UNKNOWN_ERRORS",
    "MEMBER",
    "NO_SUCH_GROUP",
    "ClassicMemberEvent",
    "ClassicMemberState",
    "MemberReaction",
    "MemberSettings",
    "loss_reason",
    "reaction_to",
]


class ClassicMemberState(Enum):
    """States of a member."""

    UNJOINED = "joins as soon as the coordinator is known"
    REVOKING = "waits until partitions are given up"
    JOINING = "JoinGroup is in flight"
    ASSIGNING = "leads the group, and waits for metadata to compute the assignment"
    SYNCING = "SyncGroup is due or in flight"
    STABLE = "has its assignment"
    LEAVING = "LeaveGroup is due or in flight"
    LEFT = "has left"
    FAILED = "stopped by an error"


class ClassicMemberEvent(Enum):
    """Events of a member."""

    JOIN = "JoinGroup sent"
    RETRY = "refused, to be tried again"
    LEAD = "joined as leader"
    FOLLOW = "joined as follower"
    COMPUTED = "assignment computed"
    SYNCED = "assignment received"
    REVOKE = "partitions to give up"
    REVOKED = "partitions given up"
    REJOIN = "the group or the subscription changed"
    LOST = "generation or member unknown"
    LEAVE = "leave"
    LEFT = "left, or without anything to leave"
    FAIL = "a permanent error"


_S, _E = ClassicMemberState, ClassicMemberEvent
ACTIVE = (_S.UNJOINED, _S.REVOKING, _S.JOINING, _S.ASSIGNING, _S.SYNCING, _S.STABLE)

MEMBER: Machine[ClassicMemberState, ClassicMemberEvent] = Machine(
    "group member",
    _S.UNJOINED,
    {
        (_S.UNJOINED, _E.JOIN): _S.JOINING,
        (_S.JOINING, _E.RETRY): _S.UNJOINED,
        (_S.JOINING, _E.LEAD): _S.ASSIGNING,
        (_S.JOINING, _E.FOLLOW): _S.SYNCING,
        (_S.ASSIGNING, _E.COMPUTED): _S.SYNCING,
        (_S.SYNCING, _E.RETRY): _S.UNJOINED,
        (_S.SYNCING, _E.SYNCED): _S.STABLE,
        (_S.STABLE, _E.REVOKE): _S.REVOKING,
        (_S.STABLE, _E.REJOIN): _S.UNJOINED,
        (_S.REVOKING, _E.REVOKED): _S.UNJOINED,
        **{(state, _E.LOST): _S.UNJOINED for state in ACTIVE},
        **{(state, _E.LEAVE): _S.LEAVING for state in ACTIVE},
        (_S.FAILED, _E.LEAVE): _S.LEFT,
        (_S.LEAVING, _E.LEFT): _S.LEFT,
        **{(state, _E.FAIL): _S.FAILED for state in (*ACTIVE, _S.LEAVING)},
    },
)


class MemberReaction(Enum):
    """Reactions of a member to an error."""

    RETRY = "send the request again after a back-off"
    FIND_COORDINATOR = "find the coordinator, then send the request again"
    REJOIN = "join again, with the same id"
    NEW_GENERATION = "everything is lost; join again with the same id"
    NEW_MEMBER = "everything is lost; join again without an id"
    FENCED = "another process has the instance id"
    FAIL = "stop"


_REACTIONS: Mapping[int, MemberReaction] = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: MemberReaction.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: MemberReaction.FIND_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION: MemberReaction.FIND_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: MemberReaction.FIND_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS: MemberReaction.REJOIN,
    ErrorCode.ILLEGAL_GENERATION: MemberReaction.NEW_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID: MemberReaction.NEW_MEMBER,
    ErrorCode.FENCED_INSTANCE_ID: MemberReaction.FENCED,
    ErrorCode.UNKNOWN_SERVER_ERROR: MemberReaction.RETRY,
}

MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
"""Errors of a coordinator that has handed over its groups, or is about to get them."""

MAX_UNKNOWN_ERRORS = 10
"""Responses with UNKNOWN_SERVER_ERROR in a row after which a member stops: brokers send it for what passes, such as a
coordinator that is being unloaded, and for defects."""

NO_SUCH_GROUP = frozenset(
    {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.UNSUPPORTED_VERSION}
)
"""Answers to a heartbeat of KIP-848 where there is no group of that protocol: it was deleted, has classic members, or
the protocol is switched off. To a member, a heartbeat that joins says whether there can be such a group again."""


def reaction_to(code: int) -> MemberReaction:
    """Return the reaction to an error of a coordinator request (kafka-specification.md 5.3).

    Other errors that the error table calls retriable are retried, such as COORDINATOR_LOAD_IN_PROGRESS; the rest
    stops the member."""
    default = MemberReaction.RETRY if ErrorCode(code).retriable else MemberReaction.FAIL
    return _REACTIONS.get(code, default)


def loss_reason(error: ErrorCode) -> str:
    """Return in words why an error takes the partitions of a member."""
    if error == ErrorCode.UNKNOWN_MEMBER_ID:
        return f"the group has removed this member ({error.name})"
    return f"the group has ended the generation of this member ({error.name})"


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Settings of a group member.

    Args:
        group: The group's id.
        instance_id: The name of a static member: its partitions stay assigned to it while it restarts (KIP-345).
        rack: The rack it runs in, for rack-aware assignors and brokers.
        session_timeout_s: The coordinator removes the member after this time without a heartbeat (s).
        rebalance_timeout_s: Maximum time for members to give up their partitions and join (s).
        heartbeat_interval_s: Time between heartbeats (s); at most a third of the session timeout.
    """

    group: str
    instance_id: str | None = None
    rack: str | None = None
    session_timeout_s: float = 45.0
    rebalance_timeout_s: float = 300.0
    heartbeat_interval_s: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_s * 3 <= self.session_timeout_s:
            raise ConfigError(
                f"heartbeat interval {self.heartbeat_interval_s:g} s: at most a third of the session timeout, "
                f"{self.session_timeout_s:g} s"
            )
