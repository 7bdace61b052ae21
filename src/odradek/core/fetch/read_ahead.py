"""Fair shares of the read-ahead: how many bytes a partition may ask for now.

The budget is split evenly among all partitions of a consumer, wherever they live, and a partition asks for no more than
what is left of its share: memory held stays under the budget however slow the reader is. Partitions of one broker that
one stream delivers keep an `ReadAheadQuota` together. It matters when there are so many partitions that a share would
not be
worth a request: each may then hold more than its share, but only some of them at a time, in turns, for what the account
holds stays within the sum of their shares. So neither a slow stream nor another broker can starve them.

Two things bend the rule to keep it alive. When nothing of an account can be delivered and nothing is on its way, one
partition may ask for `least` bytes whatever the others hold. And a message larger than the share still gets through
piece by piece (the partial tail is kept, bounded by the limit on message size).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "LEAST_BYTES",
    "WORTH_BYTES",
    "Buffered",
    "ReadAheadBudget",
    "ReadAheadLimits",
    "ReadAheadQuota",
    "ask",
    "reckoned",
]

LEAST_BYTES = 16 << 10
"""Below this a request costs more than what it brings."""

WORTH_BYTES = 512 << 10
"""What a partition may hold however small its share: one part of a fetch takes about 30 us of bookkeeping on its way
to the reader, and so many bytes of 100-byte messages at least 200 us."""

FIRST = 4
"""So many times the least is asked for before it is known what a byte grows to: gzip can make 1000 of it."""

UNKNOWN_GROWTH = 4.0
"""What a byte is reckoned to grow to before anything is known: text of moderate size under gzip."""


@dataclass(frozen=True, slots=True)
class ReadAheadLimits:
    """What bounds a fetch.

    Args:
        read_ahead_bytes: Bytes of memory all partitions together may hold ahead of the reader.
        part: Most bytes one partition asks for in one fetch.
        response: Most bytes all partitions of one fetch ask for together, as soon as two do: what is there can be
            delivered when all of it is there.
        least: Fewest bytes worth asking for.
    """

    read_ahead_bytes: int
    part: int
    response: int = 4 << 20
    least: int = LEAST_BYTES

    @property
    def worth(self) -> int:
        """What a partition may hold however small its share."""
        return max(self.least, min(WORTH_BYTES, self.read_ahead_bytes // 4))


class Buffered(NamedTuple):
    """What one partition holds now.

    Args:
        held: Bytes of memory taken by records not yet delivered and by a partial message.
        growth: Bytes of memory one fetched byte turned into lately (compression, per-record overhead). None: nothing
            came yet, so the first request is a small one.
    """

    held: int
    growth: float | None


def reckoned(growth: float | None) -> float:
    """What a byte is reckoned to grow to."""
    return UNKNOWN_GROWTH if growth is None else max(1.0, growth)


def ask(holding: Buffered, share: int, limits: ReadAheadLimits) -> int:
    """Bytes a partition may ask for as far as its share goes; 0: not now.

    A full partition waits until half of its usual request fits again, so that a slow reader causes few large fetches
    rather than many small ones.
    """
    usual = limits.part if holding.growth is not None else min(limits.part, FIRST * limits.least)
    growth = reckoned(holding.growth)
    room = int((share - holding.held) / growth)
    if room >= min(usual, int(share / growth)) // 2 and room >= limits.least:
        return min(usual, room)
    return limits.least if holding.held == 0 else 0


class ReadAheadBudget:
    """The read-ahead of one consumer and how many partitions share it."""

    __slots__ = ("_partitions", "limits", "share", "worth")

    def __init__(self, limits: ReadAheadLimits) -> None:
        self.limits, self.worth = limits, limits.worth
        self.partitions = 0

    @property
    def partitions(self) -> int:
        return self._partitions

    @partitions.setter
    def partitions(self, count: int) -> None:
        self._partitions = count
        self.share = max(self.limits.read_ahead_bytes // max(1, count), self.worth)
        """What one partition may hold."""

    def allowance(self, partitions: int) -> int:
        """What so many of the partitions may hold together."""
        return max(self.limits.read_ahead_bytes * partitions // max(1, self._partitions), self.worth)


class ReadAheadQuota:
    """What the partitions of one broker that one stream delivers hold together, and have asked for.

    `held` and `reserved` are bytes of memory: there, and reckoned with for what was asked for. `listed` of the
    partitions have something to deliver, `partitions` may still get something, and the last answer of `eager` ones was
    as long as it could be. `full`: the last that wanted to ask found no room.
    """

    def __init__(self, budget: ReadAheadBudget) -> None:
        self.budget = budget
        self.allowance = 0
        """What they may hold together, as of `refresh`."""
        self.partitions = self.held = self.reserved = self.listed = self.eager = 0
        self.growth: float | None = None
        """What a fetched byte of one of them, of which nothing came yet, is reckoned to grow to."""
        self.full = False

    def refresh(self) -> None:
        """Reckon with how many partitions there are now."""
        self.allowance = self.budget.allowance(self.partitions)

    def learn(self, growth: float) -> None:
        """What bytes of one of them grew to. It is forgotten slowly: one may be compressed and the next not."""
        self.growth = growth if self.growth is None else max(growth, (7 * self.growth + growth) / 8)

    @property
    def free(self) -> int:
        return self.allowance - self.held - self.reserved

    def grant(self, size: int, growth: float) -> int:
        """How much of `size` bytes may be asked for now. 0 means full."""
        least = self.budget.limits.least
        fits = int(self.free / growth)
        if fits >= size or fits >= max(least, size // 2):
            return min(size, fits)
        self.full = bool(self.listed or self.reserved)
        return 0 if self.full else min(size, least)

    def relieve(self) -> bool:
        """Not full, or not any more: there is room for a decent request, or nothing is left that would make any."""
        if self.full:
            decent = min(self.budget.limits.response, self.allowance // 4)
            self.full = self.free < decent and bool(self.listed or self.reserved)
        return not self.full
