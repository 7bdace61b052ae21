"""Exponential back-off. Randomness comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass

from odradek import arguments
from odradek.errors import ConfigError

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential waits between attempts.

    Args:
        first_s: Longest wait after the first failure (s).
        factor: Each further failure multiplies the wait by this.
        max_s: Upper limit of a wait (s).
    """

    first_s: float = 0.05
    factor: float = 2.0
    max_s: float = 1.0

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            rule(f"Backoff.{name}", getattr(self, name))
        if self.first_s > self.max_s:
            raise ConfigError(f"Backoff.first_s={self.first_s}: must be at most max_s, which is {self.max_s}")

    def delay(self, attempt: int, jitter: float) -> float:
        """Return the seconds to wait after failure number `attempt` (the first is 0).

        Args:
            jitter: In [0, 1). The wait is between half and all of the exponential value, so that clients that lost
                the same broker at the same time do not return at the same time.
        """
        try:
            full_s = min(self.max_s, self.first_s * self.factor**attempt)
        except OverflowError:  # a float power overflows after about a thousand failures
            full_s = self.max_s
        return full_s * (1 + jitter) / 2


_RULES = {
    "first_s": arguments.seconds(),
    "factor": arguments.number(1, 1e6),
    "max_s": arguments.seconds(),
}
