"""JSON records: what each type takes, what makes a record dead, and that fast and exact readers agree."""

from __future__ import annotations

import base64
import json
import random
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.pipeline.decode import Decoder, Decoding, parse_ddl
from odradek.pipeline.decode.dead import UndecodableError
from odradek.pipeline.decode.json import JsonDecoder, parse_fields, read_json

from .records import batch, check_partition, dead_of, outcomes


def decoder(ddl: str) -> Decoder:
    return Decoding("json", parse_ddl(ddl)).decoder()


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SURROGATES = "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")

VALUES: list[tuple[str, str, Any]] = [
    ("bigint", "1", 1), ("bigint", "-0", 0), ("bigint", "9223372036854775807", 2**63 - 1),
    ("bigint", "-9223372036854775808", -(2**63)), ("bigint", "9223372036854775808", "range"),
    ("bigint", "-9223372036854775809", "range"), ("bigint", "9" * 5000, "range"), ("bigint", "1.0", "type"),
    ("bigint", "1e2", "type"), ("bigint", '"1"', "type"), ("bigint", "true", "type"), ("bigint", "[1]", "type"),
    ("bigint", "{}", "type"), ("bigint", "null", None), ("bigint not null", "null", "missing"),
    ("bigint", "01", "syntax"), ("bigint", "+1", "syntax"), ("bigint", "NaN", "syntax"), ("bigint", "1_0", "syntax"),
    ("tinyint", "127", 127), ("tinyint", "128", "range"), ("tinyint", "-129", "range"), ("smallint", "32768", "range"),
    ("int", "2147483647", 2**31 - 1), ("int", "2147483648", "range"), ("int", "-2147483649", "range"),
    ("double", "1", 1.0), ("double", "-1.5e-3", -0.0015), ("double", "1e400", "range"), ("double", "-1e400", "range"),
    ("double", "9" * 400, "range"), ("double", "1e-400", 0.0), ("double", "NaN", "syntax"),
    ("double", "Infinity", "syntax"), ("double", "-Infinity", "syntax"), ("double", '"NaN"', "type"),
    ("double", '"1.5"', "type"), ("double", ".5", "syntax"), ("double", "5.", "syntax"),
    ("float", "0.1", struct.unpack("f", struct.pack("f", 0.1))[0]), ("float", "3.4028235e38", 3.4028234663852886e38),
    ("float", "1e39", "range"), ("float", "-1e39", "range"),
    ("boolean", "true", True), ("boolean", "false", False), ("boolean", "1", "type"), ("boolean", '"true"', "type"),
    ("boolean", "tru", "syntax"),
    ("string", '"a"', "a"), ("string", '""', ""), ("string", "1", "type"), ("string", "true", "type"),
    ("string", '["a"]', "type"), ("string", '"\\u00e9\\n\\/"', "\u00e9\n/"), ("string", '"\\u0000"', "\0"),
    ("string", '"\\ud83d\\ude00"', SURROGATES), ("string", '"\\ud83d"', "unicode"), ("string", '"\\ude00"', "unicode"),
    ("string", '"\\ude00\\ud83d"', "unicode"), ("string", '"\\x"', "syntax"), ("string", '"\\u12"', "syntax"),
    ("string", '"a\nb"', "syntax"), ("string", '"\t"', "syntax"), ("string", '"open', "syntax"),
    ("string", "'a'", "syntax"),
    ("decimal(5, 2)", "12.34", Decimal("12.34")), ("decimal(5, 2)", "-12.3", Decimal("-12.30")),
    ("decimal(5, 2)", '"12.34"', Decimal("12.34")), ("decimal(5, 2)", "12.340", Decimal("12.34")),
    ("decimal(5, 2)", "12.345", "precision"), ("decimal(5, 2)", '"12.345"', "precision"),
    ("decimal(5, 2)", "999.99", Decimal("999.99")), ("decimal(5, 2)", "1000", "range"),
    ("decimal(5, 2)", "1.2e2", Decimal("120.00")), ("decimal(5, 2)", "1e-2", Decimal("0.01")),
    ("decimal(5, 2)", "1e-3", "precision"), ("decimal(5, 2)", "1e400", "range"), ("decimal(5, 2)", "0e5", Decimal(0)),
    ("decimal(5, 2)", "1e9999999999", "range"), ("decimal(5, 2)", '"x"', "type"), ("decimal(5, 2)", "true", "type"),
    ("decimal(5, 2)", '"NaN"', "type"), ("decimal(5, 2)", "NaN", "syntax"), ("decimal(5, 2)", '" 1"', "type"),
    ("decimal(38, 0)", "9" * 38, Decimal("9" * 38)), ("decimal(38, 0)", "9" * 39, "range"),
    ("decimal(38, 38)", "0." + "1" * 38, Decimal("0." + "1" * 38)), ("decimal(38, 38)", "0." + "1" * 39, "precision"),
    ("date", '"2026-01-02"', date(2026, 1, 2)), ("date", '"0001-01-01"', date.min), ("date", '"9999-12-31"', date.max),
    ("date", '"0000-12-31"', "range"), ("date", '"2026-02-29"', "range"), ("date", '"2026-13-01"', "range"),
    ("date", '"2026-1-2"', "type"), ("date", '"2026-01-02T00:00:00"', "type"), ("date", "20455", "type"),
    ("date", '" 2026-01-02"', "type"), ("date", '""', "type"),
    ("timestamp", '"2026-01-02T03:04:05Z"', AT), ("timestamp", '"2026-01-02 03:04:05"', AT),
    ("timestamp", '"2026-01-02T05:04:05+02:00"', AT), ("timestamp", '"2026-01-02T01:34:05-0130"', AT),
    ("timestamp", '"2026-01-02T04:04:05+01"', AT), ("timestamp", '"2026-01-02T03:04"', AT.replace(second=0)),
    ("timestamp", '"2026-01-02"', AT.replace(hour=0, minute=0, second=0)),
    ("timestamp", '"2026-01-02T03:04:05.1Z"', AT.replace(microsecond=100_000)),
    ("timestamp", '"2026-01-02T03:04:05.123456"', AT.replace(microsecond=123_456)),
    ("timestamp", '"2026-01-02T03:04:05.123456000Z"', AT.replace(microsecond=123_456)),
    ("timestamp", '"2026-01-02T03:04:05.123456789Z"', "precision"), ("timestamp", '"2026-01-02T24:00:00Z"', "range"),
    ("timestamp", '"2026-01-02T03:04:60Z"', "range"), ("timestamp", '"2026-02-30T00:00:00Z"', "range"),
    ("timestamp", '"10000-01-01T00:00:00Z"', "type"), ("timestamp", '"0001-01-01T00:00:00+01:00"', "range"),
    ("timestamp", '"9999-12-31T23:59:59-01:00"', "range"), ("timestamp", '"2026-01-02T03:04:05+24:00"', "range"),
    ("timestamp", '"2026-01-02T03:04:05z"', "type"), ("timestamp", '"2026-01-02T03:04:05Z\\n"', "type"),
    ("timestamp", "1767323045000", "type"), ("timestamp", '"yesterday"', "type"),
    ("timestamp_ntz", '"2026-01-02T03:04:05"', AT.replace(tzinfo=None)),
    ("timestamp_ntz", '"2026-01-02T03:04:05Z"', "type"), ("timestamp_ntz", '"2026-01-02T03:04:05+01:00"', "type"),
    ("timestamp_ntz", '"0000-01-01"', "range"),
    ("binary", '"YWI="', b"ab"), ("binary", '""', b""), ("binary", '"YWI"', "type"), ("binary", '"YW I="', "type"),
    ("binary", '"YWJ="', "type"), ("binary", '"-_8="', "type"), ("binary", '"\\u00e9"', "type"),
    ("binary", "1", "type"),
    ("array<int>", "[1, null, 3]", [1, None, 3]), ("array<int>", "[]", []), ("array<int>", "{}", "type"),
    ("array<int>", '[1, "2"]', "type"), ("array<int>", "[1,]", "syntax"), ("array<int>", "[1", "syntax"),
    ("array<tinyint>", "[1, 300]", "range"),
    ("array<array<date>>", '[["2026-01-02"], null]', [[date(2026, 1, 2)], None]),
    ("map<string, int>", '{"a": 1, "b": null}', [("a", 1), ("b", None)]), ("map<string, int>", "{}", []),
    ("map<string, int>", '{"a": 1, "a": 2}', "duplicate"), ("map<string, int>", '{"a": "1"}', "type"),
    ("map<string, int>", "[]", "type"), ("map<string, int>", '{"\\ud800": 1}', "unicode"),
    ("map<string, array<timestamp>>", '{"a": ["2026-01-02T03:04:05Z"]}', [("a", [AT])]),
    ("struct<a: int, b: string>", '{"b": "x", "c": 1}', {"a": None, "b": "x"}),
    ("struct<a: int, b: string>", '{"a": 1, "a": 1}', "duplicate"), ("struct<a: int, b: string>", "null", None),
    ("struct<a: int not null>", "{}", "missing"), ("struct<a: int not null>", '{"a": null}', "missing"),
    ("struct<a: int not null>", "null", None), ("struct<a: int>", "[]", "type"),
    ("array<struct<a: int not null, b: array<date>>>", '[{"a": 1, "b": ["2026-13-01"]}]', "range"),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "text", "expected"), VALUES)
