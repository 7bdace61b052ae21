"""Random lives, as in test_lives.py, on a real ZooKeeper and an embedded 0.7 broker that are cut, stalled and killed.

ODRADEK_LIVES_KAFKA07=400 pytest tests/client/test_lives_kafka07.py        # that many lives, in all
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import uuid4

import anyio.to_thread
import pytest
from tests.client.lives import WAYS, Life, run_lives, wait_for_threads

import odradek as od
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.kafka07.znodes import broker_data
from odradek.errors import ZooKeeperError
from odradek.testing import FaultProxy, Kafka07Broker, ZooKeeperServer
from odradek.types import TopicPartition

LIVES = int(os.environ.get("ODRADEK_LIVES_KAFKA07", "16"))

PARTITIONS = [TopicPartition("t", number, 1) for number in range(2)]
CONFIG = {"num.partitions": str(len(PARTITIONS)), "log.flush.interval": "1", "brokerid": "1"}


class Kafka07Life(Life):
    """A life of a broker and a ZooKeeper, each reached through a proxy.

    A record that may have been written is sent again, so that the log may have it twice.
    """

    tuning = Tuning(
        backoff=Backoff(0.001, 2, 0.01), request_timeout=0.4, connect_timeout=0.4, session_timeout=4, fetch_idle=0.005
    )
    patience = 10.0
    longest_s = 2.0

    def __init__(self, seed: int, server: ZooKeeperServer, chroot: str) -> None:
        super().__init__(seed, PARTITIONS)
        self._server, self._chroot = server, chroot
        self._broker = Kafka07Broker(zookeeper=f"{server.address}{chroot}", config=CONFIG, broker_id=1)
        self._zookeeper_proxy = FaultProxy(server.host, server.port)
        self._proxy: FaultProxy

    @classmethod
    @contextmanager
    def of(cls, seed: int, server: ZooKeeperServer) -> Iterator[Kafka07Life]:
        """Start everything that a life needs, and end it afterwards."""
        chroot = f"/{uuid4().hex}"
        server.create(chroot)
        life = cls(seed, server, chroot)
        with life._broker as broker, FaultProxy(broker.host, broker.port) as life._proxy, life._zookeeper_proxy:
            life._announce()
            yield life

    def _announce(self) -> None:
        """Let clients find the proxy instead of the broker."""
        node = broker_data(self._proxy.host, self._proxy.port, int(time.time() * 1000))
        self._server.set(f"{self._chroot}/brokers/ids/1", node)

    def connect(self) -> od.Cluster:
        return od.connect(f"kafka07+zk://{self._zookeeper_proxy.address}{self._chroot}", tuning=self.tuning)

    async def disturb(self) -> None:
        await anyio.to_thread.run_sync(self._disturb)
        await anyio.sleep(self.chance.random() * 0.3)

    def _disturb(self) -> None:
        proxy = self.chance.choice([self._proxy, self._proxy, self._zookeeper_proxy])
        match self.chance.randrange(8):
            case 0:
                proxy.cut(reset=self.chance.random() < 0.5)
            case 1:
                proxy.stall()
            case 2:
                proxy.refuse()
            case 3:
                proxy.cut_after(server_bytes=self.chance.randrange(200))
                proxy.cut()
            case 4:
                self._restart()
            case 5:
                proxy.split(self.chance.randrange(1, 30))
            case _:
                self._heal()

    def _restart(self) -> None:
        self._broker.kill(drop_session=True)
        self._broker.restart()
        self._announce()

    def _heal(self) -> None:
        for proxy in (self._proxy, self._zookeeper_proxy):
            proxy.heal()
            proxy.cut()

    async def check(self) -> None:
        self.check_producers()
        self.check_reading()

    async def finish_reading(self) -> None:
        await anyio.to_thread.run_sync(self._heal)
        async with od.connect(f"kafka07://1@{self._broker.address}") as k:
            ends = await k.positions("t", od.LATEST)
            starts = dict.fromkeys(ends, od.EARLIEST)
            values: Counter[bytes | None] = Counter()
            log: set[tuple[TopicPartition, int]] = set()
            async with k.reader(starts, until=od.LATEST) as reader:
                async for record in reader:
                    values[record.value] += 1
                    log.add((record.partition, record.position))
            self.check_log(values)
            async with k.reader("t", start=self.bookmark or od.EARLIEST, until=od.LATEST) as reader:
                self.read += [(record.partition, record.position) async for record in reader]
            assert sorted(self.read) == sorted(log), "a reader left something out"
        for partition, position in self._committed().items():
            expected = {at for where, at in log if where == partition and at < position}
            assert self.done[partition] >= expected, f"{partition}: committed beyond what was done"
        async with self.connect() as k:
            await self.consume_until(k, lambda: all(position in self.done[where] for where, position in log))

    def _committed(self) -> dict[TopicPartition, int]:
        folder = f"{self._chroot}/consumers/g/offsets/t"
        with suppress(ZooKeeperError):
            nodes = self._server.tree(folder)
            return {p: int(node.data or b"0") for p in PARTITIONS if (node := nodes.get(f"{folder}/{p.name}"))}
        return {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", WAYS)
def test_no_life_over_sockets_hangs_leaves_a_task_or_loses_what_was_confirmed(
    way: str, odradek_zookeeper: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # they have much to complain about
    before = threading.active_count()
    run_lives(lambda seed: Kafka07Life.of(seed, odradek_zookeeper), way, LIVES)
    wait_for_threads(before)
