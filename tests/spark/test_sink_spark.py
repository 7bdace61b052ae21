"""The sink in a real Spark, local[2]: what only Spark can tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odradek.testing import Kafka07Broker
from odradek.types import MiB

from .child import PATHS, WAIT_S
from .classes import spark_environ
from .made import append, rows_of, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)
"""The first test starts Spark."""


@pytest.fixture
def broker(tmp_path: Path, odradek_kafka07_broker: Callable[..., Kafka07Broker]) -> Kafka07Broker:
    log_dir = tmp_path / "logs"
    for topic in ("in", "t"):
        for partition in (0, 1):
            write_log(log_dir, topic, partition)
    return odradek_kafka07_broker(log_dir=log_dir, config={"num.partitions": "2"})


def values(broker: Kafka07Broker, topic: str = "t") -> Counter[bytes]:
    broker.flush()
    return Counter(row.value for row in rows_of(broker.log_dir, topic=topic))


def save(frame: DataFrame, chroot: str, **options: str) -> None:
    writer = frame.write.format("odradek").mode("append").option("kafka.zk.connect", chroot)
    writer.options(**options).save()


def raised(action: Callable[[], Any]) -> str:
    """What Spark says of an error in Python. (Its exceptions cannot always be printed.)"""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action()
    return caught.value._desc  # type: ignore[attr-defined,no-any-return]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


# ---- batch ---------------------------------------------------------------------------------------------------


def test_every_row_arrives_once_and_the_report_says_so(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str, tmp_path: Path
) -> None:
    frame = spark.range(0, 50_000, 1, 5).selectExpr("cast(id as string) as value")
    save(frame, odradek_chroot, topic="t", reportPath=str(tmp_path / "report"))
    assert values(broker) == Counter(str(n).encode() for n in range(50_000))
    (line,) = lines(tmp_path / "report")
    assert (line["outcome"], line["tasks"], line["retried"], line["rows"]) == ("committed", 5, 0, 50_000)
    assert line["bytes"] == sum(len(str(n)) for n in range(50_000))
    assert sum(counts["rows"] for counts in line["topics"]["t"].values()) == 50_000


@pytest.mark.parametrize("large", ["false", "true"])
def test_rows_go_where_their_columns_say(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str, large: str
) -> None:
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "cast(cast(id as string) as binary) as value",
        "if(id % 3 = 0, 't', 'u') as topic",
        "if(id % 2 = 0, 'key', null) as key",
        "if(id % 2 = 0, null, 1) as broker",
        "if(id % 2 = 0, null, id % 4 div 2) as partition",
    )
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    try:
        save(frame, odradek_chroot)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    broker.flush()
    stored = rows_of(broker.log_dir)
    assert Counter((row.topic, row.value) for row in stored) == Counter(
        ("u" if n % 3 else "t", str(n).encode()) for n in range(1000)
    )
    named = [row for row in stored if int(row.value) % 2]
    assert [row.partition for row in named] == [int(row.value) % 4 // 2 for row in named]


def test_an_empty_frame_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Spark runs a task for it all the same; there is no cluster at this address."""
    save(
        spark.range(0).selectExpr("cast(id as string) as value"),
        "127.0.0.1:1",
        topic="t",
        reportPath=str(tmp_path / "r"),
    )
    (line,) = lines(tmp_path / "r")
    assert (line["outcome"], line["rows"]) == ("committed", 0)


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("'x' value", {"topci": "t"}, "unknown option 'topci': did you mean topic?"),
        ("'x' value", {}, "no target topic: set option `topic` or add a column `topic`"),
        ("'x' value, array() headers", {"topic": "t"}, "column headers is array<void>: cast it to"),
        ("'x' value, array(named_struct('key', 'k', 'value', X'00')) headers", {"topic": "t"}, "0.7 does not store it"),
        ("id as value", {"topic": "t"}, "column value is bigint: cast it to binary or string"),
        ("nullif('x', 'x') value", {"topic": "t"}, "row 0 of the task: value is null"),
        ("'x' value, nullif('x', 'x') topic", {}, "row 0 of the task: topic is null"),
        ("repeat('x', 101) value", {"topic": "t", "maxMessageBytes": "100"}, "0 rows written, 1 rejected"),
    ],
)
def test_what_cannot_be_written_says_why(
    spark: SparkSession,
    broker: Kafka07Broker,
    odradek_chroot: str,
    columns: str,
    options: dict[str, str],
    says: str,
) -> None:
    frame = (
        spark.range(0, 1, 1, 1).selectExpr(*columns.split(", "))
        if "(" not in columns
        else spark.sql(f"SELECT {columns}")
    )
    assert says in raised(lambda: save(frame, odradek_chroot, **options))
    assert not values(broker)


