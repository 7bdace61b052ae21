"""Writers as Spark's processes run them, without Spark: every row once, or an error that says what is known."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from odradek.client.producer.results import Ack, Acks
from odradek.errors import ConfigError, DeadlineError
from odradek.ranges import process
from odradek.spark.schema import BadRow
from odradek.spark.sink import Attempt, BatchWriter, StreamWriter, TaskCommit, WriteCounts, WriteError, report
from odradek.spark.source import OdradekSource
from odradek.testing import FaultProxy, Kafka07Broker
from odradek.testing.process import reserve_port
from odradek.types import MiB, Position, TopicPartition

from .made import rows_of, write_log

VALUES = StructType().add("value", "string")


@pytest.fixture(autouse=True)
def disconnected() -> Iterator[None]:
    yield
    process.disconnect()


@pytest.fixture
def broker(odradek_kafka07_broker: Callable[..., Kafka07Broker]) -> Kafka07Broker:
    return odradek_kafka07_broker(config={"num.partitions": "2"})


@pytest.fixture
def options(odradek_chroot: str) -> dict[str, str]:
    return {"kafka.zk.connect": odradek_chroot, "topic": "t"}


def batch_writer(options: Mapping[str, str], schema: StructType = VALUES) -> BatchWriter:
    """As it arrives in a task."""
    writer = pickle.loads(pickle.dumps(OdradekSource(dict(options)).writer(schema, False)))
    assert isinstance(writer, BatchWriter)
    return writer


def write(options: Mapping[str, str], *batches: dict[str, Any], schema: StructType | None = None) -> TaskCommit:
    """A task's message, as it arrives on the driver."""
    kinds = {"value": "string", "topic": "string", "key": "string", "broker": "integer", "partition": "integer"}
    if schema is None:
        schema = StructType()
        for name in batches[0]:
            schema.add(name, kinds[name])
    arrow = {"broker": pa.int32(), "partition": pa.int32()}
    made = (
        pa.record_batch({name: pa.array(cells, arrow.get(name, pa.string())) for name, cells in batch.items()})
        for batch in batches
    )
    written = pickle.loads(pickle.dumps(batch_writer(options, schema).write(made)))
    assert isinstance(written, TaskCommit)
    return written


def values(broker: Kafka07Broker, topic: str = "t") -> list[bytes]:
    broker.flush()
    return [row.value for row in rows_of(broker.log_dir, topic=topic)]


def as_task(monkeypatch: pytest.MonkeyPatch, properties: Mapping[str, str], attempt: int = 0) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", None)  # of which there is only one
    TaskContext(partitionId=4, attemptNumber=attempt, localProperties=dict(properties))


# ---- what is written -----------------------------------------------------------------------------------------


def test_every_row_is_written_once_and_counted(broker: Kafka07Broker, options: dict[str, str]) -> None:
    rows = [f"{n:05}" for n in range(30_000)]
    written = write(options, *({"value": rows[at : at + 1000]} for at in range(0, 30_000, 1000)))
    assert Counter(values(broker)) == Counter(row.encode() for row in rows)
    assert (written.rows, written.bytes, written.attempt) == (30_000, 150_000, Attempt(-1, 0))
    assert {(partition.topic, partition.broker) for partition in written.partitions} == {("t", 1)}
    counts = Counter(TopicPartition("t", row.partition, 1) for row in rows_of(broker.log_dir))
    assert {partition: counted.rows for partition, counted in written.partitions.items()} == counts
    assert all((counted.repeated, counted.first) == (0, None) for counted in written.partitions.values())


def test_rows_of_a_partition_stay_in_order(broker: Kafka07Broker, options: dict[str, str]) -> None:
    rows = [f"{n:06}" * 40 for n in range(60_000)]
    target = {"broker": [1] * 5000, "partition": [1] * 5000}
    write(options, *({"value": rows[at : at + 5000], **target} for at in range(0, 60_000, 5000)))
    assert values(broker) == [row.encode() for row in rows]


def test_columns_say_where_each_row_goes(broker: Kafka07Broker, options: dict[str, str]) -> None:
    del options["topic"]
    rows = {
        "value": ["a", "b", "c", "d", "e", "f"],
        "topic": ["t", "u", "t", "t", "u", "t"],
        "key": ["k", None, "k", None, None, None],
        "broker": [None, 1, None, 1, 1, 1],
        "partition": [None, 1, None, 0, 1, 1],
    }
    written = write(options, rows, rows)
    assert sorted(values(broker)) == sorted([b"a", b"c", b"d", b"f"] * 2)
    broker.flush()
    written_rows = {(row.value, row.topic, row.partition) for row in rows_of(broker.log_dir)}
    assert {(b"b", "u", 1), (b"e", "u", 1), (b"d", "t", 0), (b"f", "t", 1)} < written_rows
    assert len({partition for value, _, partition in written_rows if value in (b"a", b"c")}) == 1
    assert written.rows == 12


