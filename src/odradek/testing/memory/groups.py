"""Consumer groups of an in-memory cluster: their members, who owns what, and the stored positions.

The partitions of each topic are dealt out to the streams of the members in turn, in the order in which the members
joined. Members follow incrementally: each releases what it no longer is to have, and claims what is free.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from odradek.core.admin import GroupDescription, MemberDescription
from odradek.core.backoff import Backoff
from odradek.core.interfaces import NO_METADATA, Assignment, RebalanceListener, Subscription
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.errors import ConfigError, DeadlineError, GroupError, OdradekError, SessionExpired
from odradek.io.retry import retry
from odradek.types import CommittedPosition, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode

if TYPE_CHECKING:
    from odradek.testing.memory.state import ClusterState

__all__ = ["GroupSession", "MemoryGroup", "MemoryMembership", "MemoryOffsets", "describe_group"]

JITTER = 0.5
"""Instead of chance: see `broker`."""


@dataclass(eq=False)
class GroupSession:
    """One member from joining to leaving or expiring. After that, nothing of it counts.

    Args:
        membership: The member.
        owned: Its partitions; nobody else gets one of them before it has released it.
        number: The generation in which it joined.
    """

    membership: MemoryMembership
    owned: set[TopicPartition] = field(default_factory=set)
    expired: bool = False
    number: int = 0


class MemoryGroup:
    """One group.

    Args:
        name: Its name.
        changed: Called after every change.
    """

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        self.name = name
        self.committed: dict[TopicPartition, Position] = {}
        self.metadata: dict[TopicPartition, str] = {}
        """Texts that were stored with these positions."""
        self.sessions: dict[str, GroupSession] = {}
        """The members, by id, in the order in which they joined."""
        self.generation = 0
        """Grows whenever a member joins or leaves."""
        self.withheld: set[TopicPartition] = set()
        """Partitions that no member is to have."""
        self.pending: dict[int, dict[TopicPartition, tuple[int, Offset]]] = {}
        """Positions in each open transaction, numbered, by the id of its producer."""
        self.exists = False
        """It has had a member or a position, and was not deleted since."""
        self._changed = changed
        self._numbers, self._stores = count(1), count(1)
        self._stored: dict[TopicPartition, int] = {}  # the number of what is stored

    def store(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str], usual: str = ""
    ) -> None:
        """Store positions with their texts; `usual` is that of the others."""
        self.exists = True
        self.committed.update(positions)
        self.metadata.update({partition: metadata.get(partition, usual) for partition in positions})
        self._stored.update(dict.fromkeys(positions, next(self._stores)))

    def add_to_transaction(self, producer_id: int, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Store positions with a transaction. Of several positions the one counts that was sent last, whatever ends
        last."""
        self.exists, number = True, next(self._stores)
        self.pending.setdefault(producer_id, {}).update({p: (number, offset) for p, offset in offsets.items()})

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Store the positions of a transaction, or forget them."""
        for partition, (number, offset) in self.pending.pop(producer_id, {}).items():
            if committed and number > self._stored.get(partition, 0):
                self.committed[partition] = Position(offset.offset)
                self.metadata[partition], self._stored[partition] = offset.metadata or "", number

    def forget(self, topic: str) -> None:
        """Forget the positions of a topic that is deleted."""
        self.committed = {partition: at for partition, at in self.committed.items() if partition.topic != topic}
        for number, offsets in self.pending.items():
            self.pending[number] = {partition: sent for partition, sent in offsets.items() if partition.topic != topic}

    def describe(self) -> GroupDescription:
        """Return its members. A group that was only told positions has no kind of members yet."""
        kind, protocol_type = ("consumer", "consumer") if self.generation else ("classic", "")
        owned = {member_id: session.owned for member_id, session in self.sessions.items()}
        return describe_group(self.name, kind, protocol_type, owned)

    def delete(self) -> None:
        """Forget everything, as coordinators do with a group that is deleted."""
        self.exists, self.generation = False, 0
        self.committed.clear()
        self.pending.clear()

    def fence(self, member: GroupMetadata, partitions: Collection[TopicPartition]) -> ErrorCode:
        """Return why a transaction cannot store positions for a member, or NONE (KIP-447)."""
        session = self.sessions.get(member.member_id)
        if session is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if session.number != member.generation or not session.owned.issuperset(partitions):
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def new_id(self) -> str:
        """Return an id for a member that chose none."""
        return f"{self.name}_{next(self._numbers)}"

    def join(self, membership: MemoryMembership) -> GroupSession:
        """Add a member."""
        self.exists = True
        self._rebalance()
        session = self.sessions[membership.consumer_id] = GroupSession(membership, number=self.generation)
        return session

    def remove(self, session: GroupSession) -> None:
        """Remove a member; its partitions are free."""
        if self.sessions.get(session.membership.consumer_id) is session:
            del self.sessions[session.membership.consumer_id]
            session.expired = True
            session.owned.clear()
            self._rebalance()

    def release(self, session: GroupSession, partitions: Collection[TopicPartition]) -> None:
        """Free partitions of a member."""
        session.owned.difference_update(partitions)
        self._changed()

    def _rebalance(self) -> None:
        self.generation += 1
        self._changed()

    def target(
        self, session: GroupSession, partitions: Mapping[str, Sequence[TopicPartition]]
    ) -> dict[TopicPartition, int]:
        """Return the partitions that a member is to have, each with the number of its stream.

        Args:
            session: The member.
            partitions: The partitions of every topic.
        """
        target: dict[TopicPartition, int] = {}
        for topic, numbers in partitions.items():
            streams = [
                (each, number)
                for each in self.sessions.values()
                for number in range(streams_of(each.membership.subscription, topic))
            ]
            if streams:
                for index, partition in enumerate(numbers):
                    owner, number = streams[index % len(streams)]
                    if owner is session and partition not in self.withheld:
                        target[partition] = number
        return target

    def owners(self, session: GroupSession, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the other members that own one of these partitions."""
        return {
            partition: consumer_id
            for consumer_id, other in self.sessions.items()
            if other is not session
            for partition in other.owned.intersection(partitions)
        }


