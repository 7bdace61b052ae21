"""Topics of brokers under test: made, and their leaders moved, by the means that the mode of the cluster has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from odradek.errors import ProtocolError, ServerError
from odradek.testing.kafka.releases import KRAFT
from odradek.testing.kafka.requests import ask
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.admin import (
    AlterPartitionReassignmentsRequest,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.wire.kafka.messages.common import TopicPartitions
from odradek.wire.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)

if TYPE_CHECKING:
    from odradek.testing.kafka.broker import KafkaBroker
    from odradek.testing.kafka.setup import ClusterSetup

T = TypeVar("T")

__all__ = ["create_topic", "leader_of", "move_leader", "wait_for"]

WAIT_SECONDS = 30.0
"""Limit for the brokers to agree on a change (s)."""
PREFERRED = 0
"""Type of an election: of the first replica (KIP-460)."""


def wait_for(what: str, condition: Callable[[], T | None], timeout: float = WAIT_SECONDS) -> T:
    """Wait until the condition returns something that is true, and return it. Raises ServerError when it does not
    within `timeout` (s)."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise ServerError(f"{what}: not within {timeout:g} s")
        time.sleep(0.05)
    return result


def create_topic(
    setup: ClusterSetup,
    brokers: Sequence[KafkaBroker],
    name: str,
    partitions: int,
    replicas: int,
    config: Mapping[str, str],
) -> None:
    """Create a topic, and wait until every broker knows a leader of each partition."""
    if setup.mode == KRAFT:
        settings = tuple(CreatableTopicConfig(name=key, value=value) for key, value in config.items())
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=settings)
        (result,) = ask(brokers[0].host, brokers[0].plaintext_port, CreateTopicsRequest(topics=(topic,)), 2).topics
        _check(f"topic {name!r}", result.error_code, result.error_message)
    else:
        ids = [broker.broker_id for broker in brokers]
        assignment = {str(p): [ids[(p + r) % len(ids)] for r in range(replicas)] for p in range(partitions)}
        setup.create(f"/config/topics/{name}", {"version": 1, "config": dict(config)})
        setup.create(f"/brokers/topics/{name}", {"version": 1, "partitions": assignment})
    wait_for(f"leaders of topic {name!r}", lambda: all(_leads(broker, name, partitions) for broker in brokers))


def move_leader(
    setup: ClusterSetup, brokers: Sequence[KafkaBroker], topic: str, partition: int, broker_id: int
) -> None:
    """Make a broker the preferred leader of a partition and let it be elected; wait until every broker says so."""
    known = partition_of(brokers[0], topic, partition)
    replicas = known.replica_nodes if known else ()
    if broker_id not in replicas:
        raise ServerError(f"broker {broker_id} has no replica of {topic}-{partition}, brokers {replicas} have")
    order = (broker_id, *(each for each in replicas if each != broker_id))
    if setup.mode == KRAFT:
        # Again and again: a controller may just have been elected, and the replica may have to catch up first.
        wait_for(f"an order of {topic}-{partition}", lambda: _reassign(brokers[0], topic, partition, order))
        wait_for(f"an election of a leader of {topic}-{partition}", lambda: _elect(brokers[0], topic, partition))
    else:
        where: dict[str, object] = {"topic": topic, "partition": partition}
        _ask_controller(setup, "/admin/reassign_partitions", {**where, "replicas": order})
        _ask_controller(setup, "/admin/preferred_replica_election", where)
    wait_for(
        f"broker {broker_id} as the leader of {topic}-{partition}",
        lambda: {leader_of(broker, topic, partition) for broker in brokers} == {broker_id},
    )


def leader_of(broker: KafkaBroker, topic: str, partition: int) -> int:
    """Return the id of the broker that leads a partition, as a broker says; -1 when it knows none."""
    known = partition_of(broker, topic, partition)
    return known.leader_id if known else -1


def partition_of(broker: KafkaBroker, topic: str, partition: int) -> MetadataResponsePartition | None:
    """Return what a broker says of a partition, or None when it does not know it."""
    return next((each for each in _partitions(broker, topic) if each.partition_index == partition), None)


def _partitions(broker: KafkaBroker, topic: str) -> Iterator[MetadataResponsePartition]:
    for each in _metadata(broker, topic).topics:
        if each.name == topic:
            yield from each.partitions


def _metadata(broker: KafkaBroker, topic: str) -> MetadataResponse:
    """Ask for one topic, which takes a broker with hundreds of them far less time; for all where that could create it
    (before Metadata 4)."""
    if broker.setup.release.number < (0, 11):
        return broker.metadata()
    request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)
    return ask(broker.host, broker.plaintext_port, request, 4)


def _leads(broker: KafkaBroker, topic: str, partitions: int) -> bool:
    """Return whether a broker knows a leader of every partition."""
    try:
        leaders = [each.leader_id for each in _partitions(broker, topic)]
    except (OSError, ProtocolError):
        return False
    return len(leaders) == partitions and min(leaders) >= 0


def _reassign(broker: KafkaBroker, topic: str, partition: int, replicas: tuple[int, ...]) -> bool:
    """Return whether this was accepted; False if it may be later. Raises ServerError."""
    partitions = (ReassignablePartition(partition_index=partition, replicas=replicas),)
    request = AlterPartitionReassignmentsRequest(topics=(ReassignableTopic(name=topic, partitions=partitions),))
    answer = ask(broker.host, broker.plaintext_port, request, 0)
    results = [(answer.error_code, answer.error_message)]
    results += [(each.error_code, each.error_message) for part in answer.responses for each in part.partitions]
    return all(_accepted(f"reassignment of {topic}-{partition}", *result) for result in results)


def _elect(broker: KafkaBroker, topic: str, partition: int) -> bool:
    """Return whether this was accepted; False if it may be later. Raises ServerError."""
    partitions = (TopicPartitions(topic=topic, partitions=(partition,)),)
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=partitions)
    answer = ask(broker.host, broker.plaintext_port, request, 2)
    results: list[tuple[int, str | None]] = [(answer.error_code, None)]
    results += [
        (each.error_code, each.error_message)
        for part in answer.replica_election_results
        for each in part.partition_result
        if each.error_code != ErrorCode.ELECTION_NOT_NEEDED
    ]
    return all(_accepted(f"election of a leader of {topic}-{partition}", *result) for result in results)


def _ask_controller(setup: ClusterSetup, path: str, partition: Mapping[str, object]) -> None:
    """Create a node that the controller of ZooKeeper mode acts on and deletes."""
    setup.create(path, {"version": 1, "partitions": [partition]})
    wait_for(f"the controller to delete {path}", lambda: not setup.nodes(path))


def _accepted(what: str, code: int, message: str | None) -> bool:
    if code and ErrorCode(code).retriable:
        return False
    _check(what, code, message)
    return True


def _check(what: str, code: int, message: str | None) -> None:
    if code:
        raise ServerError(f"{what}: {ErrorCode(code).name}: {message or 'no message'}")
