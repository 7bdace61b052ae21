"""Groups of Kafka 0.7, whose positions ZooKeeper has, continue on a real broker at the very next record."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from tests.loops import ASYNCIO, on

import odradek as od
from odradek.client.options import Compression
from odradek.mirror.config import GroupsConfig, MirrorConfig
from odradek.mirror.groups import GroupPosition, groups
from odradek.mirror.run import run
from odradek.testing import Kafka07Broker, KafkaBroker, ZooKeeperServer
from odradek.types import Position, StartPosition, TopicPartition

from .moving import end_all, mirror_of, rest_of, rest_of_group, span

pytestmark = pytest.mark.anyio
anyio_backend = on(ASYNCIO)

COMPRESSIONS: list[Compression] = ["none", "none", "gzip", "snappy"]


class World:
    """A broker of 0.7 with a topic of two partitions, and one of today."""

    def __init__(self, old: Kafka07Broker, zookeeper: ZooKeeperServer, chroot: str, kafka: KafkaBroker) -> None:
        self.old, self._zookeeper, self._chroot = old, zookeeper, chroot
        self.source, self.target = f"kafka07+zk://{chroot}", f"kafka://{kafka.bootstrap}"
        self.topic = f"orders-{uuid4().hex[:8]}"
        self._written = 0

    def mirror(self, **tables: Any) -> MirrorConfig:
        return mirror_of(self.source, self.target, self.topic, **tables)

    async def write(self, sets: int) -> None:
        """Write message sets of both partitions, plain or compressed."""
        async with od.connect(self.source) as cluster:
            for compression in COMPRESSIONS:
                async with cluster.producer(compression=compression) as producer:
                    for _ in range(sets):
                        values = [b"%d" % n + b"." * random.randrange(60) for n in range(random.randrange(1, 9))]
                        to = random.randrange(2)
                        acks = await producer.send_many(self.topic, values, partition=TopicPartition(self.topic, to, 1))
                        acks.check()

    async def boundaries(self, partition: TopicPartition) -> list[Position]:
        """Return all positions that a group can commit: those of messages, of compressed ones their begin."""
        async with od.connect(self.source) as cluster:
            end = (await cluster.positions(self.topic, od.LATEST))[partition]
            async with cluster.reader({partition: od.EARLIEST}, until=od.LATEST) as reader:
                return sorted({record.position async for record in reader} | {end})

    def commit(self, group: str, partition: TopicPartition, position: int) -> None:
        """Store a position as consumers of Kafka's own client do."""
        root = "/" + self._chroot.partition("/")[2]
        path = f"{root}/consumers/{group}/offsets/{partition.topic}/{partition.name}"
        self._zookeeper.create(path, b"%d" % position)


@asynccontextmanager
async def world(zookeeper: ZooKeeperServer, chroot: str, kafka: KafkaBroker, **config: str) -> AsyncIterator[World]:
    keys = {"num.partitions": "2", "log.flush.interval": "1", **config}
    with Kafka07Broker(zookeeper=chroot, config=keys) as old:
        yield World(old, zookeeper, chroot, kafka)


async def check_rest(world: World, group: str, positions: dict[TopicPartition, Position]) -> None:
    """A consumer of the target reads exactly what a consumer of the source would have read."""
    async with od.connect(world.source) as source, od.connect(world.target) as target:
        known = await source.partitions(world.topic)
        starts: dict[TopicPartition, StartPosition] = {p: positions.get(p, od.EARLIEST) for p in known}
        assert await rest_of_group(target, world.topic, group) == await rest_of(source, starts), positions


def positions_of(rows: tuple[GroupPosition, ...], group: str) -> dict[TopicPartition, Position]:
    return {row.source: row.committed for row in rows if row.group == group}


async def test_groups_continue_at_the_very_next_record(
    odradek_zookeeper: ZooKeeperServer, odradek_chroot: str, odradek_kafka: KafkaBroker
) -> None:
    async with world(odradek_zookeeper, odradek_chroot, odradek_kafka) as w:
        mirror = w.mirror()
        for _ in range(2):
            await w.write(8)
            await run(mirror)
        for number in range(6):
            for partition in (TopicPartition(w.topic, 0, 1), TopicPartition(w.topic, 1, 1)):
                w.commit(f"{w.topic}-{number}", partition, random.choice(await w.boundaries(partition)))
        async with od.connect(w.source) as source, source.consumer(w.topic, group=f"{w.topic}-live") as consumer:
            for _ in range(random.randrange(1, 100)):
                await anext(consumer)
        dry = await groups(mirror)
        applied = await groups(mirror, apply=True)
        again = await groups(mirror, apply=True)
        assert dry.ok and applied.ok and again.ok
        assert dry.positions == applied.positions
        assert {row.match for row in dry.positions} == {"exact"}
        assert {row.decision for row in dry.positions} == {"write"}
        assert {row.decision for row in again.positions} == {"keep"}
        assert [row.target_lag for row in again.positions] == [row.target_lag for row in dry.positions]
        async with od.connect(w.target) as target:
            await end_all(target, w.topic)
        names = {row.group for row in dry.positions}
        assert len(names) == 7
        for group in names:
            await check_rest(w, group, positions_of(dry.positions, group))


KEPT = {"log.file.size": "300", "log.retention.size": "1200"}


async def test_positions_in_what_the_source_deleted(
    odradek_zookeeper: ZooKeeperServer, odradek_chroot: str, odradek_kafka: KafkaBroker
) -> None:
    """Records are counted back from what follows; where the source has nothing of a position, the file says."""
    async with world(odradek_zookeeper, odradek_chroot, odradek_kafka, **KEPT) as w:
        first = TopicPartition(w.topic, 0, 1)
        await w.write(10)
        while (await w.boundaries(first))[-1] < 2 * int(KEPT["log.retention.size"]):  # it has random records
            await w.write(1)
        mirror = w.mirror(run={"tasks": 1})  # one run of records, and so one known position
        await run(mirror)
        before = await w.boundaries(first)
        w.old.run_cleanup()
        kept = await w.boundaries(first)
        assert before[0] < kept[0]
        counted, gone = f"{w.topic}-counted", f"{w.topic}-gone"
        w.commit(counted, first, random.choice(kept[:-1]))
        other = TopicPartition(w.topic, 1, 1)
        w.commit(counted, other, random.choice((await w.boundaries(other))[:-1]))
        w.commit(gone, first, random.choice([at for at in before if before[0] < at < kept[0]]))
        failed = await groups(mirror, apply=True)
        assert {(row.group, row.match, row.decision) for row in failed.positions} == {
            (counted, "exact", "write"),
            (gone, "lost", "refuse"),
        }
        assert not failed.ok
        offsets = {}
        for policy in ("earliest", "latest"):
            changed = await groups(mirror.model_copy(update={"groups": GroupsConfig(include=[gone], lost=policy)}))
            (row,) = changed.positions
            assert (row.match, row.decision, changed.ok) == ("lost", "write", True)
            offsets[policy] = row.offset
        async with od.connect(w.target) as target:
            first_copied, end = await span(target, TopicPartition(w.topic, 0))
            assert offsets == {"earliest": first_copied, "latest": end}
            await end_all(target, w.topic)
        await check_rest(w, counted, positions_of(failed.positions, counted))
