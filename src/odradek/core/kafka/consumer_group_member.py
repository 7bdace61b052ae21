"""Member of a consumer group under KIP-848, in which the coordinator assigns (kafka-specification.md 4.8).

Heartbeats carry everything. A request has what changed since the last one; a response may have a new target assignment.
The member first gives up what the target lacks, then takes what is new, and after each step sends at once what it owns.
Only then does the coordinator assign to other members what was given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.group_effects import Assign, ResolveTopics, Revoke
from odradek.core.kafka.member_base import BaseMember
from odradek.core.kafka.member_states import MAX_UNKNOWN_ERRORS, MOVED, NO_SUCH_GROUP, MemberSettings, loss_reason
from odradek.core.kafka.transaction_requests import GroupMetadata
from odradek.core.states import Machine
from odradek.errors import Fenced, LocalProtocolError, Unsupported
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import TopicIdPartitions
from odradek.wire.kafka.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from odradek.wire.kafka.schema import Request, Response

__all__ = ["CONSUMER_GROUP_MEMBER", "ConsumerGroupEvent", "ConsumerGroupMember", "ConsumerGroupState"]

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class ConsumerGroupState(Enum):
    """States of a member."""

    JOINING = "the next heartbeat joins, with epoch 0"
    STABLE = "owns what it may own of its target"
    RESOLVING = "the target has topic ids without a known name"
    REVOKING = "waits until partitions are given up"
    LEAVING = "the next heartbeat leaves"
    LEFT = "has left"
    FAILED = "stopped by an error"


class ConsumerGroupEvent(Enum):
    """Events of a member."""

    JOINED = "the coordinator gave an epoch"
    UNRESOLVED = "target with unknown topic ids"
    RESOLVED = "names requested"
    REVOKE = "target lacks owned partitions"
    REVOKED = "partitions given up"
    FENCED = "epoch, member or group unknown"
    LEAVE = "leave"
    LEFT = "left, or without anything to leave"
    FAIL = "a permanent error"


_S, _E = ConsumerGroupState, ConsumerGroupEvent
_JOINED = (_S.STABLE, _S.RESOLVING, _S.REVOKING)
_ACTIVE = (_S.JOINING, *_JOINED)

CONSUMER_GROUP_MEMBER: Machine[ConsumerGroupState, ConsumerGroupEvent] = Machine(
    "consumer group member",
    _S.JOINING,
    {
        (_S.JOINING, _E.JOINED): _S.STABLE,
        (_S.STABLE, _E.UNRESOLVED): _S.RESOLVING,
        (_S.RESOLVING, _E.RESOLVED): _S.STABLE,
        (_S.STABLE, _E.REVOKE): _S.REVOKING,
        (_S.REVOKING, _E.REVOKED): _S.STABLE,
        **{(state, _E.FENCED): _S.JOINING for state in _ACTIVE},
        **{(state, _E.LEAVE): _S.LEAVING for state in _ACTIVE},
        (_S.FAILED, _E.LEAVE): _S.LEFT,
        (_S.LEAVING, _E.LEFT): _S.LEFT,
        **{(state, _E.FAIL): _S.FAILED for state in (*_ACTIVE, _S.LEAVING)},
    },
)

_FENCING = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class ConsumerGroupMember(BaseMember[ConsumerGroupState, ConsumerGroupEvent]):
    """One member.

    Args:
        settings: Group, rebalance timeout and rack. Session timeout and heartbeat interval are the coordinator's.
        member_id: A UUID as text, new for each run; "" for coordinators that assign ids (3.7 to 3.9).
        topics: The topics it subscribes to.
        regex: Pattern of further topics, in the syntax of RE2; "" for none.
        server_assignor: The coordinator's assignor to use; None for its default.
    """

    def __init__(
        self,
        settings: MemberSettings,
        member_id: str,
        topics: frozenset[str],
        *,
        regex: str = "",
        server_assignor: str | None = None,
    ) -> None:
        super().__init__(CONSUMER_GROUP_MEMBER, _E.FAIL, _E.LEFT, settings, topics)
        self.member_id, self.regex, self.server_assignor = member_id, regex, server_assignor
        self.epoch = JOIN_EPOCH
        self._target: tuple[TopicIdPartitions, ...] | None = None
        self._names: dict[bytes, str] = {}
        # The partitions of a heartbeat and of the target are kept, with what they were made of: there may be thousands,
        # and a heartbeat is made several times in an interval.
        self._listed: tuple[object, tuple[TopicIdPartitions, ...]] = None, ()
        self._named: tuple[object, frozenset[TopicPartition]] = None, frozenset()
        self._sent: Mapping[str, Any] = {}  # the fields that the coordinator has
        self._had_regex = bool(regex)
        self._interval_s = settings.heartbeat_interval_s
        self._is_assigned = False  # since it joined: also of a target without anything for it

    def __repr__(self) -> str:
        return (
            f"<ConsumerGroupMember {self.member_id or '(no id)'} of {self.settings.group}: {self.state.name}, "
            f"epoch {self.epoch}, {len(self.owned)} partitions>"
        )

    @property
    def fence(self) -> GroupMetadata:
        """The token to send with commits. After STALE_MEMBER_EPOCH a commit may be repeated with a newer one."""
        return GroupMetadata(self.settings.group, self.epoch, self.member_id, self.settings.instance_id)

    @property
    def heartbeat(self) -> ConsumerGroupHeartbeatRequest | None:
        """The heartbeat that keeps the member in its group, also if it is sent on another connection; None while it has
        no epoch. It has every field: the coordinator takes it with the previous epoch, too."""
        return self._heartbeat(self.epoch, self._fields()) if self.state in _JOINED else None

    # ---- calls ----

    def heartbeat_answered(self, request: Request[Any], response: Response | None) -> None:
        """Record that a `heartbeat` was sent that is no effect of this member: the next one is sent at once. It has
        every field, so that its response repeats the assignment, and the error.

        Args:
            request: The heartbeat.
            response: Its response; None if there is none, or none yet: the coordinator may be an epoch ahead.
        """
        if self.state not in _JOINED:
            return
        self._say_everything()
        if isinstance(response, ConsumerGroupHeartbeatResponse):
            self.epoch = max(self.epoch, response.member_epoch)

    def subscribe(self, topics: frozenset[str], regex: str = "") -> None:
        """Change the subscription. The next heartbeat carries it, and is sent at once."""
        if (topics, regex) != (self.topics, self.regex):
            self.topics, self.regex, self._heartbeat_at = topics, regex, 0.0
            self._had_regex = self._had_regex or bool(regex)

    def commit_refused(self, token: GroupMetadata, code: int) -> bool:
        """Handle an error in a response to OffsetCommit: the next heartbeat is sent at once, if its response can have
        the newer epoch or say that the member is gone.

        Args:
            token: The token that was sent. A refusal for an older epoch says nothing about this one.
            code: The error. One that only the commit has to react to changes nothing here.

        Returns:
            False: a newer token is no answer to an error that ends the partitions of the member.
        """
        if self.state in _ACTIVE and code in MOVED:
            self.coordinator = None
        elif token == self.fence and (code in _FENCING or code == ErrorCode.STALE_MEMBER_EPOCH):
            self._heartbeat_at = 0.0
        return False

    def resolved(self, names: Mapping[bytes, str]) -> None:
        """Apply the names of topics that `ResolveTopics` requested. Topics that are still unknown wait until the
        response to the next heartbeat; they are requested again then."""
        self._names.update(names)
        self._listed, self._named = (None, ()), (None, frozenset())
        if self.state is _S.RESOLVING:
            self._go(_E.RESOLVED)
            self._reconcile()

    def leave(self) -> None:
        """Leave the group, after everything was committed. The partitions of a static member stay assigned to it until
        it restarts or its session times out."""
        joined = self.epoch != JOIN_EPOCH or self._sent or self._may_have_joined
        self._go(_E.LEAVE)
        self._revoking = None
        if self.state is _S.LEAVING and not joined:
            self._go(_E.LEFT)

    # ---- responses ----

    def _read(self, sent: Request[Any], response: Response, now: float, backoff_s: float) -> None:
        match response:
            case FindCoordinatorResponse():
                if code := self._read_coordinator(response):
                    self._react(ErrorCode(code), now, backoff_s)
            case ConsumerGroupHeartbeatResponse():
                self._receive_heartbeat(sent, response, now, backoff_s)
            case _:
                raise LocalProtocolError(f"{type(response).__name__} is not a response to {type(sent).__name__}")

    def connection_lost(self, now: float, backoff_s: float = 0.1) -> None:
        """Handle the loss of the request in flight. The next heartbeat has every field again."""
        sent = self._in_flight.complete(self)
        self._sent = {}
        self._may_have_joined |= isinstance(sent, ConsumerGroupHeartbeatRequest)
        if self.state is _S.LEAVING and _tried_to_leave(sent):
            self._go(_E.LEFT)
        elif not self.has_ended:
            self._find_coordinator(now, backoff_s)

    # ---- inside: requests ----

    def _next_step(self, now: float) -> None:
        if self.coordinator is None:
            self._send(FindCoordinatorRequest(key=self.settings.group))
        elif now >= self._heartbeat_at or self.state in (_S.JOINING, _S.LEAVING):
            self._heartbeat_at = now + self._interval_s
            self._send(self._next_heartbeat(), self.coordinator)

    def _heartbeat_due(self) -> float:
        return self._heartbeat_at

    def _after_revoke(self, revoke: Revoke) -> None:
        self.owned -= revoke.partitions
        self._go(_E.REVOKED)
        self._heartbeat_at = 0.0  # acknowledge at once
        self._reconcile()

    def _say_everything(self) -> None:
        """Send the next heartbeat at once, and with every field."""
        self._sent, self._heartbeat_at = {}, 0.0

    def _next_heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        """Return the heartbeat that leaves, or one with the fields that differ from those sent last."""
        if self.state is _S.LEAVING:
            return self._heartbeat(STATIC_LEAVE_EPOCH if self.settings.instance_id else LEAVE_EPOCH, {})
        before, self._sent = self._sent, self._fields()
        changed = {name: value for name, value in self._sent.items() if name not in before or before[name] != value}
        return self._heartbeat(self.epoch, changed)

    def _heartbeat(self, epoch: int, fields: Mapping[str, Any]) -> ConsumerGroupHeartbeatRequest:
        """Return a heartbeat. A field that is left out has a default that stands for "unchanged"."""
        return ConsumerGroupHeartbeatRequest(
            group_id=self.settings.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.settings.instance_id,
            **fields,
        )

    def _fields(self) -> Mapping[str, Any]:
        """Return all fields that the coordinator remembers."""
        return {
            "rack_id": self.settings.rack,
            "rebalance_timeout_ms": round(self.settings.rebalance_timeout_s * 1000),
            "subscribed_topic_names": tuple(sorted(self.topics)),
            "subscribed_topic_regex": self.regex if self._had_regex else None,
            "server_assignor": self.server_assignor,
            "topic_partitions": self._owned_by_id(),
        }

    def _owned_by_id(self) -> tuple[TopicIdPartitions, ...]:
        if self._listed[0] is not self.owned:
            ids = {name: topic_id for topic_id, name in self._names.items()}
            topics: dict[bytes, list[int]] = {}
            for partition in sorted(self.owned):
                topics.setdefault(ids[partition.topic], []).append(partition.partition)
            parts = [TopicIdPartitions(topic_id=i, partitions=tuple(n)) for i, n in topics.items()]
            self._listed = self.owned, tuple(parts)
        return self._listed[1]

    # ---- inside: responses ----

    def _receive_heartbeat(
        self, sent: Request[Any], response: ConsumerGroupHeartbeatResponse, now: float, backoff_s: float
    ) -> None:
        if self.state is _S.LEAVING:
            self._leave_answered(response.error_code, now, backoff_s, tried=_tried_to_leave(sent))
            return
        if response.error_code == ErrorCode.FENCED_MEMBER_EPOCH and self._was_overtaken(sent):
            self._say_everything()
        elif response.error_code:
            self._react(ErrorCode(response.error_code), now, backoff_s, response.error_message)
        else:
            self._receive_assignment(response, now)

    def _receive_assignment(self, response: ConsumerGroupHeartbeatResponse, now: float) -> None:
        self._unknown_errors = 0
        self.member_id = response.member_id or self.member_id
        self.epoch = max(self.epoch, response.member_epoch)
        if response.heartbeat_interval_ms > 0:
            self._interval_s = response.heartbeat_interval_ms / 1000
        self._heartbeat_at = min(self._heartbeat_at, now + self._interval_s)
        if not self._sent:  # `heartbeat_answered` since this one left: a later one may have given back what this gives
            return
        if self.state is _S.JOINING:
            self._go(_E.JOINED)
            self._is_assigned = False
        if response.assignment is not None:
            self._target = response.assignment.topic_partitions
        if self._target is not None and self.state is _S.STABLE:
            unknown = frozenset(topic.topic_id for topic in self._target if topic.topic_id not in self._names)
            if unknown:
                self._go(_E.UNRESOLVED)
                self._effects.append(ResolveTopics(unknown))
        self._reconcile()

    def _was_overtaken(self, sent: Request[Any]) -> bool:
        """Return True if the coordinator may have refused a heartbeat only because another one, on another connection,
        was answered before it: it has an older epoch, or it lacks the partitions, without which coordinators do not
        take the epoch before theirs."""
        assert isinstance(sent, ConsumerGroupHeartbeatRequest)
        return sent.member_epoch < self.epoch or sent.topic_partitions is None

    def _reconcile(self) -> None:
        """Take the next step towards the known part of the target: give up what it lacks, then take what is new."""
        if self.state is not _S.STABLE:
            return  # the step in progress ends with another call
        # The coordinator gives a partition to its next member only after a heartbeat without it (KIP-848), and that one
        # waits for the user, who may have to commit first. The member takes new partitions afterwards: a heartbeat that
        # names them acknowledges the whole target.
        wanted = self.owned if self._target is None else self._wanted(self._target)
        if self._is_assigned and wanted is self.owned:
            return
        if self.owned - wanted:
            self._go(_E.REVOKE)
            self._revoke(self.owned - wanted)
            return
        if new := wanted - self.owned:
            self._heartbeat_at = 0.0  # acknowledge at once
        if new or not self._is_assigned:  # a member of the group, although nothing may be left for it
            self._effects.append(Assign(new))
            self._is_assigned = True
        self.owned = wanted

    def _wanted(self, target: tuple[TopicIdPartitions, ...]) -> frozenset[TopicPartition]:
        if self._named[0] is not target:
            known = [(self._names[t.topic_id], t.partitions) for t in target if t.topic_id in self._names]
            self._named = target, frozenset([TopicPartition(name, n) for name, numbers in known for n in numbers])
        return self._named[1]

    def _react(self, error: ErrorCode, now: float, backoff_s: float, text: str | None = None) -> None:
        self._sent = {}  # the coordinator may not have read the refused heartbeat
        self._unknown_errors = self._unknown_errors + 1 if error == ErrorCode.UNKNOWN_SERVER_ERROR else 0
        if error in _FENCING or (error in NO_SUCH_GROUP and self.state is not _S.JOINING):
            if self.state is _S.JOINING:
                self._in_flight.back_off(now, backoff_s)  # a heartbeat that joins cannot name a wrong epoch
            self._drop(loss_reason(error))
            self._go(_E.FENCED)
            self._target, self.epoch = None, JOIN_EPOCH
        elif error in MOVED:
            self._find_coordinator(now, backoff_s)
        elif self._passes(error):
            # Also until the session of this one's predecessor has timed out, where a static member joins.
            self._in_flight.back_off(now, backoff_s)
        elif error == ErrorCode.UNSUPPORTED_VERSION:
            self._fail(Unsupported('group_protocol="consumer"', "Kafka 4.0, with group.version 1 or later"))
        elif error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
            self._fail(Fenced(f"group instance {self.settings.instance_id}", text or error.name))
        else:
            what = f"heartbeat of group {self.settings.group}"
            self._fail(broker_error(error, f"{what}: {text}" if text else what))

    def _passes(self, error: ErrorCode) -> bool:
        """Return True if the same heartbeat may succeed later."""
        if error == ErrorCode.UNKNOWN_SERVER_ERROR:
            return self._unknown_errors <= MAX_UNKNOWN_ERRORS
        return error.retriable or (error == ErrorCode.UNRELEASED_INSTANCE_ID and self.state is _S.JOINING)


def _tried_to_leave(sent: Request[Any]) -> bool:
    """Return True if a leaving member is not to try again after this request, whatever its outcome."""
    return not isinstance(sent, ConsumerGroupHeartbeatRequest) or sent.member_epoch < 0
