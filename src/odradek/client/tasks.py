"""Background tasks of a user's `async with` block that survive a cancellation of the block until it has drained."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio
from anyio.abc import TaskGroup

from odradek.errors import UsageError
from odradek.io.notifier import Notifier
from odradek.io.transport import on_asyncio

__all__ = ["ShieldedTaskGroup"]


class ShieldedTaskGroup:
    """Runs tasks, and a resource they need, out of reach of cancellations from outside.

    When a scope around the user's block is cancelled (Ctrl-C, a timeout), everything below it is cancelled at once,
    including what the block needs to end in order. Therefore the tasks run below a host task that is shielded once
    the resource is open, and only `stop` ends them. Call `start` and `stop` from the same task, as `async with` does.

    Args:
        failed: Called with the exception of a task that failed. By default `stop` raises the first one.
        resource: Opened before the first task and closed after the last one. Opening can be cancelled.
    """

    def __init__(
        self,
        failed: Callable[[Exception], None] | None = None,
        resource: AbstractAsyncContextManager[Any] | None = None,
    ) -> None:
        self._failed = failed or self._keep
        self._resource = nullcontext() if resource is None else resource
        self._error: Exception | None = None
        self._outer: TaskGroup
        self._owner: object = None  # the task that called `start`
        self._changed = Notifier()
        self._opened = self._ended = self._finished = False
        self._left = True
        self._spawned: deque[tuple[Callable[..., Awaitable[None]], tuple[object, ...]]] = deque()

    async def start(self) -> None:
        """Open the resource.

        Raises what opening raises. Cancellation: safe. In both cases no task is left, and the resource is closed.
        """
        self._error = None
        self._opened = self._ended = self._finished = self._left = False
        self._owner = _current_task()
        self._outer = anyio.create_task_group()
        await self._outer.__aenter__()
        # Not `TaskGroup.start`: cancelled, it waits for the host without telling it. A host that shielded itself in
        # the same step would wait for `stop`, which is never called: neither would ever end.
        self._outer.start_soon(self._host)
        try:
            while not (self._opened or self._finished):
                await self._changed.wait(self._changed.version)
        except BaseException:
            self._outer.cancel_scope.cancel()  # ends an opening that is under way; an open resource is shielded
            await self._leave()
            raise
        if self._error is not None:
            await self._leave()
            raise self._error

    def spawn(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task until `stop`. May be called from a callback of the loop, where anyio cannot start a task."""
        self._spawned.append((task, args))
        self._changed.notify()

    async def stop(self) -> None:
        """Cancel the tasks and close the resource; do nothing if that has been done. Cancellation: ignored; bounded by
        the tasks and the resource.

        Raises what the resource raised, while it was open or while it was closed.

        Raises:
            UsageError: Another task called `start`. The tasks are stopped and the resource is closed nevertheless.
        """
        if self._left:
            return
        if self._owner != _current_task():
            await self._stop_elsewhere()
        await self._leave()
        if self._error is not None:
            raise self._error

    async def _leave(self) -> None:
        self._left = True
        self._end()
        # The group does not see the exception that leaves the user's block, so that it stays as it is.
        self._outer.cancel_scope.shield = True
        await self._outer.__aexit__(None, None, None)

    async def _stop_elsewhere(self) -> None:
        """End the host, and leave the group alone: only the task that entered it may leave it."""
        self._end()
        with anyio.CancelScope(shield=True):
            while not self._finished:
                await self._changed.wait(self._changed.version)
        raise UsageError(
            "an `async with` block of odradek was entered in one task and left in another: enter and leave it in "
            "the same task (in a fixture or a start-up hook, keep the block open in a task of its own)"
        ) from self._error

    def _end(self) -> None:
        self._ended = True
        self._changed.notify()

    async def _host(self) -> None:
        try:
            with anyio.CancelScope() as scope:
                async with self._resource, anyio.create_task_group() as tasks:
                    scope.shield = self._opened = True
                    self._changed.notify()
                    while not self._ended:
                        version = self._changed.version
                        while self._spawned:
                            tasks.start_soon(self._guard, *self._spawned.popleft())
                        await self._changed.wait(version)
                    tasks.cancel_scope.cancel()
        except Exception as error:
            self._keep(error)
        finally:
            self._finished = True
            self._changed.notify()

    def _keep(self, error: Exception) -> None:
        self._error = self._error or error

    async def _guard(self, task: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        try:
            await task(*args)
        except Exception as error:
            self._failed(error)


def _current_task() -> object:
    return asyncio.current_task() if on_asyncio() else anyio.get_current_task()
