"""`run`: a program that stops in an orderly way when it gets a signal."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskStatus

from odradek import arguments

__all__ = ["run"]

T = TypeVar("T")

_MAIN, _BACKEND = arguments.function("a coroutine function"), arguments.choice("asyncio", "trio")


def run(main: Callable[..., Awaitable[T]], *args: object, backend: str = "asyncio") -> T:
    """Run `main(*args)` in an event loop of its own; SIGTERM and Ctrl-C cancel it.

    When it is cancelled, every block of odradek ends in an orderly way: consumers stop fetching, commit and leave their
    group, producers flush, all within their `exit_within`. A second signal ends the process at once, as that signal
    does without a handler. Only for the main thread, in which Python handles signals.

    Args:
        main: A coroutine function.
        args: Its arguments.
        backend: `asyncio` or `trio`.

    Returns:
        The value that `main` returned.

    Raises:
        SystemExit: A signal cancelled `main`, and it ended without an error; the code is 128 plus the number of the
            signal, as shells report it (130 for Ctrl-C, 143 for SIGTERM). Or `main` raised it.
        TypeError, ConfigError: An argument that cannot work.
        Exception: The exception of `main`, unchanged, such as Undelivered while it ended.
    """
    _MAIN("main", main)
    _BACKEND("backend", backend)
    outcome = anyio.run(_watched, main, args, backend=backend)
    if outcome.error is not None:
        raise outcome.error
    if outcome.signal is not None and not outcome.results:
        raise SystemExit(128 + outcome.signal)
    return outcome.results[0]


@dataclass(slots=True)
class _Outcome(Generic[T]):
    results: list[T]
    error: BaseException | None = None
    signal: int | None = None


async def _watched(main: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> _Outcome[T]:
    """Return errors as values: a task group would wrap them."""
    outcome: _Outcome[T] = _Outcome([])
    scope = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        await tasks.start(_watch_signals, outcome, scope)
        try:
            with scope:
                outcome.results.append(await main(*args))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            outcome.error = error
        tasks.cancel_scope.cancel()
    return outcome


async def _watch_signals(
    outcome: _Outcome[T], scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            if outcome.signal is not None:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            outcome.signal = number
            scope.cancel()
