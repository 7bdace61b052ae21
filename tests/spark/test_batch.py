"""Batch queries, as Spark's processes run them, without Spark: every row exactly once, or an error that says why."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from odradek.core.interfaces import BYTES
from odradek.core.kafka07.znodes import broker_data
from odradek.errors import ConfigError, CorruptMessage, DeadlineError, MessageTooLarge, Unsupported
from odradek.io.kafka07.log_access import Kafka07LogAccess
from odradek.ranges import process
from odradek.ranges.directories import DirectoryCatalog
from odradek.ranges.planning import BoundaryMismatch, DataLoss, Range, TaskPlan
from odradek.spark.readers import BatchReader, StreamReader
from odradek.spark.source import OdradekSource
from odradek.testing import FaultProxy, Kafka07Broker, ZooKeeperServer
from odradek.types import TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

from .made import Row, append, batch_reader, batch_rows, eventually, hard_log, read_all, rows_in, rows_of, write_log

MOST = 2000
"""Largest message of logs that are cut here."""


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def broker(log_dir: Path, odradek_kafka07_broker: Callable[..., Kafka07Broker]) -> Kafka07Broker:
    """Broker 3 over what is in `log_dir`: orders with two partitions of several segments, and others."""
    orders = [encode_set([b"%d-%d" % (number, n) for n in range(100)]) for number in range(6)]
    write_log(log_dir, "orders", 0, *orders[:3])
    write_log(log_dir, "orders", 1, orders[3], encode_set([b"z"] * 9, CompressionType.GZIP) + orders[4])
    write_log(log_dir, "payments", 0, orders[5])
    write_log(log_dir, "payments", 1)
    return odradek_kafka07_broker(log_dir=log_dir, broker_id=3, config={"num.partitions": "2"})


def in_zookeeper(chroot: str, **options: object) -> dict[str, object]:
    return {"kafka_zk_connect": chroot, "subscribe": "orders", **options}


# ---- what is read --------------------------------------------------------------------------------------------


def test_every_message_is_a_row_through_zookeeper(broker: Kafka07Broker, odradek_chroot: str) -> None:
    rows = batch_rows(**in_zookeeper(odradek_chroot))
    assert rows == rows_of(broker.log_dir, 3, "orders")
    assert len(rows) == 509


def test_every_message_is_a_row_through_a_list_of_brokers(broker: Kafka07Broker) -> None:
    rows = batch_rows(kafka_broker_list=f"3:{broker.address}", subscribe="orders,payments")
    assert rows == rows_of(broker.log_dir, 3)


def test_every_message_is_a_row_from_its_directory(broker: Kafka07Broker) -> None:
    assert batch_rows(path=f"3@{broker.log_dir}") == rows_of(broker.log_dir, 3)
    assert batch_rows(path=f"{broker.log_dir}/orders-*", subscribe="orders") == rows_of(broker.log_dir, None, "orders")


def test_topics_are_chosen_by_pattern(broker: Kafka07Broker, odradek_chroot: str) -> None:
    rows = batch_rows(kafka_zk_connect=odradek_chroot, subscribePattern="pay.*")
    assert rows == rows_of(broker.log_dir, 3, "payments")
    assert batch_rows(kafka_zk_connect=odradek_chroot, subscribePattern="^ay.*") == []


def test_partitions_are_assigned(broker: Kafka07Broker, odradek_chroot: str) -> None:
    rows = batch_rows(kafka_zk_connect=odradek_chroot, assign='{"orders":["3-1"]}')
    assert rows == [row for row in rows_of(broker.log_dir, 3, "orders") if row.partition == 1]
    assert batch_rows(path=f"3@{broker.log_dir}", assign='{"orders":["3-1"]}') == rows


def test_a_pattern_needs_zookeeper(broker: Kafka07Broker) -> None:
    with pytest.raises(Unsupported, match="ZooKeeper"):
        batch_rows(kafka_broker_list=f"3:{broker.address}", subscribePattern=".*")


@pytest.mark.parametrize("options", [{"subscribe": "orders,odrers"}, {"assign": '{"odrers":["3-0"],"orders":["3-0"]}'}])
def test_what_is_not_there_is_named(broker: Kafka07Broker, odradek_chroot: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"nothing has odrers.* now"):
        batch_rows(kafka_zk_connect=odradek_chroot, **options)
    assert batch_rows(kafka_zk_connect=odradek_chroot, failOnDataLoss="false", **options)


def test_a_query_is_what_there_was_when_it_was_planned(broker: Kafka07Broker, odradek_chroot: str) -> None:
    reader = batch_reader(**in_zookeeper(odradek_chroot))
    planned = reader.partitions()
    before = rows_of(broker.log_dir, 3, "orders")
    append(broker, "orders", [b"late"])
    assert read_all(reader, planned) == before
    assert len(batch_rows(**in_zookeeper(odradek_chroot))) == len(before) + 1


def test_a_reader_and_its_tasks_are_pickled(broker: Kafka07Broker, odradek_chroot: str) -> None:
    reader: BatchReader = pickle.loads(pickle.dumps(batch_reader(**in_zookeeper(odradek_chroot))))
    planned = pickle.loads(pickle.dumps(reader.partitions()))
    assert len(read_all(reader, planned)) == 509


def test_without_anything_to_read_there_are_no_tasks_and_no_rows(broker: Kafka07Broker, odradek_chroot: str) -> None:
    reader = batch_reader(kafka_zk_connect=odradek_chroot, assign='{"payments":["3-1"]}')
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


def test_readers_do_not_take_filters() -> None:
    """Spark 4.1 to 4.3 let pushed filters stick to the DataFrame: whoever takes them gives wrong results."""
    for reader in (BatchReader, StreamReader):
        assert not any("pushFilters" in kind.__dict__ for kind in reader.__mro__[:-2] if "odradek" in kind.__module__)


# ---- from where to where -------------------------------------------------------------------------------------


def test_reading_begins_and_ends_where_options_say(broker: Kafka07Broker, odradek_chroot: str) -> None:
    first, second = ([r for r in rows_of(broker.log_dir, 3, "orders") if r.partition == n] for n in (0, 1))
    rows = batch_rows(
        **in_zookeeper(odradek_chroot),
        startingOffsets=f'{{"orders":{{"3-0":{first[7].offset},"3-1":-2}}}}',
        endingOffsets=f'{{"orders":{{"3-0":{first[150].offset},"3-1":{second[60].offset}}}}}',
    )
    assert rows == first[7:150] + second[:60]


def test_places_must_be_given_for_exactly_what_is_read(broker: Kafka07Broker, odradek_chroot: str) -> None:
    with pytest.raises(ConfigError, match="startingOffsets says nothing about orders/3-1"):
        batch_rows(**in_zookeeper(odradek_chroot), startingOffsets='{"orders":{"3-0":0}}')


def test_an_end_before_the_start_is_refused_not_taken_for_nothing_to_read(tmp_path: Path) -> None:
    write_log(tmp_path, "orders", 0, encode_set([b"%02d" % n for n in range(20)]))

    def read(start: int, end: int) -> list[Row]:
        offsets = {
            "startingOffsets": json.dumps({"orders": {"0": start}}),
            "endingOffsets": json.dumps({"orders": {"0": end}}),
        }
        return batch_rows(path=tmp_path, subscribe="orders", **offsets)

    starts = [row.offset for row in rows_of(tmp_path)]
    with pytest.raises(ConfigError, match=rf"orders/0: starts at {starts[7]}, but ends at {starts[5]}"):
        read(starts[7], starts[5])
    assert read(starts[5], starts[5]) == []
    assert [row.offset for row in read(starts[5], starts[7])] == starts[5:7]


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_inside_a_message_is_refused(broker: Kafka07Broker, odradek_chroot: str, option: str) -> None:
    offset = rows_of(broker.log_dir, 3, "orders")[7].offset
    with pytest.raises(ConfigError, match=f"{option}: orders/3-0 has no message boundary at {offset - 1}.*at {offset}"):
        batch_rows(**in_zookeeper(odradek_chroot, **{option: f'{{"orders":{{"3-0":{offset - 1},"3-1":0}}}}'}))


def test_times_choose_segments(broker: Kafka07Broker, odradek_chroot: str) -> None:
    rows = [row for row in rows_of(broker.log_dir, 3, "orders") if row.partition == 0]
    for number, file in enumerate(sorted((broker.log_dir / "orders-0").glob("*.kafka"))):
        os.utime(file, (1000 + number, 1000 + number))
    begin = int(sorted((broker.log_dir / "orders-0").glob("*.kafka"))[1].stem)
    for where in ({"kafka_zk_connect": odradek_chroot}, {"path": f"3@{broker.log_dir}"}):
        options = {**where, "assign": '{"orders":["3-0"]}'}
        assert batch_rows(**options, startingTimestamp=1001_500) == [row for row in rows if row.offset >= begin]
        assert batch_rows(**options, startingTimestamp=999_000) == rows


def test_an_ending_time_reads_every_segment_that_was_written_by_then(
    broker: Kafka07Broker, odradek_chroot: str
) -> None:
    rows = [row for row in rows_of(broker.log_dir, 3, "orders") if row.partition == 0]
    files = sorted((broker.log_dir / "orders-0").glob("*.kafka"))
    for number, file in enumerate(files):
        os.utime(file, (1000 + number, 1000 + number))
    for where in ({"kafka_zk_connect": odradek_chroot}, {"path": f"3@{broker.log_dir}"}):
        options = {**where, "assign": '{"orders":["3-0"]}'}
        assert batch_rows(**options, endingTimestamp=999_000) == []
        for number, file in enumerate(files[1:]):
            expected = [row for row in rows if row.offset < int(file.stem)]
            assert batch_rows(**options, endingTimestamp=(1000 + number) * 1000 + 500) == expected
            times = f'{{"orders":{{"0":{(1000 + number) * 1000 + 500}}}}}'
            assert batch_rows(**options, endingOffsetsByTimestamp=times) == expected
        for after in (len(files), 10**6, 10**10):  # also when the newest segment is 17 minutes old
            assert batch_rows(**options, endingTimestamp=(1000 + after) * 1000) == rows


def test_a_plain_partition_number_names_the_only_broker_that_has_it(
    broker: Kafka07Broker, odradek_chroot: str, odradek_kafka07_broker: Callable[..., Kafka07Broker], tmp_path: Path
) -> None:
    rows = [row for row in rows_of(broker.log_dir, 3, "orders") if row.partition == 0]
    where = {"kafka_zk_connect": odradek_chroot}
    half = rows[len(rows) // 2].offset
    options = {"assign": '{"orders":[0]}', "startingOffsets": f'{{"orders":{{"0":{half}}}}}'}
    assert batch_rows(**where, **options) == [row for row in rows if row.offset >= half]
    write_log(tmp_path / "other", "orders", 0, encode_set([b"x"]))
    odradek_kafka07_broker(log_dir=tmp_path / "other", broker_id=4)
    message = r'option assign: orders/0 is on 2 brokers: name it with its broker, "3-0" or "4-0"'
    eventually(lambda: {row.broker for row in batch_rows(**where, subscribe="orders")}, lambda brokers: 4 in brokers)
    with pytest.raises(ConfigError, match=message):
        batch_rows(**where, **options)


def test_a_table_of_the_catalog_remembers_its_options_in_its_columns(broker: Kafka07Broker) -> None:
    """Spark calls `schema` with the options and more at CREATE TABLE, and `reader` without any at SELECT."""
    path = f"3@{broker.log_dir}"
    created = {"provider": "odradek", "owner": "me", "location": path, "path": path, "foo": "a property of the table"}
    written = {"subscribe": "payments", "corrupt": "dead"}
    schema = OdradekSource(
        {**created, **written, **{f"option.{name}": text for name, text in written.items()}}
    ).schema()
    assert isinstance(schema, StructType)
    assert schema.fieldNames()[-1] == "error"
    kept = StructType.fromJson(json.loads(schema.json()))
    reader = OdradekSource({}).reader(kept)
    assert isinstance(reader, BatchReader)
    assert read_all(reader, reader.partitions()) == rows_of(broker.log_dir, 3, "payments")
    with pytest.raises(ConfigError, match="nothing has nosuch now"):
        OdradekSource({"subscribe": "nosuch"}).reader(kept).partitions()
    with pytest.raises(ConfigError, match="did you mean fetchBytes"):
        OdradekSource({"provider": "odradek", "path": path, "option.fetchbyte": "1", "fetchbyte": "1"}).schema()


# ---- damage --------------------------------------------------------------------------------------------------


def damage(log_dir: Path, offset: int) -> bytes:
    """A bit of a message's payload. Returns its entry as it stands there then."""
    with (log_dir / "orders-0" / f"{0:020}.kafka").open("r+b") as file:
        file.seek(offset)
        entry = bytearray(file.read(4 + int.from_bytes(file.peek(4)[:4], "big")))
        entry[-1] ^= 1
        file.seek(offset)
        file.write(entry)
    return bytes(entry)


