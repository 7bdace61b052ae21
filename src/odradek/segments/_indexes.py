"""Index files beside a segment of Kafka 0.8 and later. Their entries are hints: the log decides."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["AbortedTransactionEntry", "OffsetIndex", "TimeIndex", "read_aborted"]

_OFFSET, _TIME = struct.Struct(">iI"), struct.Struct(">qi")
_ABORTED = struct.Struct(">hqqqq")


class OffsetIndex:
    """A file `.index`: pairs of an offset and the byte at which a batch with it starts, in order.

    Files that a broker has open are allocated in advance: zeros at their end are no entries.

    Args:
        path: The file, which need not exist.
        base: The first offset of the segment.
    """

    def __init__(self, path: Path, base: int) -> None:
        self._path, self._base = path, base

    def before(self, offset: int, maximum: int) -> list[int]:
        """Return the bytes that the last entries at or before an offset name, at most `maximum`, nearest first. They
        are in no order, or nonsense, if the file is damaged; none if it cannot be read."""
        try:
            with io.FileIO(self._path) as file:
                count = file.seek(0, io.SEEK_END) // _OFFSET.size
                low, high = 0, count
                while low < high:
                    middle = (low + high) // 2
                    relative, at = self._entry(file, middle)
                    is_unused = middle > 0 and not relative and not at
                    if is_unused or self._base + relative > offset:
                        high = middle
                    else:
                        low = middle + 1
                return [self._entry(file, number)[1] for number in range(low - 1, max(-1, low - 1 - maximum), -1)]
        except (OSError, struct.error):
            return []

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield the offset and the byte of each entry that is used. Raises OSError."""
        for relative, at in _records(self._path, _OFFSET):
            if not relative and not at:
                return
            yield self._base + relative, at

    @staticmethod
    def _entry(file: io.FileIO, number: int) -> tuple[int, int]:
        file.seek(number * _OFFSET.size)
        relative, at = _OFFSET.unpack(file.read(_OFFSET.size))
        return relative, at


class TimeIndex:
    """A file `.timeindex` (0.10.1 and later): pairs of the largest timestamp so far and the offset of its record.

    Args:
        path: The file, which need not exist.
        base: The first offset of the segment.
    """

    def __init__(self, path: Path, base: int) -> None:
        self._path, self._base = path, base

    def last(self) -> tuple[int, int] | None:
        """Return timestamp (ms) and offset of the last entry that is used; None if there is none, or the entries are
        not in order, or the file cannot be read."""
        previous: tuple[int, int] | None = None
        try:
            for time, relative in _records(self._path, _TIME):
                if not time and not relative:
                    break
                entry = time, self._base + relative
                if previous is not None and (entry[0] < previous[0] or entry[1] < previous[1]):
                    return None
                previous = entry
        except OSError:
            return None
        return previous


class AbortedTransactionEntry(NamedTuple):
    """An entry of a file `.txnindex`: a transaction that was aborted.

    Args:
        producer_id: Its producer.
        first_offset: The offset of its first record.
        last_offset: The offset of its marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int


def read_aborted(path: Path) -> list[AbortedTransactionEntry] | None:
    """Return the entries of a file `.txnindex`; none if there is no file; None if it is of another version, or its end
    is torn. Raises OSError."""
    if not path.exists():
        return []
    if path.stat().st_size % _ABORTED.size:
        return None
    entries = []
    for version, producer, first, last, _ in _records(path, _ABORTED):
        if version:
            return None
        entries.append(AbortedTransactionEntry(producer, first, last))
    return entries


def _records(path: Path, form: struct.Struct) -> Iterator[tuple[int, ...]]:
    with path.open("rb") as file:
        while len(data := file.read(form.size)) == form.size:
            yield form.unpack(data)
