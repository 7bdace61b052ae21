"""Run one call for many items at the same time, and tasks in the background of a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from odradek.errors import OdradekError

__all__ = ["CONCURRENT", "background_tasks", "gather", "gather_outcomes"]

CONCURRENT = 256
"""Calls in progress at a time. More would only wait in memory: every connection below has a limit of its own."""

T = TypeVar("T")
R = TypeVar("R")


async def gather_outcomes(call: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R | OdradekError]:
    """Call for every item; return results or errors, in the order of the items.

    Cancellation: cancels the calls in progress and starts no more.
    """
    numbered = enumerate(items)
    outcomes: dict[int, R | OdradekError] = {}

    async def work(number: int, item: T) -> None:
        while True:
            try:
                outcomes[number] = await call(item)
            except OdradekError as error:
                outcomes[number] = error
            following = next(numbered, None)
            if following is None:
                return
            number, item = following

    async with anyio.create_task_group() as tasks:
        for _ in range(CONCURRENT):
            if (first := next(numbered, None)) is None:
                break
            tasks.start_soon(work, *first)
    return [outcomes[number] for number in range(len(outcomes))]


async def gather(call: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Call for every item; return the results in the order of the items.

    Raises the first error in that order, once all calls have ended. Cancellation: as `gather_outcomes`.
    """
    results: list[R] = []
    for outcome in await gather_outcomes(call, items):
        if isinstance(outcome, OdradekError):
            raise outcome
        results.append(outcome)
    return results


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Yield a task group that is cancelled at the end, and leaves an exception of the block as it is."""
    tasks = await anyio.create_task_group().__aenter__()
    try:
        yield tasks
    finally:
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)
