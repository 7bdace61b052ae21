"""One member of a classic consumer group, from the search for its coordinator to leaving (specification 5.2, 5.3).

Under the eager protocol a member gives up everything before it joins again; under the cooperative one (KIP-429) it
keeps all, gives up only what the new assignment lacks, and then joins again so that others can get the rest.
Heartbeats are sent whenever the member has a generation and no other request is in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from odradek.core.kafka.assignors import Assignor, GroupMember, Topics
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.group_effects import Assign, Compute, Effect, Fail, GroupCoordinator, Lost, Revoke, Send
from odradek.core.kafka.member_states import (
    ACTIVE,
    MEMBER,
    REACTIONS,
    ClassicMemberEvent,
    ClassicMemberState,
    MemberReaction,
    MemberSettings,
)
from odradek.core.kafka.subscription import decode_assignment, decode_member, encode_assignment, encode_subscription
from odradek.core.kafka.transaction_requests import GroupMetadata
from odradek.errors import ConfigError, Fenced, LocalProtocolError, OdradekError
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.wire.kafka.schema import Request, Response

__all__ = ["Member"]

PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1
JOIN_MARGIN_S = 5.0  # a response to JoinGroup may take the rebalance timeout and a little longer

_S, _E = ClassicMemberState, ClassicMemberEvent


class Member:
    """One member.

    Args:
        settings: Group, timeouts and rack.
        assignors: The supported assignors, the preferred one first. It is cooperative if all of them are.
        topics: The topics it subscribes to.
    """

    def __init__(self, settings: MemberSettings, assignors: Sequence[Assignor], topics: frozenset[str]) -> None:
        if not assignors or not settings.group:
            raise ConfigError("a group member needs a group id and at least one assignor")
        self.settings, self.topics = settings, topics
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self.cooperative = all(assignor.cooperative for assignor in assignors)
        self.state = MEMBER.start
        self.member_id, self.generation = "", NO_GENERATION
        self.coordinator: GroupCoordinator | None = None
        self.owned: frozenset[TopicPartition] = frozenset()
        self._previous: tuple[TopicPartition, ...] = ()
        self._previous_generation = NO_GENERATION
        self._effects: list[Effect] = []
        self._in_flight: Request[Any] | None = None
        self._retry_at = 0.0
        self._heartbeat_at = 0.0
        self._session_ends = 0.0
        self._rejoin = self._is_leader = False
        self._protocol = ""
        self._members: list[GroupMember] = []
        self._shares: tuple[SyncGroupRequestAssignment, ...] = ()
        self._partition_counts: dict[str, int] = {}
        self._member_lists, self._leave_reason = True, ""

    def __repr__(self) -> str:
        return (
            f"<Member {self.member_id or '(no id)'} of {self.settings.group}: {self.state.name}, "
            f"generation {self.generation}, {len(self.owned)} partitions>"
        )

    @property
    def fence(self) -> GroupMetadata:
        """The token sent with commits: brokers refuse it after the generation is lost."""
        return GroupMetadata(self.settings.group, self.generation, self.member_id, self.settings.instance_id)

    # ---- what happens outside ----

    def subscribe(self, topics: frozenset[str]) -> None:
        """Change the subscription; the member joins again."""
        self._rejoin = self._rejoin or topics != self.topics
        self.topics = topics

    def metadata_changed(self, topics: Topics) -> None:
        """Apply the current partition counts of topics. The leader lets the group join again if they differ
        from what it shared out."""
        if self._is_leader and self._partition_counts:
            now = {topic: len(topics.get(topic, ())) for topic in self._partition_counts}
            self._rejoin = self._rejoin or now != self._partition_counts

    def rejoin(self) -> None:
        """Join again for a reason of the caller, such as a commit refused with REBALANCE_IN_PROGRESS."""
        self._rejoin = True

    def fenced(self, token: GroupMetadata, code: int) -> None:
        """Handle a commit with this token that was refused because the member or its generation is gone."""
        if self.state in (_S.JOINING, _S.SYNCING):
            return  # the request in flight will be refused in the same way
        if (token.generation, token.member_id) == (self.generation, self.member_id) and self.state in ACTIVE:
            self._react(ErrorCode(code), "OffsetCommit", 0.0, 0.0)

    def assign(self, topics: Topics) -> None:
        """Share out the partitions, as `Compute` asked."""
        if self.state is not _S.ASSIGNING:
            return  # lost or left meanwhile
        assignment = self._assignors[self._protocol].assign(topics, self._members)
        self._partition_counts = {topic: len(topics.get(topic, ())) for m in self._members for topic in m.topics}
        self._shares = tuple(
            SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
            for member, partitions in assignment.items()
        )
        self._go(_E.COMPUTED)

    def revoked(self) -> None:
        """Continue after everything the last `Revoke` named is given up and committed."""
        if self.state is not _S.REVOKING:
            return  # lost or left meanwhile
        if not self.cooperative:
            self.owned = frozenset()
        self._go(_E.REVOKED)

    def leave(self, *, member_lists: bool, reason: str = "") -> None:
        """Leave the group, after everything was committed. A static member keeps its place for its restart.

        Args:
            member_lists: `BrokerVersions.has_member_lists` of the coordinator.
            reason: For the broker's log.
        """
        self._go(_E.LEAVE)
        self._member_lists, self._leave_reason = member_lists, reason
        if self.state is _S.LEAVING and (not self.member_id or self.settings.instance_id or self.coordinator is None):
            self._go(_E.LEFT)

    # ---- effects ----

    def poll(self, now: float) -> list[Effect]:
        """Return the effects to carry out now, in this order."""
        if self._in_flight is None and now >= self._retry_at:
            self._next_step(now)
        effects, self._effects = self._effects, []
        return effects

    def tick(self, now: float) -> float | None:
        """Return when to poll again at the latest; None if only a response or a call can change anything."""
        if self._in_flight is not None or self.state in (_S.LEFT, _S.FAILED):
            return None
        if now < self._retry_at:
            return self._retry_at
        return self._heartbeat_at if self.generation != NO_GENERATION else None

    def receive(self, response: Response, now: float, backoff_s: float = 0.1) -> None:
        """Handle the response to the request in flight.

        Args:
            response: The response.
            now: The time (s).
            backoff_s: How long to wait if the error asks for a wait (s); the caller adds its jitter.
        """
        sent = self._take_in_flight()
        if self.state in (_S.LEFT, _S.FAILED):
            return
        match response:
            case FindCoordinatorResponse():
                self._receive_coordinator(response, now, backoff_s)
            case JoinGroupResponse():
                self._receive_join(response, now, backoff_s)
            case SyncGroupResponse():
                self._receive_sync(response, now, backoff_s)
            case HeartbeatResponse():
                self._receive_heartbeat(response, now, backoff_s)
            case LeaveGroupResponse():
                self._go(_E.LEFT)
            case _:
                raise LocalProtocolError(f"{type(response).__name__} is no answer to {type(sent).__name__}")

    def connection_lost(self, now: float, backoff_s: float = 0.1) -> None:
        """Handle the loss of the request in flight. The member keeps its id: within the session timeout
        its place in the group is kept too."""
        sent = self._take_in_flight()
        if self.state is _S.LEAVING and isinstance(sent, LeaveGroupRequest):
            self._go(_E.LEFT)
        elif self.state in ACTIVE:
            self._react(ErrorCode.NETWORK_EXCEPTION, sent.SPEC.name, now, backoff_s)

    # ---- inside: steps ----

    def _next_step(self, now: float) -> None:
        if self.state in (_S.LEFT, _S.FAILED):
            return
        if self.state is _S.LEAVING:
            self._send(self._leave_group(), self.coordinator)
        elif self.coordinator is None:
            self._send(FindCoordinatorRequest(key=self.settings.group))
        elif self.state is _S.STABLE and self._rejoin:
            self._prepare_rejoin()
            self._next_step(now)
        elif self.state is _S.UNJOINED:
            self._go(_E.JOIN)
            self._rejoin = False
            self._send(self._join(), self.coordinator, self.settings.rebalance_timeout_s + JOIN_MARGIN_S)
        elif self.state is _S.SYNCING:
            self._send(self._sync(), self.coordinator, self.settings.rebalance_timeout_s + JOIN_MARGIN_S)
        elif now >= self._heartbeat_at:
            self._heartbeat(now)

    def _prepare_rejoin(self) -> None:
        """Join again, after giving up everything under the eager protocol; the user data says what that was."""
        if self.cooperative or not self.owned:
            self._go(_E.REJOIN)
        else:
            self._go(_E.REVOKE)
            self._effects.append(Revoke(self.owned))

    def _heartbeat(self, now: float) -> None:
        if now >= self._session_ends:
            self.coordinator = None  # no answer for a whole session: it may have moved
            self._next_step(now)
            return
        self._heartbeat_at = now + self.settings.heartbeat_interval_s
        request = HeartbeatRequest(
            group_id=self.settings.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.settings.instance_id,
        )
        self._send(request, self.coordinator)

    def _send(
        self, request: Request[Any], node: GroupCoordinator | None = None, timeout_s: float | None = None
    ) -> None:
        self._in_flight = request
        self._effects.append(Send(request, node, timeout_s))

    def _join(self) -> JoinGroupRequest:
        protocols = tuple(
            JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=encode_subscription(
                    assignor,
                    self.topics,
                    owned=sorted(self.owned) if self.cooperative else (),
                    previous=self._previous,
                    generation=self._previous_generation,
                    rack=self.settings.rack,
                ),
            )
            for assignor in self._assignors.values()
        )
        return JoinGroupRequest(
            group_id=self.settings.group,
            session_timeout_ms=round(self.settings.session_timeout_s * 1000),
            rebalance_timeout_ms=round(self.settings.rebalance_timeout_s * 1000),
            member_id=self.member_id,
            group_instance_id=self.settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
        )

    def _sync(self) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self.settings.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol,
            assignments=self._shares,
        )

    def _leave_group(self) -> LeaveGroupRequest:
        if not self._member_lists:
            return LeaveGroupRequest(group_id=self.settings.group, member_id=self.member_id)
        identity = MemberIdentity(member_id=self.member_id, reason=self._leave_reason or None)
        return LeaveGroupRequest(group_id=self.settings.group, members=(identity,))

    # ---- inside: answers ----

    def _receive_coordinator(self, response: FindCoordinatorResponse, now: float, backoff_s: float) -> None:
        if response.error_code:
            self._react(ErrorCode(response.error_code), "FindCoordinator", now, backoff_s)
            return
        self.coordinator = GroupCoordinator(response.node_id, response.host, response.port)
        self._alive(now)

    def _receive_join(self, response: JoinGroupResponse, now: float, backoff_s: float) -> None:
        if self.state is _S.LEAVING:
            self.member_id = response.member_id or self.member_id  # of the member that is to leave
            return
        if response.error_code:
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self._retry_at = now + backoff_s if self.member_id else now  # asked again, with an id: no hurry
                self.member_id = response.member_id
            self._react(ErrorCode(response.error_code), "JoinGroup", now, backoff_s)
            return
        self.member_id, self.generation = response.member_id, response.generation_id
        self._protocol, self._shares, self._members = response.protocol_name or "", (), []
        self._partition_counts = {}
        self._is_leader = response.leader == response.member_id
        self._alive(now)
        if self._protocol not in self._assignors:
            self._fail(
                ConfigError(f"group {self.settings.group} uses {self._protocol!r}, which this member did not offer")
            )
        elif self._is_leader and not response.skip_assignment:
            self._lead(response)
        else:
            self._go(_E.FOLLOW)

    def _lead(self, response: JoinGroupResponse) -> None:
        assignor = self._assignors[self._protocol]
        self._members = [decode_member(assignor, member) for member in response.members]
        self._go(_E.LEAD)
        self._effects.append(Compute(frozenset(topic for member in self._members for topic in member.topics)))

    def _receive_sync(self, response: SyncGroupResponse, now: float, backoff_s: float) -> None:
        if self.state is _S.LEAVING:
            return
        if response.error_code:
            self._react(ErrorCode(response.error_code), "SyncGroup", now, backoff_s)
            return
        target = frozenset(decode_assignment(response.assignment))
        gone, new = self.owned - target, target - self.owned
        self._go(_E.SYNCED)
        self._alive(now)
        self.owned, self._previous, self._previous_generation = target, tuple(sorted(target)), self.generation
        if gone:
            self._go(_E.REVOKE)
            self._effects.append(Revoke(gone))
        self._effects.append(Assign(new))

    def _receive_heartbeat(self, response: HeartbeatResponse, now: float, backoff_s: float) -> None:
        if not response.error_code:
            self._session_ends = now + self.settings.session_timeout_s
        elif self.state in ACTIVE:
            self._react(ErrorCode(response.error_code), "Heartbeat", now, backoff_s)

    def _alive(self, now: float) -> None:
        self._heartbeat_at = now + self.settings.heartbeat_interval_s
        self._session_ends = now + self.settings.session_timeout_s

    def _react(self, error: ErrorCode, api: str, now: float, backoff_s: float) -> None:
        reaction = REACTIONS.get(error, MemberReaction.FAIL)
        if self.state in (_S.JOINING, _S.SYNCING):
            self._go(_E.RETRY)
        match reaction:
            case MemberReaction.RETRY:
                self._retry_at = now + backoff_s
            case MemberReaction.FIND_COORDINATOR:
                self.coordinator = None
                self._retry_at = now + backoff_s
            case MemberReaction.REJOIN:
                self._rejoin = True
                self._retry_at = now + (backoff_s if api == "JoinGroup" else 0)
            case MemberReaction.NEW_GENERATION | MemberReaction.NEW_MEMBER:
                if not self.member_id:
                    self._retry_at = now + backoff_s  # nothing that could be wrong was said
                self._lose(forget_id=reaction is MemberReaction.NEW_MEMBER)
            case MemberReaction.FENCED:
                self._fail(
                    Fenced(f"group instance {self.settings.instance_id}", f"{api} was answered with {error.name}")
                )
            case MemberReaction.FAIL:
                self._fail(broker_error(error, f"{api} of group {self.settings.group}"))

    def _lose(self, *, forget_id: bool) -> None:
        """Drop everything: the coordinator does not know the generation, or the member."""
        self.generation = NO_GENERATION
        if forget_id:
            self.member_id = ""
        if self.owned:
            self._effects.append(Lost(self.owned))
            self.owned = frozenset()
        self._go(_E.LOST)

    def _fail(self, error: OdradekError) -> None:
        if self.owned:
            self._effects.append(Lost(self.owned))
            self.owned = frozenset()
        self.generation = NO_GENERATION
        self._go(_E.FAIL)
        self._effects.append(Fail(error))

    def _take_in_flight(self) -> Request[Any]:
        if self._in_flight is None:
            raise LocalProtocolError(f"{self!r}: an answer, but no request is out")
        sent, self._in_flight = self._in_flight, None
        return sent

    def _go(self, event: ClassicMemberEvent) -> None:
        self.state = MEMBER.after(self.state, event)
