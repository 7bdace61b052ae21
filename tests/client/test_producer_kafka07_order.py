"""The producer with several batches of one partition in flight, as on brokers of Kafka 0.7, which never refuse one and
accept the next: the order of a partition is kept when they have to be sent again."""

from __future__ import annotations

import os
import threading
from functools import partial

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.kafka07_double import Kafka07Double
from tests.client.producing import ProducerClock

from odradek.client.options import Tuning
from odradek.client.producer import sender
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Ack
from odradek.core.interfaces import PartitionBatch
from odradek.errors import ConnectionLost, NotWritten
from odradek.testing.memory.broker import MemoryBrokerClient
from odradek.types import TopicPartition

pytestmark = pytest.mark.anyio

PARTITION = TopicPartition("t", 0, 1)
UNSENT = ConnectionLost("memory-1:9092", "reset", False)
LONG_S = 60
"""More than any test takes."""


@pytest.fixture
def double() -> Kafka07Double:
    return Kafka07Double()


class Sends:
    """`send`s in the background and what became of them, by value."""

    def __init__(self, out: Producer, tasks: anyio.abc.TaskGroup) -> None:
        self._out, self._tasks = out, tasks
        self.acks: dict[bytes, Ack | NotWritten] = {}

    async def start(self, value: bytes, partition: TopicPartition = PARTITION) -> None:
        async def one() -> None:
            try:
                self.acks[value] = await self._out.send("t", value, partition=partition)
            except NotWritten as error:
                self.acks[value] = error

        self._tasks.start_soon(one)
        await wait_all_tasks_blocked()

    def repeated(self) -> list[bool]:
        return [isinstance(ack, Ack) and ack.repeated for ack in self.acks.values()]


async def test_what_was_surely_not_sent_goes_again_in_order_and_once(double: Kafka07Double) -> None:
    double.cluster.hold("produce", broker=1)
    async with double.producing(latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for value in (b"1", b"2", b"3"):
            await sends.start(value)
        assert len(double.cluster.requests("produce", broker=1)) == 3
        double.cluster.release("produce", broker=1)
        double.cluster.cut(1, error=UNSENT)
    assert double.log[PARTITION] == [b"1", b"2", b"3"]
    assert sends.repeated() == [False] * 3


async def test_what_may_have_been_applied_goes_again_and_says_so(double: Kafka07Double) -> None:
    double.cluster.hold("produce", broker=1)
    async with double.producing(latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        for value in (b"1", b"2", b"3"):
            await sends.start(value)
        double.cluster.release("produce", broker=1)
        double.cluster.cut(1, applied=2)
        assert not sends.acks
    assert double.log[PARTITION] == [b"1", b"2", b"1", b"2", b"3"]  # at least once, in order
    assert sends.repeated() == [True] * 3
    assert out.statistics().retries == 3


async def test_order_holds_while_newer_records_arrive_during_the_failure(double: Kafka07Double) -> None:
    double.cluster.hold("produce", broker=1)
    async with double.producing(latency=0) as out:
        for n in range(3):
            await out.put("t", b"%d" % n, partition=PARTITION)
            await wait_all_tasks_blocked()
        assert len(double.cluster.requests("produce", broker=1)) == 3
        double.cluster.release("produce", broker=1)
        double.cluster.cut(1, error=UNSENT)
        for n in range(3, 6):
            await out.put("t", b"%d" % n, partition=PARTITION)
    assert double.log[PARTITION] == [b"%d" % n for n in range(6)]


async def test_what_follows_a_record_that_was_taken_back_goes_in_its_order(
    double: Kafka07Double, producer_clock: ProducerClock
) -> None:
    double.cluster.hold("connect", broker=1)
    async with double.producing(deliver_within=0.07, latency=0) as out, anyio.create_task_group() as tasks:
        sends = Sends(out, tasks)
        await sends.start(b"1")
        producer_clock.now += 0.05
        await sends.start(b"2")
        await sends.start(b"3", PARTITION._replace(partition=1))
        assert out.statistics().requests == 3, "all of them wait for the connection"
        producer_clock.now += 0.05
        while not sends.acks:
            await wait_all_tasks_blocked()
        assert type(sends.acks[b"1"]) is NotWritten
        assert len(sends.acks) == 1
        double.cluster.release("connect", broker=1)
    assert double.log[PARTITION] == [b"2"]
    assert double.log[PARTITION._replace(partition=1)] == [b"3"]


async def test_a_batch_of_the_partition_that_is_due_at_a_flush_is_sent_behind_the_one_in_flight(
    double: Kafka07Double,
) -> None:
    double.cluster.hold("produce", broker=1)
    async with double.producing(latency=1000) as out:
        await out.put("t", b"first", partition=PARTITION)
        await wait_all_tasks_blocked()
        await out.put("t", b"second", partition=PARTITION)
        await wait_all_tasks_blocked()
        assert len(double.cluster.requests("produce", broker=1)) == 1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(out.flush)
            await wait_all_tasks_blocked()
            assert len(double.cluster.requests("produce", broker=1)) == 2
            double.cluster.release("produce", broker=1)


async def test_what_was_being_compressed_when_the_connection_died_does_not_overtake(
    double: Kafka07Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a thread compresses the second batch, the first one's connection dies."""
    encode, go_on = MemoryBrokerClient.encode, threading.Event()

    def slow(client: MemoryBrokerClient, batch: PartitionBatch, limit: int) -> None:
        if len(batch.records) > 1:
            assert go_on.wait(LONG_S)
        encode(client, batch, limit)

    monkeypatch.setattr(MemoryBrokerClient, "encode", slow)
    double.cluster.hold("produce", broker=1)
    rows = [b"%05d" % n * 200 for n in range(100)]
    async with double.producing(compression="gzip", latency=0) as out, anyio.create_task_group() as tasks:
        await out.put("t", b"first", partition=PARTITION)
        await double.cluster.wait_for_requests("produce", broker=1)
        tasks.start_soon(partial(out.send_many, "t", rows, partition=PARTITION))
        await wait_all_tasks_blocked()
        double.cluster.release("produce", broker=1)
        double.cluster.cut(1, error=UNSENT)
        go_on.set()
    assert double.log[PARTITION] == [b"first", *rows]


async def test_batches_of_one_partition_are_compressed_at_the_same_time_and_sent_in_their_order(
    double: Kafka07Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is not through before the second one is."""
    encode, second_done = MemoryBrokerClient.encode, threading.Event()
    each = sender.THREAD_BYTES // 1010 + 1  # records of a batch that is large enough for a thread
    rows = [b"%05d" % n * 200 for n in range(2 * each)]

    def slow(client: MemoryBrokerClient, batch: PartitionBatch, limit: int) -> None:
        if batch.records[0] == rows[0]:
            assert second_done.wait(LONG_S)
            encode(client, batch, limit)
            return
        encode(client, batch, limit)
        if batch.records[0] == rows[each]:
            second_done.set()

    monkeypatch.setattr(MemoryBrokerClient, "encode", slow)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    tuning = Tuning(batch_bytes=each * 1010)
    async with double.producing(compression="gzip", tuning=tuning, latency=0) as out:
        await out.send("t", b"the topic is known now", partition=PARTITION)
        assert (await out.send_many("t", rows, partition=PARTITION)).written == len(rows)
    assert double.log[PARTITION] == [b"the topic is known now", *rows]
