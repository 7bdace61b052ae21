"""A group over a topic of very many partitions.

ODRADEK_PARTITIONS=10000 pytest tests/faults/test_many_partitions.py            # takes a minute or two
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import odradek as od
from odradek.testing import Kafka07Broker, ZooKeeperServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PARTITIONS = int(os.environ.get("ODRADEK_PARTITIONS", "1000"))


async def drink(consumer: od.Consumer) -> None:
    async for batch in consumer.batches():
        batch.done()


async def positioned(consumer: od.Consumer) -> None:
    """Wait until the consumer knows where its partitions start: brokers are asked after it has its assignment."""
    with anyio.fail_after(120):
        while len(consumer.positions()) != PARTITIONS:  # noqa: ASYNC110 - no event
            await anyio.sleep(0.05)


async def shared(*consumers: od.Consumer) -> None:
    """Wait until each has its share, and together they have all."""
    with anyio.fail_after(120):
        while any(len(each.assignment) != PARTITIONS // len(consumers) for each in consumers):  # noqa: ASYNC110 - no event
            await anyio.sleep(0.05)


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)  # the others differ in nothing that counts here
@pytest.mark.timeout(900)
async def test_a_thousand_partitions_are_joined_committed_shared_and_left(
    odradek_chroot: str, odradek_zookeeper: ZooKeeperServer, report: Callable[[object], None]
) -> None:
    config = {"num.partitions": str(PARTITIONS), "log.flush.interval": "1"}
    url, took = f"kafka07+zk://{odradek_chroot}", Stopwatch()
    patient: dict[str, Any] = {"group": "g", "commit_every": None, "join_within": 120, "exit_within": 60}
    with Kafka07Broker(zookeeper=odradek_chroot, config=config):
        async with od.connect(url) as k, od.connect(url) as other:
            async with k.producer() as out:
                await out.send("t", b"x")
            took.lap("")
            async with k.consumer("t", **patient) as one, anyio.create_task_group() as tasks:
                await shared(one)  # not at once: a 0.7 broker registers a topic after it has answered
                took.lap("joined")
                tasks.start_soon(drink, one)
                await positioned(one)
                await one.commit()
                committed = await one.committed()
                assert len(committed) == PARTITIONS
                assert None not in committed.values(), "where the group starts"
                took.lap("committed")
                async with other.consumer("t", **patient) as two:
                    await shared(one, two)
                    took.lap("shared with a second member")
                took.lap("left by the second")
                await shared(one)
                took.lap("taken back")
                tasks.cancel_scope.cancel()
            took.lap("left")
        tree = odradek_zookeeper.tree(f"/{odradek_chroot.partition('/')[2]}/consumers/g")
        assert [path for path in tree if "/ids/" in path or "/owners/t/" in path] == []
    report(f"{PARTITIONS} partitions: {took}")


class Stopwatch:
    """Times of steps, for the report."""

    def __init__(self) -> None:
        self._laps: list[str] = []
        self._last = 0.0

    def lap(self, what: str) -> None:
        now = anyio.current_time()
        if what:
            self._laps.append(f"{what} in {now - self._last:.1f} s")
        self._last = now

    def __str__(self) -> str:
        return ", ".join(self._laps)
