"""The size of requests to one broker: larger ones to a distant broker, whose round trips take most of the time."""

from __future__ import annotations

import math

from odradek.core.fetch.read_ahead import ReadAheadLimits

__all__ = ["FetchSize"]

DISTANT_S = 0.005
"""A broker none of whose responses took less is distant (s): round trips, and not its work, limit what it delivers."""

DISTANT_RESPONSES = 4
"""Responses before a size is judged. The first few of any broker can be slow: they include connecting, and the imports
and page faults of a client that has just started."""

PAYS_UP_TO = 1.75
"""A response of twice as many bytes pays if it takes less than this many times as long: then the round trip took at
least half as long as all its bytes."""


class FetchSize:
    """Size of a request to one broker, in bytes, learned from how long its responses take.

    A near broker is asked for the usual size. Of a distant one twice as much is tried, within the limit, while that
    pays: the size at the end depends on rate times delay. Sizes are compared by the quickest response of each, because
    a client that is busy, or waits for a processor, makes responses slower and never quicker.
    """

    def __init__(self, limits: ReadAheadLimits) -> None:
        self.bytes = limits.usual_fetch_bytes
        """Bytes to request, of one partition or of several."""
        self._limits = limits
        self._is_near = False
        self._responses = 0
        self._seen: dict[int, tuple[int, float]] = {}  # bits of a size -> how many responses, the quickest of them (s)

    def responded(self, requested: int, seconds: float, *, full: bool, waiting: bool) -> None:
        """Note how long a response took.

        Args:
            requested: The bytes that were requested together.
            seconds: From the request to the whole response (s).
            full: A partition had as much as was requested of it.
            waiting: Nothing of such a partition was left to deliver.
        """
        self._responses += 1
        if seconds < DISTANT_S and not self._is_near:
            self._is_near = True
            self.bytes = self._limits.usual_fetch_bytes
        if self._is_near or not full:
            return
        bits = requested.bit_length()
        count, quickest = self._seen.get(bits, (0, math.inf))
        self._seen[bits] = count + 1, min(quickest, seconds)
        if waiting and requested >= self.bytes and self._responses >= DISTANT_RESPONSES:
            self.bytes = self._next_size(requested, bits)

    def _next_size(self, size: int, bits: int) -> int:
        if self._pays(bits) and self._pays(bits + 1):
            return min(2 * size, self._limits.fetch_bytes)
        if not self._pays(bits) and self._seen[bits][0] >= DISTANT_RESPONSES:
            return max(size // 2, self._limits.usual_fetch_bytes)
        return self.bytes

    def _pays(self, bits: int) -> bool:
        """Return True if responses of this size are known to be worth it, or nothing is known."""
        this, half = self._seen.get(bits), self._seen.get(bits - 1)
        return this is None or half is None or this[1] < PAYS_UP_TO * half[1]
