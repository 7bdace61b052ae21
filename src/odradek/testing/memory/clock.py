"""The clock of an in-memory cluster, which a test can hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

__all__ = ["MemoryClock"]


class MemoryClock:
    """The cluster's time: that of the machine, until a test holds it.

    Timestamps of records, delays, and positions by time use it. The clients keep the machine's time: their time-outs
    and back-offs go on while this clock is held.

    Args:
        changed: Called when the time no longer is what it was.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._held_at: float | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'running' if self._held_at is None else 'held'} at {self.now():.3f}>"

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return time.time() if self._held_at is None else self._held_at

    def hold(self, at: float | None = None) -> None:
        """Stop the clock, now or at a time (s since the epoch)."""
        self._held_at = self.now() if at is None else at
        self._changed()

    def advance(self, seconds: float) -> None:
        """Move a held clock forward (s); every delay that ends by then ends now.

        Raises:
            RuntimeError: The clock is running.
        """
        if self._held_at is None:
            raise RuntimeError("the clock is running: call hold() before advance()")
        self._held_at += seconds
        self._changed()

    def release(self) -> None:
        """Let the clock run again, with the machine's time."""
        self._held_at = None
        self._changed()

    def seconds_until(self, at: float) -> float:
        """Return how long to wait until a time (s): infinity while the clock is held."""
        return at - self.now() if self._held_at is None else inf
