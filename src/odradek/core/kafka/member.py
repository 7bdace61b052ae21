"""Member of a classic consumer group, from the search for its coordinator to leaving (kafka-specification.md 5.2, 5.3).

Under the eager protocol a member gives up all its partitions before it joins again. Under the cooperative protocol
(KIP-429) it keeps them, gives up only what the new assignment lacks, and then joins once more so that other members get
those. Heartbeats are sent whenever the member has a generation and no other request is in flight.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from odradek.core.kafka.assignors import Assignment, Assignor, Topics
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.group_effects import Assign, Compare, Compute, Revoke
from odradek.core.kafka.group_leader import GroupLeader
from odradek.core.kafka.member_base import BaseMember
from odradek.core.kafka.member_requests import heartbeat_request, join_request, leave_request, sync_request
from odradek.core.kafka.member_states import (
    ACTIVE,
    MAX_UNKNOWN_ERRORS,
    MEMBER,
    ClassicMemberEvent,
    ClassicMemberState,
    MemberReaction,
    MemberSettings,
    loss_reason,
    reaction_to,
)
from odradek.core.kafka.subscription import decode_assignment, decode_member, encode_subscription
from odradek.core.kafka.transaction_requests import GroupMetadata
from odradek.errors import ConfigError, Fenced, LocalProtocolError, RemoteProtocolError
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from odradek.wire.kafka.schema import Request, Response

__all__ = ["Member"]

NO_GENERATION = -1
JOIN_MARGIN_S = 5.0  # a response to JoinGroup may take the rebalance timeout and a little longer

_S, _E = ClassicMemberState, ClassicMemberEvent
_GONE = (MemberReaction.NEW_GENERATION, MemberReaction.NEW_MEMBER, MemberReaction.FENCED)


class Member(BaseMember[ClassicMemberState, ClassicMemberEvent]):
    """One member.

    Args:
        settings: Group, timeouts and rack.
        assignors: The supported assignors, the preferred one first. It is cooperative if all of them are.
        topics: The topics it subscribes to.
    """

    def __init__(self, settings: MemberSettings, assignors: Sequence[Assignor], topics: frozenset[str]) -> None:
        if not assignors or not settings.group:
            raise ConfigError("a group member needs a group id and at least one assignor")
        super().__init__(MEMBER, _E.FAIL, _E.LEFT, settings, topics)
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self.cooperative = all(assignor.cooperative for assignor in assignors)
        self.generation = NO_GENERATION
        self._previous: tuple[TopicPartition, ...] = ()
        self._previous_generation = NO_GENERATION
        self._session_ends = 0.0
        self._rejoin = False
        self._protocol = ""
        self._leader: GroupLeader | None = None
        self._leader_id = ""
        self._took_over = False  # the place of its predecessor, with the same instance id
        self._assignment: Assignment = {}
        self._member_lists, self._leave_reason = True, ""

    def __repr__(self) -> str:
        return (
            f"<Member {self.member_id or '(no id)'} of {self.settings.group}: {self.state.name}, "
            f"generation {self.generation}, {len(self.owned)} partitions>"
        )

    @property
    def fence(self) -> GroupMetadata:
        """The token to send with commits of partitions that the member owns now. Brokers refuse it once the
        generation has ended."""
        return GroupMetadata(self.settings.group, self.generation, self.member_id, self.settings.instance_id)

    @property
    def heartbeat(self) -> HeartbeatRequest | None:
        """The heartbeat that keeps the member in its group, also if it is sent on another connection; None while it has
        no generation."""
        return None if self.generation == NO_GENERATION else heartbeat_request(self.fence)

    # ---- calls ----

    def heartbeat_answered(self, request: Request[Any], response: Response | None) -> None:
        """Handle the response to a `heartbeat` that was not an effect of this member; None if there is none yet."""
        if isinstance(response, HeartbeatResponse) and response.error_code and request == self.heartbeat:
            self.commit_refused(self.fence, response.error_code)

    def subscribe(self, topics: frozenset[str]) -> None:
        """Change the subscription; the member joins again, also if a JoinGroup without it is in flight."""
        self._rejoin = self._rejoin or topics != self.topics
        self.topics = topics

    def metadata_changed(self, topics: Topics) -> None:
        """Apply the current partition counts of topics. The leader joins again if they are not those it assigned;
        before it has assigned, they are without effect, because it computes from counts that are at least as new."""
        if self.state in (_S.SYNCING, _S.STABLE) and self._leader is not None and self._leader.must_rejoin(topics):
            self._rejoin = True

    def commit_refused(self, token: GroupMetadata, code: int) -> bool:
        """Handle an error in a response to OffsetCommit.

        Args:
            token: The token that was sent. A refusal for an older generation says nothing about this one.
            code: The error. One that only the commit has to react to changes nothing here.

        Returns:
            True if a newer token may be accepted: this member has left the generation of `token` behind, or is about
            to. A group of members of both protocols begins the next generation of a classic member when its JoinGroup
            arrives, and refuses the one before from then on.
        """
        reaction = reaction_to(ErrorCode(code))
        joins = self.state in (_S.UNJOINED, _S.JOINING, _S.SYNCING)
        is_older = token != self.fence and self.generation != NO_GENERATION
        if reaction in _GONE and (joins or is_older):  # JoinGroup or SyncGroup will tell if the member is gone
            return self.state in ACTIVE and reaction is not MemberReaction.FENCED
        if self.state not in (_S.UNJOINED, _S.REVOKING, _S.ASSIGNING, _S.STABLE):
            return False  # it leaves; or it joins, and the request in flight gets the same answer
        if reaction is MemberReaction.FIND_COORDINATOR:
            self.coordinator = None
        elif token != self.fence or self.generation == NO_GENERATION:
            return False
        elif reaction in _GONE:
            self._react(ErrorCode(code), "OffsetCommit", 0.0, 0.0)
        elif reaction is MemberReaction.REJOIN and self.state is _S.STABLE:
            self._rejoin = True
        return False

    def assign(self, topics: Topics) -> None:
        """Compute the assignment of the group, as `Compute` requests. Without effect if the generation has ended."""
        if self.state is _S.ASSIGNING and self._leader is not None:
            self._assignment = self._leader.assign(topics)
            self._go(_E.COMPUTED)

    def compare(self, members: Mapping[str, Collection[TopicPartition]], topics: Topics) -> None:
        """Join again, as `Compare` requests, if a partition belongs to no member, or if the leader is none of them.

        A coordinator gives a static member the place of its predecessor without a rebalance, also if it subscribes to
        other topics (KAFKA-12759), or if topics have got more partitions meanwhile. Before 3.2 it tells the one that
        leads the id of its predecessor as that of the leader (KIP-814): then no member would notice new partitions.

        Args:
            members: The partitions of all members, by their ids.
            topics: The topics of `Compare`.
        """
        if self.state is not _S.STABLE or not self._took_over:
            return
        assigned = {partition for partitions in members.values() for partition in partitions}
        wanted = {TopicPartition(topic, number) for topic, racks in topics.items() for number in range(len(racks))}
        grows = self._leader is not None and self._leader.must_rejoin(topics)  # from now on: these are the first counts
        self._rejoin = self._rejoin or grows or self._leader_id not in members or not wanted <= assigned

    def leave(self, *, member_lists: bool, reason: str = "") -> None:
        """Leave the group, after everything was committed. A static member sends nothing: its partitions stay assigned
        to it until it restarts or its session times out.

        Args:
            member_lists: `BrokerVersions.has_member_lists` of the coordinator.
            reason: For the broker's log.
        """
        self._go(_E.LEAVE)
        self._revoking = None
        self._member_lists, self._leave_reason = member_lists, reason
        if self.state is _S.LEAVING and (not self.member_id or self.settings.instance_id):
            self._go(_E.LEFT)

    # ---- responses ----

    def _read(self, sent: Request[Any], response: Response, now: float, backoff_s: float) -> None:
        if not getattr(response, "error_code", 0):
            self._unknown_errors = 0
        match response:
            case FindCoordinatorResponse():
                self._receive_coordinator(response, now, backoff_s)
            case JoinGroupResponse():
                self._receive_join(response, now, backoff_s)
            case SyncGroupResponse():
                self._receive_sync(response, now, backoff_s)
            case HeartbeatResponse():
                self._receive_heartbeat(sent, response, now, backoff_s)
            case LeaveGroupResponse():
                self._leave_answered(response.error_code, now, backoff_s)
            case _:
                raise LocalProtocolError(f"{type(response).__name__} is not a response to {type(sent).__name__}")

    def connection_lost(self, now: float, backoff_s: float = 0.1) -> None:
        """Handle the loss of the request in flight. The member keeps its id: it stays in the group if it is back
        within the session timeout."""
        sent = self._in_flight.complete(self)
        if self.state is _S.LEAVING and isinstance(sent, LeaveGroupRequest | FindCoordinatorRequest):
            self._go(_E.LEFT)  # the coordinator removes the member when its session times out
        elif self.state in ACTIVE:
            self._react(ErrorCode.NETWORK_EXCEPTION, sent.SPEC.name, now, backoff_s)

    # ---- inside: steps ----

    def _after_revoke(self, revoke: Revoke) -> None:
        if not self.cooperative:
            self.owned = frozenset()
        self._go(_E.REVOKED)

    def _heartbeat_due(self) -> float | None:
        return self._heartbeat_at if self.generation != NO_GENERATION else None

    def _next_step(self, now: float) -> None:
        if self.coordinator is None:
            self._send(FindCoordinatorRequest(key=self.settings.group))
        elif self.state is _S.LEAVING:
            leave = leave_request(self.fence, member_lists=self._member_lists, reason=self._leave_reason)
            self._send(leave, self.coordinator)
        elif self.state is _S.STABLE and self._rejoin:
            self._prepare_rejoin()
            self._next_step(now)
        elif self.state is _S.UNJOINED:
            self._go(_E.JOIN)
            self._rejoin = False
            join = join_request(self.settings, self.member_id, self._subscriptions())
            self._send(join, self.coordinator, self.settings.rebalance_timeout_s + JOIN_MARGIN_S)
        elif self.state is _S.SYNCING:
            sync = sync_request(self.fence, self._protocol, self._assignment)
            self._send(sync, self.coordinator, self.settings.rebalance_timeout_s + JOIN_MARGIN_S)
        elif now >= self._heartbeat_at:
            self._heartbeat(now)

    def _prepare_rejoin(self) -> None:
        """Join again; under the eager protocol after giving up everything."""
        if self.cooperative or not self.owned:
            self._go(_E.REJOIN)
        else:
            self._go(_E.REVOKE)
            self._revoke(self.owned)

    def _heartbeat(self, now: float) -> None:
        if now >= self._session_ends:
            self.coordinator = None  # no response for a whole session timeout: it may have moved
            self._next_step(now)
            return
        self._heartbeat_at = now + self.settings.heartbeat_interval_s
        self._send(heartbeat_request(self.fence), self.coordinator)

    def _subscriptions(self) -> dict[str, bytes]:
        return {
            name: encode_subscription(
                assignor,
                self.topics,
                owned=sorted(self.owned) if self.cooperative else (),
                previous=self._previous,
                generation=self._previous_generation,
                rack=self.settings.rack,
            )
            for name, assignor in self._assignors.items()
        }

    # ---- inside: responses ----

    def _receive_coordinator(self, response: FindCoordinatorResponse, now: float, backoff_s: float) -> None:
        if code := self._read_coordinator(response):
            self._react(ErrorCode(code), "FindCoordinator", now, backoff_s)
        else:
            self._confirm_session(now)

    def _receive_join(self, response: JoinGroupResponse, now: float, backoff_s: float) -> None:
        if self.state is _S.LEAVING:
            self.member_id = response.member_id or self.member_id  # LeaveGroup must name the current id
        elif response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            first = not self.member_id and response.member_id
            self._in_flight.back_off(now, 0.0 if first else backoff_s)
            self.member_id = response.member_id
            self._go(_E.RETRY)
        elif response.error_code:
            self._react(ErrorCode(response.error_code), "JoinGroup", now, backoff_s)
        else:
            self._joined(response, now)

    def _joined(self, response: JoinGroupResponse, now: float) -> None:
        leads = response.leader == response.member_id and not response.skip_assignment
        self._took_over = self.settings.instance_id is not None and not self.member_id and not leads
        self.member_id, self.generation = response.member_id, response.generation_id
        self._protocol, self._leader_id = response.protocol_name or "", response.leader
        self._assignment, self._leader = {}, None
        self._confirm_session(now)
        assignor = self._assignors.get(self._protocol)
        if assignor is None:
            self._fail(
                ConfigError(f"group {self.settings.group} uses {self._protocol!r}, which this member did not offer")
            )
            return
        if response.leader != response.member_id:
            self._go(_E.FOLLOW)
            return
        try:
            self._leader = GroupLeader(assignor, [decode_member(assignor, member) for member in response.members])
        except RemoteProtocolError as error:
            self._fail(error)
            return
        self._go(_E.FOLLOW if response.skip_assignment else _E.LEAD)
        if not response.skip_assignment:
            self._effects.append(Compute(self._leader.topics))

    def _receive_sync(self, response: SyncGroupResponse, now: float, backoff_s: float) -> None:
        if self.state is _S.LEAVING:
            return
        if response.error_code:
            self._react(ErrorCode(response.error_code), "SyncGroup", now, backoff_s)
            return
        try:
            target = frozenset(decode_assignment(response.assignment))
        except RemoteProtocolError as error:
            self._fail(error)
            return
        if self._took_over:
            before, target = target, frozenset([each for each in target if each.topic in self.topics])
            self._rejoin = self._rejoin or target != before
        removed, added = self.owned - target, target - self.owned
        self._go(_E.SYNCED)
        self._confirm_session(now)
        self.owned, self._previous, self._previous_generation = target, tuple(sorted(target)), self.generation
        if removed:
            self._go(_E.REVOKE)
            self._revoke(removed)
        self._effects.append(Assign(added))
        if self._took_over:
            self._effects.append(Compare(self.topics if self._leader is None else self._leader.topics))

    def _receive_heartbeat(self, sent: Request[Any], response: HeartbeatResponse, now: float, backoff_s: float) -> None:
        error = ErrorCode(response.error_code)
        if not error:
            self._session_ends = now + self.settings.session_timeout_s
        elif self.state not in ACTIVE or not isinstance(sent, HeartbeatRequest):
            return
        elif (sent.generation_id, sent.member_id) != (self.generation, self.member_id):
            return  # the generation ended meanwhile
        elif error != ErrorCode.REBALANCE_IN_PROGRESS or self.state is _S.STABLE:
            # Brokers before 2.5 also send REBALANCE_IN_PROGRESS until the leader's SyncGroup has arrived.
            self._react(error, "Heartbeat", now, backoff_s)

    def _confirm_session(self, now: float) -> None:
        self._heartbeat_at = now + self.settings.heartbeat_interval_s
        self._session_ends = now + self.settings.session_timeout_s

    def _react(self, error: ErrorCode, api: str, now: float, backoff_s: float) -> None:
        reaction = reaction_to(error)
        self._unknown_errors = self._unknown_errors + 1 if error == ErrorCode.UNKNOWN_SERVER_ERROR else 0
        if self._unknown_errors > MAX_UNKNOWN_ERRORS:
            reaction = MemberReaction.FAIL
        if api in ("JoinGroup", "SyncGroup"):
            self._go(_E.RETRY)
        match reaction:
            case MemberReaction.RETRY:
                self._in_flight.back_off(now, backoff_s)
            case MemberReaction.FIND_COORDINATOR:
                self._find_coordinator(now, backoff_s)
            case MemberReaction.REJOIN:
                self._rejoin = True
                self._in_flight.back_off(now, backoff_s if api == "JoinGroup" else 0.0)
            case MemberReaction.NEW_GENERATION | MemberReaction.NEW_MEMBER:
                if not self.member_id:
                    self._in_flight.back_off(now, backoff_s)  # a request without an id cannot name a wrong one
                self._lose(loss_reason(error), forget_id=reaction is MemberReaction.NEW_MEMBER)
            case MemberReaction.FENCED:
                self._fail(
                    Fenced(f"group instance {self.settings.instance_id}", f"{api} was answered with {error.name}")
                )
            case MemberReaction.FAIL:
                failure = broker_error(error, f"{api} of group {self.settings.group}")
                failure.hint = _hint(error, self.settings, self._assignors)
                self._fail(failure)

    def _lose(self, reason: str, *, forget_id: bool) -> None:
        """Drop everything: the coordinator does not know the generation, or the member."""
        if forget_id:
            self.member_id = ""
        self._drop(reason)
        self._go(_E.LOST)

    def _drop(self, reason: str) -> None:
        self.generation = NO_GENERATION
        super()._drop(reason)


def _hint(error: ErrorCode, settings: MemberSettings, assignors: Iterable[str]) -> str:
    """Return what to do about an error that ends a member, or an empty string."""
    if error == ErrorCode.INVALID_SESSION_TIMEOUT:
        return (
            f"Tuning.session_timeout is {settings.session_timeout_s:g} s: brokers take what is between their "
            "group.min.session.timeout.ms and group.max.session.timeout.ms"
        )
    if error == ErrorCode.GROUP_MAX_SIZE_REACHED:
        return "the brokers' group.max.size is the number of members that a group may have"
    if error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
        return (
            f"this member offers {' and '.join(assignors)}: all members need an assignor in common (the option "
            "assignors), and the group has to be one of consumers"
        )
    return ""
