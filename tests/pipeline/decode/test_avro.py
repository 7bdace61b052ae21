"""Avro records: what each type takes, what makes a record dead, and what fastavro writes."""

from __future__ import annotations

import io
import json
import math
import pickle
import random
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.pipeline.decode import Decoder, Decoding
from odradek.pipeline.decode.avro import AvroDecoder, parse_avro, read_avro
from odradek.pipeline.decode.dead import UndecodableError

from .records import dead_of, outcomes


def record_of(**types: Any) -> str:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def decoder(schema: str) -> Decoder:
    return Decoding("avro", schema=schema).decoder()


def logical(kind: str, name: str, /, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def zigzag(number: int) -> bytes:
    out, rest = bytearray(), (number << 1) ^ (number >> 63)
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DECIMAL = logical("bytes", "decimal", precision=5, scale=2)
INNER = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
MS, US = 1_000, 1_000_000

VALUES: list[tuple[Any, bytes, Any]] = [
    ("boolean", b"\x01", True), ("boolean", b"\0", False), ("boolean", b"\x02", "syntax"),
    ("int", zigzag(2**31 - 1), 2**31 - 1), ("int", zigzag(-(2**31)), -(2**31)), ("int", zigzag(2**31), "range"),
    ("int", b"\x82\x00", 1), ("int", b"", "syntax"), ("int", b"\x80", "syntax"),
    ("long", zigzag(2**63 - 1), 2**63 - 1), ("long", zigzag(-(2**63)), -(2**63)),
    ("long", b"\xff" * 9 + b"\x02", "range"), ("long", b"\x80" * 10 + b"\x01", "syntax"),
    ("float", struct.pack("<f", 0.5), 0.5), ("float", b"\0\0\0", "syntax"),
    ("float", struct.pack("<f", math.inf), math.inf),
    ("double", struct.pack("<d", 1e300), 1e300), ("double", b"\0" * 7, "syntax"),
    ("bytes", b"\x04ab", b"ab"), ("bytes", b"\x04a", "syntax"), ("bytes", b"\x03ab", "syntax"),
    ("bytes", zigzag(2**62) + b"ab", "syntax"), ("string", b"\x04\xc3\xa9", "\u00e9"),
    ("string", b"\x02\xff", "unicode"),
    ("string", b"\x06\xed\xa0\x80", "unicode"), ("string", b"\x00", ""),
    (ENUM, b"\x02", "B"), (ENUM, b"\x04", "range"), (ENUM, b"\x01", "range"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
    ({"type": "fixed", "name": "F", "size": 2}, b"a", "syntax"),
    (["null", "long"], b"\0", None), (["null", "long"], b"\x02\x0e", 7), (["long", "null"], b"\x02", None),
    (["null", "long"], b"\x01\x0e", "syntax"), (["null", "long"], b"\x04\x0e", "syntax"), (["long"], b"\0\x0e", 7),
    ({"type": "array", "items": "int"}, b"\x04\x02\x04\0", [1, 2]), ({"type": "array", "items": "int"}, b"\0", []),
    ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\0", [1, 2]),  # a block with its size
    ({"type": "array", "items": "int"}, b"\x02\x02\x02\x04\0", [1, 2]),  # two blocks
    ({"type": "array", "items": "int"}, zigzag(2**62), "syntax"),
    ({"type": "array", "items": "int"}, b"\x02\x02", "syntax"),
    ({"type": "array", "items": "int"}, zigzag(-(2**63)) + b"\0", "syntax"),
    ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02b\x04\0", [("a", 1), ("b", 2)]),
    ({"type": "map", "values": "int"}, b"\x04\x02a\x02\x02a\x04\0", "duplicate"),
    ({"type": "map", "values": "int"}, b"\0", []),
    (INNER, b"\x02\x02x", {"a": 1, "b": "x"}), (["null", INNER], b"\x02\x02\x02x", {"a": 1, "b": "x"}),
    (logical("int", "date"), zigzag(20455), date(2026, 1, 2)), (logical("int", "date"), zigzag(-719162), date.min),
    (logical("int", "date"), zigzag(-719163), "range"), (logical("int", "date"), zigzag(2932897), "range"),
    (logical("int", "time-millis"), zigzag(86_399_999), time(23, 59, 59, 999_000)),
    (logical("int", "time-millis"), zigzag(86_400_000), "range"), (logical("int", "time-millis"), zigzag(-1), "range"),
    (logical("long", "time-micros"), zigzag(1), time(0, 0, 0, 1)),
    (logical("long", "time-micros"), zigzag(86_400 * US), "range"),
    (logical("long", "timestamp-millis"), zigzag(-1), datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
    (logical("long", "timestamp-millis"), zigzag(253402300800 * MS), "range"),
    (logical("long", "timestamp-millis"), zigzag(2**63 - 1), "range"),
    (logical("long", "timestamp-micros"), zigzag(253402300800 * US - 1), datetime.max.replace(tzinfo=UTC)),
    (logical("long", "timestamp-micros"), zigzag(-62135596800 * US - 1), "range"),
    (logical("long", "local-timestamp-micros"), zigzag(0), datetime(1970, 1, 1)),
    (logical("long", "local-timestamp-millis"), zigzag(0), datetime(1970, 1, 1)),
    (DECIMAL, b"\x04\x04\xd2", Decimal("12.34")), (DECIMAL, b"\x02\xff", Decimal("-0.01")),
    (DECIMAL, b"\0", Decimal("0.00")),
    (DECIMAL, b"\x06\x01\x86\xa0", "range"), (DECIMAL, zigzag(300) + b"\x7f" * 300, "range"),
    (DECIMAL, zigzag(300) + b"\0" * 299 + b"\x01", Decimal("0.01")),
    (logical("fixed", "decimal", name="D", size=2, precision=4, scale=0), b"\x04\xd2", Decimal(1234)),
    (logical("string", "uuid"), b"\x02x", "x"), (logical("long", "unknown"), b"\x02", 1), ("null", b"", None),
]  # fmt: skip

REASONS = ("range", "syntax", "unicode", "duplicate")


@pytest.mark.parametrize(("kind", "data", "expected"), VALUES)
def test_a_value_of_a_type(kind: Any, data: bytes, expected: Any) -> None:
    """A value is itself or makes its record dead; alone, and beside a record that is cut off."""
    made = decoder(record_of(n="int", x=kind))
    for values in ([b"\x02" + data], [b"", b"\x02" + data]):
        got = outcomes(made, values)[-1]
        if expected in REASONS:
            assert got[0] == expected
        else:
            assert got["x"] == expected


def test_a_record_has_no_more_bytes() -> None:
    made = decoder(record_of(id="long"))
    assert outcomes(made, [b"\x02", b"\x02\x02", b"", None]) == [
        {"id": 1}, ("trailing", None, None, 1), ("empty", None, None, None), ("tombstone", None, None, None),
    ]  # fmt: skip


def test_dead_letters_name_field_type_and_position() -> None:
    schema = record_of(id="long", items={"type": "array", "items": {**INNER}})
    value = b"\x02\x04\x02\x02x\x04\x04\xffy\0"
    letter = dead_of(decoder(schema), value)
    assert (letter["reason"], letter["field"], letter["expected"], letter["position"]) == (
        "unicode", "items[1].b", "string", 7
    )  # fmt: skip
    assert letter["message"] == "items[1].b is not UTF-8: invalid start byte"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ('"long"', "the Avro schema must be that of a record, not long"),
        ("{", "not an Avro schema"),
        (record_of(x="strng"), "not an Avro schema: "),
        (record_of(x=["int", "string"]), "a union of 2 types has no column type"),
        (record_of(x=["null", "R"]), "the Avro type R contains itself: no column has such a type"),
        (record_of(x={"type": "array", "items": "null"}), "an array of items without bytes has no column type"),
        (
            record_of(x={"type": "array", "items": {"type": "record", "name": "N", "fields": []}}),
            "an array of items without bytes has no column type",
        ),
        (record_of(), "the Avro schema has a record without fields"),
        (
            record_of(x=["null", {"type": "record", "name": "N", "fields": []}]),
            "the Avro schema has a record without fields",
        ),
        (record_of(x=logical("bytes", "decimal", precision=39)), "a decimal of 39 digits has no column type"),
    ],
)
def test_schemas_that_no_table_has_are_refused(schema: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        decoder(schema)
    assert caught.value.message().startswith(message)


def test_names_are_known_after_their_first_use_and_from_references() -> None:
    schema = record_of(x=INNER, y=["null", "I"])
    assert outcomes(decoder(schema), [b"\x02\0\x02\x04\0"]) == [{"x": {"a": 1, "b": ""}, "y": {"a": 2, "b": ""}}]
    made = AvroDecoder(parse_avro(record_of(x="I", e="E"), (json.dumps(INNER), json.dumps(ENUM))))
    assert made.decode(pa.array([b"\x02\0\x02"])).rows.to_pylist() == [{"x": {"a": 1, "b": ""}, "e": "B"}]


def test_defaults_of_a_table_are_values_as_its_records_have_them() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    times = {"type": "record", "name": "T", "fields": [{"name": "raw", "type": "bytes", "default": "\u0080"}]}
    added: list[dict[str, Any]] = [
        {"name": "raw", "type": ["bytes", "null"], "default": "\u00ff"},
        {"name": "price", "type": price, "default": "\u0001\u0080"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 1},
        {"name": "inner", "type": times, "default": {}},
    ]
    table = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, *added]})
    made = AvroDecoder(parse_avro(record_of(id="long")), parse_avro(table))
    row = {"raw": b"\xff", "price": Decimal("3.84"), "day": date(1970, 1, 2), "inner": {"raw": b"\x80"}}
    assert made.decode(pa.array([b"\x02"])).rows.to_pylist() == [{"id": 1, **row}]


