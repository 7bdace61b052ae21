"""Executors: memory within bounds, and one event loop for whoever comes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.spark.made import batch_reader, read_all, rows_of, write_log

from odradek.errors import BrokerError, Closed, ConfigError, CorruptMessage, DeadlineError, OdradekError
from odradek.ranges import process
from odradek.ranges import reader as range_reader
from odradek.ranges.planning import DataLoss, Range, TaskPlan, topic_ids
from odradek.ranges.request import ClusterConnection, ReadRequest, Topics
from odradek.testing import Kafka07Broker, MemoryCluster
from odradek.testing.memory.log import StoredRecord
from odradek.types import EARLIEST, KiB, MiB, Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

Start = Callable[..., Kafka07Broker]


class Watched(range_reader.RangeReader):
    """Remembers the most that was held. (Claims are what fetches are reckoned to become.)"""

    most = 0

    def correct(self, claimed: int, memory: int) -> None:
        super().correct(claimed, memory)
        Watched.most = max(Watched.most, self.held)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.GZIP])
def test_what_is_read_ahead_stays_within_its_bound(
    tmp_path: Path,
    odradek_kafka07_broker: Start,
    odradek_chroot: str,
    monkeypatch: pytest.MonkeyPatch,
    compression: CompressionType,
) -> None:
    monkeypatch.setattr(range_reader, "RangeReader", Watched)
    monkeypatch.setattr(Watched, "most", 0)
    for number in range(4):
        sets = [encode_set([b"%06d" % n + bytes(200)] * 50, compression) for n in range(1200)]
        write_log(tmp_path, "orders", number, b"".join(sets))
    odradek_kafka07_broker(log_dir=tmp_path, broker_id=3, config={"num.partitions": "4"})
    reader = batch_reader(
        kafka_zk_connect=odradek_chroot, subscribe="orders", fetchBytes="256k", fetchAhead=4, maxPartitions=1
    )
    (task,) = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(task)) == 4 * 1200 * 50  # 55 MB
    growth = 50 * 230 // 115  # of a wrapper to its rows
    first = range_reader.FIRST_BYTES * growth if compression else 0  # nobody knows that before
    assert MiB // 4 < Watched.most <= max(MiB, first)


def test_more_ranges_than_fetches_are_read_in_turns(
    tmp_path: Path, odradek_kafka07_broker: Start, odradek_chroot: str
) -> None:
    for number in range(9):
        write_log(tmp_path, "orders", number, encode_set([b"%d-%d" % (number, n) for n in range(number * 30)]))
    odradek_kafka07_broker(log_dir=tmp_path, broker_id=3, config={"num.partitions": "9"})
    reader = batch_reader(
        kafka_zk_connect=odradek_chroot, subscribe="orders", fetchBytes=KiB, fetchAhead=2, maxPartitions=1
    )
    planned = reader.partitions()
    assert len(planned) == 1
    assert read_all(reader, planned) == rows_of(tmp_path, 3)


@pytest.mark.anyio
async def test_damage_behind_a_range_is_not_that_of_its_records() -> None:
    cluster, partition = MemoryCluster({"orders": 1}), TopicPartition("orders", 0)
    request = ReadRequest(ClusterConnection("kafka://memory"), Topics(("orders",)), EARLIEST)
    async with cluster.connect() as k:
        async with k.producer() as out:
            (await out.send_many("orders", [b"%d" % n for n in range(20)])).check()
        cluster.corrupt(partition, 10)
        for end in (5, 10):
            task = TaskPlan((Range(partition, 0, end),), {})
            async with range_reader.RangeReader(k.driver, task, request) as reader:
                chunks = await reader.take() + await reader.take()
                assert chunks[-1] == range_reader.CompletedRange(partition, 0, end, end)
        task = TaskPlan((Range(partition, 0, 11),), {})
        with pytest.raises(CorruptMessage, match="CRC mismatch"):
            async with range_reader.RangeReader(k.driver, task, request) as reader:
                while await reader.take():
                    pass


def test_what_cannot_be_reached_is_given_up_in_time_and_what_is_wrong_at_once() -> None:
    with (
        pytest.raises(DeadlineError, match=r"connecting to the cluster: .*127\.0\.0\.1:9"),
        process.connected(ClusterConnection("kafka07+zk://127.0.0.1:9"), 0.2),
    ):
        pass
    with pytest.raises(ConfigError), process.connected(ClusterConnection("kafka08://127.0.0.1"), 60):
        pass


def test_an_error_in_one_thread_leaves_the_cluster_to_the_others(odradek_kafka07_broker: Start) -> None:
    where = ClusterConnection(f"kafka07://3@{odradek_kafka07_broker(broker_id=3).address}")
    seen = []

    def fail() -> None:
        with process.connected(where, 60) as (_, cluster):
            seen.append(cluster)
            raise OdradekError("of one flow")

    with ThreadPoolExecutor(1) as pool, process.connected(where, 60) as (portal, cluster):
        with pytest.raises(OdradekError, match="of one flow"):
            pool.submit(fail).result()
        assert seen == [cluster]
        assert portal.call(cluster.partitions, "orders")
    with pytest.raises(Closed):
        portal.call(cluster.partitions, "orders")
    with process.connected(where, 60) as (_, following):
        assert following is not cluster, "opened again after the error"


@pytest.mark.anyio
@pytest.mark.parametrize("removed", [True, False])
async def test_a_range_that_compaction_has_emptied_up_to_an_open_transaction_is_read_to_its_end(
    removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, partition = MemoryCluster({"orders": 1}), TopicPartition("orders", 0)
    log = cluster._log(partition)
    where = ClusterConnection("kafka://memory")
    request = ReadRequest(where, Topics(("orders",)), EARLIEST, read_committed=True, poll_deadline_s=0.1)

    def read(position: int, max_bytes: int, *, read_committed: bool = False) -> tuple[list[StoredRecord], Position]:
        """As brokers read: nothing is said of offsets without records, and remote storage may be too slow."""
        records = [] if read_committed else [each for each in log.records if each.offset >= position]
        return records, Position(records[-1].offset + 1 if records else position)

    async with cluster.connect() as k, k.producer(transactional_id="t") as out:
        cluster.append("orders", [b"0", b"1", b"2"])
        async with out.transaction():
            await out.send("orders", b"open")
            monkeypatch.setattr(log, "read", read)
            if removed:
                del log.records[:3]
            task = TaskPlan((Range(partition, 0, 3),), {})
            async with range_reader.RangeReader(k.driver, task, request) as reader:
                if removed:
                    assert await reader.take() == [range_reader.CompletedRange(partition, 0, 3, 0)]
                else:
                    with pytest.raises(DeadlineError, match="it sends nothing of what the log has"):
                        await reader.take()


@pytest.mark.anyio
@pytest.mark.parametrize("strict", [True, False])
async def test_a_partition_that_a_topic_made_again_does_not_have_is_lost_at_once(strict: bool) -> None:
    cluster, partition = MemoryCluster({"orders": 2}), TopicPartition("orders", 1)
    where = ClusterConnection("kafka://memory")
    request = ReadRequest(where, Topics(("orders",)), EARLIEST, fail_on_data_loss=strict, poll_deadline_s=0.1)
    async with cluster.connect() as k:
        cluster.append("orders", [b"0", b"1"], partition=1)
        extents = await k.driver.logs.extents([partition])
        task = TaskPlan((Range(partition, 0, 2),), {}, topic_ids(extents))
        cluster.delete_topic("orders")
        cluster.create_topic("orders")
        async with range_reader.RangeReader(k.driver, task, request) as reader:
            if strict:
                with pytest.raises(DataLoss, match="deleted and made again"):
                    await reader.take()
            else:
                assert await reader.take() == []


@pytest.mark.anyio
@pytest.mark.parametrize("strict", [True, False])
async def test_a_topic_that_is_deleted_while_it_is_read_is_lost_once_brokers_keep_saying_so(
    strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, partition = MemoryCluster({"orders": 1}), TopicPartition("orders", 0)
    where = ClusterConnection("kafka://memory")
    request = ReadRequest(where, Topics(("orders",)), EARLIEST, fail_on_data_loss=strict, poll_deadline_s=0.1)
    async with cluster.connect() as k:
        cluster.append("orders", [b"0", b"1"])
        task = TaskPlan((Range(partition, 0, 4),), {})
        async with range_reader.RangeReader(k.driver, task, request) as reader:
            (rows,) = await reader.take()
            assert isinstance(rows, range_reader.ColumnsChunk) and len(rows.rows) == 2
            cluster.delete_topic("orders")
            if strict:
                with pytest.raises(DeadlineError, match="no registered broker has it"):
                    await reader.take()
        monkeypatch.setattr(range_reader, "SHOWN_WITHIN_S", 0.0)
        async with range_reader.RangeReader(k.driver, task, request) as reader:
            if strict:
                with pytest.raises(DataLoss, match=r"no broker has this partition: wanted \[0, 4\)"):
                    await reader.take()
            else:
                assert await reader.take() == []


@pytest.mark.anyio
async def test_a_topic_that_no_broker_describes_is_not_taken_for_a_deleted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, partition = MemoryCluster({"orders": 1}), TopicPartition("orders", 0)
    where = ClusterConnection("kafka://memory")
    request = ReadRequest(where, Topics(("orders",)), EARLIEST, poll_deadline_s=0.1)
    monkeypatch.setattr(range_reader, "SHOWN_WITHIN_S", 0.0)
    async with cluster.connect() as k:
        cluster.delete_topic("orders")  # as in a process that has not looked it up yet

        async def fail(*_: object) -> None:
            raise BrokerError(-1, "UNKNOWN_SERVER_ERROR", "Metadata", retriable=True)

        monkeypatch.setattr(k.driver.metadata, "refresh", fail)
        async with range_reader.RangeReader(k.driver, TaskPlan((Range(partition, 0, 2),), {}), request) as reader:
            with pytest.raises(DeadlineError, match="no registered broker has it"):
                await reader.take()
