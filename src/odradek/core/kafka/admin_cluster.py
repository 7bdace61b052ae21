"""Requests about replicas, leaders, log directories, the quorum and features, and what responses say. Pure."""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from odradek.core.admin import Results
from odradek.core.admin_cluster import (
    Features,
    LogDirectory,
    QuorumDescription,
    QuorumReplica,
    Reassignment,
    Replica,
    ReplicaInDirectory,
    VersionLevels,
)
from odradek.core.kafka.admin_topics import id_text, item_error, item_results, known
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.partitions import by_topic
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import ConfigError, OdradekError, RemoteProtocolError, Unsupported
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from odradek.wire.kafka.messages.common import Listener, TopicPartitions
from odradek.wire.kafka.messages.metadata import ApiVersionsResponse
from odradek.wire.kafka.messages.quorum import (
    AddRaftVoterRequest,
    DescribeQuorumReplicaState,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
    FeatureUpdateKey,
    RemoveRaftVoterRequest,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = [
    "add_voter_request",
    "describe_quorum_request",
    "elect_request",
    "list_reassignments_request",
    "move_replicas_request",
    "read_elected",
    "read_features",
    "read_log_dirs",
    "read_moved",
    "read_quorum",
    "read_reassigned",
    "read_reassignments",
    "read_updated_features",
    "reassign_request",
    "remove_voter_request",
    "update_features_request",
]


# ---- replicas -----------------------------------------------------------------------------------------------


def reassign_request(
    targets: Mapping[TopicPartition, Sequence[int] | None], timeout_ms: int
) -> AlterPartitionReassignmentsRequest:
    """Return the request to move replicas, and to cancel moves where the target is None."""

    def partition(where: TopicPartition) -> ReassignablePartition:
        target = targets[where]
        return ReassignablePartition(
            partition_index=where.partition, replicas=None if target is None else tuple(target)
        )

    topics = tuple(
        ReassignableTopic(name=topic, partitions=tuple(partition(TopicPartition(topic, n)) for n in numbers))
        for topic, numbers in by_topic(targets).items()
    )
    return AlterPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)


def read_reassigned(
    response: AlterPartitionReassignmentsResponse, partitions: Collection[TopicPartition]
) -> Results[TopicPartition, None]:
    """Return the result of each partition. Raises BrokerError for an error of the whole."""
    if error := item_error(response.error_code, response.error_message, "moving replicas"):
        raise error
    answers = {
        TopicPartition(topic.name, each.partition_index): item_error(
            each.error_code, each.error_message, f"moving replicas of {topic.name}/{each.partition_index}"
        )
        for topic in response.responses
        for each in topic.partitions
    }
    return item_results(partitions, answers, "AlterPartitionReassignments")


def list_reassignments_request(
    partitions: Collection[TopicPartition] | None, timeout_ms: int
) -> ListPartitionReassignmentsRequest:
    """Return the request for the moves of partitions, or of all."""
    if partitions is None:
        return ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=None)
    topics = tuple(
        ListPartitionReassignmentsTopics(name=topic, partition_indexes=tuple(numbers))
        for topic, numbers in by_topic(partitions).items()
    )
    return ListPartitionReassignmentsRequest(timeout_ms=timeout_ms, topics=topics)


def read_reassignments(response: ListPartitionReassignmentsResponse) -> dict[TopicPartition, Reassignment]:
    """Return the moves, without what metadata says: which replicas are in sync. Raises BrokerError."""
    if error := item_error(response.error_code, response.error_message, "listing moves of replicas"):
        raise error
    return {
        TopicPartition(topic.name, each.partition_index): Reassignment(
            tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas), ()
        )
        for topic in response.topics
        for each in topic.partitions
    }


# ---- leaders ------------------------------------------------------------------------------------------------

PREFERRED, UNCLEAN = 0, 1
"""Types of elections."""


