"""Requests about brokers and where partitions are, and what their responses mean."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.core.admin_cluster import (
    Features,
    QuorumDescription,
    QuorumReplica,
    Reassignment,
    Replica,
    ReplicaInDirectory,
    VersionLevels,
)
from odradek.core.kafka import admin_cluster as cluster
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import BrokerError, ConfigError, RemoteProtocolError, Unsupported
from odradek.types import TopicPartition
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.admin import (
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    ElectLeadersPartitionResult,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from odradek.wire.kafka.messages.metadata import ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey
from odradek.wire.kafka.messages.quorum import (
    DescribeQuorumReplicaState,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    UpdatableFeatureResult,
    UpdateFeaturesResponse,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
DIRECTORY, DIRECTORY_TEXT = bytes(range(16)), "AAECAwQFBgcICQoLDA0ODw"


# ---- replicas -----------------------------------------------------------------------------------------------


def test_replicas_are_moved_and_moves_are_cancelled() -> None:
    request = cluster.reassign_request({A0: [2, 1], A1: None, B0: [3]}, 7)
    sent = {
        TopicPartition(topic.name, each.partition_index): each.replicas
        for topic in request.topics
        for each in topic.partitions
    }
    assert (request.timeout_ms, sent) == (7, {A0: (2, 1), A1: None, B0: (3,)})
    refused = ReassignablePartitionResponse(partition_index=1, error_code=85, error_message="none in progress")
    response = AlterPartitionReassignmentsResponse(
        responses=(
            ReassignableTopicResponse(name="a", partitions=(ReassignablePartitionResponse(partition_index=0), refused)),
        )
    )
    results = cluster.read_reassigned(response, [A0, A1, B0])
    assert results.done == {A0: None} and "none in progress" in str(results.failed[A1])
    assert isinstance(results.failed[B0], RemoteProtocolError)
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        cluster.read_reassigned(AlterPartitionReassignmentsResponse(error_code=31), [A0])


def test_moves_in_progress_are_listed() -> None:
    assert cluster.list_reassignments_request(None, 7).topics is None
    (topic,) = cluster.list_reassignments_request([A0, A1], 7).topics or ()
    assert (topic.name, topic.partition_indexes) == ("a", (0, 1))
    moving = OngoingPartitionReassignment(
        partition_index=0, replicas=(2, 3, 1), adding_replicas=(2, 3), removing_replicas=(1,)
    )
    response = ListPartitionReassignmentsResponse(topics=(OngoingTopicReassignment(name="a", partitions=(moving,)),))
    assert cluster.read_reassignments(response) == {A0: Reassignment((2, 3, 1), (2, 3), (1,), ())}
    with pytest.raises(BrokerError):
        cluster.read_reassignments(ListPartitionReassignmentsResponse(error_code=31))


def test_the_rest_of_a_move_is_what_is_not_in_sync() -> None:
    assert Reassignment((2, 3, 1), (2, 3), (1,), (1, 3)).missing == (2,)
    assert Reassignment((2, 1), (2,), (1,), (1, 2)).missing == ()


# ---- leaders ------------------------------------------------------------------------------------------------


def test_an_election_is_for_some_partitions_or_all() -> None:
    new, old = BrokerVersions({43: VersionRange(0, 2)}), BrokerVersions({43: VersionRange(0, 0)})
    request = cluster.elect_request([A0, A1], new, 7, unclean=True)
    assert (request.election_type, request.timeout_ms) == (1, 7)
    assert [(each.topic, each.partitions) for each in request.topic_partitions or ()] == [("a", (0, 1))]
    assert cluster.elect_request(None, new, 7, unclean=False).topic_partitions is None
    encode(cluster.elect_request([A0], old, 7, unclean=False), 0)
    with pytest.raises(Unsupported, match=r"2\.4"):
        cluster.elect_request([A0], old, 7, unclean=True)


def test_an_election_that_is_not_needed_is_no_error() -> None:
    codes = {0: 0, 1: 84, 2: 80}
    parts = tuple(ElectLeadersPartitionResult(partition_id=n, error_code=code) for n, code in codes.items())
    response = ElectLeadersResponse(
        replica_election_results=(ReplicaElectionResult(topic="a", partition_result=parts),)
    )
    results = cluster.read_elected(response, None)
    assert results.done == {A0: True, A1: False}
    assert "PREFERRED_LEADER_NOT_AVAILABLE" in str(results.failed[TopicPartition("a", 2)])
    assert cluster.read_elected(response, [B0]).failed.keys() == {B0}
    with pytest.raises(BrokerError):
        cluster.read_elected(ElectLeadersResponse(error_code=31), None)


# ---- log directories ----------------------------------------------------------------------------------------


def test_log_directories_are_described() -> None:
    replica = DescribeLogDirsPartition(partition_index=0, partition_size=5, offset_lag=2, is_future_key=True)
    good = DescribeLogDirsResult(
        log_dir="/z",
        topics=(DescribeLogDirsTopic(name="a", partitions=(replica,)),),
        total_bytes=100,
        usable_bytes=60,
        is_cordoned=True,
    )
    broken = DescribeLogDirsResult(log_dir="/a", error_code=56)
    first, last = cluster.read_log_dirs(DescribeLogDirsResponse(results=(good, broken)))
    assert first.path == "/a" and "KAFKA_STORAGE_ERROR" in str(first.error)
    assert (first.total_bytes, first.usable_bytes) == (None, None)
    assert (last.error, last.total_bytes, last.usable_bytes, last.is_cordoned) == (None, 100, 60, True)
    assert last.replicas == {A0: ReplicaInDirectory(5, 2, True)}
    with pytest.raises(BrokerError):
        cluster.read_log_dirs(DescribeLogDirsResponse(error_code=31))


def test_replicas_are_moved_between_directories() -> None:
    request = cluster.move_replicas_request({A0: "/x", A1: "/y", B0: "/x"})
    sent = {each.path: [(topic.name, topic.partitions) for topic in each.topics] for each in request.dirs}
    assert sent == {"/x": [("a", (0,)), ("b", (0,))], "/y": [("a", (1,))]}
    parts = tuple(AlterReplicaLogDirPartitionResult(partition_index=n, error_code=c) for n, c in [(0, 0), (1, 57)])
    response = AlterReplicaLogDirsResponse(results=(AlterReplicaLogDirTopicResult(topic_name="a", partitions=parts),))
    results = cluster.read_moved(response, 4, [A0, A1])
    assert results.done == {Replica(4, A0): None}
    assert "LOG_DIR_NOT_FOUND" in str(results.failed[Replica(4, A1)])


# ---- quorum -------------------------------------------------------------------------------------------------


def quorum(**fields: Any) -> DescribeQuorumResponse:
    partition = DescribeQuorumResponsePartitionData(**fields)
    return DescribeQuorumResponse(topics=(DescribeQuorumResponseTopicData(topic_name="q", partitions=(partition,)),))


def test_the_quorum_is_described() -> None:
    ((partition,),) = [topic.partitions for topic in cluster.describe_quorum_request().topics]
    assert partition.partition_index == 0
    voter = DescribeQuorumReplicaState(
        replica_id=1,
        replica_directory_id=DIRECTORY,
        log_end_offset=9,
        last_fetch_timestamp=1500,
        last_caught_up_timestamp=0,
    )
    observer = DescribeQuorumReplicaState(replica_id=2, log_end_offset=8)
    response = quorum(leader_id=1, leader_epoch=4, high_watermark=8, current_voters=(voter,), observers=(observer,))
    assert cluster.read_quorum(response) == QuorumDescription(
        1, 4, 8, (QuorumReplica(1, DIRECTORY_TEXT, 9, 1.5, 0.0),), (QuorumReplica(2, None, 8, None, None),)
    )


@pytest.mark.parametrize("response", [DescribeQuorumResponse(error_code=31), quorum(error_code=31)])
def test_an_error_of_the_quorum_is_raised(response: DescribeQuorumResponse) -> None:
    with pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED"):
        cluster.read_quorum(response)
    with pytest.raises(RemoteProtocolError):
        cluster.read_quorum(DescribeQuorumResponse())


def test_controllers_join_and_leave_the_quorum_by_their_directories() -> None:
    add = cluster.add_voter_request(3, DIRECTORY_TEXT, {"CONTROLLER": ("h", 9093)}, 7)
    assert (add.voter_id, add.voter_directory_id, add.timeout_ms) == (3, DIRECTORY, 7)
    assert [(each.name, each.host, each.port) for each in add.listeners] == [("CONTROLLER", "h", 9093)]
    remove = cluster.remove_voter_request(3, DIRECTORY_TEXT)
    assert (remove.voter_id, remove.voter_directory_id) == (3, DIRECTORY)


@pytest.mark.parametrize("text", ["", "AAAA", "AAECAwQFBgcICQoLDA0ODwAA", "\u00e4" * 22])
def test_what_is_no_id_of_a_directory_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="directory_id"):
        cluster.remove_voter_request(3, text)


# ---- features -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epoch", "known"), [(-1, None), (0, 0), (9, 9)])
def test_features_are_read_with_their_levels(epoch: int, known: int | None) -> None:
    response = ApiVersionsResponse(
        supported_features=(SupportedFeatureKey(name="f", min_version=0, max_version=3),),
        finalized_features=(FinalizedFeatureKey(name="f", max_version_level=2, min_version_level=1),),
        finalized_features_epoch=epoch,
    )
    assert cluster.read_features(response) == Features({"f": VersionLevels(0, 3)}, {"f": VersionLevels(1, 2)}, known)
    with pytest.raises(BrokerError):
        cluster.read_features(ApiVersionsResponse(error_code=42))


@pytest.mark.parametrize(
    ("last", "downgrade", "unsafe", "kind"), [(1, False, False, 1), (2, True, False, 2), (2, True, True, 3)]
)
def test_levels_go_up_or_down_as_is_allowed(last: int, downgrade: bool, unsafe: bool, kind: int) -> None:
    versions = BrokerVersions({57: VersionRange(0, last)})
    request = cluster.update_features_request(
        {"f": 2}, versions, 7, downgrade=downgrade, unsafe=unsafe, validate_only=True
    )
    (update,) = request.feature_updates
    assert (update.feature, update.max_version_level, update.upgrade_type) == ("f", 2, kind)
    assert request.validate_only and request.timeout_ms == 7
    encode(request, last)


def test_old_brokers_only_know_whether_levels_may_become_lower() -> None:
    old = BrokerVersions({57: VersionRange(0, 0)})
    request = cluster.update_features_request({"f": 0}, old, 7, downgrade=True, unsafe=False, validate_only=False)
    assert request.feature_updates[0].allow_downgrade
    encode(request, 0)
    for unsafe, validate_only in [(True, False), (False, True)]:
        with pytest.raises(Unsupported, match=r"3\.3"):
            cluster.update_features_request(
                {"f": 0}, old, 7, downgrade=True, unsafe=unsafe, validate_only=validate_only
            )


def test_each_feature_is_changed_or_all_have_one_result() -> None:
    refused = UpdatableFeatureResult(feature="g", error_code=95, error_message="too high")
    results = cluster.read_updated_features(
        UpdateFeaturesResponse(results=(UpdatableFeatureResult(feature="f"), refused)), ["f", "g"]
    )
    assert results.done == {"f": None} and "too high" in str(results.failed["g"])
    assert cluster.read_updated_features(UpdateFeaturesResponse(), ["f", "g"]).done.keys() == {"f", "g"}
    with pytest.raises(BrokerError, match="all of them"):
        cluster.read_updated_features(UpdateFeaturesResponse(error_code=95, error_message="all of them"), ["f"])
