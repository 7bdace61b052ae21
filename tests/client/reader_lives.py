"""Random lives of readers: cancelled at any step, by asyncio or by anyio, and resumed from the bookmark."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel

from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.types import LATEST

__all__ = ["Logs", "live_through"]

LIVES = 8
TUNING = Tuning(fetch_bytes=200, fetch_idle=0.001, backoff=Backoff(first_s=0.0001, max_s=0.001))


class Logs(NamedTuple):
    """Partitions of a topic.

    Args:
        values: Everything that is in them: 0, 1, 2...
        reading: Makes a reader with these options.
        disturb: Perhaps lets the next response break off.
    """

    values: list[bytes]
    reading: Callable[..., AbstractAsyncContextManager[Reader]]
    disturb: Callable[[random.Random], None]


async def live_through(seed: int, native: bool, backend: str, make: Callable[[random.Random], Logs]) -> None:
    """Live some random lives; none hangs, skips a record or takes one twice."""
    cancelled = cancelled_natively if native and backend == "asyncio" else cancelled_by_scope
    chance = random.Random(seed)
    for _ in range(LIVES):
        logs = make(chance)
        seen: list[bytes | None] = []
        mark: str | None = None
        with anyio.fail_after(60):
            while mark != "":
                marks: list[str] = []
                logs.disturb(chance)
                await cancelled(
                    chance.choice([*range(12), 40, 200, 2000]), logs, mark, seen, marks, chance.randrange(3)
                )
                mark = marks[-1] if marks else mark
        assert sorted(map(int, filter(None, seen))) == list(range(len(logs.values)))
    if backend == "asyncio":
        assert len(asyncio.all_tasks()) <= 2, "the test, and the runner of its backend"


async def live(logs: Logs, mark: str | None, seen: list[bytes | None], marks: list[str], how: int) -> None:
    """Read to the end; after each step, note what was handed out and where that was."""
    options: dict[str, Any] = {} if mark is None else {"start": mark}
    async with logs.reading(until=LATEST, tuning=TUNING, **options) as reader:
        marks.append(reader.bookmark())
        if how == 0:
            async for record in reader:
                seen.append(record.value)
                marks.append(reader.bookmark())
                await anyio.lowlevel.checkpoint()
        elif how == 1:
            async for batch in reader.batches(max_records=7, max_wait=0.001):
                seen += batch.values
                marks.append(reader.bookmark())
                await anyio.lowlevel.checkpoint()
        else:
            async for table in reader.arrow(max_bytes=100, max_wait=0.001):
                seen += table.column("value").to_pylist()
                marks.append(reader.bookmark())
                await anyio.lowlevel.checkpoint()
        marks.append("")


async def cancelled_by_scope(steps: int, *args: Any) -> None:
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def reading() -> None:
            with scope:
                await live(*args)
            tasks.cancel_scope.cancel()

        tasks.start_soon(reading)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        scope.cancel()


async def cancelled_natively(steps: int, *args: Any) -> None:
    task = asyncio.ensure_future(live(*args))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None