def test_equal_keys_go_to_one_partition(
    tmp_path: Path, odradek_kafka07_broker: Callable[..., Kafka07Broker], options: dict[str, str]
) -> None:
    for partition in (0, 1):  # a topic that is made by writing to it begins with one, and then keys move
        write_log(tmp_path, "t", partition)
    broker = odradek_kafka07_broker(log_dir=tmp_path, config={"num.partitions": "2"})
    keys = [f"k{n % 20}" for n in range(2000)]
    write(options, {"value": keys, "key": keys})
    broker.flush()
    written_rows = {(row.value, row.partition) for row in rows_of(broker.log_dir)}
    assert len(written_rows) == 20
    assert {partition for _, partition in written_rows} == {0, 1}


@pytest.mark.parametrize("compression", ["gzip", "snappy"])
def test_values_are_compressed_when_that_is_asked_for(
    broker: Kafka07Broker, options: dict[str, str], compression: str
) -> None:
    written = write({**options, "compression": compression}, {"value": ["x" * 1000] * 1000})
    assert values(broker) == [b"x" * 1000] * 1000
    assert written.bytes == 1_000_000
    assert sum(file.stat().st_size for file in broker.log_dir.glob("t-*/*.kafka")) < 200_000


def test_large_rows(broker: Kafka07Broker, options: dict[str, str]) -> None:
    rows = [str(n) * 1_000_000 for n in range(10)]
    written = write(options, {"value": rows[:4]}, {"value": rows[4:]})
    assert sorted(values(broker)) == [row.encode() for row in rows]
    assert written.bytes == 10_000_000


def test_no_rows_need_no_cluster() -> None:
    nowhere = {"kafka.zk.connect": "127.0.0.1:1", "topic": "t", "deliverWithin": "1"}
    assert write(nowhere, {"value": []}).rows == 0
    assert batch_writer(nowhere).write(iter([])) == TaskCommit(Attempt(-1, 0))


def test_the_next_task_uses_the_same_connections(broker: Kafka07Broker, options: dict[str, str]) -> None:
    write(options, {"value": ["a"]})
    before = broker.statistics().connections_total
    write(options, {"value": ["b"]})
    assert broker.statistics().connections_total == before


# ---- what is not ---------------------------------------------------------------------------------------------


def test_a_row_that_is_too_large_fails_its_task(broker: Kafka07Broker, options: dict[str, str]) -> None:
    with pytest.raises(WriteError, match="3 rows written, 2 rejected: t: message of 1001 bytes") as caught:
        write({**options, "maxMessageBytes": "1000"}, {"value": ["a", "b" * 1001, "c", "d" * 1001, "e"]})
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.written, error.rejected, error.not_written, error.unknown) == (3, 2, 0, 0)
    assert str(error) == str(caught.value)
    assert error.reasons == ("t: message of 1001 bytes is larger than 1000 (raise maxMessageBytes)",)
    assert sorted(values(broker)) == [b"a", b"c", b"e"]


def test_a_null_stops_the_task_before_its_batch(broker: Kafka07Broker, options: dict[str, str]) -> None:
    """What was on its way meanwhile may be written, or some of it."""
    large = ["x" * (1 * MiB - 100_000)] * 9  # more than is sent together
    with pytest.raises(BadRow, match="row 10 of the task: value is null"):
        write(options, {"value": large}, {"value": ["y", None]})
    assert Counter(values(broker)) <= Counter(row.encode() for row in large)


def test_an_error_of_spark_leaves_nothing_behind(broker: Kafka07Broker, options: dict[str, str]) -> None:
    """Such as one of the query above: rows before it may be written, and the next task is not in its way."""

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield pa.record_batch({"value": ["x" * 1000] * 9000})
        raise ValueError("of Spark")

    with pytest.raises(ValueError, match="of Spark"):
        batch_writer(options).write(batches())
    before = len(values(broker))
    assert 18_000 <= before <= 27_000  # rows are sent some MiB at a time: the third part was on its way
    assert write(options, {"value": ["a"]}).rows == 1
    assert len(values(broker)) == before + 1


def test_no_cluster_fails_the_task_in_time() -> None:
    with pytest.raises(DeadlineError, match="connecting to the cluster"):
        write({"kafka.zk.connect": "127.0.0.1:1", "topic": "t", "deliverWithin": "500"}, {"value": ["a"]})


