"""Values in Confluent's wire format: the bytes of others, subjects, registration, other schemas, and what is wrong."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal, assert_type

import anyio
import pytest
from google.protobuf import descriptor_pb2
from tests.registry.fake import FakeRegistry, guid_of, serving
from tests.registry.goldens import GOLDENS
from tests.registry.messages import AVRO, AVRO_VALUES, JSON, JSON_VALUES, Inner, Order, make_inner, make_order

import odradek as od
from odradek.errors import ConfigError
from odradek.registry import PayloadError, RegistryError, RegistrySerde, SchemaRegistry
from odradek.serde import DeserializationError, Deserializer, SerdeContext, SerializationError, Serializer
from odradek.testing import MemoryCluster

pytestmark = pytest.mark.anyio

VALUES = {"avro": AVRO_VALUES, "json": JSON_VALUES, "order": [make_order()], "inner": [make_inner()]}
KINDS = [*VALUES]
OLD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]})
NEW = json.dumps({
    "type": "record", "name": "R",
    "fields": [{"name": "id", "type": "long"}, {"name": "score", "type": "double", "default": 0.5}],
})  # fmt: skip


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving() as fake:
        yield fake


@asynccontextmanager
async def opened(fake: FakeRegistry, **options: Any) -> AsyncIterator[SchemaRegistry]:
    async with SchemaRegistry(fake.url, **options) as made:
        yield made


def serde(registry: SchemaRegistry, kind: str, **options: Any) -> RegistrySerde[Any]:
    match kind:
        case "avro":
            return registry.avro(AVRO, **options)
        case "json":
            return registry.json_schema(JSON, **options)
    return registry.protobuf(Order if kind == "order" else Inner, **options)


def context(field: Literal["key", "value"] = "value") -> SerdeContext:
    return SerdeContext("t", field, [])


async def write(serializer: Serializer[Any], value: Any, where: SerdeContext | None = None) -> bytes:
    made = serializer.serialize(value, where or context())
    return made if isinstance(made, bytes) else await made


async def read(deserializer: Deserializer[Any], data: bytes, where: SerdeContext | None = None) -> Any:
    made = deserializer.deserialize(data, where or context())
    return await made if hasattr(made, "__await__") else made


# ---- the bytes of others ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "number", "field", "framing", "data", "header"), GOLDENS)
async def test_bytes_are_those_of_confluent_kafka(
    registry: FakeRegistry, kind: str, number: int, field: Any, framing: str, data: bytes, header: bytes
) -> None:
    async with opened(registry) as client:
        made = serde(client, kind, framing=framing)
        for _ in range(2):  # looked up, and remembered
            where = context(field)
            assert await write(made, VALUES[kind][number], where) == data
            assert where.headers == ([(f"__{field}_schema_id", header)] if framing == "header" else [])
        for reader in (made, serde(client, kind)):  # whatever is written, both are read
            for _ in range(2):
                assert await read(reader, data, where) == VALUES[kind][number]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_guid_may_be_in_front_and_an_id_in_a_header(registry: FakeRegistry, kind: str) -> None:
    async with opened(registry) as client:
        made, value = serde(client, kind), VALUES[kind][0]
        data = await write(made, value)
        number, rest = int.from_bytes(data[1:5], "big"), data[5:]
        guid = bytes.fromhex(guid_of(registry.schemas[number - 1]["schema"]).replace("-", ""))
        assert await read(made, b"\1" + guid + rest) == value
        payload = value.SerializeToString() if kind in ("order", "inner") else rest
        head = data[: len(data) - len(payload)]
        assert await read(made, payload, SerdeContext("t", "key", [("x", b""), ("__key_schema_id", head)])) == value


@pytest.mark.parametrize(
    ("schema", "value", "payload"),
    [
        ('"bytes"', b"\x06abc", b"\x06abc"),
        ('{"type": "bytes"}', b"", b""),
        ('{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}', Decimal("2.56"), b"\1\0"),
        ('["null", "bytes"]', b"abc", b"\2\6abc"),
    ],
)
async def test_bytes_that_are_no_part_of_a_record_are_written_as_they_are(
    registry: FakeRegistry, schema: str, value: object, payload: bytes
) -> None:
    async with opened(registry) as client:
        made = client.avro(schema)
        assert await write(made, value) == b"\0\0\0\0\1" + payload
        for reader in (made, client.avro()):
            assert await read(reader, b"\0\0\0\0\1" + payload) == value


@pytest.mark.parametrize("framing", ["header", "prefix"])
async def test_a_record_that_is_passed_on_names_its_new_schema_alone(registry: FakeRegistry, framing: str) -> None:
    async with opened(registry) as client:
        where = context("value")
        await write(serde(client, "order", framing="header"), VALUES["order"][0], where)
        former = where.headers[:]
        made = serde(client, "avro", framing=framing)
        data = await write(made, VALUES["avro"][0], where)
        assert not set(former) & set(where.headers) and len(where.headers) == (framing == "header")
        assert await read(made, data, where) == VALUES["avro"][0]
        if framing == "header":  # others add theirs behind it, and read the last one
            assert await read(made, data, SerdeContext("t", "value", former + where.headers)) == VALUES["avro"][0]


async def test_producers_and_consumers_take_and_give_values(registry: FakeRegistry) -> None:
    cluster = MemoryCluster(topics={"t": 1})
    async with opened(registry) as client, cluster.connect() as k:
        orders = client.avro(AVRO, framing="header")
        async with k.producer(key_serializer=client.protobuf(Order), value_serializer=orders) as out:
            await out.send("t", AVRO_VALUES[0], key=make_order(), headers=[("h", b"")])
        async with k.reader(
            "t", until=od.LATEST, key_deserializer=client.protobuf(Order), value_deserializer=orders
        ) as r:
            (record,) = [record async for record in r]
    assert (record.key, record.value) == (make_order(), AVRO_VALUES[0])
    assert [name for name, _ in record.headers] == ["h", "__value_schema_id"]
    assert set(registry.subjects) == {"common.proto", "t-key", "t-value"}
    assert registry.schemas[1]["references"] == [{"name": "common.proto", "subject": "common.proto", "version": 1}]


@dataclass
class Row:
    id: int
    user: str = ""


async def test_values_of_another_type_are_converted(registry: FakeRegistry) -> None:
    async with opened(registry) as client:
        rows = client.json_schema(JSON).convert(lambda plain: Row(**plain), asdict)
        assert_type(rows, RegistrySerde[Row])
        assert await read(rows, await write(rows, Row(1, "ann"))) == Row(1, "ann")
        data = await write(client.json_schema(JSON), {"id": 1, "more": 2})
        with pytest.raises(PayloadError, match=r"TypeError: .*'more'") as failed:
            await read(rows, data)
        assert failed.value.schema == 1 and not failed.value.retriable


# ---- subjects and registration -------------------------------------------------------------------------------------

SUBJECTS = [
    ("avro", "topic", "t-key"), ("avro", "record", "shop.Order"), ("avro", "topic-record", "t-shop.Order"),
    ("json", "topic", "t-key"), ("json", "record", "Order"), ("json", "topic-record", "t-Order"),
    ("inner", "topic", "t-key"), ("inner", "record", "shop.Outer.Inner"),
    ("inner", "topic-record", "t-shop.Outer.Inner"),
]  # fmt: skip
"""As confluent-kafka names them."""


@pytest.mark.parametrize(("kind", "subject", "name"), SUBJECTS)
async def test_the_subject_is_named_as_confluent_kafka_does(
    registry: FakeRegistry, kind: str, subject: str, name: str
) -> None:
    async with opened(registry) as client:
        await write(serde(client, kind, subject=subject), VALUES[kind][0], context("key"))
    assert set(registry.subjects) - {"common.proto"} == {name}


@pytest.mark.parametrize(
    "make", [lambda c: c.avro('"long"', subject="record"), lambda c: c.json_schema(subject="record")]
)
async def test_a_schema_without_a_name_is_none_of_a_record(registry: FakeRegistry, make: Any) -> None:
    async with opened(registry) as client:
        with pytest.raises(ConfigError, match="needs a schema that has a name"):
            make(client)


@pytest.mark.parametrize("kind", KINDS)
async def test_without_registration_a_schema_must_be_there(registry: FakeRegistry, kind: str) -> None:
    async with opened(registry) as client:
        made = serde(client, kind, registration="off")
        with pytest.raises(PayloadError, match="the schema is not registered under the subject"):
            await write(made, VALUES[kind][0])
        assert registry.subjects == {}
        data = await write(serde(client, kind), VALUES[kind][0])
        assert await write(made, VALUES[kind][0]) == data


async def test_the_newest_schema_is_written_and_looked_up_again(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("odradek.registry.serdes.time.monotonic", lambda: now)
    first = registry.add("t-value", OLD)
    async with opened(registry) as client:
        made = client.avro(registration="latest")
        data = [await write(made, {"id": 1, "score": 2.0})]
        second = registry.add("t-value", NEW)
        now = 59.0
        data.append(await write(made, {"id": 1, "score": 2.0}))
        now = 61.0
        data.append(await write(made, {"id": 1, "score": 2.0}))
        assert [int.from_bytes(each[1:5], "big") for each in data] == [first, first, second]
        assert [await read(made, each) for each in data] == [{"id": 1}, {"id": 1}, {"id": 1, "score": 2.0}]
        with pytest.raises(PayloadError, match="the newest schema of t-value is of type AVRO"):
            await write(client.json_schema(registration="latest"), {})
        with pytest.raises(PayloadError, match="the registry has no subject t-key"):
            await write(made, {"id": 1}, context("key"))
        with pytest.raises(PayloadError, match="nothing says how to write this"):
            await write(client.avro(), {"id": 1})


async def test_guids_need_a_registry_that_has_them(registry: FakeRegistry) -> None:
    registry.has_guids = False
    async with opened(registry) as client:
        with pytest.raises(PayloadError, match='this registry has no GUIDs: use framing="prefix"'):
            await write(client.avro(AVRO, framing="header"), AVRO_VALUES[0])


# ---- other schemas --------------------------------------------------------------------------------------------------


async def test_values_are_read_with_another_schema(registry: FakeRegistry) -> None:
    async with opened(registry) as client:
        data = await write(client.avro(OLD), {"id": 1})
        assert await read(client.avro(NEW), data) == {"id": 1, "score": 0.5}
        assert await read(client.avro(), data) == {"id": 1}
        newer = await write(client.avro(NEW), {"id": 2, "score": 1.5})
        assert await read(client.avro(OLD.replace('"int"', '"long"')), newer) == {"id": 2}
        with pytest.raises(PayloadError, match="SchemaResolutionError") as failed:
            await read(client.avro(OLD), newer)
        assert failed.value.schema == 2


DAY: Any = {"type": "int", "logicalType": "date"}
PRICE: Any = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
DAYS: Any = {"type": "record", "name": "I", "fields": [{"name": "day", "type": DAY, "default": 1}]}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "\u00ff", b"\xff"),
        (["null", "bytes"], None, None),
        ([{"type": "fixed", "name": "F", "size": 2}, "null"], "\u00ff\0", b"\xff\0"),
        (PRICE, "\u0001\0", Decimal("2.56")),
        (DAY, 1, date(1970, 1, 2)),
        ({"type": "array", "items": DAY}, [1, 2], [date(1970, 1, 2), date(1970, 1, 3)]),
        ({"type": "map", "values": "bytes"}, {"a": "\u00ff"}, {"a": b"\xff"}),
        (DAYS, {}, {"day": date(1970, 1, 2)}),
        (["null", DAYS], {"day": 2}, {"day": date(1970, 1, 3)}),
        ({"type": "string", "logicalType": "uuid"}, "", ""),
    ],
)
async def test_defaults_of_a_reader_are_values_as_its_records_have_them(
    registry: FakeRegistry, kind: Any, default: Any, value: Any
) -> None:
    new = json.loads(OLD)
    new["fields"].append({"name": "new", "type": kind, "default": default})
    async with opened(registry) as client:
        data, reader = await write(client.avro(OLD), {"id": 1}), client.avro(json.dumps(new))
        for _ in range(2):
            made = await read(reader, data)
            assert made == {"id": 1, "new": value}
            if isinstance(value, list | dict):
                made["new"].clear()  # that of this record alone


async def test_schemas_have_what_they_refer_to(registry: FakeRegistry) -> None:
    registry.add("inner", '{"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}')
    reference = {"name": "I", "subject": "inner", "version": 1}
    middle = '{"type": "record", "name": "M", "fields": [{"name": "i", "type": "I"}]}'
    registry.add("middle", middle, references=[reference])
    outer = '{"type": "record", "name": "O", "fields": [{"name": "m", "type": "M"}, {"name": "n", "type": "I"}]}'
    number = registry.add("t-value", outer, references=[{"name": "M", "subject": "middle", "version": 1}, reference])
    async with opened(registry) as client:
        made = client.avro(registration="latest")
        value = {"m": {"i": {"a": 1}}, "n": {"a": 2}}
        data = await write(made, value)
        assert data == b"\0" + number.to_bytes(4, "big") + b"\x02\x04"
        assert await read(made, data) == value
        assert registry.asked.count("GET /subjects/inner/versions/1") == 1
        registry.add("j", '{"type": "integer"}', "JSON")
        refers = [{"name": "number.json", "subject": "j", "version": 1}]
        registry.add("t-key", '{"properties": {"n": {"$ref": "number.json"}}}', "JSON", refers)
        checked = client.json_schema(registration="latest")
        assert await read(checked, await write(checked, {"n": 1}, context("key"))) == {"n": 1}
        with pytest.raises(Exception, match="'x' is not of type 'integer'"):
            await write(checked, {"n": "x"}, context("key"))


EVENT = {"id": 1, "kind": "new", "cause": {"id": 0, "kind": "old", "cause": None}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (["t.Kind", "t.Event"], EVENT),
        (["null", "t.Event", "t.Kind"], "old"),
        ({"type": "array", "items": "t.Event"}, [EVENT, EVENT]),
        ({"type": "map", "values": ["null", "t.Event"]}, {"a": EVENT, "b": None, "c": EVENT}),
        ("t.Event", EVENT),
    ],
)
async def test_unions_and_lists_of_types_have_what_they_refer_to(
    registry: FakeRegistry, schema: Any, value: Any
) -> None:
    kind = {"type": "enum", "name": "t.Kind", "symbols": ["old", "new"]}
    fields = [("id", "int"), ("kind", "Kind"), ("cause", ["null", "Event"])]
    event = {"type": "record", "name": "t.Event", "fields": [{"name": name, "type": each} for name, each in fields]}
    registry.add("kind", json.dumps(kind))
    of_kind = {"name": "t.Kind", "subject": "kind", "version": 1}
    registry.add("event", json.dumps(event), references=[of_kind])
    of_event = {"name": "t.Event", "subject": "event", "version": 1}
    registry.add("t-value", json.dumps(schema), references=[of_kind, of_event])
    async with opened(registry) as client:
        data = await write(client.avro(registration="latest"), value)
        assert await read(client.avro(), data) == value


async def test_of_two_versions_that_a_schema_refers_to_by_one_name_the_first_counts(registry: FakeRegistry) -> None:
    """As for registries, and for the writers of Java."""
    inner = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}
    registry.add("inner", json.dumps(inner))
    more = {"name": "b", "type": "int", "default": 0}
    registry.add("inner", json.dumps({**inner, "fields": [{"name": "a", "type": "int"}, more]}))
    first, second = ({"name": "I", "subject": "inner", "version": version} for version in (1, 2))
    registry.add("middle", '{"type": "record", "name": "M", "fields": [{"name": "i", "type": "I"}]}', "AVRO", [second])
    outer = '{"type": "record", "name": "O", "fields": [{"name": "n", "type": "I"}, {"name": "m", "type": "M"}]}'
    middle = {"name": "M", "subject": "middle", "version": 1}
    registry.add("t-value", outer, references=[first, middle])
    async with opened(registry) as client:
        value = {"n": {"a": 1}, "m": {"i": {"a": 2}}}
        assert await read(client.avro(), await write(client.avro(registration="latest"), value)) == value


async def test_a_schema_is_known_by_each_name_that_others_have_for_it(registry: FakeRegistry) -> None:
    registry.add("number", '{"type": "integer"}', "JSON")
    names = [{"name": name, "subject": "number", "version": 1} for name in ("number.json", "common/number.json")]
    registry.add("pair", '{"properties": {"n": {"$ref": "common/number.json"}}}', "JSON", names[1:])
    schema = {"properties": {"n": {"$ref": "number.json"}, "p": {"$ref": "pair.json"}}}
    pair = {"name": "pair.json", "subject": "pair", "version": 1}
    registry.add("t-value", json.dumps(schema), "JSON", [names[0], pair])
    async with opened(registry) as client:
        checked, value = client.json_schema(registration="latest"), {"n": 1, "p": {"n": 2}}
        assert await read(checked, await write(checked, value)) == value
        with pytest.raises(Exception, match="'x' is not of type 'integer'"):
            await write(checked, {"n": 1, "p": {"n": "x"}})


@pytest.mark.parametrize(("id_key", "draft"), [("$id", "07"), ("id", "04")])
async def test_names_of_other_schemas_are_relative_to_the_id_of_the_one_that_has_them(
    registry: FakeRegistry, id_key: str, draft: str
) -> None:
    """As for registries, and for the writers of Java."""
    registry.add("number", '{"type": "integer"}', "JSON")
    schema = {
        "$schema": f"http://json-schema.org/draft-{draft}/schema#",
        id_key: "https://example.com/orders/pair.json",
        "properties": {"n": {"$ref": "number.json"}},
    }
    number = {"name": "number.json", "subject": "number", "version": 1}
    registry.add("t-value", json.dumps(schema), "JSON", [number])
    async with opened(registry) as client:
        checked = client.json_schema(registration="latest")
        assert await read(client.json_schema(), await write(checked, {"n": 1})) == {"n": 1}
        with pytest.raises(Exception, match="'x' is not of type 'integer'"):
            await write(checked, {"n": "x"})


async def test_prices_are_multiples_of_a_hundredth(registry: FakeRegistry) -> None:
    """As for the writers of Java: as floats, 19.99 / 0.01 is no whole number."""
    schema = '{"properties": {"price": {"type": "number", "multipleOf": 0.01}}}'
    async with opened(registry) as client:
        checked = client.json_schema(schema)
        for price in (19.99, 0.07, 1e300, 5, -4.35):
            assert await read(checked, await write(checked, {"price": price})) == {"price": price}
        for price in (19.995, 1e-9, math.inf):
            with pytest.raises(Exception, match=r"\$\.price: .* is not a multiple of 0\.01"):
                await write(checked, {"price": price})


async def test_a_json_schema_that_does_not_say_its_draft_is_of_draft_7(registry: FakeRegistry) -> None:
    async with opened(registry) as client:
        checked = client.json_schema('{"items": [{"type": "integer"}, {"type": "string"}]}')
        assert await read(checked, await write(checked, [1, "a"])) == [1, "a"]
        with pytest.raises(Exception, match="'b' is not of type 'integer'"):
            await write(checked, ["b", "a"])


async def test_a_reference_to_nothing_is_an_error_of_the_registry(registry: FakeRegistry) -> None:
    registry.add("t-value", OLD, references=[{"name": "I", "subject": "inner", "version": 3}])
    async with opened(registry) as client:
        with pytest.raises(RegistryError, match="no version 3 of inner, which a schema needs") as failed:
            await read(client.avro(), b"\0\0\0\0\1\2")
        assert (failed.value.schema, failed.value.retriable) == (1, False)


# ---- what is wrong --------------------------------------------------------------------------------------------------

WRONG = [
    (b"", None, "not Confluent's wire format: 0 bytes instead"),
    (b"\0\0\0\1", None, "not Confluent's wire format: 4 bytes instead"),
    (b'{"id": 1}', None, "not Confluent's wire format: the byte 123 instead"),
    (b"\1" + bytes(15), None, "not Confluent's wire format: the byte 1 instead"),
    (b"\0\0\0\0\7\2", 7, "the registry has no schema 7"),
    (b"\1" + bytes(16), "00000000-0000-0000-0000-000000000000", "the registry has no schema 0000"),
    (b"\0\0\0\0\1", 1, "EOFError"),
    (b"\0\0\0\0\1\2\2", 1, "ValueError: 1 bytes follow the end of the record"),
    (b"\0\0\0\0\2\2", 2, "schema 2 is of type JSON, not AVRO"),
    (b"\0\0\0\0\3\2", 3, "schema 3 cannot be used: ConfigError: not an Avro schema"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "schema", "why"), WRONG)
async def test_a_value_that_cannot_be_read_says_why(
    registry: FakeRegistry, data: bytes, schema: object, why: str
) -> None:
    registry.add("a", OLD)
    registry.add("b", JSON, "JSON")
    registry.add("c", '{"type": "recordx"}')
    cluster = MemoryCluster(topics={"t": 1})
    cluster.append("t", [data, b"\0\0\0\0\1\2"], partition=0)
    async with (
        opened(registry) as client,
        cluster.connect() as k,
        k.reader("t", until=od.LATEST, value_deserializer=client.avro()) as r,
    ):
        with pytest.raises(DeserializationError) as failed:
            await anext(r)
        error = failed.value
        assert (error.record.value, error.schema, error.retriable) == (data, schema, False)
        assert isinstance(error.__cause__, PayloadError) and error.why.startswith(why)
        assert (await anext(r)).value == {"id": 1}


async def test_a_message_of_another_type_is_refused(registry: FakeRegistry) -> None:
    async with opened(registry) as client:
        data = await write(client.protobuf(Inner), make_inner())
        with pytest.raises(PayloadError, match="it is a message of another type, or damaged") as failed:
            await read(client.protobuf(Order), data)
        assert failed.value.schema == 2
        with pytest.raises(PayloadError, match="DecodeError"):
            await read(client.protobuf(Order), b"\0\0\0\0\2\0\xff")
        wrong: Any = int
        with pytest.raises(TypeError, match="message must be a class of Protobuf messages"):
            client.protobuf(wrong)


@pytest.mark.parametrize(
    ("kind", "value", "cause"),
    [
        ("avro", {"id": "x"}, "TypeError"),
        ("json", {"id": "x"}, "ValueError: $.id: 'x' is not of type 'integer'"),
        ("order", make_inner(), "TypeError"),
    ],
)
async def test_a_value_that_its_schema_refuses_is_not_sent(
    registry: FakeRegistry, kind: str, value: Any, cause: str
) -> None:
    async with (
        opened(registry) as client,
        MemoryCluster(topics={"t": 1}).connect() as k,
        k.producer(value_serializer=serde(client, kind)) as out,
    ):
        with pytest.raises(SerializationError) as failed:
            await out.send("t", value)
        assert cause in failed.value.why and not failed.value.retriable


@pytest.mark.parametrize("text", ["{", '{"type": "recordx"}', '{"type": 7}'])
async def test_what_is_no_schema_is_refused_at_once(registry: FakeRegistry, text: str) -> None:
    async with opened(registry) as client:
        for make in (client.avro, client.json_schema):
            with pytest.raises(ConfigError, match=r"not an? (Avro|JSON) ?[sS]chema"):
                make(text)


def with_a_type_in_front() -> str:
    """Return the file of the messages as another program has it: with one more type, which the first index names."""
    file = descriptor_pb2.FileDescriptorProto.FromString(Order.DESCRIPTOR.file.serialized_pb)
    newer = descriptor_pb2.FileDescriptorProto(name=file.name, package=file.package, syntax=file.syntax)
    newer.message_type.add(name="New")
    newer.message_type.extend(file.message_type)
    return b64encode(newer.SerializeToString()).decode()


async def test_messages_are_known_by_their_name_in_the_file_of_the_writer(registry: FakeRegistry) -> None:
    registry.add("t-value", with_a_type_in_front(), "PROTOBUF")
    order = make_order()
    async with opened(registry) as client:
        reader = client.protobuf(Order)
        assert await read(reader, b"\0\0\0\0\1\2\2" + order.SerializeToString()) == order
        with pytest.raises(PayloadError, match="another type"):
            await read(reader, b"\0\0\0\0\1\0")  # a New
        assert (
            await read(client.protobuf(Inner), b"\0\0\0\0\1\4\4\2" + make_inner().SerializeToString()) == make_inner()
        )
        written = await write(client.protobuf(Order, registration="latest"), order)
        assert written == b"\0\0\0\0\1\2\2" + order.SerializeToString()


@pytest.mark.parametrize("status", [200, 422])
async def test_a_registry_without_descriptors_leaves_the_file_of_the_reader(
    registry: FakeRegistry, status: int
) -> None:
    source = {"schema": 'syntax = "proto3"; package shop;', "schemaType": "PROTOBUF"}
    registry.add("t-value", source["schema"], "PROTOBUF")
    answer = source if status == 200 else {"error_code": 42207, "message": "Invalid format"}
    registry.faults = [(200, json.dumps(source).encode()), (status, json.dumps(answer).encode())]
    async with opened(registry) as client:
        assert await read(client.protobuf(Order), b"\0\0\0\0\1\0" + make_order().SerializeToString()) == make_order()


@pytest.mark.parametrize("status", [503, 401, 404, 302, 200])  # the last ones are those of a proxy
async def test_a_registry_that_is_away_or_refuses_the_credentials_keeps_its_records(
    registry: FakeRegistry, status: int
) -> None:
    registry.add("a", OLD)
    cluster = MemoryCluster(topics={"t": 1})
    cluster.append("t", [b"\0\0\0\0\1\2"], partition=0)
    async with opened(registry, timeout=0.5) as client, cluster.connect() as k:
        async with k.consumer("t", group="g", value_deserializer=client.avro()) as c:
            registry.faults = [(status, b"") for _ in range(100)]
            for _ in range(2):
                with pytest.raises(DeserializationError) as failed:
                    await anext(c)
                assert failed.value.retriable and failed.value.schema == 1
                assert isinstance(failed.value.__cause__, RegistryError)
            registry.faults = []
            assert (await anext(c)).value == {"id": 1}
        async with k.producer(value_serializer=client.avro(NEW)) as out:
            registry.faults = [(status, b"") for _ in range(100)]
            with pytest.raises(SerializationError) as lost:
                await out.send("t", {"id": 1, "score": 0.0})
            assert lost.value.retriable
            registry.faults = []
            await out.send("t", {"id": 1, "score": 0.0})


async def test_many_tasks_that_need_a_schema_ask_once(registry: FakeRegistry) -> None:
    registry.add("a", OLD)
    async with opened(registry) as client:
        made = client.avro()
        registry.gate.clear()
        values: list[Any] = []

        async def one() -> None:
            values.append(await read(made, b"\0\0\0\0\1\2"))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(one)
            while not registry.asked:
                await anyio.lowlevel.checkpoint()
            registry.gate.set()
        assert values == [{"id": 1}] * 50 and registry.asked == ["GET /schemas/ids/1"]
