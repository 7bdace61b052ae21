"""Consumers that are cancelled at a random step, natively and by scopes: nothing hangs, is left behind or is lost.

Each life enters a consumer, reads by batch, by record or with `each`, meets rebalances and an expiry, and is cancelled
somewhere. Whatever was committed then was done, and the next life goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from odradek.client.consumer.consumer import Consumer
from odradek.client.options import Tuning
from odradek.types import Record, TopicPartition

from .consuming import LogDriver, tp

pytestmark = pytest.mark.anyio

SIZE = 16
RECORDS = 200
LIVES = 150
Done = dict[TopicPartition, set[int]]
Life = Callable[[], Coroutine[Any, Any, None]]


def make_driver() -> LogDriver:
    driver = LogDriver(t=2)
    for n in range(2):
        driver.write(tp(n), [b"%06d" % number for number in range(RECORDS)])
    driver.initial = {tp(0): 0, tp(1): 0}
    return driver


class Work:
    """What one life does with its records. `done` gets a record before it is marked as done."""

    def __init__(self, driver: LogDriver, done: Done, chance: Random) -> None:
        self.driver, self.done, self.chance = driver, done, chance

    def finish(self, record: Record) -> None:
        self.done[record.partition].add(record.position // SIZE)

    async def handle(self, record: Record) -> None:
        for _ in range(self.chance.randrange(3)):
            await anyio.lowlevel.checkpoint()
        if self.chance.random() < 0.01:
            raise ValueError("once")
        self.finish(record)

    async def rebalance(self) -> None:
        member = self.driver.member
        while True:
            for _ in range(self.chance.randrange(40)):
                await anyio.lowlevel.checkpoint()
            if self.chance.random() < 0.3:
                await member.expire()
            else:
                await member.revoke(tp(self.chance.randrange(2)))
            await member.assign(*(p for p in (tp(0), tp(1)) if p not in member.owned))

    async def by_batch(self, consumer: Consumer) -> None:
        async for batch in consumer.batches(max_records=7):
            await anyio.lowlevel.checkpoint()
            for record in batch:
                self.finish(record)
            batch.done()

    async def by_record(self, consumer: Consumer) -> None:
        async for record in consumer:
            self.finish(record)  # done when the next one is asked for
            await anyio.lowlevel.checkpoint()

    async def by_handler(self, consumer: Consumer) -> None:
        while True:
            with suppress(ValueError):
                await consumer.each(self.handle, order="partition", parallel=5)
            with suppress(ValueError):
                await consumer.each(self.handle, order="none", parallel=5)

    async def live(self) -> None:
        settings: dict[str, Any] = {"commit_every": 0.001, "revoke_within": 0.01, "exit_within": 5}
        consume = self.chance.choice([self.by_batch, self.by_record, self.by_handler])
        async with (
            Consumer(self.driver, "t", group="g", tuning=Tuning(fetch_idle=0.001), **settings) as consumer,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self.rebalance)
            await consume(consumer)


def check(driver: LogDriver, done: Done) -> None:
    """Nothing was committed that was not done."""
    for partition, position in driver.store.stored.items():
        assert done[partition] >= set(range(position // SIZE)), partition


async def by_scope(life: Life, steps: int) -> None:
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(life)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            scope.cancel()


async def natively(life: Life, steps: int) -> None:
    task = asyncio.ensure_future(life())
    for _ in range(steps):
        await asyncio.sleep(0)
    while not task.done():  # a second cancellation may come while it is leaving
        task.cancel()
        await asyncio.wait([task], timeout=0.02)
    with suppress(asyncio.CancelledError):
        await task


async def test_a_life_cancelled_by_a_scope_at_any_step_ends_and_commits_only_what_was_done() -> None:
    await run_lives(by_scope)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_life_cancelled_natively_at_any_step_ends_and_leaves_no_task(anyio_backend: str) -> None:
    before = asyncio.all_tasks()
    await run_lives(natively)
    assert asyncio.all_tasks() == before


async def run_lives(cancel: Callable[[Life, int], Awaitable[None]]) -> None:
    driver, done = make_driver(), {tp(0): set[int](), tp(1): set[int]()}
    for seed in range(LIVES):
        chance = Random(seed)
        with anyio.fail_after(20):
            await cancel(Work(driver, done, chance).live, chance.randrange(200))
        check(driver, done)
        if sum(driver.store.stored.values()) == 2 * RECORDS * SIZE:
            driver, done = make_driver(), {tp(0): set[int](), tp(1): set[int]()}
