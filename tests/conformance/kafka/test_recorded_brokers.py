"""Decisions about real brokers, from what they answered in recorded conversations."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.core.kafka.assignors import CooperativeStickyAssignor, RangeAssignor, StickyAssignor
from odradek.core.kafka.fetch_session import FetchSession
from odradek.core.kafka.routing import KafkaRoutingTable
from odradek.core.kafka.subscription import decode_assignment, decode_member
from odradek.core.kafka.versions import BrokerVersions
from odradek.types import TopicPartition
from odradek.wire.kafka.decode import decode
from odradek.wire.kafka.messages.data import FetchResponse
from odradek.wire.kafka.messages.groups import JoinGroupResponse, SyncGroupResponse
from odradek.wire.kafka.messages.metadata import ApiVersionsResponse, MetadataResponse
from odradek.wire.kafka.schema import Response

CORPUS = Path(__file__).with_name("corpus")
BROKERS = ("0.8.2.2", "0.9.0.1", "0.10.1.1", "0.11.0.3", "2.8.2", "3.9.1", "4.3.1")


def answers(broker: str, kind: type[Response]) -> Iterator[Response]:
    """Decode every answer of one kind that the broker gave."""
    with gzip.open(CORPUS / f"conversations_{broker}_shared.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if line["dir"] == "s2c" and line.get("key") == kind.SPEC.key and "json" in line:
                body = bytes.fromhex(line["hex"])[line["body_at"] :]
                yield decode(kind, line.get("body_version", line["version"]), body)


def versions(broker: str) -> BrokerVersions:
    offered = [
        r for r in answers(broker, ApiVersionsResponse) if isinstance(r, ApiVersionsResponse) and not r.error_code
    ]
    return BrokerVersions.from_response(max(offered, key=lambda r: len(r.finalized_features)))


@pytest.mark.parametrize(
    ("broker", "magic", "abilities"),
    [
        ("0.10.1.1", 1, {"timestamps", "groups", "time_index"}),
        ("0.11.0.3", 2, {"timestamps", "groups", "time_index", "idempotence", "transactions", "read_committed"}),
        (
            "2.8.2",
            2,
            {
                *("timestamps", "groups", "time_index", "idempotence", "transactions", "read_committed"),
                *("fetch_sessions", "zstd", "static_members", "epoch_bump", "group_fencing", "leader_epochs"),
                "sasl_requests",
            },
        ),
        (
            "4.3.1",
            2,
            {
                *("timestamps", "groups", "time_index", "idempotence", "transactions", "read_committed"),
                *("fetch_sessions", "zstd", "static_members", "epoch_bump", "group_fencing", "leader_epochs"),
                *("sasl_requests", "transactions_v2", "consumer_protocol", "group_lists"),
            },
        ),
    ],
)
def test_what_a_recorded_broker_can_do(broker: str, magic: int, abilities: set[str]) -> None:
    known = versions(broker)
    asked = (
        *("timestamps", "groups", "time_index", "idempotence", "transactions", "read_committed"),
        *("fetch_sessions", "zstd", "static_members", "epoch_bump", "group_fencing", "leader_epochs"),
        *("sasl_requests", "transactions_v2", "consumer_protocol", "group_lists"),
    )
    assert {name for name in asked if getattr(known, f"has_{name}")} == abilities
    assert known.produce_magic == magic


@pytest.mark.parametrize("broker", BROKERS)
def test_recorded_metadata_becomes_routing_tables(broker: str) -> None:
    table, led = KafkaRoutingTable(), 0
    for response in answers(broker, MetadataResponse):
        assert isinstance(response, MetadataResponse)
        table, changes = table.apply(response, [topic.name or "" for topic in response.topics])
        assert not changes.bootstrap_again
        for topic in response.topics:
            for partition in topic.partitions:
                leader = table.leader(TopicPartition(topic.name or "", partition.partition_index))
                assert (None if leader is None else leader.node_id) == (
                    partition.leader_id if partition.leader_id in table.brokers else None
                )
                led += leader is not None
    assert led > 0 and table.brokers


@pytest.mark.parametrize("broker", [broker for broker in BROKERS if broker not in ("0.8.2.2", "0.9.0.1")])
def test_recorded_groups_are_understood(broker: str) -> None:
    assignors = {a.name: a for a in (RangeAssignor(), StickyAssignor(), CooperativeStickyAssignor())}
    members = [
        decode_member(assignors.get(response.protocol_name or "", RangeAssignor()), member)
        for response in answers(broker, JoinGroupResponse)
        if isinstance(response, JoinGroupResponse)
        for member in response.members
    ]
    assert members and all(member.topics for member in members)
    assigned = [
        partition
        for response in answers(broker, SyncGroupResponse)
        if isinstance(response, SyncGroupResponse) and not response.error_code
        for partition in decode_assignment(response.assignment)
    ]
    assert assigned and {p.topic for p in assigned} <= {t for member in members for t in member.topics}


@pytest.mark.parametrize("broker", ["2.8.2", "3.9.1", "4.3.1"])
def test_recorded_sessions_are_granted(broker: str) -> None:
    sessions = {
        response.session_id
        for response in answers(broker, FetchResponse)
        if isinstance(response, FetchResponse) and not response.error_code
    }
    assert any(session for session in sessions)
    assert FetchSession(enabled=versions(broker).has_fetch_sessions).session_id == 0
