"""Waking whoever waits."""

from __future__ import annotations

import math

import anyio

__all__ = ["Notifier"]


class Notifier:
    """Wakes whoever waits. Counting makes it impossible to miss a ring: read `count`, look around, then wait for it
    to move. Ringing costs nothing while nobody waits."""

    def __init__(self) -> None:
        self.count = 0
        self._event: anyio.Event | None = None

    def ring(self) -> None:
        self.count += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, count: int, seconds: float = math.inf) -> None:
        """Return once it rang after `count` was read, or after `seconds`. Cancellation: safe."""
        if self.count != count:
            return
        if self._event is None:
            self._event = anyio.Event()
        with anyio.move_on_after(seconds):
            await self._event.wait()
