"""Tasks behind a user's `async with`, which outlive a cancellation of the block until it has drained."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

__all__ = ["ShieldedTaskGroup", "Signal"]


class ShieldedTaskGroup:
    """Runs tasks, and a resource they need, out of reach of cancellations from outside.

    When a scope around the user's block is cancelled (Ctrl-C, a time-out), everything below it is cancelled at once,
    also what is needed to leave the block in order. So the tasks run below a host task that is shielded, and are
    ended by `stop`. Use `start` and `stop` from the task of the block, as `async with` does.

    Args:
        failed: Called with the exception of a task that failed. By default the first one is raised by `stop`.
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
        self._news, self._ended = Signal(), False
        self._spawned: deque[tuple[Callable[..., Awaitable[None]], tuple[object, ...]]] = deque()

    async def start(self) -> None:
        """Open the resource. Raises what it raises; nothing is left behind then."""
        self._ended = False
        self._outer = anyio.create_task_group()
        await self._outer.__aenter__()
        try:
            await self._outer.start(self._host)
        except BaseException:
            await self._leave()
            raise

    def spawn(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task until `stop`. May be called from a callback of the loop, where anyio starts none."""
        self._spawned.append((task, args))
        self._news.set()

    async def stop(self) -> None:
        """Cancel the tasks, close the resource. Cancellation: none; bounded by what the tasks and the resource take.

        Raises what the resource raised, while it was open or when it was closed.
        """
        self._ended = True
        self._news.set()
        await self._leave()
        if self._error is not None:
            raise self._error

    async def _leave(self) -> None:
        # The group is told nothing of the exception on its way through the user's block, which stays as it is.
        self._outer.cancel_scope.shield = True
        await self._outer.__aexit__(None, None, None)

    async def _host(self, *, task_status: TaskStatus[None]) -> None:
        started = False
        try:
            with anyio.CancelScope() as scope:
                async with self._resource, anyio.create_task_group() as tasks:
                    scope.shield = started = True
                    task_status.started()
                    while not self._ended:
                        while self._spawned:
                            tasks.start_soon(self._guard, *self._spawned.popleft())
                        await self._news.wait(None)
                    tasks.cancel_scope.cancel()
        except Exception as error:
            if not started:
                raise
            self._keep(error)

    def _keep(self, error: Exception) -> None:
        self._error = self._error or error

    async def _guard(self, task: Callable[..., Awaitable[None]], args: tuple[object, ...]) -> None:
        try:
            await task(*args)
        except Exception as error:
            self._failed(error)


class Signal:
    """Wakes one waiting task. Setting it often costs nothing more than setting it once."""

    def __init__(self) -> None:
        self._set = False
        self._event: anyio.Event | None = None

    def set(self) -> None:
        if not self._set:
            self._set = True
            if self._event is not None:
                self._event.set()

    async def wait(self, seconds: float | None) -> None:
        """Return once it was set since the last wait, or after so many seconds."""
        if not self._set:
            self._event = anyio.Event()
            if seconds is None:
                await self._event.wait()
            else:
                with anyio.move_on_after(seconds):
                    await self._event.wait()
            self._event = None
        self._set = False
