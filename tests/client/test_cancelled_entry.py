"""Cancelling the entry of a block, at every step: the cancellation comes out, nothing hangs, no task is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

import odradek as od
from odradek.client.options import Tuning
from odradek.client.tasks import ShieldedTaskGroup
from odradek.testing import MemoryCluster
from odradek.types import TopicPartition

STEPS = range(20)
"""Of the event loop, until the cancellation comes. Entering takes fewer than these."""


class Resource:
    """Opens and closes in two steps each."""

    def __init__(self) -> None:
        self.is_open = False

    async def __aenter__(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.is_open = True
        await anyio.lowlevel.checkpoint()

    async def __aexit__(self, *exception: object) -> None:
        await anyio.lowlevel.checkpoint()
        self.is_open = False


class Group:
    """A task group with a resource, as a block."""

    def __init__(self) -> None:
        self._tasks = ShieldedTaskGroup(resource=Resource())

    async def __aenter__(self) -> None:
        await self._tasks.start()
        self._tasks.spawn(anyio.sleep_forever)

    async def __aexit__(self, *exception: object) -> None:
        await self._tasks.stop()


class InCluster:
    """A block of a client of an in-memory cluster, whose own block is open already when it is entered."""

    def __init__(self, make: Callable[[od.Cluster], AbstractAsyncContextManager[Any]]) -> None:
        self._cluster, self._make = MemoryCluster(topics={"t": 1}), make

    async def __aenter__(self) -> None:
        self._client = self._cluster.connect(tuning=Tuning(fetch_idle=0.001))
        await self._client.__aenter__()
        try:
            self._block = self._make(self._client)
            await self._block.__aenter__()
        except BaseException:
            await self._client.__aexit__(None, None, None)
            raise

    async def __aexit__(self, *exception: Any) -> None:
        try:
            await self._block.__aexit__(*exception)
        finally:
            await self._client.__aexit__(*exception)


BLOCKS: dict[str, Callable[[], AbstractAsyncContextManager[Any]]] = {
    "tasks": Group,
    "cluster": lambda: od.connect("kafka07://127.0.0.1:1"),
    "producer": lambda: InCluster(lambda k: k.producer(exit_within=1)),
    "reader": lambda: InCluster(lambda k: k.reader("t")),
    "reader of positions": lambda: InCluster(lambda k: k.reader({TopicPartition("t", 0): od.Position(0)})),
    "consumer": lambda: InCluster(lambda k: k.consumer("t", group="g", exit_within=1)),
}


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """Makes one of everything that is used as `async with`."""
    return BLOCKS[request.param]


async def enter(make: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
    async with make():
        await anyio.sleep_forever()


# ---- asyncio --------------------------------------------------------------------------------------------------


async def cancelled_natively(make: Callable[[], AbstractAsyncContextManager[Any]], steps: int, again: bool) -> None:
    task = asyncio.create_task(enter(make))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    if again:
        await asyncio.sleep(0)
        task.cancel()
    done, _ = await asyncio.wait([task], timeout=10)
    assert done, f"hangs when it is cancelled in step {steps}"
    assert task.cancelled()


async def cancel_at_every_step(make: Callable[[], AbstractAsyncContextManager[Any]], again: bool) -> None:
    for steps in STEPS:
        await cancelled_natively(make, steps, again)
        assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_cancelled_task_of_asyncio_ends(block: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
    asyncio.run(cancel_at_every_step(block, again=False))


@pytest.mark.parametrize("name", BLOCKS)
def test_a_task_of_asyncio_that_is_cancelled_twice_ends(name: str) -> None:
    asyncio.run(cancel_at_every_step(BLOCKS[name], again=True))


def test_a_timeout_of_asyncio_comes_out(block: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await enter(block)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


# ---- cancel scopes --------------------------------------------------------------------------------------------


def count_tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return trio.lowlevel.current_statistics().tasks_living


@pytest.mark.anyio
async def test_a_block_in_a_cancelled_scope_is_left_at_once(
    block: Callable[[], AbstractAsyncContextManager[Any]],
) -> None:
    before = count_tasks()
    with anyio.fail_after(10, shield=True), anyio.move_on_after(0) as scope:
        await enter(block)
    assert scope.cancelled_caught
    assert count_tasks() == before


@pytest.mark.anyio
async def test_a_scope_cancelled_at_any_step_ends(block: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
    before = count_tasks()
    for steps in STEPS:
        scope = anyio.CancelScope()

        async def run(scope: anyio.CancelScope = scope) -> None:
            with scope:
                await enter(block)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                for _ in range(steps):
                    await anyio.lowlevel.cancel_shielded_checkpoint()
                scope.cancel()
        assert scope.cancelled_caught
        assert count_tasks() == before


@pytest.mark.anyio
async def test_clean_up_code_of_a_cancelled_task_can_use_a_block() -> None:
    cluster = MemoryCluster(topics={"t": 1})
    with anyio.fail_after(10, shield=True), anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            with anyio.CancelScope(shield=True):
                async with cluster.connect() as k, k.producer() as out:
                    await out.send("t", b"goodbye")
    assert [stored.value for stored in cluster.records("t")] == [b"goodbye"]