def elect_request(
    partitions: Collection[TopicPartition] | None, versions: BrokerVersions, timeout_ms: int, *, unclean: bool
) -> ElectLeadersRequest:
    """Return the request to elect leaders. Raises Unsupported for an unclean election before 2.4."""
    if unclean and not versions.has(ElectLeadersRequest, 1):
        raise Unsupported("an unclean election of leaders", "Kafka 2.4")
    wanted = (
        None
        if partitions is None
        else tuple(
            TopicPartitions(topic=topic, partitions=tuple(numbers)) for topic, numbers in by_topic(partitions).items()
        )
    )
    kind = UNCLEAN if unclean else PREFERRED
    return ElectLeadersRequest(election_type=kind, topic_partitions=wanted, timeout_ms=timeout_ms)


def read_elected(
    response: ElectLeadersResponse, partitions: Collection[TopicPartition] | None
) -> Results[TopicPartition, bool]:
    """Return the result of each partition; if all were asked for, of those that the response names."""
    if response.error_code:
        raise broker_error(response.error_code, "electing leaders")
    answers: dict[TopicPartition, bool | OdradekError] = {}
    for topic in response.replica_election_results:
        for each in topic.partition_result:
            where = TopicPartition(topic.topic, each.partition_id)
            if each.error_code == ErrorCode.ELECTION_NOT_NEEDED:
                answers[where] = False
            else:
                error = item_error(each.error_code, each.error_message, f"electing a leader of {where}")
                answers[where] = error or True
    return item_results(answers if partitions is None else partitions, answers, "ElectLeaders")


# ---- log directories ----------------------------------------------------------------------------------------


def read_log_dirs(response: DescribeLogDirsResponse) -> list[LogDirectory]:
    """Return the log directories of a broker, sorted by path. Raises BrokerError."""
    if response.error_code:
        raise broker_error(response.error_code, "describing log directories")
    return sorted(map(_directory, response.results), key=lambda directory: directory.path)


def _directory(result: DescribeLogDirsResult) -> LogDirectory:
    replicas = {
        TopicPartition(topic.name, each.partition_index): ReplicaInDirectory(
            each.partition_size, each.offset_lag, each.is_future_key
        )
        for topic in result.topics
        for each in topic.partitions
    }
    return LogDirectory(
        result.log_dir,
        item_error(result.error_code, None, f"log directory {result.log_dir}"),
        known(result.total_bytes),
        known(result.usable_bytes),
        replicas,
        result.is_cordoned,
    )


def move_replicas_request(targets: Mapping[TopicPartition, str]) -> AlterReplicaLogDirsRequest:
    """Return the request to move replicas of one broker to directories."""
    by_path: dict[str, list[TopicPartition]] = defaultdict(list)
    for partition, path in targets.items():
        by_path[path].append(partition)
    directories = tuple(
        AlterReplicaLogDir(
            path=path,
            topics=tuple(
                AlterReplicaLogDirTopic(name=topic, partitions=tuple(numbers))
                for topic, numbers in by_topic(partitions).items()
            ),
        )
        for path, partitions in by_path.items()
    )
    return AlterReplicaLogDirsRequest(dirs=directories)


def read_moved(
    response: AlterReplicaLogDirsResponse, broker: int, partitions: Collection[TopicPartition]
) -> Results[Replica, None]:
    """Return the result of each replica of a broker."""
    answers = {
        Replica(broker, TopicPartition(topic.topic_name, each.partition_index)): item_error(
            each.error_code, None, f"moving {topic.topic_name}/{each.partition_index} on broker {broker}"
        )
        for topic in response.results
        for each in topic.partitions
    }
    return item_results([Replica(broker, partition) for partition in partitions], answers, "AlterReplicaLogDirs")


# ---- quorum -------------------------------------------------------------------------------------------------

METADATA = "__cluster_metadata"
"""The topic of the controllers. It has one partition."""


def describe_quorum_request() -> DescribeQuorumRequest:
    """Return the request for the state of the quorum."""
    partitions = (DescribeQuorumRequestPartitionData(partition_index=0),)
    return DescribeQuorumRequest(topics=(DescribeQuorumRequestTopicData(topic_name=METADATA, partitions=partitions),))