def test_a_value_of_a_type(ddl: str, text: str, expected: Any) -> None:
    """A value is itself or makes its record dead; alone, among good and among bad neighbours."""
    record = b'{"x": ' + text.encode() + b', "u": [1, {"x": 2}]}'
    good, bad = b'{"n": 1}' if "not null" not in ddl.split("<")[0] else None, b"{"
    for values in ([record], [good, record, good], [bad, record, good, bad]):
        present = [value for value in values if value is not None]
        (got,) = [each for each, value in zip(outcomes(decoder(f"x {ddl}, n int"), present), present, strict=True)
                  if value is record]  # fmt: skip
        if expected in ("range", "type", "syntax", "unicode", "precision", "missing", "duplicate"):
            assert got[0] == expected
        else:
            assert got["x"] == expected
            assert got["x"] is None or type(got["x"]) is type(expected)


RECORDS: list[tuple[bytes, Any]] = [
    (b'{"id": 1}', 1), (b' \t\r\n{"id": 1}\n ', 1), (b'{"i\\u0064": 1}', 1), (b'{"ID": 2, "id": 1}', 1),
    (b"{}", ("missing", "id", "int", 0)), (b'{"id": null}', ("missing", "id", "int", 7)),
    (b"", ("empty", None, None, None)), (b"  ", ("syntax", None, None, 2)),
    (b"null", ("type", None, "an object", 0)), (b"[]", ("type", None, "an object", 0)),
    (b"1", ("type", None, "an object", 0)), (b'"id"', ("type", None, "an object", 0)),
    (b"nope", ("syntax", None, None, 0)), (b"\xef\xbb\xbf{}", ("syntax", None, None, 0)),
    (b'{"id": 1} {}', ("trailing", None, None, 10)), (b'{"id": 1}{"id": 2}', ("trailing", None, None, 9)),
    (b'{"id": 1}]', ("trailing", None, None, 9)), (b'{"id": 1}\0', ("trailing", None, None, 9)),
    (b'{"id": 1\0}', ("syntax", None, None, 8)), (b'{"id": 1,}', ("syntax", None, None, 9)),
    (b'{"id": 1', ("syntax", None, None, 8)), (b'{"id" 1}', ("syntax", None, None, 6)),
    (b"{id: 1}", ("syntax", None, None, 1)), (b'{"id": 1} // x', ("trailing", None, None, 10)),
    (b'{"id": 1, "id": 1}', ("duplicate", "id", None, 7)), (b'{"id": 1, "u": 1, "u": 2}', 1),
    (b'{"id": 1, "u": "\xff"}', ("unicode", None, None, 16)),
    (b'{"id": 1, "u": "\xed\xa0\x80"}', ("unicode", None, None, 16)),
    (b'{"\xc3\xa9": 0, "id": "\xc3\xa9"}', ("type", "id", "int", 16)),
    (b'{"id": 1, "u": "\\ud800"}', 1), (b'{"id": 1, "u": 1e999}', 1), (b'{"id": 1, "u": %s}' % (b"9" * 5000), 1),
    (b'{"id": 1, "u": NaN}', 1), (b'{"id": 1, "u": [-Infinity]}', 1),
    (b'{"id": 1, "u": nan}', ("syntax", None, None, 15)),
    (b'{"id": 1, "u": 01}', ("syntax", None, None, 16)),
    (b'{"id": 1, "u": "\\q"}', ("syntax", None, None, 16)),
    (b'{"id": 1, "u": [[1, 2], {"a": {}}, []]}', 1),
    (b'{"id": 1, "u": [[1, 2}]}', ("syntax", None, None, 21)),
    (b'{"id": 1, "u": {"a" 1}}', ("syntax", None, None, 20)),
    (b'{"id": 1, "u": {1: 1}}', ("syntax", None, None, 16)),
    (b'{"id": 1, "u": ' + b"[" * 300 + b'"\\ud800"' + b"]" * 300 + b"}", 1),
    (b'{"id": 1, "u": ' + b"[" * 100_000 + b"}", ("syntax", None, None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("record", "expected"), RECORDS)
@pytest.mark.parametrize("ddl", ["id int not null", "id int not null, m map<string, int>"])
def test_a_record(record: bytes, expected: Any, ddl: str) -> None:
    for values in ([record], [b'{"id": 7}', record, b"{"]):
        got = outcomes(decoder(ddl), values)[values.index(record)]
        assert (got["id"] if isinstance(got, dict) else got) == expected


def test_two_records_are_never_taken_for_others() -> None:
    """Values that together are other records than each of them alone."""
    values = [b'{"id": 1, "u": [{}', b"{}]}", b'{"id": 2}{"id": 3}', b"", b'{"id": 4}\0}', b'{"id": 5}', b"null", b"{}"]
    got = outcomes(decoder("id int"), values)
    assert [each["id"] if isinstance(each, dict) else each[0] for each in got] == [
        "syntax", "trailing", "trailing", "empty", "trailing", 5, "type", None
    ]  # fmt: skip


def test_messages_say_what_and_where_and_what_to_do() -> None:
    ddl = "items array<struct<price: double>>, at timestamp, tags map<string, int>"
    letter = dead_of(decoder(ddl), b'{"items": [{"price": 1}, {"price": "12"}]}')
    assert letter["message"] == (
        'items[1].price is a string, "12"; expected double: send that, or declare the field otherwise'
    )
    assert (letter["field"], letter["position"]) == ("items[1].price", 35)
    letter = dead_of(decoder(ddl), b'{"at": "2026-01-02T03:04:05.123456789Z"}')
    assert letter["message"] == (
        'at is "2026-01-02T03:04:05.123456789Z", which timestamp cannot have: '
        "timestamps keep six digits of a second; declare the field as string"
    )
    letter = dead_of(decoder(ddl), b'{"tags": {"a\\nb": true}}')
    assert (letter["field"], letter["expected"]) == ('tags["a\\nb"]', "int")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("a", pa.uint8())]), "a: JSON cannot have a field of type uint8"),
        (parse_ddl("a struct<b: map<int, int>>"), "a.b: the keys of a JSON object are strings, not int"),
        (pa.schema([("a", pa.list_(pa.time64("us")))]), "a[]: JSON cannot have a field of type time64[us]"),
        (
            pa.schema([('a"', pa.int8())]),
            "'a\"': the name of a JSON field has no quote, backslash or control character here",
        ),
        (None, "kind json needs fields"),
    ],
)
def test_fields_that_json_cannot_have_are_refused(schema: pa.Schema | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Decoding("json", schema).decoder()
    assert caught.value.message() == message


# ---- generated schemas and values ----------------------------------------------------------------------------

NAMES = st.text("abc \u00e9\u4e2d.`'", min_size=1, max_size=3)
SCALARS = st.sampled_from(
    ["boolean", "tinyint", "smallint", "int", "bigint", "double", "float", "string", "binary", "date", "timestamp",
     "timestamp_ntz", "decimal(7, 3)", "decimal(38, 10)"]
).map(lambda ddl: parse_ddl(f"x {ddl}").field("x").type)  # fmt: skip


def structs(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(st.tuples(NAMES, kinds, st.booleans()), min_size=1, max_size=3, unique_by=lambda each: each[0])
    return fields.map(lambda chosen: pa.struct([pa.field(*each) for each in chosen]))


KINDS = st.recursive(
    SCALARS,
    lambda kinds: kinds.map(pa.list_) | structs(kinds) | kinds.map(lambda kind: pa.map_(pa.string(), kind)),
    max_leaves=4,
)


def _schema_of(kind: Any) -> pa.Schema:
    return pa.schema(list(kind))


SCHEMAS = structs(KINDS).map(_schema_of)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)


def values_of(field: pa.Field[Any]) -> st.SearchStrategy[Any]:
    kind: Any = field.type
    values: st.SearchStrategy[Any]
    if isinstance(kind, pa.StructType):
        values = st.fixed_dictionaries({each.name: values_of(each) for each in kind})
    elif isinstance(kind, pa.ListType):
        values = st.lists(values_of(kind.value_field), max_size=3)
    elif isinstance(kind, pa.MapType):
        values = st.dictionaries(TEXT, values_of(kind.item_field), max_size=3).map(lambda each: list(each.items()))
    elif pt.is_integer(kind):
        values = st.integers(-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
    elif pt.is_floating(kind):
        values = st.floats(allow_nan=False, allow_infinity=False, width=32 if kind == pa.float32() else 64)
    elif pt.is_decimal(kind):
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        values = st.decimals(most.copy_negate(), most, places=kind.scale, allow_nan=False, allow_infinity=False)
    elif pt.is_timestamp(kind):
        zone = None if kind.tz is None else UTC
        values = st.datetimes().map(lambda time: time.replace(tzinfo=zone))
    else:
        values = {
            pa.bool_(): st.booleans(), pa.string(): TEXT, pa.binary(): st.binary(max_size=8), pa.date32(): st.dates(),
        }[kind]  # fmt: skip
    return values | st.none() if field.nullable else values


def to_json(value: Any, kind: Any) -> Any:
    """Return what Python's json writes for a value."""
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        return {field.name: to_json(value[field.name], field.type) for field in kind}
    if isinstance(kind, pa.ListType):
        return [to_json(each, kind.value_type) for each in value]
    if isinstance(kind, pa.MapType):
        return {key: to_json(each, kind.item_type) for key, each in value}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Schema, list[dict[str, Any]]]:
    schema = draw(SCHEMAS)
    records = st.fixed_dictionaries({field.name: values_of(field) for field in schema})
    return schema, draw(st.lists(records, max_size=6))


@given(tables(), st.sampled_from([None, 1]), st.booleans())
def test_what_python_writes_is_read_back(
    table: tuple[pa.Schema, list[dict[str, Any]]], indent: int | None, ascii_only: bool
) -> None:
    schema, records = table
    kind = pa.struct(list(schema))
    values = [json.dumps(to_json(each, kind), indent=indent, ensure_ascii=ascii_only).encode() for each in records]
    made = Decoding("json", schema).decoder()
    stored = dict(zip(schema.names, made.schema.names, strict=True))
    expected = [{stored[name]: value for name, value in record.items()} for record in records]
    assert outcomes(made, values) == expected


UNDECLARED = (b'"\\ud800"', b"1e999", b"NaN", b"[[], {}]", b'{"a": 1, "a": 2}', b"9" * 30, b'"x", "undeclared": 1')
"""Values of fields that are not declared: records with these are good, but not for every reader."""


def exact(schema: pa.Schema, value: bytes) -> Any:
    """Return what the exact reader says of a record."""
    try:
        record = read_json(value, parse_fields(schema))
    except UndecodableError as error:
        return error.letter
    row = pa.RecordBatch.from_arrays([pa.array([record[field.name]], field.type) for field in schema], schema=schema)
    return row.to_pylist()[0]


def damaged(value: bytes, chance: random.Random) -> bytes:
    """Return a record with a few changed, added, removed or repeated bytes."""
    data = bytearray(value)
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(data))
        what: list[Any] = [
            b"\0", b"\xff", b'"', b"{", b"}", b"[", b"]", b",", b":", b"1", b"-", b"e9", b".5", b"\\", b"\n", b"NaN",
            b"null", b"true", b"0", b"9" * 30, b"\\ud800", bytes([chance.randrange(256)]), data[at : at + 9],
        ]  # fmt: skip
        data[at : at + chance.choice((0, 0, 1, 2))] = chance.choice(what)
    return bytes(data)


