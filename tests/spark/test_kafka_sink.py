"""Writing to a real broker of 0.8 or later, as Spark's tasks call the sink; other clients read it back."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from odradek.core.kafka.partitioners import murmur2
from odradek.errors import ConfigError, Unsupported
from odradek.ranges.projection import HEADERS
from odradek.spark.sink import TaskCommit, WriteError
from odradek.spark.source import OdradekSource
from odradek.testing import KafkaBroker

from ..brokers import foreign
from .kafka import batch, rows

HEADER_TYPE = t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]))
SCHEMA = (
    t.StructType()
    .add("key", t.BinaryType())
    .add("value", t.StringType())
    .add("headers", HEADER_TYPE)
    .add("partition", t.IntegerType())
    .add("offset", t.LongType())
)
COLUMNS: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.string(),
    "headers": HEADERS.arrow,
    "partition": pa.int32(),
    "offset": pa.int64(),
}
ARROW = pa.schema(COLUMNS)


@pytest.fixture
def topic(odradek_kafka: KafkaBroker) -> str:
    """A topic of this test's own."""
    name = f"sink{uuid4().hex[:12]}"
    odradek_kafka.create_topic(name, 2)
    return name


def options(kafka: KafkaBroker, topic: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": kafka.bootstrap, "topic": topic, **more}


def written(writer: Any, *rows: dict[str, Any]) -> TaskCommit:
    commit = writer.write(iter(pa.Table.from_pylist(list(rows), ARROW).to_batches()))
    assert isinstance(commit, TaskCommit)
    return commit


def row(partition: int | None, value: str | None, key: bytes | None = None, headers: Any = None) -> dict[str, Any]:
    return {"key": key, "value": value, "headers": headers, "partition": partition, "offset": 99}


def test_rows_are_read_back_by_another_client(odradek_kafka: KafkaBroker, topic: str) -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    writer = OdradekSource(options(odradek_kafka, topic, **{"kafka.compression.type": "zstd"})).writer(SCHEMA, False)
    commit = written(writer, row(0, "one", b"k", headers), row(1, "elsewhere"), row(0, None, b"gone"), row(0, "", b""))
    assert commit.rows == 4
    read = [
        (key, value, list(heads))
        for key, value, heads, _, _ in foreign.consume("kafka-python", odradek_kafka, topic, 3)
    ]
    assert read == [(b"k", b"one", [("a", b"1"), ("b", None)]), (b"gone", None, []), (b"", b"", [])]
    reader = batch(odradek_kafka, subscribe=topic, includeHeaders="true")
    back = rows(reader, reader.partitions())
    assert [(each["partition"], each["key"], each["value"]) for each in back] == [
        (0, b"k", b"one"), (0, b"gone", None), (0, b"", b""), (1, None, b"elsewhere")
    ]  # fmt: skip
    assert back[0]["headers"] == headers


def test_keys_choose_the_partitions_of_javas_clients(odradek_kafka: KafkaBroker, topic: str) -> None:
    writer = OdradekSource(options(odradek_kafka, topic)).streamWriter(SCHEMA, True)  # output mode complete
    assert written(writer, *(row(None, "v", b"key-%d" % n) for n in range(20))).rows == 20
    reader = batch(odradek_kafka, subscribe=topic)
    chosen = {each["key"]: each["partition"] for each in rows(reader, reader.partitions())}
    assert chosen == {key: (murmur2(key) & 0x7FFFFFFF) % 2 for key in chosen}
    assert len(chosen) == 20


def test_a_batch_query_overwrites_no_topic(odradek_kafka: KafkaBroker, topic: str) -> None:
    with pytest.raises(ConfigError, match="a topic cannot be overwritten"):
        OdradekSource(options(odradek_kafka, topic)).writer(SCHEMA, True)


def test_a_partition_that_does_not_exist_fails_the_task(odradek_kafka: KafkaBroker, topic: str) -> None:
    # Within this time the task also connects, which has to work.
    writer = OdradekSource(options(odradek_kafka, topic, deliverWithin="10s")).writer(SCHEMA, False)
    with pytest.raises(WriteError, match=topic):
        written(writer, row(7, "v"))


@pytest.mark.releases("0.10.1.1")
def test_a_header_that_a_cluster_cannot_store_is_refused_in_front_of_all_rows(any_kafka: KafkaBroker) -> None:
    topic = f"sink{uuid4().hex[:12]}"
    any_kafka.create_topic(topic, 2)
    writer = OdradekSource(options(any_kafka, topic)).writer(SCHEMA, False)
    plain = [row(number % 2, f"plain{number}") for number in range(50)]
    with pytest.raises(Unsupported, match=r"column headers .* Kafka 0\.11"):
        written(writer, *plain, row(0, "x", None, [{"key": "a", "value": b"1"}]))
    assert written(writer, *plain, row(0, "x", None, [])).rows == 51
    reader = batch(any_kafka, subscribe=topic)
    assert len(rows(reader, reader.partitions())) == 51
