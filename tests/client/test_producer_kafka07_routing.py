"""The producer where partitions are numbered on each broker and are gone while it is, as in Kafka 0.7: records go to
others."""

from __future__ import annotations

import threading

import anyio
import pyarrow as pa
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.kafka07_double import Kafka07Double
from tests.client.producing import ProducerClock

from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.interfaces import PartitionBatch
from odradek.core.produce.partitioners import KeyHash
from odradek.errors import ConnectionLost, NotWritten, Undelivered, Unreachable
from odradek.testing.memory.broker import MemoryBrokerClient
from odradek.types import KiB, TopicPartition

pytestmark = pytest.mark.anyio

REFUSED = Unreachable("tcp", "memory-1:9092", "refused")
UNSENT = ConnectionLost("memory-1:9092", "reset", False)
PARTITION = TopicPartition("t", 0, 1)


@pytest.fixture
def double() -> Kafka07Double:
    return Kafka07Double()


async def test_case_45_a_new_topic_goes_to_partition_0_of_a_live_broker_and_then_spreads(double: Kafka07Double) -> None:
    async with double.producing() as out:
        first = await out.send("new", b"first")
        assert first.partition in (TopicPartition("new", 0, 1), TopicPartition("new", 0, 2))
        double.metadata.publish("new", b1=3, b2=3)
        for n in range(200):
            await out.send("new", b"%d" % n)
        assert {partition for partition in double.log if partition.topic == "new"} == {
            TopicPartition("new", n, broker) for broker in (1, 2) for n in range(3)
        }
        assert double.metadata.refreshed == 1  # for brokers that only tell when asked


async def test_case_45_a_key_counts_in_the_numerically_sorted_list_of_broker_and_partition(
    double: Kafka07Double,
) -> None:
    double.metadata.brokers(2, 10)
    double.metadata.publish("t", b10=2, b2=11)
    expected = [TopicPartition("t", n, 2) for n in range(11)] + [TopicPartition("t", n, 10) for n in range(2)]
    async with double.producing() as out:
        for n in range(50):
            key = b"key %d" % n
            index = KeyHash()("t", key, 13)
            assert index is not None
            assert (await out.send("t", b"v", key=key)).partition == expected[index]


async def test_case_45_records_without_a_key_are_spread_uniformly(double: Kafka07Double) -> None:
    async with double.producing() as out:
        for _ in range(400):
            await out.send("t", b"v")
    assert all(60 < len(values) < 140 for values in double.log.values())
    assert len(double.log) == 4


async def test_records_of_a_broker_that_has_gone_are_sent_elsewhere(double: Kafka07Double) -> None:
    key = next(b"%d" % n for n in range(99) if KeyHash()("t", b"%d" % n, 4) == 0)  # partition t/1-0
    double.cluster.fail("produce", REFUSED, times=None, broker=1)
    async with double.producing() as out:
        for n in range(5):
            await out.put("t", b"%d" % n, key=key)
        await double.cluster.wait_for_requests("produce", broker=1)
        double.metadata.brokers(2)
    (partition,) = double.log
    assert partition.broker == 2
    assert double.log[partition] == [b"%d" % n for n in range(5)]


async def test_rows_of_a_broker_that_has_gone_are_sent_elsewhere_in_their_order(double: Kafka07Double) -> None:
    double.metadata.brokers(1)
    double.cluster.hold("produce", broker=1)
    rows = [b"%04d" % n for n in range(2000)]
    tuning = Tuning(batch_bytes=2 * KiB)
    async with double.producing(tuning=tuning) as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send_arrow, "t", pa.array(rows))
        await wait_all_tasks_blocked()
        double.metadata.brokers(2)
        await wait_all_tasks_blocked()
        double.cluster.release("produce", broker=1)
        double.cluster.cut(1, error=UNSENT)
    assert {partition.broker for partition in double.log} == {2}
    assert double.values() == rows


async def test_a_broker_that_goes_while_its_batch_is_compressed_is_not_written_to(
    double: Kafka07Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, go_on = MemoryBrokerClient.encode, threading.Event()

    def slow(client: MemoryBrokerClient, batch: PartitionBatch, limit: int) -> None:
        assert go_on.wait(60)
        encode(client, batch, limit)

    monkeypatch.setattr(MemoryBrokerClient, "encode", slow)
    double.metadata.brokers(1)
    rows = [b"%05d" % n * 200 for n in range(100)]
    async with double.producing(compression="gzip") as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send_many, "t", rows)
        await wait_all_tasks_blocked()
        double.metadata.brokers(2)
        await wait_all_tasks_blocked()
        go_on.set()
    assert double.values() == rows
    assert {partition.broker for partition in double.log} == {2}


async def test_an_explicit_partition_waits_for_its_broker_to_come_back(double: Kafka07Double) -> None:
    double.metadata.brokers(2)
    async with double.producing() as out, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: out.send("t", b"v", partition=PARTITION))
        await wait_all_tasks_blocked()
        assert not double.log
        double.metadata.brokers(1, 2)
    assert double.log[PARTITION] == [b"v"]


async def test_records_without_any_live_broker_wait_for_one(double: Kafka07Double) -> None:
    double.metadata.brokers()
    async with double.producing() as out, anyio.create_task_group() as tasks:
        tasks.start_soon(out.send, "t", b"v")
        await wait_all_tasks_blocked()
        double.metadata.brokers(2)
    assert double.values() == [b"v"]


async def test_without_any_live_broker_the_error_says_that(
    double: Kafka07Double, producer_clock: ProducerClock
) -> None:
    double.metadata.brokers()
    async with double.producing(deliver_within=0.07) as out, anyio.create_task_group() as tasks:

        async def send() -> None:
            with pytest.raises(NotWritten) as caught:
                await out.send("t", b"v")
            assert "not delivered within 0.07 s (t: no live broker has it; 0 attempts)" in str(caught.value)

        tasks.start_soon(send)
        await wait_all_tasks_blocked()
        producer_clock.now += 1


async def test_a_partition_of_a_broker_that_never_comes_is_named_in_the_error(
    double: Kafka07Double, producer_clock: ProducerClock
) -> None:
    async with double.producing(deliver_within=0.07) as out, anyio.create_task_group() as tasks:

        async def send() -> None:
            with pytest.raises(NotWritten) as caught:
                await out.send("t", b"v", partition=TopicPartition("t", 0, 9))
            assert "not delivered within 0.07 s (t/9-0: no live broker has it; 0 attempts)" in str(caught.value)

        tasks.start_soon(send)
        await wait_all_tasks_blocked()
        producer_clock.now += 1


async def test_a_partition_of_a_broker_that_does_not_exist_is_waited_for(double: Kafka07Double) -> None:
    with pytest.raises(Undelivered, match="1 not written"):
        async with double.producing(exit_within=0, tuning=Tuning(backoff=Backoff(0.001, 2, 0.005))) as out:
            await out.put("t", b"no broker", partition=TopicPartition("t", 0, 3))
