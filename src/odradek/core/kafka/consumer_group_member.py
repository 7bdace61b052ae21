"""One member of a group under the protocol of KIP-848: the coordinator assigns, heartbeats carry everything.

A heartbeat says what changed since the last one; its answer may hold a new target. The member gives up what the
target lacks, takes what is new, and says so at once with the list of what it owns; only then does the coordinator
hand to others what was given up (specification 4.8).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.group_effects import Assign, Effect, Fail, GroupCoordinator, Lost, ResolveTopics, Revoke, Send
from odradek.core.kafka.member_states import MemberSettings
from odradek.core.kafka.transaction_requests import GroupMetadata
from odradek.core.states import Machine
from odradek.errors import Fenced, LocalProtocolError, OdradekError, Unsupported
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
    STABLE = "owns what the coordinator wants it to own"
    RESOLVING = "the target names topics that are not known"
    REVOKING = "waits until partitions are given up"
    LEAVING = "the next heartbeat leaves"
    LEFT = "done"
    FAILED = "stopped by an error"


class ConsumerGroupEvent(Enum):
    """Events of a member."""

    JOINED = "the coordinator gave an epoch"
    UNRESOLVED = "target with unknown topics"
    RESOLVED = "topics known"
    REVOKE = "target lacks partitions"
    REVOKED = "partitions given up"
    FENCED = "the epoch or the member is gone"
    LEAVE = "leave"
    LEFT = "left, or not worth waiting for"
    FAIL = "an error that does not pass"


_S, _E = ConsumerGroupState, ConsumerGroupEvent
_ACTIVE = (_S.JOINING, _S.STABLE, _S.RESOLVING, _S.REVOKING)

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
_MOVED = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})


class ConsumerGroupMember:
    """One member.

    Args:
        settings: How it takes part; session timeout and heartbeat interval are the coordinator's.
        member_id: A UUID as text, new for each run; "" for coordinators that assign ids (3.7 to 3.9).
        topics: What it subscribes to.
        regex: What it subscribes to, in the syntax of RE2; "" for none.
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
        self.settings, self.member_id = settings, member_id
        self.topics, self.regex, self.server_assignor = topics, regex, server_assignor
        self.state = CONSUMER_GROUP_MEMBER.start
        self.epoch = JOIN_EPOCH
        self.coordinator: GroupCoordinator | None = None
        self.owned: frozenset[TopicPartition] = frozenset()
        self._revoking: frozenset[TopicPartition] = frozenset()
        self._target: tuple[TopicIdPartitions, ...] | None = None
        self._names: dict[bytes, str] = {}
        self._said: dict[str, object] = {}
        self._effects: list[Effect] = []
        self._in_flight: Request[Any] | None = None
        self._heartbeat_at = self._retry_at = 0.0
        self._interval_s = settings.heartbeat_interval_s

    def __repr__(self) -> str:
        return (
            f"<ConsumerGroupMember {self.member_id or '(no id)'} of {self.settings.group}: {self.state.name}, "
            f"epoch {self.epoch}, {len(self.owned)} partitions>"
        )

    @property
    def fence(self) -> GroupMetadata:
        """The token that goes with commits. After STALE_MEMBER_EPOCH a commit may be repeated with a newer one."""
        return GroupMetadata(self.settings.group, self.epoch, self.member_id, self.settings.instance_id)

    # ---- what happens outside ----

    def subscribe(self, topics: frozenset[str], regex: str = "") -> None:
        """Change the subscription; the next heartbeat says so, at once."""
        if (topics, regex) != (self.topics, self.regex):
            self.topics, self.regex, self._heartbeat_at = topics, regex, 0.0

    def resolved(self, names: Mapping[bytes, str]) -> None:
        """Apply the names of topics that `ResolveTopics` asked for. Those still missing are requested again
        with the next heartbeat's answer."""
        self._names.update(names)
        if self.state is _S.RESOLVING:
            self._go(_E.RESOLVED)
            self._reconcile()

    def revoked(self) -> None:
        """Continue after everything the last `Revoke` named is given up and committed."""
        if self.state is _S.REVOKING:
            self.owned -= self._revoking
            self._go(_E.REVOKED)
            self._heartbeat_at = 0.0  # says at once what is owned now
            self._reconcile()

    def leave(self) -> None:
        """Leave the group, after everything was committed. A static member keeps its place for its restart."""
        joined = self.epoch != JOIN_EPOCH and self.coordinator is not None
        self._go(_E.LEAVE)
        if self.state is _S.LEAVING and not joined:
            self._go(_E.LEFT)

    # ---- effects ----

    def poll(self, now: float) -> list[Effect]:
        """Return what to do now, in this order."""
        if self._in_flight is None and now >= self._retry_at and self.state not in (_S.LEFT, _S.FAILED):
            if self.coordinator is None:
                self._send(FindCoordinatorRequest(key=self.settings.group))
            elif now >= self._heartbeat_at or self.state in (_S.JOINING, _S.LEAVING):
                self._heartbeat_at = now + self._interval_s
                self._send(self._heartbeat(), self.coordinator)
        effects, self._effects = self._effects, []
        return effects

    def tick(self, now: float) -> float | None:
        """Return when to poll again at the latest; None when only an answer or a call can change anything."""
        if self._in_flight is not None or self.state in (_S.LEFT, _S.FAILED):
            return None
        return self._retry_at if now < self._retry_at else self._heartbeat_at

    def receive(self, response: Response, now: float, backoff_s: float = 0.1) -> None:
        """Handle the response to the request in flight.

        Args:
            response: The answer.
            now: The time (s).
            backoff_s: How long to wait where the error asks for a wait (s); the caller adds its jitter.
        """
        sent = self._take_in_flight()
        if self.state in (_S.LEFT, _S.FAILED):
            return
        match response:
            case FindCoordinatorResponse():
                if response.error_code and self.state is _S.LEAVING:
                    self._go(_E.LEFT)  # without a coordinator there is nothing to leave
                elif response.error_code:
                    self._react(ErrorCode(response.error_code), now, backoff_s)
                else:
                    self.coordinator = GroupCoordinator(response.node_id, response.host, response.port)
            case ConsumerGroupHeartbeatResponse():
                self._receive_heartbeat(sent, response, now, backoff_s)
            case _:
                raise LocalProtocolError(f"{type(response).__name__} is no answer to {type(sent).__name__}")

    def connection_lost(self, now: float, backoff_s: float = 0.1) -> None:
        """Handle the loss of the request in flight. The next heartbeat repeats everything."""
        sent = self._take_in_flight()
        self._said.clear()
        if self.state is _S.LEAVING and _is_leaving(sent):
            self._go(_E.LEFT)
        elif self.state not in (_S.LEFT, _S.FAILED):
            self._find_coordinator(now, backoff_s)

    # ---- inside: requests ----

    def _send(self, request: Request[Any], node: GroupCoordinator | None = None) -> None:
        self._in_flight = request
        self._effects.append(Send(request, node))

    def _heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        if self.state is _S.LEAVING:
            epoch = STATIC_LEAVE_EPOCH if self.settings.instance_id else LEAVE_EPOCH
            return ConsumerGroupHeartbeatRequest(
                group_id=self.settings.group,
                member_id=self.member_id,
                member_epoch=epoch,
                instance_id=self.settings.instance_id,
            )
        return ConsumerGroupHeartbeatRequest(
            group_id=self.settings.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.settings.instance_id,
            rack_id=self._if_new("rack", self.settings.rack),
            rebalance_timeout_ms=self._if_new("timeout", round(self.settings.rebalance_timeout_s * 1000)) or -1,
            subscribed_topic_names=self._if_new("topics", tuple(sorted(self.topics))),
            subscribed_topic_regex=self._if_new("regex", self.regex or ("" if "regex" in self._said else None)),
            server_assignor=self._if_new("assignor", self.server_assignor),
            topic_partitions=self._if_new("owned", self._owned_by_id()),
        )

    def _if_new(self, field: str, value: Any) -> Any:
        """Return the value when the coordinator does not know it yet, else None for "unchanged"."""
        if field in self._said and self._said[field] == value:
            return None
        self._said[field] = value
        return value

    def _owned_by_id(self) -> tuple[TopicIdPartitions, ...]:
        ids = {name: topic_id for topic_id, name in self._names.items()}
        topics: dict[bytes, list[int]] = {}
        for partition in sorted(self.owned):
            topics.setdefault(ids[partition.topic], []).append(partition.partition)
        return tuple(TopicIdPartitions(topic_id=i, partitions=tuple(n)) for i, n in topics.items())

    # ---- inside: answers ----

    def _receive_heartbeat(
        self, sent: Request[Any], response: ConsumerGroupHeartbeatResponse, now: float, backoff_s: float
    ) -> None:
        if self.state is _S.LEAVING:
            if _is_leaving(sent):
                self._go(_E.LEFT)
            return
        if response.error_code:
            self._react(ErrorCode(response.error_code), now, backoff_s, response.error_message)
            return
        self.member_id, self.epoch = response.member_id or self.member_id, response.member_epoch
        self._interval_s = response.heartbeat_interval_ms / 1000
        self._heartbeat_at = min(self._heartbeat_at, now + self._interval_s)
        if self.state is _S.JOINING:
            self._go(_E.JOINED)
        if response.assignment is not None:
            self._target = response.assignment.topic_partitions
        self._reconcile()

    def _reconcile(self) -> None:
        """Take the next step towards the target: find names, give up, take."""
        if self._target is None or self.state is not _S.STABLE:
            return  # a step is under way; the target is checked again after it
        unknown = frozenset(topic.topic_id for topic in self._target if topic.topic_id not in self._names)
        if unknown:
            self._go(_E.UNRESOLVED)
            self._effects.append(ResolveTopics(unknown))
            return
        wanted = self._wanted()
        if self.owned - wanted:
            self._revoking = self.owned - wanted
            self._go(_E.REVOKE)
            self._effects.append(Revoke(self._revoking))
        elif wanted - self.owned:
            self._effects.append(Assign(wanted - self.owned))
            self.owned = wanted
            self._heartbeat_at = 0.0  # says at once what is owned now

    def _wanted(self) -> frozenset[TopicPartition]:
        names, target = self._names, self._target or ()
        return frozenset(
            TopicPartition(names[t.topic_id], n) for t in target for n in t.partitions if t.topic_id in names
        )

    def _react(self, error: ErrorCode, now: float, backoff_s: float, text: str | None = None) -> None:
        self._said.clear()  # what the refused heartbeat said may have to be said again
        if error in _FENCING:
            if self.state is _S.JOINING:
                self._retry_at = now + backoff_s  # nothing that could be wrong was said
            self._lose()
            self._go(_E.FENCED)
            self._target, self.epoch = None, JOIN_EPOCH
        elif error in _MOVED:
            self._find_coordinator(now, backoff_s)
        elif error.retriable:
            self._retry_at = now + backoff_s
        elif error == ErrorCode.UNSUPPORTED_VERSION:
            self._fail(Unsupported("the consumer group protocol of KIP-848", "a cluster with group.version 1 or later"))
        elif error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
            self._fail(Fenced(f"group instance {self.settings.instance_id}", text or error.name))
        else:
            what = f"heartbeat of group {self.settings.group}"
            self._fail(broker_error(error, f"{what}: {text}" if text else what))

    def _find_coordinator(self, now: float, backoff_s: float) -> None:
        self.coordinator = None
        self._retry_at = now + backoff_s
        self._heartbeat_at = 0.0

    def _lose(self) -> None:
        if self.owned:
            self._effects.append(Lost(self.owned))
            self.owned = frozenset()

    def _fail(self, error: OdradekError) -> None:
        self._lose()
        self._go(_E.FAIL)
        self._effects.append(Fail(error))

    def _take_in_flight(self) -> Request[Any]:
        if self._in_flight is None:
            raise LocalProtocolError(f"{self!r}: an answer, but no request is out")
        sent, self._in_flight = self._in_flight, None
        return sent

    def _go(self, event: ConsumerGroupEvent) -> None:
        self.state = CONSUMER_GROUP_MEMBER.after(self.state, event)


def _is_leaving(request: Request[Any]) -> bool:
    return isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch < 0
