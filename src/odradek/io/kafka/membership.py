"""A member of a consumer group (Kafka 0.9 and later): `core.interfaces.Membership`.

`core.kafka.member` decides, or where brokers assign `core.kafka.consumer_group_member` (KIP-848). This module sends
the requests of the member, calls the listener, and reports back. A task of the cluster does the former, so that
heartbeats go on while the listener gives up partitions, and while a consumer commits for the last time. `run` does the
latter, one call at a time, in the order in which the member decided.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from random import random
from typing import Any, TypeVar
from uuid import uuid4

import anyio

from odradek.core.interfaces import Assignment, RebalanceListener, Subscription
from odradek.core.kafka.consumer_group_member import ConsumerGroupMember, ConsumerGroupState
from odradek.core.kafka.group_effects import (
    Assign,
    Compute,
    Effect,
    Fail,
    GroupCoordinator,
    Lost,
    ResolveTopics,
    Revoke,
    Send,
)
from odradek.core.kafka.group_protocol import GroupProtocol, assignors_of, falls_back, group_protocol
from odradek.core.kafka.member import Member
from odradek.core.kafka.member_states import ClassicMemberState, MemberSettings
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.errors import GroupError, OdradekError
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.group_topics import GroupTopics, replica_racks
from odradek.io.kafka.heartbeat_thread import Heartbeat, HeartbeatThread
from odradek.io.kafka.offsets import CoordinatorAccess, KafkaOffsets
from odradek.io.notifier import Notifier
from odradek.types import Broker, Position, TopicPartition
from odradek.wire.kafka.messages.groups import JoinGroupRequest, SyncGroupRequest
from odradek.wire.kafka.schema import Response

__all__ = ["KafkaMembership", "Spawn"]

log = logging.getLogger("odradek.group")

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Function that runs a coroutine function in the background, until it returns or the cluster is closed."""

T = TypeVar("T")


