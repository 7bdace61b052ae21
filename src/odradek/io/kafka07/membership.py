"""A consumer group over ZooKeeper, wire-compatible with the Scala high-level consumer (specification 5.1, 6.1, 6.2).

`core.kafka07.group` decides; this module reads the group, carries plans out, and calls the listener. One task does this
step by step: the states are those of `core.kafka07.group.MEMBER`, and the result of each step is the event that leads
to the next. A second task follows the session, so that its end interrupts a revoke.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio

from odradek.core.interfaces import Assignment, RebalanceListener, Subscription
from odradek.core.kafka07.group import (
    MEMBER,
    GroupSnapshot,
    MemberEvent,
    MemberState,
    RebalancePlan,
    describe_owners,
    event_after_attempt,
    plan,
)
from odradek.core.kafka07.znodes import (
    MAX_STREAMS,
    TOPICS,
    Registration,
    StaticRegistration,
    TopicFilter,
    WildcardRegistration,
    broker_id,
    check_group,
    consumer_id,
    count_path,
    member_path,
    members_path,
    offset_path,
    owner_path,
    parse_count,
    parse_offset,
    parse_registration,
    topic_path,
)
from odradek.errors import (
    Closed,
    ConfigError,
    ConnectionLost,
    DeadlineError,
    GroupError,
    NodeExists,
    NoNode,
    OdradekError,
    SessionExpired,
    TransportError,
    ZooKeeperError,
)
from odradek.io.gather import gather, gather_outcomes
from odradek.io.kafka07.metadata import check_topic_name
from odradek.io.zookeeper import NodeEvent, SessionEvent, SessionState, ZooKeeper
from odradek.types import Position, TopicPartition

__all__ = ["RebalanceOptions", "ZooKeeperMembership", "ZooKeeperOffsets"]

log = logging.getLogger("odradek.group")

TRANSIENT_ERRORS = (ZooKeeperError, TransportError, DeadlineError)
"""Errors that fail one attempt. Any other (credentials refused, bugs) ends the membership."""

LIST_FROM = 8
"""Minimum number of partitions of a topic for which its offsets nodes are listed before they are read: a group that
never committed has none of them."""

MAX_NAMED = 5
"""Partitions named in one error; further ones are only counted."""

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


class ZooKeeperOffsets:
    """Implements `core.interfaces.OffsetStore`: one node per partition with its position as decimal text.

    Args:
        zk: An open session.
        group: The group whose positions they are.
    """

    def __init__(self, zk: ZooKeeper, group: str) -> None:
        self._zk = zk
        self.group = check_group(group)
        self._absent: set[TopicPartition] = set()  # read and not found: the first commit creates the node

    async def fetch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """Return the stored positions; None where none was ever stored. Raises ZooKeeperError for a malformed node."""
        stored = await self._stored(partitions)
        read = dict(zip(stored, await gather(self._read, stored), strict=True))
        positions = {partition: read.get(partition) for partition in partitions}
        self._absent = self._absent.difference(positions) | {p for p, at in positions.items() if at is None}
        return positions

    async def commit(self, positions: Mapping[TopicPartition, Position], *, session: int = 0) -> None:
        """Store positions, each in its own node; with `session`, in that session or not at all.

        Raises SessionExpired when that session has ended, ZooKeeperError naming partitions that (perhaps) were not
        stored, and why, after trying all.
        """
        results = await gather_outcomes(lambda item: self._store(item, session), positions.items())
        failed = {p: r for p, r in zip(positions, results, strict=True) if isinstance(r, OdradekError)}
        for error in failed.values():
            if isinstance(error, SessionExpired) and session:
                raise error
        if failed:
            reasons = "; ".join(f"{partition} ({error})" for partition, error in list(failed.items())[:MAX_NAMED])
            more = f"; and {len(failed) - MAX_NAMED} more" if len(failed) > MAX_NAMED else ""
            raise ZooKeeperError(
                f"group {self.group}: {len(failed)} of {len(positions)} positions not stored: {reasons}{more}"
            ) from next(iter(failed.values()))

    async def _stored(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return those of `partitions` that may have a position: one request per topic instead of one for each."""
        counts = Counter(partition.topic for partition in partitions)
        topics = [topic for topic, count in counts.items() if count >= LIST_FROM]
        folders = [offset_path(self.group, TopicPartition(topic, 0, 0)).rpartition("/")[0] for topic in topics]
        listed = dict(zip(topics, map(set, await gather(self._children, folders)), strict=True))
        return [p for p in partitions if p.topic not in listed or p.name in listed[p.topic]]

    async def _children(self, path: str) -> list[str]:
        return await self._zk.children(path) or []

    async def _read(self, partition: TopicPartition) -> Position | None:
        path = offset_path(self.group, partition)
        node = await self._zk.get(path)
        return None if node is None else parse_offset(path, node.data)

    async def _store(self, item: tuple[TopicPartition, Position], session: int) -> None:
        partition, position = item
        path, data = offset_path(self.group, partition), str(int(position)).encode()
        while True:
            if partition not in self._absent:
                with suppress(NoNode):
                    await self._zk.set(path, data, session=session)
                    return
            with suppress(NodeExists):
                await self._zk.create(path, data, parents=True, session=session)
                self._absent.discard(partition)
                return
            self._absent.discard(partition)


