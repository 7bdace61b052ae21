"""Messages of Protobuf whose files import what every registry has."""

from __future__ import annotations

import json
import math
import sys
from base64 import b64encode

import pytest
from google.protobuf import descriptor_pb2, text_format
from google.protobuf.json_format import MessageToDict
from tests.registry.fake import serving

from odradek.cli.registry_values import _message_class, record_decoder
from odradek.errors import ConfigError
from odradek.registry import SchemaRegistry
from odradek.registry.schemas import RegisteredSchema
from odradek.serde import SerdeContext, Serializer
from odradek.types import Position, Record, TopicPartition


def file(*imports: str, fields: str) -> str:
    text = " ".join(f'dependency: "{each}"' for each in imports)
    message = f'message_type {{ name: "Order" {fields} }}'
    descriptor = text_format.Parse(
        f'name: "order.proto" syntax: "proto3" {text} {message}', descriptor_pb2.FileDescriptorProto()
    )
    return b64encode(descriptor.SerializeToString()).decode()


def field(name: str, number: int, of_type: str) -> str:
    kind = f'type: TYPE_MESSAGE type_name: "{of_type}"'
    return f'field {{ name: "{name}" number: {number} {kind} label: LABEL_OPTIONAL }}'


async def printed(url: str, data: bytes) -> object:
    async with record_decoder(url, ["value"]) as decode:
        made = await decode(Record(data, None, (), None, None, Position(0), Position(1), 0, TopicPartition("t", 0)))
    return json.loads(made.value or b"", parse_constant=pytest.fail)


def decoded(schema: RegisteredSchema, data: bytes) -> object:
    return MessageToDict(_message_class(schema, (0,)).FromString(data), preserving_proto_field_name=True)


@pytest.mark.parametrize("imported", ["confluent/type/decimal.proto", "confluent/types/decimal.proto"])
def test_types_and_options_of_confluent_are_known(imported: str) -> None:
    text = file("confluent/meta.proto", imported, fields=field("price", 1, ".confluent.type.Decimal"))
    assert decoded(RegisteredSchema("PROTOBUF", text), b"\x0a\x07\x0a\x01\x7b\x10\x05\x18\x02") == {
        "price": {"value": "ew==", "precision": 5, "scale": 2}
    }


def test_types_of_google_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = file("google/type/interval.proto", fields=field("open", 1, ".google.type.Interval"))
    schema = RegisteredSchema("PROTOBUF", text)
    assert decoded(schema, b"\x0a\x04\x0a\x02\x08\x01") == {"open": {"start_time": "1970-01-01T00:00:01Z"}}
    monkeypatch.setitem(sys.modules, "google.type.interval_pb2", None)
    with pytest.raises(ConfigError, match=r"google/type/interval\.proto, .*: pip install googleapis"):
        _message_class(schema, (0,))


def test_a_file_that_neither_side_has_is_named() -> None:
    text = file("confluent/type/other.proto", fields="")
    with pytest.raises(ConfigError, match=r"imports confluent/type/other\.proto, which neither"):
        _message_class(RegisteredSchema("PROTOBUF", text), (0,))


def test_a_file_that_the_registry_has_is_that_of_the_registry() -> None:
    text = file("confluent/type/decimal.proto", fields=field("o", 1, ".Other"))
    own = b64encode(
        text_format.Parse(
            'name: "x" syntax: "proto3" message_type { name: "Other" field { name: "n" number: 1 type: TYPE_INT32'
            " label: LABEL_OPTIONAL } }",
            descriptor_pb2.FileDescriptorProto(),
        ).SerializeToString()
    ).decode()
    schema = RegisteredSchema("PROTOBUF", text, (own,), ("confluent/type/decimal.proto",))
    assert decoded(schema, b"\x0a\x02\x08\x05") == {"o": {"n": 5}}


@pytest.mark.anyio
async def test_numbers_that_json_does_not_have_are_texts() -> None:
    fields = [{"name": "a", "type": {"type": "array", "items": "double"}}, {"name": "f", "type": "float"}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    with serving() as fake:
        async with SchemaRegistry(fake.url) as registry:
            made: Serializer[object] = registry.avro(schema)
            value = {"a": [1.5, math.inf, -math.inf], "f": math.nan}
            written = made.serialize(value, SerdeContext("t", "value", []))
            data = written if isinstance(written, bytes) else await written
        assert await printed(fake.url, data) == {"a": [1.5, "Infinity", "-Infinity"], "f": "NaN"}


@pytest.mark.anyio
async def test_any_may_hold_what_the_schema_has() -> None:
    text = file("google/protobuf/any.proto", fields=field("item", 1, ".google.protobuf.Any"))
    value = _message_class(RegisteredSchema("PROTOBUF", text), (0,))()
    value.item.type_url = "type.googleapis.com/Order"
    with serving() as fake:
        number = fake.add("t-value", text, "PROTOBUF")
        data = b"\0" + number.to_bytes(4, "big") + b"\0" + value.SerializeToString()
        assert await printed(fake.url, data) == {"item": {"@type": "type.googleapis.com/Order"}}
