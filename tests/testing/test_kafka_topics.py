"""Leaders are moved also while a controller is elected and a replica catches up; other refusals are errors at once.
A look at a topic changes nothing."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from odradek.errors import ServerError
from odradek.testing import KafkaBroker
from odradek.testing.kafka import topics
from odradek.testing.kafka.releases import KRAFT, NEWEST
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)
from odradek.wire.kafka.messages.metadata import MetadataResponsePartition


class Cluster:
    """Answers of one broker, which leads after an election without an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, errors: dict[type, list[ErrorCode]]) -> None:
        self.errors, self.leader = errors, 2
        monkeypatch.setattr(topics, "ask", self.ask)
        monkeypatch.setattr(topics, "leader_of", lambda *_: self.leader)
        known = MetadataResponsePartition(leader_id=2, replica_nodes=(2, 1))
        monkeypatch.setattr(topics, "partition_of", lambda *_: known)

    def ask(self, host: str, port: int, request: Any, version: int) -> Any:
        errors = self.errors.get(type(request))
        error = errors.pop(0) if errors else ErrorCode.NONE
        if isinstance(request, AlterPartitionReassignmentsRequest):
            return AlterPartitionReassignmentsResponse(error_code=error)
        self.leader = 2 if error else 1
        results = (ElectLeadersPartitionResult(error_code=error),)
        return ElectLeadersResponse(replica_election_results=(ReplicaElectionResult(partition_result=results),))

    def move(self) -> None:
        broker = KafkaBroker(NEWEST, mode=KRAFT)
        topics.move_leader(broker.setup, [broker], "t", 0, 1)


def test_a_leader_is_moved_once_the_controller_and_the_replica_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: dict[type, list[ErrorCode]] = {
        AlterPartitionReassignmentsRequest: [ErrorCode.NOT_CONTROLLER],
        ElectLeadersRequest: [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE] * 2,
    }
    cluster = Cluster(monkeypatch, errors)
    cluster.move()
    assert (cluster.leader, errors) == (1, {AlterPartitionReassignmentsRequest: [], ElectLeadersRequest: []})


@pytest.mark.parametrize("api", [AlterPartitionReassignmentsRequest, ElectLeadersRequest])
def test_a_refusal_that_does_not_pass_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch, api: type) -> None:
    cluster = Cluster(monkeypatch, {api: [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2})
    with pytest.raises(ServerError, match="t-0: CLUSTER_AUTHORIZATION_FAILED"):
        cluster.move()


def test_a_look_for_a_topic_that_is_absent_creates_none(odradek_kafka: KafkaBroker) -> None:
    absent, created_later = f"t{uuid4().hex}", f"t{uuid4().hex}"
    assert topics.leader_of(odradek_kafka, absent, 0) == -1
    odradek_kafka.create_topic(created_later)  # by then the controller would have created the other one
    names = {topic.name for topic in odradek_kafka.metadata().topics}
    assert created_later in names and absent not in names
    assert topics.leader_of(odradek_kafka, created_later, 0) == odradek_kafka.broker_id