def test_what_an_aborted_query_has_written_stays_and_is_reported(
    spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str, tmp_path: Path
) -> None:
    frame = spark.range(0, 30_000, 1, 1).selectExpr(
        "nullif(repeat(cast(id as string), 200), repeat('29999', 200)) value"
    )
    report = tmp_path / "report"
    said = raised(lambda: save(frame, odradek_chroot, topic="t", reportPath=str(report)))
    assert "row 29999 of the task: value is null" in said
    stored = values(broker)
    assert 0 < len(stored) < 30_000
    assert set(stored.values()) == {1}
    (line,) = lines(report)
    assert (line["outcome"], line["tasks"], line["lost"], line["rows"]) == ("aborted", 0, 1, 0)


def test_only_appending_works(spark: SparkSession, odradek_chroot: str) -> None:
    writer = spark.range(1).selectExpr("'x' value").write.format("odradek").option("kafka.zk.connect", odradek_chroot)
    said = raised(writer.option("topic", "t").mode("overwrite").save)
    assert 'a topic cannot be overwritten: write with .mode("append")' in said
    assert "errorifexists" in raised(writer.mode("errorifexists").save).lower()


def test_speculation_is_refused(spark: SparkSession, broker: Kafka07Broker, odradek_chroot: str) -> None:
    spark.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    try:
        spark.conf.set("spark.speculation", "true")
        frame = spark.range(1).selectExpr("'x' value")
        assert "spark.speculation is true" in raised(lambda: save(frame, odradek_chroot, topic="t"))
    finally:
        spark.conf.set("spark.speculation", "false")
        spark.conf.unset("spark.sql.legacy.setCommandRejectsSparkCoreConfs")
    assert not values(broker)


# ---- streaming -----------------------------------------------------------------------------------------------


