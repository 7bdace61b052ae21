"""Requests that only brokers and controllers send."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.messages.common import Listener
from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    I64,
    IGNORABLE,
    U16,
    ZERO_UUID,
    Bool,
    Bytes,
    Records,
    Request,
    Response,
    Str,
    Struct,
    Uuid,
    message,
    nullable,
    since,
    struct,
    tag,
    until,
)

from .common import KRaftVersionFeature


@struct
class LeaderAndIsrPartitionState(Struct):
    topic_name: Annotated[Str, until(1), IGNORABLE] = ""
    partition_index: I32 = 0
    controller_epoch: I32 = 0
    leader: I32 = 0
    leader_epoch: I32 = 0
    isr: tuple[I32, ...] = ()
    partition_epoch: I32 = 0
    replicas: tuple[I32, ...] = ()
    adding_replicas: Annotated[tuple[I32, ...], since(3), IGNORABLE] = ()
    removing_replicas: Annotated[tuple[I32, ...], since(3), IGNORABLE] = ()
    is_new: Annotated[Bool, since(1), IGNORABLE] = False
    leader_recovery_state: Annotated[I8, since(6)] = 0


@struct
class LeaderAndIsrTopicState(Struct):
    topic_name: Str = ""
    topic_id: Annotated[Uuid, since(5), IGNORABLE] = ZERO_UUID
    partition_states: tuple[LeaderAndIsrPartitionState, ...] = ()


@struct
class LeaderAndIsrLiveLeader(Struct):
    broker_id: I32 = 0
    host_name: Str = ""
    port: I32 = 0


@message(key=4, side="request", versions=(0, 7), flexible=4)
class LeaderAndIsrRequest(Request["LeaderAndIsrResponse"]):
    """Tell a broker which partitions it leads or follows."""

    controller_id: I32 = 0
    is_k_raft_controller: Annotated[Bool, since(7)] = False
    controller_epoch: I32 = 0
    broker_epoch: Annotated[I64, since(2), IGNORABLE] = -1
    type: Annotated[I8, since(5)] = 0
    ungrouped_partition_states: Annotated[tuple[LeaderAndIsrPartitionState, ...], until(1)] = ()
    topic_states: Annotated[tuple[LeaderAndIsrTopicState, ...], since(2)] = ()
    live_leaders: tuple[LeaderAndIsrLiveLeader, ...] = ()


@struct
class LeaderAndIsrPartitionError(Struct):
    topic_name: Annotated[Str, until(4), IGNORABLE] = ""
    partition_index: I32 = 0
    error_code: I16 = 0


@struct
class LeaderAndIsrTopicError(Struct):
    topic_id: Uuid = ZERO_UUID
    partition_errors: tuple[LeaderAndIsrPartitionError, ...] = ()


@message(key=4, side="response", versions=(0, 7), flexible=4)
class LeaderAndIsrResponse(Response):
    error_code: I16 = 0
    partition_errors: Annotated[tuple[LeaderAndIsrPartitionError, ...], until(4)] = ()
    topics: Annotated[tuple[LeaderAndIsrTopicError, ...], since(5)] = ()


@struct
class StopReplicaPartitionV0(Struct):
    topic_name: Str = ""
    partition_index: I32 = 0


@struct
class StopReplicaTopicV1(Struct):
    name: Str = ""
    partition_indexes: tuple[I32, ...] = ()


@struct
class StopReplicaPartitionState(Struct):
    partition_index: I32 = 0
    leader_epoch: I32 = -1
    delete_partition: Bool = False


@struct
class StopReplicaTopicState(Struct):
    topic_name: Str = ""
    partition_states: tuple[StopReplicaPartitionState, ...] = ()


@message(key=5, side="request", versions=(0, 4), flexible=2)
class StopReplicaRequest(Request["StopReplicaResponse"]):
    """Tell a broker to stop replicating partitions."""

    controller_id: I32 = 0
    is_k_raft_controller: Annotated[Bool, since(4)] = False
    controller_epoch: I32 = 0
    broker_epoch: Annotated[I64, since(1), IGNORABLE] = -1
    delete_partitions: Annotated[Bool, until(2)] = False
    ungrouped_partitions: Annotated[tuple[StopReplicaPartitionV0, ...], until(0)] = ()
    topics: Annotated[tuple[StopReplicaTopicV1, ...], since(1), until(2)] = ()
    topic_states: Annotated[tuple[StopReplicaTopicState, ...], since(3)] = ()


@struct
class StopReplicaPartitionError(Struct):
    topic_name: Str = ""
    partition_index: I32 = 0
    error_code: I16 = 0


@message(key=5, side="response", versions=(0, 4), flexible=2)
class StopReplicaResponse(Response):
    error_code: I16 = 0
    partition_errors: tuple[StopReplicaPartitionError, ...] = ()


@struct
class UpdateMetadataPartitionState(Struct):
    topic_name: Annotated[Str, until(4), IGNORABLE] = ""
    partition_index: I32 = 0
    controller_epoch: I32 = 0
    leader: I32 = 0
    leader_epoch: I32 = 0
    isr: tuple[I32, ...] = ()
    zk_version: I32 = 0
    replicas: tuple[I32, ...] = ()
    offline_replicas: Annotated[tuple[I32, ...], since(4), IGNORABLE] = ()


@struct
class UpdateMetadataTopicState(Struct):
    topic_name: Str = ""
    topic_id: Annotated[Uuid, since(7), IGNORABLE] = ZERO_UUID
    partition_states: tuple[UpdateMetadataPartitionState, ...] = ()


@struct
class UpdateMetadataEndpoint(Struct):
    port: I32 = 0
    host: Str = ""
    listener: Annotated[Str, since(3), IGNORABLE] = ""
    security_protocol: I16 = 0


@struct
class UpdateMetadataBroker(Struct):
    id: I32 = 0
    v0_host: Annotated[Str, until(0), IGNORABLE] = ""
    v0_port: Annotated[I32, until(0), IGNORABLE] = 0
    endpoints: Annotated[tuple[UpdateMetadataEndpoint, ...], since(1), IGNORABLE] = ()
    rack: Annotated[Str | None, since(2), nullable(), IGNORABLE] = ""


@message(key=6, side="request", versions=(0, 8), flexible=6)
class UpdateMetadataRequest(Request["UpdateMetadataResponse"]):
    """Tell a broker the leader of each partition."""

    controller_id: I32 = 0
    is_k_raft_controller: Annotated[Bool, since(8)] = False
    type: Annotated[I8, since(8), tag(0)] = 0
    controller_epoch: I32 = 0
    broker_epoch: Annotated[I64, since(5), IGNORABLE] = -1
    ungrouped_partition_states: Annotated[tuple[UpdateMetadataPartitionState, ...], until(4)] = ()
    topic_states: Annotated[tuple[UpdateMetadataTopicState, ...], since(5)] = ()
    live_brokers: tuple[UpdateMetadataBroker, ...] = ()


@message(key=6, side="response", versions=(0, 8), flexible=6)
class UpdateMetadataResponse(Response):
    error_code: I16 = 0


@message(key=7, side="request", versions=(0, 3), flexible=3)
class ControlledShutdownRequest(Request["ControlledShutdownResponse"]):
    """Tell the controller that a broker is about to stop."""

    broker_id: I32 = 0
    broker_epoch: Annotated[I64, since(2), IGNORABLE] = -1


@struct
class RemainingPartition(Struct):
    topic_name: Str = ""
    partition_index: I32 = 0


@message(key=7, side="response", versions=(0, 3), flexible=3)
class ControlledShutdownResponse(Response):
    error_code: I16 = 0
    remaining_partitions: tuple[RemainingPartition, ...] = ()


@struct
class VoteRequestPartitionData(Struct):
    partition_index: I32 = 0
    replica_epoch: I32 = 0
    replica_id: I32 = 0
    replica_directory_id: Annotated[Uuid, since(1), IGNORABLE] = ZERO_UUID
    voter_directory_id: Annotated[Uuid, since(1), IGNORABLE] = ZERO_UUID
    last_offset_epoch: I32 = 0
    last_offset: I64 = 0
    pre_vote: Annotated[Bool, since(2)] = False


@struct
class VoteRequestTopicData(Struct):
    topic_name: Str = ""
    partitions: tuple[VoteRequestPartitionData, ...] = ()


@message(key=52, side="request", versions=(0, 2), flexible=0)
class VoteRequest(Request["VoteResponse"]):
    """Request a vote in the election of the controllers' leader."""

    cluster_id: Annotated[Str | None, nullable()] = None
    voter_id: Annotated[I32, since(1), IGNORABLE] = -1
    topics: tuple[VoteRequestTopicData, ...] = ()


