"""Confluent's wire format: ids, schemas that change, and a registry that does not answer."""

from __future__ import annotations

import io
import json
import pickle
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError as AnswerError
from google.protobuf import descriptor_pb2

from odradek.errors import ConfigError
from odradek.pipeline.decode import Decoder, Decoding, parse_ddl
from odradek.pipeline.decode.confluent import (
    MAX_IDS,
    ConfluentDecoder,
    Registry,
    connect_registry,
)
from odradek.pipeline.errors import SchemaRegistryError

from .records import batch, outcomes
from .test_protobuf import DESCRIPTORS, EMPTY, FILES, ORDER


def record_of(name: str = "R", **types: Any) -> str:
    fields = [{"name": each, **(kind if "default" in kind else {"type": kind})} for each, kind in types.items()]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def schema_of(text: str, kind: str = "AVRO", references: Mapping[str, int] | None = None) -> Any:
    named = [SimpleNamespace(name=name, subject=name, version=version) for name, version in (references or {}).items()]
    return SimpleNamespace(schema_str=text, schema_type=kind, references=named)


class MemoryRegistry:
    """A registry in memory that counts what it is asked for."""

    def __init__(self, schemas: Mapping[int, Any], subjects: Mapping[tuple[str, Any], Any] | None = None) -> None:
        self.schemas, self.subjects = schemas, subjects or {}
        self.asked: Counter[Any] = Counter()
        self.fails: Exception | None = None
        self.refuses_forms: int | None = None

    def get_schema(self, schema_id: int, *, fmt: str | None = None) -> Any:
        if fmt is not None and self.refuses_forms is not None:
            raise AnswerError(self.refuses_forms, -1, f"unknown format {fmt}")
        return self._answer(self.schemas, schema_id)

    def get_version(self, subject_name: str, version: Any) -> Any:
        return SimpleNamespace(schema=self._answer(self.subjects, (subject_name, version)))

    def _answer(self, known: Mapping[Any, Any], key: Any) -> Any:
        self.asked[key] += 1
        if self.fails is not None:
            raise self.fails
        if key not in known:
            raise AnswerError(404, 40403, "Schema not found")
        return known[key]


def decoder(client: MemoryRegistry, **options: Any) -> Decoder:
    return Decoder(ConfluentDecoder(Decoding("confluent", **options), Registry(client, "memory")))


def framed(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def written(text: str, record: Mapping[str, Any], references: tuple[str, ...] = ()) -> bytes:
    known: dict[str, Any] = {}
    for each in references:
        fastavro.parse_schema(json.loads(each), named_schemas=known)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(text), named_schemas=known), record)
    return out.getvalue()


NEW = record_of(id="long", user={"type": ["null", "string"], "default": None}, score={"type": "double", "default": 0.5})
OLD = record_of(id="int", gone="string", user=["null", "string"])


def test_records_of_several_schemas_come_in_order_in_the_columns_of_the_readers() -> None:
    client = MemoryRegistry({1: schema_of(OLD), 2: schema_of(NEW)})
    values = [
        framed(2, written(NEW, {"id": 1, "user": "a", "score": 1.5})),
        framed(1, written(OLD, {"id": 2, "gone": "x", "user": None})),
        framed(2, written(NEW, {"id": 3, "user": None, "score": 2.0})),
        framed(1, written(OLD, {"id": 4, "gone": "", "user": "b"})),
    ]
    made = decoder(client, schema=NEW)
    expected = [
        {"id": 1, "user": "a", "score": 1.5}, {"id": 2, "user": None, "score": 0.5},
        {"id": 3, "user": None, "score": 2.0}, {"id": 4, "user": "b", "score": 0.5},
    ]  # fmt: skip
    for _ in range(3):
        assert outcomes(made, values) == expected
    assert client.asked == {1: 1, 2: 1}


DEAD: list[tuple[bytes | None, tuple[Any, ...]]] = [
    (None, ("tombstone", None, None, None)), (b"", ("empty", None, None, None)), (b"\0", ("framing", None, None, 0)),
    (b"\0\0\0\0", ("framing", None, None, 0)), (b'{"id": 1}', ("framing", None, None, 0)),
    (framed(9, b"\x02"), ("schema", None, None, 1)), (framed(3, b"\x02"), ("schema", None, None, 1)),
    (framed(4, b"\x02"), ("schema", None, None, 1)), (framed(5, b"\x02"), ("schema", None, None, 1)),
    (framed(2, b""), ("empty", None, None, None)), (framed(2, b"\x02\x02"), ("syntax", "user", "string", 7)),
    (framed(1, b"\x02\x02\xff\0"), ("unicode", "gone", "string", 7)),
    (framed(1, b"\x02\0\0\0"), ("trailing", None, None, 8)),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), DEAD)
