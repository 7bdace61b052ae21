"""Exact accounting for the demo: how often was each message handled, by whom, even by a process that was killed.

Every consumer has a file with one byte a message, mapped into its memory; it counts there what it handled. What is in a
shared mapping is the kernel's as soon as it is written, so SIGKILL loses nothing of it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["DeliveryTotals", "HandledCounts", "judge", "missing", "number_of", "numbered"]

_NUMBER = slice(5, 15)
_MOST = 255  # a byte's worth


def numbered(number: int, time_ms: int, text: bytes) -> bytes:
    """The message that carries `number`: JSON, in which the number always stands at the same place.

    Args:
        number: Which one it is.
        time_ms: When it happened (ms since the epoch).
        text: A JSON string.
    """
    return b'{"n":%10d,"ts":%d,"text":%s}' % (number, time_ms, text)


def number_of(value: bytes) -> int:
    """The number a message carries."""
    return int(value[_NUMBER])


class HandledCounts:
    """One consumer's counts, in a file.

    Args:
        path: The file; made when it is not there.
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
            if counts[number] < _MOST:
                counts[number] += 1

    def counts(self) -> bytes:
        """One byte a message: how often it was handled (255: that often or more)."""
        return self._counts[:]


class DeliveryTotals(NamedTuple):
    """What became of `messages` messages.

    Args:
        messages: How many there were.
        lost: Numbers that nobody handled.
        duplicates: How often a message was handled again, summed over all.
    """

    messages: int
    lost: list[int]
    duplicates: int


def missing(counts: Sequence[bytes]) -> int:
    """How many messages nobody handled yet."""
    return _any(counts).count(0)


def judge(counts: Sequence[bytes]) -> DeliveryTotals:
    """The final account."""
    size = len(counts[0])
    handled = _any(counts)
    lost = [number for number in range(size) if not handled[number]] if handled.count(0) else []
    return DeliveryTotals(size, lost, sum(map(sum, counts)) - (size - len(lost)))


def _any(counts: Sequence[bytes]) -> bytes:
    """Byte by byte OR: not 0 where somebody counted."""
    merged = 0
    for one in counts:
        merged |= int.from_bytes(one, "little")
    return merged.to_bytes(len(counts[0]), "little")