class KafkaMembership:
    """One member of one group.

    The member exists from `run` until `leave`; in between it stays in the group, also after `run` was cancelled.

    Args:
        access: The way to the coordinator.
        topics: The topics of the group.
        subscription: The group and its topics.
        settings: Timeouts.
        spawn: Runs what keeps the member in its group.
        number: Tells members of one cluster apart: each has a connection of its own.

    Raises:
        ConfigError: The subscription names an unknown assignor.
    """

    def __init__(
        self,
        access: CoordinatorAccess,
        topics: GroupTopics,
        subscription: Subscription,
        settings: MemberSettings,
        *,
        spawn: Spawn,
        number: int,
    ) -> None:
        self._access, self._topics, self._spawn = access, topics, spawn
        self._subscription, self._settings = subscription, settings
        self._assignors = assignors_of(subscription.assignors)
        self._group, self._purpose = subscription.group, f"group {subscription.group} member {number}"
        self._offsets = KafkaOffsets(access, subscription.group, subscription.commit_metadata)
        self._member = self._make_member(GroupProtocol.CLASSIC)  # until `run` asks what the brokers have
        self._steps: deque[Revoke | Assign] = deque()  # for the listener
        self._assigned: dict[TopicPartition, int] = {}  # what the listener has, with its stream
        self._listener: RebalanceListener | None = None
        self._decided = Notifier()  # there is something to do for `run`
        self._reported = Notifier()  # the member may have something to do
        self._started = self._leaving = self._ended = False
        self._sending: Send | None = None
        self._broker: Broker | None = None  # to which the connection of this member leads
        self._error: Exception | None = None
        self._problem = ""
        self._generation = self._failures = self._losses = 0
        self._heartbeats = HeartbeatThread(
            subscription.group,
            access.connections.for_thread,
            interval_s=settings.heartbeat_interval_s,
            max_blocked_s=subscription.max_blocked_s,
            rebalance_timeout_s=settings.rebalance_timeout_s,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._member!r}>"

    @property
    def consumer_id(self) -> str:
        """The id that the coordinator gave this member; empty before it has joined."""
        return self._member.member_id

    @property
    def problem(self) -> str:
        """The last error, until a request succeeds; empty while nothing is wrong."""
        return self._problem

    async def run(self, listener: RebalanceListener) -> None:
        """Join, and call `listener`, until cancelled. Cancellation: the member stays in the group until `leave`.

        Raises:
            Unsupported, ConfigError: See `group_protocol`.
            Fenced: Another process has this member's identity.
            BrokerError, ConfigError: The group does not accept this member; trying again cannot change that.
        """
        protocol = group_protocol(self._subscription, self._settings, self._access.versions())
        if self._subscription.topics is None:
            await self._retry(self._topics.read_all)
        self._listener = listener
        if not self._started:
            self._started = True
            self._member = self._make_member(protocol)
            self._spawn(self._keep_membership)
        try:
            while True:
                version = self._decided.version
                if self._error is not None:
                    raise self._error
                if self._steps:
                    await self._carry_out(self._steps.popleft(), listener)
                else:
                    await self._decided.wait(version)
        finally:
            self._listener = None

    def _make_member(self, protocol: GroupProtocol) -> Member | ConsumerGroupMember:
        topics = self._topics.selected()
        if protocol is GroupProtocol.CLASSIC:
            return Member(self._settings, self._assignors, topics)
        if self._subscription.include is None:
            return ConsumerGroupMember(self._settings, str(uuid4()), topics)
        return ConsumerGroupMember(self._settings, str(uuid4()), frozenset(), regex=self._subscription.include)

    async def leave(self) -> None:
        """Leave the group. Does nothing if it never joined. Cancellation: it leaves in the background."""
        self._assigned.clear()
        self._steps.clear()
        if not self._started:
            return
        self._leaving = True
        self._reported.notify()
        while not self._ended:
            await self._decided.wait(self._decided.version)

    def _begin_to_leave(self) -> None:
        """Have the member leave, once it has its id: only the answer to its JoinGroup says that on brokers before 2.2,
        and they would keep a member that does not leave until its session has timed out."""
        if self._member.has_ended or self._member.is_leaving:
            return
        if isinstance(self._member, ConsumerGroupMember):
            self._member.leave()
            return
        sending = None if self._sending is None else self._sending.request
        if isinstance(sending, JoinGroupRequest) and not sending.member_id:
            return
        node = self._member.coordinator
        versions = (node and self._connection(node).versions) or self._access.versions()
        self._member.leave(member_lists=versions.has_member_lists, reason="the consumer left its block")
        if isinstance(sending, JoinGroupRequest | SyncGroupRequest):
            # A coordinator reads nothing more from a connection whose JoinGroup or SyncGroup waits for other members.
            self._disconnect()

    # ---- positions -------------------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions of assigned partitions, fenced by the generation of the member.

        Raises:
            GroupError: A partition is not assigned to this member (any more).
            BrokerError: The group has removed this member, or refuses the positions. Nothing more of them is stored.
            TransportError, DeadlineError: They may be stored or not.
        """
        await self._offsets.commit(positions, token=lambda: self.token(positions), refused=self._commit_refused)

    def shares(self, access: CoordinatorAccess) -> bool:
        """Return True if this member belongs to the cluster of these coordinators."""
        return self._access.coordinators is access.coordinators

    def offsets(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Offset]:
        """Return positions as this member stores them."""
        return self._offsets.with_epochs(positions)

    def token(self, positions: Mapping[TopicPartition, Position]) -> GroupMetadata:
        """Return the current generation, if the member has all these partitions in it; else raise GroupError."""
        if foreign := sorted(positions.keys() - self._assigned.keys()):
            raise GroupError(f"group {self._group}: {foreign[0]} does not belong to this member: not committed")
        return self._member.fence

    def _commit_refused(self, token: GroupMetadata, code: int) -> None:
        self._member.commit_refused(token, code)
        self._reported.notify()

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """Return the committed positions; None where none was ever committed. See `KafkaOffsets.fetch`."""
        return await self._offsets.fetch(partitions)

    # ---- the listener ----------------------------------------------------------------------------------------

    async def _carry_out(self, step: Revoke | Assign, listener: RebalanceListener) -> None:
        if isinstance(step, Revoke):
            if revoked := step.partitions & self._assigned.keys():
                await listener.revoke(revoked)
            for partition in revoked:
                self._assigned.pop(partition, None)
            self._member.revoked(step)
            self._reported.notify()
        else:
            await self._assign(step, listener)

    async def _assign(self, step: Assign, listener: RebalanceListener) -> None:
        """Give the listener what is still owned, with positions read now."""
        losses = self._losses
        committed = await self._retry(
            lambda: self._read_committed(step.partitions), needed=lambda: losses == self._losses
        )
        if committed is None or losses != self._losses:
            return
        added = sorted(step.partitions & self._member.owned)
        streams = self._choose_streams(added)
        self._assigned.update(streams)
        self._generation += 1
        log.info(
            "%s owns %d partitions, generation %d", self._group, len(self._assigned), self._member.fence.generation
        )
        await listener.assign(Assignment(self._generation, streams, {p: committed[p] for p in added}))

    async def _read_committed(self, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, Position | None]:
        await self._topics.find({p.topic for p in partitions})
        return await self.committed(sorted(partitions))

    def _choose_streams(self, added: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the stream of each new partition: of those of its topic, the one with the fewest."""
        wanted = self._subscription
        counts = wanted.topics or {}
        used = Counter((p.topic, stream) for p, stream in self._assigned.items())
        chosen: dict[TopicPartition, int] = {}
        for partition in added:
            streams = [(partition.topic, stream) for stream in range(counts.get(partition.topic, wanted.streams))]
            fewest = min(streams, key=used.__getitem__)
            chosen[partition] = fewest[1]
            used[fewest] += 1
        return chosen

    def _lose(self, partitions: frozenset[TopicPartition]) -> None:
        """Take partitions from the listener at once, and what it was to do about them."""
        self._steps.clear()
        self._losses += 1
        lost = partitions & self._assigned.keys()
        for partition in lost:
            del self._assigned[partition]
        if lost and self._listener is not None:
            log.warning("%s: lost %d partitions: the group has removed this member", self._group, len(lost))
            self._listener.lost(lost)

    # ---- the member ------------------------------------------------------------------------------------------

    async def _keep_membership(self) -> None:
        """Run the member, in the background of the cluster: no error may leave this task."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._guard, self._follow_metadata)
                await self._guard(self._carry_out_effects, tasks)
                tasks.cancel_scope.cancel()
        finally:
            self._heartbeats.stop()
            self._disconnect()
            self._ended = True
            self._decided.notify()

    async def _carry_out_effects(self, tasks: anyio.abc.TaskGroup) -> None:
        """Do what the member decides, until it has left or failed."""
        if self._subscription.max_blocked_s > 0:
            self._heartbeats.start()
        while True:
            version = self._reported.version
            now = anyio.current_time()
            if self._leaving:
                self._begin_to_leave()
            for effect in self._member.poll(now):
                self._begin(effect, tasks)
            if self._member.has_ended or self._error is not None:
                return
            self._report_to_thread()
            wake_at = self._member.tick(now)
            wait_s = math.inf if wake_at is None else max(0.0, wake_at - now)
            await self._reported.wait(version, min(wait_s, self._settings.heartbeat_interval_s))

    def _report_to_thread(self) -> None:
        """Show that this loop runs, and apply what the thread was answered while it did not."""
        member, heartbeat = self._member, None
        if member.coordinator is not None and (request := member.heartbeat) is not None:
            heartbeat = Heartbeat(request, _broker(member.coordinator))
        answer = self._heartbeats.loop_runs(heartbeat)
        if answer is not None:
            member.heartbeat_answered(answer.request, answer.response)
            self._reported.notify()

    def _begin(self, effect: Effect, tasks: anyio.abc.TaskGroup) -> None:
        match effect:
            case Send():
                self._sending = effect
                tasks.start_soon(self._guard, self._send, effect)
            case Compute():
                tasks.start_soon(self._guard, self._compute, effect)
            case Lost():
                self._lose(effect.partitions)
            case Fail():
                self._fail(effect.error)
            case Revoke() | Assign():
                self._steps.append(effect)
                self._decided.notify()
            case ResolveTopics():
                tasks.start_soon(self._guard, self._resolve, effect)

    async def _guard(self, call: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Call; an error ends this member alone, and is raised from `run`."""
        try:
            await call(*args)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._decided.notify()
        self._reported.notify()

    async def _send(self, send: Send) -> None:
        delay = self._access.backoff.delay(self._failures, random())
        try:
            response: Response = await self._request(send)
        except OdradekError as error:
            self._failures += 1
            self._member.connection_lost(anyio.current_time(), delay)
            if not error.retriable:
                raise
            self._report_problem(error)
        else:
            refused = getattr(response, "error_code", 0)
            self._failures = self._failures + 1 if refused else 0
            self._problem = (refused and getattr(response, "error_message", None)) or ""
            if self._subscription.group_protocol is None and falls_back(response):
                self._member = self._make_member(GroupProtocol.CLASSIC)
            else:
                self._member.receive(response, anyio.current_time(), delay)
        finally:
            self._sending = None
            self._reported.notify()

    async def _request(self, send: Send) -> Response:
        if send.node is None:
            response: Response = await self._access.ask(type(send.request), lambda versions: send.request)
            return response
        response = await self._connection(send.node).submit(send.request, timeout_s=send.timeout_s)
        return response  # noqa: RET504 - typed by the assignment: `Send.request` is of any kind

    def _connection(self, node: GroupCoordinator) -> KafkaConnection:
        broker = _broker(node)
        if self._broker is not None and self._broker != broker:
            self._access.connections.close(self._broker, self._purpose)
        self._broker = broker
        return self._access.connections.get(broker, self._purpose)

    def _disconnect(self) -> None:
        if self._broker is not None:
            self._access.connections.close(self._broker, self._purpose)

    async def _retry(self, call: Callable[[], Awaitable[T]], needed: Callable[[], bool] = lambda: True) -> T | None:
        """Repeat a call after passing errors; return its result, or None once it is not needed any more."""
        attempt = 0
        while needed():
            try:
                return await call()
            except OdradekError as error:
                if not error.retriable:
                    raise
                self._report_problem(error)
            await anyio.sleep(self._access.backoff.delay(attempt, random()))
            attempt += 1
        return None

    def _report_problem(self, error: OdradekError) -> None:
        if not self._problem:
            log.warning("%s: %s; trying again", self._group, error)
        self._problem = str(error)

    # ---- metadata --------------------------------------------------------------------------------------------

    async def _compute(self, compute: Compute) -> None:
        """Compute the assignment of the group from fresh metadata, however long that takes."""
        member = self._member
        assert isinstance(member, Member)
        table = await self._retry(
            lambda: self._topics.read(compute.topics), needed=lambda: member.state is ClassicMemberState.ASSIGNING
        )
        if table is not None:
            member.assign(replica_racks(table, compute.topics))
            self._reported.notify()

    async def _resolve(self, resolve: ResolveTopics) -> None:
        """Find the names of topics, however long that takes."""
        member = self._member
        assert isinstance(member, ConsumerGroupMember)
        names = await self._retry(
            lambda: self._topics.names(resolve.topic_ids),
            needed=lambda: member.state is ConsumerGroupState.RESOLVING,
        )
        member.resolved(names or {})
        self._reported.notify()

    async def _follow_metadata(self) -> None:
        """Tell the member of new topics and partitions."""
        table = self._topics.table
        while True:
            table = await self._topics.wait_for_newer(table.version)
            if self._topics.lacks_leaders():
                continue
            member = self._member
            if isinstance(member, ConsumerGroupMember):
                if self._subscription.exclude is not None:
                    member.subscribe(self._topics.selected())
            elif member.state is ClassicMemberState.STABLE:
                member.subscribe(self._topics.selected())
                member.metadata_changed(replica_racks(table, table.state.topics))
            self._reported.notify()


def _broker(node: GroupCoordinator) -> Broker:
    return Broker(node.node_id, node.host, node.port)