@pytest.mark.parametrize("way", ["zookeeper", "directory"])
def test_corrupt_messages_fail_or_are_skipped_or_are_dead(broker: Kafka07Broker, odradek_chroot: str, way: str) -> None:
    good = rows_of(broker.log_dir, 3, "orders")
    bad = good[50]
    raw = damage(broker.log_dir, bad.offset)
    where = {"kafka_zk_connect": odradek_chroot} if way == "zookeeper" else {"path": f"3@{broker.log_dir}"}
    options = {**where, "subscribe": "orders"}
    with pytest.raises(CorruptMessage, match=rf"orders/3-0 at {bad.offset}: "):
        batch_rows(**options)
    assert batch_rows(**options, corrupt="skip-message") == good[:50] + good[51:]
    reader = batch_reader(**options, corrupt="dead")
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    records = sorted(rows_in(batches), key=lambda row: row[:5])
    assert records == [*good[:50], bad._replace(value=raw), *good[51:]]
    errors = {
        (number, offset): error
        for batch in batches
        for number, offset, error in zip(
            *(batch.column(n).to_pylist() for n in ("partition", "offset", "error")), strict=True
        )
        if error is not None
    }
    assert list(errors) == [(0, bad.offset)]


def test_a_message_that_is_too_large_names_the_option(broker: Kafka07Broker, odradek_chroot: str) -> None:
    append(broker, "orders", [bytes(3000)])
    for where in ({"kafka_zk_connect": odradek_chroot}, {"path": f"3@{broker.log_dir}"}):
        with pytest.raises(MessageTooLarge, match="raise maxMessageBytes"):
            batch_rows(**where, subscribe="orders", maxMessageBytes=2500)


