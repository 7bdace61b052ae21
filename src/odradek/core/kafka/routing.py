"""Routing table: Metadata responses become an immutable table of brokers, topics and leaders, replaced whole.

Leader epochs in a table do not decrease: a response from a broker that lags behind does not undo a newer one. A topic
that reappears with another id is another topic, and its epochs begin again (KIP-320, KIP-516). Where brokers have no
ids, many responses in a row with a lower epoch are the sign of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self

from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import NodeEndpoint
from odradek.wire.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = ["BrokerEndpoint", "Changes", "KafkaRoutingTable", "Partition", "Topic"]

NO_LEADER = -1
NO_EPOCH = -1

OLDER_RESPONSES = 10
"""Responses in a row with a lower leader epoch, from whichever brokers, that are taken for those of a broker that lags
behind. They come a second apart while a leader refuses the epoch that is known."""

OFFSETS_TOPIC = "__consumer_offsets"
"""Brokers before 0.10 have it, and do not say that it is internal."""

# The leader is usable despite these: only the lists of replicas are incomplete (kafka-specification.md 2, note 11).
_HARMLESS = frozenset({ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE})


class BrokerEndpoint(NamedTuple):
    """One broker and its address on this client's listener."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Partition(NamedTuple):
    """One partition as the cluster describes it.

    Args:
        leader: Broker id; -1 if there is none now.
        leader_epoch: Grows with every change of leader; -1 if the broker does not report it.
        replicas: Broker ids, the preferred leader first.
        in_sync: Ids of in-sync replicas.
        offline: Ids of replicas that are down.
        error_code: Why there is no leader; 0 if there is one.
        older_responses: Responses in a row that had a lower leader epoch.
    """

    leader: int
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error_code: int = 0
    older_responses: int = 0


class Topic(NamedTuple):
    """One topic. With an error it has no partitions; those known before are discarded.

    Args:
        name: Its name.
        topic_id: 16 bytes; all zero if the broker does not report it. With an error, that of the topic which was there.
        is_internal: True for Kafka's own topics, such as the one of group offsets.
        partitions: By partition number.
        error_code: Why it cannot be used; 0 if it can.
        former_ids: Ids of earlier topics of this name, which were deleted.
    """

    name: str
    topic_id: bytes = ZERO_UUID
    is_internal: bool = False
    partitions: Mapping[int, Partition] = MappingProxyType({})
    error_code: int = 0
    former_ids: tuple[bytes, ...] = ()


class Changes(NamedTuple):
    """Changes made by a new response.

    Args:
        moved: Partitions whose leader or leader epoch changed, new ones included.
        removed: Partitions of topics that no longer exist, or were recreated.
        recreated: Topics that have another id than before: positions and epochs in them are invalid.
        brokers_gone: Ids of brokers that are no longer part of the cluster.
        bootstrap_again: True if the cluster asks the client to forget everything and start from the configured
            addresses.
    """

    moved: frozenset[TopicPartition] = frozenset()
    removed: frozenset[TopicPartition] = frozenset()
    recreated: frozenset[str] = frozenset()
    brokers_gone: frozenset[int] = frozenset()
    bootstrap_again: bool = False


