"""Member of a share group (KIP-932): heartbeats that name topics, and responses that name partitions.

Partitions of a share group belong to several members at once, so that nothing has to be given up before another member
may have it: a new assignment replaces the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.group_effects import Assign, ResolveTopics, Revoke
from odradek.core.kafka.member_base import BaseMember
from odradek.core.kafka.member_states import MAX_UNKNOWN_ERRORS, MOVED, MemberSettings
from odradek.core.states import Machine
from odradek.errors import LocalProtocolError, Unsupported
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import TopicIdPartitions
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.kafka.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from odradek.wire.kafka.schema import Request, Response

__all__ = ["SHARE_GROUP_MEMBER", "ShareMember", "ShareMemberEvent", "ShareMemberState"]

JOIN_EPOCH = 0
LEAVE_EPOCH = -1


class ShareMemberState(Enum):
    """States of a member."""

    JOINING = "the next heartbeat joins, with epoch 0"
    STABLE = "has an epoch"
    LEAVING = "the next heartbeat leaves"
    LEFT = "has left"
    FAILED = "stopped by an error"


class ShareMemberEvent(Enum):
    """Events of a member."""

    JOINED = "the coordinator gave an epoch"
    FENCED = "epoch, member or group unknown"
    LEAVE = "leave"
    LEFT = "left, or without anything to leave"
    FAIL = "a permanent error"


_S, _E = ShareMemberState, ShareMemberEvent
_ACTIVE = (_S.JOINING, _S.STABLE)

SHARE_GROUP_MEMBER: Machine[ShareMemberState, ShareMemberEvent] = Machine(
    "share group member",
    _S.JOINING,
    {
        (_S.JOINING, _E.JOINED): _S.STABLE,
        **{(state, _E.FENCED): _S.JOINING for state in _ACTIVE},
        **{(state, _E.LEAVE): _S.LEAVING for state in _ACTIVE},
        (_S.FAILED, _E.LEAVE): _S.LEFT,
        (_S.LEAVING, _E.LEFT): _S.LEFT,
        **{(state, _E.FAIL): _S.FAILED for state in (*_ACTIVE, _S.LEAVING)},
    },
)

_FENCING = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class ShareMember(BaseMember[ShareMemberState, ShareMemberEvent]):
    """One member. `Assign` has all of its partitions. `Lost` only precedes `Fail`: after errors that pass, everything
    that was acquired stays acquired.

    Args:
        settings: Group and rack. Session timeout and heartbeat interval are the coordinator's.
        member_id: A UUID in Kafka's notation (base64), new for each run.
        topics: The topics it subscribes to.
    """

    def __init__(self, settings: MemberSettings, member_id: str, topics: frozenset[str]) -> None:
        super().__init__(SHARE_GROUP_MEMBER, _E.FAIL, _E.LEFT, settings, topics)
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self.topic_ids: Mapping[str, bytes] = {}
        """The ids of the topics of its partitions."""
        self._names: dict[bytes, str] = {}
        self._target: tuple[TopicIdPartitions, ...] = ()
        self._resolving = False
        self._sends_topics = True  # the coordinator may not have the subscription
        self._interval_s = settings.heartbeat_interval_s

    def __repr__(self) -> str:
        group, count = self.settings.group, len(self.owned)
        return f"<ShareMember {self.member_id} of {group}: {self.state.name}, epoch {self.epoch}, {count} partitions>"

    # ---- calls ----

    def resolved(self, names: Mapping[bytes, str]) -> None:
        """Apply the names of topics that `ResolveTopics` requested. Topics that are still unknown wait until the
        response to the next heartbeat; they are requested again then."""
        self._resolving = False
        self._names.update(names)
        if self.state is _S.STABLE:
            self._assign_known()

    def leave(self) -> None:
        """Leave the group."""
        self._go(_E.LEAVE)
        joined = self.epoch != JOIN_EPOCH or self._may_have_joined or not self._in_flight.is_free
        if self.state is _S.LEAVING and not joined:
            self._go(_E.LEFT)

    def connection_lost(self, now: float, backoff_s: float = 0.1) -> None:
        """Handle the loss of the request in flight. The next heartbeat names the topics again."""
        sent = self._in_flight.complete(self)
        self._sends_topics = True
        self._may_have_joined |= isinstance(sent, ShareGroupHeartbeatRequest)
        if self.state is _S.LEAVING and _tried_to_leave(sent):
            self._go(_E.LEFT)  # the coordinator removes the member when its session times out
        elif not self.has_ended:
            self._find_coordinator(now, backoff_s)

    # ---- requests ----

    def _next_step(self, now: float) -> None:
        if self.coordinator is None:
            self._send(FindCoordinatorRequest(key=self.settings.group))
        elif now >= self._heartbeat_at or self.state in (_S.JOINING, _S.LEAVING):
            self._heartbeat_at = now + self._interval_s
            self._send(self._heartbeat(), self.coordinator)

    def _heartbeat_due(self) -> float:
        return self._heartbeat_at

    def _after_revoke(self, revoke: Revoke) -> None:
        raise LocalProtocolError(f"{self!r}: a share group revokes nothing")

    def _heartbeat(self) -> ShareGroupHeartbeatRequest:
        names_topics, self._sends_topics = self._sends_topics, False
        leaves = self.state is _S.LEAVING
        return ShareGroupHeartbeatRequest(
            group_id=self.settings.group,
            member_id=self.member_id,
            member_epoch=LEAVE_EPOCH if leaves else self.epoch,
            rack_id=self.settings.rack if names_topics else None,
            subscribed_topic_names=tuple(sorted(self.topics)) if names_topics and not leaves else None,
        )

    # ---- responses ----

    def _read(self, sent: Request[Any], response: Response, now: float, backoff_s: float) -> None:
        match response:
            case FindCoordinatorResponse():
                if code := self._read_coordinator(response):
                    self._react(ErrorCode(code), now, backoff_s, response.error_message)
            case ShareGroupHeartbeatResponse():
                self._receive_heartbeat(sent, response, now, backoff_s)
            case _:
                raise LocalProtocolError(f"{type(response).__name__} is not a response to {type(sent).__name__}")

    def _receive_heartbeat(
        self, sent: Request[Any], response: ShareGroupHeartbeatResponse, now: float, backoff_s: float
    ) -> None:
        if self.state is _S.LEAVING:
            self._leave_answered(response.error_code, now, backoff_s, tried=_tried_to_leave(sent))
        elif response.error_code:
            self._react(ErrorCode(response.error_code), now, backoff_s, response.error_message)
        else:
            self._receive_assignment(response, now)

    def _receive_assignment(self, response: ShareGroupHeartbeatResponse, now: float) -> None:
        self._unknown_errors, self.epoch = 0, response.member_epoch
        if response.heartbeat_interval_ms > 0:
            self._interval_s = response.heartbeat_interval_ms / 1000
        self._heartbeat_at = now + self._interval_s
        joins = self.state is _S.JOINING
        if joins:
            self._go(_E.JOINED)
        if response.assignment is not None:
            self._target = response.assignment.topic_partitions
        unknown = frozenset(topic.topic_id for topic in self._target if topic.topic_id not in self._names)
        if unknown and not self._resolving:
            self._resolving = True
            self._effects.append(ResolveTopics(unknown))
        self._assign_known(joins=joins)

    def _assign_known(self, *, joins: bool = False) -> None:
        """Take the part of the assignment whose topics have known names."""
        names = self._names
        known = [topic for topic in self._target if topic.topic_id in names]
        wanted = frozenset(TopicPartition(names[t.topic_id], number) for t in known for number in t.partitions)
        ids = {names[topic.topic_id]: topic.topic_id for topic in known}
        if joins or wanted != self.owned or ids != self.topic_ids:
            self.owned, self.topic_ids = wanted, ids
            self._effects.append(Assign(wanted))

    def _react(self, error: ErrorCode, now: float, backoff_s: float, text: str | None = None) -> None:
        self._sends_topics = True  # the coordinator may not have read the refused heartbeat
        self._unknown_errors = self._unknown_errors + 1 if error == ErrorCode.UNKNOWN_SERVER_ERROR else 0
        what = f"heartbeat of share group {self.settings.group}"
        gone = error == ErrorCode.GROUP_ID_NOT_FOUND and self.state is _S.STABLE  # the group was deleted
        if error in _FENCING or gone:
            if self.state is _S.JOINING:
                self._in_flight.back_off(now, backoff_s)
            self._go(_E.FENCED)
            self.epoch, self._target = JOIN_EPOCH, ()
        elif error in MOVED:
            self._find_coordinator(now, backoff_s)
        elif error.retriable or 0 < self._unknown_errors <= MAX_UNKNOWN_ERRORS:
            self._in_flight.back_off(now, backoff_s)
        elif error == ErrorCode.UNSUPPORTED_VERSION:
            self._fail(Unsupported("a share group", "Kafka 4.1, and share.version 1"))
        else:
            self._fail(broker_error(error, f"{what}: {text}" if text else what))


def _tried_to_leave(sent: Request[Any]) -> bool:
    """Return True if a leaving member is not to try again after this request, whatever its outcome."""
    return not isinstance(sent, ShareGroupHeartbeatRequest) or sent.member_epoch == LEAVE_EPOCH
