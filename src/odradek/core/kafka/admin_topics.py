"""Requests that create, delete, describe and configure topics, and the results that responses name. Pure."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from odradek.core.admin import (
    Append,
    ConfigChange,
    ConfigEntry,
    ConfigKind,
    ConfigSource,
    CreatedTopic,
    PartitionDescription,
    Results,
    Subtract,
    TopicDescription,
    TopicSettings,
)
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import OdradekError, RemoteProtocolError, Unsupported
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from odradek.wire.kafka.messages.metadata import MetadataResponse, MetadataResponseTopic
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = [
    "BROKER",
    "TOPIC",
    "alter_request",
    "create_request",
    "delete_request",
    "describe_configs_request",
    "id_text",
    "incremental_request",
    "item_error",
    "item_results",
    "known",
    "list_client_metrics_request",
    "merged_config",
    "read_altered",
    "read_configs",
    "read_created",
    "read_deleted",
    "read_topics",
]

TOPIC, BROKER = 2, 4
"""Types of resources that have a configuration; the others are those of `ConfigKind`."""

ALL_BROKERS = "all brokers"
"""Name in errors of what is set for all brokers; its own name is empty."""

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""Operations of IncrementalAlterConfigs on an entry."""

BROKERS_DEFAULT = -1
"""Number of partitions or replicas that leaves the choice to the brokers (KIP-464)."""

K = TypeVar("K")
V = TypeVar("V")


def item_error(code: int, message: str | None, context: str) -> OdradekError | None:
    """Return the error of one item; None if the code says there is none."""
    return broker_error(code, f"{context}: {message}" if message else context) if code else None


def item_results(asked: Iterable[K], answers: Mapping[K, V | OdradekError], context: str) -> Results[K, V]:
    """Divide answers into results and errors. An item without an answer has failed."""
    done: dict[K, V] = {}
    failed: dict[K, OdradekError] = {}
    for item in asked:
        if item not in answers:
            failed[item] = RemoteProtocolError(f"{context}: the response says nothing about {item}")
        elif isinstance(answer := answers[item], OdradekError):
            failed[item] = answer
        else:
            done[item] = answer
    return Results(done, failed)


# ---- creation and deletion ----------------------------------------------------------------------------------


def create_request(
    topics: Mapping[str, TopicSettings], versions: BrokerVersions, timeout_ms: int, *, validate_only: bool
) -> CreateTopicsRequest:
    """Return the request to create topics.

    Raises:
        Unsupported: The broker is too old for `validate_only`, or for choosing numbers itself.
    """
    settings = topics.values()
    if any(None in (each.partitions, each.replicas) for each in settings) and not versions.has(CreateTopicsRequest, 4):
        raise Unsupported("a number of partitions or replicas chosen by the brokers", "Kafka 2.4: give both numbers")
    if validate_only and not versions.has(CreateTopicsRequest, 1):
        raise Unsupported("validating a topic without creating it", "Kafka 0.10.2")
    return CreateTopicsRequest(
        topics=tuple(_creatable(name, each) for name, each in topics.items()),
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )


def _creatable(name: str, settings: TopicSettings) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=BROKERS_DEFAULT if settings.partitions is None else settings.partitions,
        replication_factor=BROKERS_DEFAULT if settings.replicas is None else settings.replicas,
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in settings.config.items()),
    )


def read_created(response: CreateTopicsResponse, names: Collection[str]) -> Results[str, CreatedTopic]:
    """Return the result of each topic."""
    answers: dict[str, CreatedTopic | OdradekError] = {}
    for topic in response.topics:
        created = CreatedTopic(
            topic.name, id_text(topic.topic_id), known(topic.num_partitions), known(topic.replication_factor)
        )
        error = item_error(topic.error_code, topic.error_message, f"creating topic {topic.name!r}")
        answers[topic.name] = error or created
    return item_results(names, answers, "CreateTopics")


def delete_request(names: Sequence[str], versions: BrokerVersions, timeout_ms: int) -> DeleteTopicsRequest:
    """Return the request to delete topics by name."""
    if versions.has(DeleteTopicsRequest, 6):
        return DeleteTopicsRequest(topics=tuple(DeleteTopicState(name=name) for name in names), timeout_ms=timeout_ms)
    return DeleteTopicsRequest(topic_names=tuple(names), timeout_ms=timeout_ms)


def read_deleted(response: DeleteTopicsResponse, names: Collection[str]) -> Results[str, None]:
    """Return the result of each topic."""
    answers = {
        topic.name: item_error(topic.error_code, topic.error_message, f"deleting topic {topic.name!r}")
        for topic in response.responses
        if topic.name is not None
    }
    return item_results(names, answers, "DeleteTopics")


def id_text(number: bytes) -> str | None:
    """Return an id as Kafka's tools print it."""
    return None if number == ZERO_UUID else base64.urlsafe_b64encode(number).decode().rstrip("=")


def known(number: int) -> int | None:
    """Return a number, or None for what stands for "not known"."""
    return number if number >= 0 else None


# ---- description --------------------------------------------------------------------------------------------


