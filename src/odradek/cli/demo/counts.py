"""Exact counts for the demo: how often each consumer handled each message, even if it was killed.

Every consumer counts in a file with one byte per message, mapped into its memory. A write to a shared mapping belongs
to the kernel at once, so SIGKILL loses none of it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["DeliveryTotals", "HandledCounts", "count_missing", "numbered", "total_up"]

_NUMBER = slice(5, 15)
_MAX = 255  # of a byte


def numbered(number: int, time_ms: int, text: bytes) -> bytes:
    """Encode the message that carries `number`: JSON with the number always at the same offset.

    Args:
        number: The message's number.
        time_ms: Its time (ms since the epoch).
        text: A JSON string.
    """
    return b'{"n":%10d,"ts":%d,"text":%s}' % (number, time_ms, text)


class HandledCounts:
    """One consumer's counts, in a file.

    Args:
        path: The file; created if missing.
        size: Number of messages.
    """

    def __init__(self, path: Path, size: int) -> None:
        with path.open("a+b") as file:
            file.truncate(size)
            self._counts = mmap.mmap(file.fileno(), size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._counts.close()

    def add(self, values: Iterable[bytes]) -> None:
        """Count messages as handled."""
        counts = self._counts
        for value in values:
            number = int(value[_NUMBER])
            if counts[number] < _MAX:
                counts[number] += 1

    def counts(self) -> bytes:
        """Return one byte per message: how often it was handled (255: that often or more)."""
        return self._counts[:]


class DeliveryTotals(NamedTuple):
    """The totals over all consumers.

    Args:
        messages: Number of messages written.
        lost: Numbers of the messages that no consumer handled.
        duplicates: Number of repeated deliveries.
    """

    messages: int
    lost: list[int]
    duplicates: int


def count_missing(counts: Sequence[bytes]) -> int:
    """Return the number of messages that no consumer has handled yet."""
    return _any(counts).count(0)


def total_up(counts: Sequence[bytes]) -> DeliveryTotals:
    """Return the totals of the consumers' final counts."""
    size = len(counts[0])
    handled = _any(counts)
    lost = [number for number in range(size) if not handled[number]] if handled.count(0) else []
    return DeliveryTotals(size, lost, sum(map(sum, counts)) - (size - len(lost)))


def _any(counts: Sequence[bytes]) -> bytes:
    """OR the counts byte by byte: not 0 where any consumer counted."""

    merged = 0
    for one in counts:
        merged |= int.from_bytes(one, "little")
    return merged.to_bytes(len(counts[0]), "little")
