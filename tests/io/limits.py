"""Time limits that are over when a test says so: a short one would also be over before a slow machine has begun."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from odradek.io.connection import Connection
from odradek.io.requests import InFlightRequest
from odradek.io.zookeeper import ZooKeeper

__all__ = ["TimeLimit", "end_once_warned", "end_time_limits"]


def end_time_limits(connection: Connection, *requests: InFlightRequest[Any]) -> None:
    """Let the time limits of these requests, by default of all outstanding ones, be over now, and nothing have been
    answered recently."""
    now = anyio.current_time()
    connection._queue.answered_at = -math.inf
    for request in requests or connection._queue.outstanding():
        request.deadline = now
    connection.expect_by(now)


class TimeLimit:
    """The limits of so many seconds that code sets with `anyio.fail_after` and `anyio.move_on_after`."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds = seconds
        self._scopes: list[anyio.CancelScope] = []
        monkeypatch.setattr(anyio, "fail_after", partial(self._enter, anyio.fail_after))
        monkeypatch.setattr(anyio, "move_on_after", partial(self._enter, anyio.move_on_after))

    def end(self) -> None:
        """Let the limits set so far be over now."""
        for scope in self._scopes:
            scope.deadline = anyio.current_time()

    @contextmanager
    def _enter(
        self, limited: Callable[..., AbstractContextManager[anyio.CancelScope]], delay: float | None, **options: Any
    ) -> Iterator[anyio.CancelScope]:
        with limited(delay, **options) as scope:
            if delay == self._seconds:
                self._scopes.append(scope)
            yield scope


async def end_once_warned(limit: TimeLimit, zk: ZooKeeper) -> None:
    """Let the limits be over once kazoo has said why it does not connect."""
    with anyio.fail_after(20):
        while not zk._warnings.last:  # noqa: ASYNC110 - of kazoo's thread
            await anyio.sleep(0.01)
    limit.end()
