"""A group over a topic of very many partitions."""

from __future__ import annotations

import anyio
import pytest

import odradek as od
from odradek.testing import Kafka07Broker, ZooKeeperServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PARTITIONS = 10_000


async def drink(consumer: od.Consumer) -> None:
    async for batch in consumer.batches():
        batch.done()


async def shared(*consumers: od.Consumer) -> None:
    """Wait until each has its share, and together they have all."""
    with anyio.fail_after(120):
        while any(len(each.assignment) != PARTITIONS // len(consumers) for each in consumers):  # noqa: ASYNC110 - no event
            await anyio.sleep(0.05)


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # the others differ in nothing that counts here
@pytest.mark.timeout(600)
async def test_ten_thousand_partitions_are_joined_committed_shared_and_left(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer
) -> None:
    """Every step with the default time limits, which are 10 s for leaving."""
    config = {"num.partitions": str(PARTITIONS), "log.flush.interval": "1"}
    url = f"kafka07+zk://{odradek_chroot}"
    with Kafka07Broker(zookeeper=odradek_chroot, config=config):
        async with od.connect(url) as k, od.connect(url) as other, anyio.create_task_group() as tasks:
            async with k.producer() as out:
                await out.send("t", b"x")
            async with k.consumer("t", group="g", commit_every=None, join_within=120) as one:
                assert len(one.assignment) == PARTITIONS
                tasks.start_soon(drink, one)
                assert len(await one.commit()) == PARTITIONS, "where the group starts"
                async with other.consumer("t", group="g", join_within=120) as two:
                    await shared(one, two)
                await shared(one)
                tasks.cancel_scope.cancel()
        tree = odradek_zookeeper.tree(f"/{odradek_chroot.partition('/')[2]}/consumers/g")
        left = [path for path in tree if "/ids/" in path or "/owners/t/" in path]
        assert left == []
