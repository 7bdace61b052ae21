"""Brokers, partitions and quotas: descriptions in, findings out; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from odradek.arguments import listed
from odradek.core.admin import PartitionDescription, TopicDescription
from odradek.core.admin_access import QuotaEntity, QuotaName
from odradek.doctor.causes import Diagnosis, diagnosis, similar

__all__ = ["OWN_TOPICS", "missing_topic", "own_topic_findings", "partition_findings", "quota_findings"]

IMBALANCE = 0.1
"""Part of the partitions that a broker should lead and does not: brokers elect again above it
(leader.imbalance.per.broker.percentage)."""

OWN_TOPICS = {
    "offsets.topic.replication.factor": "__consumer_offsets",
    "transaction.state.log.replication.factor": "__transaction_state",
}
"""Property -> the topic that brokers create with it."""


def partition_findings(
    topics: Sequence[TopicDescription], alive: Collection[int], min_in_sync: Mapping[str, int]
) -> Iterator[Diagnosis]:
    """Return findings about leaders and replicas.

    Args:
        topics: All that this client may know of.
        alive: Ids of the brokers that the cluster lists.
        min_in_sync: Topic -> its min.insync.replicas.
    """
    partitions = [partition for topic in topics for partition in topic.partitions]
    missing = Counter(number for each in partitions for number in each.replicas if number not in alive)
    for number, count in sorted(missing.items()):
        yield diagnosis("broker-down", f"broker {number} has replicas of {count} partitions, and is not in the cluster")
    if offline := [each.partition for each in partitions if each.leader is None]:
        yield diagnosis("partition-offline", f"without a leader: {listed(offline)}")
    behind = [each for each in partitions if each.leader is not None and len(each.in_sync) < len(each.replicas)]
    if behind:
        behind_by = listed(
            [f"{each.partition} ({len(each.in_sync)} of {len(each.replicas)} in sync)" for each in behind]
        )
        yield diagnosis("under-replicated", f"with replicas that are behind: {behind_by}")
    for topic in topics:
        yield from _in_sync_findings(topic, min_in_sync.get(topic.name, 1))
    yield from _imbalance(partitions)


def _in_sync_findings(topic: TopicDescription, least: int) -> Iterator[Diagnosis]:
    short = [each for each in topic.partitions if each.leader is not None and len(each.in_sync) < least]
    if short:
        possible = any(len(each.replicas) >= least for each in short)
        numbers = listed([f"{each.partition} ({len(each.in_sync)} of {len(each.replicas)} in sync)" for each in short])
        cause = "too-few-in-sync" if possible else "min-insync-above-replicas"
        yield diagnosis(cause, f"{topic.name} has min.insync.replicas {least}: {numbers}")


def _imbalance(partitions: Sequence[PartitionDescription]) -> Iterator[Diagnosis]:
    preferred = Counter(each.replicas[0] for each in partitions if each.replicas)
    led = [each for each in partitions if each.replicas and each.leader not in (None, each.replicas[0])]
    moved = Counter(each.replicas[0] for each in led if each.replicas[0] in each.in_sync)
    for number, count in sorted(moved.items()):
        if count > IMBALANCE * preferred[number]:
            evidence = f"broker {number} should lead {preferred[number]} partitions, and others lead {count} of them"
            yield diagnosis("leader-imbalance", evidence)


def own_topic_findings(config: Mapping[str, str | None], topics: Collection[str], brokers: int) -> Iterator[Diagnosis]:
    """Return findings about topics that brokers cannot create.

    Args:
        config: The configuration of a broker.
        topics: All topics, the brokers' own among them.
        brokers: How many there are.
    """
    for name, topic in OWN_TOPICS.items():
        if int(config.get(name) or 1) > brokers and topic not in topics:
            evidence = f"{topic} cannot be created: {name} is {config[name]}, and the number of brokers {brokers}"
            yield diagnosis("replication-above-brokers", evidence)


def quota_findings(
    quotas: Mapping[QuotaEntity, Mapping[str, float]], client_id: str, user: str | None
) -> Iterator[Diagnosis]:
    """Return the quotas that concern a client."""
    for entity, limits in quotas.items():
        concerned = entity.client_id in (None, client_id, QuotaName.DEFAULT)
        if concerned and entity.user in (None, user, QuotaName.DEFAULT) and entity.ip is None:
            limited = ", ".join(f"{name} {limit:g}" for name, limit in sorted(limits.items()))
            yield diagnosis(
                "quota-in-force", f"user {entity.user or 'any'}, client {entity.client_id or 'any'}: {limited}"
            )


def missing_topic(name: str, topics: Collection[str], config: Mapping[str, str | None]) -> Diagnosis:
    """Return the finding for a topic that does not exist; the configuration of a broker may be unknown."""
    auto_create = config.get("auto.create.topics.enable")
    created = "" if auto_create is None else f"; auto.create.topics.enable is {auto_create}"
    return diagnosis("topic-missing", f"{name} is not among {len(topics)} topics{created}{similar(name, topics)}")
