"""One behaviour that must hold, the releases that have what it is about, and the brokers that it is tried on."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import anyio
import anyio.to_thread
from tests.ended_transactions import transactions_ended

import odradek as od
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.io.kafka.metadata import MetadataOptions
from odradek.testing import KafkaBroker, KafkaCluster
from odradek.testing.kafka.releases import ZOOKEEPER
from odradek.testing.kafka.topics import leader_of, partition_of, wait_for

__all__ = ["BEHAVIOURS", "LIMIT_S", "Behaviour", "Stand", "behaviour", "behaviours_of"]

T = TypeVar("T")

LIMIT_S = 150.0
"""Limit for one behaviour on one release (s)."""
TUNING = od.Tuning(request_timeout=5.0, backoff=od.Backoff(0.02, 2, 0.5))


class Stand:
    """Three brokers of one release that are one cluster; clients reach each through a proxy from 0.8.2 on."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self.number = tuple(map(int, cluster.version.split(".")))

    def has(self, *since: int) -> bool:
        return self.number >= since

    def connect(self, *, direct: bool = False) -> od.Cluster:
        """Connect as users do, or without the proxies; members send their heartbeats, by which they learn that their
        group has changed, more often."""
        brokers = self.cluster.brokers
        return self._connected([each.plaintext_port if direct else each.port for each in brokers])

    def connect_attentive(self) -> od.Cluster:
        """Connect with a client that reads the metadata every second, where others do so every five minutes."""
        return self._connected([each.port for each in self.cluster.brokers], max_age_s=1.0)

    def _connected(self, ports: Iterable[int], max_age_s: float = 300.0) -> od.Cluster:
        options = KafkaOptions(
            ConnectionOptions(TUNING.connect_timeout, TUNING.backoff),
            MetadataOptions(max_age_s=max_age_s, backoff=TUNING.backoff),
            TUNING.request_timeout,
            session_timeout_s=10.0,
            heartbeat_s=0.5,
        )
        host = self.cluster.brokers[0].host
        return od.Cluster(KafkaDriver([od.Broker(-1, host, port) for port in ports], options), TUNING)

    async def run(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run what blocks in a thread."""
        return await anyio.to_thread.run_sync(functools.partial(work, *args, **options))

    async def create_topic(
        self, partitions: int = 1, replicas: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        name = f"t{uuid4().hex[:12]}"
        await self.run(self.cluster.create_topic, name, partitions, replicas, config=config)
        return name

    async def leader(self, topic: str, partition: int = 0) -> KafkaBroker:
        return await self.run(self.cluster.leader, topic, partition)

    async def followers(self, topic: str) -> list[KafkaBroker]:
        """Return the brokers that do not lead partition 0."""
        leader = await self.leader(topic)
        return [each for each in self.cluster.brokers if each is not leader]

    async def replicas(self, topic: str) -> list[KafkaBroker]:
        """Return the brokers that have partition 0."""
        leader = await self.leader(topic)
        known = partition_of(leader, topic, 0)
        return [each for each in self.cluster.brokers if known and each.broker_id in known.replica_nodes]

    async def move_leader(self, topic: str) -> None:
        """Let another broker lead partition 0, to which nothing is written now."""
        if not self.has(0, 11):
            # Before KIP-101 a replica that hears of a new leader cuts off what it does not know to be committed, and
            # may become the leader before it has it again. It hears of that with its next fetch, every half a second.
            await anyio.sleep(1.5)
        await self.run(self.cluster.move_leader, topic, 0, (await self.followers(topic))[0])

    async def restart_leader(self, topic: str) -> None:
        """Kill the only broker of partition 0, and start it when the controller knows that it is gone: before 2.2 it
        may miss that, and gives the broker nothing to lead then (KAFKA-1120)."""
        leader = await self.leader(topic)
        await self.run(leader.kill)
        others = [each for each in self.cluster.brokers if each is not leader]

        def is_gone() -> bool:
            if self.cluster.mode == ZOOKEEPER:
                return not leader.setup.nodes(f"/brokers/ids/{leader.broker_id}")
            return all(leader_of(each, topic, 0) != leader.broker_id for each in others)

        await self.run(wait_for, f"the end of {leader!r}", is_gone, 60.0)
        await self.create_topic()  # which the controller does after that
        await self.run(leader.start)

    async def stored(self, topic: str, **options: Any) -> list[od.Record]:
        """Return what the log has, read by a client of its own; up to its end, if there is no other `until`."""
        async with self.connect() as cluster, cluster.reader(topic, **{"until": od.LATEST, **options}) as reader:
            return [record async for record in reader]

    async def values(self, topic: str, **options: Any) -> list[bytes | None]:
        return [record.value for record in await self.stored(topic, **options)]

    async def committed(self, topic: str) -> list[bytes | None]:
        """Return what readers of committed records get once no transaction is open."""
        async with self.connect() as cluster:
            await transactions_ended(cluster, topic)
        return await self.values(topic, isolation="read_committed")

    @asynccontextmanager
    async def producer(self, **options: Any) -> AsyncIterator[od.Producer]:
        async with self.connect() as cluster, cluster.producer(**options) as out:
            yield out

    async def write(self, topic: str, values: Iterable[bytes], **options: Any) -> list[bytes]:
        """Send to partition 0, each value a batch of its own, and return the values."""
        sent = list(values)
        async with self.producer(**options) as out:
            for value in sent:
                await out.send(topic, value, partition=0)
        return sent

    async def write_later(self, topic: str, value: bytes) -> None:
        """Send a record, again if its leader just moves."""
        await self.write(topic, [value], deliver_within=60.0)

    def heal(self) -> None:
        """Let every broker run and every line pass again."""
        for broker in self.cluster.brokers:
            if broker.paused:
                broker.resume()
            if not broker.running:
                broker.start()
            if self.number >= PROXIED:
                broker.proxy.heal()


@dataclass(frozen=True)
class Behaviour:
    """One row of the table in the documentation.

    Args:
        text: What must hold, in a few words.
        check: Raises when it does not hold.
        since: The first release that has what it is about.
        before: The first release that has it no more, or ().
        without: Why it is not tried on the others.
        slow: It takes more than five seconds.
    """

    text: str
    check: Callable[[Stand], Awaitable[None]]
    since: tuple[int, ...]
    before: tuple[int, ...]
    without: str
    slow: bool

    @property
    def name(self) -> str:
        return self.check.__name__

    def is_about(self, release: tuple[int, ...]) -> bool:
        return release >= self.since and not (self.before and release >= self.before)


BEHAVIOURS: list[Behaviour] = []
"""All of them, in the order of the table."""

PROXIED = (0, 8, 2)
NO_PROXY = "no proxies before 0.8.2: brokers use them, too, and a controller forgets the request whose line is cut"


def behaviour(
    text: str,
    *,
    since: tuple[int, ...] = (0,),
    before: tuple[int, ...] = (),
    without: str = "",
    proxied: bool = False,
    slow: bool = False,
) -> Callable[[Callable[[Stand], Awaitable[None]]], Callable[[Stand], Awaitable[None]]]:
    """Add a program to the sweep; `proxied` if it needs the proxies."""
    if proxied and since < PROXIED:
        since, without = PROXIED, NO_PROXY
    assert bool(without) is (since > (0,) or before > ()), f"{text}: why not on all releases?"

    def add(check: Callable[[Stand], Awaitable[None]]) -> Callable[[Stand], Awaitable[None]]:
        BEHAVIOURS.append(Behaviour(text, check, since, before, without, slow))
        return check

    return add


def behaviours_of(release: tuple[int, ...]) -> list[Behaviour]:
    return [each for each in BEHAVIOURS if each.is_about(release)]