def test_a_dead_letter_has_its_position_in_the_value(value: bytes | None, expected: tuple[Any, ...]) -> None:
    client = MemoryRegistry({
        1: schema_of(OLD), 2: schema_of(NEW), 3: schema_of("{}", "JSON"), 4: schema_of('"long"'),
        5: schema_of(record_of(id="string")),
    })  # fmt: skip
    good = framed(2, written(NEW, {"id": 1, "user": None, "score": 1.0}))
    got = outcomes(decoder(client, schema=NEW), [good, value, good])
    assert got[1] == expected or (value == framed(5, b"\x02") and got[1][0] in ("syntax", "schema"))
    assert got[0] == got[2] == {"id": 1, "user": None, "score": 1.0}


A_RECORD = {"x": 7}
A, B = ({"type": "record", "name": name, "fields": [{"name": "x", "type": "int"}]} for name in "AB")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (["int", "string", "null"], "x"),
        (["null", A, B], ("B", {"x": 1})),
        (["null", "R"], {"id": 2, "new": None, "last": A_RECORD}),
        ({"type": "array", "items": ["int", "string"]}, [1, "x"]),
    ],
)
def test_a_field_that_the_reader_does_not_have_may_be_of_any_type(kind: Any, value: Any) -> None:
    """`last` is of a type that may have been defined in the field which is left out."""
    writer = record_of(id="long", new=kind, last="A" if "B" in str(kind) else A)
    made = decoder(MemoryRegistry({1: schema_of(writer)}), schema=record_of(id="long"))
    good = written(writer, {"id": 1, "new": value, "last": A_RECORD})
    empty = [("empty", None, None, None)]
    assert outcomes(made, [framed(1, good), framed(1, good[:-1]), framed(1, good + b"x")]) == [
        {"id": 1}, ("schema", "new", None, 6), ("schema", "new", None, 6)
    ]  # fmt: skip
    assert outcomes(made, [framed(1, b"")]) == empty
    wanting = decoder(MemoryRegistry({1: schema_of(writer)}), schema=record_of(id="long", new="string"))
    assert [each[0] for each in outcomes(wanting, [framed(1, good)])] == ["schema"]


def test_units_of_time_are_not_mistaken_for_others() -> None:
    milliseconds = record_of(at={"type": "long", "logicalType": "timestamp-millis"})
    microseconds = record_of(at={"type": "long", "logicalType": "timestamp-micros"})
    made = decoder(MemoryRegistry({1: schema_of(milliseconds)}), schema=microseconds)
    rows, dead = made.decode(batch([framed(1, b"\x02")]))
    assert rows.num_rows == 0
    assert dead["message"].to_pylist() == [
        "schema 1: at is timestamp[us, tz=UTC] of timestamp[ms, tz=UTC], "
        "and timestamp[us, tz=UTC] of timestamp[us, tz=UTC] in the table's schema"
    ]


def test_numbers_become_wider_as_avro_says() -> None:
    writer, reader = record_of(a="long", b="int", c="float"), record_of(a="double", b="long", c="double")
    value = framed(1, written(writer, {"a": 2**53 + 1, "b": -1, "c": 0.5}))
    got = outcomes(decoder(MemoryRegistry({1: schema_of(writer)}), schema=reader), [value])
    assert got == [{"a": float(2**53), "b": -1, "c": 0.5}]


def test_decimals_of_another_scale_are_not_mistaken() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    made = decoder(MemoryRegistry({1: schema_of(record_of(x=kind))}), schema=record_of(x={**kind, "scale": 3}))
    assert outcomes(made, [framed(1, b"\x02\x01")]) == [("schema", None, None, 1)]


def test_values_that_the_readers_schema_does_not_have_are_dead() -> None:
    symbols = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    writer, reader = record_of(e=symbols), record_of(e={**symbols, "symbols": ["A"]})
    got = outcomes(
        decoder(MemoryRegistry({1: schema_of(writer)}), schema=reader), [framed(1, b"\0"), framed(1, b"\x02")]
    )
    assert got == [{"e": "A"}, ("schema", None, None, None)]


def test_blocks_with_sizes_are_resolved() -> None:
    """Another way to write an array, which fastavro does not write itself."""
    writer = record_of(x={"type": "array", "items": "int"})
    reader = record_of(x={"type": "array", "items": "long"}, y={"type": "int", "default": 7})
    got = outcomes(decoder(MemoryRegistry({1: schema_of(writer)}), schema=reader), [framed(1, b"\x03\x04\x02\x04\0")])
    assert got == [{"x": [1, 2], "y": 7}]


