"""Consumer groups on real brokers."""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import confluent_kafka
import pytest

import odradek as od
from odradek.errors import Unsupported
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import NEWEST
from odradek.types import LATEST, Position

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

PARTITIONS = 4
NUMBERS = count()


@pytest.fixture(scope="module", params=["0.9.0.1", "0.10.1.1", NEWEST])
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    with KafkaBroker(request.param) as broker:
        yield broker


@pytest.fixture(scope="module")
def newest() -> Iterator[KafkaBroker]:
    with KafkaBroker(NEWEST) as broker:
        yield broker


@asynccontextmanager
async def cluster_with_records(broker: KafkaBroker, records: int) -> AsyncIterator[tuple[od.Cluster, str]]:
    """A cluster, and a topic of its own with so many different records, some in each partition."""
    topic = f"orders-{next(NUMBERS)}"
    await anyio.to_thread.run_sync(broker.create_topic, topic, PARTITIONS)
    async with od.connect(f"kafka://{broker.bootstrap}") as k:
        async with k.producer() as out:
            values = [str(n).encode() for n in range(records)]
            await out.send_many(topic, [od.ProducerRecord(value, key=value) for value in values])
        yield k, topic


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of members whose events are not for tests
        await anyio.sleep(0.02)


async def take(consumer: od.Consumer, records: Counter[bytes], until: int) -> None:
    """Take records until there are so many, all members together."""
    async for batch in consumer.batches():
        records.update(record.value or b"" for record in batch)
        batch.done()
        if records.total() >= until:
            return


