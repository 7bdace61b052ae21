"""The declaration language."""

from __future__ import annotations

import copy
import pickle
from typing import Annotated, Any

import pytest
from tests.conformance.kafka.apis import APIS

from odradek.wire.kafka.messages.data import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState
from odradek.wire.kafka.messages.metadata import MetadataRequest
from odradek.wire.kafka.messages.security import SaslAuthenticateRequest
from odradek.wire.kafka.schema import (
    IGNORABLE,
    STRING,
    Array,
    Field,
    Message,
    Nested,
    Str,
    Struct,
    fields_of,
    message,
    nullable,
    response_of,
    since,
    struct,
    tag,
    until,
)


@struct
class Inner(Struct):
    name: Annotated[Str | None, since(1), until(3), nullable(2, 3), IGNORABLE] = "a"


@message(versions=(0, 4), flexible=2, stable=(1, 3))
class Outer(Message):
    inner: Inner = Inner()
    names: Annotated[tuple[Str, ...], since(2), tag(7)] = ()


def test_fields_are_read_from_the_annotations() -> None:
    assert fields_of(Inner) == (Field("name", STRING, "a", 1, 3, (2, 3), None, True),)
    inner, names = fields_of(Outer)
    assert inner.kind == Nested(Inner)
    assert (names.kind, names.tag, names.since) == (Array(STRING), 7, 2)
    assert [names.is_in(version) for version in range(5)] == [False, False, True, True, True]
    assert [fields_of(Inner)[0].is_nullable(version) for version in range(5)] == [False, False, True, True, False]


def test_a_message_knows_its_versions() -> None:
    assert (Outer.SPEC.name, Outer.SPEC.key, Outer.SPEC.side) == ("Outer", -1, "data")
    assert Outer.SPEC.stable == (1, 3)
    assert [Outer.SPEC.is_flexible(version) for version in (1, 2)] == [False, True]
    assert (FetchRequest.SPEC.name, FetchRequest.SPEC.key, FetchRequest.SPEC.stable) == ("Fetch", 1, (0, 18))
    assert not APIS[17].request.SPEC.is_flexible(1)


def test_a_request_knows_its_response() -> None:
    assert response_of(FetchRequest) is FetchResponse
    assert all(api.response.SPEC.key == api.key == api.request.SPEC.key for api in APIS.values())


def test_values_are_compared_by_value() -> None:
    request = FetchRequest(max_bytes=7, topics=(FetchTopic(topic="t"),))
    assert request == FetchRequest(max_bytes=7, topics=(FetchTopic(topic="t"),))
    assert hash(request) == hash(FetchRequest(max_bytes=7, topics=(FetchTopic(topic="t"),)))
    assert request != FetchRequest(max_bytes=7)
    assert request != FetchRequest(max_bytes=7, topics=request.topics, unknown_tags=((9, b""),))
    assert ReplicaState() != FetchPartition()
    assert ReplicaState() != 5


def test_a_value_shows_what_differs_from_the_defaults_and_no_secrets() -> None:
    assert repr(FetchRequest()) == "FetchRequest()"
    request = FetchRequest(rack_id="r", topics=(FetchTopic(topic="t"),))
    assert repr(request) == "FetchRequest(topics=(FetchTopic(topic='t'),), rack_id='r')"
    assert repr(SaslAuthenticateRequest(auth_bytes=b"secret")) == "SaslAuthenticateRequest(auth_bytes=<6 bytes>)"


def test_a_value_survives_copying_and_pickling() -> None:
    request = FetchRequest(max_bytes=7, topics=(FetchTopic(topic="t"),))
    assert pickle.loads(pickle.dumps(request)) == request
    assert copy.deepcopy(request) == request


def test_only_declared_fields_exist() -> None:
    wrong: dict[str, Any] = {"max_byte": 7}
    with pytest.raises(TypeError, match="max_byte"):
        FetchRequest(**wrong)
    with pytest.raises(AttributeError):
        object.__setattr__(FetchRequest(), "max_byte", 7)


def test_an_annotation_that_is_no_type_of_a_field_is_refused() -> None:
    @struct
    class Wrong(Struct):
        value: complex = 0j

    with pytest.raises(TypeError, match=r"complex.* cannot be the type of a field"):
        fields_of(Wrong)


def test_the_defaults_of_a_request_are_those_of_kafka() -> None:
    assert (MetadataRequest().topics, MetadataRequest().allow_auto_topic_creation) == ((), True)
