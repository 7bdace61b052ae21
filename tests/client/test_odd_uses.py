"""Uses that nobody plans for: they work, or say what is wrong, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import odradek as od
from odradek.errors import Closed, OffsetOutOfRange, UsageError
from odradek.testing import MemoryCluster
from odradek.types import Record, TopicPartition

pytestmark = pytest.mark.anyio

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster(topics={"t": 2})
    for partition in (FIRST, SECOND):
        cluster.append("t", [b"%d" % n for n in range(20)], partition=partition.partition)
    return cluster


class CustomExit(BaseException):
    """Not an Exception, and nothing that an event loop knows."""


def reader(k: od.Cluster) -> Any:
    return k.reader("t")


def consumer(k: od.Cluster) -> Any:
    return k.consumer("t", group="g")


@pytest.mark.parametrize("make", [reader, consumer])
async def test_a_block_is_entered_once(cluster: MemoryCluster, make: Callable[[od.Cluster], Any]) -> None:
    async with cluster.connect() as k:
        block = make(k)
        async with block:
            with pytest.raises(UsageError, match="was entered before: make another"):
                await block.__aenter__()
            assert (await anext(aiter(block))).value == b"0", "it works on"
        with pytest.raises(UsageError, match="was entered before: make another"):
            await block.__aenter__()


@pytest.mark.parametrize("make", [reader, consumer])
async def test_a_block_that_was_left_by_hand_is_left_once(
    cluster: MemoryCluster, make: Callable[[od.Cluster], Any]
) -> None:
    async with cluster.connect() as k, make(k) as block:
        await block.__aexit__(None, None, None)
        with pytest.raises(Closed, match="not open"):
            await anext(aiter(block))
    assert cluster.members("g") == {}


async def test_a_handler_that_leaves_the_block_ends_it_in_order(cluster: MemoryCluster) -> None:
    with pytest.raises((Closed, UsageError)):
        async with cluster.connect() as k, k.consumer("t", group="g", commit_every=None) as block:

            async def handle(record: Record) -> None:
                if record.position == 5:
                    await block.__aexit__(None, None, None)

            await block.each(handle)
    assert cluster.members("g") == {}
    assert max(cluster.committed("g").values()) == 5


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, CustomExit, StopAsyncIteration])
async def test_anything_that_a_handler_raises_comes_out_of_each_as_it_is(
    cluster: MemoryCluster, kind: type[BaseException]
) -> None:
    async with cluster.connect() as k:
        with pytest.raises(kind, match="mine") as caught:
            async with k.consumer(["t"], group="g", commit_every=None) as block:

                async def handle(record: Record) -> None:
                    if record.position == 3:
                        raise kind("mine")

                await block.each(handle)
        assert type(caught.value) is kind, "not in a group"
    assert set(cluster.committed("g").values()) <= {0, 3}
    assert cluster.members("g") == {}


async def test_two_consumers_of_one_task_share_the_partitions(cluster: MemoryCluster) -> None:
    async with (
        cluster.connect() as k,
        k.consumer("t", group="g", commit_every=None) as one,
        k.consumer("t", group="g", commit_every=None) as two,
    ):
        assert {(await anext(aiter(each))).partition for each in (one, two)} == {FIRST, SECOND}
    assert cluster.committed("g") == {FIRST: 1, SECOND: 1}


async def test_a_second_consumer_with_the_same_id_is_refused_and_the_first_is_not_disturbed(
    cluster: MemoryCluster,
) -> None:
    async with cluster.connect() as k, k.consumer("t", group="g", consumer_id="x") as one:
        with pytest.raises(od.GroupError, match="another member has the id g_x"):
            async with k.consumer("t", group="g", consumer_id="x", join_within=1):
                raise AssertionError("it joined")
        assert one.assignment.keys() == {FIRST, SECOND}


async def test_a_topic_deleted_below_a_consumer_takes_its_partitions_away(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k, k.consumer("t", group="g", revoke_within=0.01) as block:
        await anext(aiter(block))
        cluster.delete_topic("t")
        with anyio.fail_after(10):
            while block.assignment:
                await anyio.lowlevel.checkpoint()
        cluster.create_topic("t")
        cluster.append("t", [b"new"] * 30)
        with anyio.fail_after(10):
            while (await anext(aiter(block))).value != b"new":
                pass


async def test_a_topic_made_again_is_out_of_range_unless_the_consumer_may_reset(cluster: MemoryCluster) -> None:
    async with cluster.connect() as k, k.consumer("t", group="g", reset="fail") as block:
        with anyio.fail_after(10):
            for _ in range(40):
                await anext(aiter(block))
            cluster.delete_topic("t")
            cluster.create_topic("t", 2)
            with pytest.raises(OffsetOutOfRange):
                await anext(aiter(block))


async def test_a_handler_may_commit_and_seek(cluster: MemoryCluster) -> None:
    handled: list[int] = []
    again = anyio.Event()
    async with cluster.connect() as k, k.consumer("t", group="g", commit_every=None) as block:
        block.pause(SECOND)

        async def handle(record: Record) -> None:
            handled.append(record.position)
            await block.commit()
            if record.position == 19 and handled.count(19) == 1:
                block.seek(FIRST, 10)
            elif record.position == 19:
                again.set()

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(block.each, handle)
                await again.wait()
                tasks.cancel_scope.cancel()
    assert handled == [*range(20), *range(10, 20)]
    assert cluster.committed("g")[FIRST] >= 19
