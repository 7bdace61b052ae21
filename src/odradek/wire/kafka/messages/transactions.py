"""Producer ids and transactions."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    I64,
    IGNORABLE,
    Bool,
    Request,
    Response,
    Str,
    Struct,
    message,
    nullable,
    since,
    struct,
    until,
)


@message(key=22, side="request", versions=(0, 6), flexible=2, stable=(0, 5))
class InitProducerIdRequest(Request["InitProducerIdResponse"]):
    """Get a producer id and an epoch; aborts what an earlier producer with the transactional id left open."""

    transactional_id: Annotated[Str | None, nullable()] = ""
    transaction_timeout_ms: I32 = 0
    producer_id: Annotated[I64, since(3)] = -1
    producer_epoch: Annotated[I16, since(3)] = -1
    enable2_pc: Annotated[Bool, since(6)] = False
    keep_prepared_txn: Annotated[Bool, since(6)] = False


@message(key=22, side="response", versions=(0, 6), flexible=2, stable=(0, 5))
class InitProducerIdResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    producer_id: I64 = -1
    producer_epoch: I16 = 0
    ongoing_txn_producer_id: Annotated[I64, since(6)] = -1
    ongoing_txn_producer_epoch: Annotated[I16, since(6)] = -1


@struct
class AddPartitionsToTxnTopic(Struct):
    name: Str = ""
    partitions: tuple[I32, ...] = ()


@struct
class AddPartitionsToTxnTransaction(Struct):
    transactional_id: Str = ""
    producer_id: I64 = 0
    producer_epoch: I16 = 0
    verify_only: Bool = False
    topics: tuple[AddPartitionsToTxnTopic, ...] = ()


@message(key=24, side="request", versions=(0, 5), flexible=3)
class AddPartitionsToTxnRequest(Request["AddPartitionsToTxnResponse"]):
    """Add partitions to a transaction."""

    transactions: Annotated[tuple[AddPartitionsToTxnTransaction, ...], since(4)] = ()
    v3_and_below_transactional_id: Annotated[Str, until(3)] = ""
    v3_and_below_producer_id: Annotated[I64, until(3)] = 0
    v3_and_below_producer_epoch: Annotated[I16, until(3)] = 0
    v3_and_below_topics: Annotated[tuple[AddPartitionsToTxnTopic, ...], until(3)] = ()


@struct
class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: I32 = 0
    partition_error_code: I16 = 0


@struct
class AddPartitionsToTxnTopicResult(Struct):
    name: Str = ""
    results_by_partition: tuple[AddPartitionsToTxnPartitionResult, ...] = ()


@struct
class AddPartitionsToTxnResult(Struct):
    transactional_id: Str = ""
    topic_results: tuple[AddPartitionsToTxnTopicResult, ...] = ()


@message(key=24, side="response", versions=(0, 5), flexible=3)
class AddPartitionsToTxnResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: Annotated[I16, since(4), IGNORABLE] = 0
    results_by_transaction: Annotated[tuple[AddPartitionsToTxnResult, ...], since(4)] = ()
    results_by_topic_v3_and_below: Annotated[tuple[AddPartitionsToTxnTopicResult, ...], until(3)] = ()


@message(key=25, side="request", versions=(0, 4), flexible=3)
class AddOffsetsToTxnRequest(Request["AddOffsetsToTxnResponse"]):
    """Add the offsets of a group to a transaction."""

    transactional_id: Str = ""
    producer_id: I64 = 0
    producer_epoch: I16 = 0
    group_id: Str = ""


@message(key=25, side="response", versions=(0, 4), flexible=3)
class AddOffsetsToTxnResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0


@message(key=26, side="request", versions=(0, 5), flexible=3)
class EndTxnRequest(Request["EndTxnResponse"]):
    """Commit or abort a transaction."""

    transactional_id: Str = ""
    producer_id: I64 = 0
    producer_epoch: I16 = 0
    committed: Bool = False


@message(key=26, side="response", versions=(0, 5), flexible=3)
class EndTxnResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    producer_id: Annotated[I64, since(5), IGNORABLE] = -1
    producer_epoch: Annotated[I16, since(5), IGNORABLE] = -1


@struct
class TxnOffsetCommitRequestPartition(Struct):
    partition_index: I32 = 0
    committed_offset: I64 = 0
    committed_leader_epoch: Annotated[I32, since(2), IGNORABLE] = -1
    committed_metadata: Annotated[Str | None, nullable()] = ""


@struct
class TxnOffsetCommitRequestTopic(Struct):
    name: Str = ""
    partitions: tuple[TxnOffsetCommitRequestPartition, ...] = ()


@message(key=28, side="request", versions=(0, 5), flexible=3)
class TxnOffsetCommitRequest(Request["TxnOffsetCommitResponse"]):
    """Commit offsets of a group with a transaction."""

    transactional_id: Str = ""
    group_id: Str = ""
    producer_id: I64 = 0
    producer_epoch: I16 = 0
    generation_id: Annotated[I32, since(3)] = -1
    member_id: Annotated[Str, since(3)] = ""
    group_instance_id: Annotated[Str | None, since(3), nullable()] = None
    topics: tuple[TxnOffsetCommitRequestTopic, ...] = ()


@struct
class TxnOffsetCommitResponsePartition(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0


@struct
class TxnOffsetCommitResponseTopic(Struct):
    name: Str = ""
    partitions: tuple[TxnOffsetCommitResponsePartition, ...] = ()


@message(key=28, side="response", versions=(0, 5), flexible=3)
class TxnOffsetCommitResponse(Response):
    throttle_time_ms: I32 = 0
    topics: tuple[TxnOffsetCommitResponseTopic, ...] = ()


@struct
class DescribeProducersTopicRequest(Struct):
    name: Str = ""
    partition_indexes: tuple[I32, ...] = ()


@message(key=61, side="request", versions=(0, 0), flexible=0)
class DescribeProducersRequest(Request["DescribeProducersResponse"]):
    """Describe the producers that have written to partitions."""

    topics: tuple[DescribeProducersTopicRequest, ...] = ()


@struct
class ProducerState(Struct):
    producer_id: I64 = 0
    producer_epoch: I32 = 0
    last_sequence: I32 = -1
    last_timestamp: I64 = -1
    coordinator_epoch: I32 = 0
    current_txn_start_offset: I64 = -1


@struct
class DescribeProducersPartition(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    active_producers: tuple[ProducerState, ...] = ()


@struct
class DescribeProducersTopic(Struct):
    name: Str = ""
    partitions: tuple[DescribeProducersPartition, ...] = ()


@message(key=61, side="response", versions=(0, 0), flexible=0)
class DescribeProducersResponse(Response):
    throttle_time_ms: I32 = 0
    topics: tuple[DescribeProducersTopic, ...] = ()


@message(key=65, side="request", versions=(0, 0), flexible=0)
class DescribeTransactionsRequest(Request["DescribeTransactionsResponse"]):
    """Describe transactions by their transactional ids."""

    transactional_ids: tuple[Str, ...] = ()


@struct
class DescribeTransactionsTopicData(Struct):
    topic: Str = ""
    partitions: tuple[I32, ...] = ()


@struct
class TransactionState(Struct):
    error_code: I16 = 0
    transactional_id: Str = ""
    transaction_state: Str = ""
    transaction_timeout_ms: I32 = 0
    transaction_start_time_ms: I64 = 0
    producer_id: I64 = 0
    producer_epoch: I16 = 0
    topics: tuple[DescribeTransactionsTopicData, ...] = ()


@message(key=65, side="response", versions=(0, 0), flexible=0)
class DescribeTransactionsResponse(Response):
    throttle_time_ms: I32 = 0
    transaction_states: tuple[TransactionState, ...] = ()


@message(key=66, side="request", versions=(0, 2), flexible=0)
class ListTransactionsRequest(Request["ListTransactionsResponse"]):
    """List the transactions that a broker coordinates."""

    state_filters: tuple[Str, ...] = ()
    producer_id_filters: tuple[I64, ...] = ()
    duration_filter: Annotated[I64, since(1)] = -1
    transactional_id_pattern: Annotated[Str | None, since(2), nullable()] = None


@struct
class ListedTransaction(Struct):
    transactional_id: Str = ""
    producer_id: I64 = 0
    transaction_state: Str = ""


@message(key=66, side="response", versions=(0, 2), flexible=0)
class ListTransactionsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    unknown_state_filters: tuple[Str, ...] = ()
    transaction_states: tuple[ListedTransaction, ...] = ()


@struct
class WritableTxnMarkerTopic(Struct):
    name: Str = ""
    partition_indexes: tuple[I32, ...] = ()


@struct
class WritableTxnMarker(Struct):
    producer_id: I64 = 0
    producer_epoch: I16 = 0
    transaction_result: Bool = False
    topics: tuple[WritableTxnMarkerTopic, ...] = ()
    coordinator_epoch: I32 = 0
    transaction_version: Annotated[I8, since(2), IGNORABLE] = 0


@message(key=27, side="request", versions=(0, 2), flexible=1)
class WriteTxnMarkersRequest(Request["WriteTxnMarkersResponse"]):
    """Write the markers that end transactions."""

    markers: tuple[WritableTxnMarker, ...] = ()


@struct
class WritableTxnMarkerPartitionResult(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0


@struct
class WritableTxnMarkerTopicResult(Struct):
    name: Str = ""
    partitions: tuple[WritableTxnMarkerPartitionResult, ...] = ()


@struct
class WritableTxnMarkerResult(Struct):
    producer_id: I64 = 0
    topics: tuple[WritableTxnMarkerTopicResult, ...] = ()


@message(key=27, side="response", versions=(0, 2), flexible=1)
class WriteTxnMarkersResponse(Response):
    markers: tuple[WritableTxnMarkerResult, ...] = ()