def test_a_broker_that_stays_away_fails_the_task_with_what_is_known(
    broker: Kafka07Broker, options: dict[str, str], odradek_fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = odradek_fault_proxy(broker.host, broker.port)
    # Within this time the first task and the last one also connect, which has to work.
    listed = {"kafka.broker.list": f"1:{proxy.address}", "topic": "t", "deliverWithin": "10s"}
    target: dict[str, Any] = {"broker": [1], "partition": [0]}
    assert write(listed, {"value": ["a"], **target}).rows == 1

    kept: list[socket.socket] = []

    def rows() -> Iterator[pa.RecordBatch]:
        proxy.refuse()
        kept.append(reserve_port(proxy.port)[1])  # nobody else gets it for these seconds
        proxy.cut()
        yield pa.record_batch({"value": ["b", "c"]})

    with pytest.raises(WriteError, match=r"0 rows written, 2 (not written|in an unknown state): ") as caught:
        batch_writer(listed).write(rows())
    assert "another attempt of the task writes all of its rows again" in str(caught.value)
    proxy.accept()
    kept.pop().close()
    assert write(listed, {"value": ["d"], **target}).rows == 1
    assert set(values(broker)) in ({b"a", b"d"}, {b"a", b"b", b"c", b"d"})


def test_a_broker_that_dies_in_the_middle_loses_nothing(broker: Kafka07Broker, options: dict[str, str]) -> None:
    """It comes back while the task is trying: what the producer had to send again may be there twice, which is said."""
    rows = [f"{n:06}" * 50 for n in range(200_000)]
    again = threading.Event()

    def batches() -> Iterator[dict[str, Any]]:
        for at in range(0, len(rows), 10_000):
            if at == 100_000:
                threading.Thread(target=restart).start()
            if at == 190_000:
                assert again.wait(100)
            yield {"value": rows[at : at + 10_000]}

    def restart() -> None:
        broker.kill(drop_session=True)
        broker.start()
        again.set()

    made = (pa.record_batch(batch) for batch in batches())
    written = batch_writer(options).write(made)
    assert isinstance(written, TaskCommit)
    written_rows = Counter(values(broker))
    assert written_rows.keys() == {row.encode() for row in rows}
    twice = sum(count - 1 for count in written_rows.values())
    assert written.rows == len(rows)
    assert twice <= sum(counted.repeated for counted in written.partitions.values())


# ---- what is refused -----------------------------------------------------------------------------------------


def test_overwriting_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r'cannot be overwritten: write with \.mode\("append"\)'):
        OdradekSource(options).writer(VALUES, True)


def test_mode_complete_writes_all_rows_again(broker: Kafka07Broker, options: dict[str, str]) -> None:
    for _ in range(2):
        writer = OdradekSource(options).streamWriter(VALUES, True)
        assert isinstance(writer, StreamWriter)
        writer.write(iter([pa.record_batch({"value": pa.array(["a", "b"])})]))
    assert Counter(values(broker)) == {b"a": 2, b"b": 2}


def test_a_partition_alone_names_that_of_the_only_broker_that_has_it(
    options: dict[str, str], odradek_kafka07_broker: Callable[..., Kafka07Broker], tmp_path: Path
) -> None:
    for name, partition in (("one", 0), ("one", 1), ("other", 0)):
        write_log(tmp_path / name, "t", partition)
    broker = odradek_kafka07_broker(log_dir=tmp_path / "one", broker_id=1, config={"num.partitions": "2"})
    write(options, {"value": ["a", "b"], "partition": [1, 0]})
    broker.flush()
    assert {(row.value, row.partition) for row in rows_of(broker.log_dir)} == {(b"a", 1), (b"b", 0)}
    with pytest.raises(ConfigError, match="t/7: no broker has it: name one in column broker"):
        write(options, {"value": ["a"], "partition": [7]})
    odradek_kafka07_broker(log_dir=tmp_path / "other", broker_id=2, config={"num.partitions": "1"})
    process.disconnect()
    with pytest.raises(ConfigError, match='column partition: t/0 is on 2 brokers: name it with its broker, "1-0" or'):
        write(options, {"value": ["a"], "partition": [0]})


def test_columns_of_the_source_that_are_not_written_are_left_out(
    broker: Kafka07Broker, options: dict[str, str]
) -> None:
    """So that a whole row of the source can be written, as to Spark's own sink."""
    fields = StructType().add("value", "string").add("offset", "long").add("timestamp", "timestamp")
    batch = pa.record_batch({"value": ["a"], "offset": [1], "timestamp": [None]})
    batch_writer(options, fields).write(iter([batch]))
    assert values(broker) == [b"a"]


