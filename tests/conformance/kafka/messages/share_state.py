"""The state of share groups, which a coordinator keeps on the brokers that store it (KIP-932)."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    I64,
    IGNORABLE,
    ZERO_UUID,
    Request,
    Response,
    Str,
    Struct,
    Uuid,
    message,
    nullable,
    since,
    struct,
)


@struct
class InitializeShareGroupStatePartitionData(Struct):
    partition: I32 = 0
    state_epoch: I32 = 0
    start_offset: I64 = 0


@struct
class InitializeStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[InitializeShareGroupStatePartitionData, ...] = ()


@message(key=83, side="request", versions=(0, 0), flexible=0)
class InitializeShareGroupStateRequest(Request["InitializeShareGroupStateResponse"]):
    """Initialise the state of share partitions."""

    group_id: Str = ""
    topics: tuple[InitializeStateData, ...] = ()


@struct
class InitializeShareGroupStatePartitionResult(Struct):
    partition: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None


@struct
class InitializeStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[InitializeShareGroupStatePartitionResult, ...] = ()


@message(key=83, side="response", versions=(0, 0), flexible=0)
class InitializeShareGroupStateResponse(Response):
    results: tuple[InitializeStateResult, ...] = ()


@struct
class ReadShareGroupStatePartitionData(Struct):
    partition: I32 = 0
    leader_epoch: I32 = 0


@struct
class ReadStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[ReadShareGroupStatePartitionData, ...] = ()


@message(key=84, side="request", versions=(0, 0), flexible=0)
class ReadShareGroupStateRequest(Request["ReadShareGroupStateResponse"]):
    """Read the state of share partitions."""

    group_id: Str = ""
    topics: tuple[ReadStateData, ...] = ()


@struct
class StateBatch(Struct):
    first_offset: I64 = 0
    last_offset: I64 = 0
    delivery_state: I8 = 0
    delivery_count: I16 = 0


@struct
class ReadShareGroupStatePartitionResult(Struct):
    partition: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    state_epoch: I32 = 0
    start_offset: I64 = 0
    state_batches: tuple[StateBatch, ...] = ()


@struct
class ReadStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[ReadShareGroupStatePartitionResult, ...] = ()


@message(key=84, side="response", versions=(0, 0), flexible=0)
class ReadShareGroupStateResponse(Response):
    results: tuple[ReadStateResult, ...] = ()


@struct
class WriteShareGroupStatePartitionData(Struct):
    partition: I32 = 0
    state_epoch: I32 = 0
    leader_epoch: I32 = 0
    start_offset: I64 = 0
    delivery_complete_count: Annotated[I32, since(1), IGNORABLE] = -1
    state_batches: tuple[StateBatch, ...] = ()


@struct
class WriteStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[WriteShareGroupStatePartitionData, ...] = ()


@message(key=85, side="request", versions=(0, 1), flexible=0)
class WriteShareGroupStateRequest(Request["WriteShareGroupStateResponse"]):
    """Write the state of share partitions."""

    group_id: Str = ""
    topics: tuple[WriteStateData, ...] = ()


@struct
class WriteShareGroupStatePartitionResult(Struct):
    partition: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None


@struct
class WriteStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[WriteShareGroupStatePartitionResult, ...] = ()


@message(key=85, side="response", versions=(0, 1), flexible=0)
class WriteShareGroupStateResponse(Response):
    results: tuple[WriteStateResult, ...] = ()


@struct
class DeleteShareGroupStatePartitionData(Struct):
    partition: I32 = 0


@struct
class DeleteStateData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[DeleteShareGroupStatePartitionData, ...] = ()


@message(key=86, side="request", versions=(0, 0), flexible=0)
class DeleteShareGroupStateRequest(Request["DeleteShareGroupStateResponse"]):
    """Delete the state of share partitions."""

    group_id: Str = ""
    topics: tuple[DeleteStateData, ...] = ()


@struct
class DeleteShareGroupStatePartitionResult(Struct):
    partition: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None


@struct
class DeleteStateResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[DeleteShareGroupStatePartitionResult, ...] = ()


@message(key=86, side="response", versions=(0, 0), flexible=0)
class DeleteShareGroupStateResponse(Response):
    results: tuple[DeleteStateResult, ...] = ()


@struct
class ReadShareGroupStateSummaryPartitionData(Struct):
    partition: I32 = 0
    leader_epoch: I32 = 0


@struct
class ReadStateSummaryData(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[ReadShareGroupStateSummaryPartitionData, ...] = ()


@message(key=87, side="request", versions=(0, 1), flexible=0)
class ReadShareGroupStateSummaryRequest(Request["ReadShareGroupStateSummaryResponse"]):
    """Read a summary of the state of share partitions."""

    group_id: Str = ""
    topics: tuple[ReadStateSummaryData, ...] = ()


@struct
class ReadShareGroupStateSummaryPartitionResult(Struct):
    partition: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    state_epoch: I32 = 0
    leader_epoch: I32 = 0
    start_offset: I64 = 0
    delivery_complete_count: Annotated[I32, since(1), IGNORABLE] = -1


@struct
class ReadStateSummaryResult(Struct):
    topic_id: Uuid = ZERO_UUID
    partitions: tuple[ReadShareGroupStateSummaryPartitionResult, ...] = ()


@message(key=87, side="response", versions=(0, 1), flexible=0)
class ReadShareGroupStateSummaryResponse(Response):
    results: tuple[ReadStateSummaryResult, ...] = ()
