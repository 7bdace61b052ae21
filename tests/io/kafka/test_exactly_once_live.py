"""Exactly once with other clients, and when tasks, processes and brokers are killed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import random
import sys
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import odradek as od
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.testing import KafkaBroker, KafkaCluster
from odradek.testing.kafka.releases import NEWEST
from odradek.types import LATEST

from .mover import move
from .topics import fill, until_committed, values

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

NUMBERS = count()


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough for what real brokers do."""
    return "asyncio"


@pytest.fixture
def topic() -> str:
    return f"once-{next(NUMBERS)}-{random.randrange(1 << 30)}"


# ---- other clients --------------------------------------------------------------------------------------------


async def test_java_reads_what_is_committed_and_its_transactions_are_read(
    odradek_kafka: KafkaBroker, topic: str
) -> None:
    async with od.connect(f"kafka://{odradek_kafka.bootstrap}") as k:
        async with k.producer(transactional_id=topic) as out:
            for value in (b"one", b"aborted", b"two"):
                with contextlib.suppress(KeyError):
                    async with out.transaction():
                        await out.send(topic, value)
                        if value == b"aborted":
                            raise KeyError
        options = ("--bootstrap-server", odradek_kafka.bootstrap, "--topic", topic, "--from-beginning")
        read = await run_java(
            odradek_kafka,
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *options,
            *("--isolation-level", "read_committed", "--max-messages", "2"),
        )
        assert read == "one\ntwo\n"
        settings = ("--producer-props", f"bootstrap.servers={odradek_kafka.bootstrap}")
        size = ("--topic", f"{topic}-java", "--num-records", "300", "--record-size", "10", "--throughput", "-1")
        tool = "org.apache.kafka.tools.ProducerPerformance"
        wrote = await run_java(
            odradek_kafka, tool, *size, "--transactional-id", topic, "--transaction-duration-ms", "10", *settings
        )
        assert "\n300 records sent" in f"\n{wrote}"
        assert len(await values(k, f"{topic}-java")) == 300