def read_topics(response: MetadataResponse, names: Collection[str]) -> Results[str, TopicDescription]:
    """Return the description of each topic. One that a list of all topics lacks does not exist."""
    answers: dict[str, TopicDescription | OdradekError] = {
        name: broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"describing topic {name!r}") for name in names
    }
    for topic in response.topics:
        if topic.name is not None:
            error = item_error(topic.error_code, None, f"describing topic {topic.name!r}")
            answers[topic.name] = error or _described(topic.name, topic)
    return item_results(names, answers, "Metadata")


def _described(name: str, topic: MetadataResponseTopic) -> TopicDescription:
    partitions = tuple(
        PartitionDescription(
            TopicPartition(name, each.partition_index),
            known(each.leader_id),
            known(each.leader_epoch),
            each.replica_nodes,
            each.isr_nodes,
            each.offline_replicas,
        )
        for each in sorted(topic.partitions, key=lambda each: each.partition_index)
    )
    return TopicDescription(name, id_text(topic.topic_id), topic.is_internal, partitions)


# ---- configuration ------------------------------------------------------------------------------------------


def describe_configs_request(kind: int, names: Iterable[str]) -> DescribeConfigsRequest:
    """Return the request for all entries of resources of one type."""
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names
        )
    )


def read_configs(
    response: DescribeConfigsResponse, kind: int, names: Collection[str]
) -> Results[str, Mapping[str, ConfigEntry]]:
    """Return the entries of each resource."""
    answers: dict[str, Mapping[str, ConfigEntry] | OdradekError] = {}
    for result in response.results:
        name = result.resource_name
        error = item_error(result.error_code, result.error_message, f"configuration of {name or ALL_BROKERS!r}")
        answers[name] = error or {entry.name: _entry(entry, kind) for entry in result.configs}
    return item_results(names, answers, "DescribeConfigs")


def _entry(entry: DescribeConfigsResourceResult, kind: int) -> ConfigEntry:
    return ConfigEntry(entry.name, entry.value, _source(entry, kind), entry.read_only, entry.is_sensitive)


def _source(entry: DescribeConfigsResourceResult, kind: int) -> ConfigSource:
    """Return where a value comes from. Version 0 only says whether it was set for the topic, or for the broker in any
    way."""
    if entry.is_default:
        return ConfigSource.DEFAULT
    if entry.config_source < 0 and kind == TOPIC:
        return ConfigSource.TOPIC
    return ConfigSource(entry.config_source)


def list_client_metrics_request(versions: BrokerVersions) -> ListConfigResourcesRequest:
    """Return the request for all subscriptions to metrics of clients: version 0 lists nothing else."""
    has_types = versions.has(ListConfigResourcesRequest, 1)
    return ListConfigResourcesRequest(resource_types=(ConfigKind.CLIENT_METRICS,) if has_types else ())


def merged_config(entries: Mapping[str, ConfigEntry], changes: Mapping[str, ConfigChange]) -> dict[str, str]:
    """Return the whole configuration of a topic after changes: AlterConfigs resets what it does not name."""
    own = {name: entry.value for name, entry in entries.items() if entry.source is ConfigSource.TOPIC}
    changed = {name: _changed(entries.get(name), change) for name, change in changes.items()}
    return {name: value for name, value in (own | changed).items() if value is not None}


def _changed(entry: ConfigEntry | None, change: ConfigChange) -> str | None:
    """Return the value of an entry after a change, as brokers that can add and take away items make it."""
    if not isinstance(change, Append | Subtract):
        return change
    items = [item for item in ((entry and entry.value) or "").split(",") if item and item != change.item]
    return ",".join([*items, change.item] if isinstance(change, Append) else items)


def incremental_request(
    kind: int, changes: Mapping[str, Mapping[str, ConfigChange]], *, validate_only: bool
) -> IncrementalAlterConfigsRequest:
    """Return the request to change single entries."""

    def entry(name: str, change: ConfigChange) -> IncrementalAlterableConfig:
        match change:
            case Append(value):
                operation = APPEND
            case Subtract(value):
                operation = SUBTRACT
            case value:
                operation = DELETE if value is None else SET
        return IncrementalAlterableConfig(name=name, config_operation=operation, value=value)

    resources = tuple(
        IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=name, configs=tuple(entry(*change) for change in entries.items())
        )
        for name, entries in changes.items()
    )
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)


def alter_request(kind: int, configs: Mapping[str, Mapping[str, str]], *, validate_only: bool) -> AlterConfigsRequest:
    """Return the request to replace whole configurations."""
    resources = tuple(
        AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=tuple(AlterableConfig(name=key, value=value) for key, value in entries.items()),
        )
        for name, entries in configs.items()
    )
    return AlterConfigsRequest(resources=resources, validate_only=validate_only)


def read_altered(responses: Iterable[AlterConfigsResourceResponse], names: Collection[str]) -> Results[str, None]:
    """Return the result of each resource."""
    answers = {
        each.resource_name: item_error(
            each.error_code, each.error_message, f"configuration of {each.resource_name or ALL_BROKERS!r}"
        )
        for each in responses
    }
    return item_results(names, answers, "AlterConfigs")
