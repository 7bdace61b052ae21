"""The schedule of faults: three tracks that run at the same time, each one fault after the other, all from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["TRACKS", "Fault", "faults"]


class Fault(NamedTuple):
    """One fault.

    Args:
        wait_s: Pause before it (s).
        kind: What is done.
        target: A number for the choice of what it is done to: taken modulo the number of candidates.
        lasting_s: How long it lasts (s), for those that do.
        amount: Bytes, bytes per second or milliseconds, for those that need a number.
        sudden: With RST rather than FIN, for those that end connections.
    """

    wait_s: float
    kind: str
    target: int
    lasting_s: float
    amount: int
    sudden: bool


class _Track(NamedTuple):
    """What one track does: kinds of faults with their weights, and the ranges of pauses and durations (s)."""

    weights: dict[str, int]
    wait_s: tuple[float, float]
    lasting_s: tuple[float, float]


TRACKS = {
    "brokers": _Track({"kill": 3, "pause": 2, "move_leader": 6}, (1.0, 6.0), (0.5, 12.0)),
    "lines": _Track(
        {"cut": 4, "cut_request": 3, "cut_response": 4, "stall": 2, "throttle": 2, "delay": 2, "refuse": 1, "split": 1},
        (0.3, 4.0),
        (0.5, 8.0),
    ),
    "workers": _Track(
        {"kill_transform": 4, "pause_transform": 1, "kill_member": 3, "pause_member": 2, "stop_member": 2},
        (3.0, 9.0),
        (0.2, 15.0),
    ),
}
"""Brokers have one fault at a time, so that two of three always run; clients may lose their lines meanwhile."""


def faults(seed: int, track: str) -> Iterator[Fault]:
    """Yield the faults of a track, without end: the same ones for the same seed."""
    rng = random.Random(f"{seed}/{track}")
    weights, wait_s, lasting_s = TRACKS[track]
    while True:
        yield Fault(
            wait_s=round(rng.uniform(*wait_s), 2),
            kind=rng.choices(list(weights), list(weights.values()))[0],
            target=rng.randrange(1 << 16),
            lasting_s=round(rng.uniform(*lasting_s), 2),
            amount=rng.randrange(1, 40_000),
            sudden=rng.random() < 0.5,
        )