class ZooKeeperMembership:
    """Implements `core.interfaces.Membership`.

    An existing owners node blocks a claim unless this object may have created it: also a node with our own id left by
    an earlier process, whose session has yet to expire.

    Everything that it creates and stores is bound to the session in which it joined: after that expired, nothing of it
    is carried out in the next one.

    Args:
        zk: An open session; its ephemeral nodes make this a member. It is used, not closed.
        subscription: The topics to consume.
        options: Attempts and back-off.
        spawn: Runs a coroutine function until it returns or the cluster is closed: for releasing what `leave` could
            not release in time. None: it is released when the session ends.
    """

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
        self._path = member_path(self._group, self.consumer_id)
        self._state = MEMBER.start
        self._attempt = self._generation = 0
        self._problem = ""
        self._releasing = False
        self._ignored: dict[str, str] = {}  # ids nodes of others that are left out, and why
        self._reset_session()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.consumer_id} {self._state.name} owns={len(self._owned)}>"

    def _reset_session(self) -> None:
        """Forget everything that is true in one session only."""
        self._session = 0
        self._joined = False  # its ids node was created
        self._snapshot: GroupSnapshot | None = None
        self._owned: dict[TopicPartition, str] = {}
        self._assigned: set[TopicPartition] = set()  # what the listener has
        self._unconfirmed: dict[str, str] = {}  # nodes whose creation was not answered: path -> data
        self._watched: set[str] = set()
        self._blockers: set[str] = set()
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
            if isinstance(event, SessionEvent) and self._session and self._session != self._zk.session_id:
                self._end_session()

    def _end_session(self) -> None:
        lost = frozenset(self._assigned)
        self._reset_session()
        if lost:
            self._listener.lost(lost)

    # ---- leaving --------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Delete our owners nodes and then our ids node, so that the others find everything free.

        Raises ZooKeeper's first error after trying all. Whatever is left then, or when it is cancelled, is released in
        the background until the session ends.
        """
        try:
            await self._release_all()
        except BaseException:
            self._problem = f"{describe_left(self._owned, self._path)}; continuing in the background"
            if self._spawn is not None and not self._releasing:
                self._releasing = True
                self._spawn(self._release_in_background)
            raise

    async def _release_all(self) -> None:
        results = await gather_outcomes(self._release, list(self._owned))
        results += await gather_outcomes(self._delete, list(self._unconfirmed.items()))
        results += await gather_outcomes(self._delete, [(self._path, self._registration.data().decode())])
        errors = [e for e in results if isinstance(e, OdradekError) and not isinstance(e, SessionExpired | Closed)]
        if errors:
            raise errors[0]
        self._reset_session()  # or the session is over, and its nodes with it
        self._problem = ""

    async def _release_in_background(self) -> None:
        log.warning("%s: %s", self.consumer_id, self._problem)
        while self._session == self._zk.session_id:
            with suppress(OdradekError):
                await self._release_all()
                log.warning("%s: everything is released", self.consumer_id)
                break
            await anyio.sleep(RELEASE_RETRY_S)
        self._releasing = False

    # ---- positions ------------------------------------------------------------------------------------------

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions of owned partitions, fenced by the session that owns them.

        Raises GroupError for a partition that this member does not own, SessionExpired when the session has ended,
        ZooKeeperError naming partitions that (perhaps) were not stored, and why, after trying all.
        """
        session = self._session
        if not session or session != self._zk.session_id:
            raise SessionExpired(f"group {self._group}: the session that owned these partitions expired: not committed")
        if foreign := sorted(positions.keys() - self._owned.keys()):
            raise GroupError(f"group {self._group}: {foreign[0]} does not belong to {self.consumer_id}: not committed")
        await self._offsets.commit(positions, session=session)

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
            rejoined = self._session == self._zk.session_id and self._zk.state is SessionState.CONNECTED
            if event.state is SessionState.EXPIRED and rejoined:
                return None  # `_join` noticed it before this event arrived
            self._attempt = 0
            return _SESSION_EVENTS.get(event.state)
        if event.path in self._watched:
            self._attempt = 0  # a new situation: attempts are counted from the start
            return MemberEvent.CHANGED
        if event.path in self._blockers:
            self._blockers.discard(event.path)
            return None if self._blockers else MemberEvent.FREED
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
        self._blockers = set()
        if self._session != self._zk.session_id:
            self._end_session()
            self._session = self._zk.session_id
        if not self._joined:
            try:
                if await self._create(self._path, self._registration.data().decode()) is not None:
                    return self._failed(f"{self._path} belongs to another session", conflict=True)
                self._joined = True
            except TRANSIENT_ERRORS as error:
                return self._failed(str(error), conflict=False)
        return MemberEvent.JOINED

    async def _balance(self) -> MemberEvent:
        try:
            snapshot = await self._read_group()
            if snapshot != self._snapshot:
                self._snapshot = None
                session, steps = self._session, plan(self.consumer_id, snapshot, self._owned)
                if revoked := steps.release & self._assigned:
                    await self._listener.revoke(revoked)
                    self._assigned -= revoked
                self._require(session)
                if owners := await self._apply(steps):
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
            await gather(self._release, sorted(self._owned.keys() - self._assigned))
        return event

    async def _apply(self, steps: RebalancePlan) -> dict[TopicPartition, str]:
        """Release, then claim. Returns the owners of the claims that failed."""
        claims = {owner_path(self._group, p) for p in steps.claim}
        unconfirmed = [item for item in self._unconfirmed.items() if item[0] not in claims]
        await gather(self._delete, unconfirmed)
        await gather(self._release, sorted(steps.release))
        owners = await gather(self._claim, steps.claim.items())
        return {p: owner for p, owner in zip(steps.claim, owners, strict=True) if owner is not None}

    async def _assign(self, target: Mapping[TopicPartition, int]) -> None:
        """Give the listener what it does not have of `target`, with positions read now: after the claims."""
        session = self._session
        added = {p: stream for p, stream in target.items() if p not in self._assigned}
        committed = await self.committed(list(added))
        self._require(session)
        self._generation += 1
        self._assigned |= added.keys()
        log.info("%s owns %d partitions, generation %d", self.consumer_id, len(target), self._generation)
        await self._listener.assign(Assignment(self._generation, added, committed))

    def _require(self, session: int) -> None:
        """Raise SessionExpired if another session than this one has begun, or none."""
        if not session or session != self._session or session != self._zk.session_id:
            raise SessionExpired(f"the session of {self.consumer_id} expired during a rebalance")

    # ---- reading the group ----------------------------------------------------------------------------------

    async def _read_group(self) -> GroupSnapshot:
        self._watched = set()
        members = await self._read_members()
        if self.consumer_id not in members:  # deleted by hand
            self._joined = False
            raise NoNode(f"{self._path} is gone")
        listed = await self._children(TOPICS) if isinstance(self._registration, WildcardRegistration) else ()
        topics = sorted(self._registration.wanted(listed))
        return GroupSnapshot(members, dict(zip(topics, await gather(self._read_topic, topics), strict=True)))

    async def _read_members(self) -> dict[str, Registration]:
        async def one(name: str) -> Registration | None:
            path = member_path(self._group, name)
            node = await self._zk.get(path)
            return None if node is None else self._parsed(path, node.data)

        names = await self._children(members_path(self._group))
        return _present(names, await gather(one, names))

    def _parsed(self, path: str, data: bytes | None) -> Registration | None:
        """Parse an ids node. One that cannot be read is no member: it must not keep all others from joining."""
        if data == self._registration.data():  # also a filter that would not be accepted from another member
            return self._registration
        try:
            registration = parse_registration(path, data)
        except ZooKeeperError as error:
            if self._ignored.get(path) != str(error):
                log.warning(
                    "group %s: ignored a member: %s; delete the node if no consumer uses it", self._group, error
                )
            self._ignored[path] = str(error)
            return None
        self._ignored.pop(path, None)
        return registration

    async def _read_topic(self, topic: str) -> Mapping[int, int]:
        async def one(broker: int) -> int | None:
            path = count_path(topic, broker)
            self._watched.add(path)
            node = await self._zk.get(path, watch=True)
            return None if node is None else parse_count(path, node.data)

        path = topic_path(topic)
        brokers = [broker_id(f"{path}/{name}") for name in await self._children(path)]
        return _present(brokers, await gather(one, brokers))

    async def _children(self, path: str) -> list[str]:
        self._watched.add(path)
        return await self._zk.children(path, watch=True) or []

    # ---- our ephemeral nodes --------------------------------------------------------------------------------

    async def _claim(self, item: tuple[TopicPartition, str]) -> str | None:
        partition, owner = item
        session = self._session
        other = await self._create(owner_path(self._group, partition), owner)
        if other is None and session == self._session:
            self._owned[partition] = owner
        return other

    async def _release(self, partition: TopicPartition) -> None:
        if (owner := self._owned.get(partition)) is not None:  # else the session expired, and its nodes with it
            await self._delete((owner_path(self._group, partition), owner))
            self._owned.pop(partition, None)

    async def _create(self, path: str, data: str) -> str | None:
        """Create an ephemeral node. Returns None when it is ours, else its data; its end is then reported as FREED."""
        session = self._session
        while True:
            unanswered = self._unconfirmed.get(path) == data
            self._unconfirmed[path] = data
            try:
                await self._zk.create(path, data.encode(), ephemeral=True, parents=True, session=session)
                self._unconfirmed.pop(path, None)
                return None
            except SessionExpired:
                self._unconfirmed.pop(path, None)
                raise
            except NodeExists:
                if not unanswered:
                    self._unconfirmed.pop(path, None)
            node = await self._zk.get(path, watch=True)
            if node is not None:
                self._unconfirmed.pop(path, None)
                if unanswered and (node.data, node.owner) == (data.encode(), session):
                    return None
                self._blockers.add(path)
                return (node.data or b"").decode(errors="replace")

    async def _delete(self, item: tuple[str, str]) -> None:
        """Delete a node if it is ours: it may have been deleted by hand, and created by another member."""
        path, data = item
        session = self._zk.session_id
        while True:
            node = await self._zk.get(path)
            if node is None or (node.data, node.owner) != (data.encode(), session):
                break
            with suppress(NoNode, ConnectionLost):  # after a lost connection: look again
                await self._zk.delete(path, session=session)
                break
        self._unconfirmed.pop(path, None)


_SESSION_EVENTS = {
    SessionState.CONNECTED: MemberEvent.CONNECTED,
    SessionState.SUSPENDED: MemberEvent.SUSPENDED,
    SessionState.EXPIRED: MemberEvent.EXPIRED,
}

K = TypeVar("K")
V = TypeVar("V")


def _present(keys: Iterable[K], values: Iterable[V | None]) -> dict[K, V]:
    """Return a dict without the nodes that vanished between listing and reading them."""
    return {key: value for key, value in zip(keys, values, strict=True) if value is not None}


def describe_left(owned: Collection[TopicPartition], path: str) -> str:
    """Return in words what a member that is leaving still has."""
    if not owned:
        return f"{path} is not deleted yet"
    first = min(owned)
    others = f" and {len(owned) - 1} more" if len(owned) > 1 else ""
    return f"{len(owned)} partitions ({first}{others}) are not released yet"


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
