"""Three real brokers under load, with leaders that move, die and freeze: nothing is lost, repeated or reordered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskStatus

import odradek as od
from odradek.testing import KafkaCluster

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(600)]

TUNING = od.Tuning(request_timeout=3.0)
WITHIN_S = 180.0
COUNT = 600
SETTINGS = {"replica.lag.time.max.ms": "3000", "broker.session.timeout.ms": "3000", "min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def brokers() -> Iterator[KafkaCluster]:
    with KafkaCluster("3.9.1", 3, config=SETTINGS) as cluster:
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


@pytest.mark.parametrize("fault", [move, kill, freeze])
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
