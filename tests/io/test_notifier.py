"""`Notifier`: no wake-up is missed, and a notification without a waiter costs nothing."""

from __future__ import annotations

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from odradek.io.notifier import Notifier

pytestmark = pytest.mark.anyio


async def test_every_waiting_task_is_woken() -> None:
    notifier, woken = Notifier(), []

    async def wait(name: str) -> None:
        await notifier.wait(notifier.version)
        woken.append(name)

    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(wait, name)
        await wait_all_tasks_blocked()
        assert woken == []
        notifier.notify()
    assert sorted(woken) == ["a", "b", "c"]


async def test_a_notification_before_the_wait_is_not_missed() -> None:
    notifier = Notifier()
    version = notifier.version
    notifier.notify()
    notifier.notify()
    await notifier.wait(version)
    assert notifier.version == version + 2


async def test_a_wait_ends_after_its_seconds() -> None:
    notifier = Notifier()
    await notifier.wait(notifier.version, 0.001)
    assert notifier.version == 0


async def test_a_cancelled_wait_leaves_the_others_waiting() -> None:
    notifier, woken = Notifier(), []

    async def wait(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            await notifier.wait(notifier.version)
            woken.append(name)

    first, second = anyio.CancelScope(), anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait, "first", first)
        tasks.start_soon(wait, "second", second)
        await wait_all_tasks_blocked()
        first.cancel()
        await checkpoint()
        notifier.notify()
    assert woken == ["second"]
