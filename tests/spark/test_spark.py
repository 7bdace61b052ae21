"""The source in a real Spark, local[2]: what only Spark can tell."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from odradek.testing import Kafka07Broker
from odradek.types import MiB
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.boundary import SEARCH_FACTOR
from odradek.wire.kafka07.message_set import encode_set

from .. import kafka_logs
from .made import ROW, Row, append, batch_rows, eventually, hard_log, rows_of, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)
"""The first test starts Spark."""

Start = Callable[..., Kafka07Broker]


@pytest.fixture
def broker(tmp_path: Path, odradek_kafka07_broker: Start) -> Kafka07Broker:
    log_dir = tmp_path / "logs"
    write_log(log_dir, "orders", 0, hard_log(1, 300, 5000), encode_set([b"z"] * 9, CompressionType.GZIP))
    write_log(log_dir, "orders", 1, hard_log(2, 300, 5000))
    write_log(log_dir, "empty", 0)
    return odradek_kafka07_broker(log_dir=log_dir, broker_id=3, config={"num.partitions": "2"})


def load(spark: SparkSession, chroot: str, topic: str = "orders", schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("odradek").option("kafka.zk.connect", chroot).option("subscribe", topic)
    return (reader.schema(schema) if schema else reader).options(**options).load()


def rows(frame: DataFrame) -> list[Row]:
    return sorted((Row(*row) for row in as_bytes(frame.select(*ROW).collect())), key=lambda row: row[:5])


def as_bytes(records: list[Any]) -> list[list[Any]]:
    return [[bytes(value) if isinstance(value, bytearray) else value for value in row] for row in records]


def raised(frame: Callable[[], Any]) -> str:
    """What Spark says of an error in Python. (Its exceptions cannot always be printed.)"""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        frame()
    return caught.value._desc  # type: ignore[attr-defined,no-any-return]


def test_python_workers_import_the_pyspark_that_is_installed(spark: SparkSession) -> None:
    """And not the sources in an archive of Spark, which each would compile."""
    seen = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.modules["pyspark"].__file__).collect()
    assert seen == [pyspark.__file__]


def test_directories_of_later_releases_are_read_and_followed(spark: SparkSession, tmp_path: Path) -> None:
    log = kafka_logs.write_log(tmp_path / "logs" / "orders-0", {0: kafka_logs.batch(range(5))})
    where = spark.read.format("odradek").option("path", str(tmp_path / "logs")).option("includeHeaders", "true")
    frame = where.load()
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    first = frame.orderBy("offset").collect()
    assert [(row.offset, bytes(row.value), row.key) for row in first[:2]] == [(0, b"0", b"k0"), (1, b"1", None)]
    assert [header.key for header in first[3].headers] == ["h"]
    follow = spark.readStream.format("odradek").options(path=str(tmp_path / "logs"), startingOffsets="earliest").load()
    for count in (5, 9):
        sink = follow.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start(str(tmp_path / "rows")).awaitTermination()
        read = spark.read.parquet(str(tmp_path / "rows")).select("offset").collect()
        assert sorted(row.offset for row in read) == list(range(count))
        with (log / f"{0:020}.log").open("ab") as file:
            file.write(kafka_logs.batch(range(count, 9)) if count < 9 else b"")


# ---- in the catalog ------------------------------------------------------------------------------------------


def test_a_table_in_the_catalog_is_read_and_dropped(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str
) -> None:
    expected = len(rows_of(broker.log_dir, 3, "orders"))
    where = {"cluster": f"`kafka.zk.connect` '{odradek_chroot}'", "disk": f"path '{broker.log_dir}'"}
    for name, option in where.items():
        spark.sql(f"CREATE TABLE {name} USING odradek OPTIONS ({option}, subscribe 'orders') COMMENT 'clicks'")
        try:
            (row,) = spark.sql(f"SELECT count(value), count(DISTINCT offset, index, partition) FROM {name}").collect()
            assert list(row) == [expected, expected]
        finally:
            spark.sql(f"DROP TABLE {name}")
    assert len(rows_of(broker.log_dir, 3, "orders")) == expected  # also when the table's path is the log directory
    error = raised(lambda: spark.sql("CREATE TABLE wrong USING odradek OPTIONS (subscribe 'orders', fetchByte 1)"))
    assert "did you mean fetchBytes?" in error


# ---- batch ---------------------------------------------------------------------------------------------------


def test_every_row_arrives_with_every_column(spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str) -> None:
    frame = load(spark, odradek_chroot)
    assert rows(frame) == rows_of(broker.log_dir, 3, "orders")
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("broker", "int"),
        ("index", "int"),
        ("nextOffset", "bigint"),
    ]
    others = frame.select("key", "timestamp", "timestampType").distinct().collect()
    assert [tuple(row) for row in others] == [(None, None, -1)]


def test_headers_are_there_when_they_are_asked_for(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str
) -> None:
    frame = load(spark, odradek_chroot, includeHeaders="true")
    assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    assert [tuple(row) for row in frame.select("headers").distinct().collect()] == [(None,)]


@pytest.mark.parametrize("schema", ["offset bigint", "value binary, topic string", "index int, broker int, key binary"])
def test_a_schema_chooses_columns(spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str, schema: str) -> None:
    frame = load(spark, odradek_chroot, schema=schema)
    chosen = [field.split()[0] for field in schema.split(", ")]
    assert frame.columns == chosen
    expected = [
        [{"key": None}.get(name, getattr(row, name, None)) for name in chosen]
        for row in rows_of(broker.log_dir, 3, "orders")
    ]
    assert sorted(map(str, as_bytes(frame.collect()))) == sorted(map(str, expected))


@pytest.mark.parametrize(
    ("schema", "says"),
    [("ofset bigint", "did you mean offset"), ("offset int", "cast it in the query"), ("headers string", "headers")],
)
def test_a_schema_there_is_not_is_an_error(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str, schema: str, says: str
) -> None:
    assert says in raised(lambda: load(spark, odradek_chroot, schema=schema).collect())


def test_an_option_there_is_not_is_an_error_at_load(spark: SparkSession, odradek_chroot: str) -> None:
    assert "did you mean fetchBytes?" in raised(lambda: load(spark, odradek_chroot, fetchByte="1"))
    stream = spark.readStream.format("odradek").option("kafka.zk.connect", odradek_chroot).option("subscribe", "orders")
    assert "did you mean maxBytesPerTrigger?" in raised(lambda: stream.option("maxBytePerTrigger", "1g").load())


def test_an_empty_topic_has_no_rows(spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str) -> None:
    assert load(spark, odradek_chroot, "empty").collect() == []


def test_sql_uses_it_without_registration(spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str) -> None:
    options = f"`kafka.zk.connect` '{odradek_chroot}', subscribe 'orders', minPartitions '3'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING odradek OPTIONS ({options})")
    try:
        (records,) = spark.sql("SELECT count(*), count(DISTINCT partition, offset, index) FROM orders").collect()
    finally:
        spark.sql("DROP VIEW orders")
    assert set(records) == {len(rows_of(broker.log_dir, 3, "orders"))}


def test_filters_do_not_leak_into_other_queries(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str
) -> None:
    """What Spark 4.1 to 4.3 do to readers that take filters: a filtered query spoils the DataFrame it is made of."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, odradek_chroot)
        every = len(rows_of(broker.log_dir, 3, "orders"))
        some = frame.where("offset >= 5000")
        few = some.count()
        assert 0 < few < every
        assert frame.count() == every
        assert frame.union(some).count() == every + few
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_log_is_cut_into_tasks_and_every_row_comes_once(
    spark: SparkSession, tmp_path: Path, odradek_kafka07_broker: Start, odradek_chroot: str
) -> None:
    write_log(tmp_path, "mirror", 0, hard_log(3, 1500, 50_000, 5000))
    odradek_kafka07_broker(log_dir=tmp_path, broker_id=3)
    whole = rows_of(tmp_path, 3)
    assert sum(len(row.value) for row in whole) > 8 * MiB
    options = {"maxMessageBytes": "60k", "maxBytesPerPartition": "4m"}
    frame = load(spark, odradek_chroot, "mirror", **options)
    files = spark.read.format("odradek").option("path", f"3@{tmp_path}").options(**options).load()
    for each in (frame, files):
        assert each.rdd.getNumPartitions() > 2
        assert rows(each) == whole