@pytest.fixture
def copy(spark: SparkSession, odradek_chroot: str, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Copies what there is in topic `in` to topic `t`, and goes on there the next time."""

    def run() -> None:
        reader = spark.readStream.format("odradek").option("kafka.zk.connect", odradek_chroot)
        frame = reader.option("subscribe", "in").option("startingOffsets", "earliest").load().select("value")
        writer = frame.writeStream.format("odradek").option("kafka.zk.connect", odradek_chroot).option("topic", "t")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).queryName("copy")
        query = writer.option("reportPath", str(tmp_path / "report")).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    yield run


def test_a_stream_goes_on_where_it_ended(broker: Kafka07Broker, copy: Callable[[], None], tmp_path: Path) -> None:
    expected: Counter[bytes] = Counter()
    for round_number in range(2):
        some = [b"%d-%d" % (round_number, n) for n in range(500)]
        append(broker, "in", some, round_number % 2)
        expected.update(some)
        copy()
        assert values(broker) == expected
    reported = [line for line in lines(tmp_path / "report") if line["rows"]]
    assert [(line["outcome"], line["rows"], line["replayed"]) for line in reported] == [("committed", 500, False)] * 2
    assert len({line["query"] for line in reported}) == 1
    assert len({line["run"] for line in reported}) == 2
    batches = [line["batch"] for line in reported]
    assert batches == sorted(set(batches))


def test_a_batch_whose_end_was_not_noted_is_written_again_and_says_so(
    broker: Kafka07Broker, copy: Callable[[], None], tmp_path: Path
) -> None:
    """What a crash between the sink's commit and Spark's leaves behind: 0.7 has nothing to tell duplicates by."""
    append(broker, "in", [b"a", b"b"])
    copy()
    append(broker, "in", [b"c"])
    copy()
    before = lines(tmp_path / "report")[-1]
    commits = tmp_path / "checkpoint" / "commits"
    (commits / str(before["batch"])).unlink()
    (commits / f".{before['batch']}.crc").unlink(missing_ok=True)
    copy()
    assert values(broker) == {b"a": 1, b"b": 1, b"c": 2}
    again = next(line for line in lines(tmp_path / "report") if line["replayed"])
    assert {**again, "run": before["run"], "replayed": False, "topics": before["topics"]} == before


def test_mode_update_is_refused_by_spark_itself(spark: SparkSession, odradek_chroot: str, tmp_path: Path) -> None:
    frame = spark.readStream.format("rate").load().groupBy("value").count().selectExpr("cast(value as string) value")
    writer = frame.writeStream.format("odradek").outputMode("update").option("kafka.zk.connect", odradek_chroot)
    writer = writer.option("topic", "t").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)

    def run() -> None:
        query = writer.start()
        query.awaitTermination(60)

    assert "does not support Update mode" in raised(run)


# ---- tasks that fail -----------------------------------------------------------------------------------------

RETRIES = """
import sys, time
from pathlib import Path
from odradek.spark.session import session

folder, chroot = Path(sys.argv[1]), sys.argv[2]

def wait(name):
    until = time.monotonic() + 240
    while not (folder / name).exists():
        assert time.monotonic() < until, name
        time.sleep(0.02)

def gate(numbers):
    from pyspark import TaskContext
    attempt = TaskContext.get().attemptNumber()
    if attempt:
        (folder / "again").touch()
        wait("up")
    for number in numbers:
        if number == 50_000 and not attempt:
            (folder / "half").touch()
            wait("down")
        yield (str(number) * 100,)

with session("retries", master="local[1,2]") as spark:
    rows = spark.sparkContext.range(0, 60_000, 1, 1).mapPartitions(gate)
    writer = spark.createDataFrame(rows, "value string").write.format("odradek").mode("append")
    writer = writer.option("kafka.zk.connect", chroot).option("topic", "t").option("deliverWithin", "10s")
    writer.option("reportPath", str(folder / "report")).save()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_task_whose_broker_dies_is_tried_again_and_loses_nothing(
    broker: Kafka07Broker, odradek_chroot: str, tmp_path: Path
) -> None:
    """In a Spark of its own, which tries again."""
    environment = {**os.environ, "PYTHONPATH": PATHS, **spark_environ()}
    command = [sys.executable, "-c", RETRIES, str(tmp_path), odradek_chroot]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as driver:
        try:
            wait_for((tmp_path / "half").exists, driver)
            wait_for(lambda: broker.statistics().bytes_in > MiB, driver)
            broker.kill(drop_session=True)
            (tmp_path / "down").touch()
            wait_for((tmp_path / "again").exists, driver)
            broker.start()
            (tmp_path / "up").touch()
            said, _ = driver.communicate(timeout=WAIT_S)
        finally:
            driver.kill()
    assert driver.returncode == 0, said
    stored = values(broker)
    assert stored.keys() == {str(n).encode() * 100 for n in range(60_000)}
    assert set(stored.values()) == {1, 2}
    (line,) = lines(tmp_path / "report")
    assert (line["outcome"], line["retried"], line["rows"]) == ("committed", 1, 60_000)
    assert "rows that an earlier attempt has written are written again" in said
    assert "rows may be duplicates: 1 tasks were tried again" in said


def wait_for(true: Callable[[], bool], driver: subprocess.Popen[str]) -> None:
    until = time.monotonic() + WAIT_S
    while not true():
        if driver.poll() is not None or time.monotonic() > until:
            driver.kill()
            pytest.fail(driver.communicate()[0])
        time.sleep(0.02)