@given(tables(), st.randoms(use_true_random=False))
def test_damage_never_raises_and_depends_on_the_record_alone(
    table: tuple[pa.Schema, list[dict[str, Any]]], chance: random.Random
) -> None:
    """Fast readers and the exact one give the same rows and the same dead letters, whatever the neighbours are."""
    schema, records = table
    kind = pa.struct(list(schema))
    values = [json.dumps(to_json(each, kind)).encode() for each in records]
    values += [value[:-1] + b', "undeclared": %s}' % chance.choice(UNDECLARED) for value in values * 2]
    values += [damaged(value, chance) for value in values]
    chance.shuffle(values)
    made = JsonDecoder(schema)
    rows, dead = made.decode(pa.array(values, pa.binary()))
    rows.validate(full=True)
    good = iter(rows.to_pylist())
    got = [dead[index] if index in dead else next(good) for index in range(len(values))]
    assert got == [exact(schema, value) for value in values]
    assert next(good, None) is None


# ---- amounts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("undeclared", [b"[" * 10**6 + b"]" * 10**6, b'{"a":' * 10**5 + b"1" + b"}" * 10**5, b"-Inf"])
def test_what_only_arrow_takes_depends_on_the_record_alone(undeclared: bytes) -> None:
    """Levels without number, and Inf: good with all neighbours, and dead with a map among the fields."""
    odd = b'{"id": 1, "u": ' + undeclared + b"}"
    for values in ([odd], [b'{"id": 7}', odd, b"{"], [b'{"id": 7, "id": 7}', odd, b'{"id": "x"}']):
        assert outcomes(decoder("id int"), values)[values.index(odd)] == {"id": 1}
        got = outcomes(decoder("id int, m map<string, int>"), values)[values.index(odd)]
        assert got[0] == "syntax"