def test_a_range_must_end_where_a_message_does(broker: Kafka07Broker, odradek_chroot: str) -> None:
    partition = TopicPartition("orders", 0, 3)
    end = rows_of(broker.log_dir, 3, "orders")[5].offset
    for where in ({"kafka_zk_connect": odradek_chroot}, {"path": f"3@{broker.log_dir}"}):
        reader = batch_reader(**where, subscribe="orders")
        paths = {partition: str(broker.log_dir / "orders-0")}
        for wrong in (end - 1, end + 1, end + 5):
            with pytest.raises(
                BoundaryMismatch, match=rf"orders/3-0: the messages from 0 on end at \d+, not at {wrong}"
            ):
                list(reader.read(InputPartition(TaskPlan((Range(partition, 0, wrong),), paths))))


# ---- loss ----------------------------------------------------------------------------------------------------


@pytest.fixture
def expiring(log_dir: Path, odradek_kafka07_broker: Callable[..., Kafka07Broker]) -> Kafka07Broker:
    """A broker that deletes all but the last two segments, of four, at the next clean-up."""
    files = [encode_set([b"%d-%d" % (number, n) for n in range(100)]) for number in range(4)]
    write_log(log_dir, "orders", 0, *files)
    size = sum(map(len, files[2:]))
    return odradek_kafka07_broker(
        log_dir=log_dir, broker_id=3, config={"log.retention.size": str(size), "log.cleanup.interval.mins": "1000"}
    )