def test_errors_of_tasks_say_where(spark: SparkSession, tmp_path: Path) -> None:
    data = bytearray(encode_set([b"%05d" % n for n in range(100)]))
    data[15 * 50 + 12] ^= 1
    write_log(tmp_path, "orders", 0, bytes(data))
    frame = spark.read.format("odradek").option("path", f"7@{tmp_path}").load()
    assert "orders/7-0 at 750" in raised(frame.collect)


# ---- streaming -----------------------------------------------------------------------------------------------


class Stream:
    """A query that keeps its batches, with a checkpoint to begin again from."""

    def __init__(self, spark: SparkSession, checkpoint: Path, chroot: str, **options: str) -> None:
        self._spark, self.checkpoint = spark, checkpoint
        self._options = {"kafka.zk.connect": chroot, "subscribe": "orders", "startingOffsets": "earliest", **options}
        self.batches: list[list[Row]] = []
        self.progress: list[Any] = []
        self.value = "value"

    def start(self, each: Callable[[int], None] = lambda _: None, **trigger: Any) -> Any:
        frame = self._spark.readStream.format("odradek").options(**self._options).load()

        def keep(batch: DataFrame, number: int) -> None:
            self.batches.append(rows(batch.selectExpr(*ROW[:-1], f"{self.value} AS value")))
            each(number)

        query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        return query.trigger(**trigger).start()

    def drain(self, each: Callable[[int], None] = lambda _: None) -> list[list[Row]]:
        """Run until everything is read that there was. The batches of this run."""
        self.batches = []
        query = self.start(each, availableNow=True)
        try:
            query.awaitTermination()
        finally:
            query.stop()
        self.progress = [progress for progress in query.recentProgress if progress["numInputRows"]]
        return self.batches

    @property
    def journaled(self) -> int:
        """How many batches were begun, ever."""
        return sum(1 for file in (self.checkpoint / "offsets").iterdir() if file.name.isdigit())


