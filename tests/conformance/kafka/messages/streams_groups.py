"""Streams groups (KIP-1071)."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.messages.common import TopicPartitions
from odradek.wire.kafka.schema import (
    I8,
    I16,
    I32,
    I64,
    U16,
    Bool,
    Request,
    Response,
    Str,
    Struct,
    message,
    nullable,
    struct,
)


@struct
class KeyValue(Struct):
    key: Str = ""
    value: Str = ""


@struct
class TopicInfo(Struct):
    name: Str = ""
    partitions: I32 = 0
    replication_factor: I16 = 0
    topic_configs: tuple[KeyValue, ...] = ()


@struct
class CopartitionGroup(Struct):
    source_topics: tuple[I16, ...] = ()
    source_topic_regex: tuple[I16, ...] = ()
    repartition_source_topics: tuple[I16, ...] = ()


@struct
class StreamsGroupHeartbeatSubtopology(Struct):
    subtopology_id: Str = ""
    source_topics: tuple[Str, ...] = ()
    source_topic_regex: tuple[Str, ...] = ()
    state_changelog_topics: tuple[TopicInfo, ...] = ()
    repartition_sink_topics: tuple[Str, ...] = ()
    repartition_source_topics: tuple[TopicInfo, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()


@struct
class StreamsGroupHeartbeatTopology(Struct):
    epoch: I32 = 0
    subtopologies: tuple[StreamsGroupHeartbeatSubtopology, ...] = ()


@struct
class TaskIds(Struct):
    subtopology_id: Str = ""
    partitions: tuple[I32, ...] = ()


@struct
class StreamsEndpoint(Struct):
    host: Str = ""
    port: U16 = 0


@struct
class TaskOffset(Struct):
    subtopology_id: Str = ""
    partition: I32 = 0
    offset: I64 = 0


@message(key=88, side="request", versions=(0, 0), flexible=0)
class StreamsGroupHeartbeatRequest(Request["StreamsGroupHeartbeatResponse"]):
    """Join, stay in or leave a streams group (KIP-1071)."""

    group_id: Str = ""
    member_id: Str = ""
    member_epoch: I32 = 0
    endpoint_information_epoch: I32 = 0
    instance_id: Annotated[Str | None, nullable()] = None
    rack_id: Annotated[Str | None, nullable()] = None
    rebalance_timeout_ms: I32 = -1
    topology: Annotated[StreamsGroupHeartbeatTopology | None, nullable()] = None
    active_tasks: Annotated[tuple[TaskIds, ...] | None, nullable()] = None
    standby_tasks: Annotated[tuple[TaskIds, ...] | None, nullable()] = None
    warmup_tasks: Annotated[tuple[TaskIds, ...] | None, nullable()] = None
    process_id: Annotated[Str | None, nullable()] = None
    user_endpoint: Annotated[StreamsEndpoint | None, nullable()] = None
    client_tags: Annotated[tuple[KeyValue, ...] | None, nullable()] = None
    task_offsets: Annotated[tuple[TaskOffset, ...] | None, nullable()] = None
    task_end_offsets: Annotated[tuple[TaskOffset, ...] | None, nullable()] = None
    shutdown_application: Bool = False


@struct
class StreamsGroupHeartbeatStatus(Struct):
    status_code: I8 = 0
    status_detail: Str = ""


@struct
class EndpointToPartitions(Struct):
    user_endpoint: StreamsEndpoint = StreamsEndpoint()
    active_partitions: tuple[TopicPartitions, ...] = ()
    standby_partitions: tuple[TopicPartitions, ...] = ()


@message(key=88, side="response", versions=(0, 0), flexible=0)
class StreamsGroupHeartbeatResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    member_id: Str = ""
    member_epoch: I32 = 0
    heartbeat_interval_ms: I32 = 0
    acceptable_recovery_lag: I32 = 0
    task_offset_interval_ms: I32 = 0
    status: Annotated[tuple[StreamsGroupHeartbeatStatus, ...] | None, nullable()] = ()
    active_tasks: Annotated[tuple[TaskIds, ...] | None, nullable()] = None
    standby_tasks: Annotated[tuple[TaskIds, ...] | None, nullable()] = None
    warmup_tasks: Annotated[tuple[TaskIds, ...] | None, nullable()] = None
    endpoint_information_epoch: I32 = 0
    partitions_by_user_endpoint: Annotated[tuple[EndpointToPartitions, ...] | None, nullable()] = None


@message(key=89, side="request", versions=(0, 0), flexible=0)
class StreamsGroupDescribeRequest(Request["StreamsGroupDescribeResponse"]):
    """Describe streams groups."""

    group_ids: tuple[Str, ...] = ()
    include_authorized_operations: Bool = False


@struct
class StreamsGroupDescribeSubtopology(Struct):
    subtopology_id: Str = ""
    source_topics: tuple[Str, ...] = ()
    repartition_sink_topics: tuple[Str, ...] = ()
    state_changelog_topics: tuple[TopicInfo, ...] = ()
    repartition_source_topics: tuple[TopicInfo, ...] = ()


@struct
class StreamsGroupDescribeTopology(Struct):
    epoch: I32 = 0
    subtopologies: Annotated[tuple[StreamsGroupDescribeSubtopology, ...] | None, nullable()] = None


@struct
class StreamsGroupDescribeAssignment(Struct):
    active_tasks: tuple[TaskIds, ...] = ()
    standby_tasks: tuple[TaskIds, ...] = ()
    warmup_tasks: tuple[TaskIds, ...] = ()


@struct
class StreamsGroupMember(Struct):
    member_id: Str = ""
    member_epoch: I32 = 0
    instance_id: Annotated[Str | None, nullable()] = None
    rack_id: Annotated[Str | None, nullable()] = None
    client_id: Str = ""
    client_host: Str = ""
    topology_epoch: I32 = 0
    process_id: Str = ""
    user_endpoint: Annotated[StreamsEndpoint | None, nullable()] = None
    client_tags: tuple[KeyValue, ...] = ()
    task_offsets: tuple[TaskOffset, ...] = ()
    task_end_offsets: tuple[TaskOffset, ...] = ()
    assignment: StreamsGroupDescribeAssignment = StreamsGroupDescribeAssignment()
    target_assignment: StreamsGroupDescribeAssignment = StreamsGroupDescribeAssignment()
    is_classic: Bool = False


@struct
class DescribedStreamsGroup(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    group_id: Str = ""
    group_state: Str = ""
    group_epoch: I32 = 0
    assignment_epoch: I32 = 0
    topology: Annotated[StreamsGroupDescribeTopology | None, nullable()] = None
    members: tuple[StreamsGroupMember, ...] = ()
    authorized_operations: I32 = -(2**31)


@message(key=89, side="response", versions=(0, 0), flexible=0)
class StreamsGroupDescribeResponse(Response):
    throttle_time_ms: I32 = 0
    groups: tuple[DescribedStreamsGroup, ...] = ()