@struct
class VoteResponsePartitionData(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    leader_id: I32 = 0
    leader_epoch: I32 = 0
    vote_granted: Bool = False


@struct
class VoteResponseTopicData(Struct):
    topic_name: Str = ""
    partitions: tuple[VoteResponsePartitionData, ...] = ()


@struct
class QuorumNodeEndpoint(Struct):
    node_id: I32 = 0
    host: Str = ""
    port: U16 = 0


@message(key=52, side="response", versions=(0, 2), flexible=0)
class VoteResponse(Response):
    error_code: I16 = 0
    topics: tuple[VoteResponseTopicData, ...] = ()
    node_endpoints: Annotated[tuple[QuorumNodeEndpoint, ...], since(1), tag(0)] = ()


@struct
class BeginQuorumEpochRequestPartitionData(Struct):
    partition_index: I32 = 0
    voter_directory_id: Annotated[Uuid, since(1), IGNORABLE] = ZERO_UUID
    leader_id: I32 = 0
    leader_epoch: I32 = 0


@struct
class BeginQuorumEpochRequestTopicData(Struct):
    topic_name: Str = ""
    partitions: tuple[BeginQuorumEpochRequestPartitionData, ...] = ()


@struct
class LeaderEndpoint(Struct):
    name: Str = ""
    host: Str = ""
    port: U16 = 0


@message(key=53, side="request", versions=(0, 1), flexible=1)
class BeginQuorumEpochRequest(Request["BeginQuorumEpochResponse"]):
    """Announce a new leader of the controllers."""

    cluster_id: Annotated[Str | None, nullable()] = None
    voter_id: Annotated[I32, since(1), IGNORABLE] = -1
    topics: tuple[BeginQuorumEpochRequestTopicData, ...] = ()
    leader_endpoints: Annotated[tuple[LeaderEndpoint, ...], since(1), IGNORABLE] = ()


@struct
class BeginQuorumEpochResponsePartitionData(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    leader_id: I32 = 0
    leader_epoch: I32 = 0


@struct
class BeginQuorumEpochResponseTopicData(Struct):
    topic_name: Str = ""
    partitions: tuple[BeginQuorumEpochResponsePartitionData, ...] = ()


@message(key=53, side="response", versions=(0, 1), flexible=1)
class BeginQuorumEpochResponse(Response):
    error_code: I16 = 0
    topics: tuple[BeginQuorumEpochResponseTopicData, ...] = ()
    node_endpoints: Annotated[tuple[QuorumNodeEndpoint, ...], since(1), tag(0)] = ()


@struct
class EndQuorumEpochReplicaInfo(Struct):
    candidate_id: I32 = 0
    candidate_directory_id: Uuid = ZERO_UUID


@struct
class EndQuorumEpochRequestPartitionData(Struct):
    partition_index: I32 = 0
    leader_id: I32 = 0
    leader_epoch: I32 = 0
    preferred_successors: Annotated[tuple[I32, ...], until(0), IGNORABLE] = ()
    preferred_candidates: Annotated[tuple[EndQuorumEpochReplicaInfo, ...], since(1), IGNORABLE] = ()


@struct
class EndQuorumEpochRequestTopicData(Struct):
    topic_name: Str = ""
    partitions: tuple[EndQuorumEpochRequestPartitionData, ...] = ()


@message(key=54, side="request", versions=(0, 1), flexible=1)
class EndQuorumEpochRequest(Request["EndQuorumEpochResponse"]):
    """Announce that a leader of the controllers steps down."""

    cluster_id: Annotated[Str | None, nullable()] = None
    topics: tuple[EndQuorumEpochRequestTopicData, ...] = ()
    leader_endpoints: Annotated[tuple[LeaderEndpoint, ...], since(1), IGNORABLE] = ()


@struct
class EndQuorumEpochResponsePartitionData(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    leader_id: I32 = 0
    leader_epoch: I32 = 0


@struct
class EndQuorumEpochResponseTopicData(Struct):
    topic_name: Str = ""
    partitions: tuple[EndQuorumEpochResponsePartitionData, ...] = ()


@message(key=54, side="response", versions=(0, 1), flexible=1)
class EndQuorumEpochResponse(Response):
    error_code: I16 = 0
    topics: tuple[EndQuorumEpochResponseTopicData, ...] = ()
    node_endpoints: Annotated[tuple[QuorumNodeEndpoint, ...], since(1), tag(0)] = ()


@struct
class AlterPartitionBrokerState(Struct):
    broker_id: I32 = 0
    broker_epoch: I64 = -1


@struct
class AlterPartitionRequestPartitionData(Struct):
    partition_index: I32 = 0
    leader_epoch: I32 = 0
    new_isr: Annotated[tuple[I32, ...], until(2)] = ()
    new_isr_with_epochs: Annotated[tuple[AlterPartitionBrokerState, ...], since(3)] = ()
    leader_recovery_state: Annotated[I8, since(1)] = 0
    partition_epoch: I32 = 0


@struct
class AlterPartitionRequestTopicData(Struct):
    topic_name: Annotated[Str, until(1), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(2), IGNORABLE] = ZERO_UUID
    partitions: tuple[AlterPartitionRequestPartitionData, ...] = ()


@message(key=56, side="request", versions=(0, 3), flexible=0)
class AlterPartitionRequest(Request["AlterPartitionResponse"]):
    """Change the in-sync replicas of partitions, at the controller."""

    broker_id: I32 = 0
    broker_epoch: I64 = -1
    topics: tuple[AlterPartitionRequestTopicData, ...] = ()


@struct
class AlterPartitionResponsePartitionData(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    leader_id: I32 = 0
    leader_epoch: I32 = 0
    isr: tuple[I32, ...] = ()
    leader_recovery_state: Annotated[I8, since(1), IGNORABLE] = 0
    partition_epoch: I32 = 0


@struct
class AlterPartitionResponseTopicData(Struct):
    topic_name: Annotated[Str, until(1), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(2), IGNORABLE] = ZERO_UUID
    partitions: tuple[AlterPartitionResponsePartitionData, ...] = ()


@message(key=56, side="response", versions=(0, 3), flexible=0)
class AlterPartitionResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    topics: tuple[AlterPartitionResponseTopicData, ...] = ()


@message(key=58, side="request", versions=(0, 0), flexible=0)
class EnvelopeRequest(Request["EnvelopeResponse"]):
    """Forward a client's request to the controller."""

    request_data: Bytes = b""
    request_principal: Annotated[Bytes | None, nullable()] = b""
    client_host_address: Bytes = b""


@message(key=58, side="response", versions=(0, 0), flexible=0)
class EnvelopeResponse(Response):
    response_data: Annotated[Bytes | None, nullable()] = None
    error_code: I16 = 0


@struct
class FetchSnapshotId(Struct):
    end_offset: I64 = 0
    epoch: I32 = 0


@struct
class FetchSnapshotRequestPartition(Struct):
    partition: I32 = 0
    current_leader_epoch: I32 = 0
    snapshot_id: FetchSnapshotId = FetchSnapshotId()
    position: I64 = 0
    replica_directory_id: Annotated[Uuid, since(1), tag(0), IGNORABLE] = ZERO_UUID


@struct
class FetchSnapshotRequestTopic(Struct):
    name: Str = ""
    partitions: tuple[FetchSnapshotRequestPartition, ...] = ()


@message(key=59, side="request", versions=(0, 1), flexible=0)
class FetchSnapshotRequest(Request["FetchSnapshotResponse"]):
    """Read a part of a snapshot of the metadata log."""

    cluster_id: Annotated[Str | None, nullable(), tag(0)] = None
    replica_id: I32 = -1
    max_bytes: I32 = 2**31 - 1
    topics: tuple[FetchSnapshotRequestTopic, ...] = ()


@struct
class FetchSnapshotLeaderIdAndEpoch(Struct):
    leader_id: I32 = 0
    leader_epoch: I32 = 0


@struct
class FetchSnapshotResponsePartition(Struct):
    index: I32 = 0
    error_code: I16 = 0
    snapshot_id: FetchSnapshotId = FetchSnapshotId()
    current_leader: Annotated[FetchSnapshotLeaderIdAndEpoch, tag(0)] = FetchSnapshotLeaderIdAndEpoch()
    size: I64 = 0
    position: I64 = 0
    unaligned_records: Records | None = None


@struct
class FetchSnapshotResponseTopic(Struct):
    name: Str = ""
    partitions: tuple[FetchSnapshotResponsePartition, ...] = ()


@message(key=59, side="response", versions=(0, 1), flexible=0)
class FetchSnapshotResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    topics: tuple[FetchSnapshotResponseTopic, ...] = ()
    node_endpoints: Annotated[tuple[QuorumNodeEndpoint, ...], since(1), tag(0)] = ()


@struct
class BrokerListener(Struct):
    name: Str = ""
    host: Str = ""
    port: U16 = 0
    security_protocol: I16 = 0


@struct
class BrokerFeature(Struct):
    name: Str = ""
    min_supported_version: I16 = 0
    max_supported_version: I16 = 0


@message(key=62, side="request", versions=(0, 4), flexible=0)
class BrokerRegistrationRequest(Request["BrokerRegistrationResponse"]):
    """Register a broker with the controllers."""

    broker_id: I32 = 0
    cluster_id: Str = ""
    incarnation_id: Uuid = ZERO_UUID
    listeners: tuple[BrokerListener, ...] = ()
    features: tuple[BrokerFeature, ...] = ()
    rack: Annotated[Str | None, nullable()] = ""
    is_migrating_zk_broker: Annotated[Bool, since(1)] = False
    log_dirs: Annotated[tuple[Uuid, ...], since(2), IGNORABLE] = ()
    previous_broker_epoch: Annotated[I64, since(3), IGNORABLE] = -1


@message(key=62, side="response", versions=(0, 4), flexible=0)
class BrokerRegistrationResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    broker_epoch: I64 = -1


@message(key=63, side="request", versions=(0, 2), flexible=0)
class BrokerHeartbeatRequest(Request["BrokerHeartbeatResponse"]):
    """Tell the controllers that a broker is alive."""

    broker_id: I32 = 0
    broker_epoch: I64 = -1
    current_metadata_offset: I64 = 0
    want_fence: Bool = False
    want_shut_down: Bool = False
    offline_log_dirs: Annotated[tuple[Uuid, ...], since(1), tag(0)] = ()
    cordoned_log_dirs: Annotated[tuple[Uuid, ...] | None, since(2), nullable(), tag(1)] = None


@message(key=63, side="response", versions=(0, 2), flexible=0)
class BrokerHeartbeatResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    is_caught_up: Bool = False
    is_fenced: Bool = True
    should_shut_down: Bool = False


@message(key=67, side="request", versions=(0, 0), flexible=0)
class AllocateProducerIdsRequest(Request["AllocateProducerIdsResponse"]):
    """Get a block of producer ids from the controller."""

    broker_id: I32 = 0
    broker_epoch: I64 = -1


@message(key=67, side="response", versions=(0, 0), flexible=0)
class AllocateProducerIdsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    producer_id_start: I64 = 0
    producer_id_len: I32 = 0


@message(key=70, side="request", versions=(0, 0), flexible=0)
class ControllerRegistrationRequest(Request["ControllerRegistrationResponse"]):
    """Register a controller with the controllers' leader."""

    controller_id: I32 = 0
    incarnation_id: Uuid = ZERO_UUID
    zk_migration_ready: Bool = False
    listeners: tuple[BrokerListener, ...] = ()
    features: tuple[BrokerFeature, ...] = ()


@message(key=70, side="response", versions=(0, 0), flexible=0)
class ControllerRegistrationResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""


@struct
class AssignReplicasToDirsRequestPartitionData(Struct):
    partition_index: I32 = 0


@struct
class AssignReplicasToDirsRequestTopicData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[AssignReplicasToDirsRequestPartitionData, ...] = ()


@struct
class AssignReplicasToDirsRequestDirectory(Struct):
    id: Uuid = ZERO_UUID
    topics: tuple[AssignReplicasToDirsRequestTopicData, ...] = ()


@message(key=73, side="request", versions=(0, 0), flexible=0)
class AssignReplicasToDirsRequest(Request["AssignReplicasToDirsResponse"]):
    """Tell the controllers in which directories a broker keeps its replicas."""

    broker_id: I32 = 0
    broker_epoch: I64 = -1
    directories: tuple[AssignReplicasToDirsRequestDirectory, ...] = ()


@struct
class AssignReplicasToDirsResponsePartitionData(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0


@struct
class AssignReplicasToDirsResponseTopicData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[AssignReplicasToDirsResponsePartitionData, ...] = ()


@struct
class AssignReplicasToDirsResponseDirectory(Struct):
    id: Uuid = ZERO_UUID
    topics: tuple[AssignReplicasToDirsResponseTopicData, ...] = ()


@message(key=73, side="response", versions=(0, 0), flexible=0)
class AssignReplicasToDirsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    directories: tuple[AssignReplicasToDirsResponseDirectory, ...] = ()


@message(key=82, side="request", versions=(0, 0), flexible=0)
class UpdateRaftVoterRequest(Request["UpdateRaftVoterResponse"]):
    """Change the endpoints of a voter."""

    cluster_id: Annotated[Str | None, nullable()] = ""
    current_leader_epoch: I32 = 0
    voter_id: I32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: tuple[Listener, ...] = ()
    k_raft_version_feature: KRaftVersionFeature = KRaftVersionFeature()


@struct
class UpdateRaftVoterCurrentLeader(Struct):
    leader_id: I32 = -1
    leader_epoch: I32 = -1
    host: Str = ""
    port: I32 = 0


@message(key=82, side="response", versions=(0, 0), flexible=0)
class UpdateRaftVoterResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    current_leader: Annotated[UpdateRaftVoterCurrentLeader, tag(0)] = UpdateRaftVoterCurrentLeader()
