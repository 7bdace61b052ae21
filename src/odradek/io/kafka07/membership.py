"""A consumer group over ZooKeeper, wire-compatible with the Scala high-level consumer (specification 5.1, 6.1, 6.2).

`core.group07` decides; this module reads the group, carries plans out, and tells the listener. One task does it all,
step by step: the states are those of `core.group07.MEMBER`, and each step's result is the event that leads on.
"""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import anyio

from odradek.core.interfaces import Assignment, RebalanceListener, Subscription
from odradek.core.kafka07.group import (
    MEMBER,
    GroupSnapshot,
    MemberEvent,
    MemberState,
    RebalancePlan,
    blocked_by,
    plan,
    verdict,
)
from odradek.core.kafka07.znodes import (
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
from odradek.io.zookeeper import NodeEvent, SessionEvent, SessionState, ZooKeeper
from odradek.types import Position, TopicPartition

__all__ = ["RebalanceOptions", "ZooKeeperMembership", "ZooKeeperOffsets"]

log = logging.getLogger("odradek.group")

TROUBLE = (ZooKeeperError, TransportError, DeadlineError)
"""What makes one attempt fail. Anything else (credentials refused, our own mistakes) ends the membership."""


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """How stubbornly partitions are claimed.

    Args:
        attempts: Tries in a row without a change of the group in between (Scala: rebalance.retries.max).
        backoff: Longest pause between them (s); a pause ends early when the partitions in question are released.
    """

    attempts: int = 4
    backoff: float = 2.0


class ZooKeeperOffsets:
    """Implements `core.interfaces.OffsetStore`: one node per partition with its position as decimal text.

    Args:
        zk: An open session.
        group: Whose positions.
    """

    def __init__(self, zk: ZooKeeper, group: str) -> None:
        self._zk = zk
        self.group = check_group(group)

    async def fetch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """The stored positions; None where nothing was ever stored. Raises ZooKeeperError for a malformed node."""
        return dict(zip(partitions, await gather(self._read, partitions), strict=True))

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Store them, each for itself. ZooKeeperError names those that (perhaps) were not stored, and why."""
        results = await gather_outcomes(self._store, positions.items())
        failed = {p: r for p, r in zip(positions, results, strict=True) if isinstance(r, OdradekError)}
        if failed:
            names = "; ".join(f"{partition} ({error})" for partition, error in failed.items())
            raise ZooKeeperError(
                f"group {self.group}: {len(failed)} of {len(positions)} positions not stored: {names}"
            ) from next(iter(failed.values()))

    async def _read(self, partition: TopicPartition) -> Position | None:
        path = offset_path(self.group, partition)
        node = await self._zk.get(path)
        return None if node is None else parse_offset(path, node.data)

    async def _store(self, item: tuple[TopicPartition, Position]) -> None:
        path, data = offset_path(self.group, item[0]), str(int(item[1])).encode()
        while True:
            with suppress(NoNode):
                await self._zk.set(path, data)
                return
            with suppress(NodeExists):
                await self._zk.create(path, data, parents=True)
                return


class ZooKeeperMembership:
    """Implements `core.interfaces.Membership`.

    An owners node that is there already blocks a claim unless this very object may have made it: also a node with
    our own id left by an earlier process, whose session has yet to expire.

    Args:
        zk: An open session; it makes the ephemeral nodes of this member. It is used, not closed.
        subscription: What to consume.
        options: Attempts and back-off.
    """

    def __init__(self, zk: ZooKeeper, subscription: Subscription, options: RebalanceOptions | None = None) -> None:
        self._zk = zk
        self._options = options or RebalanceOptions()
        self._group = check_group(subscription.group)
        self._registration = registration_of(subscription)
        self.consumer_id = consumer_id_of(subscription)
        self._offsets = ZooKeeperOffsets(zk, self._group)
        self._path = member_path(self._group, self.consumer_id)
        self._state = MEMBER.start
        self._attempt = self._generation = 0
        self._reason = ""
        self._joined = False  # whether it ever made its ids node
        self._owned = False  # whether it ever got its share
        self._assigned = False  # whether the listener has an assignment
        self._forget()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.consumer_id} {self._state.name} owns={len(self._held)}>"

    def _forget(self) -> None:
        """What is true in one session only."""
        self._session = 0
        self._view: GroupSnapshot | None = None
        self._held: dict[TopicPartition, str] = {}
        self._doubtful: dict[str, str] = {}  # nodes whose creation was never answered: path -> data
        self._watched: set[str] = set()
        self._blockers: set[str] = set()

    async def run(self, listener: RebalanceListener) -> None:
        """Join, and serve `listener` until cancelled.

        Raises GroupError when the attempts are used up before the first assignment; the member stays registered until
        `leave`, as Scala's does, and `run` may be called again. After the first assignment a conflict leaves the
        listener with what could be kept, and everything is tried again at the next change of the group. Raises Closed
        when the session is closed, ConfigError when ZooKeeper refuses the credentials.

        Cancellation: at once, nothing is released; `leave` does that.
        """
        self._listener = listener
        self._events = self._zk.events()
        self._state = MEMBER.start
        self._attempt = 0
        steps: dict[MemberState, Callable[[], Awaitable[MemberEvent]]] = {
            MemberState.STARTING: self._await_session,
            MemberState.SUSPENDED: self._await_session,
            MemberState.EXPIRED: self._await_session,
            MemberState.JOINING: self._join,
            MemberState.BALANCING: self._balance,
            MemberState.BACKING_OFF: self._back_off,
            MemberState.OWNING: self._listen,
            MemberState.STUCK: self._listen,
        }
        while self._state is not MemberState.FAILED:
            self._state = MEMBER.after(self._state, await steps[self._state]())
        raise GroupError(f"{self.consumer_id} got no partitions in {self._attempt} attempts: {self._reason}")

    async def leave(self) -> None:
        """Delete our owners nodes and then our ids node, so that the others find everything free. Raises what
        ZooKeeper said after trying all; may be called again then."""
        results = await gather_outcomes(self._release, list(self._held))
        results += await gather_outcomes(self._delete, list(self._doubtful.items()))
        results += await gather_outcomes(self._delete, [(self._path, self._registration.data().decode())])
        errors = [e for e in results if isinstance(e, OdradekError) and not isinstance(e, SessionExpired | Closed)]
        if errors:
            raise errors[0]
        self._forget()  # or the session is over, and its nodes with it
        self._joined = False

    # ---- waiting --------------------------------------------------------------------------------------------

    async def _listen(self) -> MemberEvent:
        async for event in self._events:
            meaning = self._meaning(event)
            if meaning is not None:
                return meaning
        raise Closed(f"{self._zk!r} was closed")

    def _meaning(self, event: NodeEvent | SessionEvent) -> MemberEvent | None:
        if isinstance(event, SessionEvent):
            if event.state is SessionState.EXPIRED:
                if self._session == self._zk.session_id and self._zk.state is SessionState.CONNECTED:
                    return None  # noticed already, see `_join`
                self._expired()
            self._attempt = 0
            return _SESSION_EVENTS.get(event.state)
        if event.path in self._watched:
            self._attempt = 0  # a new situation: the attempts count anew
            return MemberEvent.CHANGED
        if event.path in self._blockers:
            self._blockers.discard(event.path)
            return None if self._blockers else MemberEvent.FREED
        return None

    def _expired(self) -> None:
        # When we learn of it late, what we made last may already belong to the next session.
        made = {owner_path(self._group, partition): owner for partition, owner in self._held.items()}
        doubtful = {**self._doubtful, **made}
        self._forget()
        self._doubtful = doubtful
        if self._assigned:
            self._assigned = False
            self._listener.lost()

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
            if self._session:  # expired, and the event is still on its way to us
                self._expired()
            try:
                session, data = self._zk.session_id, self._registration.data().decode()
                if self._joined:  # the node may be there, made in the session that begins
                    self._doubtful[self._path] = data
                if await self._create(self._path, data) is not None:
                    return self._failed(f"{self._path} belongs to another session", conflict=True)
                self._session, self._joined = session, True
            except TROUBLE as error:
                return self._failed(str(error), conflict=False)
        return MemberEvent.JOINED

    async def _balance(self) -> MemberEvent:
        try:
            view = await self._read_view()
            if view != self._view:
                self._view = None
                if self._assigned:
                    await self._listener.revoke()
                    self._assigned = False
                decided = plan(self.consumer_id, view, self._held)
                if owners := await self._carry_out(decided):
                    return await self._conflict(decided, owners)
                await self._assign(decided.target)
                self._view = view
        except TROUBLE as error:
            return self._failed(str(error), conflict=False)
        self._owned = True
        self._attempt = 0
        return MemberEvent.BALANCED

    def _failed(self, reason: str, *, conflict: bool) -> MemberEvent:
        if reason != self._reason:
            log.warning("%s cannot get its partitions: %s", self.consumer_id, reason)
        self._reason = reason
        event = verdict(self._attempt, self._options.attempts, owned=self._owned, conflict=conflict)
        if event is MemberEvent.EXHAUSTED:
            self._attempt = 0  # for when the owners are gone
        return event

    async def _conflict(self, decided: RebalancePlan, owners: Mapping[TopicPartition, str]) -> MemberEvent:
        """Release what was claimed in vain (all or nothing, as Scala does); what was kept is kept."""
        await gather(self._release, [p for p in decided.claim if p in self._held])
        event = self._failed(blocked_by(owners), conflict=True)
        if event is MemberEvent.EXHAUSTED:
            await self._assign({p: stream for p, stream in decided.target.items() if p in self._held})
        return event

    async def _carry_out(self, decided: RebalancePlan) -> dict[TopicPartition, str]:
        """Release, then claim. Returns the owners of what could not be had."""
        claims = {owner_path(self._group, p) for p in decided.claim}
        await gather(self._delete, [item for item in self._doubtful.items() if item[0] not in claims])
        await gather(self._release, sorted(decided.release))
        owners = await gather(self._claim, decided.claim.items())
        return {p: owner for p, owner in zip(decided.claim, owners, strict=True) if owner is not None}

    async def _assign(self, target: Mapping[TopicPartition, int]) -> None:
        """Hand `target` to the listener, with positions read now: after the claims (see core.group07)."""
        committed = await self._offsets.fetch(list(target))
        if self._zk.session_id != self._session:
            raise SessionExpired(f"the session of {self.consumer_id} expired during a rebalance")
        self._generation += 1
        self._reason = ""
        self._assigned = True
        log.info("%s owns %d partitions, generation %d", self.consumer_id, len(target), self._generation)
        await self._listener.assign(Assignment(self._generation, target, committed))

    # ---- reading the group ----------------------------------------------------------------------------------

    async def _read_view(self) -> GroupSnapshot:
        self._watched = set()
        members = await self._read_members()
        if self.consumer_id not in members:  # somebody deleted it
            self._session = 0
            raise NoNode(f"{self._path} is gone")
        listed = await self._children(TOPICS) if isinstance(self._registration, WildcardRegistration) else ()
        topics = sorted(self._registration.wanted(listed))
        return GroupSnapshot(members, dict(zip(topics, await gather(self._read_topic, topics), strict=True)))

    async def _read_members(self) -> dict[str, Registration]:
        async def one(name: str) -> Registration | None:
            path = member_path(self._group, name)
            node = await self._zk.get(path)
            return None if node is None else parse_registration(path, node.data)

        names = await self._children(members_path(self._group))
        return _present(names, await gather(one, names))

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
        other = await self._create(owner_path(self._group, partition), owner)
        if other is None:
            self._held[partition] = owner
        return other

    async def _release(self, partition: TopicPartition) -> None:
        await self._delete((owner_path(self._group, partition), self._held[partition]))
        del self._held[partition]

    async def _create(self, path: str, data: str) -> str | None:
        """Make an ephemeral node. None when it is ours; else what it holds, and its end sets us free."""
        while True:
            unanswered = self._doubtful.get(path) == data
            self._doubtful[path] = data
            try:
                await self._zk.create(path, data.encode(), ephemeral=True, parents=True)
                del self._doubtful[path]
                return None
            except NodeExists:
                if not unanswered:
                    del self._doubtful[path]
            node = await self._zk.get(path, watch=True)
            if node is not None:
                self._doubtful.pop(path, None)
                if unanswered and (node.data, node.owner) == (data.encode(), self._zk.session_id):
                    return None
                self._blockers.add(path)
                return (node.data or b"").decode(errors="replace")

    async def _delete(self, item: tuple[str, str]) -> None:
        """Delete a node if it is ours: after an expiry it may be somebody else's by now."""
        path, data = item
        while True:
            node = await self._zk.get(path)
            if node is None or (node.data, node.owner) != (data.encode(), self._zk.session_id):
                break
            with suppress(NoNode, ConnectionLost):  # look again
                await self._zk.delete(path)
        self._doubtful.pop(path, None)


_SESSION_EVENTS = {
    SessionState.CONNECTED: MemberEvent.CONNECTED,
    SessionState.SUSPENDED: MemberEvent.SUSPENDED,
    SessionState.EXPIRED: MemberEvent.EXPIRED,
}

K = TypeVar("K")
V = TypeVar("V")


def _present(keys: Iterable[K], values: Iterable[V | None]) -> dict[K, V]:
    """Nodes that vanished between the list of names and the look at each are left out."""
    return {key: value for key, value in zip(keys, values, strict=True) if value is not None}


def registration_of(subscription: Subscription) -> Registration:
    """What the ids node will say. Raises ConfigError for a subscription that makes no sense."""
    given = [x for x in (subscription.topics, subscription.include, subscription.exclude) if x is not None]
    if len(given) != 1:
        raise ConfigError("a subscription needs exactly one of topics, include and exclude")
    if subscription.topics is not None:
        counts = list(subscription.topics.values())
        registration: Registration = StaticRegistration(dict(subscription.topics))
    else:
        counts = [subscription.streams]
        raw = subscription.include if subscription.exclude is None else subscription.exclude
        registration = WildcardRegistration(
            TopicFilter.of(raw or "", exclude=subscription.exclude is not None), subscription.streams
        )
    if not counts or min(counts) < 1:
        raise ConfigError("a subscription needs at least one topic, and at least one stream for each")
    return registration


def consumer_id_of(subscription: Subscription) -> str:
    """The id of the ids node: `consumer_id` replaces all but the group, as Scala's `consumerid` does."""
    group = subscription.group
    if subscription.consumer_id is not None:
        return check_group(f"{group}_{subscription.consumer_id}")
    return consumer_id(group, socket.gethostname(), time.time_ns() // 1_000_000, uuid.uuid4().hex[:8])
