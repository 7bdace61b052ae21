"""Serializers at a real registry, together with those of confluent-kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.loops import ASYNCIO, on
from tests.registry.apicurio import Apicurio
from tests.registry.messages import AVRO, JSON, Inner, Order
from tests.registry.test_serdes import NEW, OLD, VALUES, read, serde, write

from odradek.registry import PayloadError, SchemaRegistry
from odradek.registry.schemas import Schema
from odradek.serde import SerdeContext

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

anyio_backend = on(ASYNCIO)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Apicurio() as registry:
        yield registry.url


@contextmanager
def theirs(url: str, kind: str) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """The serializer and the deserializer of confluent-kafka."""
    topic = {"subject.name.strategy.type": "TOPIC"}
    with SchemaRegistryClient({"url": url}) as client:
        match kind:
            case "avro":
                yield AvroSerializer(client, AVRO, conf=topic), AvroDeserializer(client, conf=topic)
            case "json":
                reader = JSONDeserializer(JSON, schema_registry_client=client, conf=topic)
                yield JSONSerializer(JSON, client, conf=topic), reader
            case _:
                message = Order if kind == "order" else Inner
                yield ProtobufSerializer(message, client, topic), ProtobufDeserializer(message, topic, client)


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("kind", [*VALUES])
async def test_values_go_both_ways_between_odradek_and_confluent_kafka(url: str, kind: str, first: str) -> None:
    topic = f"{kind}-{first}"
    where, their_where = SerdeContext(topic, "value", []), SerializationContext(topic, MessageField.VALUE)
    with theirs(url, kind) as (serialize, deserialize):
        async with SchemaRegistry(url) as client:
            for value in VALUES[kind]:
                ours = serde(client, kind)
                data = await write(ours, value, where) if first == "ours" else serialize(value, their_where)
                assert await write(ours, value, where) == serialize(value, their_where) == data
                async with SchemaRegistry(url) as another:
                    assert await read(serde(another, kind), data, where) == value
                assert deserialize(data, their_where) == value


async def test_schemas_evolve(url: str) -> None:
    where = SerdeContext("evolving", "value", [])
    async with SchemaRegistry(url) as client:
        with pytest.raises(PayloadError, match="not registered under the subject evolving-value"):
            await write(client.avro(OLD, registration="off"), {"id": 1}, where)
        with pytest.raises(PayloadError, match="no subject evolving-value"):
            await write(client.avro(registration="latest"), {"id": 1}, where)
        old = await write(client.avro(OLD), {"id": 1}, where)
        assert await write(client.avro(OLD, registration="off"), {"id": 1}, where) == old
        new = await write(client.avro(NEW), {"id": 1, "score": 2.5}, where)
        assert await write(client.avro(registration="latest"), {"id": 1, "score": 2.5}, where) == new != old
        assert await read(client.avro(NEW), old, where) == {"id": 1, "score": 0.5}
        with pytest.raises(PayloadError, match="the registry has no schema 999999"):
            await read(client.avro(), b"\0" + (999999).to_bytes(4, "big"), where)
        registered = await client.find("evolving-value", Schema("AVRO", NEW))
        assert registered is not None and registered[1] == 2
