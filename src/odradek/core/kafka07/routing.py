"""The routing table of a 0.7 cluster: an immutable snapshot, and the next one after events (specification.md 7).

A record for a topic that no broker publishes goes to partition 0 of a live broker, which creates it there. A producer
that found the topic unpublished keeps using partition 0 of the brokers it was offered then, even while only some of
them publish it; one that finds the topic published uses only published partitions. Unlike Scala's, this table forgets
partitions when a count shrinks.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType

from odradek.types import Broker, TopicPartition, by_broker

__all__ = ["BrokersChanged", "Event", "Kafka07RoutingTable", "TopicChanged"]


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """All live brokers: one that is missing is gone, one with another address has moved."""

    brokers: Mapping[int, Broker]


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """The brokers that publish a topic, and how many partitions each: broker -> count. Empty when none does."""

    topic: str
    counts: Mapping[int, int]


Event = BrokersChanged | TopicChanged


@dataclass(frozen=True, slots=True)
class _Topic:
    """One topic that was looked up. Shared by all tables in which it is the same.

    Args:
        counts: Broker -> number of partitions, as registered.
        offered: Live brokers whose partition 0 stands in for the topic while no broker publishes it.
        registered: Registered partitions of live brokers, numerically sorted.
        partitions: Where its records may be sent, numerically sorted.
    """

    counts: Mapping[int, int]
    offered: frozenset[int]
    registered: tuple[TopicPartition, ...]
    partitions: tuple[TopicPartition, ...]

    @classmethod
    def of(cls, name: str, counts: Mapping[int, int], live: Set[int], formerly_offered: frozenset[int]) -> _Topic:
        """An unpublished topic is offered all live brokers; a published one keeps those of its offer that live."""
        registered = tuple(
            TopicPartition(name, n, broker) for broker in sorted(counts.keys() & live) for n in range(counts[broker])
        )
        offered = formerly_offered & live if registered else frozenset(live)
        firsts = {TopicPartition(name, 0, broker) for broker in offered}
        partitions = tuple(sorted(firsts.union(registered), key=by_broker)) if firsts else registered
        return cls(counts, offered, registered, partitions)


@dataclass(frozen=True, slots=True)
class Kafka07RoutingTable:
    """Implements `core.interfaces.RoutingTable`. An event costs what it changes, not what the table holds."""

    version: int = 0
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    _topics: Mapping[str, _Topic] = field(default_factory=dict)

    @property
    def topics(self) -> frozenset[str]:
        """Topics with at least one partition on a live broker."""
        return frozenset(name for name, topic in self._topics.items() if topic.registered)

    @property
    def looked_up(self) -> frozenset[str]:
        """Topics that were looked up, whether they exist or not."""
        return frozenset(self._topics)

    def has_looked_up(self, topic: str) -> bool:
        """Return True if this topic was looked up: what the table says about it is not a guess."""
        return topic in self._topics

    def counts(self, topic: str) -> Mapping[int, int]:
        """Return broker -> number of partitions of a topic, as registered; empty for an unknown one."""
        known = self._topics.get(topic)
        return {} if known is None else known.counts

    def registered(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions that live brokers have registered, numerically sorted."""
        known = self._topics.get(topic)
        return () if known is None else known.registered

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the partitions that records of `topic` may be sent to now, numerically sorted."""
        known = self._topics.get(topic)
        if known is None:
            return tuple(TopicPartition(topic, 0, broker) for broker in sorted(self.brokers))
        return known.partitions

    def leader(self, partition: TopicPartition) -> Broker | None:
        """Return the live broker that serves a partition, or None."""
        return self.brokers.get(partition.broker)

    def topic_id(self, topic: str) -> None:
        """Return None: 0.7 does not delete topics."""

    def why_unusable(self, topic: str) -> str:
        """Return nothing: 0.7 has no such errors."""
        return ""

    def apply(self, *events: Event) -> Kafka07RoutingTable:
        """Return the table after `events`: one version later, or this very table when they say nothing new."""
        brokers, topics = self.brokers, dict(self._topics)
        changed = False
        for event in events:
            if isinstance(event, TopicChanged):
                former = topics.get(event.topic)
                if former is None or former.counts != event.counts:
                    changed = True
                    offered = frozenset[int]() if former is None else former.offered
                    topics[event.topic] = _Topic.of(event.topic, dict(event.counts), brokers.keys(), offered)
            elif event.brokers != brokers:
                changed = True
                came_or_went = brokers.keys() ^ event.brokers.keys()
                brokers = MappingProxyType(dict(event.brokers))
                _update_brokers(topics, brokers.keys(), came_or_went)
        return Kafka07RoutingTable(self.version + 1, brokers, MappingProxyType(topics)) if changed else self


def _update_brokers(topics: dict[str, _Topic], live: Set[int], came_or_went: Set[int]) -> None:
    """Replace the topics that depend on a broker that came or went."""
    for name, topic in topics.items():
        if not topic.registered or came_or_went & (topic.counts.keys() | topic.offered):
            topics[name] = _Topic.of(name, topic.counts, live, topic.offered)