@pytest.mark.parametrize("way", ["zookeeper", "directory"])
@pytest.mark.parametrize("strict", [True, False])
def test_what_expires_between_planning_and_reading(
    expiring: Kafka07Broker, odradek_chroot: str, way: str, strict: bool
) -> None:
    where = {"kafka_zk_connect": odradek_chroot} if way == "zookeeper" else {"path": f"3@{expiring.log_dir}"}
    reader = batch_reader(**where, subscribe="orders", failOnDataLoss=str(strict).lower())
    planned = reader.partitions()
    expiring.run_cleanup()
    left = rows_of(expiring.log_dir, 3)
    assert len(left) == 200
    if strict:
        with pytest.raises(DataLoss, match=rf"orders/3-0: deleted by retention: wanted \[0, {left[0].offset}\)"):
            read_all(reader, planned)
    else:
        assert read_all(reader, planned) == left


@pytest.mark.parametrize("strict", [True, False])
def test_places_that_the_log_does_not_have(expiring: Kafka07Broker, odradek_chroot: str, strict: bool) -> None:
    expiring.run_cleanup()
    left = rows_of(expiring.log_dir, 3)
    behind = left[-1].nextOffset + 1000
    options = {"kafka_zk_connect": odradek_chroot, "subscribe": "orders", "failOnDataLoss": str(strict).lower()}
    asked = {
        r"deleted by retention: wanted \[0, ": {"startingOffsets": '{"orders":{"3-0":0}}'},
        rf"cut off at the end.*wanted \[{left[-1].nextOffset}, {behind}\)": {
            "endingOffsets": f'{{"orders":{{"3-0":{behind}}}}}'
        },
    }
    for message, more in asked.items():
        if strict:
            with pytest.raises(DataLoss, match=message):
                batch_rows(**options, **more)
        else:
            assert batch_rows(**options, **more) == left


