"""Share groups (KIP-932)."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.messages.common import (
    DescribedTopicPartitions,
    NodeEndpoint,
    TopicIdPartitions,
)
from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    I64,
    IGNORABLE,
    ZERO_UUID,
    Bool,
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
    until,
)


@message(key=76, side="request", versions=(0, 1), flexible=0, stable=(1, 1))
class ShareGroupHeartbeatRequest(Request["ShareGroupHeartbeatResponse"]):
    """Join, stay in or leave a share group (KIP-932)."""

    group_id: Str = ""
    member_id: Str = ""
    member_epoch: I32 = 0
    rack_id: Annotated[Str | None, nullable()] = None
    subscribed_topic_names: Annotated[tuple[Str, ...] | None, nullable()] = None


@struct
class ShareGroupHeartbeatAssignment(Struct):
    topic_partitions: tuple[TopicIdPartitions, ...] = ()


@message(key=76, side="response", versions=(0, 1), flexible=0, stable=(1, 1))
class ShareGroupHeartbeatResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    member_id: Annotated[Str | None, nullable()] = None
    member_epoch: I32 = 0
    heartbeat_interval_ms: I32 = 0
    assignment: Annotated[ShareGroupHeartbeatAssignment | None, nullable()] = None


@message(key=77, side="request", versions=(0, 1), flexible=0, stable=(1, 1))
class ShareGroupDescribeRequest(Request["ShareGroupDescribeResponse"]):
    """Describe share groups."""

    group_ids: tuple[Str, ...] = ()
    include_authorized_operations: Bool = False


@struct
class ShareGroupDescribeAssignment(Struct):
    topic_partitions: tuple[DescribedTopicPartitions, ...] = ()


@struct
class ShareGroupMember(Struct):
    member_id: Str = ""
    rack_id: Annotated[Str | None, nullable()] = None
    member_epoch: I32 = 0
    client_id: Str = ""
    client_host: Str = ""
    subscribed_topic_names: tuple[Str, ...] = ()
    assignment: ShareGroupDescribeAssignment = ShareGroupDescribeAssignment()


@struct
class DescribedShareGroup(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    group_id: Str = ""
    group_state: Str = ""
    group_epoch: I32 = 0
    assignment_epoch: I32 = 0
    assignor_name: Str = ""
    members: tuple[ShareGroupMember, ...] = ()
    authorized_operations: I32 = -(2**31)


@message(key=77, side="response", versions=(0, 1), flexible=0, stable=(1, 1))
class ShareGroupDescribeResponse(Response):
    throttle_time_ms: I32 = 0
    groups: tuple[DescribedShareGroup, ...] = ()


@struct
class AcknowledgementBatch(Struct):
    first_offset: I64 = 0
    last_offset: I64 = 0
    acknowledge_types: tuple[I8, ...] = ()


@struct
class ShareFetchPartition(Struct):
    partition_index: I32 = 0
    partition_max_bytes: Annotated[I32, until(0)] = 0
    acknowledgement_batches: tuple[AcknowledgementBatch, ...] = ()


@struct
class ShareFetchTopic(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[ShareFetchPartition, ...] = ()


@struct
class ShareFetchForgottenTopic(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[I32, ...] = ()


@message(key=78, side="request", versions=(0, 2), flexible=0, stable=(1, 2))
class ShareFetchRequest(Request["ShareFetchResponse"]):
    """Acquire records for a member of a share group, and acknowledge earlier ones."""

    group_id: Annotated[Str | None, nullable()] = None
    member_id: Annotated[Str | None, nullable()] = ""
    share_session_epoch: I32 = 0
    max_wait_ms: I32 = 0
    min_bytes: I32 = 0
    max_bytes: I32 = 2**31 - 1
    max_records: Annotated[I32, since(1)] = 0
    batch_size: Annotated[I32, since(1)] = 0
    share_acquire_mode: Annotated[I8, since(2), IGNORABLE] = 0
    is_renew_ack: Annotated[Bool, since(2)] = False
    topics: tuple[ShareFetchTopic, ...] = ()
    forgotten_topics_data: tuple[ShareFetchForgottenTopic, ...] = ()


@struct
class ShareLeaderIdAndEpoch(Struct):
    leader_id: I32 = 0
    leader_epoch: I32 = 0


@struct
class AcquiredRecords(Struct):
    first_offset: I64 = 0
    last_offset: I64 = 0
    delivery_count: I16 = 0


@struct
class ShareFetchPartitionData(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    acknowledge_error_code: I16 = 0
    acknowledge_error_message: Annotated[Str | None, nullable()] = None
    current_leader: ShareLeaderIdAndEpoch = ShareLeaderIdAndEpoch()
    records: Annotated[Records | None, nullable(0, 0)] = None
    acquired_records: tuple[AcquiredRecords, ...] = ()


@struct
class ShareFetchableTopicResponse(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[ShareFetchPartitionData, ...] = ()


@message(key=78, side="response", versions=(0, 2), flexible=0, stable=(1, 2))
class ShareFetchResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    acquisition_lock_timeout_ms: Annotated[I32, since(1)] = 0
    responses: tuple[ShareFetchableTopicResponse, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@struct
class AcknowledgePartition(Struct):
    partition_index: I32 = 0
    acknowledgement_batches: tuple[AcknowledgementBatch, ...] = ()


@struct
class AcknowledgeTopic(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[AcknowledgePartition, ...] = ()


@message(key=79, side="request", versions=(0, 2), flexible=0, stable=(1, 2))
class ShareAcknowledgeRequest(Request["ShareAcknowledgeResponse"]):
    """Acknowledge records of a share group."""

    group_id: Annotated[Str | None, nullable()] = None
    member_id: Annotated[Str | None, nullable()] = ""
    share_session_epoch: I32 = 0
    is_renew_ack: Annotated[Bool, since(2)] = False
    topics: tuple[AcknowledgeTopic, ...] = ()


@struct
class ShareAcknowledgePartitionData(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    current_leader: ShareLeaderIdAndEpoch = ShareLeaderIdAndEpoch()


@struct
class ShareAcknowledgeTopicResponse(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[ShareAcknowledgePartitionData, ...] = ()


@message(key=79, side="response", versions=(0, 2), flexible=0, stable=(1, 2))
class ShareAcknowledgeResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    acquisition_lock_timeout_ms: Annotated[I32, since(2), IGNORABLE] = 0
    responses: tuple[ShareAcknowledgeTopicResponse, ...] = ()
    node_endpoints: tuple[NodeEndpoint, ...] = ()


@struct
class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: Str = ""
    partitions: tuple[I32, ...] = ()


@struct
class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: Str = ""
    topics: Annotated[tuple[DescribeShareGroupOffsetsRequestTopic, ...] | None, nullable()] = ()


@message(key=90, side="request", versions=(0, 1), flexible=0)
class DescribeShareGroupOffsetsRequest(Request["DescribeShareGroupOffsetsResponse"]):
    """Get the start offsets of share groups."""

    groups: tuple[DescribeShareGroupOffsetsRequestGroup, ...] = ()


@struct
class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: I32 = 0
    start_offset: I64 = 0
    leader_epoch: I32 = 0
    lag: Annotated[I64, since(1), IGNORABLE] = -1
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None


@struct
class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: Str = ""
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[DescribeShareGroupOffsetsResponsePartition, ...] = ()


@struct
class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: Str = ""
    topics: tuple[DescribeShareGroupOffsetsResponseTopic, ...] = ()
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None


@message(key=90, side="response", versions=(0, 1), flexible=0)
class DescribeShareGroupOffsetsResponse(Response):
    throttle_time_ms: I32 = 0
    groups: tuple[DescribeShareGroupOffsetsResponseGroup, ...] = ()


@struct
class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: I32 = 0
    start_offset: I64 = 0


@struct
class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: Str = ""
    partitions: tuple[AlterShareGroupOffsetsRequestPartition, ...] = ()


@message(key=91, side="request", versions=(0, 0), flexible=0)
class AlterShareGroupOffsetsRequest(Request["AlterShareGroupOffsetsResponse"]):
    """Change the start offsets of a share group."""

    group_id: Str = ""
    topics: tuple[AlterShareGroupOffsetsRequestTopic, ...] = ()


@struct
class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None


@struct
class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: Str = ""
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[AlterShareGroupOffsetsResponsePartition, ...] = ()


@message(key=91, side="response", versions=(0, 0), flexible=0)
class AlterShareGroupOffsetsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    responses: tuple[AlterShareGroupOffsetsResponseTopic, ...] = ()


@struct
class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: Str = ""


@message(key=92, side="request", versions=(0, 0), flexible=0)
class DeleteShareGroupOffsetsRequest(Request["DeleteShareGroupOffsetsResponse"]):
    """Delete the start offsets of a share group."""

    group_id: Str = ""
    topics: tuple[DeleteShareGroupOffsetsRequestTopic, ...] = ()


@struct
class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: Str = ""
    topic_id: Uuid = ZERO_UUID
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None


@message(key=92, side="response", versions=(0, 0), flexible=0)
class DeleteShareGroupOffsetsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    responses: tuple[DeleteShareGroupOffsetsResponseTopic, ...] = ()
