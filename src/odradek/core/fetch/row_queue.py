"""Decoded rows of one partition on their way to the user, and what they take of memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import accumulate, islice, takewhile

from odradek.engine import PackedBytes
from odradek.types import Columns

__all__ = ["CORRUPT_ROW_BYTES", "RowQueue", "rows_within"]

CORRUPT_ROW_BYTES = 640
"""Memory of the CorruptMessage of a row handed over raw: the object, its attributes and texts."""

LARGE_BYTES = 4 << 20
"""Rows that were decoded together, and take more memory, are delivered in slices, unless they are still encoded. A
distant broker sends so many at once, and so do batches that are compressed well. Of their values, as objects of Python,
only those of a slice exist at a time, if the user drops the last one: the same memory is used again for the next."""

SLICE_BYTES = 1 << 20
"""Payloads of such a slice (bytes)."""


def rows_within(columns: Columns, start: int, max_bytes: int) -> int:
    """Return how many rows from `start` on have payloads of at most `max_bytes` together; at least 1."""
    if not start and columns.payload_bytes <= max_bytes:
        return len(columns)
    values = columns.values
    if isinstance(values, PackedBytes):
        stop = bisect_right(values.offsets, values.offsets[start] + max_bytes, lo=start + 1)
        return max(1, stop - 1 - start)
    ends = accumulate(len(value or b"") for value in islice(values, start, None))
    return max(1, sum(1 for _ in takewhile(max_bytes.__ge__, ends)))


def _memory_of(columns: Columns) -> int:
    memory = columns.memory_bytes
    return memory + CORRUPT_ROW_BYTES * len(columns.corrupt) if columns.corrupt else memory


class RowQueue:
    """Rows in the order of the log, as they were decoded. Their memory is held until the last row of a part is taken.

    An object for each part would make ten thousand partitions cost a tenth more: it is memory that is not in the
    processor's cache, and more work for the garbage collector. So there is a container only for a second part.
    """

    __slots__ = ("_first", "_others", "_start", "first_row_at", "memory", "reported", "rows")

    def __init__(self) -> None:
        self.drop_rows()

    def drop_rows(self) -> None:
        """Forget all rows."""
        self._first: Columns | None = None
        self._start = 0  # its rows before this one are taken
        self._others: deque[tuple[Columns, int]] | None = None
        self.rows = 0
        self.memory = 0
        """The memory of the rows (bytes)."""
        self.first_row_at = 0.0
        """When the first row began to wait."""
        self.reported = 0
        """How many of the first rows an observer was told of: they were taken, and put back."""

    def add_rows(self, columns: Columns, now: float) -> int:
        """Add rows at the end, if there are any. Return their memory (bytes)."""
        if not (count := len(columns)):
            return 0
        if self._first is None:
            self._first, self._start = columns, 0
            self.first_row_at = now
        elif self._others is None:
            self._others = deque([(columns, 0)])
        else:
            self._others.append((columns, 0))
        memory = columns.memory_bytes if not columns.corrupt else _memory_of(columns)
        self.rows += count
        self.memory += memory
        return memory

    @property
    def first(self) -> tuple[Columns, int] | None:
        """The rows decoded together that are delivered next, and the index of the first of them not yet taken."""
        return None if self._first is None else (self._first, self._start)

    def next_fits(self, max_bytes: int) -> bool:
        """Return True if there is a row, and its payload is of at most `max_bytes`."""
        first = self._first
        if first is None:
            return False
        return first.payload_bytes <= max_bytes or len(first.values[self._start] or b"") <= max_bytes

    def take_rows(self, max_records: int | None, now: float) -> Columns:
        """Take at most `max_records` rows; None: those that were decoded together, or some of them if they are large.
        There must be a row."""
        if max_records is None and self.memory > LARGE_BYTES and self._comes_in_slices:
            return self.take_rows_within(SLICE_BYTES, now)
        self.first_row_at = now
        columns = self._pop_rows(max_records)
        if max_records is None or len(columns) >= max_records:
            return columns
        parts = [columns]
        missing = max_records - len(columns)
        while self.rows and missing:
            parts.append(self._pop_rows(missing))
            missing -= len(parts[-1])
        return Columns.concat(parts)

    @property
    def _comes_in_slices(self) -> bool:
        """True if the first rows, which were decoded together, are large, and none of them is still encoded."""
        first = self._first
        assert first is not None
        return _memory_of(first) > LARGE_BYTES and first.encoded is None and len(first.parts) == 1

    def take_rows_within(self, max_bytes: int, now: float) -> Columns:
        """Take rows that were decoded together: payloads of at most `max_bytes`, or one row. There must be a row."""
        assert self._first is not None
        self.first_row_at = now
        return self._pop_rows(rows_within(self._first, self._start, max_bytes))

    def _pop_rows(self, max_records: int | None) -> Columns:
        first, start = self._first, self._start
        assert first is not None
        if max_records is None and not start and self._others is None:  # as nearly always with many partitions
            self._first, self.rows, self.memory = None, 0, 0
            return first
        left = len(first) - start
        if max_records is not None and max_records < left:
            self._start = start + max_records
            self.rows -= max_records
            return first.slice(start, self._start)
        if self._others is None:
            self._first, self._start, self.rows, self.memory = None, 0, 0, 0
        else:
            self._first, self._start = self._others.popleft()
            self._others = self._others or None  # an empty one takes 600 bytes
            self.rows -= left
            self.memory -= _memory_of(first)
        return first.slice(start, len(first)) if start else first

    def put_back(self, columns: Columns, rows: int) -> None:
        """Take back the last `rows` rows of what was taken."""
        if not rows:
            return
        if self._first is not None:
            if self._others is None:
                self._others = deque()
            self._others.appendleft((self._first, self._start))
        self._first, self._start = columns, len(columns) - rows
        self.rows += rows
        self.memory += _memory_of(columns)
