"""The streaming reader, as Spark's driver calls it, without Spark: offsets, limits, targets and what is new."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from odradek.core.interfaces import BYTES
from odradek.errors import ConfigError, DeadlineError
from odradek.io.kafka07.log_access import Kafka07LogAccess
from odradek.ranges.directories import DirectoryCatalog
from odradek.ranges.planning import DataLoss
from odradek.spark.readers import StreamReader
from odradek.spark.source import OdradekSource
from odradek.testing import Kafka07Broker
from odradek.wire.kafka07.message_set import encode_set

from .made import Row, append, eventually, hard_log, names, read_all, rows_of, stream_reader, whole_schema, write_log

Start = Callable[..., Kafka07Broker]
ALL = ReadAllAvailable()
EACH = 12
"""Bytes of an entry with a payload of two."""


@pytest.fixture
def broker(tmp_path: Path, odradek_kafka07_broker: Start) -> Kafka07Broker:
    write_log(tmp_path, "orders", 0, encode_set([b"%02d" % n for n in range(20)]))
    write_log(tmp_path, "orders", 1, encode_set([b"%02d" % n for n in range(30)]))
    return odradek_kafka07_broker(log_dir=tmp_path, broker_id=3, config={"num.partitions": "2"})


@pytest.fixture
def reader(broker: Kafka07Broker, odradek_chroot: str) -> StreamReader:
    return from_earliest(odradek_chroot)


def from_earliest(chroot: str, **options: object) -> StreamReader:
    named = {"kafka_zk_connect": chroot, "subscribe": "orders", "startingOffsets": "earliest", **options}
    return stream_reader(**{name: value for name, value in named.items() if value})


def offsets(**topics: dict[str, int]) -> dict[str, Any]:
    return {"v": 1, "topics": topics}


def run(reader: StreamReader, start: dict[str, Any], limit: ReadLimit = ALL) -> tuple[dict[str, Any], list[Row]]:
    """One trigger: where it ends, and its rows."""
    end = reader.latestOffset(start, limit)
    return end, read_all(reader, reader.partitions(start, end))


def drain(reader: StreamReader, start: dict[str, Any], limit: ReadLimit = ALL) -> tuple[int, list[Row]]:
    """Triggers until nothing is new: how many, and all rows."""
    rows: list[Row] = []
    count = 0
    while (end := reader.latestOffset(start, limit)) != start:
        assert json.dumps(end) != json.dumps(start)
        rows += read_all(reader, reader.partitions(start, end))
        start, count = end, count + 1
    assert json.dumps(end) == json.dumps(start)  # by text, as Spark compares
    return count, sorted(rows, key=lambda row: row[:5])


def test_a_query_begins_where_its_options_say(broker: Kafka07Broker, odradek_chroot: str) -> None:
    assert from_earliest(odradek_chroot).initialOffset() == offsets(orders={"3-0": 0, "3-1": 0})
    latest = from_earliest(odradek_chroot, startingOffsets="")
    current = latest.initialOffset()
    assert current == offsets(orders={"3-0": 20 * EACH, "3-1": 30 * EACH})
    append(broker, "orders", [b"20"])
    assert latest.initialOffset() is current  # Spark asks twice
    asked = '{"orders":{"3-0":36,"3-1":-2}}'
    begun = from_earliest(odradek_chroot, startingOffsets=asked).initialOffset()
    assert begun == offsets(orders={"3-0": 36, "3-1": 0})
    with pytest.raises(ConfigError, match="no message boundary at 37"):
        from_earliest(odradek_chroot, startingOffsets=asked.replace("36", "37")).initialOffset()


def test_a_stream_has_no_end(odradek_chroot: str) -> None:
    """Raised by the first call: pyspark hides errors of `streamReader` behind one of its own."""
    named = names(kafka_zk_connect=odradek_chroot, subscribe="orders", endingOffsets="latest")
    reader = OdradekSource(named).streamReader(whole_schema({}))
    with pytest.raises(ConfigError, match="endingOffsets: a streaming query has no end"):
        reader.initialOffset()


def test_a_topic_that_does_not_exist_is_an_error_of_a_stream(broker: Kafka07Broker, odradek_chroot: str) -> None:
    with pytest.raises(ConfigError, match=r"nothing has nosuch now: .*subscribePattern waits"):
        from_earliest(odradek_chroot, subscribe="orders,nosuch").initialOffset()
    forgiving = from_earliest(odradek_chroot, subscribe="orders,nosuch", failOnDataLoss="false")
    assert forgiving.initialOffset() == offsets(orders={"3-0": 0, "3-1": 0})


def test_the_progress_shows_the_lag_and_what_is_read(broker: Kafka07Broker, odradek_chroot: str) -> None:
    reader = from_earliest(odradek_chroot, maxBytesPerTrigger="300")
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    report = reader.reportLatestOffset()
    assert report is not None
    left = [report["topics"]["orders"][name] - end["topics"]["orders"][name] for name in ("3-0", "3-1")]
    assert report["description"] == "Odradek[Subscribe[orders]]"
    metrics = report["metrics"]
    assert (metrics["minBytesBehindLatest"], metrics["maxBytesBehindLatest"]) == (min(left), max(left))
    assert (metrics["totalBytesBehindLatest"], metrics["avgBytesBehindLatest"]) == (sum(left), sum(left) / 2)
    assert sum(left) > 0


def test_everything_there_is_comes_once(broker: Kafka07Broker, reader: StreamReader) -> None:
    start, rows = run(reader, reader.initialOffset())
    assert rows == rows_of(broker.log_dir, 3)
    assert reader.latestOffset(start, ALL) == start
    append(broker, "orders", [b"new"], 1)
    end, rows = run(reader, start)
    assert [row.value for row in rows] == [b"new"]
    report = reader.reportLatestOffset()
    assert report is not None
    assert (report["topics"], report["metrics"]["secondsBehindLatest"]) == (end["topics"], 0.0)


def test_a_topic_may_come_later(odradek_chroot: str, odradek_kafka07_broker: Start) -> None:
    broker = odradek_kafka07_broker(broker_id=3)
    reader = stream_reader(kafka_zk_connect=odradek_chroot, subscribePattern="orders", startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == offsets()
    assert reader.latestOffset(start, ALL) == start
    append(broker, "orders", [b"first"])
    count, rows = eventually(lambda: drain(reader, start), lambda current: current[0] > 0)
    assert [row.value for row in rows] == [b"first"]
    assert count == 2  # it enters with the first, and is read with the second


def test_a_broker_that_comes_later_is_read_from_its_earliest(
    broker: Kafka07Broker, reader: StreamReader, tmp_path_factory: pytest.TempPathFactory, odradek_kafka07_broker: Start
) -> None:
    start, _ = run(reader, reader.initialOffset())
    other = tmp_path_factory.mktemp("other")
    write_log(other, "orders", 0, encode_set([b"a"] * 9), encode_set([b"b"] * 9))
    (other / "orders-0" / f"{0:020}.kafka").unlink()  # it has lost its beginning
    odradek_kafka07_broker(log_dir=other, broker_id=4)
    entered = eventually(lambda: reader.latestOffset(start, ALL), lambda current: current != start)
    assert entered["topics"]["orders"]["4-0"] == 9 * (EACH - 1)
    assert reader.partitions(start, entered) == []
    assert [row.value for row in run(reader, entered)[1]] == [b"b"] * 9


def test_a_broker_that_is_away_keeps_its_place(broker: Kafka07Broker, reader: StreamReader) -> None:
    start = reader.latestOffset(reader.initialOffset(), ALL)
    broker.stop()
    extents = eventually(lambda: reader._logs.extents(), lambda current: not current)
    assert extents == {}
    assert reader.latestOffset(start, ALL) == start
    broker.start()
    append(broker, "orders", [b"back"])
    _, rows = eventually(lambda: run(reader, start), lambda current: current[1] != [])
    assert [row.value for row in rows] == [b"back"]


def test_a_micro_batch_waits_for_a_broker_that_is_away_when_it_is_planned(
    broker: Kafka07Broker, odradek_chroot: str
) -> None:
    lenient = from_earliest(odradek_chroot, failOnDataLoss="false")
    start = lenient.initialOffset()
    end, expected = run(lenient, start)
    broker.stop()
    eventually(lenient._logs.extents, lambda current: not current)
    again = Timer(1.0, broker.start)
    again.start()
    tasks = lenient.partitions(start, end)
    again.join()
    assert read_all(lenient, tasks) == expected
    broker.stop()
    hasty = from_earliest(odradek_chroot, failOnDataLoss="false", fetchOffset_deadlineMs=300)
    eventually(hasty._logs.extents, lambda current: not current)
    assert hasty.partitions(start, end) == []


# ---- limits --------------------------------------------------------------------------------------------------


def test_the_limit_is_what_options_say(odradek_chroot: str) -> None:
    assert from_earliest(odradek_chroot).getDefaultReadLimit() == ALL
    limited = from_earliest(odradek_chroot, maxBytesPerTrigger="1m")
    assert limited.getDefaultReadLimit() == ReadMaxBytes(1 << 20)


@pytest.mark.parametrize("seed", range(3))
def test_limited_batches_end_at_proved_boundaries_and_have_every_row_once(
    tmp_path: Path, odradek_kafka07_broker: Start, odradek_chroot: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for kind in (Kafka07LogAccess, DirectoryCatalog):
        monkeypatch.setattr(kind, "unit", BYTES._replace(min_share=4000))
    write_log(tmp_path, "orders", 0, hard_log(seed, 150, 1990), hard_log(seed + 10, 100, 1990))
    write_log(tmp_path, "orders", 1, hard_log(seed + 20, 100, 1990))
    odradek_kafka07_broker(log_dir=tmp_path, broker_id=3, config={"num.partitions": "2"})
    reader = from_earliest(odradek_chroot, maxMessageBytes=2000)
    count, rows = drain(reader, reader.initialOffset(), ReadMaxBytes(8000))
    assert rows == rows_of(tmp_path, 3)
    assert count > 4


def test_small_batches_wait_for_more(broker: Kafka07Broker, odradek_chroot: str) -> None:
    waiting = from_earliest(odradek_chroot, minBytesPerTrigger="1k")
    start = waiting.latestOffset(waiting.initialOffset(), ALL)
    append(broker, "orders", [b"small"])
    assert waiting.latestOffset(start, ALL) == start
    append(broker, "orders", [bytes(1000)])
    assert waiting.latestOffset(start, ALL) != start
    hasty = from_earliest(odradek_chroot, minBytesPerTrigger="1g", maxTriggerDelay="0ms")
    assert hasty.latestOffset(start, ALL) == hasty.latestOffset(start, ALL) != start


def test_the_first_batch_of_a_query_does_not_wait_for_more(tmp_path: Path) -> None:
    """A query that is started again more often than `maxTriggerDelay` would never read a small backlog."""
    write_log(tmp_path, "orders", 0, encode_set([b"%02d" % n for n in range(20)]))
    options = {"path": tmp_path, "subscribe": "orders", "minBytesPerTrigger": "1g"}
    start = offsets(orders={"0": EACH})
    for _ in range(2):
        reader = stream_reader(**options)
        end, rows = run(reader, start)
        assert end == offsets(orders={"0": 20 * EACH})
        assert len(rows) == 19
    write_log(tmp_path, "orders", 0, encode_set([b"%02d" % n for n in range(21)]))
    assert reader.latestOffset(end, ALL) == end


def test_a_query_that_begins_at_the_end_waits_for_its_first_records(tmp_path: Path) -> None:
    write_log(tmp_path, "orders", 0, encode_set([b"00"]))
    reader = stream_reader(path=tmp_path, subscribe="orders", startingOffsets="latest", minBytesPerTrigger="1g")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ALL) == start
    write_log(tmp_path, "orders", 0, encode_set([b"00", b"01"]))
    assert reader.latestOffset(start, ALL) == start


def test_a_new_partition_enters_as_soon_as_it_has_something(tmp_path: Path) -> None:
    write_log(tmp_path, "orders", 0, encode_set([b"%02d" % n for n in range(20)]))
    reader = stream_reader(path=tmp_path, subscribe="orders", startingOffsets="latest", minBytesPerTrigger="1g")
    start = reader.initialOffset()
    write_log(tmp_path, "orders", 1, b"")
    assert reader.latestOffset(start, ALL) == start
    write_log(tmp_path, "orders", 1, encode_set([b"00"]))
    entered = reader.latestOffset(start, ALL)
    assert entered["topics"] == {"orders": {"0": 20 * EACH, "1": 0}}
    assert reader.latestOffset(entered, ALL) == entered  # it is known now, and waits for more as the others do


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_micro_batch_that_was_begun_with_other_topics_is_read_whole(
    broker: Kafka07Broker, odradek_chroot: str, strict: str
) -> None:
    append(broker, "payments", [b"paid"])
    former = from_earliest(odradek_chroot, subscribe="orders,payments")
    eventually(former._logs.extents, lambda current: len(current) == 4)
    start = former.initialOffset()
    end, rows = run(former, start)
    fewer = from_earliest(odradek_chroot, failOnDataLoss=strict)
    assert read_all(fewer, fewer.partitions(start, end)) == rows
    append(broker, "payments", [b"unread"])
    assert fewer.latestOffset(end, ALL) == end


# ---- runs that end -------------------------------------------------------------------------------------------


def test_a_run_with_an_end_reads_what_there_was_when_it_began(
    broker: Kafka07Broker, odradek_chroot: str, reader: StreamReader
) -> None:
    before = rows_of(broker.log_dir, 3)
    patient = from_earliest(odradek_chroot, minBytesPerTrigger="1g")
    for each in (reader, patient):
        each.prepareForTriggerAvailableNow()
    append(broker, "orders", [b"late"])
    append(broker, "orders", [b"late"], 1)
    for each in (reader, patient):
        assert drain(each, each.initialOffset()) == (1, before)
    lag = reader.reportLatestOffset()
    assert lag is not None
    assert lag["topics"]["orders"]["3-0"] == 20 * EACH + 14


def test_a_run_with_an_end_that_begins_at_the_latest_has_nothing_to_read(
    broker: Kafka07Broker, odradek_chroot: str
) -> None:
    reader = from_earliest(odradek_chroot, startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    append(broker, "orders", [b"between"])
    assert drain(reader, reader.initialOffset()) == (0, [])


def test_a_run_with_an_end_resumes_at_an_offset_and_meets_what_is_new(
    broker: Kafka07Broker, odradek_chroot: str, reader: StreamReader
) -> None:
    start, _ = run(reader, reader.initialOffset())
    append(broker, "orders", [b"more"])
    append(broker, "payments", [b"paid"])
    again = from_earliest(odradek_chroot, subscribe="orders,payments")
    eventually(again._logs.extents, lambda current: len(current) == 4)
    again.prepareForTriggerAvailableNow()
    _, rows = drain(again, start)
    assert [row.value for row in rows] == [b"more", b"paid"]


# ---- loss and trouble ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
def test_a_recreated_log_is_read_from_its_beginning_or_fails(
    broker: Kafka07Broker, odradek_chroot: str, strict: bool
) -> None:
    reader = from_earliest(odradek_chroot, failOnDataLoss=str(strict).lower())
    start, _ = run(reader, reader.initialOffset())
    broker.stop()
    write_log(broker.log_dir, "orders", 0, encode_set([b"anew"] * 3))
    broker.start()
    if strict:
        with pytest.raises(DataLoss, match="orders/3-0: cut off at the end, or the log was created again"):
            eventually(lambda: run(reader, start), lambda current: current[0] != start)
    else:
        _, rows = eventually(lambda: run(reader, start), lambda current: current[0] != start)
        assert [row.value for row in rows] == [b"anew"] * 3


def test_a_broker_that_is_down_is_waited_for_and_named(broker: Kafka07Broker) -> None:
    address = broker.address
    where = {"kafka_broker_list": f"3:{address}", "subscribe": "orders"}
    reader, hasty = stream_reader(**where), stream_reader(**where, fetchOffset_deadlineMs=300)
    reader.initialOffset()
    broker.stop()
    with pytest.raises(DeadlineError, match=rf"looking at the logs: .*{address}"):
        hasty.latestOffset(offsets(), ALL)
    broker.start()
    assert reader.latestOffset(offsets(), ALL) == offsets(orders={"3-0": 0, "3-1": 0})


def test_a_reader_that_is_pickled_leaves_its_connections_behind(reader: StreamReader) -> None:
    initial = reader.initialOffset()
    assert pickle.loads(pickle.dumps(reader)).latestOffset(initial, ALL) == reader.latestOffset(initial, ALL)
