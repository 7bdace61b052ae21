"""Messages as plain values: there and back, and mistakes named by the path of the field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.wire.kafka.messages.data import FetchRequest, FetchResponse, ListOffsetsRequest
from odradek.wire.kafka.messages.groups import JoinGroupRequest
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataResponse
from odradek.wire.kafka.messages.quorum import FeatureUpdateKey, UpdateFeaturesRequest
from odradek.wire.kafka.plain import from_plain, request_type, request_types, to_plain
from odradek.wire.kafka.schema import Request

from .strategies import messages


def test_every_declared_request_has_its_name() -> None:
    types = request_types()
    assert {"Produce", "Fetch", "DescribeQuorum", "ShareFetch", "AlterPartitionReassignments"} <= types.keys()
    assert [cls.SPEC.key for cls in types.values()] == sorted({cls.SPEC.key for cls in types.values()})
    assert all(request_type(name) is cls and issubclass(cls, Request) for name, cls in types.items())


@pytest.mark.parametrize("name", ["describecluster", "DescribeClusterRequest", ""])
def test_an_unknown_api_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=f"api='{name}': there is no such API; there are Produce, Fetch, ListOffsets"):
        request_type(name)


OF_EACH_KIND = ["AlterClientQuotas", "CreateTopics", "Fetch", "JoinGroup", "Metadata", "UpdateFeatures"]
"""APIs whose requests have fields of every kind between them."""


@pytest.mark.parametrize("cls", [*map(request_type, OF_EACH_KIND), MetadataResponse, FetchResponse])
@settings(max_examples=15)
@given(data=st.data())
def test_a_message_is_the_same_there_and_back(cls: Any, data: st.DataObject) -> None:
    version = cls.SPEC.versions[1]
    value = data.draw(messages(cls, version))
    plain = to_plain(value, version)
    assert only_plain(plain)
    again = from_plain(cls, without_tags(plain))
    assert without_tags(to_plain(again, version)) == without_tags(plain)


def only_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and only_plain(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(only_plain, value))
    return value is None or type(value) in (bool, int, float, str, bytes)


def without_tags(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_tags(each) for name, each in value.items() if name != "unknown_tags"}
    return [without_tags(each) for each in value] if isinstance(value, list) else value


def test_a_response_has_the_fields_of_its_version_and_tags_that_are_not_known() -> None:
    value = MetadataResponse(controller_id=5, unknown_tags=((7, b"x"),))
    assert "cluster_id" not in to_plain(value, 1)
    assert to_plain(value, 2)["cluster_id"] is None or to_plain(value, 2)["cluster_id"] == ""
    assert to_plain(value, 9)["unknown_tags"] == [(7, b"x")]


def test_fields_that_are_left_out_have_their_defaults() -> None:
    assert from_plain(MetadataRequest, {"topics": [{"name": "t"}]}).topics[0].name == "t"  # type: ignore[index]
    assert from_plain(MetadataRequest, {"topics": None}).topics is None
    update = from_plain(UpdateFeaturesRequest, {"feature_updates": [{"feature": "f", "max_version_level": 1}]})
    assert update.feature_updates == (FeatureUpdateKey(feature="f", max_version_level=1),)
    assert from_plain(JoinGroupRequest, {"group_id": "g"}).session_timeout_ms == JoinGroupRequest().session_timeout_ms


@pytest.mark.parametrize(
    ("cls", "fields", "error", "text"),
    [
        (MetadataRequest, {"topic": []}, ConfigError, "fields: MetadataRequest has no field 'topic'; it has topics, "),
        (MetadataRequest, {"unknown_tags": ()}, ConfigError, "no field 'unknown_tags'"),
        (MetadataRequest, {"topics": [{}, {"nam": "t"}]}, ConfigError, r"fields\.topics\[1\]: .* no field 'nam'"),
        (MetadataRequest, {"topics": "t"}, TypeError, r"fields\.topics must be a sequence, not str"),
        (MetadataRequest, {"topics": {"name": "t"}}, TypeError, r"fields\.topics must be a sequence, not dict"),
        (MetadataRequest, {"topics": ["t"]}, TypeError, r"fields\.topics\[0\] must be a mapping of fields, not str"),
        (MetadataRequest, {"topics": [{"name": b"t"}]}, TypeError, r"fields\.topics\[0\]\.name must be a str"),
        (MetadataRequest, {"allow_auto_topic_creation": 1}, TypeError, "must be True or False, not int"),
        (FetchRequest, {"max_wait_ms": True}, TypeError, "max_wait_ms must be an int, not bool"),
        (FetchRequest, {"max_wait_ms": 1.0}, TypeError, "max_wait_ms must be an int, not float"),
        (ListOffsetsRequest, [], TypeError, "fields must be a mapping of fields, not list"),
        (JoinGroupRequest, {"protocols": [{"metadata": "x"}]}, TypeError, r"protocols\[0\]\.metadata must be bytes"),
    ],
)
def test_mistakes_are_named_by_the_path_of_the_field(cls: Any, fields: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        from_plain(cls, fields)
