"""Administrative requests for topics and configurations, at every version, and what their responses mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from odradek.core.admin import (
    Append,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    CreatedTopic,
    PartitionDescription,
    Subtract,
    TopicSettings,
)
from odradek.core.kafka import admin_groups, admin_topics
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import BrokerError, RemoteProtocolError, Unsupported
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.headers import encode_request
from odradek.wire.kafka.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from odradek.wire.kafka.messages.groups import OffsetDeleteRequest, OffsetFetchRequest
from odradek.wire.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from odradek.wire.kafka.schema import Request

SETTINGS = TopicSettings(3, 2, {"retention.ms": "1000"})
P0 = TopicPartition("t", 0)


def upto(api: type[Request[Any]], last: int) -> BrokerVersions:
    return BrokerVersions({api.SPEC.key: VersionRange(0, last)})


Build = Callable[[BrokerVersions], Request[Any]]
REQUESTS: list[tuple[type[Request[Any]], int, Build]] = [
    (CreateTopicsRequest, 0, lambda v: admin_topics.create_request({"t": SETTINGS}, v, 1000, validate_only=False)),
    (CreateTopicsRequest, 1, lambda v: admin_topics.create_request({"t": SETTINGS}, v, 1000, validate_only=True)),
    (DeleteTopicsRequest, 0, lambda v: admin_topics.delete_request(["t"], v, 1000)),
    (DescribeConfigsRequest, 0, lambda v: admin_topics.describe_configs_request(admin_topics.TOPIC, ["t"])),
    (AlterConfigsRequest, 0, lambda v: admin_topics.alter_request(2, {"t": {"a": "b"}}, validate_only=True)),
    (
        IncrementalAlterConfigsRequest,
        0,
        lambda v: admin_topics.incremental_request(2, {"t": {"a": "b", "c": None}}, validate_only=True),
    ),
    (ListConfigResourcesRequest, 0, admin_topics.list_client_metrics_request),
    (DeleteRecordsRequest, 0, lambda v: admin_groups.delete_records_request({P0: Position(4)}, 1000)),
    (OffsetFetchRequest, 2, lambda v: admin_groups.all_positions_request("g", v)),
    (OffsetDeleteRequest, 0, lambda v: admin_groups.delete_positions_request("g", [P0])),
]


@pytest.mark.parametrize(("api", "first", "build"), REQUESTS, ids=[api.__name__ for api, _, _ in REQUESTS])
def test_a_request_can_be_encoded_at_every_version(api: type[Request[Any]], first: int, build: Build) -> None:
    for last in range(first, api.SPEC.stable[1] + 1):
        versions = upto(api, last)
        assert b"".join(encode_request(build(versions), versions.version(api), 1, "me"))


@pytest.mark.parametrize(
    ("last", "settings", "validate_only", "needs"),
    [
        (0, SETTINGS, True, "Kafka 0.10.2"),
        (3, TopicSettings(None, 1, {}), False, "give both numbers"),
        (3, TopicSettings(1, None, {}), False, "give both numbers"),
    ],
)
def test_what_an_old_broker_cannot_create_is_refused(
    last: int, settings: TopicSettings, validate_only: bool, needs: str
) -> None:
    with pytest.raises(Unsupported, match=needs):
        admin_topics.create_request({"t": settings}, upto(CreateTopicsRequest, last), 1, validate_only=validate_only)


def test_numbers_that_are_left_to_the_brokers_are_minus_one() -> None:
    request = admin_topics.create_request(
        {"t": TopicSettings(None, None, {})}, upto(CreateTopicsRequest, 4), 1, validate_only=False
    )
    assert (request.topics[0].num_partitions, request.topics[0].replication_factor) == (-1, -1)


def test_each_topic_is_created_or_has_its_own_error() -> None:
    exists = CreatableTopicResult(name="b", error_code=36, error_message="it is there")
    response = CreateTopicsResponse(topics=(CreatableTopicResult(name="a", num_partitions=3), exists))
    results = admin_topics.read_created(response, ["a", "b", "c"])
    assert results.done == {"a": CreatedTopic("a", None, 3, None)}
    assert isinstance(error := results.failed["b"], BrokerError) and error.name == "TOPIC_ALREADY_EXISTS"
    assert "creating topic 'b': it is there" in str(error)
    assert isinstance(results.failed["c"], RemoteProtocolError)
    with pytest.raises(BrokerError):
        results.check()


def test_each_topic_is_deleted_or_has_its_own_error() -> None:
    results = (DeletableTopicResult(name="a"), DeletableTopicResult(name="b", error_code=3))
    read = admin_topics.read_deleted(DeleteTopicsResponse(responses=results), ["a", "b"])
    assert read.done == {"a": None} and read.failed.keys() == {"b"}
    assert read.failed["b"].retriable


def test_topics_are_described_with_their_ids_and_partitions_in_order() -> None:
    partitions = (
        MetadataResponsePartition(partition_index=1, leader_id=-1, replica_nodes=(2,)),
        MetadataResponsePartition(partition_index=0, leader_id=1, leader_epoch=7, replica_nodes=(1, 2), isr_nodes=(1,)),
    )
    topics = (
        MetadataResponseTopic(name="t", topic_id=bytes(range(16)), partitions=partitions),
        MetadataResponseTopic(name="refused", error_code=29),
        MetadataResponseTopic(name="another"),
    )
    results = admin_topics.read_topics(MetadataResponse(topics=topics), ["t", "refused", "missing"])
    assert results.done["t"].topic_id == "AAECAwQFBgcICQoLDA0ODw"
    assert results.done["t"].partitions == (
        PartitionDescription(TopicPartition("t", 0), 1, 7, (1, 2), (1,), ()),
        PartitionDescription(TopicPartition("t", 1), None, None, (2,), (), ()),
    )
    names = {name: error.name for name, error in results.failed.items() if isinstance(error, BrokerError)}
    assert names == {"refused": "TOPIC_AUTHORIZATION_FAILED", "missing": "UNKNOWN_TOPIC_OR_PARTITION"}


@pytest.mark.parametrize(
    ("kind", "is_default", "source", "expected"),
    [
        (admin_topics.TOPIC, False, 1, ConfigSource.TOPIC),
        (admin_topics.TOPIC, False, 5, ConfigSource.DEFAULT),
        (admin_topics.TOPIC, False, 99, ConfigSource.UNKNOWN),
        (admin_topics.TOPIC, True, -1, ConfigSource.DEFAULT),
        (admin_topics.TOPIC, False, -1, ConfigSource.TOPIC),
        (admin_topics.BROKER, False, -1, ConfigSource.UNKNOWN),
    ],
)
def test_the_source_of_an_entry_is_known_in_every_version(
    kind: int, is_default: bool, source: int, expected: ConfigSource
) -> None:
    entry = DescribeConfigsResourceResult(name="a", value="b", is_default=is_default, config_source=source)
    result = DescribeConfigsResult(resource_type=kind, resource_name="t", configs=(entry,))
    results = admin_topics.read_configs(DescribeConfigsResponse(results=(result,)), kind, ["t"])
    assert results.done["t"]["a"].source is expected


def test_a_whole_configuration_keeps_the_entries_of_the_topic_and_no_others() -> None:
    entries = {
        name: ConfigEntry(name, name.upper(), source)
        for name, source in [("own", ConfigSource.TOPIC), ("file", ConfigSource.FILE), ("old", ConfigSource.TOPIC)]
    }
    changes: dict[str, ConfigChange] = {"old": None, "new": "1", "absent": None}
    assert admin_topics.merged_config(entries, changes) == {"own": "OWN", "new": "1"}


@pytest.mark.parametrize(
    ("change", "value"),
    [(Append("c"), "a,b,c"), (Append("a"), "b,a"), (Subtract("a"), "b"), (Subtract("c"), "a,b"), ("d", "d")],
)
def test_a_list_is_changed_by_an_item_where_only_whole_configurations_can_be_written(
    change: ConfigChange, value: str
) -> None:
    entries = {"list": ConfigEntry("list", "a,b", ConfigSource.DEFAULT)}
    assert admin_topics.merged_config(entries, {"list": change}) == {"list": value}
    assert admin_topics.merged_config({}, {"list": Append("c")}) == {"list": "c"}


def test_a_request_changes_single_entries_in_every_way() -> None:
    changes: dict[str, ConfigChange] = {"a": "1", "b": None, "c": Append("x"), "d": Subtract("y")}
    request = admin_topics.incremental_request(admin_topics.TOPIC, {"t": changes}, validate_only=True)
    (resource,) = request.resources
    assert (request.validate_only, resource.resource_type, resource.resource_name) == (True, 2, "t")
    assert [(entry.name, entry.config_operation, entry.value) for entry in resource.configs] == [
        ("a", 0, "1"),
        ("b", 1, None),
        ("c", 2, "x"),
        ("d", 3, "y"),
    ]


def test_each_configuration_is_altered_or_has_its_own_error() -> None:
    refused = AlterConfigsResourceResponse(resource_name="b", error_code=40, error_message="no number")
    results = admin_topics.read_altered([AlterConfigsResourceResponse(resource_name="a"), refused], ["a", "b"])
    assert results.done == {"a": None} and "no number" in str(results.failed["b"])
