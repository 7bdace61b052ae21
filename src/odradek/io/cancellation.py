"""A CancelledError that means this task, told from that of what it awaits."""

from __future__ import annotations

import asyncio
from math import inf

import anyio

__all__ = ["is_cancelled"]


def is_cancelled() -> bool:
    """Return True if the current task is being cancelled, by a scope or natively.

    On asyncio a coroutine can also raise CancelledError without that: it awaited a task or future that was cancelled.
    """
    if anyio.current_effective_deadline() == -inf:
        return True
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return True
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
