"""`ShieldedTaskGroup`: its tasks run until `stop`, whatever is cancelled around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from odradek.client.connect import connect
from odradek.client.tasks import ShieldedTaskGroup
from odradek.errors import Closed, UsageError, ZooKeeperError
from odradek.types import Broker


@asynccontextmanager
async def resource(log: list[str], error: Exception | None = None) -> AsyncIterator[None]:
    log.append("opened")
    if error is not None:
        raise error
    try:
        yield
    finally:
        log.append("closed")


@pytest.mark.anyio
async def test_tasks_survive_a_cancellation_until_they_are_stopped() -> None:
    log: list[str] = []

    async def work() -> None:
        try:
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            log.append("worked")
            await anyio.sleep_forever()
        finally:
            log.append("stopped")

    group = ShieldedTaskGroup(resource=resource(log))
    with anyio.CancelScope() as scope:
        await group.start()
        group.spawn(work)
        scope.cancel()
        with anyio.CancelScope(shield=True):
            while "worked" not in log:
                await anyio.lowlevel.checkpoint()
        await group.stop()
    assert log == ["opened", "worked", "stopped", "closed"]


@pytest.mark.anyio
async def test_an_error_of_opening_is_raised_as_it_is() -> None:
    error = ZooKeeperError("not there")
    group = ShieldedTaskGroup(resource=resource([], error))
    with pytest.raises(ZooKeeperError) as caught:
        await group.start()
    assert caught.value is error


@pytest.mark.anyio
async def test_the_first_error_of_a_task_is_raised_by_stop() -> None:
    async def fail(text: str) -> None:
        raise ValueError(text)

    group = ShieldedTaskGroup()
    await group.start()
    group.spawn(fail, "first")
    await anyio.wait_all_tasks_blocked()
    group.spawn(fail, "second")
    await anyio.wait_all_tasks_blocked()
    with pytest.raises(ValueError, match="first"):
        await group.stop()


@pytest.mark.anyio
async def test_errors_of_tasks_go_to_the_callback() -> None:
    errors: list[Exception] = []

    async def fail() -> None:
        raise ValueError("mine")

    group = ShieldedTaskGroup(errors.append)
    await group.start()
    group.spawn(fail)
    await anyio.wait_all_tasks_blocked()
    await group.stop()
    assert [str(error) for error in errors] == ["mine"]


@pytest.mark.parametrize("same_loop", [True, False])
def test_leaving_in_another_task_is_a_clear_error_and_leaves_nothing_behind(same_loop: bool) -> None:
    log: list[str] = []
    opened: AbstractAsyncContextManager[None] = resource(log)
    group = ShieldedTaskGroup(resource=opened)

    async def leave() -> None:
        await asyncio.create_task(group.start())
        with pytest.raises(UsageError, match="entered in one task and left in another"):
            await group.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def leave_later() -> None:
        with pytest.raises(UsageError, match="entered in one task and left in another"):
            await group.stop()

    if same_loop:
        asyncio.run(leave())
    else:
        asyncio.run(group.start())
        asyncio.run(leave_later())
    assert log == ["opened", "closed"]


def test_a_cluster_left_in_another_task_is_closed_and_says_so() -> None:
    async def main() -> None:
        cluster = connect("kafka07://127.0.0.1:1")
        await asyncio.create_task(cluster.__aenter__())
        with pytest.raises(UsageError, match="entered in one task and left in another"):
            await cluster.__aexit__(None, None, None)
        with pytest.raises(Closed):
            cluster.driver.broker(Broker(0, "127.0.0.1", 1), purpose="fetch")

    asyncio.run(main())
