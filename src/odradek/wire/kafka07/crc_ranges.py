"""CRC-32 of any range of some bytes, in about the same time however long the range is.

CRC-32 is linear: with `A` before `B`, `crc(AB) = crc(A) * x^(8 * len(B)) + crc(B)` over GF(2), modulo CRC-32's
polynomial. From the CRCs of all prefixes (one in a thousand is kept) those of all ranges follow.
"""

from __future__ import annotations

from functools import cache
from zlib import crc32

__all__ = ["RangeCrc"]

POLYNOMIAL = 0xEDB88320
"""The polynomial of CRC-32, lowest power in the highest bit."""

STEP = 1024
"""Bytes between the prefixes whose CRC is kept."""

SHORT = 8 * STEP
"""Ranges up to this length (bytes) are faster with `zlib`."""


class RangeCrc:
    """The CRCs of all ranges of `data`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._view = memoryview(data)
        self._prefixes = [0]
        for start in range(0, len(data) - STEP + 1, STEP):
            self._prefixes.append(crc32(self._view[start : start + STEP], self._prefixes[-1]))

    def of(self, start: int, end: int) -> int:
        """Return `zlib.crc32(data[start:end])`; takes at most 10 us."""
        if end - start <= SHORT:
            return crc32(self._view[start:end])
        steps, rest = divmod(end - start, STEP)
        shifted = _times(_times(self._prefix(start), _small_shifts()[rest]), _step_shift(steps))
        return self._prefix(end) ^ shifted

    def _prefix(self, end: int) -> int:
        steps = end // STEP
        return crc32(self._view[steps * STEP : end], self._prefixes[steps])


def _times(a: int, b: int) -> int:
    """Return the product of two polynomials."""
    product = 0
    while a:
        if a & 0x80000000:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ POLYNOMIAL if b & 1 else b >> 1
    return product


@cache
def _small_shifts() -> list[int]:
    """Return x^(8 * n) for n up to STEP."""
    shifts = [0x80000000]
    for _ in range(STEP):
        shifts.append(_times(shifts[-1], 0x00800000))
    return shifts


@cache
def _step_shift(steps: int) -> int:
    """Return x^(8 * STEP * steps)."""
    if steps < 2:
        return _small_shifts()[STEP * steps]
    half = _step_shift(steps // 2)
    return _times(_times(half, half), _step_shift(steps % 2))
