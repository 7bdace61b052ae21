"""The routing table of a 0.7 cluster: an immutable snapshot, and what an event makes of it (specification 7).

A topic that nobody publishes is written to partition 0 of a live broker, which creates it there. A producer that saw
it unpublished goes on using partition 0 of the brokers it was offered then, also while only some of them publish it;
one that meets it published uses only what is published. Unlike Scala's, this table forgets partitions when a count
shrinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from odradek.types import Broker, TopicPartition, by_broker

__all__ = ["BrokersChanged", "Event", "Kafka07RoutingTable", "TopicChanged"]


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """The live brokers, all of them: whoever is missing is gone, whoever has another address has moved."""

    brokers: Mapping[int, Broker]


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """Who publishes a topic, and how many partitions each: broker -> count. Empty when nobody does."""

    topic: str
    counts: Mapping[int, int]


Event = BrokersChanged | TopicChanged


@dataclass(frozen=True, slots=True)
class Kafka07RoutingTable:
    """Implements `core.interfaces.RoutingTable`.

    `counts` has every topic that was looked at; `offered` the brokers whose partition 0 stood in for a topic while
    nobody published it.
    """

    version: int = 0
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    counts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    offered: Mapping[str, frozenset[int]] = field(default_factory=dict)
    _partitions: dict[str, tuple[TopicPartition, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def topics(self) -> frozenset[str]:
        """Topics with at least one partition on a live broker."""
        return frozenset(topic for topic in self.counts if self.published(topic))

    def knows(self, topic: str) -> bool:
        """Whether this topic was looked at: what the table says about it is not a guess."""
        return topic in self.counts

    def published(self, topic: str) -> tuple[TopicPartition, ...]:
        """The partitions brokers have registered, numerically sorted, live brokers only."""
        counts = self.counts.get(topic, {})
        return tuple(
            TopicPartition(topic, n, broker)
            for broker in sorted(counts.keys() & self.brokers.keys())
            for n in range(counts[broker])
        )

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Where records of `topic` may be sent now, numerically sorted."""
        if (cached := self._partitions.get(topic)) is not None:
            return cached
        published = self.published(topic)
        brokers = self.offered.get(topic, frozenset()) if published else frozenset(self.brokers)
        firsts = {TopicPartition(topic, 0, broker) for broker in brokers & self.brokers.keys()}
        self._partitions[topic] = found = tuple(sorted(firsts.union(published), key=by_broker))
        return found

    def leader(self, partition: TopicPartition) -> Broker | None:
        return self.brokers.get(partition.broker)

    def apply(self, event: Event) -> tuple[Kafka07RoutingTable, frozenset[TopicPartition]]:
        """The table after `event`, and the partitions of known topics that came, went, or changed their address.

        The table itself, with no partitions, when the event says nothing new.
        """
        changed = self._changed(event)
        if changed is self:
            return self, frozenset()
        table = replace(changed, version=self.version + 1, offered=changed._offers(), _partitions={})
        before, after = self._leaders(), table._leaders()
        return table, frozenset(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))

    def _changed(self, event: Event) -> Kafka07RoutingTable:
        if isinstance(event, BrokersChanged):
            same = event.brokers == self.brokers
            return self if same else replace(self, brokers=MappingProxyType(dict(event.brokers)))
        if self.counts.get(event.topic) == event.counts:
            return self
        return replace(self, counts=MappingProxyType({**self.counts, event.topic: dict(event.counts)}))

    def _offers(self) -> Mapping[str, frozenset[int]]:
        """Unpublished topics are offered all live brokers; published ones keep those of their offer that live."""
        live = frozenset(self.brokers)
        return {
            topic: self.offered.get(topic, frozenset()) & live if self.published(topic) else live
            for topic in self.counts
        }

    def _leaders(self) -> dict[TopicPartition, Broker | None]:
        return {p: self.leader(p) for topic in self.counts for p in self.partitions(topic)}
