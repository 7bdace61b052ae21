"""Administration: topics, configuration, quotas, replicas."""

from __future__ import annotations

from typing import Annotated

from odradek.wire.kafka.messages.common import TopicPartitions
from odradek.wire.kafka.schema import (
    F64,
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
class CreatableReplicaAssignment(Struct):
    partition_index: I32 = 0
    broker_ids: tuple[I32, ...] = ()


@struct
class CreatableTopicConfig(Struct):
    name: Str = ""
    value: Annotated[Str | None, nullable()] = ""


@struct
class CreatableTopic(Struct):
    name: Str = ""
    num_partitions: I32 = 0
    replication_factor: I16 = 0
    assignments: tuple[CreatableReplicaAssignment, ...] = ()
    configs: tuple[CreatableTopicConfig, ...] = ()


@message(key=19, side="request", versions=(0, 7), flexible=5)
class CreateTopicsRequest(Request["CreateTopicsResponse"]):
    """Create topics."""

    topics: tuple[CreatableTopic, ...] = ()
    timeout_ms: I32 = 60000
    validate_only: Annotated[Bool, since(1)] = False


@struct
class CreatableTopicConfigs(Struct):
    name: Str = ""
    value: Annotated[Str | None, nullable()] = ""
    read_only: Bool = False
    config_source: I8 = -1
    is_sensitive: Bool = False


@struct
class CreatableTopicResult(Struct):
    name: Str = ""
    topic_id: Annotated[Uuid, since(7), IGNORABLE] = ZERO_UUID
    error_code: I16 = 0
    error_message: Annotated[Str | None, since(1), nullable(), IGNORABLE] = ""
    topic_config_error_code: Annotated[I16, since(5), tag(0), IGNORABLE] = 0
    num_partitions: Annotated[I32, since(5), IGNORABLE] = -1
    replication_factor: Annotated[I16, since(5), IGNORABLE] = -1
    configs: Annotated[tuple[CreatableTopicConfigs, ...] | None, since(5), nullable(), IGNORABLE] = ()


@message(key=19, side="response", versions=(0, 7), flexible=5)
class CreateTopicsResponse(Response):
    throttle_time_ms: Annotated[I32, since(2), IGNORABLE] = 0
    topics: tuple[CreatableTopicResult, ...] = ()


@struct
class DeleteTopicState(Struct):
    name: Annotated[Str | None, nullable()] = None
    topic_id: Uuid = ZERO_UUID


@message(key=20, side="request", versions=(0, 6), flexible=4)
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    """Delete topics, by name or by id."""

    topics: Annotated[tuple[DeleteTopicState, ...], since(6)] = ()
    topic_names: Annotated[tuple[Str, ...], until(5), IGNORABLE] = ()
    timeout_ms: I32 = 0


@struct
class DeletableTopicResult(Struct):
    name: Annotated[Str | None, nullable(6)] = ""
    topic_id: Annotated[Uuid, since(6), IGNORABLE] = ZERO_UUID
    error_code: I16 = 0
    error_message: Annotated[Str | None, since(5), nullable(), IGNORABLE] = None


@message(key=20, side="response", versions=(0, 6), flexible=4)
class DeleteTopicsResponse(Response):
    throttle_time_ms: Annotated[I32, since(1), IGNORABLE] = 0
    responses: tuple[DeletableTopicResult, ...] = ()


@struct
class DeleteRecordsPartition(Struct):
    partition_index: I32 = 0
    offset: I64 = 0


@struct
class DeleteRecordsTopic(Struct):
    name: Str = ""
    partitions: tuple[DeleteRecordsPartition, ...] = ()


@message(key=21, side="request", versions=(0, 2), flexible=2)
class DeleteRecordsRequest(Request["DeleteRecordsResponse"]):
    """Delete the records before an offset of each partition."""

    topics: tuple[DeleteRecordsTopic, ...] = ()
    timeout_ms: I32 = 0


@struct
class DeleteRecordsPartitionResult(Struct):
    partition_index: I32 = 0
    low_watermark: I64 = 0
    error_code: I16 = 0


@struct
class DeleteRecordsTopicResult(Struct):
    name: Str = ""
    partitions: tuple[DeleteRecordsPartitionResult, ...] = ()


@message(key=21, side="response", versions=(0, 2), flexible=2)
class DeleteRecordsResponse(Response):
    throttle_time_ms: I32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...] = ()


