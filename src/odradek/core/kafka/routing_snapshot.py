"""Routing tables as producers and consumers see them (`core.interfaces.RoutingTable`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from odradek.core.kafka.routing import KafkaRoutingTable
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = ["RoutingSnapshot"]


class RoutingSnapshot:
    """One version of the routing table of a cluster. Immutable.

    Args:
        version: Grows with every change.
        state: The report of the cluster.
    """

    def __init__(self, version: int = 0, state: KafkaRoutingTable | None = None) -> None:
        self.version, self.state = version, state or KafkaRoutingTable()
        self.brokers: Mapping[int, Broker] = MappingProxyType(
            {number: Broker(number, broker.host, broker.port) for number, broker in self.state.brokers.items()}
        )
        self.topics = frozenset(
            name for name, topic in self.state.topics.items() if topic.partitions and not topic.is_internal
        )
        self._partitions: dict[str, tuple[TopicPartition, ...]] = {}

    def __repr__(self) -> str:
        brokers = ",".join(f"{b.id}@{b.address}" for b in self.brokers.values())
        return f"<{type(self).__name__} v{self.version} brokers={brokers or 'none'} topics={len(self.state.topics)}>"

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions of a topic by number, those without a leader included, so that the partition of a key
        does not change while one has none. Empty if the topic is unknown."""
        known = self._partitions.get(topic)
        if known is None:
            described = self.state.topics.get(topic)
            numbers = sorted(described.partitions) if described is not None else ()
            known = self._partitions[topic] = tuple(TopicPartition(topic, number) for number in numbers)
        return known

    registered = partitions

    def leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker that leads a partition, or None."""
        described = self.state.partition(partition)
        return None if described is None else self.brokers.get(described.leader)

    def topic_id(self, topic: str) -> bytes | None:
        """Return the id of a topic, also of one that was deleted; None if it is unknown, or has none."""
        topic_id = self.state.topic_id(topic)
        return None if topic_id == ZERO_UUID else topic_id

    def why_unusable(self, topic: str) -> str:
        """Return the error that brokers have answered for a topic, such as TOPIC_AUTHORIZATION_FAILED; empty: none."""
        described = self.state.topics.get(topic)
        return ErrorCode(described.error_code).name if described is not None and described.error_code else ""

    def has_problem(self, topic: str) -> bool:
        """Return True if a topic is not known, or one of its partitions has no leader: it should be read again soon."""
        described = self.state.topics.get(topic)
        if described is None or described.error_code or not described.partitions:
            return True
        return any(partition.leader not in self.brokers for partition in described.partitions.values())

    def is_missing(self, topic: str) -> bool:
        """Return True if a topic does not exist or cannot be used, and not even its leaders are being elected."""
        described = self.state.topics.get(topic)
        if described is None:
            return True
        return not described.partitions and described.error_code != ErrorCode.LEADER_NOT_AVAILABLE

    def updated(self, state: KafkaRoutingTable) -> RoutingSnapshot:
        """Return the next version; this one if nothing has changed."""
        return self if state == self.state else RoutingSnapshot(self.version + 1, state)
