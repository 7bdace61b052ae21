"""Fair shares of the read-ahead: how many bytes a partition may request now.

The budget is split evenly among all partitions of a consumer, whatever brokers serve them, and a partition requests no
more than what is left of its share: memory stays within the budget however slow the user is. The partitions of one
broker that one stream delivers share a `StreamQuota`. It matters when there are so many partitions that a share is
smaller than a useful request: each may then hold more than its share, but only some of them at a time, one after the
other, because what the quota holds stays within the sum of their shares. So neither a slow stream nor another broker
can starve them.

Two exceptions keep it alive. When nothing of a quota can be delivered and nothing is in flight, one partition may
request `min_bytes` whatever the others hold. And a message larger than the share still gets through, part by part (the
partial tail is kept, bounded by the limit on message size).
"""

from __future__ import annotations

__all__ = [
    "MIN_FETCH_BYTES",
    "MIN_SHARE_BYTES",
    "USUAL_FETCH_BYTES",
    "ReadAheadBudget",
    "ReadAheadLimits",
    "bytes_to_request",
    "decaying_maximum",
    "expected_expansion",
]

MIN_FETCH_BYTES = 16 << 10
"""A smaller request costs more than what it returns."""

USUAL_FETCH_BYTES = 1 << 20
"""A partition requests no more than this from a broker that responds quickly: nothing of a response is delivered before
all of it has arrived."""

MIN_SHARE_BYTES = 512 << 10
"""A partition may hold this much however small its share: one partition of a fetch takes about 30 us of bookkeeping on
its way to the user, and this many bytes of 100-byte messages take at least 200 us."""

FIRST_FETCH_FACTOR = 4
"""The first request of a partition is this multiple of the minimum: gzip can make 1000 bytes of one."""

UNKNOWN_EXPANSION = 4.0
"""Expected expansion before anything is known: text of moderate size under gzip."""


class ReadAheadLimits:
    """Bounds of a fetch.

    Args:
        read_ahead_bytes: Memory all partitions together may hold ahead of the user (bytes).
        fetch_bytes: Maximum bytes one partition requests in one fetch, from a distant broker too.
        response_bytes: Maximum bytes all partitions of one fetch request together, unless it is a single one: nothing
            of a response is delivered before all of it has arrived.
        min_bytes: Minimum useful request (bytes).
    """

    def __init__(
        self, read_ahead_bytes: int, fetch_bytes: int, response_bytes: int = 4 << 20, min_bytes: int = MIN_FETCH_BYTES
    ) -> None:
        self.read_ahead_bytes, self.fetch_bytes = read_ahead_bytes, fetch_bytes
        self.response_bytes, self.min_bytes = response_bytes, min_bytes
        self.first_fetch_bytes = min(fetch_bytes, FIRST_FETCH_FACTOR * min_bytes)
        """Bytes a partition requests before anything of it was fetched. If there are many, each may request less, and
        they share a request."""
        self.usual_fetch_bytes = min(fetch_bytes, USUAL_FETCH_BYTES)
        """Bytes a partition requests while responses come quickly."""

    @property
    def min_share_bytes(self) -> int:
        """Bytes a partition may hold however small its share is."""
        return max(self.min_bytes, min(MIN_SHARE_BYTES, self.read_ahead_bytes // 4))


def expected_expansion(observed: float | None) -> float:
    """Return what one fetched byte is expected to become in memory."""
    if observed is None:
        return UNKNOWN_EXPANSION
    return observed if observed > 1.0 else 1.0


def decaying_maximum(before: float | None, observed: float) -> float:
    """Return an estimate that rises at once and falls slowly: one message may be compressed and the next one not."""
    return observed if before is None else max(observed, (7 * before + observed) / 8)


def bytes_to_request(held: int, observed: float | None, share: int, limits: ReadAheadLimits, usual: int) -> int:
    """Return how many bytes a partition may request as far as its share goes; 0: not now.

    A full partition waits until half of its usual request fits again, so that a slow user causes few large fetches
    rather than many small ones.

    Args:
        held: Memory of its records not yet delivered and of a partial message (bytes).
        observed: Memory that one fetched byte recently became (compression, per-record overhead). It is None before the
            first fetch, which is a small one.
        share: Memory it may hold (bytes).
        limits: Bounds of a fetch.
        usual: The bytes it requests if nothing limits it.
    """
    if observed is None:
        usual = limits.first_fetch_bytes
    expansion = expected_expansion(observed)
    fits = int((share - held) / expansion)
    if fits >= usual >= limits.min_bytes:
        return usual
    if fits >= min(usual, int(share / expansion)) // 2 and fits >= limits.min_bytes:
        return min(usual, fits)
    return limits.min_bytes if held == 0 else 0


class ReadAheadBudget:
    """The read-ahead of one consumer, and how many partitions share it."""

    __slots__ = ("_partitions", "limits", "min_share_bytes", "share")

    def __init__(self, limits: ReadAheadLimits) -> None:
        self.limits, self.min_share_bytes = limits, limits.min_share_bytes
        self.partitions = 0

    @property
    def partitions(self) -> int:
        return self._partitions

    @partitions.setter
    def partitions(self, count: int) -> None:
        self._partitions = count
        self.share = max(self.limits.read_ahead_bytes // max(1, count), self.min_share_bytes)
        """The memory that one partition may hold (bytes)."""

    def allowance(self, partitions: int) -> int:
        """Return what this many of the partitions may hold together (bytes)."""
        return max(self.limits.read_ahead_bytes * partitions // max(1, self._partitions), self.min_share_bytes)
