"""Brokers, their versions, topics and who leads their partitions."""

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
    tag,
    until,
)


@struct
class MetadataRequestTopic(Struct):
    topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
    name: Annotated[Str | None, nullable(10)] = ""


@message(key=3, side="request", versions=(0, 13), flexible=9)
class MetadataRequest(Request["MetadataResponse"]):
    """Get brokers, topics and leaders. No topics mean all topics in version 0 and none later; null means all."""

    topics: Annotated[tuple[MetadataRequestTopic, ...] | None, nullable(1)] = ()
    allow_auto_topic_creation: Annotated[Bool, since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, since(8), until(10)] = False
    include_topic_authorized_operations: Annotated[Bool, since(8)] = False


@struct
class MetadataResponseBroker(Struct):
    node_id: I32 = 0
    host: Str = ""
    port: I32 = 0
    rack: Annotated[Str | None, since(1), nullable(), IGNORABLE] = None


@struct
class MetadataResponsePartition(Struct):
    error_code: I16 = 0
    partition_index: I32 = 0
    leader_id: I32 = 0
    leader_epoch: Annotated[I32, since(7), IGNORABLE] = -1
    replica_nodes: tuple[I32, ...] = ()
    isr_nodes: tuple[I32, ...] = ()
    offline_replicas: Annotated[tuple[I32, ...], since(5), IGNORABLE] = ()


@struct
class MetadataResponseTopic(Struct):
    error_code: I16 = 0
    name: Annotated[Str | None, nullable(12)] = ""
    topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
    is_internal: Annotated[Bool, since(1), IGNORABLE] = False
    partitions: tuple[MetadataResponsePartition, ...] = ()
    topic_authorized_operations: Annotated[I32, since(8)] = -(2**31)


@message(key=3, side="response", versions=(0, 13), flexible=9)
class MetadataResponse(Response):
    throttle_time_ms: Annotated[I32, since(3), IGNORABLE] = 0
    brokers: tuple[MetadataResponseBroker, ...] = ()
    cluster_id: Annotated[Str | None, since(2), nullable(), IGNORABLE] = None
    controller_id: Annotated[I32, since(1), IGNORABLE] = -1
    topics: tuple[MetadataResponseTopic, ...] = ()
    cluster_authorized_operations: Annotated[I32, since(8), until(10)] = -(2**31)
    error_code: Annotated[I16, since(13), IGNORABLE] = 0


@message(key=18, side="request", versions=(0, 4), flexible=3)
class ApiVersionsRequest(Request["ApiVersionsResponse"]):
    """Get the versions and features of a broker."""

    client_software_name: Annotated[Str, since(3), IGNORABLE] = ""
    client_software_version: Annotated[Str, since(3), IGNORABLE] = ""


@struct
class ApiVersion(Struct):
    api_key: I16 = 0
    min_version: I16 = 0
    max_version: I16 = 0


@struct
class SupportedFeatureKey(Struct):
    name: Str = ""
    min_version: I16 = 0
    max_version: I16 = 0


@struct
class FinalizedFeatureKey(Struct):
    name: Str = ""
    max_version_level: I16 = 0
    min_version_level: I16 = 0


@message(key=18, side="response", versions=(0, 4), flexible=3)
class ApiVersionsResponse(Response):
    error_code: I16 = 0
    api_keys: tuple[ApiVersion, ...] = ()
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    supported_features: Annotated[tuple[SupportedFeatureKey, ...], since(3), tag(0), IGNORABLE] = ()
    finalized_features_epoch: Annotated[I64, since(3), tag(1), IGNORABLE] = -1
    finalized_features: Annotated[tuple[FinalizedFeatureKey, ...], since(3), tag(2), IGNORABLE] = ()
    zk_migration_ready: Annotated[Bool, since(3), tag(3), IGNORABLE] = False


@message(key=60, side="request", versions=(0, 2), flexible=0)
class DescribeClusterRequest(Request["DescribeClusterResponse"]):
    """Describe the brokers, or the controllers, of a cluster."""

    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[I8, since(1)] = 1
    include_fenced_brokers: Annotated[Bool, since(2)] = False


@struct
class DescribeClusterBroker(Struct):
    broker_id: I32 = 0
    host: Str = ""
    port: I32 = 0
    rack: Annotated[Str | None, nullable()] = None
    is_fenced: Annotated[Bool, since(2)] = False


@message(key=60, side="response", versions=(0, 2), flexible=0)
class DescribeClusterResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None
    endpoint_type: Annotated[I8, since(1)] = 1
    cluster_id: Str = ""
    controller_id: I32 = -1
    brokers: tuple[DescribeClusterBroker, ...] = ()
    cluster_authorized_operations: I32 = -(2**31)


@struct
class DescribeTopicPartitionsTopicRequest(Struct):
    name: Str = ""


@struct
class TopicPartitionsCursor(Struct):
    topic_name: Str = ""
    partition_index: I32 = 0


@message(key=75, side="request", versions=(0, 0), flexible=0)
class DescribeTopicPartitionsRequest(Request["DescribeTopicPartitionsResponse"]):
    """Describe the partitions of topics, page by page."""

    topics: tuple[DescribeTopicPartitionsTopicRequest, ...] = ()
    response_partition_limit: I32 = 2000
    cursor: Annotated[TopicPartitionsCursor | None, nullable()] = None


@struct
class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: I16 = 0
    partition_index: I32 = 0
    leader_id: I32 = 0
    leader_epoch: I32 = -1
    replica_nodes: tuple[I32, ...] = ()
    isr_nodes: tuple[I32, ...] = ()
    eligible_leader_replicas: Annotated[tuple[I32, ...] | None, nullable()] = None
    last_known_elr: Annotated[tuple[I32, ...] | None, nullable()] = None
    offline_replicas: tuple[I32, ...] = ()


@struct
class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: I16 = 0
    name: Annotated[Str | None, nullable()] = ""
    topic_id: Uuid = ZERO_UUID
    is_internal: Bool = False
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = ()
    topic_authorized_operations: I32 = -(2**31)


@message(key=75, side="response", versions=(0, 0), flexible=0)
class DescribeTopicPartitionsResponse(Response):
    throttle_time_ms: I32 = 0
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = ()
    next_cursor: Annotated[TopicPartitionsCursor | None, nullable()] = None