def test_a_stream_reads_what_there_is_and_then_what_is_new(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path / "checkpoint", odradek_chroot, subscribe="orders,payments", failOnDataLoss="false")
    before = rows_of(broker.log_dir, 3, "orders")
    assert stream.drain(lambda _: append(broker, "orders", [b"late"])) == [before]
    append(broker, "payments", [b"paid"])
    paid = {"kafka_zk_connect": odradek_chroot, "subscribe": "payments", "failOnDataLoss": "false"}
    eventually(lambda: batch_rows(**paid), bool)
    stream.drain()
    assert sorted(row.value for batch in stream.batches for row in batch) == [b"late", b"paid"]
    assert stream.drain() == []


def test_a_limited_stream_takes_several_batches(
    spark: SparkSession, tmp_path: Path, odradek_kafka07_broker: Start, odradek_chroot: str
) -> None:
    write_log(tmp_path / "logs", "orders", 0, encode_set([n.to_bytes(50_000, "big") for n in range(700)]))
    odradek_kafka07_broker(log_dir=tmp_path / "logs", broker_id=3)
    stream = Stream(spark, tmp_path / "checkpoint", odradek_chroot, maxBytesPerTrigger="16m", maxMessageBytes="60k")
    stream.value = "X''"
    batches = stream.drain()
    sizes = [sum(row.nextOffset - row.offset for row in batch) for batch in batches]
    assert all(16 * MiB <= size <= 16 * MiB + SEARCH_FACTOR * 60_000 for size in sizes[:-1])
    whole = [row._replace(value=b"") for row in rows_of(tmp_path / "logs", 3)]
    assert [row for batch in batches for row in batch] == whole
    reports = [each["sources"][0]["latestOffset"] for each in stream.progress]
    reports = [json.loads(each) if isinstance(each, str) else each for each in reports]
    assert reports[0]["topics"] == {"orders": {"3-0": 35007000}}
    assert reports[0]["description"] == "Odradek[Subscribe[orders]]"
    behind = [report["metrics"]["totalBytesBehindLatest"] for report in reports]
    assert behind == [sum(sizes[number:]) for number in range(1, len(sizes) + 1)]


def test_an_error_of_a_streams_options_is_shown_as_it_is(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str, tmp_path: Path
) -> None:
    for number, options in enumerate(({"endingOffsets": "latest"}, {"subscribe": "nosuch"})):
        stream = Stream(spark, tmp_path / str(number), odradek_chroot, **options)
        error = raised(stream.drain)
        assert ("a streaming query has no end", "nothing has nosuch now")[number] in error
        assert "UnboundLocalError" not in error


def test_an_idle_stream_begins_no_batches(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path / "checkpoint", odradek_chroot)
    query = stream.start(processingTime="20 milliseconds")
    try:
        query.processAllAvailable()
        asked = broker.statistics().requests["offsets"]
        while broker.statistics().requests["offsets"] < asked + 20:  # ten triggers
            assert query.isActive
        assert stream.journaled == 1
        append(broker, "orders", [b"new"])
        query.processAllAvailable()
    finally:
        query.stop()
    assert [row.value for row in stream.batches[1]] == [b"new"]
    assert stream.journaled == 2


def test_a_batch_that_failed_is_read_again_as_it_was(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path / "checkpoint", odradek_chroot)

    def fail(_: int) -> None:
        append(broker, "orders", [b"late"])
        raise ValueError("the sink is full")

    assert "the sink is full" in raised(lambda: stream.drain(fail))
    (failed,) = stream.batches
    again = stream.drain()
    assert again[0] == failed
    assert [row.value for batch in again[1:] for row in batch] == [b"late"]