async def run_java(broker: KafkaBroker, *command: str) -> str:
    done = await anyio.to_thread.run_sync(partial(broker.java_tool, *command, timeout=120.0))
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_transactions_of_aiokafka_are_read_and_ours_by_it(odradek_kafka: KafkaBroker, topic: str) -> None:
    aiokafka: Any = importlib.import_module("aiokafka")
    options = {"bootstrap_servers": odradek_kafka.bootstrap}
    async with aiokafka.AIOKafkaProducer(**options, transactional_id=topic) as producer:
        for value in (b"1", b"aborted", b"2"):
            with contextlib.suppress(KeyError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, value)
                    if value == b"aborted":
                        raise KeyError
    async with od.connect(f"kafka://{odradek_kafka.bootstrap}") as k:
        await until_committed(k, topic, [b"1", b"2"])
        async with k.producer(transactional_id=topic) as out, out.transaction():  # after aiokafka's, with its id
            await out.send(topic, b"3")
        await until_committed(k, topic, [b"1", b"2", b"3"])
    consumer = aiokafka.AIOKafkaConsumer(
        topic, **options, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with consumer:
        with anyio.fail_after(60):
            assert [(await consumer.getone()).value for _ in range(3)] == [b"1", b"2", b"3"]


# ---- kills ----------------------------------------------------------------------------------------------------

KILLS = int(os.environ.get("ODRADEK_KILLS", "3"))
"""Kills on three brokers, in the order of `WAYS`: the first three need several brokers."""

RECORDS_PER_KILL = 120
TUNING = od.Tuning(request_timeout=3.0)
TRANSACTION_TOPIC, TRANSACTION_PARTITIONS = "__transaction_state", 4

WAYS = ("coordinator", "move", "leader", "process", "cancel")
SETTINGS = {"replica.lag.time.max.ms": "3000", "min.insync.replicas": "2"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("ways", "options"),
    [
        ([WAYS[n % len(WAYS)] for n in range(KILLS)], {"version": NEWEST, "size": 3, "config": SETTINGS}),
        (["cancel", "process", "coordinator"], {"version": "2.8.2", "size": 1, "mode": "zookeeper"}),
    ],
    ids=["three brokers", "2.8.2"],
)
async def test_transactions_are_atomic_in_spite_of_random_kills(
    topic: str, ways: list[str], options: dict[str, Any]
) -> None:
    """Tasks, processes, coordinators and leaders are killed, and coordinators move: each record is moved once."""
    source, target = topic, f"{topic}-out"
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    async with KafkaCluster(**options) as brokers:
        await anyio.to_thread.run_sync(brokers.create_topic, target, 3)
        async with od.connect(f"kafka://{brokers.bootstrap}", tuning=TUNING) as k:
            rows = await fill(k, source, RECORDS_PER_KILL * len(ways))
            faults = Faults(brokers, k, source, target)
            for way in chance.sample(ways, len(ways)):
                await kill_one(way, faults, chance)
        with anyio.fail_after(300):
            moved = await moved_by_one_more(brokers, source, target)
    assert sorted(int(row[3]) for row in moved) == sorted(map(int, rows)), f"seed {seed}"
    sizes = Counter(row[0] for row in moved)
    assert all(sizes[name] == int(size) for name, _, size, _ in moved), f"seed {seed}: part of a transaction"


class Faults:
    """What happens to the brokers of a test that moves records from `source` to `target`."""

    def __init__(self, brokers: KafkaCluster, k: od.Cluster, source: str, target: str) -> None:
        self.brokers, self.source, self.target = brokers, source, target
        self._cluster = k

    async def coordinator(self, chance: random.Random) -> None:
        """Kill the transaction coordinator, and start it again."""
        await self._restart(await self._find_coordinator(), chance)

    async def leader(self, chance: random.Random) -> None:
        """Kill the leader of a partition of the target, and start it again."""
        await self._restart(await anyio.to_thread.run_sync(self.brokers.leader, self.target, 0), chance)

    async def move(self, chance: random.Random) -> None:
        """Let another broker be the coordinator."""
        coordinator = await self._find_coordinator()
        other = chance.choice([broker for broker in self.brokers.brokers if broker is not coordinator])
        await anyio.to_thread.run_sync(self._move, coordinator, other)

    def _move(self, coordinator: KafkaBroker, other: KafkaBroker) -> None:
        for partition in range(TRANSACTION_PARTITIONS):
            if self.brokers.leader(TRANSACTION_TOPIC, partition) is coordinator:
                self.brokers.move_leader(TRANSACTION_TOPIC, partition, other)

    async def _restart(self, broker: KafkaBroker, chance: random.Random) -> None:
        await anyio.to_thread.run_sync(broker.kill)
        await anyio.sleep(chance.random())
        await anyio.to_thread.run_sync(broker.start)

    async def _find_coordinator(self) -> KafkaBroker:
        driver: Any = self._cluster.driver
        coordinators = driver.coordinators
        with anyio.fail_after(60):
            while True:
                coordinators.forget(CoordinatorType.TRANSACTION, self.source)
                with contextlib.suppress(od.OdradekError):
                    coordinator = await coordinators.find(CoordinatorType.TRANSACTION, self.source)
                    return next(broker for broker in self.brokers.brokers if broker.broker_id == coordinator.id)
                await anyio.sleep(0.05)


async def kill_one(way: str, faults: Faults, chance: random.Random) -> None:
    delay = chance.random() * 0.8
    bootstrap, source, target = faults.brokers.bootstrap, faults.source, faults.target
    if way == "process":
        script = Path(__file__).with_name("mover.py")
        process = await anyio.open_process([sys.executable, str(script), bootstrap, source, target])
        await anyio.sleep(1.0 + delay)  # it takes a while to begin
        process.kill()
        await process.wait()
        await process.aclose()
        return
    task = asyncio.ensure_future(move(bootstrap, source, target))
    await asyncio.wait([task], timeout=delay)
    if way != "cancel":
        await getattr(faults, way)(chance)
        await asyncio.wait([task], timeout=1.0)
    task.cancel()
    with anyio.fail_after(60):
        await asyncio.wait([task])
    if not task.cancelled():  # the outcome is unknown, the exit has reached nobody, ...
        assert isinstance(task.exception(), od.OdradekError), task.exception()


async def moved_by_one_more(brokers: KafkaCluster, source: str, target: str) -> list[list[str]]:
    """Let another mover do what is left, and return what all have moved."""
    task = asyncio.ensure_future(move(brokers.bootstrap, source, target))
    try:
        async with od.connect(f"kafka://{brokers.bootstrap}") as k:
            (partition,) = await k.partitions(source)
            while True:
                stored = (await k.driver.offsets(source).fetch([partition]))[partition]
                if stored == (await k.positions(source, LATEST))[partition]:
                    return [(value or b"").decode().split() for value in await values(k, target)]
                assert not task.done(), task.exception()
                await anyio.sleep(0.1)
    finally:
        task.cancel()
        await asyncio.wait([task])