@pytest.mark.parametrize("strict", [True, False])
def test_a_log_that_is_cut_off_between_planning_and_reading(
    log_dir: Path, odradek_kafka07_broker: Callable[..., Kafka07Broker], odradek_chroot: str, strict: bool
) -> None:
    kept = encode_set([b"kept"] * 50)
    write_log(log_dir, "orders", 0, kept + encode_set([b"lost"] * 50))
    broker = odradek_kafka07_broker(log_dir=log_dir, broker_id=3)
    reader = batch_reader(kafka_zk_connect=odradek_chroot, subscribe="orders", failOnDataLoss=str(strict).lower())
    planned = reader.partitions()
    broker.stop()
    os.truncate(log_dir / "orders-0" / f"{0:020}.kafka", len(kept))
    broker.start()
    if strict:
        with pytest.raises(DataLoss, match=rf"cut off at the end.*wanted \[{len(kept)}, {2 * len(kept)}\)"):
            read_all(reader, planned)
    else:
        assert [row.value for row in read_all(reader, planned)] == [b"kept"] * 50


# ---- cutting and packing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_log_of_message_sets_in_payloads_is_cut_exactly(
    log_dir: Path,
    odradek_kafka07_broker: Callable[..., Kafka07Broker],
    odradek_chroot: str,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    for kind in (Kafka07LogAccess, DirectoryCatalog):
        monkeypatch.setattr(kind, "unit", BYTES._replace(min_split=500))
    write_log(log_dir, "orders", 0, hard_log(seed, 200, MOST - 10), hard_log(seed + 100, 100, MOST - 10))
    write_log(log_dir, "orders", 1, hard_log(seed + 200, 200, MOST - 10))
    odradek_kafka07_broker(log_dir=log_dir, broker_id=3, config={"num.partitions": "2"})
    for where in ({"kafka_zk_connect": odradek_chroot}, {"path": f"3@{log_dir}"}):
        reader = batch_reader(
            **where, subscribe="orders", maxMessageBytes=MOST, minPartitions=12, maxPartitions=12, fetchBytes=700
        )
        planned = reader.partitions()
        assert len(planned) == 12
        assert read_all(reader, planned) == rows_of(log_dir, 3)


