"""A consumer group over ZooKeeper, wire-compatible with the Scala high-level consumer (specification.md 5.1, 6.1, 6.2).

`core.kafka07.group` decides; this module reads the group, carries plans out, and calls the listener. One task does this
step by step: the states are those of `core.kafka07.group.MEMBER`, and the result of each step is the event that leads
to the next. A second task follows the session, so that its end interrupts a revoke.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio

from odradek.core.interfaces import NO_METADATA, Assignment, RebalanceListener, Subscription
from odradek.core.kafka07.group import (
    MEMBER,
    GroupSnapshot,
    MemberEvent,
    MemberState,
    describe_owners,
    event_after_attempt,
    plan,
)
from odradek.core.kafka07.topic_filter import TopicFilter
from odradek.core.kafka07.znodes import (
    MAX_STREAMS,
    Registration,
    StaticRegistration,
    WildcardRegistration,
    check_group,
    consumer_id,
)
from odradek.errors import (
    Closed,
    ConfigError,
    DeadlineError,
    GroupError,
    NoNode,
    OdradekError,
    SessionExpired,
    TransportError,
    ZooKeeperError,
)
from odradek.io.kafka07.group_reader import GroupReader
from odradek.io.kafka07.member_nodes import MemberNodes
from odradek.io.kafka07.metadata import check_topic_name
from odradek.io.kafka07.offsets import ZooKeeperOffsets
from odradek.io.zookeeper import NodeEvent, SessionEvent, SessionState, ZooKeeper
from odradek.types import Position, TopicPartition

__all__ = ["RebalanceOptions", "ZooKeeperMembership"]

log = logging.getLogger("odradek.group")

TRANSIENT_ERRORS = (ZooKeeperError, TransportError, DeadlineError)
"""Errors that fail one attempt. Any other (credentials refused, bugs) ends the membership."""

RELEASE_RETRY_S = 1.0
"""Pause between two attempts to release in the background (s)."""


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """Limits of retrying claims.

    Args:
        attempts: Attempts in a row without a change of the group in between (Scala: rebalance.retries.max). After
            that a member waits for the owners of its partitions to go.
        backoff: Longest pause between them (s); a pause ends early when the partitions in question are released.
    """

    attempts: int = 4
    backoff: float = 2.0


class ZooKeeperMembership:
    """Implements `core.interfaces.Membership`.

    Everything that it creates and stores is bound to the session in which it joined: after that expired, nothing of it
    is carried out in the next one.

    Args:
        zk: An open session; its ephemeral nodes make this a member. It is used, not closed.
        subscription: The topics to consume.
        options: Attempts and back-off.
        spawn: Runs a coroutine function until it returns or the cluster is closed: for releasing what `leave` could
            not release in time. With None it is released when the session ends.
    """

    why_lost = "the ZooKeeper session has expired"
    """Reason of the latest loss (see `Membership.why_lost`)."""

    def __init__(
        self,
        zk: ZooKeeper,
        subscription: Subscription,
        options: RebalanceOptions | None = None,
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None] | None = None,
    ) -> None:
        self._zk = zk
        self._options = options or RebalanceOptions()
        self._group = check_group(subscription.group)
        self._registration = registration_of(subscription)
        self.consumer_id = consumer_id_of(subscription)
        self._spawn = spawn
        self._offsets = ZooKeeperOffsets(zk, self._group)
        self._reader = GroupReader(zk, self._group, self._registration)
        self._state = MEMBER.start
        self._attempt = self._generation = 0
        self._problem = ""
        self._releasing = False
        self._begin_session(0)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.consumer_id} {self._state.name} owns={len(self._nodes.owned)}>"

    def _begin_session(self, session: int) -> None:
        """Forget everything that is true in one session only; 0: there is none."""
        self._nodes = MemberNodes(self._zk, self._group, self.consumer_id, self._registration, session)
        self._snapshot: GroupSnapshot | None = None
        self._assigned: set[TopicPartition] = set()  # what the listener has
        self._blocked_claims = 0  # in the last attempt

    @property
    def problem(self) -> str:
        """The reason why the member has no share, or what it did not release; empty while nothing is wrong."""
        return self._problem

    async def run(self, listener: RebalanceListener) -> None:
        """Join, and call `listener`, until cancelled.

        A member whose partitions belong to others retries `attempts` times, and then waits until their nodes are gone
        or the group changes: before its first assignment without any partition, later with those it could keep. A
        malformed ids node of another member is left out, with a line in the log. Raises Closed when the session is
        closed, ConfigError when ZooKeeper refuses the credentials.

        Cancellation: at once, nothing is released; `leave` does that.
        """
        self._listener = listener
        self._events = self._zk.events()
        self._state = MEMBER.start
        self._attempt = 0
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_session)
            try:
                await self._run_states()
            except Exception as error:  # raised below: not as a group of exceptions
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _run_states(self) -> None:
        steps: dict[MemberState, Callable[[], Awaitable[MemberEvent]]] = {
            MemberState.STARTING: self._await_session,
            MemberState.SUSPENDED: self._await_session,
            MemberState.EXPIRED: self._await_session,
            MemberState.JOINING: self._join,
            MemberState.BALANCING: self._balance,
            MemberState.BACKING_OFF: self._back_off,
            MemberState.OWNING: self._listen,
            MemberState.DEGRADED: self._listen,
        }
        while True:
            self._state = MEMBER.after(self._state, await steps[self._state]())

    async def _follow_session(self) -> None:
        """Tell the listener at once when the session ends, also while it is revoking."""
        async for event in self._zk.events():
            if isinstance(event, SessionEvent) and self._nodes.session and not self._nodes.is_current:
                self._end_session(0)

    def _end_session(self, following: int) -> None:
        lost = frozenset(self._assigned)
        self._begin_session(following)
        if lost:
            self._listener.lost(lost)

    # ---- leaving --------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Delete our owners nodes and then our ids node, so that the others find everything free.

        Raises ZooKeeper's first error after trying all. Partitions that are left then, or when it is cancelled, are
        released in the background until the session ends.
        """
        try:
            await self._release_all()
        except BaseException:
            self._problem = f"{self._nodes.describe()}; continuing in the background"
            if self._spawn is not None and not self._releasing:
                self._releasing = True
                self._spawn(self._release_in_background)
            raise

    async def _release_all(self) -> None:
        await self._nodes.release_all()
        self._begin_session(0)
        self._problem = ""

    async def _release_in_background(self) -> None:
        log.warning("%s: %s", self.consumer_id, self._problem)
        while self._nodes.is_current:
            with suppress(OdradekError):
                await self._release_all()
                log.warning("%s: everything is released", self.consumer_id)
                break
            await anyio.sleep(RELEASE_RETRY_S)
        self._releasing = False

    # ---- positions ------------------------------------------------------------------------------------------

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> None:
        """Store positions of owned partitions, fenced by the session that owns them.

        Raises Unsupported for a text to be stored with them, GroupError for a partition that this member does not own,
        SessionExpired when the session has ended, ZooKeeperError naming partitions that (perhaps) were not stored, and
        why, after trying all.
        """
        if not self._nodes.is_current:
            raise SessionExpired(f"group {self._group}: the session that owned these partitions expired: not committed")
        if foreign := sorted(positions.keys() - self._nodes.owned.keys()):
            raise GroupError(f"group {self._group}: {foreign[0]} does not belong to {self.consumer_id}: not committed")
        await self._offsets.commit(positions, metadata, session=self._nodes.session)

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """Return the stored positions; None where none was ever stored. Raises ZooKeeperError for a malformed node."""
        return await self._offsets.fetch(partitions)

    # ---- waiting --------------------------------------------------------------------------------------------

    async def _listen(self) -> MemberEvent:
        async for event in self._events:
            member_event = self._to_event(event)
            if member_event is not None:
                return member_event
        raise Closed(f"{self._zk!r} was closed")

    def _to_event(self, event: NodeEvent | SessionEvent) -> MemberEvent | None:
        if isinstance(event, SessionEvent):
            rejoined = self._nodes.is_current and self._zk.state is SessionState.CONNECTED
            if event.state is SessionState.EXPIRED and rejoined:
                return None  # `_join` noticed it before this event arrived
            self._attempt = 0
            return _SESSION_EVENTS.get(event.state)
        if event.path in self._reader.watched:
            self._attempt = 0  # a new situation: attempts are counted from the start
            return MemberEvent.CHANGED
        if event.path in self._nodes.blockers:
            self._nodes.blockers.discard(event.path)
            return None if self._nodes.blockers else MemberEvent.FREED
        return None

    async def _await_session(self) -> MemberEvent:
        while True:
            event = await self._listen()
            if event in (MemberEvent.CONNECTED, MemberEvent.EXPIRED):
                return event

    async def _back_off(self) -> MemberEvent:
        with anyio.move_on_after(self._options.backoff):
            return await self._listen()
        return MemberEvent.RETRY

    # ---- one attempt ----------------------------------------------------------------------------------------

    async def _join(self) -> MemberEvent:
        self._attempt += 1
        if not self._nodes.is_current:
            self._end_session(self._zk.session_id)
        self._nodes.blockers.clear()
        try:
            if not await self._nodes.register():
                return self._failed(f"{self._nodes.path} belongs to another session", conflict=True)
        except TRANSIENT_ERRORS as error:
            return self._failed(str(error), conflict=False)
        return MemberEvent.JOINED

    async def _balance(self) -> MemberEvent:
        try:
            snapshot = await self._read_group()
            # An attempt that fails half-way has changed the owners: with the snapshot forgotten, the next one plans
            # again although the group is as it was. Whoever claims a partition reads its position at once. So the
            # listener commits, and gives the partition up, before its owner's node is deleted, and positions are read
            # after the claims, which fail while the former owner's node is there.
            if snapshot != self._snapshot:
                self._snapshot = None
                nodes = self._nodes
                steps = plan(self.consumer_id, snapshot, nodes.owned)
                if revoked := steps.release & self._assigned:
                    await self._listener.revoke(revoked)
                    self._assigned -= revoked
                self._require(nodes)
                await nodes.release(steps.release)
                if owners := await nodes.claim(steps.claim):
                    return await self._conflict(owners)
                await self._assign(steps.target)
                self._snapshot = snapshot
        except TRANSIENT_ERRORS as error:
            return self._failed(str(error), conflict=False)
        self._problem = ""
        self._attempt = 0
        return MemberEvent.BALANCED

    def _failed(self, problem: str, *, conflict: bool) -> MemberEvent:
        if problem != self._problem:
            log.warning("%s cannot get its partitions: %s", self.consumer_id, problem)
        self._problem = problem
        event = event_after_attempt(self._attempt, self._options.attempts, conflict=conflict)
        if event is MemberEvent.EXHAUSTED:
            self._attempt = 0  # counted from the start when the owners are gone
        return event

    async def _conflict(self, owners: Mapping[TopicPartition, str]) -> MemberEvent:
        """Keep what was claimed for the next attempt, while every attempt claims more; give it up with the last one."""
        if len(owners) < self._blocked_claims:
            self._attempt = 1
        self._blocked_claims = len(owners)
        event = self._failed(describe_owners(owners), conflict=True)
        if event is MemberEvent.EXHAUSTED:
            self._blocked_claims = 0
            await self._nodes.release(self._nodes.owned.keys() - self._assigned)
        return event

    async def _assign(self, target: Mapping[TopicPartition, int]) -> None:
        """Give the listener what it does not have of `target`, with positions read now: after the claims."""
        nodes = self._nodes
        added = {p: stream for p, stream in target.items() if p not in self._assigned}
        committed = await self.committed(list(added))
        self._require(nodes)
        self._generation += 1
        self._assigned |= added.keys()
        log.info("%s owns %d partitions, generation %d", self.consumer_id, len(target), self._generation)
        await self._listener.assign(Assignment(self._generation, added, committed))

    def _require(self, nodes: MemberNodes) -> None:
        """Raise SessionExpired if the session of these nodes has ended."""
        if nodes is not self._nodes or not nodes.is_current:
            raise SessionExpired(f"the session of {self.consumer_id} expired during a rebalance")

    async def _read_group(self) -> GroupSnapshot:
        snapshot = await self._reader.read()
        if self.consumer_id not in snapshot.members:  # deleted by hand
            self._nodes.registered = False
            raise NoNode(f"{self._nodes.path} is gone")
        return snapshot


