"""`Notifier`, by which the tasks of this library wake each other."""

from __future__ import annotations

import math

import anyio

__all__ = ["Notifier"]


class Notifier:
    """Wakes every waiting task, and counts, so that no wake-up is missed.

    Read `version`, look at the state, then wait for the version to move:

        version = notifier.version
        if not ready():
            await notifier.wait(version)

    Code without an event loop (`core`) gets `notify` as a callback. Notifying without a waiter is one addition.
    Not thread-safe.
    """

    __slots__ = ("_event", "version")

    def __init__(self) -> None:
        self.version = 0
        """Grows with every notification."""
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Wake every waiting task. May be called outside of a task, in a callback of the event loop."""
        self.version += 1
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, version: int, seconds: float = math.inf) -> None:
        """Wait until `notify` has been called since `version` was read, at most `seconds`. Cancellation: safe."""
        if self.version != version:
            return
        if self._event is None:
            self._event = anyio.Event()
        if seconds == math.inf:
            await self._event.wait()
            return
        with anyio.move_on_after(seconds):
            await self._event.wait()
