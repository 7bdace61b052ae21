"""Leaders of the partitions of an in-memory cluster, and what one client knows of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from odradek.errors import Closed
from odradek.types import Broker, TopicPartition

if TYPE_CHECKING:
    from odradek.testing.memory.state import ClusterState

__all__ = ["MemoryMetadata", "MemoryRoutingTable"]


@dataclass(frozen=True, slots=True)
class MemoryRoutingTable:
    """An immutable snapshot: live brokers, and the leader of each partition of each topic."""

    version: int = 0
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    leaders: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ids: Mapping[str, bytes] = field(default_factory=dict)
    """Topic -> its id."""

    @property
    def topics(self) -> frozenset[str]:
        """Names of all topics."""
        return frozenset(self.leaders)

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of a topic, by number; none if it does not exist."""
        return tuple(TopicPartition(topic, number) for number in sorted(self.leaders.get(topic, {})))

    registered = partitions

    def leader(self, partition: TopicPartition) -> Broker | None:
        """Return the live broker that leads a partition, or None."""
        return self.brokers.get(self.leaders.get(partition.topic, {}).get(partition.partition, -1))

    def topic_id(self, topic: str) -> bytes | None:
        """Return the id of a topic; None if it does not exist."""
        return self.ids.get(topic)

    def why_unusable(self, topic: str) -> str:
        """Return nothing: a topic is there, or is not."""
        return ""


class MemoryMetadata:
    """One client's metadata. Implements `core.interfaces.ClusterMetadata`.

    A client hears of brokers and topics at once. It learns that a partition has moved from one live broker to another
    when it reads the metadata again, which the answer NOT_LEADER_OR_FOLLOWER of the former leader makes it do.

    Args:
        state: The cluster.
        timeout: How long reading the metadata may take (s).
    """

    reports_changes = True

    def __init__(self, state: ClusterState, timeout: float) -> None:
        self.is_open = True
        self._state, self._timeout = state, timeout
        self._read = state.table

    @property
    def table(self) -> MemoryRoutingTable:
        """Latest table that this client has."""
        if self._state.announced.version > self._read.version:
            self._read = self._state.announced
        return self._read

    @property
    def read_at(self) -> float:
        """Infinity; minus infinity if the cluster has changed and this client was not told."""
        return math.inf if self.table is self._state.table else -math.inf

    async def table_for_topic(self, name: str, *, create: bool = False, named: bool = False) -> MemoryRoutingTable:
        """Return a table that has `name`, if the topic exists. Cancellation: safe."""
        return self.table if name in self.table.leaders else await self.refresh()

    async def all_topics(self) -> frozenset[str]:
        """Return the names of all topics. Cancellation: safe."""
        return (await self.refresh()).topics

    async def wait_for_newer(
        self, version: int, needed: Callable[[], Collection[str]] = frozenset
    ) -> MemoryRoutingTable:
        """Wait until the version is larger than this one. Raises Closed when the cluster's block ends, or an error of
        `watch`. Cancellation: safe."""
        changed = self._state.changed
        while self.table.version <= version:
            if not self.is_open:
                raise Closed("the block of the cluster has ended")
            if (error := self._state.faults.request_error("watch")) is not None:
                raise error
            await changed.wait(changed.version)
        return self.table

    async def refresh(self) -> MemoryRoutingTable:
        """Read everything again. Cancellation: safe."""
        await self._state.serve("metadata", self._timeout)
        if self._state.table.version > self._read.version:
            self._read = self._state.table
            self._state.changed.notify()
        return self._read
