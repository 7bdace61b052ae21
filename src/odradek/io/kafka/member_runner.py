"""Runs a group member: carries out what it decides, and reports the results to it.

`core.kafka.member` decides, or where brokers assign `core.kafka.consumer_group_member` (KIP-848). A task of the cluster
sends requests and reads metadata; steps for the listener wait until `next_step` returns them.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import random
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import anyio

from odradek.core.interfaces import Subscription
from odradek.core.kafka.consumer_group_member import ConsumerGroupMember, ConsumerGroupState
from odradek.core.kafka.group_effects import (
    Assign,
    Compare,
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
from odradek.core.kafka.transaction_requests import GroupMetadata
from odradek.core.observer_calls import ObserverCalls
from odradek.errors import OdradekError
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.group_topics import GroupTopics, replica_racks
from odradek.io.kafka.heartbeat_thread import SIGNS_PER_INTERVAL, Heartbeat, HeartbeatThread
from odradek.io.kafka.metadata import NOT_KNOWN_S
from odradek.io.kafka.offsets import CoordinatorAccess
from odradek.io.notifier import Notifier
from odradek.io.retry import retry
from odradek.types import Broker
from odradek.wire.kafka.messages.groups import DescribeGroupsRequest, JoinGroupRequest, SyncGroupRequest
from odradek.wire.kafka.schema import Response

if TYPE_CHECKING:
    from odradek.core.admin import GroupDescription
    from odradek.core.kafka.routing_snapshot import RoutingSnapshot

__all__ = ["MemberRunner", "Spawn"]

log = logging.getLogger("odradek.group")

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
"""Function that runs a coroutine function in the background, until it returns or the cluster is closed."""

STABLE = "Stable"
"""The state of a group whose members have their partitions, as brokers call it."""

T = TypeVar("T")


class MemberRunner:
    """Runs one member, from `start` to the end of `leave`.

    Args:
        access: The way to the coordinator.
        topics: The topics of the group.
        subscription: The group and its topics.
        settings: Timeouts.
        spawn: Runs what keeps the member in its group.
        number: Tells members of one cluster apart: each has a connection of its own.
        observer: Told of heartbeats that are late.

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
        observer: ObserverCalls | None = None,
    ) -> None:
        self.access, self.topics, self.subscription = access, topics, subscription
        self._settings, self._spawn = settings, spawn
        self._on_lost: Callable[[Lost], None] = lambda effect: None
        self._assignors = assignors_of(subscription.assignors)
        self._group, self._purpose = subscription.group, f"group {subscription.group} member {number}"
        self._member = self._make_member(GroupProtocol.CLASSIC)  # until `start` says what the brokers have
        self.problem = ""
        """The last error, until a request succeeds; empty while nothing is wrong."""
        self._steps: deque[Revoke | Assign] = deque()
        self._decided = Notifier()  # there is something to do for the listener
        self._reported = Notifier()  # the member may have something to do
        self._started = self._leaving = self._ended = False
        self._sending: Send | None = None
        self._broker: Broker | None = None  # to which the connection of this member leads
        self._error: Exception | None = None
        self._failures = 0
        self._observer, self._ran_at = observer, math.inf
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
    def member(self) -> Member | ConsumerGroupMember:
        """The member. There is no other way to it, and this one first passes it what the heartbeat thread has
        sent: every request, commit and response is based on the epoch that the coordinator has by now."""
        sent = self._heartbeats.take_sent()
        if sent is not None:
            self._member.heartbeat_answered(sent.request, sent.response)
            self._reported.notify()
        return self._member

    async def start(self, on_lost: Callable[[Lost], None]) -> None:
        """Start the member, unless it was started before. Cancellation: it is not started, or runs on.

        Args:
            on_lost: Called when partitions are to be given up at once, instead of all steps that were not returned.

        Raises:
            Unsupported, ConfigError: See `group_protocol`.
        """
        protocol = group_protocol(self.subscription, self._settings, self.access.versions())
        if self.subscription.topics is None:
            await self.retry(self.topics.read_all)
        self._on_lost = on_lost
        if not self._started:
            self._started = True
            self._member = self._make_member(protocol)
            self._spawn(self._run)

    async def next_step(self) -> Revoke | Assign:
        """Wait for the next step of the listener, and return it. Cancellation: safe.

        Raises:
            Exception: The member has failed with it.
        """
        while True:
            version = self._decided.version
            if self._error is not None:
                raise self._error
            if self._steps:
                return self._steps.popleft()
            await self._decided.wait(version)

    @property
    def has_to_revoke(self) -> bool:
        """True if one of the next steps gives up partitions."""
        return any(isinstance(step, Revoke) for step in self._steps)

    def postpone(self, step: Assign) -> None:
        """Return a step again after those that were decided meanwhile."""
        self._steps.append(step)

    def revoked(self, step: Revoke) -> None:
        """Record that the listener has given up the partitions of a step."""
        self.member.revoked(step)
        self._reported.notify()

    def commit_refused(self, token: GroupMetadata, code: int) -> bool:
        """Handle the error code of a commit. Return True if the member may have a token soon that is accepted."""
        newer = self.member.commit_refused(token, code)
        self._reported.notify()
        return newer

    async def leave(self) -> None:
        """Leave the group. Does nothing if it never joined. Cancellation: it leaves in the background."""
        self._steps.clear()
        if not self._started:
            return
        self._leaving = True
        self._reported.notify()
        while not self._ended:
            await self._decided.wait(self._decided.version)

    async def retry(self, call: Callable[[], Awaitable[T]], needed: Callable[[], bool] = lambda: True) -> T | None:
        """Repeat a call after passing errors; return its result, or None once it is not needed any more."""

        async def attempt() -> T | None:
            return await call() if needed() else None

        return await retry(attempt, self.access.backoff, passes=self._passes)

    def _passes(self, error: OdradekError) -> bool:
        """Return True if an error is a passing one, which is reported as the problem of this member."""
        if error.retriable:
            if not self.problem:
                log.warning("%s: %s; trying again", self._group, error)
            self.problem = str(error)
        return error.retriable

    def _make_member(self, protocol: GroupProtocol) -> Member | ConsumerGroupMember:
        topics = self.topics.selected()
        if protocol is GroupProtocol.CLASSIC:
            return Member(self._settings, self._assignors, topics)
        if self.subscription.include is None:
            return ConsumerGroupMember(self._settings, str(uuid4()), topics)
        return ConsumerGroupMember(self._settings, str(uuid4()), frozenset(), regex=self.subscription.include)

    # ---- the background task ---------------------------------------------------------------------------------

    async def _run(self) -> None:
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
        if self.subscription.max_blocked_s > 0:
            self._heartbeats.start()
        while True:
            version = self._reported.version
            if self._error is not None and not (self._leaving or self.member.has_ended):
                # It leaves when what was read is committed. Without heartbeats its group waits for a session at most.
                self._heartbeats.stop()
                await self._reported.wait(version)
                continue
            now = anyio.current_time()
            if self._leaving:
                self._begin_to_leave()
            for effect in self.member.poll(now):
                self._begin(effect, tasks)
            if self.member.has_ended:
                return
            self._report_to_thread()
            wake_at = self.member.tick(now)
            wait_s = math.inf if wake_at is None else max(0.0, wake_at - now)
            await self._reported.wait(version, min(wait_s, self._settings.heartbeat_interval_s / SIGNS_PER_INTERVAL))

    def _begin_to_leave(self) -> None:
        """Have the member leave, once it has its id: only the answer to its JoinGroup says that on brokers before 2.2,
        and they would keep a member that does not leave until its session has timed out."""
        if self.member.has_ended or self.member.is_leaving:
            return
        if isinstance(self.member, ConsumerGroupMember):
            self.member.leave()
            return
        sending = None if self._sending is None else self._sending.request
        # The first JoinGroup is on its way, and its answer will bring the id. From 2.2 on (KIP-394) the coordinator
        # answers it at once with MEMBER_ID_REQUIRED; before, it has already entered a member under an id that nobody
        # here knows, and all others would wait for it. So this is asked again when the answer is there.
        if isinstance(sending, JoinGroupRequest) and not sending.member_id:
            return
        node = self.member.coordinator
        versions = (node and self._connection(node).versions) or self.access.versions()
        self.member.leave(member_lists=versions.has_member_lists, reason="the consumer left its block")
        if isinstance(sending, JoinGroupRequest | SyncGroupRequest):
            # A coordinator reads nothing more from a connection whose JoinGroup or SyncGroup waits for other members.
            self._disconnect()

    def _report_to_thread(self) -> None:
        """Show that this loop runs, and what to send once it does not."""
        if self._observer is not None:
            self._report_late_heartbeat(self._observer)
        member, heartbeat = self.member, None
        if member.coordinator is not None and (request := member.heartbeat) is not None:
            heartbeat = Heartbeat(request, _broker(member.coordinator))
        self._heartbeats.loop_runs(heartbeat)

    def _report_late_heartbeat(self, observer: ObserverCalls) -> None:
        """Report that this loop has not run for a heartbeat interval, although it wakes up more often than that."""
        ran_at, self._ran_at = self._ran_at, anyio.current_time()
        if self._ran_at - ran_at > self._settings.heartbeat_interval_s:
            observer.heartbeat_late(self._group, self._ran_at - ran_at)

    def _begin(self, effect: Effect, tasks: anyio.abc.TaskGroup) -> None:
        match effect:
            case Send():
                self._sending = effect
                tasks.start_soon(self._guard, self._send, effect)
            case Compute():
                tasks.start_soon(self._guard, self._compute, effect)
            case Compare():
                tasks.start_soon(self._guard, self._compare, effect)
            case Lost():
                self._steps.clear()
                self._on_lost(effect)
            case Fail():
                self._fail(effect.error)
            case Revoke() | Assign():
                self._steps.append(effect)
                self._decided.notify()
            case ResolveTopics():
                tasks.start_soon(self._guard, self._resolve, effect)

    async def _guard(self, call: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Call; an error ends this member alone, and is raised from `next_step`."""
        try:
            await call(*args)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._decided.notify()
        self._reported.notify()

    # ---- requests --------------------------------------------------------------------------------------------

    async def _send(self, send: Send) -> None:
        delay = self.access.backoff.delay(self._failures, random())
        try:
            response: Response = await self._request(send)
        except OdradekError as error:
            self._failures += 1
            self.member.connection_lost(anyio.current_time(), delay)
            if not self._passes(error):
                raise
        else:
            refused = getattr(response, "error_code", 0)
            self._failures = self._failures + 1 if refused else 0
            self.problem = (refused and getattr(response, "error_message", None)) or ""
            # Brokers of 4.x have the protocol of KIP-848, which the group may not allow: it has members of the classic
            # one that cannot be joined, or the protocol is switched off. If the user did not ask for it, another member
            # begins.
            joins = self._member.state is ConsumerGroupState.JOINING  # else it has partitions, and loses them first
            if joins and self.subscription.group_protocol is None and falls_back(response):
                self._member = self._make_member(GroupProtocol.CLASSIC)
            else:
                self.member.receive(response, anyio.current_time(), delay)
        finally:
            self._sending = None
            self._reported.notify()

    async def _request(self, send: Send) -> Response:
        if send.node is None:
            response: Response = await self.access.ask(type(send.request), lambda versions: send.request)
            return response
        response = await self._connection(send.node).submit(send.request, timeout_s=send.timeout_s)
        return response  # noqa: RET504 - typed by the assignment: `Send.request` is of any kind

    def _connection(self, node: GroupCoordinator) -> KafkaConnection:
        broker = _broker(node)
        if self._broker is not None and self._broker != broker:
            self.access.connections.close(self._broker, self._purpose)
        self._broker = broker
        return self.access.connections.get(broker, self._purpose)

    def _disconnect(self) -> None:
        if self._broker is not None:
            self.access.connections.close(self._broker, self._purpose)

    # ---- metadata --------------------------------------------------------------------------------------------

    async def _compute(self, compute: Compute) -> None:
        """Compute the assignment of the group from fresh metadata, however long that takes, or until its generation has
        ended: the next one may have other topics."""
        member = self.member
        assert isinstance(member, Member)
        generation = member.generation

        def needed() -> bool:
            return member.state is ClassicMemberState.ASSIGNING and member.generation == generation

        table = await self.retry(lambda: self.topics.read(compute.topics), needed)
        if table is not None and needed():
            member.assign(replica_racks(table, compute.topics))
            self._reported.notify()

    async def _compare(self, compare: Compare) -> None:
        """Tell the member what all members have, unless its generation has ended, or the group is not stable: then it
        joins again in any case. A group that brokers describe otherwise has no leader (KIP-848)."""
        from odradek.core.kafka.admin_groups import read_classic_group  # with messages that few members need
        from odradek.io.kafka.admin_requests import AdminRequests

        member, admin = self.member, AdminRequests(self.access, self.access.metadata)
        assert isinstance(member, Member)
        generation, request = member.generation, DescribeGroupsRequest(groups=(self._group,))

        async def describe() -> tuple[RoutingSnapshot, GroupDescription]:
            table = await self.topics.read(compare.topics)
            return table, await admin.describe_group(self._group, request, read_classic_group)

        with suppress(OdradekError):
            described = await self.retry(describe, needed=lambda: member.generation == generation)
            if described is not None and member.generation == generation and described[1].state == STABLE:
                members = {each.member_id: each.partitions for each in described[1].members}
                member.compare(members, replica_racks(described[0], compare.topics))
                self._reported.notify()

    async def _resolve(self, resolve: ResolveTopics) -> None:
        """Find the names of topics, however long that takes."""
        member = self.member
        assert isinstance(member, ConsumerGroupMember)
        names = await self.retry(
            lambda: self.topics.names(resolve.topic_ids),
            needed=lambda: member.state is ConsumerGroupState.RESOLVING,
        )
        member.resolved(names or {})
        self._reported.notify()

    async def _follow_metadata(self) -> None:
        """Tell the member of new topics and partitions."""
        table = self.topics.table
        while True:
            newer = await self.topics.wait_for_newer(table.version)
            if table.topics - newer.topics:
                await anyio.sleep(NOT_KNOWN_S)
            table = self.topics.table
            if self.topics.lacks_leaders():
                continue
            member = self.member
            if isinstance(member, ConsumerGroupMember):
                if self.subscription.exclude is not None:
                    member.subscribe(self.topics.selected())
            else:
                member.subscribe(self.topics.selected())
                member.metadata_changed(replica_racks(table, table.state.topics))
            self._reported.notify()


def _broker(node: GroupCoordinator) -> Broker:
    return Broker(node.node_id, node.host, node.port)