async def test_two_members_share_the_partitions_and_deliver_every_record_once(broker: KafkaBroker) -> None:
    async with cluster_with_records(broker, 400) as (k, topic):
        records: Counter[bytes] = Counter()
        async with k.consumer(topic, group=topic) as first, k.consumer(topic, group=topic) as second:
            with anyio.fail_after(60):
                await until(lambda: len(first.assignment) == len(second.assignment) == PARTITIONS // 2)
                assert not first.assignment.keys() & second.assignment.keys()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(take, first, records, 400)
                    tasks.start_soon(take, second, records, 400)
                    await until(lambda: records.total() >= 400)
                    tasks.cancel_scope.cancel()
            assert topic in await k.driver.groups()
        assert records == Counter(str(n).encode() for n in range(400))
        committed = await k.driver.offsets(topic).fetch(await k.partitions(topic))
        assert committed == await k.positions(topic, LATEST)


async def test_the_partitions_of_a_member_that_leaves_go_to_the_other_one(broker: KafkaBroker) -> None:
    async with cluster_with_records(broker, 100) as (k, topic):
        records: Counter[bytes] = Counter()
        async with k.consumer(topic, group=topic) as first:
            with anyio.fail_after(60):
                async with k.consumer(topic, group=topic) as second:
                    await until(lambda: len(second.assignment) == PARTITIONS // 2)
                await until(lambda: len(first.assignment) == PARTITIONS)
                await take(first, records, 100)
    assert records == Counter(str(n).encode() for n in range(100))


async def test_members_cancelled_at_random_moments_leave_a_group_that_works(broker: KafkaBroker) -> None:
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)
    async with cluster_with_records(broker, 50) as (k, topic):
        for _ in range(15):
            with anyio.move_on_after(moments.random() ** 3 * 4):
                async with k.consumer(topic, group=topic, exit_within=5.0):
                    await anyio.sleep_forever()
        records: Counter[bytes] = Counter()
        with anyio.fail_after(90):
            async with k.consumer(topic, group=topic, join_within=90) as last:
                await until(lambda: len(last.assignment) == PARTITIONS)
                await take(last, records, 50)
    assert records == Counter(str(n).encode() for n in range(50)), seed


async def test_cooperative_members_keep_the_partitions_that_do_not_move(broker: KafkaBroker) -> None:
    async with cluster_with_records(broker, 10) as (k, topic):
        with anyio.fail_after(60):
            async with k.consumer(topic, group=topic, assignors=["cooperative-sticky"]) as first:
                before = dict(first.assignment)
                assert len(before) == PARTITIONS
                sizes: set[int] = set()
                async with k.consumer(topic, group=topic, assignors=["cooperative-sticky"]) as second:

                    def shared() -> bool:
                        sizes.add(len(first.assignment))
                        return len(second.assignment) == PARTITIONS // 2

                    await until(shared)
                    assert first.assignment.items() < before.items()
                    assert 0 not in sizes


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the only one of aiokafka
async def test_a_group_is_shared_with_a_consumer_of_aiokafka(newest: KafkaBroker) -> None:
    async with cluster_with_records(newest, 200) as (k, topic):
        aiokafka: Any = importlib.import_module("aiokafka")
        other = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=newest.bootstrap, group_id=topic, auto_offset_reset="earliest"
        )
        records: Counter[bytes] = Counter()

        async def take_other() -> None:
            async for record in other:
                records[record.value] += 1

        async with k.consumer(topic, group=topic) as ours, anyio.create_task_group() as tasks:
            with anyio.fail_after(60):
                await other.start()
                try:
                    await until(lambda: len(ours.assignment) == len(other.assignment()) == PARTITIONS // 2)
                    theirs = {p.partition for p in other.assignment()}
                    assert theirs | {p.partition for p in ours.assignment} == set(range(PARTITIONS))
                    tasks.start_soon(take_other)
                    tasks.start_soon(take, ours, records, 200)
                    await until(lambda: records.total() >= 200)
                    tasks.cancel_scope.cancel()
                finally:
                    with anyio.CancelScope(shield=True):
                        await other.stop()
        assert records == Counter(str(n).encode() for n in range(200))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
async def test_a_group_is_shared_with_a_consumer_of_librdkafka(
    newest: KafkaBroker, strategy: str, anyio_backend_name: str
) -> None:
    async with cluster_with_records(newest, 200) as (k, topic):
        other = confluent_kafka.Consumer(
            {
                "bootstrap.servers": newest.bootstrap,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": strategy,
            }
        )
        records: Counter[bytes] = Counter()

        def poll() -> None:
            message = other.poll(0.1)
            if message is not None and not message.error():
                records[message.value() or b""] += 1

        async with k.consumer(topic, group=topic, assignors=[strategy]) as ours, anyio.create_task_group() as tasks:
            try:
                with anyio.fail_after(60):
                    other.subscribe([topic])
                    while not len(ours.assignment) == len(other.assignment()) == PARTITIONS // 2:
                        await anyio.to_thread.run_sync(poll)
                    theirs = {p.partition for p in other.assignment()}
                    assert theirs | {p.partition for p in ours.assignment} == set(range(PARTITIONS))
                    tasks.start_soon(take, ours, records, 200)
                    while records.total() < 200:
                        await anyio.to_thread.run_sync(poll)
                    tasks.cancel_scope.cancel()
            finally:
                other.close()
            with anyio.move_on_after(60):
                await until(lambda: len(ours.assignment) == PARTITIONS)
        assert records == Counter(str(n).encode() for n in range(200))


async def test_a_topic_that_is_created_later_is_consumed_from_its_start(newest: KafkaBroker) -> None:
    async with od.connect(f"kafka://{newest.bootstrap}") as k:
        topic = f"later-{next(NUMBERS)}"
        records: Counter[bytes] = Counter()
        with anyio.fail_after(60):
            async with k.consumer(topic, group=topic) as consumer:
                assert not consumer.assignment
                await anyio.to_thread.run_sync(newest.create_topic, topic, PARTITIONS)
                async with k.producer() as out:
                    await out.send(topic, b"first")
                await take(consumer, records, 1)
                assert len(consumer.assignment) == PARTITIONS
        assert records == {b"first": 1}


async def test_a_static_member_that_restarts_gets_its_partitions_again_without_a_rebalance(newest: KafkaBroker) -> None:
    async with cluster_with_records(newest, 10) as (k, topic):
        with anyio.fail_after(60):
            async with k.consumer(topic, group=topic, consumer_id="one") as first:
                async with k.consumer(topic, group=topic, consumer_id="two") as second:
                    await until(lambda: len(first.assignment) == len(second.assignment) == PARTITIONS // 2)
                    kept, theirs = first.assignment, second.assignment
                async with k.consumer(topic, group=topic, consumer_id="two") as again:
                    assert again.assignment == theirs
                    assert first.assignment is kept


async def test_the_command_line_prints_the_lag_of_a_group(newest: KafkaBroker) -> None:
    async with cluster_with_records(newest, 10) as (k, topic):
        first, *_ = await k.partitions(topic)
        await k.driver.offsets(topic).commit({first: Position(1)})
        command = ["lag", topic, "--json", "--cluster", f"kafka://{newest.bootstrap}"]
        done = await anyio.run_process([sys.executable, "-m", "odradek.cli", *command])
        assert json.loads(done.stdout.splitlines()[-1]) == {"group": topic, "lag": 9}


async def test_members_survive_a_restart_of_their_coordinator() -> None:
    with KafkaBroker(NEWEST) as broker:
        async with cluster_with_records(broker, 50) as (k, topic):
            records: Counter[bytes] = Counter()
            with anyio.fail_after(120):
                async with k.consumer(topic, group=topic) as consumer:
                    await take(consumer, records, 50)
                    await consumer.commit()
                    await anyio.to_thread.run_sync(broker.kill)
                    await anyio.to_thread.run_sync(broker.start)
                    async with k.producer() as out:
                        await out.send_many(topic, [b"later"] * 10)
                    await take(consumer, records, 60)
                    await consumer.commit()
            committed = await k.driver.offsets(topic).fetch(await k.partitions(topic))
            assert committed == await k.positions(topic, LATEST)
    assert records[b"later"] == 10


async def test_kafka_0_8_2_stores_positions_but_has_no_groups() -> None:
    with KafkaBroker("0.8.2.2") as broker:
        async with cluster_with_records(broker, 10) as (k, topic):
            with pytest.raises(Unsupported, match=r"Kafka 0\.9"):
                k.consumer(topic, group="g")
            offsets = k.driver.offsets("g")
            partitions = await k.partitions(topic)
            assert set((await offsets.fetch(partitions)).values()) == {None}
            await offsets.commit({partitions[1]: Position(2)})
            assert await offsets.fetch(partitions[:2]) == {partitions[0]: None, partitions[1]: 2}
