"""Calls that are repeated while their errors pass, and questions that any of several brokers can answer."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import attrgetter
from random import random
from typing import TypeVar

import anyio

from odradek.core.backoff import Backoff
from odradek.errors import OdradekError, Unsupported

__all__ = ["first_answer", "may_be_of_one_broker", "quickest_answer", "retry", "staggered"]

B = TypeVar("B")
T = TypeVar("T")


def may_be_of_one_broker(error: OdradekError) -> bool:
    """Return True if another broker may answer what has failed so: one that does not have the request may only be of an
    older release than the others."""
    return error.retriable or isinstance(error, Unsupported)


async def retry(
    call: Callable[[], Awaitable[T]],
    backoff: Backoff,
    *,
    passes: Callable[[OdradekError], bool] = attrgetter("retriable"),
    limit_s: float = math.inf,
    late: OdradekError | None = None,
) -> T:
    """Call until an attempt succeeds, with a back-off in between; return its result. Cancellation: that of the call.

    Args:
        call: One attempt.
        passes: Returns True if there is to be another attempt after an error.
        limit_s: Time for all attempts (s): the one that runs then is cancelled.
        late: The error if the first attempt has not ended by then; needed with a limit.

    Raises:
        OdradekError: The first error that does not pass; or the last one that did, when the time is over.
    """
    last, failures = late, 0
    with anyio.move_on_after(limit_s):
        while True:
            try:
                return await call()
            except OdradekError as error:
                if not passes(error):
                    raise
                last = error
            await anyio.sleep(backoff.delay(failures, random()))
            failures += 1
    assert last is not None
    raise last


async def first_answer(
    brokers: Iterable[B],
    ask: Callable[[B], Awaitable[T]],
    none: OdradekError,
    passes: Callable[[OdradekError], bool] = attrgetter("retriable"),
) -> T:
    """Ask one broker after the other, each once, until one answers. Cancellation: that of `ask`.

    Raises:
        OdradekError: The first error that does not pass; or the last one, if possible one that is retriable; or `none`,
            if there is no broker.
    """
    errors: list[OdradekError] = []
    for broker in brokers:
        try:
            return await ask(broker)
        except OdradekError as failed:
            if not passes(failed):
                raise
            errors.append(failed)
    raise _last(errors, none)


async def staggered(items: Iterable[B], attempt: Callable[[B], Awaitable[bool]], silence_s: float) -> None:
    """Begin one attempt after the other: each when those before it have ended, or been silent for a time (s). The first
    that returns True ends all. Cancellation: that of the attempts."""

    async def run(item: B, ended: anyio.Event) -> None:
        try:
            if await attempt(item):
                tasks.cancel_scope.cancel()
        finally:
            ended.set()

    async with anyio.create_task_group() as tasks:
        for item in items:
            ended = anyio.Event()
            tasks.start_soon(run, item, ended)
            with anyio.move_on_after(silence_s):
                await ended.wait()


async def quickest_answer(
    brokers: Iterable[B], ask: Callable[[B], Awaitable[T]], none: OdradekError, silence_s: float
) -> T:
    """Ask one broker after the other, each once, until one answers; the next one also while those before have been
    silent for a time (s). For questions only: several brokers may get them. Cancellation: that of `ask`.

    Raises:
        OdradekError: The first error that each of them would have (see `may_be_of_one_broker`); or the last one, if
            possible one that is retriable; or `none`, if there is no broker.
    """
    answers, errors, final = list[T](), list[OdradekError](), list[OdradekError]()

    async def attempt(broker: B) -> bool:
        try:
            answers.append(await ask(broker))
        except OdradekError as failed:
            errors.append(failed)
            if not may_be_of_one_broker(failed):
                final.append(failed)
        return bool(answers or final)

    await staggered(brokers, attempt, silence_s)
    if answers:
        return answers[0]
    raise final[0] if final else _last(errors, none)


def _last(errors: Sequence[OdradekError], none: OdradekError) -> OdradekError:
    """Return the last error, if possible one that is retriable; `none` if there is none."""
    retriable = [error for error in errors if error.retriable]
    return (retriable or errors or [none])[-1]