def test_too_many_levels_in_a_declared_field_are_a_dead_letter() -> None:
    deep = b'{"id": 1, "d": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    got = outcomes(decoder("id int, d array<array<int>>"), [b'{"id": 1}', deep])
    assert got == [{"id": 1, "d": None}, ("syntax", None, None, None)]


@pytest.mark.parametrize("share", [0, 20])
def test_slices_are_put_together_in_order(share: int) -> None:
    """Several slices, with large records between small ones, and damage in one of `share`."""
    values = [
        b'{"id": %d, "s": "%s"}' % (number, b"x" * (300_000 if number % 500 == 3 else 50)) for number in range(6000)
    ]
    wanted: list[Any] = list(range(6000))
    if share:
        for number in range(0, 6000, share):
            values[number] = [b"{", b'{"id": "x"}', b'{"id": 1, "id": 2}', b'{"id": 300000000000}'][number // share % 4]
            wanted[number] = ["syntax", "type", "duplicate", "range"][number // share % 4]
    got = outcomes(decoder("id int, s string"), values)
    assert [each["id"] if isinstance(each, dict) else each[0] for each in got] == wanted


def test_records_that_only_the_exact_reader_accepts_stay_in_order() -> None:
    """The filter refuses the second one, and Arrow's reader the others."""
    values = [b'{"id": 1, "u": 1e999}', b'{"id": 2, "u": "\\ud800"}', b'{"id": 3, "u": 1e999}', b'{"id": 4, "id": 4}']
    got = outcomes(decoder("id int"), values)
    assert [each["id"] if isinstance(each, dict) else each[0] for each in got] == [1, 2, 3, "duplicate"]


def test_memory_is_bounded_by_slices() -> None:
    """Of 64 MB of values, only their columns and one slice are in memory."""
    values = [b'{"id": %d, "u": "%s"}' % (number, b"x" * 1000) for number in range(64_000)]
    records = batch(values)
    made = decoder("id int")
    pool = pa.system_memory_pool()
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        start = pool.bytes_allocated()
        decoded = made.decode(records)
        peak = (pool.max_memory() or 0) - start
    finally:
        pa.set_memory_pool(before)
    assert decoded.rows.num_rows == len(values)
    assert peak < 16 << 20


def test_records_share_no_state_between_batches() -> None:
    made = decoder("id int")
    clean, mixed = [b'{"id": 1}'] * 3, [b'{"id": 1}', b"{"]
    for values in (clean, mixed, clean, mixed):
        decoded = made.decode(batch(values))
        check_partition(values, decoded)
        assert decoded.rows.num_rows == values.count(b'{"id": 1}')
        assert decoded.rows.to_pylist()[0]["id"] == 1
