"""The size of requests: larger ones to a distant broker, whose round trips take most of the time, and whole entries."""

from __future__ import annotations

import math

from odradek.core.fetch.read_ahead import ReadAheadLimits

__all__ = ["EntrySizes", "FetchSize"]

DISTANT_S = 0.005
"""A broker none of whose responses took less is distant (s): round trips, and not its work, limit what it delivers."""

DISTANT_RESPONSES = 4
"""Responses before a size is judged. The first few of any broker can be slow: they include connecting, and the imports
and page faults of a client that has just started."""

PAYS_UP_TO = 1.75
"""A response of twice as many bytes pays if it takes less than this many times as long: then the round trip took at
least half as long as all its bytes."""

ENTRY_HEAD_BYTES = 17
"""Bytes of an entry from which its size is known, and whether that may be (0.8 and later: offset to magic)."""

REMEMBERED_ENTRIES = 4
"""Sizes of entries that are remembered: the next ones are as large as the largest of these, it is assumed."""


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


class EntrySizes:
    """The sizes of a partition's entries, as far as known from the parts of them with which responses ended."""

    __slots__ = ("_next", "_sizes")

    def __init__(self) -> None:
        self._next = 0
        self._sizes: tuple[int, ...] = ()

    def observe(self, next_entry: int) -> None:
        """Remember the size of the entry that is requested next (bytes; 0: it is not known)."""
        self._next = next_entry
        if next_entry:
            self._sizes = (*self._sizes[1 - REMEMBERED_ENTRIES :], next_entry)

    def forget(self) -> None:
        """Forget all of them: other entries are read."""
        self._next, self._sizes = 0, ()

    @property
    def largest(self) -> int:
        """The size of the largest entry that is expected (bytes); 0 if that of the next one is not known."""
        return max(self._sizes) if self._next else 0

    def whole(self, size: int) -> int:
        """Return how many of `size` bytes to request so that they end with an entry, as far as sizes are known: a part
        of one is received for nothing. Only the head of the one behind comes, too, which has its size."""
        if not self._next:
            return size
        needed, entry = self._next + ENTRY_HEAD_BYTES, max(self._sizes)
        return size if size < needed else needed + (size - needed) // entry * entry