def test_schemas_are_put_together_from_their_references() -> None:
    inner, middle = record_of("I", a="int"), record_of("M", i="I")
    writer = record_of(m="M", n="I")
    client = MemoryRegistry(
        {1: schema_of(writer, references={"middle": 2, "inner": 1})},
        {("inner", 1): schema_of(inner), ("middle", 2): schema_of(middle, references={"inner": 1})},
    )
    reader = record_of(m=json.loads(record_of("M", i=json.loads(inner))), n="I")
    value = written(writer, {"m": {"i": {"a": 1}}, "n": {"a": 2}}, (inner, middle))
    assert outcomes(decoder(client, schema=reader), [framed(1, value)]) == [{"m": {"i": {"a": 1}}, "n": {"a": 2}}]
    assert client.asked == {1: 1, ("inner", 1): 1, ("middle", 2): 1}


def test_an_unknown_id_is_asked_for_once_and_few_are_remembered() -> None:
    client = MemoryRegistry({})
    made = decoder(client, schema=NEW)
    for _ in range(2):
        assert {each[0] for each in outcomes(made, [framed(7, b""), framed(8, b"")] * 50)} == {"schema"}
    assert client.asked == {7: 1, 8: 1}
    many = [framed(number, b"") for number in range(MAX_IDS + 10)]
    assert made.decode(batch(many)).dead.num_rows == len(many)
    assert made._values._decoder_of.cache_info().currsize <= MAX_IDS  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error",
    [
        AnswerError(500, 50001, "store down"),
        AnswerError(401, 401, "who?"),
        TimeoutError("slow"),
        OSError("no route"),
        AnswerError(404, -1, "Unknown Schema Registry Error: b'no such page'"),
        AnswerError(404, 404, "HTTP 404"),
    ],
)
def test_a_registry_that_does_not_answer_stops_the_batch(error: Exception) -> None:
    client = MemoryRegistry({1: schema_of(NEW)})
    client.fails = error
    made = decoder(client, schema=NEW)
    values = [framed(1, written(NEW, {"id": 1, "user": None, "score": 1.0}))]
    with pytest.raises(SchemaRegistryError) as caught:
        made.decode(batch(values))
    assert str(error) in caught.value.message()
    assert caught.value.retriable
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    client.fails = None
    assert outcomes(made, values) == [{"id": 1, "user": None, "score": 1.0}]


def test_json_payloads() -> None:
    client = MemoryRegistry({1: schema_of("{}", "JSON"), 2: schema_of(NEW)})
    got = outcomes(
        decoder(client, fields=parse_ddl("id int")),
        [framed(1, b'{"id": 1}'), framed(1, b'{"id": x}'), framed(2, b"{}")],
    )
    assert got == [{"id": 1}, ("syntax", None, None, 12), ("schema", None, None, 1)]


def test_protobuf_payloads_begin_with_the_index_of_their_message() -> None:
    client = MemoryRegistry({1: schema_of('syntax = "proto3";', "PROTOBUF")})
    value = ORDER(a_int32=7).SerializeToString()
    values = [framed(1, prefix + value) for prefix in (b"\0", b"\x02\0", b"\x02\x02", b"")] + [framed(1, b"\0\xff")]
    got = outcomes(decoder(client, descriptors=DESCRIPTORS, message="shop.Order"), values)
    assert got[:2] == [{**EMPTY, "a_int32": 7}] * 2
    assert got[2:] == [("schema", None, None, 5), ("schema", None, None, 5), ("syntax", None, None, None)]


def test_protobuf_messages_are_known_by_their_name_in_the_file_of_the_writer() -> None:
    (own,) = (file for file in FILES if any(each.name == "Order" for each in file.message_type))
    newer = descriptor_pb2.FileDescriptorProto(name=own.name, package=own.package)
    newer.message_type.add(name="New")
    newer.message_type.extend(own.message_type)
    texts = [b64encode(file.SerializeToString()).decode() for file in (own, newer)]
    client = MemoryRegistry({n: schema_of(text, "PROTOBUF") for n, text in enumerate(texts, 1)})
    value = ORDER(a_int32=7).SerializeToString()
    position = next(n for n, each in enumerate(newer.message_type) if each.name == "Order")
    values = [framed(1, b"\0" + value), framed(2, bytes([2, 2 * position]) + value), framed(2, b"\0" + value)]
    got = outcomes(decoder(client, descriptors=DESCRIPTORS, message="shop.Order"), values)
    assert got == [{**EMPTY, "a_int32": 7}, {**EMPTY, "a_int32": 7}, ("schema", None, None, 5)]


@pytest.mark.parametrize("status", [422, 503])
def test_a_registry_without_descriptors_leaves_the_file_of_the_table(status: int) -> None:
    client = MemoryRegistry({1: schema_of('syntax = "proto3";', "PROTOBUF")})
    client.refuses_forms = status
    made = decoder(client, descriptors=DESCRIPTORS, message="shop.Order")
    values = [framed(1, b"\0" + ORDER(a_int32=7).SerializeToString())]
    if status == 503:
        with pytest.raises(SchemaRegistryError, match="unknown format serialized"):
            outcomes(made, values)
    else:
        assert outcomes(made, values) == [{**EMPTY, "a_int32": 7}]


