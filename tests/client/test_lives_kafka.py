"""Random lives, as in test_lives.py, on a real broker whose connections are cut, stalled, split and refused.

ODRADEK_LIVES_KAFKA=2000 pytest tests/client/test_lives_kafka.py        # that many lives, in all
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import anyio.to_thread
import pytest
from tests.client.lives import WAYS, Life, run_lives, wait_for_threads

import odradek as od
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.io import tcp
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka import connections
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.io.kafka.metadata import MetadataOptions
from odradek.testing import FaultProxy, KafkaBroker
from odradek.testing.kafka.releases import NEWEST
from odradek.testing.kafka.requests import ask
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.messages.admin import DeleteTopicsRequest

LIVES = int(os.environ.get("ODRADEK_LIVES_KAFKA", "8"))

PARTITIONS = 2
NUMBERS = count()
CONFIG = {
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "1500",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.heartbeat.interval.ms": "300",
}
"""Members that did not leave are removed soon."""

BACKOFF = Backoff(0.001, 2, 0.02)
PATIENT = KafkaOptions(request_timeout_s=60.0)
"""Of clients that nothing disturbs."""

OPTIONS = KafkaOptions(
    connection=ConnectionOptions(1.0, BACKOFF),
    metadata=MetadataOptions(backoff=BACKOFF),
    request_timeout_s=1.0,
    session_timeout_s=1.5,
    heartbeat_s=0.3,
    rebalance_timeout_s=1.5,
)


class KafkaLife(Life):
    """A life of a topic and a group of a real broker, which is reached through a proxy.

    Producers are idempotent, so that the log has every record at most once.
    """

    tuning = Tuning(backoff=BACKOFF, request_timeout=1.0, connect_timeout=1.0)
    patience = 10.0
    longest_s = 4.0
    hangs_after_s = 120.0

    def __init__(self, seed: int, broker: KafkaBroker, proxy: FaultProxy) -> None:
        self.topic = self.group = f"life-{seed}-{next(NUMBERS)}"
        super().__init__(seed, [TopicPartition(self.topic, number) for number in range(PARTITIONS)])
        self._broker, self._proxy = broker, proxy

    @classmethod
    @contextmanager
    def of(cls, seed: int, broker: KafkaBroker, proxy: FaultProxy) -> Iterator[KafkaLife]:
        """Make a topic for the life, and delete it afterwards."""
        life = cls(seed, broker, proxy)
        broker.create_topic(life.topic, PARTITIONS)
        anyio.run(life._write)
        try:
            yield life
        finally:
            proxy.heal()
            ask(broker.host, broker.port, DeleteTopicsRequest(topic_names=(life.topic,), timeout_ms=10_000), 4)

    async def _write(self) -> None:
        """Write the first records."""
        values = [self.value() for _ in range(self.chance.randrange(40))]
        async with self.connect(PATIENT) as k, k.producer() as out:
            acks = await out.send_many(self.topic, [od.ProducerRecord(value, key=value) for value in values])
        assert not acks.failed
        self.acked |= set(values)

    def connect(self, options: KafkaOptions = OPTIONS) -> od.Cluster:
        return od.Cluster(KafkaDriver([Broker(-1, self._proxy.host, self._proxy.port)], options), self.tuning)

    async def disturb(self) -> None:
        await anyio.to_thread.run_sync(self._disturb)
        await anyio.sleep(self.chance.random())

    def _disturb(self) -> None:
        match self.chance.randrange(10):
            case 0:
                self._proxy.cut(reset=self.chance.random() < 0.5)
            case 1:
                self._proxy.stall()
            case 2:
                self._proxy.refuse()
            case 3:
                self._proxy.cut_after(server_bytes=self.chance.randrange(2000))
                self._proxy.cut()
            case 4:
                self._proxy.split(self.chance.randrange(1, 30))
            case 5:
                self._heal()
            case _:
                self._proxy.heal()

    def _heal(self) -> None:
        self._proxy.heal()
        self._proxy.cut()

    async def check(self) -> None:
        self.check_producers()
        self.check_reading()

    async def finish_reading(self) -> None:
        await anyio.to_thread.run_sync(self._heal)
        async with self.connect(PATIENT) as k:
            values: Counter[bytes | None] = Counter()
            log: set[tuple[TopicPartition, int]] = set()
            ends = await k.positions(self.topic, od.LATEST)
            assert ends.keys() == set(self.partitions), f"partitions with a position: {ends}"
            async with k.reader(self.topic, until=od.LATEST) as reader:
                assert set(reader.partitions) == set(self.partitions)
                async for record in reader:
                    values[record.value] += 1
                    log.add((record.partition, record.position))
            for partition in self.partitions:
                positions = sorted(position for where, position in log if where == partition)
                assert positions == list(range(ends[partition])), f"a reader left something out, until {ends}"
            self.check_log(values)
            assert max(values.values(), default=1) == 1, "a record was written twice"
            async with k.reader(self.topic, start=self.bookmark or od.EARLIEST, until=od.LATEST) as reader:
                self.read += [(record.partition, record.position) async for record in reader]
            assert sorted(self.read) == sorted(log), "a reader left something out"
            committed = await k.driver.offsets(self.group).fetch(self.partitions)
            for partition, position in committed.items():
                expected = {at for where, at in log if where == partition and at < (position or 0)}
                assert self.done[partition] >= expected, f"{partition}: committed beyond what was done"
            await self.consume_until(k, lambda: all(position in self.done[where] for where, position in log))


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(NEWEST, config=CONFIG) as broker:
        yield broker


@pytest.fixture
def proxy(broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy that all connections take: also those to the address that the broker advertises."""
    with FaultProxy(broker.host, broker.port) as proxy:

        async def through_proxy(host: str, port: int, timeout: float, tls: Any, *more: Any) -> Any:
            return await tcp.connect(proxy.host, proxy.port, timeout, tls)

        monkeypatch.setattr(connections, "connect", through_proxy)
        yield proxy


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", WAYS)
def test_no_life_over_sockets_hangs_leaves_a_task_or_loses_what_was_confirmed(
    way: str, broker: KafkaBroker, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # they have much to complain about
    before = threading.active_count()
    run_lives(lambda seed: KafkaLife.of(seed, broker, proxy), way, LIVES)
    wait_for_threads(before)