class KafkaRoutingTable(NamedTuple):
    """Brokers, topics and leaders at one moment.

    Args:
        brokers: By id.
        topics: By name; only those that were requested, or all.
        cluster_id: The cluster's id, if the broker sends it.
        controller_id: The controller, to which ZooKeeper clusters want admin requests sent; -1 unknown.
    """

    brokers: Mapping[int, BrokerEndpoint] = MappingProxyType({})
    topics: Mapping[str, Topic] = MappingProxyType({})
    cluster_id: str | None = None
    controller_id: int = -1

    def partition(self, where: TopicPartition) -> Partition | None:
        """Return a partition, or None if it is unknown."""
        topic = self.topics.get(where.topic)
        return None if topic is None else topic.partitions.get(where.partition)

    def leader(self, where: TopicPartition) -> BrokerEndpoint | None:
        """Return the broker that leads a partition, or None if none is known."""
        partition = self.partition(where)
        return None if partition is None else self.brokers.get(partition.leader)

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id, or None."""
        return next((topic.name for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def topic_id(self, topic: str) -> bytes:
        """Return the id of a topic, also of one that was deleted; all zero if it is not known."""
        known = self.topics.get(topic)
        return ZERO_UUID if known is None else known.topic_id

    def is_recreated(self, topic: str, topic_id: bytes) -> bool:
        """Return True if a topic has another id now than it had; all zero: that was not known."""
        return _is_recreated(topic_id, self.topic_id(topic))

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

    def apply(
        self, response: MetadataResponse, asked: Iterable[str] | None, *, leader_epochs: bool = True
    ) -> tuple[Self, Changes]:
        """Apply a response.

        Args:
            response: The response.
            asked: The requested topics; others stay unchanged. It is None if all were requested: topics missing from
                the response do not exist, and nothing but their ids stays.
            leader_epochs: The leader epochs of its version are reliable (`BrokerVersions.has_leader_epochs`): others
                are not taken, because leaders would refuse every request with an old one.

        Returns:
            The new table and its changes. This table stays unchanged.
        """
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
            return type(self)(), Changes(
                removed=frozenset(_all(self.topics)), brokers_gone=frozenset(self.brokers), bootstrap_again=True
            )
        answered = self._answered(response.topics, leader_epochs)
        if asked is None:
            topics = {name: _deleted(t) for name, t in self.topics.items() if t.topic_id != ZERO_UUID}
        else:
            topics = {name: t for name, t in self.topics.items() if name not in set(asked)}
        topics |= {topic.name: topic for topic in answered}
        # A broker that has just started may know no broker at all, not even itself (seen with 0.8.2).
        brokers = {
            b.node_id: BrokerEndpoint(b.node_id, b.host, b.port, b.rack) for b in response.brokers
        } or self.brokers
        table = self._replace(
            brokers=MappingProxyType(brokers),
            topics=MappingProxyType(topics),
            cluster_id=response.cluster_id or self.cluster_id,
            controller_id=response.controller_id,
        )
        return table, self._changes(table)

    def _answered(self, topics: Sequence[MetadataResponseTopic], leader_epochs: bool) -> list[Topic]:
        """Read the topics of a response. One requested by id may come without a name: then its known name is used."""
        named = ((topic.name or self.topic_name(topic.topic_id), topic) for topic in topics)
        return [self._topic(name, topic, leader_epochs) for name, topic in named if name is not None]

    def _topic(self, name: str, answer: MetadataResponseTopic, leader_epochs: bool) -> Topic:
        before = self.topics.get(name) or Topic(name)
        if answer.topic_id in before.former_ids:
            return before  # answered by a broker that has not heard yet that the topic was deleted
        recreated = _is_recreated(before.topic_id, answer.topic_id)
        known = {} if recreated else before.partitions
        partitions = {
            p.partition_index: _newer(known.get(p.partition_index), _partition(p, leader_epochs))
            for p in answer.partitions
        }
        # Without an id, the topic is deleted, or the answer is of a broker that does not know ids, during an upgrade.
        topic_id = before.topic_id if answer.topic_id == ZERO_UUID else answer.topic_id
        former_ids = (*before.former_ids, before.topic_id) if recreated else before.former_ids
        is_internal = answer.is_internal or name == OFFSETS_TOPIC
        return Topic(name, topic_id, is_internal, MappingProxyType(partitions), answer.error_code, former_ids)

    def _changes(self, table: Self) -> Changes:
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
    ) -> tuple[Self, bool]:
        """Apply the leader that a Produce or Fetch response names (KIP-951).

        Args:
            where: The partition.
            leader: Id of its leader.
            leader_epoch: The epoch in which it leads.
            endpoints: The addresses of brokers that the response names.

        Returns:
            The table and whether it changed. It does when the epoch is newer and the broker's address is known.
        """
        partition = self.partition(where)
        brokers = {**self.brokers, **{e.node_id: BrokerEndpoint(e.node_id, e.host, e.port, e.rack) for e in endpoints}}
        if partition is None or leader_epoch <= partition.leader_epoch or leader not in brokers:
            return self, False
        topic = self.topics[where.topic]
        partitions = {
            **topic.partitions,
            where.partition: partition._replace(leader=leader, leader_epoch=leader_epoch, error_code=0),
        }
        topics = {**self.topics, where.topic: topic._replace(partitions=MappingProxyType(partitions))}
        return self._replace(brokers=MappingProxyType(brokers), topics=MappingProxyType(topics)), True


def _deleted(topic: Topic) -> Topic:
    return Topic(
        topic.name, topic.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, former_ids=topic.former_ids
    )


def _is_recreated(before: bytes, after: bytes) -> bool:
    return ZERO_UUID not in (before, after) and before != after


def _partition(answer: MetadataResponsePartition, leader_epochs: bool) -> Partition:
    usable = answer.error_code in _HARMLESS
    return Partition(
        answer.leader_id if usable else NO_LEADER,
        answer.leader_epoch if leader_epochs else NO_EPOCH,
        answer.replica_nodes,
        answer.isr_nodes,
        answer.offline_replicas,
        0 if usable else answer.error_code,
    )


def _newer(before: Partition | None, after: Partition) -> Partition:
    """Return the one with the higher leader epoch; `after` if either has none, or if many responses agree with it."""
    if before is None or NO_EPOCH in (before.leader_epoch, after.leader_epoch):
        return after
    if before.leader_epoch <= after.leader_epoch or before.older_responses == OLDER_RESPONSES:
        return after
    return before._replace(older_responses=before.older_responses + 1)


def _all(topics: Mapping[str, Topic]) -> dict[TopicPartition, Partition]:
    return {TopicPartition(t.name, number): p for t in topics.values() for number, p in t.partitions.items()}
