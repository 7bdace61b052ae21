"""Share groups of an in-memory cluster: who has acquired which record, until when, and how often it was delivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import count, takewhile
from math import inf
from typing import TYPE_CHECKING

import anyio

from odradek.core.admin import GroupDescription
from odradek.core.interfaces import AckType, AcquiredBatch, ShareSubscription
from odradek.core.kafka.broker_errors import broker_error
from odradek.errors import Closed, CorruptMessage, GroupError
from odradek.testing.memory.groups import describe_group
from odradek.testing.memory.log import MemoryLog, columns_of
from odradek.types import EARLIEST, LATEST, PositionSpec, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode

if TYPE_CHECKING:
    from odradek.testing.memory.state import ClusterState

__all__ = ["MemoryShareGroup", "ShareGroupState"]

LOCK_S = 30.0
"""Duration of a lock, by the clock of the cluster (group.share.record.lock.duration.ms)."""

MAX_DELIVERIES = 5
"""Deliveries of a record at most (group.share.delivery.count.limit)."""

RETRY_S = 0.01
"""Back-off after an error that passes (s)."""


@dataclass(slots=True)
class _Held:
    member: MemoryShareGroup
    locked_until: float


@dataclass(slots=True)
class _SharedPartition:
    """What a share group knows of a partition: records from `end` on were never delivered."""

    end: int
    held: dict[int, _Held] = field(default_factory=dict)
    available: set[int] = field(default_factory=set)  # delivered before, and given back
    deliveries: dict[int, int] = field(default_factory=dict)

    def give_back(self, offset: int) -> None:
        del self.held[offset]
        if self.deliveries[offset] < MAX_DELIVERIES:
            self.available.add(offset)
        else:
            del self.deliveries[offset]

    def expire(self, now: float) -> None:
        for offset in [offset for offset, held in self.held.items() if held.locked_until <= now]:
            self.give_back(offset)

    def acquire(self, member: MemoryShareGroup, log: MemoryLog, limit: int, until: float) -> list[int]:
        self.end = max(self.end, log.start)
        row = log.row(self.end)
        fresh = [stored.offset for stored in log.records[row : row + limit]]
        offsets = sorted(offset for offset in {*self.available, *fresh} if log.has(offset))[:limit]
        for offset in offsets:
            self.available.discard(offset)
            self.held[offset] = _Held(member, until)
            self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
            self.end = max(self.end, offset + 1)
        return offsets


class ShareGroupState:
    """One share group.

    Args:
        name: Its name.
        start: Where it begins with a partition: share.auto.offset.reset.
    """

    def __init__(self, name: str, start: PositionSpec = LATEST) -> None:
        self.name, self.start = name, start
        self.exists = False
        """It has had a member, and was not deleted since."""
        self.partitions: dict[tuple[TopicPartition, bytes | None], _SharedPartition] = {}
        self.members: list[MemoryShareGroup] = []

    def partition(self, where: TopicPartition, topic_id: bytes | None, log: MemoryLog) -> _SharedPartition:
        """Return the state of a partition, which begins with the first call. It is lost with its topic."""
        if (known := self.partitions.get((where, topic_id))) is None:
            start = log.start if self.start is EARLIEST else log.end
            known = self.partitions[where, topic_id] = _SharedPartition(start)
        return known

    def describe(self) -> GroupDescription:
        """Return its members."""
        return describe_group(self.name, "share", "share", {each.member_id: each.assignment for each in self.members})

    def delete(self) -> None:
        """Forget everything, as coordinators do with a group that is deleted."""
        self.exists = False
        self.partitions.clear()


_NUMBERS = count(1)


class MemoryShareGroup:
    """A member of a share group. Implements `core.interfaces.ShareGroup`.

    Args:
        state: The cluster.
        subscription: What it reads.
        timeout: How long one request may take (s).
    """

    problem = ""

    def __init__(self, state: ClusterState, subscription: ShareSubscription, timeout: float) -> None:
        self._state, self._subscription, self._timeout = state, subscription, timeout
        self._group = state.share_group(subscription.group)
        self.member_id = f"{subscription.group}_{next(_NUMBERS)}"
        self.has_joined = self._left = False
        self._error: Exception | None = None
        self._refused: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.member_id}>"

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """Every partition of its topics: all members read all."""
        if not self.has_joined or self._left:
            return frozenset()
        return frozenset(p for topic in self._subscription.topics for p in self._state.table.partitions(topic))

    async def run(self) -> None:
        """Join, and stay in the group until `leave` (see `ShareGroup`)."""
        changed = self._state.changed
        try:
            await self._state.serve("join", self._timeout)
            self._join()
            changed.notify()
            for partition in self.assignment:
                self._shared(partition)  # which begins now, at the end of its log by default
            while not self._left:
                await changed.wait(changed.version)
        except Exception as error:
            self._error = error
            raise
        finally:
            self._release_all()

    def _join(self) -> None:
        name = self._subscription.group
        if self._state.group(name).exists:
            raise broker_error(ErrorCode.GROUP_ID_NOT_FOUND, f"share group {name}: it is not a share group")
        self.has_joined = self._group.exists = True
        self._group.members.append(self)

    async def wait_until_joined(self) -> None:
        """Wait until `has_joined` (see `ShareGroup`)."""
        changed = self._state.changed
        while not self.has_joined:
            self._check()
            await changed.wait(changed.version)

    async def next_batch(self) -> AcquiredBatch:
        """Wait for records, and return them (see `ShareGroup`)."""
        changed = self._state.changed
        while True:
            version = changed.version
            self._check()
            for partition in sorted(self.assignment):
                acquired = self._acquire(partition)
                if acquired is not None and await self._serve_fetch(partition, acquired):
                    return acquired
            await changed.wait(version, self._state.clock.seconds_until(self._next_expiry()))

    async def _serve_fetch(self, partition: TopicPartition, acquired: AcquiredBatch) -> bool:
        """Let faults of a fetch take effect; what was acquired for nothing is given back. Return False to try again."""
        leader = self._state.table.leader(partition)
        try:
            await self._state.serve("fetch", self._timeout, partitions=(partition,))
            error = self._state.error_of("fetch", partition, -1 if leader is None else leader.id)
            if error is None:
                return True
            if not error.retriable:
                raise error
        except BaseException:
            self._give_back(acquired)
            raise
        self._give_back(acquired)
        await anyio.sleep(RETRY_S)
        return False

    def _give_back(self, acquired: AcquiredBatch) -> None:
        for offset in acquired.columns.positions:
            acquired.acknowledge(offset, AckType.RELEASE)

    def _acquire(self, partition: TopicPartition) -> AcquiredBatch | None:
        if (log := self._state.logs.get(partition)) is None:  # deleted while another one was fetched
            return None
        now, shared = self._state.clock.now(), self._shared(partition)
        shared.expire(now)
        offsets = shared.acquire(self, log, self._subscription.max_records, now + LOCK_S)
        sound = list(takewhile(lambda offset: offset not in log.corrupt, offsets))
        for offset in offsets[len(sound) :]:
            shared.give_back(offset)
        if not sound and offsets:
            raise CorruptMessage(str(partition), offsets[0], log.corrupt[offsets[0]])
        offsets = sound
        if not offsets:
            return None
        stored = [log.records[log.row(offset)] for offset in offsets]
        counts = [shared.deliveries[offset] for offset in offsets]
        return AcquiredBatch(partition, columns_of(stored), counts, partial(self._acknowledge, partition, shared))

    def _acknowledge(self, partition: TopicPartition, shared: _SharedPartition, offset: int, kind: AckType) -> bool:
        now = self._state.clock.now()
        shared.expire(now)
        held = shared.held.get(offset)
        if held is None or held.member is not self:
            self._refused[partition] = self._refused.get(partition, 0) + 1
            return False
        if kind is AckType.RENEW:
            held.locked_until = now + LOCK_S
        elif kind is AckType.RELEASE:
            shared.give_back(offset)
        else:
            del shared.held[offset], shared.deliveries[offset]
        self._state.changed.notify()
        return True

    async def flush(self) -> None:
        """Report acknowledgements that have no effect (see `ShareGroup`)."""
        await self._state.serve("commit", self._timeout)
        refused, self._refused = self._refused, {}
        if refused:
            what = ", ".join(f"{number} of {partition}" for partition, number in refused.items())
            raise GroupError(
                f"share group {self._subscription.group}: acknowledgements do not count: {what} (their locks had "
                "expired); these records are delivered again"
            )

    async def leave(self) -> None:
        """Release what is acquired, and leave the group (see `ShareGroup`)."""
        if self._left:
            return
        self._left = True
        self._release_all()
        await self._state.serve("leave", self._timeout)

    def _release_all(self) -> None:
        if self in self._group.members:
            self._group.members.remove(self)
        for shared in self._group.partitions.values():
            for offset in [offset for offset, held in shared.held.items() if held.member is self]:
                shared.give_back(offset)
        self._state.changed.notify()

    def _shared(self, partition: TopicPartition) -> _SharedPartition:
        topic_id = self._state.table.topic_id(partition.topic)
        return self._group.partition(partition, topic_id, self._state.logs[partition])

    def _next_expiry(self) -> float:
        return min((h.locked_until for s in self._group.partitions.values() for h in s.held.values()), default=inf)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._left:
            raise Closed(f"{self!r} has left its group")
