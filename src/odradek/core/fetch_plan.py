"""Fair shares of the read-ahead: how many bytes each partition of one broker may ask for now.

The budget is split evenly among all partitions of a consumer, wherever they live, and one fetch asks for no more than
what is left of each share: memory held stays under the budget however slow the reader is. Two things bend the rule
to keep it alive: a partition that holds nothing may always ask for `least` bytes, and a message larger than its share
still gets through piece by piece (the partial tail is kept, bounded by the limit on message size).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["LEAST_BYTES", "FetchLimits", "Holding", "plan"]

LEAST_BYTES = 16 << 10
"""Below this a request costs more than what it brings."""

FIRST = 4
"""So many times the least is asked for before it is known what a byte grows to: gzip can make 1000 of it."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What bounds a fetch.

    Args:
        ahead: Bytes of memory all partitions together may hold ahead of the reader.
        part: Most bytes one partition asks for in one fetch.
        response: Most bytes all partitions of one fetch ask for, so that one answer does not take seconds.
        least: Fewest bytes worth asking for.
    """

    ahead: int
    part: int
    response: int = 16 << 20
    least: int = LEAST_BYTES


class Holding(NamedTuple):
    """What one partition holds now.

    Args:
        held: Bytes of memory taken by records not yet delivered and by a partial message.
        growth: Bytes of memory one fetched byte turned into lately (compression, per-record overhead). None: nothing
            came yet, so the first request is a small one.
    """

    held: int
    growth: float | None


def plan(holdings: Sequence[Holding], partitions: int, limits: FetchLimits) -> list[int]:
    """Bytes each of `holdings` may ask for in the next fetch; 0: not now.

    Args:
        holdings: The partitions of one broker that are ready to be fetched.
        partitions: How many partitions share the budget, of all brokers.
        limits: The bounds.

    A full partition waits until half of its usual request fits again, so that a slow reader causes few large fetches
    rather than many small ones.
    """
    share = limits.ahead // max(1, partitions)
    usual = max(limits.least, min(limits.part, limits.response // max(1, len(holdings))))
    return [_ask(holding, share, usual, limits.least) for holding in holdings]


def _ask(holding: Holding, share: int, usual: int, least: int) -> int:
    if holding.growth is None:
        usual = min(usual, FIRST * least)
    growth = max(1.0, holding.growth or 1.0)
    room = int((share - holding.held) / growth)
    if room >= min(usual, int(share / growth)) // 2 and room >= least:
        return min(usual, room)
    return least if holding.held == 0 else 0