@struct
class DescribeConfigsResource(Struct):
    resource_type: I8 = 0
    resource_name: Str = ""
    configuration_keys: Annotated[tuple[Str, ...] | None, nullable()] = ()


@message(key=32, side="request", versions=(0, 4), flexible=4)
class DescribeConfigsRequest(Request["DescribeConfigsResponse"]):
    """Describe the configuration of topics, brokers and other resources."""

    resources: tuple[DescribeConfigsResource, ...] = ()
    include_synonyms: Annotated[Bool, since(1)] = False
    include_documentation: Annotated[Bool, since(3)] = False


@struct
class DescribeConfigsSynonym(Struct):
    name: Str = ""
    value: Annotated[Str | None, nullable()] = ""
    source: I8 = 0


@struct
class DescribeConfigsResourceResult(Struct):
    name: Str = ""
    value: Annotated[Str | None, nullable()] = ""
    read_only: Bool = False
    is_default: Annotated[Bool, until(0)] = False
    config_source: Annotated[I8, since(1), IGNORABLE] = -1
    is_sensitive: Bool = False
    synonyms: Annotated[tuple[DescribeConfigsSynonym, ...], since(1), IGNORABLE] = ()
    config_type: Annotated[I8, since(3), IGNORABLE] = 0
    documentation: Annotated[Str | None, since(3), nullable(), IGNORABLE] = ""


