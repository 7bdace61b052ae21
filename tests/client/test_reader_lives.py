"""Random lives of readers: cancelled at any step, by asyncio or by anyio, and resumed from the bookmark."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.types import LATEST
from odradek.wire.compression import CompressionType

from .consuming import LogDriver, tp

pytestmark = pytest.mark.anyio

LIVES = 8
TUNING = Tuning(fetch_bytes=200, fetch_idle=0.001, backoff=Backoff(first_s=0.0001, max_s=0.001))


def logs(chance: random.Random) -> tuple[LogDriver, list[bytes]]:
    """Return three partitions, some of it compressed, and everything that is in them."""
    driver = LogDriver(t=3)
    values: list[bytes] = []
    for number in range(3):
        for _ in range(chance.randrange(4)):
            run = [b"%d" % (len(values) + n) for n in range(chance.randrange(1, 30))]
            driver.write(tp(number), run, chance.choice([CompressionType.NONE, CompressionType.GZIP]))
            values += run
    return driver, values


async def live(driver: LogDriver, mark: str | None, seen: list[bytes | None], marks: list[str], how: int) -> None:
    """Read to the end; after each step, note what was handed out and where that was."""
    options: dict[str, Any] = {} if mark is None else {"start": mark}
    async with Reader(driver, "t", until=LATEST, tuning=TUNING, **options) as reader:
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


async def cancelled_by_scope(steps: int, driver: LogDriver, *args: Any) -> None:
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def reading() -> None:
            with scope:
                await live(driver, *args)
            tasks.cancel_scope.cancel()

        tasks.start_soon(reading)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        scope.cancel()


async def cancelled_natively(steps: int, driver: LogDriver, *args: Any) -> None:
    task = asyncio.ensure_future(live(driver, *args))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None


def disturb(driver: LogDriver, chance: random.Random) -> None:
    """Perhaps let the next response break off."""
    driver.b1.cut_after = chance.choice([None, None, chance.randrange(100)])


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_no_life_of_a_reader_hangs_skips_or_doubles(seed: int, native: bool, anyio_backend_name: str) -> None:
    cancelled = cancelled_natively if native and anyio_backend_name == "asyncio" else cancelled_by_scope
    chance = random.Random(seed)
    for _ in range(LIVES):
        driver, expected = logs(chance)
        seen: list[bytes | None] = []
        mark: str | None = None
        with anyio.fail_after(60):
            while mark != "":
                marks: list[str] = []
                disturb(driver, chance)
                await cancelled(
                    chance.choice([*range(12), 40, 200, 2000]), driver, mark, seen, marks, chance.randrange(3)
                )
                mark = marks[-1] if marks else mark
        assert sorted(map(int, filter(None, seen))) == list(range(len(expected)))
    if anyio_backend_name == "asyncio":
        assert len(asyncio.all_tasks()) <= 2, "the test, and the runner of its backend"
