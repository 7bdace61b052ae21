"""Partitions that a topic does not have, named to a reader or to `reset_positions`, on an in-memory cluster."""

from __future__ import annotations

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from tests.client.producing import add_partitions

import odradek as od
from odradek.client.consumer import positions
from odradek.testing import MemoryCluster
from odradek.types import StartPosition

pytestmark = pytest.mark.anyio

P0, P2, P99 = (od.TopicPartition("t", number) for number in (0, 2, 99))
NO_99 = "^t has no partition 99: it has 2, numbered from 0$"


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster({"t": 2})
    cluster.append("t", [b"v"], partition=0)
    return cluster


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two reads of the metadata follow each other at once."""
    monkeypatch.setattr(positions, "BETWEEN_READS_S", 0.0)


@pytest.mark.parametrize("start", [od.Position(0), od.EARLIEST], ids=str)
async def test_a_reader_of_a_partition_that_does_not_exist_is_refused(
    cluster: MemoryCluster, start: StartPosition
) -> None:
    async with cluster.connect() as k:
        with anyio.fail_after(10), pytest.raises(od.ConfigError, match=NO_99):
            async with k.reader({P0: 0, P99: start}):
                pytest.fail("it was entered")


async def test_a_reader_of_a_partition_that_was_just_added_reads_it(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "BETWEEN_READS_S", 1000.0)
    values: list[bytes | None] = []

    async def read(k: od.Cluster) -> None:
        async with k.reader({P2: 0}, until=od.LATEST) as reader:
            values.extend([record.value async for record in reader])

    async with cluster.connect() as k, anyio.create_task_group() as tasks:
        await k.partitions("t")
        add_partitions(cluster, "t", 3)
        cluster.append("t", [b"new"], partition=2)
        with anyio.fail_after(10):
            tasks.start_soon(read, k)
            await wait_all_tasks_blocked()
    assert values == [b"new"]


async def test_partitions_of_a_topic_that_does_not_exist_yet_are_waited_for(cluster: MemoryCluster) -> None:
    later = od.TopicPartition("later", 1)
    async with cluster.connect() as k, k.reader({later: 0}) as reader:
        cluster.create_topic("later", 2)
        cluster.append("later", [b"v"], partition=1)
        with anyio.fail_after(10):
            assert (await anext(reader)).value == b"v"


@pytest.mark.parametrize("dry_run", [False, True])
async def test_positions_of_a_partition_that_does_not_exist_are_refused_and_the_others_are_set(
    cluster: MemoryCluster, dry_run: bool
) -> None:
    async with cluster.connect() as k:
        with anyio.fail_after(10):
            results = await k.admin.reset_positions("g", {P99: od.Position(0), P0: od.Position(1)}, dry_run=dry_run)
        assert results.done.keys() == {P0}
        with pytest.raises(od.ConfigError, match=NO_99):
            results.check()
        assert await k.admin.group_positions("g") == ({} if dry_run else {P0: 1})
