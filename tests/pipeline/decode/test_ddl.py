"""Field types of pipeline files."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from odradek.errors import ConfigError
from odradek.pipeline.decode.fields import parse_ddl, type_name

UTC = pa.timestamp("us", tz="UTC")

TYPES = [
    ("boolean", pa.bool_()), ("tinyint", pa.int8()), ("byte", pa.int8()), ("smallint", pa.int16()),
    ("short", pa.int16()), ("int", pa.int32()), ("INTEGER", pa.int32()), ("bigint", pa.int64()), ("Long", pa.int64()),
    ("float", pa.float32()), ("real", pa.float32()), ("double", pa.float64()), ("string", pa.string()),
    ("binary", pa.binary()), ("date", pa.date32()), ("timestamp", UTC), ("timestamp_ltz", UTC),
    ("timestamp_ntz", pa.timestamp("us")), ("decimal", pa.decimal128(10, 0)), ("dec(5)", pa.decimal128(5, 0)),
    ("numeric( 38 , 38 )", pa.decimal128(38, 38)), ("array<int>", pa.list_(pa.int32())),
    ("array<array<string>>", pa.list_(pa.list_(pa.string()))), ("map<string,int>", pa.map_(pa.string(), pa.int32())),
    ("struct<a: int, b string not null>",
     pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.string(), nullable=False)])),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "kind"), TYPES)
def test_a_type_of_ddl_is_its_arrow_type(ddl: str, kind: pa.DataType) -> None:
    assert parse_ddl(f"x {ddl}") == pa.schema([pa.field("x", kind)])


@pytest.mark.parametrize("kind", [kind for _, kind in TYPES])
def test_the_name_of_a_type_is_read_as_the_same_type(kind: pa.DataType) -> None:
    if not isinstance(kind, pa.StructType):  # not null is not part of a name
        assert parse_ddl(f"x {type_name(kind)}").field("x").type == kind


def test_names_may_be_quoted_and_columns_commented() -> None:
    schema = parse_ddl("`a, b` int NOT NULL COMMENT 'the first, of two', `c``d` : string comment \"x\"\n, e date")
    assert schema.names == ["a, b", "c`d", "e"]
    assert [field.nullable for field in schema] == [False, True, True]
    assert pickle.loads(pickle.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("id bigin", "fields, at character 4: unknown type 'bigin'; did you mean bigint?"),
        ("id zzz", "fields, at character 4: unknown type 'zzz'"),
        ("", "fields, at the end: expected the name of a field"),
        ("id", "fields, at the end: expected a type"),
        ("id int,", "fields, at the end: expected the name of a field"),
        ("a int b int", "fields, at character 7: expected a comma or the end"),
        ("a array<int", "fields, at the end: expected '>'"),
        ("a map<string>", "fields, at character 13: expected ','"),
        ("a int, A int", "fields, at character 8: the name A comes twice; most readers ignore case"),
        ("d decimal(39)", "fields, at character 3: decimal(39, 0) does not exist: the precision is 1 to 38 digits"),
        ("d decimal(5, 6)", "fields, at character 3: decimal(5, 6) does not exist: the precision is 1 to 38 digits"),
        ("d decimal(x)", "fields, at character 11: expected a number of digits"),
        ("a int not", "fields, at the end: expected NULL after NOT"),
        ("a int comment b", "fields, at character 15: expected a quoted text after COMMENT"),
        ("a int; b int", "fields, at character 6: expected a comma or the end"),
        ("a " + "array<" * 51, "fields, at character 303: more than 50 levels of types"),
        ("a" * 100_001, "fields have 100001 characters; the maximum is 100000"),
    ],
)
def test_a_mistake_is_named_with_its_position(ddl: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_ddl(ddl)
    assert caught.value.message() == message
