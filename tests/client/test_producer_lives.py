"""Random lives of a producer that are cancelled at a random step: nothing is lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.conftest import FakeDriver

from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.core.backoff import Backoff
from odradek.errors import OdradekError, Undelivered
from odradek.types import TopicPartition

ACTIONS = st.lists(
    st.sampled_from(["send", "put", "many", "explicit", "hold", "release", "cut", "connecting", "connect", "pause"]),
    max_size=12,
)
TUNING = Tuning(backoff=Backoff(0.001, 2, 0.002))


class Life:
    """One producer, used by one task and a few concurrent sends."""

    def __init__(self, actions: list[str]) -> None:
        self.driver = FakeDriver()
        self.out = Producer(
            self.driver, buffer_bytes=1000, deliver_within=0.05, exit_within=0.02, latency=0.001, tuning=TUNING
        )
        self.actions = actions
        self.acked: list[bytes] = []
        self.raised: list[bytes] = []

    async def run(self) -> None:
        with suppress(Undelivered):
            async with self.out, anyio.create_task_group() as tasks:
                for number, action in enumerate(self.actions):
                    await self.step(action, b"%03d" % number, tasks)

    async def step(self, action: str, value: bytes, tasks: Any) -> None:
        broker = self.driver[1 + len(self.acked) % 2]
        if action == "send":
            tasks.start_soon(self.one, value, partial(self.out.send, "t", value))
        elif action == "explicit":
            partition = TopicPartition("t", 0, 1)
            tasks.start_soon(self.one, value, partial(self.out.send, "t", value, partition=partition))
        elif action == "put":
            with suppress(OdradekError):
                await self.out.put("t", value)
        elif action == "many":
            await self.out.send_many("t", [value + b"%d" % n for n in range(20)])
        elif action == "pause":
            await anyio.sleep(0.002)
        elif action in ("hold", "connecting"):
            setattr(broker, {"hold": "holding"}.get(action, action), True)
        else:
            {"release": broker.release, "cut": broker.cut, "connect": broker.connect}[action]()

    async def one(self, value: bytes, send: Callable[[], Awaitable[Any]]) -> None:
        try:
            await send()
        except OdradekError:
            self.raised.append(value)
        else:
            self.acked.append(value)

    def check(self) -> None:
        now = self.out.statistics()
        assert (now.buffered, now.buffered_bytes, now.waiting) == (0, 0, 0)
        assert now.accepted == now.written + now.failed
        written = self.driver.values()
        assert set(self.acked) <= set(written)
        assert not set(self.acked) & {failed.record.value for failed in self.out.failures}
        assert len(written) <= now.accepted  # a cut line appends nothing here, so that nothing is there twice


async def cancelled_by_scope(life: Life, steps: int) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life.run)
        for _ in range(steps):
            await checkpoint()
        tasks.cancel_scope.cancel()
    life.check()


async def cancelled_natively(life: Life, steps: int) -> None:
    task = asyncio.create_task(life.run())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    life.check()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("backend", "cancelled"),
    [("asyncio", cancelled_natively), ("asyncio", cancelled_by_scope), ("trio", cancelled_by_scope)],
    ids=["asyncio natively", "asyncio", "trio"],
)
@settings(max_examples=settings().max_examples * 3 // 5)
@given(actions=ACTIONS, steps=st.integers(0, 60))
def test_a_producer_cancelled_at_any_step_loses_and_leaks_nothing(
    backend: str, cancelled: Callable[[Life, int], Awaitable[None]], actions: list[str], steps: int
) -> None:
    async def main() -> None:
        with anyio.fail_after(10):
            await cancelled(Life(actions), steps)

    anyio.run(main, backend=backend)
    gc.collect()  # what was left unawaited warns here