def test_speculation_is_refused_before_anything_is_sent(
    broker: Kafka07Broker, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_task(monkeypatch, {"spark.speculation": "true"})
    with pytest.raises(ConfigError, match=r"spark\.speculation is true"):
        write(options, {"value": ["a"]})
    assert not list(broker.log_dir.glob("t-*"))


# ---- what is said --------------------------------------------------------------------------------------------


def test_a_task_that_is_tried_again_says_so(
    broker: Kafka07Broker, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    as_task(monkeypatch, {"spark.speculation": "false"}, attempt=2)
    written = write(options, {"value": ["a"]})
    assert written.attempt == Attempt(4, 2)
    assert "partition 4 attempt 2: rows that an earlier attempt has written are written again" in caplog.text
    report("committed", [written], "")
    assert "rows may be duplicates: 1 tasks were tried again" in caplog.text


def test_a_micro_batch_is_named(
    broker: Kafka07Broker, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7", "spark.jobGroup.id": "r"}
    as_task(monkeypatch, said)
    writer = OdradekSource(options).streamWriter(VALUES, False)
    assert isinstance(writer, StreamWriter)
    written = pickle.loads(pickle.dumps(writer)).write(iter([pa.record_batch({"value": ["a"]})]))
    assert written.attempt == Attempt(4, 0, "q", "r", 7)
    assert str(written.attempt) == "query q batch 7 partition 4 attempt 0"


def message(rows: int, *, attempt: int = 0, batch: int = -1, run: str = "r") -> TaskCommit:
    counts = {TopicPartition("t", 0, 1): WriteCounts(rows, 0), TopicPartition("u", attempt, 1): WriteCounts(1, 1)}
    query = ("q", run, batch) if batch >= 0 else ()
    return TaskCommit(Attempt(rows, attempt, *query), rows * 10, counts)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def test_a_commit_is_summed_up_in_the_log_and_in_the_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "new" / "report"
    report("committed", [message(5), message(7, attempt=1)], str(path))
    report("aborted", [message(2), None], str(path))
    first, second = lines(path)
    assert first == {
        "outcome": "committed",
        "tasks": 2,
        "lost": 0,
        "retried": 1,
        "replayed": False,
        "rows": 14,
        "bytes": 120,
        "topics": {
            "t": {"1-0": {"rows": 12, "repeated": 0}},
            "u": {"1-0": {"rows": 1, "repeated": 1}, "1-1": {"rows": 1, "repeated": 1}},
        },
    }
    assert (second["outcome"], second["tasks"], second["lost"], second["rows"]) == ("aborted", 1, 1, 3)
    said = [record.getMessage() for record in caplog.records if record.name == "odradek.spark.sink"]
    assert said[0].startswith("committed 14 rows, 120 bytes, 3 partitions of topics; rows may be duplicates: 1 tasks")
    assert "1 tasks failed, and what they wrote stays" in said[1]
    report("committed", [message(5)], "")
    assert caplog.records[-1].levelname == "INFO"


@pytest.mark.parametrize("outcome", ["committed", "aborted"])
def test_a_report_that_cannot_be_written_does_not_fail_what_was_written(
    outcome: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "report"):
        assert report(outcome, [message(5)], str(path))["rows"] == 6
        (said,) = (text for text in caplog.messages if text.startswith("the report cannot be written: "))
        assert str(tmp_path) in said
        caplog.clear()


def test_a_batch_that_is_written_again_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "report"
    for batch, run in ((0, "r"), (1, "r"), (1, "s"), (2, "s")):
        report("committed", [message(1, batch=batch, run=run)], str(path))
    assert [(line["batch"], line["replayed"]) for line in lines(path)] == [
        (0, False),
        (1, False),
        (1, True),
        (2, False),
    ]
    assert "the batch was written before" in caplog.text


def test_a_batch_that_one_run_writes_to_several_topics_is_not_written_again(tmp_path: Path) -> None:
    """`foreachBatch` does, and may try one of them again."""
    path = tmp_path / "report"
    for outcome in ("committed", "committed", "aborted", "committed"):
        report(outcome, [message(1, batch=3)], str(path))
    assert [line["replayed"] for line in lines(path)] == [False, False, False, True]


def test_a_line_that_was_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "report"
    report("committed", [message(1, batch=0)], str(path))
    path.write_bytes(path.read_bytes() + b'{"outcome": "comm')
    assert report("committed", [message(1, batch=0, run="s")], str(path))["replayed"]
    assert json.loads(path.read_bytes().splitlines()[-1])["replayed"]


def test_positions_are_ranges_where_a_cluster_tells_them() -> None:
    """None does before Kafka 0.8; what counts them is the same."""
    partition = TopicPartition("t", 0)
    written = TaskCommit(Attempt(0, 0))
    acks = [Ack(partition, Position(at), 5, True, at == 20) for at in (20, 10, 30)]
    outcome: Future[list[Acks]] = Future()
    outcome.set_result([Acks(acks, ()), Acks([Ack(partition, None, 1, True, False)], ())])
    written.finish(outcome, 16)
    assert report("committed", [written], "")["topics"]["t"]["0"] == {
        "rows": 16,
        "repeated": 5,
        "first": 10,
        "last": 34,
    }
