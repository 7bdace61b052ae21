"""Records and offsets of partitions: Produce, Fetch, ListOffsets, OffsetForLeaderEpoch."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.messages.common import NodeEndpoint
from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    I64,
    IGNORABLE,
    ZERO_UUID,
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


@struct
class PartitionProduceData(Struct):
    index: I32 = 0
    records: Annotated[Records | None, nullable()] = None


@struct
class TopicProduceData(Struct):
    name: Annotated[Str, until(12), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
    partition_data: tuple[PartitionProduceData, ...] = ()


@message(key=0, side="request", versions=(0, 13), flexible=9)
class ProduceRequest(Request["ProduceResponse"]):
    """Write record batches to partitions. With `acks` 0 there is no response."""

    transactional_id: Annotated[Str | None, since(3), nullable()] = None
    acks: I16 = 0
    timeout_ms: I32 = 0
    topic_data: tuple[TopicProduceData, ...] = ()


@struct
class BatchIndexAndErrorMessage(Struct):
    batch_index: I32 = 0
    batch_index_error_message: Annotated[Str | None, nullable()] = None


@struct
class LeaderIdAndEpoch(Struct):
    leader_id: I32 = -1
    leader_epoch: I32 = -1


@struct
class PartitionProduceResponse(Struct):
    index: I32 = 0
    error_code: I16 = 0
    base_offset: I64 = 0
    log_append_time_ms: Annotated[I64, since(2), IGNORABLE] = -1
    log_start_offset: Annotated[I64, since(5), IGNORABLE] = -1
    record_errors: Annotated[tuple[BatchIndexAndErrorMessage, ...], since(8), IGNORABLE] = ()
    error_message: Annotated[Str | None, since(8), nullable(), IGNORABLE] = None
    current_leader: Annotated[LeaderIdAndEpoch, since(10), tag(0)] = LeaderIdAndEpoch()


@struct
class TopicProduceResponse(Struct):
    name: Annotated[Str, until(12), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
    partition_responses: tuple[PartitionProduceResponse, ...] = ()


@message(key=0, side="response", versions=(0, 13), flexible=9)
class ProduceResponse(Response):
    responses: tuple[TopicProduceResponse, ...] = ()
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], since(10), tag(0)] = ()


@struct
class ReplicaState(Struct):
    replica_id: I32 = -1
    replica_epoch: I64 = -1


@struct
class FetchPartition(Struct):
    partition: I32 = 0
    current_leader_epoch: Annotated[I32, since(9), IGNORABLE] = -1
    fetch_offset: I64 = 0
    last_fetched_epoch: Annotated[I32, since(12)] = -1
    log_start_offset: Annotated[I64, since(5), IGNORABLE] = -1
    partition_max_bytes: I32 = 0
    replica_directory_id: Annotated[Uuid, since(17), tag(0), IGNORABLE] = ZERO_UUID
    high_watermark: Annotated[I64, since(18), tag(1), IGNORABLE] = 2**63 - 1


@struct
class FetchTopic(Struct):
    topic: Annotated[Str, until(12), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
    partitions: tuple[FetchPartition, ...] = ()


@struct
class ForgottenTopic(Struct):
    topic: Annotated[Str, until(12), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
    partitions: tuple[I32, ...] = ()


@message(key=1, side="request", versions=(0, 18), flexible=12)
class FetchRequest(Request["FetchResponse"]):
    """Read record batches of partitions from given offsets. The broker waits up to `max_wait_ms` for `min_bytes`."""

    cluster_id: Annotated[Str | None, since(12), nullable(), tag(0), IGNORABLE] = None
    replica_id: Annotated[I32, until(14)] = -1
    replica_state: Annotated[ReplicaState, since(15), tag(1)] = ReplicaState()
    max_wait_ms: I32 = 0
    min_bytes: I32 = 0
    max_bytes: Annotated[I32, since(3), IGNORABLE] = 2**31 - 1
    isolation_level: Annotated[I8, since(4), IGNORABLE] = 0
    session_id: Annotated[I32, since(7), IGNORABLE] = 0
    session_epoch: Annotated[I32, since(7), IGNORABLE] = -1
    topics: tuple[FetchTopic, ...] = ()
    forgotten_topics_data: Annotated[tuple[ForgottenTopic, ...], since(7)] = ()
    rack_id: Annotated[Str, since(11), IGNORABLE] = ""


@struct
class FetchEpochEndOffset(Struct):
    epoch: I32 = -1
    end_offset: I64 = -1


@struct
class SnapshotId(Struct):
    end_offset: I64 = -1
    epoch: I32 = -1


@struct
class AbortedTransaction(Struct):
    producer_id: I64 = 0
    first_offset: I64 = 0


@struct
class FetchPartitionData(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    high_watermark: I64 = 0
    last_stable_offset: Annotated[I64, since(4), IGNORABLE] = -1
    log_start_offset: Annotated[I64, since(5), IGNORABLE] = -1
    diverging_epoch: Annotated[FetchEpochEndOffset, since(12), tag(0)] = FetchEpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, since(12), tag(1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, since(12), tag(2)] = SnapshotId()
    aborted_transactions: Annotated[tuple[AbortedTransaction, ...] | None, since(4), nullable(), IGNORABLE] = ()
    preferred_read_replica: Annotated[I32, since(11)] = -1
    records: Annotated[Records | None, nullable()] = None


@struct
class FetchableTopicResponse(Struct):
    topic: Annotated[Str, until(12), IGNORABLE] = ""
    topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
    partitions: tuple[FetchPartitionData, ...] = ()


@message(key=1, side="response", versions=(0, 18), flexible=12)
class FetchResponse(Response):
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    error_code: Annotated[I16, since(7), IGNORABLE] = 0
    session_id: Annotated[I32, since(7)] = 0
    responses: tuple[FetchableTopicResponse, ...] = ()
    node_endpoints: Annotated[tuple[NodeEndpoint, ...], since(16), tag(0)] = ()


@struct
class ListOffsetsPartition(Struct):
    partition_index: I32 = 0
    current_leader_epoch: Annotated[I32, since(4), IGNORABLE] = -1
    timestamp: I64 = 0
    max_num_offsets: Annotated[I32, until(0)] = 1


@struct
class ListOffsetsTopic(Struct):
    name: Str = ""
    partitions: tuple[ListOffsetsPartition, ...] = ()


@message(key=2, side="request", versions=(0, 11), flexible=6)
class ListOffsetsRequest(Request["ListOffsetsResponse"]):
    """Find offsets by time, or the first or last offset of a partition."""

    replica_id: I32 = 0
    isolation_level: Annotated[I8, since(2)] = 0
    topics: tuple[ListOffsetsTopic, ...] = ()
    timeout_ms: Annotated[I32, since(10), IGNORABLE] = 0


@struct
class ListOffsetsPartitionResponse(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    old_style_offsets: Annotated[tuple[I64, ...], until(0)] = ()
    timestamp: Annotated[I64, since(1)] = -1
    offset: Annotated[I64, since(1)] = -1
    leader_epoch: Annotated[I32, since(4)] = -1


@struct
class ListOffsetsTopicResponse(Struct):
    name: Str = ""
    partitions: tuple[ListOffsetsPartitionResponse, ...] = ()


@message(key=2, side="response", versions=(0, 11), flexible=6)
class ListOffsetsResponse(Response):
    throttle_time_ms: Annotated[I32, since(2), IGNORABLE] = 0
    topics: tuple[ListOffsetsTopicResponse, ...] = ()


@struct
class OffsetForLeaderPartition(Struct):
    partition: I32 = 0
    current_leader_epoch: Annotated[I32, since(2), IGNORABLE] = -1
    leader_epoch: I32 = 0


@struct
class OffsetForLeaderTopic(Struct):
    topic: Str = ""
    partitions: tuple[OffsetForLeaderPartition, ...] = ()


@message(key=23, side="request", versions=(0, 4), flexible=4)
class OffsetForLeaderEpochRequest(Request["OffsetForLeaderEpochResponse"]):
    """Get the end offset of a leader epoch."""

    replica_id: Annotated[I32, since(3), IGNORABLE] = -2
    topics: tuple[OffsetForLeaderTopic, ...] = ()


@struct
class EpochEndOffset(Struct):
    error_code: I16 = 0
    partition: I32 = 0
    leader_epoch: Annotated[I32, since(1), IGNORABLE] = -1
    end_offset: I64 = -1


@struct
class OffsetForLeaderTopicResult(Struct):
    topic: Str = ""
    partitions: tuple[EpochEndOffset, ...] = ()


@message(key=23, side="response", versions=(0, 4), flexible=4)
class OffsetForLeaderEpochResponse(Response):
    throttle_time_ms: Annotated[I32, since(2), IGNORABLE] = 0
    topics: tuple[OffsetForLeaderTopicResult, ...] = ()
