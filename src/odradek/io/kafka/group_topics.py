"""The topics of a group's members: their names, partitions and ids, from the metadata of the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

import anyio

from odradek.core.interfaces import Subscription
from odradek.core.kafka.assignors import Topics
from odradek.core.kafka.routing_snapshot import RoutingSnapshot
from odradek.io.kafka.metadata import NOT_KNOWN_S, KafkaMetadata
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

__all__ = ["GroupTopics", "replica_racks"]

CURRENT_S = 1.0
"""Maximum age of the metadata when committed positions are read (s): they are of the topics of today."""


class GroupTopics:
    """The topics of one subscription.

    Args:
        subscription: Names them, or has a pattern.
        metadata: The metadata of the cluster.
        ask: Sends a request to any broker.
    """

    def __init__(self, subscription: Subscription, metadata: KafkaMetadata, ask: Callable[..., Awaitable[Any]]) -> None:
        self._subscription, self._metadata, self._ask = subscription, metadata, ask
        self._of_members: Collection[str] = ()

    @property
    def table(self) -> RoutingSnapshot:
        return self._metadata.table

    async def wait_for_newer(self, version: int) -> RoutingSnapshot:
        """Wait for the next version of the table."""
        return await self._metadata.wait_for_newer(version, self._needed)

    def _needed(self) -> Collection[str]:
        return self.selected().union(self._of_members)

    async def read_all(self) -> None:
        """Read all topics of the cluster, from now on. Raises OdradekError."""
        await self._metadata.all_topics()

    async def read(self, topics: Collection[str]) -> RoutingSnapshot:
        """Return a table with the topics of all members, which is newer than this call. Raises OdradekError."""
        self._of_members = topics
        known = self.table.topics.intersection(topics)
        await self.find(topics)
        table = await self._metadata.refresh()
        if known - table.topics:
            await anyio.sleep(NOT_KNOWN_S)
            table = await self._metadata.refresh()
        return table

    async def find(self, topics: Collection[str]) -> None:
        """Look up the topics that the table lacks. Raises OdradekError."""
        for topic in topics:
            await self._metadata.table_for_topic(topic, named=True)

    async def find_current(self, topics: Collection[str]) -> None:
        """Look up topics, with the ids and partitions that they have now. Raises OdradekError."""
        asked_at = anyio.current_time()
        await self.find(topics)
        if self._metadata.read_at < asked_at - CURRENT_S:
            await self._metadata.refresh()

    async def names(self, topic_ids: Collection[bytes]) -> dict[bytes, str]:
        """Return the names of topics by their ids, for those that the cluster knows (2.8 and later).

        Raises OdradekError.
        """
        asked = tuple(MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids)
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        response: MetadataResponse = await self._ask(MetadataRequest, lambda versions: request)
        return {topic.topic_id: topic.name for topic in response.topics if topic.name and not topic.error_code}

    def selected(self) -> frozenset[str]:
        """Return the topics of the subscription: those named, or those of the table that the pattern selects."""
        wanted = self._subscription
        if wanted.topics is not None:
            return frozenset(wanted.topics)
        return frozenset(filter(wanted.selects, self.table.topics))

    def leaves_out(self, topic: str) -> bool:
        """Return True for Kafka's own topics, which no pattern selects. Coordinators assign them all the same."""
        known = self.table.state.topics.get(topic)
        return self._subscription.topics is None and known is not None and known.is_internal

    def lacks_leaders(self) -> bool:
        """Return True while a topic has no partitions because their leaders are being elected: they are not gone."""
        known = self.table.state.topics
        return any(t in known and known[t].error_code == ErrorCode.LEADER_NOT_AVAILABLE for t in self.selected())


def replica_racks(table: RoutingSnapshot, topics: Collection[str]) -> Topics:
    """Return the racks of the replicas of each partition, by topic."""
    return {topic: table.state.replica_racks(topic) for topic in topics}
