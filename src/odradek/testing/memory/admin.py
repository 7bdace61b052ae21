"""Administration of an in-memory cluster (`core.admin.ClusterAdmin`): topics, records and groups, but no
configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import anyio.lowlevel

from odradek.core.admin import (
    ClusterAdmin,
    ClusterDescription,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    MemberDescription,
    PartitionDescription,
    Results,
    TopicDescription,
    TopicSettings,
)
from odradek.errors import BrokerError, OdradekError
from odradek.testing.memory.state import ClusterState
from odradek.types import Position, TopicPartition

__all__ = ["MemoryAdmin"]

K = TypeVar("K")
V = TypeVar("V")

UNKNOWN_TOPIC, TOPIC_EXISTS, NON_EMPTY_GROUP, NO_GROUP = 3, 36, 68, 69


class MemoryAdmin(ClusterAdmin):
    """Changes take effect at once.

    Args:
        state: The cluster.
    """

    def __init__(self, state: ClusterState) -> None:
        super().__init__("a real broker: an in-memory cluster has topics and groups only")
        self._state = state

    async def describe_cluster(self) -> ClusterDescription:
        """Return the brokers (see `ClusterAdmin`)."""
        await anyio.lowlevel.checkpoint()
        brokers = tuple(sorted(self._state.table.brokers.values()))
        return ClusterDescription("memory", brokers[0].id if brokers else None, brokers, {})

    async def create_topics(
        self, topics: Mapping[str, TopicSettings], *, validate_only: bool
    ) -> Results[str, CreatedTopic]:
        """Create topics (see `ClusterAdmin`); replicas and configuration have no effect."""

        def create(name: str) -> CreatedTopic:
            count = topics[name].partitions or 1
            if name in self._state.table.topics:
                raise BrokerError(TOPIC_EXISTS, "TOPIC_ALREADY_EXISTS", f"creating topic {name!r}")
            if not validate_only:
                brokers = sorted(self._state.brokers)
                self._state.set_topic(name, {number: brokers[number % len(brokers)] for number in range(count)})
            return CreatedTopic(name, None, count, 1)

        return await _each(topics, create)

    async def delete_topics(self, names: Sequence[str]) -> Results[str, None]:
        """Delete topics (see `ClusterAdmin`)."""

        def delete(name: str) -> None:
            self._partitions(name)
            self._state.set_topic(name, None)

        return await _each(names, delete)

    async def describe_topics(self, names: Sequence[str]) -> Results[str, TopicDescription]:
        """Return the partitions of topics (see `ClusterAdmin`)."""

        def describe(name: str) -> TopicDescription:
            return TopicDescription(name, None, False, tuple(self._described(p) for p in self._partitions(name)))

        return await _each(names, describe)

    async def delete_records(
        self, before: Mapping[TopicPartition, Position | None]
    ) -> Results[TopicPartition, Position]:
        """Delete records (see `ClusterAdmin`)."""

        def delete(partition: TopicPartition) -> Position:
            self._partitions(partition.topic)
            log, position = self._state.logs[partition], before[partition]
            log.delete_before(log.end if position is None else position)
            return log.start

        return await _each(before, delete)

    async def list_groups(self) -> list[GroupListing]:
        """Return all groups (see `ClusterAdmin`)."""
        await anyio.lowlevel.checkpoint()
        return [
            GroupListing(name, "consumer", "Stable" if group.sessions else "Empty", "memory")
            for name, group in sorted(self._state.groups.items())
        ]

    async def describe_groups(self, names: Sequence[str]) -> Results[str, GroupDescription]:
        """Return the members of groups (see `ClusterAdmin`)."""

        def describe(name: str) -> GroupDescription:
            self._check_group(name)
            sessions = self._state.groups[name].sessions
            members = tuple(MemberDescription(i, None, "", "", tuple(sorted(s.owned))) for i, s in sessions.items())
            return GroupDescription(name, "Stable" if members else "Empty", "memory", "consumer", "", members, None)

        return await _each(names, describe)

    async def delete_groups(self, names: Sequence[str]) -> Results[str, None]:
        """Delete groups (see `ClusterAdmin`)."""

        def delete(name: str) -> None:
            self._check_group(name)
            if self._state.groups[name].sessions:
                raise BrokerError(NON_EMPTY_GROUP, "NON_EMPTY_GROUP", f"deleting group {name!r}")
            del self._state.groups[name]

        return await _each(names, delete)

    async def delete_positions(self, group: str, partitions: Sequence[TopicPartition]) -> Results[TopicPartition, None]:
        """Delete committed positions (see `ClusterAdmin`)."""

        def delete(partition: TopicPartition) -> None:
            self._check_group(group)
            self._state.groups[group].committed.pop(partition, None)

        return await _each(partitions, delete)

    def _partitions(self, topic: str) -> Sequence[TopicPartition]:
        if topic not in self._state.table.topics:
            raise BrokerError(UNKNOWN_TOPIC, "UNKNOWN_TOPIC_OR_PARTITION", f"topic {topic!r}")
        return self._state.table.partitions(topic)

    def _described(self, partition: TopicPartition) -> PartitionDescription:
        leader = self._state.table.leader(partition)
        copies = () if leader is None else (leader.id,)
        return PartitionDescription(partition, leader and leader.id, None, copies, copies, ())

    def _check_group(self, name: str) -> None:
        if name not in self._state.groups:
            raise BrokerError(NO_GROUP, "GROUP_ID_NOT_FOUND", f"group {name!r}")


async def _each(items: Mapping[K, object] | Sequence[K], change: Callable[[K], V]) -> Results[K, V]:
    """Change every item; the results say which could not be changed."""
    await anyio.lowlevel.checkpoint()
    done: dict[K, V] = {}
    failed: dict[K, OdradekError] = {}
    for item in items:
        try:
            done[item] = change(item)
        except OdradekError as error:
            failed[item] = error
    return Results(done, failed)
