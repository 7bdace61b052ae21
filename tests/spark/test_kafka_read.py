"""Reading from a real broker of 0.8 or later: as Spark's processes call the source, and through Spark itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import odradek as od
from odradek.core.interfaces import LogDecoder, PartitionFetch
from odradek.errors import ConfigError
from odradek.ranges import process, reader
from odradek.ranges.planning import DataLoss
from odradek.ranges.reader import CompletedRange, read_task
from odradek.spark.readers import BatchReader
from odradek.testing import KafkaBroker

from ..brokers import foreign
from .kafka import batch, delete, numbers, recreate, rows, stream, values, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2


@pytest.fixture
def topic(odradek_kafka: KafkaBroker) -> str:
    """A topic of this test's own."""
    name = f"spark{uuid4().hex[:12]}"
    odradek_kafka.create_topic(name, PARTITIONS)
    return name


# ---- batch ---------------------------------------------------------------------------------------------------


def test_a_topic_is_read_whole_with_the_columns_of_sparks_own_source(odradek_kafka: KafkaBroker, topic: str) -> None:
    written: list[foreign.Row] = [
        (b"k", b"v", [("a", b"1"), ("b", None)], 1_700_000_000_123),
        (None, b"", (), 1_700_000_000_124),
        (b"gone", None, (), 1_700_000_000_125),
    ]
    foreign.produce("librdkafka", odradek_kafka, topic, written, ["zstd"])
    reader = batch(odradek_kafka, subscribe=topic, includeHeaders="true")
    read = rows(reader, reader.partitions())
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert list(read[0]) == names
    assert [(row["key"], row["value"], row["offset"], row["timestampType"]) for row in read] == [
        (b"k", b"v", 0, 0), (None, b"", 1, 0), (b"gone", None, 2, 0)
    ]  # fmt: skip
    assert read[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert read[1]["headers"] is None
    assert read[0]["timestamp"].timestamp() == pytest.approx(1_700_000_000.123, abs=1e-6)


def test_exact_ranges_may_begin_and_end_inside_a_batch(odradek_kafka: KafkaBroker, topic: str) -> None:
    write(odradek_kafka, topic, numbers(1000), compression="lz4")
    write(odradek_kafka, topic, numbers(10), partition=1)
    reader = batch(
        odradek_kafka,
        subscribe=topic,
        startingOffsets=json.dumps({topic: {"0": 123, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": 777, "1": -1}}),
    )
    expected = [(0, number, b"%05d" % number) for number in range(123, 777)]
    assert values(reader) == expected + [(1, number, b"%05d" % number) for number in range(10)]
    split = batch(odradek_kafka, assign=json.dumps({topic: [0]}), minPartitions=7)
    assert len(split.partitions()) == 7
    assert values(split) == [(0, number, b"%05d" % number) for number in range(1000)]


def test_hardly_more_is_fetched_than_a_range_has(
    odradek_kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(odradek_kafka, topic, [bytes(10_000)] * 1000, tuning=od.Tuning(batch_bytes=20_000))
    fetches: list[PartitionFetch] = []

    class Recorded(PartitionFetch):
        def __init__(self, decoder: LogDecoder, max_bytes: int) -> None:
            super().__init__(decoder, max_bytes)
            fetches.append(self)

    monkeypatch.setattr(reader, "PartitionFetch", Recorded)
    ends = {"startingOffsets": json.dumps({topic: {"0": 0}}), "endingOffsets": json.dumps({topic: {"0": 30}})}
    assert len(values(batch(odradek_kafka, assign=json.dumps({topic: [0]}), **ends))) == 30  # 0.3 MB of 10 MB
    assert len(fetches) > 1
    assert 300_000 <= sum(fetch.received for fetch in fetches) < 400_000


def test_a_process_that_planned_nothing_reads_its_task(odradek_kafka: KafkaBroker, topic: str) -> None:
    write(odradek_kafka, topic, numbers(10))
    reader = batch(odradek_kafka, subscribe=topic)
    tasks = reader.partitions()
    process.disconnect()  # as Spark's workers, which know nothing of the cluster but their tasks
    assert [row["offset"] for row in rows(reader, tasks)] == list(range(10))


def test_times_choose_the_first_record_of_that_time_or_later(odradek_kafka: KafkaBroker, topic: str) -> None:
    written: list[foreign.Row] = [(None, b"%d" % n, (), 1_700_000_000_000 + 1000 * n) for n in range(10)]
    foreign.produce("librdkafka", odradek_kafka, topic, written, ["none"])
    one = {"assign": json.dumps({topic: [0]})}
    between = batch(odradek_kafka, **one, startingTimestamp=1_700_000_002_500, endingTimestamp=1_700_000_007_000)
    assert [value for _, _, value in values(between)] == [b"3", b"4", b"5", b"6"]
    late = {**one, "startingTimestamp": 1_800_000_000_000}
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy=latest"):
        batch(odradek_kafka, **late).partitions()
    assert not values(batch(odradek_kafka, **late, startingOffsetsByTimestampStrategy="latest"))


def test_committed_transactions_are_read_and_aborted_ones_are_not(odradek_kafka: KafkaBroker, topic: str) -> None:
    foreign.write_transactions(odradek_kafka, topic)
    committed = {"assign": json.dumps({topic: [0]}), "kafka_isolation_level": "read_committed"}
    assert [value for _, _, value in values(batch(odradek_kafka, **committed))] == [b"committed", b"plain"]
    everything = batch(odradek_kafka, assign=json.dumps({topic: [0]}))
    assert [value for _, _, value in values(everything)] == [b"committed", b"aborted", b"plain", b"open"]


def test_a_query_that_has_read_an_open_transaction_waits_for_its_end_when_it_is_to_read_committed_records(
    odradek_kafka: KafkaBroker, topic: str
) -> None:
    foreign.write_transactions(odradek_kafka, topic)  # the last stable offset is 5, and the log ends at 6
    before = stream(odradek_kafka, assign=json.dumps({topic: [0]}), startingOffsets="earliest")
    reached = before.latestOffset(before.initialOffset(), ReadAllAvailable())
    assert reached["topics"] == {topic: {"0": 6}}
    committed = stream(odradek_kafka, assign=json.dumps({topic: [0]}), kafka_isolation_level="read_committed")
    assert committed.latestOffset(reached, ReadAllAvailable()) == reached


@pytest.mark.parametrize("fail", ["true", "false"])
def test_an_end_behind_open_transactions_is_refused_and_the_error_names_the_last_stable_offset(
    odradek_kafka: KafkaBroker, topic: str, fail: str
) -> None:
    foreign.write_transactions(odradek_kafka, topic)  # the last stable offset is 5, and the log ends at 6
    reader = batch(
        odradek_kafka,
        assign=json.dumps({topic: [0]}),
        endingOffsets=json.dumps({topic: {"0": 6}}),
        kafka_isolation_level="read_committed",
        failOnDataLoss=fail,
    )
    with pytest.raises(
        ConfigError, match=f"endingOffsets: {topic}/0 is to end at 6, but transactions are open from 5 "
    ):
        reader.partitions()


def test_a_range_reports_what_it_gave_even_if_that_is_nothing(odradek_kafka: KafkaBroker, topic: str) -> None:
    foreign.write_transactions(odradek_kafka, topic)  # 0 committed, 1 its marker, 2 aborted, 3 its marker, 4 plain
    reader = batch(
        odradek_kafka,
        assign=json.dumps({topic: [0]}),
        kafka_isolation_level="read_committed",
        startingOffsets=json.dumps({topic: {"0": 1}}),
        maxRecordsPerPartition=3,
    )
    covered = completed(reader)
    assert [part.start for part in covered] == [1, *(part.end for part in covered[:-1])]
    assert sum(part.rows for part in covered) == 1


def completed(reader: BatchReader) -> list[CompletedRange]:
    """What tasks say that they have read to its end, in the order of the logs."""
    chunks = (chunk for task in reader.partitions() for chunk in read_task(task.value, reader._options))
    return sorted(chunk for chunk in chunks if isinstance(chunk, CompletedRange))


def test_offsets_without_records_are_no_loss(odradek_kafka: KafkaBroker) -> None:
    """Compaction leaves holes: here only the last of each key stays."""
    topic = f"compacted{uuid4().hex[:8]}"
    settings = {
        "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0", "delete.retention.ms": "0",
    }  # fmt: skip
    odradek_kafka.create_topic(topic, 1, config=settings)
    written = {b"same": [b"%d" % number for number in range(100)], b"other": [b"x"]}
    for second, (key, changes) in enumerate(written.items()):  # each key has a segment of its own
        records: list[foreign.Row] = [(key, value, (), 1_700_000_000_000 + 1000 * second) for value in changes]
        foreign.produce("librdkafka", odradek_kafka, topic, records, ["none"])
    reader = batch(odradek_kafka, subscribe=topic)
    while len(left := rows(reader, reader.partitions())) > 2:  # until the cleaner is through, or the time-out
        pass
    (part,) = completed(reader)
    assert (part.start, part.end, part.rows) == (0, 101, 2)
    assert {row["key"]: row["value"] for row in left} == {b"same": b"99", b"other": b"x"}


def test_deleted_records_are_a_loss_unless_the_options_say_otherwise(odradek_kafka: KafkaBroker, topic: str) -> None:
    write(odradek_kafka, topic, numbers(20))
    reader = stream(odradek_kafka, subscribe=topic, startingOffsets="earliest")
    start = {"v": 1, "topics": {topic: {"0": 3, "1": 0}}}
    end = {"v": 1, "topics": {topic: {"0": 25, "1": 0}}}
    with pytest.raises(DataLoss, match=r"wanted \[20, 25\), the log now has \[0, 20\)"):
        reader.partitions(start, end)
    lenient = stream(odradek_kafka, subscribe=topic, failOnDataLoss="false")
    assert [row["offset"] for row in rows(lenient, lenient.partitions(start, end))] == list(range(3, 20))


def test_a_topic_that_is_made_again_after_tasks_were_planned_is_data_loss(
    odradek_kafka: KafkaBroker, topic: str
) -> None:
    write(odradek_kafka, topic, numbers(20))
    reader, lenient = (stream(odradek_kafka, subscribe=topic, failOnDataLoss=each) for each in ("true", "false"))
    start = {"v": 1, "topics": {topic: {"0": 0, "1": 0}}}
    end = lenient.latestOffset(start, lenient.getDefaultReadLimit())
    tasks = reader.partitions(start, end)
    recreate(odradek_kafka, topic, PARTITIONS)
    write(odradek_kafka, topic, numbers(30, 1000))
    with pytest.raises(DataLoss, match=r"deleted and made again: wanted \[0, 20\)"):
        rows(reader, tasks)
    assert rows(lenient, tasks) == []
    following = lenient.latestOffset(end, lenient.getDefaultReadLimit())
    assert [row["value"] for row in rows(lenient, lenient.partitions(end, following))] == numbers(30, 1000)


def test_a_topic_that_is_deleted_is_data_loss(odradek_kafka: KafkaBroker, topic: str) -> None:
    write(odradek_kafka, topic, numbers(20))
    by_name, by_pattern = {"subscribe": topic}, {"subscribePattern": f"^{topic}$"}
    readers = [stream(odradek_kafka, startingOffsets="earliest", **options) for options in (by_name, by_pattern)]
    start = readers[0].initialOffset()
    end = [strict.latestOffset(start, strict.getDefaultReadLimit()) for strict in readers]
    delete(odradek_kafka, topic)
    for strict, reached in zip(readers, end, strict=True):
        with pytest.raises(DataLoss, match=rf"{topic}/0: no broker has this partition: wanted everything from 20 on"):
            strict.latestOffset(reached, strict.getDefaultReadLimit())
    lenient = stream(odradek_kafka, failOnDataLoss="false", **by_name)
    assert lenient.latestOffset(end[0], lenient.getDefaultReadLimit()) == {"v": 1, "topics": {}}


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_process_that_has_read_the_former_topic_reads_the_one_that_was_made_again(
    odradek_kafka: KafkaBroker, topic: str, strict: str
) -> None:
    write(odradek_kafka, topic, numbers(20))
    start = {"v": 1, "topics": {topic: {"0": 0, "1": 0}}}
    # Another time limit gives tasks a connection of their own, as a process of their own does.
    reader = stream(odradek_kafka, subscribe=topic, failOnDataLoss=strict, **{"kafkaConsumer.pollTimeoutMs": 9000})

    def read() -> list[bytes]:
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        return [row["value"] for row in rows(reader, reader.partitions(start, end))]

    assert read() == numbers(20)
    recreate(odradek_kafka, topic, PARTITIONS)
    write(odradek_kafka, topic, numbers(30, 1000))
    assert read() == numbers(30, 1000)


@pytest.mark.releases("2.8.2")
@pytest.mark.parametrize("sure_s", [0.0, 1000.0], ids=["noticed", "unnoticed"])
def test_fetches_that_name_a_topic_do_not_go_on_in_one_that_is_made_again(
    any_kafka: KafkaBroker, sure_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.io.kafka.topic_check.SURE_S", sure_s)
    topic = f"spark{uuid4().hex[:12]}"
    any_kafka.create_topic(topic, 1)
    write(any_kafka, topic, numbers(20))
    options = {"subscribe": topic, "kafkaConsumer.pollTimeoutMs": 9000}  # tasks have a connection of their own
    lenient = stream(any_kafka, failOnDataLoss="false", **options)
    start = {"v": 1, "topics": {topic: {"0": 0}}}
    tasks = lenient.partitions(start, lenient.latestOffset(start, lenient.getDefaultReadLimit()))
    assert [row["value"] for row in rows(lenient, tasks)] == numbers(20)
    recreate(any_kafka, topic, 1)
    write(any_kafka, topic, numbers(5, 1000))
    with pytest.raises(DataLoss, match="deleted and made again"):
        rows(stream(any_kafka, **options), tasks)
    chunks = [chunk for task in tasks for chunk in read_task(task.value, lenient._options)]
    assert chunks == [], "nothing of the former topic is counted as read"


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_start_behind_the_end_of_the_log_is_an_error_of_a_batch_as_in_sparks_own_source(
    odradek_kafka: KafkaBroker, topic: str, strict: str
) -> None:
    write(odradek_kafka, topic, numbers(20))
    behind, end = (json.dumps({topic: {"0": offset, "1": 0}}) for offset in (21, 20))
    with pytest.raises(ConfigError, match=r"/0: starts at 21, but ends at 20"):
        batch(odradek_kafka, subscribe=topic, startingOffsets=behind, failOnDataLoss=strict).partitions()
    at_end = batch(odradek_kafka, subscribe=topic, startingOffsets=end)
    assert values(at_end) == []


def test_a_topic_that_does_not_exist_is_an_error(odradek_kafka: KafkaBroker) -> None:
    with pytest.raises(ConfigError, match="nothing has no-such-topic"):
        stream(odradek_kafka, subscribe="no-such-topic").initialOffset()


# ---- streams -------------------------------------------------------------------------------------------------


def test_a_micro_batch_has_as_many_records_as_allowed(odradek_kafka: KafkaBroker, topic: str) -> None:
    write(odradek_kafka, topic, numbers(25))
    write(odradek_kafka, topic, numbers(5), partition=1)
    reader = stream(odradek_kafka, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    begin = offset = reader.initialOffset()
    assert begin["topics"] == {topic: {"0": 0, "1": 0}}
    assert list(begin["ids"]) == [topic]
    read, sizes = [], []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        some = rows(reader, reader.partitions(offset, end))
        sizes.append(len(some))
        read += [(row["partition"], row["offset"]) for row in some]
        offset = end
    assert max(sizes) <= 11
    assert sorted(read) == [*((0, n) for n in range(25)), *((1, n) for n in range(5))]
    assert len(read) == len(set(read))


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_micro_batch_that_was_begun_with_other_topics_is_read_whole(
    odradek_kafka: KafkaBroker, topic: str, strict: str
) -> None:
    """As by Spark's own source: what the batch has is in the checkpoint."""
    left = f"{topic}-left"
    odradek_kafka.create_topic(left, 1)
    write(odradek_kafka, topic, numbers(20))
    write(odradek_kafka, left, numbers(10))
    former = stream(odradek_kafka, subscribePattern=f"^{topic}", startingOffsets="earliest")
    start = former.initialOffset()
    end = former.latestOffset(start, former.getDefaultReadLimit())
    fewer = stream(odradek_kafka, subscribe=topic, failOnDataLoss=strict)
    read = [(row["topic"], row["value"]) for row in rows(fewer, fewer.partitions(start, end))]
    assert read == [*((topic, value) for value in numbers(20)), *((left, value) for value in numbers(10))]
    assert fewer.latestOffset(end, fewer.getDefaultReadLimit()) == end


# ---- through Spark -------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_code_for_sparks_own_source_runs_and_continues_from_its_checkpoint(
    spark: SparkSession, odradek_kafka: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    write(odradek_kafka, topic, numbers(100))

    def run() -> list[str]:
        frame = (
            spark.readStream.format("odradek")
            .option("kafka.bootstrap.servers", odradek_kafka.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("kafka.group.id", "unused")
            .option("maxOffsetsPerTrigger", 30)
            .load()
            .selectExpr("CAST(value AS STRING) AS value", "offset")
        )
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "table"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(row.value for row in spark.read.parquet(str(tmp_path / "table")).collect())

    assert run() == [number.decode() for number in numbers(100)]
    write(odradek_kafka, topic, [b"more"])
    assert run() == [*(number.decode() for number in numbers(100)), "more"]
