"""Log directories of Kafka 0.8 and later, as ranges: planned by offsets, read as `odradek.segments` reads them."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kafka_logs import T0, batch, marker, messages, write_log

from odradek import segments
from odradek.core.interfaces import BYTES, RECORDS
from odradek.errors import ConfigError, CorruptMessage
from odradek.ranges.catalog import find_logs, plan_all
from odradek.ranges.planning import DataLoss, Range, TaskPlan
from odradek.ranges.reader import ColumnsChunk, CompletedRange, read_task
from odradek.spark.options import SourceOptions, parse_source
from odradek.types import TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

ORDERS = TopicPartition("orders", 0)

GZIP = CompressionType.GZIP


def orders(root: Path) -> Path:
    """A log of all formats, with a hole where compaction took records, an aborted transaction and a torn end."""
    return write_log(
        root / "orders-0",
        {
            0: messages(range(5), 0) + messages(range(5, 9), 1, GZIP),
            9: batch(range(9, 20)) + batch(range(30, 40), GZIP),
            40: batch(range(40, 44), producer=(7, 0, 0), is_transactional=True) + marker(44, 7, commit=False),
            45: batch(range(45, 60)) + batch(range(60, 70))[:-3],
        },
    )


def options(root: Path, **more: object) -> SourceOptions:
    return parse_source({"path": str(root), **{name: str(value) for name, value in more.items()}}, streaming=False)


def read(request: SourceOptions, tasks: list[TaskPlan] | None = None) -> Iterator[tuple[int, bytes | None]]:
    """Yield offsets and values of a query, and check that each range was read to its end."""
    for task in plan_all(find_logs(request), request) if tasks is None else tasks:
        chunks = list(read_task(task, request))
        completed = [chunk for chunk in chunks if isinstance(chunk, CompletedRange)]
        assert [each[:3] for each in completed] == [tuple(part) for part in task.ranges]
        rows = [chunk.rows for chunk in chunks if isinstance(chunk, ColumnsChunk)]
        assert sum(each.rows for each in completed) == sum(len(columns.values) for columns in rows)
        for columns in rows:
            yield from zip(columns.positions, columns.values, strict=True)


def stored(log: Path, *, read_committed: bool) -> list[tuple[int, bytes | None]]:
    return [
        row
        for columns in segments.open(log).columns(read_committed=read_committed)
        for row in zip(columns.positions, columns.values, strict=True)
    ]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tasks=st.integers(1, 12), committed=st.booleans())
def test_rows_are_those_of_the_files_wherever_they_are_divided(tmp_path: Path, tasks: int, committed: bool) -> None:
    log = orders(tmp_path)
    level = "read_committed" if committed else "read_uncommitted"
    more = {"minPartitions": tasks, "maxPartitions": tasks, "kafka.isolation.level": level}
    request = options(tmp_path, **more)
    planned = plan_all(find_logs(request), request)
    assert tasks // 2 < len(planned) <= tasks
    assert sorted(read(request, planned)) == stored(log, read_committed=committed)


def test_the_extent_ends_at_the_high_watermark_and_has_the_id_of_the_topic(tmp_path: Path) -> None:
    log = orders(tmp_path)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 50\n")
    topic_id = bytes(range(16))
    text = urlsafe_b64encode(topic_id).decode().rstrip("=")
    (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {text}\n")
    request = options(tmp_path)
    catalog = find_logs(request)
    extent = catalog.extents()[ORDERS]
    assert (extent.earliest, extent.latest, extent.topic_id) == (0, 50, topic_id.hex())
    assert (catalog.unit, catalog.names_brokers) == (RECORDS, False)
    assert [offset for offset, _ in read(request)][-1] == 49


def test_what_is_to_be_known_of_a_log_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = orders(tmp_path)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\norders 0 90\n")
    notes = segments.open(log).notes
    assert any("records that consumers could get are missing here" in note for note in notes)
    logs = find_logs(options(tmp_path))
    for _ in range(2):
        logs.extents()
    assert tuple(record.getMessage() for record in caplog.records) == notes


def test_a_query_starts_at_the_first_record_of_a_time(tmp_path: Path) -> None:
    orders(tmp_path)
    assert next(read(options(tmp_path, startingTimestamp=T0 + 25_000)))[0] == 30
    with pytest.raises(ConfigError, match="no record is as late as the starting time in orders/0"):
        list(read(options(tmp_path, startingTimestamp=T0 + 1_000_000)))


def test_offsets_that_are_gone_are_lost(tmp_path: Path) -> None:
    log = orders(tmp_path)
    (log / f"{0:020}.log").unlink()
    task = TaskPlan((Range(ORDERS, 3, 65),), {ORDERS: str(log)}, {})
    with pytest.raises(DataLoss, match=r"orders/0: .*wanted \[3, 9\)"):
        list(read_task(task, options(tmp_path)))
    chunks = list(read_task(task, options(tmp_path, failOnDataLoss="false")))
    rows = [offset for chunk in chunks if isinstance(chunk, ColumnsChunk) for offset in chunk.rows.positions]
    assert (rows[0], rows[-1]) == (9, 59)
    assert chunks[-1] == CompletedRange(ORDERS, 9, 60, len(rows)), "what is lost was not read"


def test_a_topic_that_is_made_again_after_tasks_were_planned_is_data_loss(tmp_path: Path) -> None:
    def make(number: int) -> None:
        text = urlsafe_b64encode(bytes([number] * 16)).decode().rstrip("=")
        (orders(tmp_path) / "partition.metadata").write_text(f"version: 0\ntopic_id: {text}\n")

    make(1)
    request, lenient = options(tmp_path), options(tmp_path, failOnDataLoss="false")
    tasks = plan_all(find_logs(request), request)
    make(2)
    with pytest.raises(DataLoss, match=r"orders/0: the topic was deleted and made again: wanted \[0, 60\)"):
        list(read(request, tasks))
    assert [chunk for task in tasks for chunk in read_task(task, lenient)] == []
    assert list(read(request)) == list(read(lenient))


def test_a_damaged_batch_ends_the_query_or_is_skipped(tmp_path: Path) -> None:
    log = orders(tmp_path)
    file = log / f"{9:020}.log"
    data = bytearray(file.read_bytes())
    data[70] ^= 1  # in the records of the first batch
    file.write_bytes(data)
    with pytest.raises(
        CorruptMessage, match=r"orders/0 at 9: .*\(corrupt=skip-message continues behind it, corrupt=dead "
    ):
        list(read(options(tmp_path)))
    rest = [offset for offset, _ in read(options(tmp_path, corrupt="skip-message"))]
    assert rest == [*range(9), *range(30, 44), *range(45, 60)]


def test_topics_of_kafka_itself_are_read_if_they_are_named(tmp_path: Path) -> None:
    orders(tmp_path)
    write_log(tmp_path / "__consumer_offsets-3", {0: batch(range(2))})
    assert list(find_logs(options(tmp_path)).extents()) == [ORDERS]
    assert list(find_logs(options(tmp_path, subscribePattern=".*")).extents()) == [ORDERS]
    named = find_logs(options(tmp_path, subscribe="__consumer_offsets")).extents()
    assert list(named) == [TopicPartition("__consumer_offsets", 3)]


def test_directories_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    first, second, old = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    orders(first)
    orders(second)
    (old / "clicks-0").mkdir(parents=True)
    (old / "clicks-0" / f"{0:020}.kafka").write_bytes(encode_set([b"v"]))
    for path, why in (
        (f"{first},{second}", r"orders/0 is both .*a/orders-0 and .*b/orders-0: name one of these copies"),
        (f"1@{first}", r"orders-0: partitions of 0\.8 and later are not numbered by broker: leave 1@ out"),
        (f"{first},{old}", r"is of 0\.7, the other one of a later release: read them one after the other"),
    ):
        request = parse_source({"path": path}, streaming=False)
        with pytest.raises(ConfigError, match=why):
            find_logs(request).extents()


def test_options_are_those_of_offsets(tmp_path: Path) -> None:
    orders(tmp_path)
    assert options(tmp_path, maxRecordsPerPartition=5).task_size == 5
    with pytest.raises(ConfigError, match="maxBytesPerPartition: brokers count records: use maxRecordsPerPartition"):
        options(tmp_path, maxBytesPerPartition="1m")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert find_logs(options(empty)).unit is BYTES
