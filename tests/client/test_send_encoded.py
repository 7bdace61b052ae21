"""`Producer.send_many` of a `Batch` that is not decoded: passed on as it is, or decoded where that cannot be."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.kafka07_double import Kafka07Double
from tests.client.producing import P0, P3, make_cluster, producing, stored
from tests.encoded import encoded_columns, undecodable

from odradek.batch import Batch
from odradek.client.producer.results import Ack
from odradek.core.interfaces import ProducerRecord
from odradek.core.produce.batch import RECORD_OVERHEAD_BYTES
from odradek.core.produce.packed_records import EncodedRecords
from odradek.errors import CorruptMessage, NotWritten, Undelivered, Unsupported
from odradek.testing import MemoryCluster
from odradek.types import Columns, TopicPartition

pytestmark = pytest.mark.anyio

SOURCE = TopicPartition("source", 2)
ROWS = [ProducerRecord(b"%d" % n, b"k", (("h", b"v"),), 5 + n) for n in range(4)]


@pytest.fixture
def cluster() -> MemoryCluster:
    return make_cluster()


def batch(first: int = 0) -> Batch:
    return Batch(SOURCE, encoded_columns([row._replace(value=b"%d" % (first + n)) for n, row in enumerate(ROWS)]))


SIZE = len(EncodedRecords(batch().columns).batch.data) + RECORD_OVERHEAD_BYTES


async def test_it_goes_to_one_partition_as_it_is(cluster: MemoryCluster) -> None:
    between = Columns([b"between"], [4], [5])
    parts = Columns.concat([batch().columns, between, batch(10).columns])
    async with producing(cluster) as out:
        await out.send("t", b"first", partition=P0)
        acks = (await out.send_many("t", Batch(SOURCE, parts), partition=P0)).check()
        assert out.statistics().written == 10
    assert [(ack.position, ack.records) for ack in acks.acks] == [(1, 4), (5, 1), (6, 4)]
    assert stored(cluster, P0) == [b"first", b"0", b"1", b"2", b"3", b"between", b"10", b"11", b"12", b"13"]
    assert [each.record for each in cluster.log(P0)][1:5] == ROWS


@pytest.mark.parametrize("how", ["keys choose", "too large"])
async def test_it_is_decoded_where_its_records_count(cluster: MemoryCluster, how: str) -> None:
    options: Any = {"max_message_bytes": SIZE - RECORD_OVERHEAD_BYTES - 1} if how == "too large" else {}
    async with producing(cluster, **options) as out:
        acks = await out.send_many("t", batch(), partition=None if how == "keys choose" else P0)
    assert acks.check().written == 4
    assert [each.record for each in cluster.records("t")] == ROWS


async def test_a_topic_that_cannot_be_refuses_each_record(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        acks = await out.send_many("no/topic", batch(), partition=0)
    assert [failed.record for failed in acks.failed] == ROWS


async def test_a_cluster_of_0_7_gets_the_values(cluster: MemoryCluster) -> None:
    double, partition = Kafka07Double(), TopicPartition("t", 0, 1)
    plain = encoded_columns([ProducerRecord(b"a", b"k", (), 5)]).replace(timestamps=None)
    async with double.producing() as out:
        await out.send("t", b"first", partition=partition)
        (await out.send_many("t", Batch(SOURCE, plain), partition=partition)).check()
        acks = await out.send_many("t", batch(), partition=partition)
    assert double.log[partition] == [b"first", b"a"]
    assert [type(failed.error) for failed in acks.failed] == [Unsupported] * 4


async def test_one_that_cannot_be_decoded_is_raised_before_it_is_sent(cluster: MemoryCluster) -> None:
    async with producing(cluster) as out:
        await out.send("t", b"first", partition=P3)
        with pytest.raises(CorruptMessage):
            await out.send_many("t", Batch(SOURCE, Columns.concat([batch().columns, undecodable(2)])))
    assert len(cluster.records("t")) == 5


# ---- space in the buffer -----------------------------------------------------------------------------------------


async def test_it_waits_for_space_in_its_order(cluster: MemoryCluster) -> None:
    async with producing(cluster, buffer_bytes=2 * SIZE, compression="lz4") as out:
        await out.send("t", b"first", partition=P0)
        cluster.hold("produce")
        parts = Columns.concat([batch(10 * n).columns for n in range(5)])
        acks: list[Ack] = []

        async def send() -> None:
            acks.extend((await out.send_many("t", Batch(SOURCE, parts), partition=P0)).acks)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await wait_all_tasks_blocked()
            assert out.statistics().waiting == 1 and not out.try_put("t", b"barges in")
            cluster.release("produce")
        assert [(ack.position, ack.records) for ack in acks] == [(1 + 4 * n, 4) for n in range(5)]
        assert out.statistics().buffered_bytes == 0
    assert stored(cluster, P0) == [b"first"] + [b"%d" % (10 * n + row) for n in range(5) for row in range(4)]


async def test_a_batch_whose_caller_is_cancelled_while_it_waits_is_not_sent(cluster: MemoryCluster) -> None:
    async with producing(cluster, buffer_bytes=2 * SIZE - 1, compression="lz4") as out:
        await out.send("t", b"first", partition=P0)
        cluster.hold("produce")
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                parts = Columns.concat([batch().columns, batch(10).columns])
                tasks.start_soon(lambda: out.send_many("t", Batch(SOURCE, parts), partition=P0))
                await wait_all_tasks_blocked()
                scope.cancel()
        assert out.statistics().waiting == 0
        cluster.release("produce")
    assert stored(cluster, P0) == [b"first", b"0", b"1", b"2", b"3"]


async def test_waiting_has_a_deadline(cluster: MemoryCluster) -> None:
    options: Any = {"buffer_bytes": 2 * SIZE - 1, "compression": "lz4", "deliver_within": 0.2, "exit_within": 0}
    with pytest.raises(Undelivered, match="unknown"):  # those in flight
        async with producing(cluster, **options) as out:
            await out.send("t", b"first", partition=P0)
            cluster.hold("produce")
            parts = Columns.concat([batch().columns, batch(10).columns])
            with pytest.raises(NotWritten, match="4 records not written: no space in the buffer") as raised:
                await out.send_many("t", Batch(SOURCE, parts), partition=P0)
            assert [record.value for record in raised.value.records] == [b"10", b"11", b"12", b"13"]


async def test_what_waits_can_be_purged(cluster: MemoryCluster) -> None:
    errors: list[NotWritten] = []
    async with producing(cluster, buffer_bytes=2 * SIZE - 1, compression="lz4") as out:
        await out.send("t", b"first", partition=P0)
        cluster.hold("produce")

        async def send() -> None:
            try:
                parts = Columns.concat([batch().columns, batch(10).columns])
                await out.send_many("t", Batch(SOURCE, parts), partition=P0)
            except NotWritten as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await wait_all_tasks_blocked()
            assert out.purge().not_written == 4
        cluster.release("produce")
    assert [len(error.records) for error in errors] == [4]
    assert stored(cluster, P0) == [b"first", b"0", b"1", b"2", b"3"]
