"""Who serves what: Metadata answers become an immutable routing table, replaced whole.

A table never goes back in leader epochs: an answer of a broker that lags behind does not undo what a newer one said.
A topic that comes back with another id is another topic, and its epochs begin anew (KIP-320, KIP-516).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import NodeEndpoint
from odradek.wire.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = ["Broker", "Changes", "Partition", "RoutingTable", "Topic"]

NO_LEADER = -1
NO_EPOCH = -1

# The leader is usable although these stand beside it: replica or in-sync lists are merely shortened (note 11 of
# specification 2).
_HARMLESS = frozenset({ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker and its address for this client's listener."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition as the cluster describes it.

    Args:
        leader: Broker id, or -1 when there is none now.
        leader_epoch: Grows with every change of leader; -1 where the broker does not say.
        replicas: Broker ids, the preferred leader first.
        in_sync: Those replicas that have everything.
        offline: Those replicas that are down.
        error_code: Why there is no leader; 0 when there is one.
    """

    leader: int
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. With an error it has no partitions; what was known of it before is gone.

    Args:
        name: Its name.
        topic_id: 16 bytes, all zero where the broker does not say.
        is_internal: True for Kafka's own topics, as that of group offsets.
        partitions: By partition number.
        error_code: Why it cannot be used; 0 when it can.
    """

    name: str
    topic_id: bytes = ZERO_UUID
    is_internal: bool = False
    partitions: Mapping[int, Partition] = field(default_factory=dict)
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new answer changed.

    Args:
        moved: Partitions whose leader or leader epoch is another one than before, new ones included.
        removed: Partitions of topics that no longer exist, or were created anew.
        recreated: Topics that have another id than before: positions and epochs in them are worth nothing.
        brokers_gone: Ids of brokers that are no longer part of the cluster.
        bootstrap_again: True when the cluster asks to forget everything and begin with the configured addresses.
    """

    moved: frozenset[TopicPartition] = frozenset()
    removed: frozenset[TopicPartition] = frozenset()
    recreated: frozenset[str] = frozenset()
    brokers_gone: frozenset[int] = frozenset()
    bootstrap_again: bool = False


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """Brokers, topics and leaders at one moment.

    Args:
        brokers: By id.
        topics: By name; only those that were asked for, or all.
        cluster_id: The cluster's own id, where the broker says it.
        controller_id: The controller, to which ZooKeeper clusters want admin requests sent; -1 unknown.
    """

    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    cluster_id: str | None = None
    controller_id: int = -1

    def partition(self, where: TopicPartition) -> Partition | None:
        """Return what is known of a partition, or None."""
        topic = self.topics.get(where.topic)
        return None if topic is None else topic.partitions.get(where.partition)

    def leader(self, where: TopicPartition) -> Broker | None:
        """Return the broker that leads a partition, or None when none is known."""
        partition = self.partition(where)
        return None if partition is None else self.brokers.get(partition.leader)

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id, or None."""
        return next((topic.name for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def led_partitions(self, topic: str) -> list[int]:
        """Return the numbers of the partitions of a topic that have a leader, in order."""
        known = self.topics.get(topic)
        return sorted(n for n, p in known.partitions.items() if p.leader in self.brokers) if known else []

    def replica_racks(self, topic: str) -> list[frozenset[str]]:
        """Return the racks of the replicas of each partition of a topic, by number, as assignors want them."""
        known = self.topics.get(topic)
        if known is None:
            return []
        racks = {broker.node_id: broker.rack for broker in self.brokers.values()}
        return [
            frozenset(rack for r in known.partitions[n].replicas if (rack := racks.get(r)))
            for n in sorted(known.partitions)
        ]

    def apply(self, response: MetadataResponse, asked: Iterable[str] | None) -> tuple[RoutingTable, Changes]:
        """Take in an answer.

        Args:
            response: The answer.
            asked: The topics that were asked for; the others stay as they are. None when all were: those that the
                answer leaves out do not exist.

        Returns:
            The new table and what is different in it. This table stays as it is.
        """
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            return RoutingTable(), Changes(
                removed=frozenset(_all(self.topics)), brokers_gone=frozenset(self.brokers), bootstrap_again=True
            )
        answered = self._answered(response.topics)
        topics = {} if asked is None else {name: t for name, t in self.topics.items() if name not in set(asked)}
        topics |= {topic.name: topic for topic in answered}
        # A broker that has just started may know no broker at all, not even itself (seen with 0.8.2).
        brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers} or self.brokers
        table = replace(
            self,
            brokers=MappingProxyType(brokers),
            topics=MappingProxyType(topics),
            cluster_id=response.cluster_id or self.cluster_id,
            controller_id=response.controller_id,
        )
        return table, self._changes(table)

    def _answered(self, topics: Sequence[MetadataResponseTopic]) -> list[Topic]:
        """Read the topics of an answer. One asked by id may come without a name: then the known name stands."""
        named = ((topic.name or self.topic_name(topic.topic_id), topic) for topic in topics)
        return [self._topic(name, topic) for name, topic in named if name is not None]

    def _topic(self, name: str, answer: MetadataResponseTopic) -> Topic:
        before = self.topics.get(name)
        same = before is not None and not _is_recreated(before.topic_id, answer.topic_id)
        known = before.partitions if before is not None and same else {}
        partitions = {p.partition_index: _newer(known.get(p.partition_index), _partition(p)) for p in answer.partitions}
        topic_id = answer.topic_id
        if topic_id == ZERO_UUID and before is not None and not answer.error_code:
            topic_id = before.topic_id  # asked of a broker that does not know ids, amid an upgrade
        return Topic(name, topic_id, answer.is_internal, MappingProxyType(partitions), answer.error_code)

    def _changes(self, table: RoutingTable) -> Changes:
        recreated = frozenset(
            name
            for name, topic in table.topics.items()
            if name in self.topics and _is_recreated(self.topics[name].topic_id, topic.topic_id)
        )
        before, after = _all(self.topics), _all(table.topics)
        moved = {
            where
            for where, partition in after.items()
            if (old := before.get(where)) is None
            or where.topic in recreated
            or (old.leader, old.leader_epoch) != (partition.leader, partition.leader_epoch)
        }
        removed = {where for where in before if where not in after or where.topic in recreated}
        gone = frozenset(self.brokers) - frozenset(table.brokers)
        return Changes(frozenset(moved), frozenset(removed), recreated, gone)

    def hint(
        self, where: TopicPartition, leader: int, leader_epoch: int, endpoints: Iterable[NodeEndpoint] = ()
    ) -> tuple[RoutingTable, bool]:
        """Take in the leader that a Produce or Fetch answer names (KIP-951).

        Args:
            where: The partition.
            leader: Id of its leader.
            leader_epoch: The epoch in which it leads.
            endpoints: The addresses of brokers that the answer names.

        Returns:
            The table and whether it changed. It does when the epoch is newer and the broker's address is known.
        """
        partition = self.partition(where)
        brokers = {**self.brokers, **{e.node_id: Broker(e.node_id, e.host, e.port, e.rack) for e in endpoints}}
        if partition is None or leader_epoch <= partition.leader_epoch or leader not in brokers:
            return self, False
        topic = self.topics[where.topic]
        partitions = {
            **topic.partitions,
            where.partition: replace(partition, leader=leader, leader_epoch=leader_epoch, error_code=0),
        }
        topics = {**self.topics, where.topic: replace(topic, partitions=MappingProxyType(partitions))}
        return replace(self, brokers=MappingProxyType(brokers), topics=MappingProxyType(topics)), True


def _is_recreated(before: bytes, after: bytes) -> bool:
    return ZERO_UUID not in (before, after) and before != after


def _partition(answer: MetadataResponsePartition) -> Partition:
    usable = answer.error_code in _HARMLESS
    return Partition(
        answer.leader_id if usable else NO_LEADER,
        answer.leader_epoch,
        answer.replica_nodes,
        answer.isr_nodes,
        answer.offline_replicas,
        0 if usable else answer.error_code,
    )


def _newer(before: Partition | None, after: Partition) -> Partition:
    """Return the one with the higher leader epoch; the answer, where one of them has none."""
    if before is None or NO_EPOCH in (before.leader_epoch, after.leader_epoch):
        return after
    return before if before.leader_epoch > after.leader_epoch else after


def _all(topics: Mapping[str, Topic]) -> dict[TopicPartition, Partition]:
    return {TopicPartition(t.name, number): p for t in topics.values() for number, p in t.partitions.items()}
