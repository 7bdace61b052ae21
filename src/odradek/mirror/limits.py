"""Limits of bytes per second, pure: the time comes in as an argument."""

from __future__ import annotations

from odradek.mirror.config import MirrorConfig

__all__ = ["RateLimit", "share_of"]


class RateLimit:
    """A limit that says how long to wait after each amount, so that all amounts together keep to a rate. What was not
    used is lost after a second: the rate is kept over any longer time.

    Args:
        per_second: The rate (1/s); None: no limit.
    """

    BURST_S = 1.0

    def __init__(self, per_second: float | None) -> None:
        self._per_second, self._paid_at = per_second, float("-inf")

    def take(self, amount: float, now: float) -> float:
        """Count an amount, and return how long to wait before the next one (s).

        Args:
            amount: How much it is.
            now: The time on any clock that does not go back (s).
        """
        if self._per_second is None:
            return 0.0
        self._paid_at = max(self._paid_at, now - self.BURST_S) + amount / self._per_second
        return max(0.0, self._paid_at - now)


def share_of(config: MirrorConfig, count: int) -> MirrorConfig:
    """Return the file of one of several that copy at the same time: the limits of the run are divided among them."""
    limits = {name: getattr(config.run, name) for name in ("source_bytes_per_second", "target_bytes_per_second")}
    shares = {name: max(1, limit // count) for name, limit in limits.items() if limit is not None}
    return config.model_copy(update={"run": config.run.model_copy(update=shares)})
