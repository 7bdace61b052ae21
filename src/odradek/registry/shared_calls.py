"""Results that are kept, and calls that are shared: what several tasks want at once is asked for once."""

from __future__ import annotations

import copy
import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import anyio

from odradek.errors import OdradekError

__all__ = ["SharedCalls"]


class _Call:
    """A call that is under way."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.error: OdradekError | None = None
        self.results: list[Any] = []
        """One, unless it has failed or was cancelled."""


class SharedCalls:
    """The newest `limit` results, and the calls under way."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[Hashable, tuple[Any, float]] = {}
        self._calls: dict[Hashable, _Call] = {}

    async def get(
        self, key: Hashable, call: Callable[[], Awaitable[Any]], keep_s: float = math.inf, keep_none_s: float = 0.0
    ) -> Any:
        """Return what is kept for a key, or what a call returns that is under way, or else call.

        Raises the error of the call; every task that waits for it gets a copy. Cancellation: that of the task which
        calls ends the call, and one of those that wait calls again.

        Args:
            keep_s: How long a result is kept (s).
            keep_none_s: The same for None.
        """
        while True:
            kept = self._kept.get(key)
            if kept is not None and kept[1] > anyio.current_time():
                return kept[0]
            running = self._calls.get(key)
            if running is None:
                result = await self._call(key, call)
                self._keep(key, result, keep_none_s if result is None else keep_s)
                return result
            await running.ended.wait()
            if running.error is not None:
                raise copy.copy(running.error) from running.error.__cause__
            if running.results:
                return running.results[0]

    async def _call(self, key: Hashable, call: Callable[[], Awaitable[Any]]) -> Any:
        running = self._calls[key] = _Call()
        try:
            running.results.append(await call())
            return running.results[0]
        except OdradekError as error:
            running.error = error
            raise
        finally:
            del self._calls[key]
            running.ended.set()

    def _keep(self, key: Hashable, result: Any, seconds: float) -> None:
        self._kept.pop(key, None)
        if seconds > 0:
            self._kept[key] = result, anyio.current_time() + seconds
            if len(self._kept) > self._limit:
                del self._kept[next(iter(self._kept))]
