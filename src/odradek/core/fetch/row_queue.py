"""Decoded rows of one partition on their way to the user, and what they take of memory."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, islice, takewhile
from math import inf

from odradek.engine import PackedBytes
from odradek.types import Columns

__all__ = ["CORRUPT_ROW_BYTES", "BufferedColumns", "RowQueue"]

CORRUPT_ROW_BYTES = 640
"""Memory of the CorruptMessage of a row handed over raw: the object, its attributes and texts."""


class BufferedColumns:
    """Columns whose rows before `start` are delivered. Their memory is held until the last row is."""

    __slots__ = ("columns", "following", "memory", "start", "stop")

    def __init__(self, columns: Columns, start: int = 0) -> None:
        self.columns, self.start, self.stop = columns, start, len(columns.values)
        self.following: BufferedColumns | None = None
        self.memory = columns.payload_bytes + columns.row_bytes * self.stop
        if columns.corrupt:
            self.memory += CORRUPT_ROW_BYTES * len(columns.corrupt)

    def rows_within(self, max_bytes: int) -> int:
        """Return how many rows have payloads of at most `max_bytes` together; at least 1."""
        values, first = self.columns.values, self.start
        if isinstance(values, PackedBytes):
            stop = bisect_right(values.offsets, values.offsets[first] + max_bytes, lo=first + 1)
            return max(1, stop - 1 - first)
        ends = accumulate(len(value or b"") for value in islice(values, first, None))
        return max(1, sum(1 for _ in takewhile(max_bytes.__ge__, ends)))


class RowQueue:
    """Rows in the order of the log: a linked list of columns. A container of its own would make ten thousand partitions
    cost a tenth more: each object of a partition is memory that is not in the processor's cache, and more work for the
    garbage collector."""

    __slots__ = ("_first", "_last", "first_row_at", "memory", "rows")

    def __init__(self) -> None:
        self.drop_rows()

    def drop_rows(self) -> None:
        """Forget all rows."""
        self._first: BufferedColumns | None = None
        self._last: BufferedColumns | None = None
        self.rows = 0
        self.memory = 0
        """What the rows hold (bytes)."""
        self.first_row_at = 0.0
        """When the first row began to wait."""

    def add_rows(self, columns: Columns, now: float) -> int:
        """Add rows at the end, if there are any. Return their memory (bytes)."""
        buffered = BufferedColumns(columns)
        if not buffered.stop:
            return 0
        if self._last is None:
            self._first = buffered
            self.first_row_at = now
        else:
            self._last.following = buffered
        self._last = buffered
        self.rows += buffered.stop
        self.memory += buffered.memory
        return buffered.memory

    @property
    def next_bytes(self) -> float:
        """Payload of the next row (bytes); infinite without rows."""
        return inf if self._first is None else len(self._first.columns.values[self._first.start] or b"")

    def take_rows(self, max_records: int | None, now: float) -> Columns:
        """Take at most `max_records` rows; None: as they were decoded. There must be a row."""
        self.first_row_at = now
        columns = self._pop_rows(max_records)
        if max_records is None or len(columns.values) >= max_records:
            return columns
        parts = [columns]
        missing = max_records - len(columns.values)
        while self.rows and missing:
            parts.append(self._pop_rows(missing))
            missing -= len(parts[-1].values)
        return Columns.concat(parts)

    def take_rows_within(self, max_bytes: int, now: float) -> Columns:
        """Take rows that were decoded together: payloads of at most `max_bytes`, or one row. There must be a row."""
        assert self._first is not None
        self.first_row_at = now
        return self._pop_rows(self._first.rows_within(max_bytes))

    def _pop_rows(self, max_records: int | None) -> Columns:
        first = self._first
        assert first is not None
        start, stop = first.start, first.stop
        if max_records is not None and max_records < stop - start:
            first.start = start + max_records
            self.rows -= max_records
            return first.columns.slice(start, first.start)
        self._first = first.following
        if self._first is None:
            self._last = None
        self.rows -= stop - start
        self.memory -= first.memory
        return first.columns.slice(start, stop) if start else first.columns

    def put_back(self, columns: Columns, rows: int) -> None:
        """Take back the last `rows` rows of what was taken."""
        if rows:
            buffered = BufferedColumns(columns, len(columns.values) - rows)
            buffered.following, self._first = self._first, buffered
            if self._last is None:
                self._last = buffered
            self.rows += rows
            self.memory += buffered.memory
