"""Requests about the quorum of controllers, its brokers and its features."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    I64,
    IGNORABLE,
    ZERO_UUID,
    Bool,
    Request,
    Response,
    Str,
    Struct,
    Uuid,
    message,
    nullable,
    since,
    struct,
    until,
)

from .common import Listener


@struct
class DescribeQuorumRequestPartitionData(Struct):
    partition_index: I32 = 0


@struct
class DescribeQuorumRequestTopicData(Struct):
    topic_name: Str = ""
    partitions: tuple[DescribeQuorumRequestPartitionData, ...] = ()


@message(key=55, side="request", versions=(0, 2), flexible=0)
class DescribeQuorumRequest(Request["DescribeQuorumResponse"]):
    """Describe the quorum of controllers."""

    topics: tuple[DescribeQuorumRequestTopicData, ...] = ()


@struct
class DescribeQuorumReplicaState(Struct):
    replica_id: I32 = 0
    replica_directory_id: Annotated[Uuid, since(2)] = ZERO_UUID
    log_end_offset: I64 = 0
    last_fetch_timestamp: Annotated[I64, since(1), IGNORABLE] = -1
    last_caught_up_timestamp: Annotated[I64, since(1), IGNORABLE] = -1


@struct
class DescribeQuorumResponsePartitionData(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, since(2), nullable(), IGNORABLE] = ""
    leader_id: I32 = 0
    leader_epoch: I32 = 0
    high_watermark: I64 = 0
    current_voters: tuple[DescribeQuorumReplicaState, ...] = ()
    observers: tuple[DescribeQuorumReplicaState, ...] = ()


@struct
class DescribeQuorumResponseTopicData(Struct):
    topic_name: Str = ""
    partitions: tuple[DescribeQuorumResponsePartitionData, ...] = ()


@struct
class DescribeQuorumNode(Struct):
    node_id: I32 = 0
    listeners: tuple[Listener, ...] = ()


@message(key=55, side="response", versions=(0, 2), flexible=0)
class DescribeQuorumResponse(Response):
    error_code: I16 = 0
    error_message: Annotated[Str | None, since(2), nullable(), IGNORABLE] = ""
    topics: tuple[DescribeQuorumResponseTopicData, ...] = ()
    nodes: Annotated[tuple[DescribeQuorumNode, ...], since(2)] = ()


@struct
class FeatureUpdateKey(Struct):
    feature: Str = ""
    max_version_level: I16 = 0
    allow_downgrade: Annotated[Bool, until(0)] = False
    upgrade_type: Annotated[I8, since(1)] = 1


@message(key=57, side="request", versions=(0, 2), flexible=0)
class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    """Change finalized feature levels."""

    timeout_ms: I32 = 60000
    feature_updates: tuple[FeatureUpdateKey, ...] = ()
    validate_only: Annotated[Bool, since(1)] = False


@struct
class UpdatableFeatureResult(Struct):
    feature: Str = ""
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""


@message(key=57, side="response", versions=(0, 2), flexible=0)
class UpdateFeaturesResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    results: Annotated[tuple[UpdatableFeatureResult, ...], until(1), IGNORABLE] = ()


@message(key=64, side="request", versions=(0, 0), flexible=0)
class UnregisterBrokerRequest(Request["UnregisterBrokerResponse"]):
    """Remove a broker's registration."""

    broker_id: I32 = 0


@message(key=64, side="response", versions=(0, 0), flexible=0)
class UnregisterBrokerResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""


@message(key=80, side="request", versions=(0, 1), flexible=0)
class AddRaftVoterRequest(Request["AddRaftVoterResponse"]):
    """Add a voter to the quorum of controllers."""

    cluster_id: Annotated[Str | None, nullable()] = ""
    timeout_ms: I32 = 0
    voter_id: I32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: tuple[Listener, ...] = ()
    ack_when_committed: Annotated[Bool, since(1)] = True


@message(key=80, side="response", versions=(0, 1), flexible=0)
class AddRaftVoterResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""


@message(key=81, side="request", versions=(0, 0), flexible=0)
class RemoveRaftVoterRequest(Request["RemoveRaftVoterResponse"]):
    """Remove a voter from the quorum of controllers."""

    cluster_id: Annotated[Str | None, nullable()] = ""
    voter_id: I32 = 0
    voter_directory_id: Uuid = ZERO_UUID


@message(key=81, side="response", versions=(0, 0), flexible=0)
class RemoveRaftVoterResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
