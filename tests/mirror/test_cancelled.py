"""A mirror that is cancelled anywhere, and run again: nothing is missing and nothing there twice."""

from __future__ import annotations

import asyncio
from random import Random

import anyio
import anyio.lowlevel
import pytest

from odradek.mirror.config import MirrorConfig
from odradek.testing import MemoryCluster

from .mirrors import config_of, copied, same
from .test_copy import filled, rows, run_mirror

pytestmark = pytest.mark.anyio


async def checkpoints(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


class Cancelled:
    """Runs of a mirror that are cancelled some turns of the event loop after one of their first requests that write;
    records are written to the source meanwhile."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._source, self._target = filled({"t": 3}, 12), MemoryCluster()
        self._config = config_of("t", run={"tasks": 2, "transaction_bytes": 100})

    async def follow(self) -> None:
        await run_mirror(self._source, self._target, self._config, follow=True)

    async def wait(self, requests: int) -> None:
        for number in range(3):
            self._source.append("t", rows(12, self._random.randrange(10**6)), partition=number)
        with anyio.fail_after(60):
            await self._target.wait_for_requests("produce", requests + self._random.randrange(1, 4))
        await checkpoints(self._random.randrange(60))

    async def by_scope(self) -> None:
        requests = len(self._target.requests("produce"))
        async with anyio.create_task_group() as group:
            group.start_soon(self.follow)
            await self.wait(requests)
            group.cancel_scope.cancel()

    async def by_asyncio(self) -> None:
        requests = len(self._target.requests("produce"))
        task = asyncio.get_running_loop().create_task(self.follow())
        await self.wait(requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def check(self) -> None:
        await run_mirror(self._source, self._target, self._config)
        assert same(self._source, self._target, "t")
        assert copied(await run_mirror(self._source, self._target, self._config)) == 0


@pytest.mark.parametrize("seed", range(2))
async def test_scopes_that_are_cancelled(seed: int) -> None:
    runs = Cancelled(seed)
    for _ in range(4):
        await runs.by_scope()
    await runs.check()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("seed", range(2))
async def test_tasks_that_are_cancelled(seed: int, anyio_backend: str) -> None:
    runs = Cancelled(seed)
    for _ in range(4):
        await runs.by_asyncio()
    await runs.check()


async def test_cancelled_before_it_copies() -> None:
    source, target, random = filled({"t": 3}, 12), MemoryCluster(), Random(1)
    config: MirrorConfig = config_of("t", run={"tasks": 2})
    for _ in range(4):
        async with anyio.create_task_group() as group:
            group.start_soon(run_mirror, source, target, config)
            await checkpoints(random.randrange(100))
            group.cancel_scope.cancel()
    await run_mirror(source, target, config)
    assert same(source, target, "t")