def test_a_thousand_partitions_of_a_hundred_topics_are_one_query_of_few_tasks(
    log_dir: Path,
    odradek_kafka07_broker: Callable[..., Kafka07Broker],
    odradek_fault_proxy: Callable[[str, int], FaultProxy],
    odradek_zookeeper: ZooKeeperServer,
    odradek_chroot: str,
) -> None:
    for topic in range(100):
        for number in range(10):
            write_log(log_dir, f"t{topic:02}", number, encode_set([b"%d-%d" % (topic, number)] * (number + 1)))
    broker = odradek_kafka07_broker(log_dir=log_dir, broker_id=3, config={"num.partitions": "10"})
    slow_line = odradek_fault_proxy(broker.host, broker.port)
    slow_line.delay(0.1)
    node = "/" + odradek_chroot.partition("/")[2] + "/brokers/ids/3"
    odradek_zookeeper.set(node, broker_data(slow_line.host, slow_line.port, 0))
    reader = batch_reader(kafka_zk_connect=odradek_chroot, subscribePattern="t..", minPartitions=4)
    began = time.monotonic()
    planned = reader.partitions()
    assert time.monotonic() - began < 1000 * 0.1  # that many answers, one after the other
    assert slow_line.statistics().connections > 0
    slow_line.heal()
    assert len(planned) == 4
    sizes = [sum(part.size for part in task.value.ranges) for task in planned]
    assert max(sizes) - min(sizes) < sum(sizes) / 100
    batches = [list(reader.read(task)) for task in planned]
    assert sum(map(len, batches)) == 4  # rows of hundreds of partitions come together
    assert sorted(row for some in batches for row in rows_in(some)) == sorted(rows_of(log_dir, 3))


# ---- connections ---------------------------------------------------------------------------------------------


def test_a_task_given_up_leaves_nothing_running(broker: Kafka07Broker, odradek_chroot: str) -> None:
    append(broker, "orders", [bytes(100_000)] * 200)
    reader = batch_reader(**in_zookeeper(odradek_chroot), fetchBytes="100k", fetchAhead=1)
    (task,) = reader.partitions()
    list(reader.read(task))
    portal = process._process.portal
    assert portal is not None

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    before = portal.call(tasks)
    rows = reader.read(task)
    assert next(rows).num_rows
    rows.close()  # type: ignore[attr-defined]
    eventually(lambda: portal.call(tasks), lambda count: count <= before)
    assert len(rows_of(broker.log_dir, 3, "orders")) == sum(batch.num_rows for batch in reader.read(task))