class MemoryMembership:
    """A member of a group. Implements `core.interfaces.Membership`.

    Args:
        state: The cluster.
        subscription: The topics it wants to consume.
        timeout: How long one request may take (s).
        backoff: Wait between attempts to join.
    """

    why_lost = "the session has expired"
    """Reason of the latest loss (see `Membership.why_lost`)."""

    def __init__(self, state: ClusterState, subscription: Subscription, timeout: float, backoff: Backoff) -> None:
        check_subscription(subscription)
        self.subscription = subscription
        self.problem = ""
        self._state, self._timeout, self._backoff = state, timeout, backoff
        self._group = group = state.group(subscription.group)
        fixed = subscription.consumer_id
        self.consumer_id = group.new_id() if fixed is None else f"{group.name}_{fixed}"
        self._session: GroupSession | None = None
        self._listener: RebalanceListener | None = None
        self._assigned: set[TopicPartition] | None = None  # of this session; it may be empty

    def __repr__(self) -> str:
        owned = 0 if self._session is None else len(self._session.owned)
        return f"<{type(self).__name__} {self.consumer_id} owns {owned} partitions>"

    async def run(self, listener: RebalanceListener) -> None:
        """Join, and call `listener`, until cancelled: see `Membership.run`."""
        self._listener = listener
        changed = self._state.changed
        while True:
            session = self._session or await self._join()
            version = changed.version
            if await self._follow(session, listener):
                await changed.wait(version)

    def expire(self) -> None:
        """End the session, as a group does with a member that it has not heard of for too long."""
        lost, self._assigned = frozenset(self._assigned or ()), None
        session, self._session = self._session, None
        if self._listener is not None and lost:
            self._listener.lost(lost)  # first: it cancels a commit, which removing the session would wake
        if session is not None:
            self._group.remove(session)

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> None:
        """Store positions of owned partitions: see `Membership.commit`.

        Raises SessionExpired when the session has ended, GroupError for a partition that this member does not own,
        BrokerError for a topic that was deleted.
        """
        session = self._session
        await self._state.serve("commit", self._timeout, partitions=positions.keys())
        if session is None or session.expired:
            raise SessionExpired(f"the session of {self.consumer_id} has expired: nothing was committed")
        if foreign := sorted(positions.keys() - session.owned):
            raise GroupError(f"{foreign[0]} does not belong to {self.consumer_id}: nothing was committed")
        _store(self._state, self._group, positions, metadata, self.subscription.commit_metadata)

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """Return the stored positions; None where none was ever stored. Waits for transactions that store others."""
        return await self._committed(partitions, self._timeout)

    async def _committed(
        self, partitions: Sequence[TopicPartition], timeout: float
    ) -> dict[TopicPartition, Position | None]:
        await self._state.serve("committed", self._timeout, partitions=partitions)
        await _until_stable(self._state, self._group, partitions, timeout)
        return {partition: self._group.committed.get(partition) for partition in partitions}

    def shares(self, state: ClusterState) -> bool:
        """Return True if this member belongs to a cluster."""
        return self._state is state

    def offsets(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Offset]:
        """Return positions as this member stores them."""
        text = self.subscription.commit_metadata
        return {partition: Offset(position, metadata=text) for partition, position in positions.items()}

    def token(self, positions: Mapping[TopicPartition, Position]) -> GroupMetadata:
        """Return what proves that this member owns all these partitions; else raise GroupError."""
        session = self._session
        owned = set() if session is None else session.owned
        if session is None or not owned.issuperset(positions):
            foreign = min(positions.keys() - owned)
            raise GroupError(f"group {self._group.name}: {foreign} does not belong to this member: not committed")
        return GroupMetadata(self._group.name, session.number, self.consumer_id)

    async def leave(self) -> None:
        """Release everything and leave the group, whatever the cluster answers: see `Membership.leave`."""
        session, self._session, self._assigned = self._session, None, None
        if session is not None:
            try:
                await self._state.serve("leave", self._timeout)
            finally:
                self._group.remove(session)

    # ---- joining and following --------------------------------------------------------------------------------

    async def _join(self) -> GroupSession:
        attempt = 0
        while True:
            try:
                await self._state.serve("join", self._timeout)
                break
            except OdradekError as error:
                if not error.retriable:
                    raise
                self.problem = str(error)
            await anyio.sleep(self._backoff.delay(attempt, JITTER))
            attempt += 1
        if self._state.share_group(self._group.name).exists:
            raise broker_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"group {self._group.name}: it is a share group")
        changed = self._state.changed
        while self.consumer_id in self._group.sessions:
            self.problem = f"another member has the id {self.consumer_id}"
            await changed.wait(changed.version)
        self.problem = ""
        self._session = session = self._group.join(self)
        return session

    async def _follow(self, session: GroupSession, listener: RebalanceListener) -> bool:
        """Take one step towards what this member is to have. Return True if only a change can bring another one."""
        target = self._target(session)
        if surplus := session.owned - target.keys():
            await listener.revoke(surplus)
            if not session.expired:
                self._assigned = (self._assigned or set()) - surplus
                self._group.release(session, surplus)
            return False
        added = {partition: stream for partition, stream in target.items() if partition not in session.owned}
        if not added and self._assigned is not None:
            return True
        if owners := self._group.owners(session, added):
            partition, owner = next(iter(owners.items()))
            self.problem = f"{len(owners)} partitions belong to other members ({partition} to {owner})"
            return True
        self.problem = ""
        session.owned.update(added)
        await self._assign(session, listener, added)
        return False

    async def _assign(
        self, session: GroupSession, listener: RebalanceListener, added: Mapping[TopicPartition, int]
    ) -> None:
        committed = await retry(lambda: self._committed(list(added), inf), self._backoff)
        if not session.expired:
            self._assigned = (self._assigned or set()) | added.keys()
            await listener.assign(Assignment(self._group.generation, added, committed))

    def _target(self, session: GroupSession) -> dict[TopicPartition, int]:
        table = self._state.table
        return self._group.target(session, {topic: table.partitions(topic) for topic in sorted(table.topics)})