def test_a_payload_needs_fields_of_some_kind() -> None:
    with pytest.raises(ConfigError, match="kind confluent needs schema"):
        Decoding("confluent", registry={"url": "http://localhost"}).decoder()


def test_the_newest_schema_of_all_topics_makes_the_columns() -> None:
    inner = record_of("I", a="int")
    writer = schema_of(record_of(i="I"), references={"inner": 1})
    subjects = {("t-value", "latest"): writer, ("u-value", "latest"): writer, ("inner", 1): schema_of(inner)}
    newest = Registry(MemoryRegistry({}, subjects), "memory").newest(["t", "u"])
    client = MemoryRegistry({1: writer}, subjects)
    made = decoder(client, schema=newest.text, references=newest.references)
    assert outcomes(made, [framed(1, b"\x02")]) == [{"i": {"a": 1}}]


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (["a", "b"], "the topics have 2 schemas; give that of the table in schema_file"),
        ([], "the topics have no schemas; give that of the table in schema_file"),
        (["gone"], "the schema registry has no subject gone-value; give the schema in schema_file"),
        (["c"], "the newest schema of c-value is of type JSON: give fields"),
        (["d"], "the newest schema of d-value is of type PROTOBUF: give descriptors and message"),
    ],
)
def test_topics_without_one_schema_need_a_file(topics: list[str], message: str) -> None:
    subjects = {
        ("a-value", "latest"): schema_of(NEW), ("b-value", "latest"): schema_of(OLD),
        ("c-value", "latest"): schema_of("{}", "JSON"), ("d-value", "latest"): schema_of("", "PROTOBUF"),
    }  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        Registry(MemoryRegistry({}, subjects), "memory").newest(topics)
    assert caught.value.message() == message


# ---- the real client -----------------------------------------------------------------------------------------


class RegistryHandler(BaseHTTPRequestHandler):
    """Answers like a schema registry with one schema, 1; 2 is not allowed, and all others are unknown."""

    def do_GET(self) -> None:
        number = int(self.path.split("?")[0].rpartition("/")[2].replace("latest", "1"))
        status, answer = {
            1: (200, {"schema": NEW, "subject": "t-value", "version": 1, "id": 1}),
            2: (403, {"error_code": 40301, "message": "not allowed"}),
        }.get(number, (404, {"error_code": 40403, "message": "Schema not found"}))
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def serving() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), RegistryHandler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_client_of_confluent_kafka_reads_schemas() -> None:
    with serving() as url:
        decoding = Decoding("confluent", schema=NEW, registry={"url": url, "max.retries": "0"})
        made = pickle.loads(pickle.dumps(decoding)).decoder()
        value = framed(1, written(NEW, {"id": 1, "user": None, "score": 1.0}))
        assert outcomes(made, [value, framed(3, b"")]) == [
            {"id": 1, "user": None, "score": 1.0}, ("schema", None, None, 1)
        ]  # fmt: skip
        with pytest.raises(SchemaRegistryError, match="not allowed"):
            made.decode(batch([framed(2, b"")]))
        without = replace(decoding, schema="")
        assert without.with_newest_schema(["t"]) == decoding
        assert decoding.with_newest_schema(["other"]) is decoding


def test_a_registry_that_is_not_there_is_named_without_its_password() -> None:
    with serving() as url:
        pass
    address = url.removeprefix("http://")
    made = Decoding(
        "confluent", schema=NEW, registry={"url": f"http://me:secret@{address}", "max.retries": "0"}
    ).decoder()
    with pytest.raises(SchemaRegistryError) as caught:
        made.decode(batch([framed(1, b"")]))
    assert address in caught.value.message()
    assert "secret" not in caught.value.message()


@pytest.mark.parametrize(
    "settings", [{}, {"url": "ftp://x"}, {"url": "http://x", "colour": "red"}, {"url": "http://x", "timeout": "soon"}]
)
def test_settings_of_the_registry_are_checked(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="schema registry: "):
        connect_registry(settings)


def test_values_of_other_arrow_types_and_slices_are_decoded() -> None:
    client = MemoryRegistry({1: schema_of(NEW)})
    values = [framed(1, written(NEW, {"id": number, "user": None, "score": 1.0})) for number in range(5)]
    records = batch(values).slice(1, 3)
    large = records.set_column(1, "value", records["value"].cast(pa.large_binary()))
    for each in (records, large):
        assert decoder(client, schema=NEW).decode(each).rows["id"].to_pylist() == [1, 2, 3]