def test_a_lost_connection_is_restored(
    broker: Kafka07Broker, odradek_fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    proxy = odradek_fault_proxy(broker.host, broker.port)
    reader = batch_reader(kafka_broker_list=f"3:{proxy.address}", subscribe="orders", fetchBytes=300, fetchAhead=2)
    planned = reader.partitions()
    proxy.cut_after(server_bytes=2000)
    assert read_all(reader, planned) == rows_of(broker.log_dir, 3, "orders")
    assert proxy.statistics().connections > 2


def test_rows_that_are_taken_slowly_leave_a_lost_connection_all_of_the_time(
    broker: Kafka07Broker, odradek_fault_proxy: Callable[[str, int], FaultProxy]
) -> None:
    append(broker, "orders", [bytes(100_000)] * 50)
    proxy = odradek_fault_proxy(broker.host, broker.port)
    options = {"fetchBytes": "100k", "fetchAhead": 1, "kafkaConsumer_pollTimeoutMs": 500}
    reader = batch_reader(kafka_broker_list=f"3:{proxy.address}", subscribe="orders", maxPartitions=1, **options)
    (task,) = reader.partitions()
    rows = reader.read(task)
    count = next(rows).num_rows
    time.sleep(1)
    proxy.refuse()
    proxy.cut()
    Timer(0.2, proxy.accept).start()
    assert count + sum(batch.num_rows for batch in rows) == len(rows_of(broker.log_dir, 3, "orders"))


def test_a_broker_that_stays_away_ends_the_task_in_time(broker: Kafka07Broker) -> None:
    reader = batch_reader(kafka_broker_list=f"3:{broker.address}", subscribe="orders", kafkaConsumer_pollTimeoutMs=200)
    planned = reader.partitions()
    broker.stop()
    with pytest.raises(DeadlineError, match=rf"orders/3-\d: reading at \d+ of .*: broker 3: .*{broker.address}"):
        read_all(reader, planned)


def test_a_broker_that_left_the_cluster_ends_the_task_in_time(broker: Kafka07Broker, odradek_chroot: str) -> None:
    # Within this time the task also connects to ZooKeeper, which has to work.
    reader = batch_reader(**in_zookeeper(odradek_chroot), kafkaConsumer_pollTimeoutMs=5000)
    planned = reader.partitions()
    broker.stop()
    eventually(lambda: batch_rows(kafka_zk_connect=odradek_chroot, subscribePattern=".*"), lambda rows: rows == [])
    with pytest.raises(DeadlineError, match=r"orders/3-\d: reading at 0 of .*: no registered broker has it"):
        read_all(reader, planned)


def test_a_broker_that_is_not_there_ends_planning_in_time() -> None:
    with pytest.raises(DeadlineError, match=r"looking at the logs: .*127\.0\.0\.1:9"):
        batch_reader(kafka_broker_list="3:127.0.0.1:9", subscribe="orders", fetchOffset_deadlineMs=200).partitions()


def test_a_connection_is_kept_from_task_to_task(broker: Kafka07Broker) -> None:
    options = {"kafka_broker_list": f"3:{broker.address}", "subscribe": "orders"}
    batch_rows(**options)
    total = broker.statistics().connections_total
    batch_rows(**options)
    assert broker.statistics().connections_total == total


def test_a_forked_process_opens_its_own_connections(broker: Kafka07Broker) -> None:
    reader = batch_reader(kafka_broker_list=f"3:{broker.address}", subscribe="orders")
    planned = reader.partitions()
    child = os.fork()
    if not child:
        try:
            os._exit(0 if len(read_all(reader, planned)) == 509 else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


PROCESS = """
import sys
from array import array
from odradek.engine import HeaderColumns, PackedBytes
from odradek.ranges.projection import Projection, columns
from odradek.spark.source import OdradekSource
from odradek.types import NO_TIMESTAMP, Columns, TopicPartition
from pyspark.sql.datasource import CaseInsensitiveDict

source = OdradekSource(CaseInsensitiveDict({"path": sys.argv[1], "subscribe": "orders"}))
assert len(source.reader(source.schema()).partitions()) == 1
integers = lambda kind, *numbers: memoryview(array(kind, numbers))
names = PackedBytes(integers("i", 3, 4, 6), memoryview(b"-" * 9))
texts = lambda kind: PackedBytes(integers(kind, 3, 4, 6), memoryview(b"-" * 9), integers("B", 1, 0))
rows = Columns(
    texts("q"), integers("q", 5, 6), integers("q", 6, 7), None, texts("i"),
    HeaderColumns(integers("i", 0, 0, 2), names, texts("i")), integers("q", NO_TIMESTAMP, 1500),
    integers("b", 0, 1),
)
(batch,) = Projection(columns(headers=True)).batches(TopicPartition("orders", 1), rows)
print(batch["value"][0].as_py().decode(), batch["topic"][1], batch["timestamp"].null_count, *sys.modules)
"""
"""What the processes of Spark do that plan and read: the columns are those of 0.8 and later, as decoders make them."""


def test_processes_that_plan_and_read_import_neither_pandas_nor_a_producer(tmp_path: Path) -> None:
    """Spark starts one for each core, and several more for each query: what they import is most of a small query."""
    write_log(tmp_path, "orders", 0, encode_set([b"x"]))
    done = subprocess.run([sys.executable, "-c", PROCESS, str(tmp_path)], capture_output=True, text=True, check=False)
    value, topic, nulls, *modules = done.stdout.split() or [done.stderr, "", ""]
    assert (value, topic, nulls) == ("-", "orders", "1")
    assert not {*modules} & {"pandas", "odradek.spark.sink", "odradek.client.producer.producer"}
