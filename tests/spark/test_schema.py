"""Schemas that a user names: the columns asked for, in their order, with the types that Spark has for them."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from odradek.errors import ConfigError
from odradek.ranges.projection import COLUMNS, Projection, columns
from odradek.spark.schema import SPARK_TYPES, project
from odradek.types import Columns, TopicPartition

P = TopicPartition("orders", 1, 3)


def test_the_columns_are_those_of_spark_and_three_more() -> None:
    ddl = ", ".join(f"{column.name} {SPARK_TYPES[column.name]}" for column in columns())
    assert ddl == (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
        "broker int, index int, nextOffset bigint"
    )
    assert [SPARK_TYPES[column.name] for column in columns(headers=True)[len(COLUMNS) :]] == [
        "array<struct<key:string,value:binary>>"
    ]
    assert Projection().schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert all(field.nullable for field in Projection(columns(headers=True)).schema)


def test_a_projection_has_the_columns_asked_for_in_their_order() -> None:
    asked = [("nextOffset", "bigint", True), ("value", "binary", True)]
    projection = project(asked)
    (batch,) = projection.batches(P, Columns([b"x"], [0], [11]))
    assert batch.to_pydict() == {"nextOffset": [11], "value": [b"x"]}
    again = pickle.loads(pickle.dumps(projection))
    assert (again.columns, again.schema) == (projection.columns, projection.schema)
    assert len(pickle.dumps(projection)) < 500
    everything = project([(c.name, SPARK_TYPES[c.name], True) for c in columns(headers=True)], headers=True)
    assert everything.schema == Projection(columns(headers=True)).schema


def test_a_projection_to_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="the schema has no columns"):
        project([])  # Arrow batches of no columns have no rows


@pytest.mark.parametrize(
    ("field", "why"),
    [
        (("OFFSET", "bigint", True), r"there is no column 'OFFSET': did you mean offset\?"),
        (("next_offset", "bigint", True), r"did you mean nextOffset\?"),
        (("zzz", "int", True), r"there is no column 'zzz': there are key, .* \(and headers with includeHeaders=true\)"),
        (("offset", "int", True), "column offset is bigint and may be null, not int: cast it in the query"),
        (("offset", "bigint", False), "column offset is bigint and may be null, not bigint NOT NULL"),
        (("headers", SPARK_TYPES["headers"], True), "there is no column 'headers'"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(field: tuple[str, str, bool], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        project([field])
    with pytest.raises(ConfigError, match="column value is named twice"):
        project([("value", "binary", True)] * 2)
