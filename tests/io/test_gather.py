"""Many calls at a time."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from odradek.errors import ZooKeeperError
from odradek.io.gather import CONCURRENT, gather, gather_outcomes

pytestmark = pytest.mark.anyio


async def test_every_call_ends_before_the_first_error_is_raised() -> None:
    ended: list[int] = []

    async def call(n: int) -> int:
        if n == 1:
            raise ZooKeeperError("no")
        await anyio.lowlevel.checkpoint()
        ended.append(n)
        return n

    with pytest.raises(ZooKeeperError, match="no"):
        await gather(call, range(3))
    assert sorted(ended) == [0, 2]
    assert [type(outcome).__name__ for outcome in await gather_outcomes(call, range(3))] == [
        "int",
        "ZooKeeperError",
        "int",
    ]
    assert await gather(call, [5, 4]) == [5, 4]
    assert await gather(call, []) == []


async def test_calls_in_progress_are_bounded_and_results_keep_the_order_of_the_items() -> None:
    running = most = 0

    async def call(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(n % 7):
            await anyio.lowlevel.checkpoint()
        running -= 1
        return -n

    assert await gather(call, range(2000)) == [-n for n in range(2000)]
    assert 1 < most <= CONCURRENT