class MemoryOffsets:
    """The stored positions of a group. Implements `core.interfaces.OffsetStore`."""

    def __init__(self, state: ClusterState, group: str, timeout: float) -> None:
        self._state, self._group, self._timeout = state, state.group(group), timeout

    async def fetch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        """Return the stored positions; None where none was ever stored. Waits for transactions that store others.
        Cancellation: safe."""
        await anyio.lowlevel.checkpoint()
        await _until_stable(self._state, self._group, partitions, self._timeout)
        return {partition: self._group.committed.get(partition) for partition in partitions}

    async def fetch_with_metadata(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedPosition | None]:
        """Return the stored positions and their texts. Cancellation: safe."""
        texts, positions = self._group.metadata, await self.fetch(partitions)
        return {p: None if at is None else CommittedPosition(at, texts.get(p, "")) for p, at in positions.items()}

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> None:
        """Store positions, unfenced: see `OffsetStore.commit`. Raises BrokerError while the group has members, for a
        share group, and for topics that do not exist."""
        await self._state.serve("commit", self._timeout, partitions=positions.keys())
        is_shared = self._state.share_group(self._group.name).exists
        if is_shared or self._group.sessions:
            code = ErrorCode.GROUP_ID_NOT_FOUND if is_shared else ErrorCode.UNKNOWN_MEMBER_ID
            raise broker_error(code, f"group {self._group.name}: positions not stored")
        _store(self._state, self._group, positions, metadata)