@struct
class DescribeConfigsResult(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    resource_type: I8 = 0
    resource_name: Str = ""
    configs: tuple[DescribeConfigsResourceResult, ...] = ()


@message(key=32, side="response", versions=(0, 4), flexible=4)
class DescribeConfigsResponse(Response):
    throttle_time_ms: I32 = 0
    results: tuple[DescribeConfigsResult, ...] = ()


@struct
class AlterableConfig(Struct):
    name: Str = ""
    value: Annotated[Str | None, nullable()] = ""


@struct
class AlterConfigsResource(Struct):
    resource_type: I8 = 0
    resource_name: Str = ""
    configs: tuple[AlterableConfig, ...] = ()


@message(key=33, side="request", versions=(0, 2), flexible=2)
class AlterConfigsRequest(Request["AlterConfigsResponse"]):
    """Replace the configuration of resources."""

    resources: tuple[AlterConfigsResource, ...] = ()
    validate_only: Bool = False


@struct
class AlterConfigsResourceResponse(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    resource_type: I8 = 0
    resource_name: Str = ""


@message(key=33, side="response", versions=(0, 2), flexible=2)
class AlterConfigsResponse(Response):
    throttle_time_ms: I32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()


@struct
class AlterReplicaLogDirTopic(Struct):
    name: Str = ""
    partitions: tuple[I32, ...] = ()


@struct
class AlterReplicaLogDir(Struct):
    path: Str = ""
    topics: tuple[AlterReplicaLogDirTopic, ...] = ()


@message(key=34, side="request", versions=(0, 2), flexible=2)
class AlterReplicaLogDirsRequest(Request["AlterReplicaLogDirsResponse"]):
    """Move replicas between the directories of a broker."""

    dirs: tuple[AlterReplicaLogDir, ...] = ()


@struct
class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0


@struct
class AlterReplicaLogDirTopicResult(Struct):
    topic_name: Str = ""
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = ()


@message(key=34, side="response", versions=(0, 2), flexible=2)
class AlterReplicaLogDirsResponse(Response):
    throttle_time_ms: I32 = 0
    results: tuple[AlterReplicaLogDirTopicResult, ...] = ()


@struct
class DescribableLogDirTopic(Struct):
    topic: Str = ""
    partitions: tuple[I32, ...] = ()


@message(key=35, side="request", versions=(0, 5), flexible=2)
class DescribeLogDirsRequest(Request["DescribeLogDirsResponse"]):
    """Describe the log directories of a broker."""

    topics: Annotated[tuple[DescribableLogDirTopic, ...] | None, nullable()] = ()


@struct
class DescribeLogDirsPartition(Struct):
    partition_index: I32 = 0
    partition_size: I64 = 0
    offset_lag: I64 = 0
    is_future_key: Bool = False


@struct
class DescribeLogDirsTopic(Struct):
    name: Str = ""
    partitions: tuple[DescribeLogDirsPartition, ...] = ()


@struct
class DescribeLogDirsResult(Struct):
    error_code: I16 = 0
    log_dir: Str = ""
    topics: tuple[DescribeLogDirsTopic, ...] = ()
    total_bytes: Annotated[I64, since(4), IGNORABLE] = -1
    usable_bytes: Annotated[I64, since(4), IGNORABLE] = -1
    is_cordoned: Annotated[Bool, since(5), IGNORABLE] = False


@message(key=35, side="response", versions=(0, 5), flexible=2)
class DescribeLogDirsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: Annotated[I16, since(3), IGNORABLE] = 0
    results: tuple[DescribeLogDirsResult, ...] = ()


@struct
class CreatePartitionsAssignment(Struct):
    broker_ids: tuple[I32, ...] = ()


@struct
class CreatePartitionsTopic(Struct):
    name: Str = ""
    count: I32 = 0
    assignments: Annotated[tuple[CreatePartitionsAssignment, ...] | None, nullable()] = ()


@message(key=37, side="request", versions=(0, 3), flexible=2)
class CreatePartitionsRequest(Request["CreatePartitionsResponse"]):
    """Add partitions to topics."""

    topics: tuple[CreatePartitionsTopic, ...] = ()
    timeout_ms: I32 = 0
    validate_only: Bool = False


@struct
class CreatePartitionsTopicResult(Struct):
    name: Str = ""
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = None


@message(key=37, side="response", versions=(0, 3), flexible=2)
class CreatePartitionsResponse(Response):
    throttle_time_ms: I32 = 0
    results: tuple[CreatePartitionsTopicResult, ...] = ()


@message(key=43, side="request", versions=(0, 2), flexible=2)
class ElectLeadersRequest(Request["ElectLeadersResponse"]):
    """Elect leaders of partitions."""

    election_type: Annotated[I8, since(1)] = 0
    topic_partitions: Annotated[tuple[TopicPartitions, ...] | None, nullable()] = ()
    timeout_ms: I32 = 60000


@struct
class ElectLeadersPartitionResult(Struct):
    partition_id: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""


@struct
class ReplicaElectionResult(Struct):
    topic: Str = ""
    partition_result: tuple[ElectLeadersPartitionResult, ...] = ()


@message(key=43, side="response", versions=(0, 2), flexible=2)
class ElectLeadersResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: Annotated[I16, since(1)] = 0
    replica_election_results: tuple[ReplicaElectionResult, ...] = ()


@struct
class IncrementalAlterableConfig(Struct):
    name: Str = ""
    config_operation: I8 = 0
    value: Annotated[Str | None, nullable()] = ""


@struct
class IncrementalAlterConfigsResource(Struct):
    resource_type: I8 = 0
    resource_name: Str = ""
    configs: tuple[IncrementalAlterableConfig, ...] = ()


@message(key=44, side="request", versions=(0, 1), flexible=1)
class IncrementalAlterConfigsRequest(Request["IncrementalAlterConfigsResponse"]):
    """Change single entries of the configuration of resources."""

    resources: tuple[IncrementalAlterConfigsResource, ...] = ()
    validate_only: Bool = False


@message(key=44, side="response", versions=(0, 1), flexible=1)
class IncrementalAlterConfigsResponse(Response):
    throttle_time_ms: I32 = 0
    responses: tuple[AlterConfigsResourceResponse, ...] = ()


@struct
class ReassignablePartition(Struct):
    partition_index: I32 = 0
    replicas: Annotated[tuple[I32, ...] | None, nullable()] = None


@struct
class ReassignableTopic(Struct):
    name: Str = ""
    partitions: tuple[ReassignablePartition, ...] = ()


@message(key=45, side="request", versions=(0, 1), flexible=0)
class AlterPartitionReassignmentsRequest(Request["AlterPartitionReassignmentsResponse"]):
    """Start or cancel the reassignment of partitions."""

    timeout_ms: I32 = 60000
    allow_replication_factor_change: Annotated[Bool, since(1)] = True
    topics: tuple[ReassignableTopic, ...] = ()


@struct
class ReassignablePartitionResponse(Struct):
    partition_index: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""


@struct
class ReassignableTopicResponse(Struct):
    name: Str = ""
    partitions: tuple[ReassignablePartitionResponse, ...] = ()


@message(key=45, side="response", versions=(0, 1), flexible=0)
class AlterPartitionReassignmentsResponse(Response):
    throttle_time_ms: I32 = 0
    allow_replication_factor_change: Annotated[Bool, since(1), IGNORABLE] = True
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    responses: tuple[ReassignableTopicResponse, ...] = ()


@struct
class ListPartitionReassignmentsTopics(Struct):
    name: Str = ""
    partition_indexes: tuple[I32, ...] = ()


@message(key=46, side="request", versions=(0, 0), flexible=0)
class ListPartitionReassignmentsRequest(Request["ListPartitionReassignmentsResponse"]):
    """List the reassignments in progress."""

    timeout_ms: I32 = 60000
    topics: Annotated[tuple[ListPartitionReassignmentsTopics, ...] | None, nullable()] = None


@struct
class OngoingPartitionReassignment(Struct):
    partition_index: I32 = 0
    replicas: tuple[I32, ...] = ()
    adding_replicas: tuple[I32, ...] = ()
    removing_replicas: tuple[I32, ...] = ()


@struct
class OngoingTopicReassignment(Struct):
    name: Str = ""
    partitions: tuple[OngoingPartitionReassignment, ...] = ()


@message(key=46, side="response", versions=(0, 0), flexible=0)
class ListPartitionReassignmentsResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    topics: tuple[OngoingTopicReassignment, ...] = ()


@struct
class ComponentData(Struct):
    entity_type: Str = ""
    match_type: I8 = 0
    match: Annotated[Str | None, nullable()] = ""


@message(key=48, side="request", versions=(0, 1), flexible=1)
class DescribeClientQuotasRequest(Request["DescribeClientQuotasResponse"]):
    """Find client quotas."""

    components: tuple[ComponentData, ...] = ()
    strict: Bool = False


@struct
class EntityData(Struct):
    entity_type: Str = ""
    entity_name: Annotated[Str | None, nullable()] = ""


@struct
class ValueData(Struct):
    key: Str = ""
    value: F64 = 0.0


@struct
class DescribeClientQuotasEntryData(Struct):
    entity: tuple[EntityData, ...] = ()
    values: tuple[ValueData, ...] = ()


@message(key=48, side="response", versions=(0, 1), flexible=1)
class DescribeClientQuotasResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    entries: Annotated[tuple[DescribeClientQuotasEntryData, ...] | None, nullable()] = ()


@struct
class OpData(Struct):
    key: Str = ""
    value: F64 = 0.0
    remove: Bool = False


@struct
class AlterClientQuotasRequestEntryData(Struct):
    entity: tuple[EntityData, ...] = ()
    ops: tuple[OpData, ...] = ()


@message(key=49, side="request", versions=(0, 1), flexible=1)
class AlterClientQuotasRequest(Request["AlterClientQuotasResponse"]):
    """Change client quotas."""

    entries: tuple[AlterClientQuotasRequestEntryData, ...] = ()
    validate_only: Bool = False


@struct
class AlterClientQuotasResponseEntryData(Struct):
    error_code: I16 = 0
    error_message: Annotated[Str | None, nullable()] = ""
    entity: tuple[EntityData, ...] = ()


@message(key=49, side="response", versions=(0, 1), flexible=1)
class AlterClientQuotasResponse(Response):
    throttle_time_ms: I32 = 0
    entries: tuple[AlterClientQuotasResponseEntryData, ...] = ()


@message(key=74, side="request", versions=(0, 1), flexible=0)
class ListConfigResourcesRequest(Request["ListConfigResourcesResponse"]):
    """List resources that have a configuration. Version 0, ListClientMetricsResources, lists client metrics only."""

    resource_types: Annotated[tuple[I8, ...], since(1)] = ()


@struct
class ConfigResource(Struct):
    resource_name: Str = ""
    resource_type: Annotated[I8, since(1), IGNORABLE] = 16


@message(key=74, side="response", versions=(0, 1), flexible=0)
class ListConfigResourcesResponse(Response):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
    config_resources: tuple[ConfigResource, ...] = ()
