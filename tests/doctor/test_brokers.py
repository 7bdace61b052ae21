"""Descriptions of brokers, partitions and quotas in, findings out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from odradek.core.admin import PartitionDescription, TopicDescription
from odradek.core.admin_access import QuotaEntity, QuotaName
from odradek.doctor.brokers import missing_topic, own_topic_findings, partition_findings, quota_findings
from odradek.types import TopicPartition

P = tuple[int | None, Sequence[int], Sequence[int]]
"""Leader, replicas, those in sync."""


def topic(*partitions: P, name: str = "orders") -> TopicDescription:
    described = tuple(
        PartitionDescription(TopicPartition(name, number), leader, 0, tuple(replicas), tuple(in_sync), ())
        for number, (leader, replicas, in_sync) in enumerate(partitions)
    )
    return TopicDescription(name, None, False, described)


GOOD: P = (1, [1, 2, 3], [1, 2, 3])


@pytest.mark.parametrize(
    ("partitions", "alive", "least", "causes"),
    [
        ([GOOD], [1, 2, 3], 2, []),
        ([], [1], 1, []),
        ([(None, [1], [1])], [2], 1, ["broker-down", "partition-offline"]),
        ([(None, [1, 2], [])], [1, 2], 2, ["partition-offline"]),
        ([(1, [1, 2, 3], [1, 3])], [1, 2, 3], 2, ["under-replicated"]),
        ([(1, [1, 2, 3], [1, 3])], [1, 3], 2, ["broker-down", "under-replicated"]),
        ([(1, [1, 2, 3], [1])], [1, 2, 3], 2, ["under-replicated", "too-few-in-sync"]),
        ([(1, [1], [1])], [1], 2, ["min-insync-above-replicas"]),
        ([(2, [1, 2], [1, 2])], [1, 2], 1, ["leader-imbalance"]),
        ([(2, [1, 2], [2])], [1, 2], 1, ["under-replicated"]),
        ([(2, [1, 2], [1, 2]), *[(1, [1, 2], [1, 2])] * 9], [1, 2], 1, []),
        ([(1, [], [])], [1], 0, []),
    ],
)
def test_partitions(partitions: list[P], alive: list[int], least: int, causes: list[str]) -> None:
    findings = list(partition_findings([topic(*partitions)], alive, {"orders": least}))
    assert [finding.cause for finding in findings] == causes


def test_evidence_has_numbers_and_names_a_few_partitions() -> None:
    findings = list(partition_findings([topic(*[(1, [1, 2], [1])] * 7)], [1], {"orders": 2}))
    evidence = {finding.cause: finding.evidence for finding in findings}
    assert evidence["broker-down"] == "broker 2 has replicas of 7 partitions, and is not in the cluster"
    assert evidence["under-replicated"] == (
        "with replicas that are behind: orders/0 (1 of 2 in sync), orders/1 (1 of 2 in sync), "
        "orders/2 (1 of 2 in sync), orders/3 (1 of 2 in sync), orders/4 (1 of 2 in sync) and 2 more"
    )
    assert evidence["too-few-in-sync"].startswith("orders has min.insync.replicas 2: orders/0 (1 of 2 in sync)")


def test_a_topic_without_a_known_minimum_needs_one_replica() -> None:
    assert list(partition_findings([topic((1, [1], [1]))], [1], {})) == []


@pytest.mark.parametrize(
    ("config", "topics", "brokers", "evidence"),
    [
        ({}, [], 1, []),
        ({"offsets.topic.replication.factor": "1"}, [], 1, []),
        ({"offsets.topic.replication.factor": "3"}, ["__consumer_offsets"], 1, []),
        (
            {"offsets.topic.replication.factor": "3", "transaction.state.log.replication.factor": "2"},
            ["__transaction_state"],
            1,
            [
                "__consumer_offsets cannot be created: "
                "offsets.topic.replication.factor is 3, and the number of brokers 1"
            ],
        ),
    ],
)
def test_topics_of_the_brokers(
    config: Mapping[str, str | None], topics: list[str], brokers: int, evidence: list[str]
) -> None:
    assert [each.evidence for each in own_topic_findings(config, topics, brokers)] == evidence


@pytest.mark.parametrize(
    ("entity", "concerned"),
    [
        (QuotaEntity(client_id="me"), True),
        (QuotaEntity(client_id=QuotaName.DEFAULT), True),
        (QuotaEntity(client_id="other"), False),
        (QuotaEntity(user="alice"), True),
        (QuotaEntity(user="alice", client_id="me"), True),
        (QuotaEntity(user="alice", client_id="other"), False),
        (QuotaEntity(user="bob", client_id="me"), False),
        (QuotaEntity(user=QuotaName.DEFAULT), True),
        (QuotaEntity(ip="127.0.0.1"), False),
    ],
)
def test_quotas_of_others_are_no_findings(entity: QuotaEntity, concerned: bool) -> None:
    findings = list(quota_findings({entity: {"producer_byte_rate": 1024.0}}, "me", "alice"))
    assert [(each.cause, each.severity) for each in findings] == [("quota-in-force", "notice")] * concerned
    assert all("producer_byte_rate 1024" in each.evidence for each in findings)


def test_a_missing_topic_names_similar_ones_and_whether_it_would_be_created() -> None:
    finding = missing_topic("order", ["orders", "x"], {"auto.create.topics.enable": "false"})
    assert finding.evidence == "order is not among 2 topics; auto.create.topics.enable is false; similar: orders"
    assert missing_topic("order", [], {}).evidence == "order is not among 0 topics"