def _store(
    state: ClusterState,
    group: MemoryGroup,
    positions: Mapping[TopicPartition, Position],
    metadata: Mapping[TopicPartition, str],
    usual: str = "",
) -> None:
    """Store the positions of partitions that exist. Raises BrokerError if others do not, as their topic was deleted."""
    known = {partition: at for partition, at in positions.items() if partition in state.logs}
    if known:
        group.store(known, metadata, usual)
    if missing := positions.keys() - known.keys():
        names = ", ".join(map(str, sorted(missing)))
        raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"group {group.name}: positions not stored: {names}")


async def _until_stable(
    state: ClusterState, group: MemoryGroup, partitions: Collection[TopicPartition], timeout: float
) -> None:
    """Wait until no open transaction stores positions of these partitions (KIP-447). Raises DeadlineError."""
    with anyio.move_on_after(timeout):
        while any(not positions.keys().isdisjoint(partitions) for positions in group.pending.values()):
            await state.changed.wait(state.changed.version, state.clock.seconds_until(state.transactions.next_expiry()))
            state.transactions.expire()
        return
    raise DeadlineError(f"{group.name}: positions not read, because a transaction is open that stores others", timeout)


def describe_group(
    name: str, kind: str, protocol_type: str, owned: Mapping[str, Collection[TopicPartition]]
) -> GroupDescription:
    """Return the description of a group; `owned` are the partitions of each member."""
    members = tuple(MemberDescription(member_id, None, "", "", tuple(sorted(p))) for member_id, p in owned.items())
    return GroupDescription(name, "Stable" if members else "Empty", kind, protocol_type, "", members, None)


def check_subscription(subscription: Subscription) -> None:
    """Raise ConfigError for a subscription that cannot work."""
    chosen = [x for x in (subscription.topics, subscription.include, subscription.exclude) if x is not None]
    if len(chosen) != 1:
        raise ConfigError("a subscription needs exactly one of topics, include and exclude")
    for pattern in (subscription.include, subscription.exclude):
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ConfigError(f"{pattern!r} is no regular expression: {error}") from error


def streams_of(subscription: Subscription, topic: str) -> int:
    """Return how many streams a member has for a topic: 0 if it does not consume it."""
    if subscription.topics is not None:
        return subscription.topics.get(topic, 0)
    return subscription.streams if subscription.selects(topic) else 0
