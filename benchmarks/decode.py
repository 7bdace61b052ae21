"""Cost of decoding records of the pipeline: JSON, Avro, Confluent's wire format and protobuf to columns.

    python benchmarks/decode.py [--quick]

`flat` is a record of five fields and about 100 bytes, `nested` one of about 350 bytes with structs, a list of structs,
a list of strings and a time. In `1 % damaged` every hundredth record is cut off, in `1 % of a wrong type` it has a time
that is none: each of them becomes a dead letter. `with a map` adds a map, which Arrow's reader does not have.

Each case decodes a batch of the data source, dead letters included. The limit of JSON is Arrow's own reader, on the
records joined to lines before; it checks less, and cannot go on after a wrong record. Another table compares with
Python's json, which only makes dicts. The limit of Avro and of protobuf is the library's reader of single records,
which only makes dicts or messages; that of the Confluent format is Avro without it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.json
from google.protobuf import descriptor_pb2

from _common import Case, Stopwatch, compare
from _results import results
from odradek.pipeline.decode import Decoder, Decoding, parse_ddl
from odradek.pipeline.decode.confluent import ConfluentDecoder, RegisteredSchema, Registry
from odradek.pipeline.decode.protobuf import ProtobufDecoder

ARROW_GOAL, JSON_GOAL, DAMAGED_GOAL, LIBRARY_GOAL, CONFLUENT_GOAL = 0.7, 1.5, 0.8, 0.35, 0.8
FLOOR = 0.05

FLAT = "id bigint, user string, amount double, at timestamp, ok boolean"
NESTED = (
    "id bigint, user struct<name: string, mail: string, age: int>, "
    "items array<struct<sku: string, n: int, price: double>>, tags array<string>, at timestamp, "
    "geo struct<lat: double, lon: double>"
)

Work = Callable[[], object]


def flat(number: int, chance: Random) -> dict[str, Any]:
    return {
        "id": number, "user": f"user-{chance.randrange(10**6):06}", "amount": chance.randrange(10**5) / 100,
        "at": f"2026-11-22T10:{number // 60 % 60:02}:{number % 60:02}Z", "ok": number % 3 == 0,
    }  # fmt: skip


def nested(number: int, _chance: Random) -> dict[str, Any]:
    return {
        "id": number, "user": {"name": f"n{number}", "mail": f"u{number}@example.org", "age": number % 90},
        "items": [{"sku": f"s{each * 7}", "n": each, "price": each * 1.25} for each in range(4)],
        "tags": ["a", "b", "longer tag"], "at": "2026-11-22T10:00:00Z", "geo": {"lat": 52.1234, "lon": 13.4321},
    }  # fmt: skip


def watch(work: Work) -> Callable[[], Stopwatch]:
    def run() -> Stopwatch:
        with Stopwatch() as stopwatch:
            work()
        return stopwatch

    return run


def batch(values: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(range(len(values)))], ["value", "offset"]
    )


def decoding(decoder: Decoder, values: list[bytes], dead: int = 0) -> Work:
    records = batch(values)

    def work() -> None:
        decoded = decoder.decode(records)
        assert (decoded.rows.num_rows, decoded.dead.num_rows) == (len(values) - dead, dead)

    return work


def case(name: str, values: list[bytes], work: Work, limit: Work, goal: float) -> Case:
    return Case(name, len(values), sum(map(len, values)), watch(work), watch(limit), FLOOR, goal)


# ---- JSON ----------------------------------------------------------------------------------------------------


def arrow_reader(values: list[bytes], ddl: str) -> Work:
    lines = b"\n".join(values)
    parse: Any = pyarrow.json.ParseOptions(explicit_schema=parse_ddl(ddl), unexpected_field_behavior="ignore")
    read: Any = pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 20)

    def work() -> None:
        source: Any = pa.BufferReader(lines)
        assert pyarrow.json.read_json(source, read_options=read, parse_options=parse).num_rows == len(values)

    return work


def python_reader(values: list[bytes]) -> Work:
    def work() -> None:
        for value in values:
            json.loads(value)

    return work


def json_values(make: Callable[[int, Random], dict[str, Any]], count: int) -> list[bytes]:
    chance = Random(7)
    return [json.dumps(make(number, chance)).encode() for number in range(count)]


def json_decoder(ddl: str) -> Decoder:
    return Decoding("json", parse_ddl(ddl)).decoder()


def arrow_cases(count: int) -> Iterator[Case]:
    for name, make, ddl in (("flat", flat, FLAT), ("nested", nested, NESTED)):
        values = json_values(make, count)
        yield case(name, values, decoding(json_decoder(ddl), values), arrow_reader(values, ddl), ARROW_GOAL)


def python_cases(count: int) -> Iterator[Case]:
    for name, make, ddl in (("flat", flat, FLAT), ("nested", nested, NESTED)):
        values = json_values(make, count)
        limit = python_reader(values)
        yield case(name, values, decoding(json_decoder(ddl), values), limit, JSON_GOAL)
        cut = [value if number % 100 else value[:-3] for number, value in enumerate(values)]
        dead = len(range(0, count, 100))
        yield case(f"{name}, 1 % damaged", cut, decoding(json_decoder(ddl), cut, dead), limit, DAMAGED_GOAL)
        wrong = [value if number % 100 else value.replace(b"2026", b"x") for number, value in enumerate(values)]
        work = decoding(json_decoder(ddl), wrong, dead)
        yield case(f"{name}, 1 % of a wrong type", wrong, work, limit, DAMAGED_GOAL)
    values = [value[:-1] + b', "map": {"a": 1, "b": 2}}' for value in json_values(flat, count)]
    work = decoding(json_decoder(f"{FLAT}, map map<string, int>"), values)
    yield case("flat, with a map", values, work, python_reader(values), 0.3)


# ---- the others ----------------------------------------------------------------------------------------------


def avro_schema() -> str:
    types: dict[str, Any] = {
        "id": "long", "user": "string", "amount": "double",
        "at": {"type": "long", "logicalType": "timestamp-micros"}, "ok": "boolean",
    }  # fmt: skip
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return json.dumps({"type": "record", "name": "Flat", "fields": fields})


def avro_values(schema: str, count: int) -> list[bytes]:
    chance, parsed = Random(7), fastavro.parse_schema(json.loads(schema))
    values = []
    for number in range(count):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, {**flat(number, chance), "at": number * 1_000_000})
        values.append(out.getvalue())
    return values


def avro_reader(schema: str, values: list[bytes]) -> Work:
    parsed = fastavro.parse_schema(json.loads(schema))

    def work() -> None:
        for value in values:
            fastavro.schemaless_reader(io.BytesIO(value), parsed, None)

    return work


class OneSchema(Registry):
    """A registry that has one schema for all ids."""

    def __init__(self, text: str) -> None:
        self._answer = RegisteredSchema("AVRO", text)

    def schema(self, number: int, *, serialized: bool = False) -> RegisteredSchema | None:
        return self._answer


def descriptors() -> bytes:
    kinds = {"id": "INT64", "user": "STRING", "amount": "DOUBLE", "at": "INT64", "ok": "BOOL"}
    message = descriptor_pb2.DescriptorProto(name="Flat")
    for number, (name, kind) in enumerate(kinds.items(), 1):
        message.field.add(name=name, number=number, type=f"TYPE_{kind}", label="LABEL_OPTIONAL")
    file = descriptor_pb2.FileDescriptorProto(name="flat.proto", syntax="proto3", message_type=[message])
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def protobuf_case(count: int) -> Case:
    chance, files = Random(7), descriptors()
    parse = ProtobufDecoder(files, "Flat").parse
    values = []
    for number in range(count):
        message = parse(b"")
        for name, value in {**flat(number, chance), "at": number}.items():
            setattr(message, name, value)
        values.append(message.SerializeToString())

    def limit() -> None:
        for value in values:
            parse(value)

    work = decoding(Decoding("protobuf", descriptors=files, message="Flat").decoder(), values)
    return case("protobuf", values, work, limit, 0.1)


def other_cases(count: int) -> Iterator[Case]:
    schema = avro_schema()
    values = avro_values(schema, count)
    plain = decoding(Decoding("avro", schema=schema).decoder(), values)
    yield case("avro", values, plain, avro_reader(schema, values), LIBRARY_GOAL)
    framed = [b"\0\0\0\0\x07" + value for value in values]
    made = Decoder(ConfluentDecoder(Decoding("confluent", schema=schema), OneSchema(schema)))
    yield case("confluent, avro", framed, decoding(made, framed), plain, CONFLUENT_GOAL)
    yield protobuf_case(count)


def main() -> None:
    with results(__file__, __doc__) as report:
        count, rounds = (2000, 3) if report.quick else (50_000, 15)
        limit = "Limit: Arrow's JSON reader on the same records, joined before."
        compare(report, "JSON, against Arrow", limit, list(arrow_cases(count)), rounds, computing=True)
        limit = "Limit: Python's json, to dicts."
        compare(report, "JSON, against Python", limit, list(python_cases(count)), rounds, computing=True)
        limit = "Limit: the library's reader, to objects; of the Confluent format, Avro without it."
        compare(report, "Avro and protobuf", limit, list(other_cases(count)), rounds, computing=True)


if __name__ == "__main__":
    main()