def test_a_decoding_can_be_pickled() -> None:
    decoding = pickle.loads(pickle.dumps(Decoding("avro", schema=record_of(id="long"))))
    assert outcomes(decoding.decoder(), [b"\x02"]) == [{"id": 1}]


# ---- generated schemas and values ----------------------------------------------------------------------------

SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()), ("int", st.integers(-(2**31), 2**31 - 1)), ("long", st.integers(-(2**63), 2**63 - 1)),
    ("double", st.floats(allow_nan=False)), ("float", st.floats(allow_nan=False, width=32)),
    ("bytes", st.binary(max_size=6)), ("string", st.text(st.characters(codec="utf-8"), max_size=6)),
    (logical("int", "date"), st.dates()),
    (logical("int", "time-millis"), st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))),
    (logical("long", "time-micros"), st.times()),
    (logical("long", "timestamp-micros"), st.datetimes(timezones=st.just(UTC))),
    (logical("long", "timestamp-millis"), st.datetimes().map(lambda t: t.replace(microsecond=7000, tzinfo=UTC))),
    (logical("long", "local-timestamp-micros"), st.datetimes()),
    (logical("bytes", "decimal", precision=12, scale=3), st.decimals(-(10**8), 10**8, places=3)),
]  # fmt: skip


@st.composite
def nodes(draw: st.DrawFn, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type, and its values. Types with names are given theirs in `tables`."""
    match draw(st.sampled_from(["scalar", "optional", "array", "map", "record", "enum"][: 6 if depth < 3 else 2])):
        case "optional":
            kind, values = draw(st.sampled_from(SCALARS))
            union: Any = draw(st.permutations(["null", kind]))
            return union, values | st.none()
        case "array":
            kind, values = draw(nodes(depth + 1))
            return {"type": "array", "items": kind}, st.lists(values, max_size=3)
        case "map":
            kind, values = draw(nodes(depth + 1))
            return {"type": "map", "values": kind}, st.dictionaries(st.text("ab\u00e9", max_size=3), values, max_size=3)
        case "record":
            kind, values = draw(record_nodes(depth + 1))
            return kind, values
        case "enum":
            return {"type": "enum", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    kind, values = draw(st.sampled_from(SCALARS))
    return kind, values


@st.composite
def record_nodes(draw: st.DrawFn, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    fields = draw(st.lists(nodes(depth), min_size=1, max_size=3))
    named = {f"f{number}": node for number, node in enumerate(fields)}
    kind = {"type": "record", "fields": [{"name": name, "type": each} for name, (each, _) in named.items()]}
    return kind, st.fixed_dictionaries({name: values for name, (_, values) in named.items()})


def with_names(kind: Any, names: list[int]) -> Any:
    if isinstance(kind, list):
        return [with_names(each, names) for each in kind]
    if isinstance(kind, dict):
        copy = {key: with_names(value, names) if key != "symbols" else value for key, value in kind.items()}
        if (kind["type"] in ("record", "enum") and "fields" in kind) or "symbols" in kind:
            copy["name"] = f"N{len(names)}"
            names.append(1)
        return copy if "type" in kind else kind
    return kind


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[Any]]:
    kind, values = draw(record_nodes())
    names: list[int] = []
    fields = [{**field, "type": with_names(field["type"], names)} for field in kind["fields"]]
    return json.dumps({"type": "record", "name": "Root", "fields": fields}), draw(st.lists(values, max_size=5))


def written(schema: str, records: list[Any]) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(schema))
    values = []
    for record in records:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, record)
        values.append(out.getvalue())
    return values


def with_pairs(value: Any, kind: Any) -> Any:
    """Return a value as Arrow has it: maps as lists of pairs."""
    if value is None or isinstance(kind, str):
        return value
    if isinstance(kind, list):
        return with_pairs(value, next(each for each in kind if each != "null"))
    match kind["type"]:
        case "record":
            return {field["name"]: with_pairs(value[field["name"]], field["type"]) for field in kind["fields"]}
        case "array":
            return [with_pairs(each, kind["items"]) for each in value]
        case "map":
            return [(key, with_pairs(each, kind["values"])) for key, each in value.items()]
    return value


@given(tables())
def test_what_fastavro_writes_is_read_back(table: tuple[str, list[Any]]) -> None:
    schema, records = table
    expected = [with_pairs(record, json.loads(schema)) for record in records]
    assert outcomes(decoder(schema), written(schema, records)) == expected


@given(tables(), st.randoms(use_true_random=False))
def test_damage_never_raises_and_depends_on_the_record_alone(
    table: tuple[str, list[Any]], chance: random.Random
) -> None:
    """fastavro and the exact reader give the same rows."""
    schema, records = table
    values = written(schema, records)
    values += [damaged(value, chance) for value in values * 4]
    avro = parse_avro(schema)
    made = AvroDecoder(avro)
    rows, dead = made.decode(pa.array(values, pa.binary()))
    rows.validate(full=True)
    good = iter(rows.to_pylist())
    for index, value in enumerate(values):
        try:
            record = read_avro(value, avro.root)
        except UndecodableError as error:
            if value:
                assert dead[index] == error.letter
            else:
                assert dead[index].reason == "empty"
        else:
            exact = pa.RecordBatch.from_arrays(
                [pa.array([record[field.name]], field.type) for field in made.schema], schema=made.schema
            )
            assert repr(next(good)) == repr(exact.to_pylist()[0])  # as text, because NaN is not equal to itself
    assert next(good, None) is None


def damaged(value: bytes, chance: random.Random) -> bytes:
    data = bytearray(value)
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(data))
        data[at : at + chance.choice((0, 1, 1, 2))] = chance.choice(
            [b"", b"\0", b"\x01", b"\x02", b"\xff", b"\x80\x80", bytes([chance.randrange(256)]), zigzag(2**40)]
        )
    return bytes(data)


def test_amounts_in_a_record_are_bounded_by_its_bytes() -> None:
    """Counts and lengths that promise more than there is cost nothing."""
    array = record_of(x={"type": "array", "items": {"type": "array", "items": "double"}})
    values = [zigzag(2**62), zigzag(10**6) + b"\0" * 10, zigzag(-(2**62)) + zigzag(1), zigzag(1) + zigzag(2**62)] * 1000
    started = datetime.now(UTC)
    assert {each[0] for each in outcomes(decoder(array), values)} == {"syntax"}
    assert datetime.now(UTC) - started < timedelta(seconds=60)
