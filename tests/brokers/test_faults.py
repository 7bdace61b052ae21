"""Three real brokers under load, with leaders that move, die and freeze: nothing is lost, repeated or reordered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskStatus

import odradek as od
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.testing import KafkaBroker, KafkaCluster
from odradek.testing.kafka.releases import NEWEST
from odradek.testing.kafka.topics import wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(600)]

TUNING = od.Tuning(request_timeout=3.0)
WITHIN_S = 180.0
COUNT = 600
SETTINGS = {"replica.lag.time.max.ms": "3000", "broker.session.timeout.ms": "3000", "min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster(NEWEST, 3, config=SETTINGS) as cluster:
        yield cluster


def move(brokers: KafkaCluster, topic: str) -> None:
    other = next(broker for broker in brokers.brokers if broker is not brokers.leader(topic))
    brokers.move_leader(topic, 0, other)


def kill(brokers: KafkaCluster, topic: str) -> None:
    leader = brokers.leader(topic)
    leader.kill()
    time.sleep(2)
    leader.start()


def freeze(brokers: KafkaCluster, topic: str) -> None:
    leader = brokers.leader(topic)
    leader.pause()
    time.sleep(2 * TUNING.request_timeout)
    leader.resume()


def fill_disk(brokers: KafkaCluster, topic: str) -> None:
    """A broker without a directory that it can write to ends."""
    leader = brokers.leader(topic)
    leader.fill_disk()
    wait_for("the end of a broker without a disk", lambda: not leader.running or None, 60.0)
    leader.kill()
    leader.start()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", [move, kill, freeze, fill_disk])
async def test_records_arrive_once_and_in_order_in_spite_of(
    brokers: KafkaCluster, fault: Callable[[KafkaCluster, str], None]
) -> None:
    topic = f"t{uuid4().hex[:12]}"
    await anyio.to_thread.run_sync(brokers.create_topic, topic)
    expected = [b"%d" % n for n in range(COUNT)]
    read: list[bytes | None] = []

    async def follow(*, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with cluster.reader(topic, tuning=TUNING) as reader:
            task_status.started()
            async for record in reader:
                read.append(record.value)
                if len(read) == COUNT:
                    return

    async def break_something() -> None:
        for _ in range(2):
            await anyio.to_thread.run_sync(fault, brokers, topic)
            await anyio.sleep(0.5)
        finished.set()

    finished = anyio.Event()

    async def write() -> None:
        async with cluster.producer(deliver_within=WITHIN_S, exit_within=WITHIN_S, tuning=TUNING) as out:
            await out.send(topic, expected[0])
            await tasks.start(follow)
            tasks.start_soon(break_something)
            for n, value in enumerate(expected[1:], 1):
                await out.put(topic, value)
                if n < COUNT - 100 or not finished.is_set():
                    await anyio.sleep(0.01)
            await finished.wait()
            await out.flush()
            assert not out.failures

    with anyio.fail_after(2 * WITHIN_S):
        async with od.connect(f"kafka://{brokers.bootstrap}", tuning=TUNING) as cluster:
            async with anyio.create_task_group() as tasks:
                await write()
            async with cluster.reader(topic, until=od.LATEST) as reader:
                stored = [record.value async for record in reader]
    assert stored == expected
    assert read == expected


async def test_a_group_goes_on_when_its_coordinator_is_killed_again_and_again(brokers: KafkaCluster) -> None:
    """Every record is delivered, in the order of its partition, and at the end every position is committed."""
    topic = f"t{uuid4().hex[:12]}"
    await anyio.to_thread.run_sync(brokers.create_topic, topic, 4)
    delivered: dict[od.TopicPartition, list[int]] = {}
    kills = anyio.Event()

    async def take(consumer: od.Consumer) -> None:
        async for batch in consumer.batches():
            delivered.setdefault(batch.partition, []).extend(record.position for record in batch)
            batch.done()

    async def find_coordinator() -> KafkaBroker:
        driver: Any = cluster.driver
        while True:
            with suppress(od.OdradekError):  # there may be none, or no answer in time, after the last kill
                coordinator = await driver.coordinators.find(CoordinatorType.GROUP, topic)
                return next(broker for broker in brokers.brokers if broker.broker_id == coordinator.id)
            await anyio.sleep(0.1)

    async def kill_coordinator() -> None:
        for _ in range(2):
            broker = await find_coordinator()
            await anyio.to_thread.run_sync(broker.kill)
            await anyio.sleep(1)
            await anyio.to_thread.run_sync(broker.start)
        kills.set()

    def complete() -> bool:
        ends = {partition: len(set(positions)) for partition, positions in delivered.items()}
        return ends == written

    written: dict[od.TopicPartition, int] = {}
    with anyio.fail_after(2 * WITHIN_S):
        async with (
            od.connect(f"kafka://{brokers.bootstrap}", tuning=TUNING) as cluster,
            cluster.producer(deliver_within=WITHIN_S, exit_within=WITHIN_S, tuning=TUNING) as out,
            cluster.consumer(topic, group=topic, exit_within=60) as first,
            cluster.consumer(topic, group=topic, exit_within=60) as second,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(take, first)
            tasks.start_soon(take, second)
            tasks.start_soon(kill_coordinator)
            number = 0
            while not kills.is_set() or number < COUNT:
                ack = await out.send(topic, b"v", key=b"%d" % number)
                written[ack.partition] = max(written.get(ack.partition, 0), (ack.position or 0) + 1)
                number += 1
                await anyio.sleep(0.01)
            while not complete():  # noqa: ASYNC110 - what is delivered is no event
                await anyio.sleep(0.05)
            await first.commit()
            await second.commit()
            assert not first.assignment.keys() & second.assignment.keys()
            tasks.cancel_scope.cancel()
        async with od.connect(f"kafka://{brokers.bootstrap}", tuning=TUNING) as cluster:
            assert await cluster.driver.offsets(topic).fetch(list(written)) == written