_SESSION_EVENTS = {
    SessionState.CONNECTED: MemberEvent.CONNECTED,
    SessionState.SUSPENDED: MemberEvent.SUSPENDED,
    SessionState.EXPIRED: MemberEvent.EXPIRED,
}


def registration_of(subscription: Subscription) -> Registration:
    """Return what the ids node will say. Raises ConfigError for a subscription that cannot work."""
    chosen = [x for x in (subscription.topics, subscription.include, subscription.exclude) if x is not None]
    if len(chosen) != 1:
        raise ConfigError("a subscription needs exactly one of topics, include and exclude")
    if subscription.topics is not None:
        counts = list(subscription.topics.values())
        for topic in subscription.topics:
            check_topic_name(topic)
        registration: Registration = StaticRegistration(dict(subscription.topics))
    else:
        counts = [subscription.streams]
        raw = subscription.include if subscription.exclude is None else subscription.exclude
        registration = WildcardRegistration(
            TopicFilter.of(raw or "", exclude=subscription.exclude is not None), subscription.streams
        )
    if not counts or not all(1 <= count <= MAX_STREAMS for count in counts):
        raise ConfigError(f"a subscription needs at least one topic, and 1 to {MAX_STREAMS} streams for each")
    return registration


def consumer_id_of(subscription: Subscription) -> str:
    """Return the id of the ids node: `consumer_id` replaces all but the group, as Scala's `consumerid` does."""
    group = subscription.group
    if subscription.consumer_id is not None:
        return check_group(f"{group}_{subscription.consumer_id}", "consumer_id")
    return consumer_id(group, socket.gethostname(), time.time_ns() // 1_000_000, uuid.uuid4().hex[:8])