def read_quorum(response: DescribeQuorumResponse) -> QuorumDescription:
    """Return the state of the quorum. Raises BrokerError."""
    if error := item_error(response.error_code, response.error_message, "describing the quorum"):
        raise error
    for partition in [each for topic in response.topics for each in topic.partitions]:
        if error := item_error(partition.error_code, partition.error_message, "describing the quorum"):
            raise error
        return QuorumDescription(
            partition.leader_id,
            partition.leader_epoch,
            partition.high_watermark,
            tuple(map(_quorum_replica, partition.current_voters)),
            tuple(map(_quorum_replica, partition.observers)),
        )
    raise RemoteProtocolError("DescribeQuorum: the response says nothing about the quorum")


def _quorum_replica(state: DescribeQuorumReplicaState) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        id_text(state.replica_directory_id),
        state.log_end_offset,
        _seconds(state.last_fetch_timestamp),
        _seconds(state.last_caught_up_timestamp),
    )


def _seconds(timestamp_ms: int) -> float | None:
    return timestamp_ms / 1000 if timestamp_ms >= 0 else None


def _uuid(text: str) -> bytes:
    """Return the id that Kafka's tools print like this. Raises ConfigError."""
    try:
        number = base64.urlsafe_b64decode(f"{text}==")
    except (binascii.Error, ValueError):
        number = b""
    if len(number) != len(ZERO_UUID):
        raise ConfigError(f"directory_id={text[:60]!r}: must be an id of 22 characters, as meta.properties has it")
    return number


def add_voter_request(
    voter: int, directory_id: str, listeners: Mapping[str, tuple[str, int]], timeout_ms: int
) -> AddRaftVoterRequest:
    """Return the request to add a controller."""
    return AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=timeout_ms,
        voter_id=voter,
        voter_directory_id=_uuid(directory_id),
        listeners=tuple(Listener(name=name, host=host, port=port) for name, (host, port) in listeners.items()),
    )


def remove_voter_request(voter: int, directory_id: str) -> RemoveRaftVoterRequest:
    """Return the request to remove a controller."""
    return RemoveRaftVoterRequest(cluster_id=None, voter_id=voter, voter_directory_id=_uuid(directory_id))


# ---- features -----------------------------------------------------------------------------------------------

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""Types of changes of features."""


def read_features(response: ApiVersionsResponse) -> Features:
    """Return the features. Raises BrokerError."""
    if response.error_code:
        raise broker_error(response.error_code, "describing features")
    return Features(
        {each.name: VersionLevels(each.min_version, each.max_version) for each in response.supported_features},
        {
            each.name: VersionLevels(each.min_version_level, each.max_version_level)
            for each in response.finalized_features
        },
        known(response.finalized_features_epoch),
    )


def update_features_request(
    levels: Mapping[str, int],
    versions: BrokerVersions,
    timeout_ms: int,
    *,
    downgrade: bool,
    unsafe: bool,
    validate_only: bool,
) -> UpdateFeaturesRequest:
    """Return the request to set levels. Raises Unsupported for what brokers before 3.3 do not distinguish."""
    if not versions.has(UpdateFeaturesRequest, 1):
        if unsafe or validate_only:
            raise Unsupported("the validation or unsafe downgrade of a feature", "Kafka 3.3")
        old = (FeatureUpdateKey(feature=n, max_version_level=at, allow_downgrade=downgrade) for n, at in levels.items())
        return UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=tuple(old))
    kind = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE if downgrade else UPGRADE
    updates = (FeatureUpdateKey(feature=name, max_version_level=at, upgrade_type=kind) for name, at in levels.items())
    return UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=tuple(updates), validate_only=validate_only)


def read_updated_features(response: UpdateFeaturesResponse, names: Iterable[str]) -> Results[str, None]:
    """Return the result of each feature. From 4.0 on there is one for all of them. Raises BrokerError."""
    if error := item_error(response.error_code, response.error_message, "changing features"):
        raise error
    answers: dict[str, OdradekError | None] = dict.fromkeys(names)
    for each in response.results:
        answers[each.feature] = item_error(each.error_code, each.error_message, f"feature {each.feature!r}")
    return item_results(names, answers, "UpdateFeatures")
