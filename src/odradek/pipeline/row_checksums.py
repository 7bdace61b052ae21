"""Order-free checksums of rows, to compare two sets of rows that do not fit in memory.

A log is divided into slices. Each slice has a count and a sum, modulo 2^64, of one mixed number per row: of its
position, its index in a wrapper, and the hash of its payload if that is kept. A row belongs to the slice in which it
starts; the order of rows does not matter. The hash is Python's own hash of bytes (SipHash, 64 bits), with the random
key of this process: checksums are compared within one process and never stored.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from odradek.types import Columns, TopicPartition

__all__ = ["IDENTITY", "OUTSIDE", "ChecksumSum", "RowChecksums", "by_log", "log_of"]

Array: TypeAlias = "pa.Array[Any]"

IDENTITY = ("topic", "broker", "partition", "offset", "index")
"""Columns that identify a row's position in the log."""

OUTSIDE = -1

_U64 = pa.uint64()
_STEP = pa.scalar(0x9E3779B97F4A7C15, _U64)
_ROUNDS = tuple(
    (pa.scalar(shift, _U64), pa.scalar(factor, _U64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
)
"""The rounds of splitmix64: a change of one input bit changes about half of the output bits."""

_MASK = (1 << 64) - 1


class ChecksumSum(NamedTuple):
    """The checksum of the rows of one slice."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: object) -> ChecksumSum:
        if not isinstance(other, ChecksumSum):
            return NotImplemented
        return ChecksumSum(self.rows + other.rows, (self.total + other.total) & _MASK)


class RowChecksums:
    """Counts and sums by slice.

    Args:
        starts: Starts of the slices of each log, ascending; the last one has no end. It may grow, as long as no row
            after a new start has been counted.
        payload: True if the payload is part of the sum.
    """

    def __init__(self, starts: Mapping[TopicPartition, Sequence[int]], *, payload: bool) -> None:
        self._starts = starts
        self.payload = payload
        self.sums: dict[tuple[TopicPartition, int], ChecksumSum] = {}
        """Sums by log and start of the slice. Rows before all starts, and of other logs, are at `OUTSIDE`."""

    def of(self, partition: TopicPartition, start: int) -> ChecksumSum:
        return self.sums.get((partition, start), ChecksumSum())

    def add_columns(self, partition: TopicPartition, columns: Columns) -> None:
        """Add rows of a decoder: of one log, in order."""
        rows = len(columns.values)
        if not rows:
            return
        offsets = _int64(columns.positions)
        indexes = pa.repeat(pa.scalar(0), rows) if columns.inner_indexes is None else _int64(columns.inner_indexes)
        hashes = _hashes(list(columns.values)) if self.payload else None
        self._add(partition, offsets, _mixed(offsets, indexes, hashes))

    def add_rows(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows of a table: the columns of `IDENTITY`, and `value` if the payload counts."""
        for partition, part in by_log(rows):
            offsets = _chunk(part["offset"])
            hashes = _hashes(part["value"].to_pylist()) if self.payload else None
            self._add(partition, offsets, _mixed(offsets, _chunk(part["index"].cast(pa.int64())), hashes))

    def _add(self, partition: TopicPartition, offsets: Array, mixed: Array) -> None:
        """Add mixed numbers of rows with ascending offsets."""
        starts = self._starts.get(partition, ())
        data: Any = offsets.buffers()[1]
        positions = memoryview(data).cast("q")[offsets.offset : offsets.offset + len(offsets)]
        at = 0
        while at < len(positions):
            behind = bisect_right(starts, positions[at])
            start = starts[behind - 1] if behind else OUTSIDE
            stop = bisect_left(positions, starts[behind], at) if behind < len(starts) else len(positions)
            here = ChecksumSum(stop - at, pc.sum(mixed.slice(at, stop - at)).as_py())
            self.sums[partition, start] = self.of(partition, start) + here
            at = stop


def by_log(rows: pa.RecordBatch | pa.Table) -> Iterator[tuple[TopicPartition, pa.Table]]:
    """Yield runs of rows of one log each, sorted by offset and index. A log may come more than once."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    stops = _stops(table)
    if len(stops) > 1 + table.num_rows // SHORT_RUN:
        table = table.sort_by([(name, "ascending") for name in IDENTITY])
        stops = _stops(table)
    for start, stop in zip([0, *stops], stops, strict=False):
        part = table.slice(start, stop - start)
        yield log_of(part), part if _ascends(part) else part.sort_by([("offset", "ascending"), ("index", "ascending")])


def log_of(rows: pa.Table) -> TopicPartition:
    """Return the log of the first row."""
    topic, broker, partition = (rows[name][0].as_py() for name in IDENTITY[:3])
    return TopicPartition(topic, partition, -1 if broker is None else broker)


SHORT_RUN = 64
"""Average length (rows) of runs of one log below which all rows are sorted first."""


def _stops(table: pa.Table) -> list[int]:
    """Return the ends of runs of one log."""
    rows = table.num_rows
    if not rows:
        return []
    changes: Any = None
    for name in IDENTITY[:3]:
        column = _chunk(table[name])
        if name == "broker":
            column = column.fill_null(-1)
        change = pc.not_equal(column.slice(1), column.slice(0, rows - 1))
        changes = change if changes is None else pc.or_(changes, change)
    return [*(row.as_py() + 1 for row in pc.indices_nonzero(changes)), rows]


def _ascends(part: pa.Table) -> bool:
    offsets, indexes, rows = _chunk(part["offset"]), _chunk(part["index"]), part.num_rows
    before, after = offsets.slice(0, rows - 1), offsets.slice(1)
    inside = pc.and_(pc.equal(before, after), pc.less_equal(indexes.slice(0, rows - 1), indexes.slice(1)))
    return pc.all(pc.or_(pc.less(before, after), inside)).as_py() is not False  # None: there is no pair


# ---- columns -------------------------------------------------------------------------------------------------


def _chunk(column: Any) -> Array:
    """Return a column as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column  # type: ignore[no-any-return]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # type: ignore[return-value]


def _int64(numbers: Sequence[int]) -> Array:
    if isinstance(numbers, memoryview) and numbers.itemsize == 8:
        return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
    return pa.array(numbers, pa.int64())


def _hashes(values: Iterable[bytes | None]) -> Array:
    return pa.array(list(map(hash, values)), pa.int64())


def _mixed(offsets: Array, indexes: Array, hashes: Array | None) -> Array:
    """Return one number per row; each input affects all of its bits."""
    mixed = _mix(offsets.view(pa.uint64()))
    mixed = _mix(pc.bit_wise_xor(mixed, indexes.view(pa.uint64())))
    if hashes is not None:
        mixed = _mix(pc.bit_wise_xor(mixed, hashes.view(pa.uint64())))
    return mixed


def _mix(numbers: Array) -> Array:
    """Apply splitmix64 to each number; sums and products wrap around."""
    numbers = pc.add(numbers, _STEP)
    for shift, factor in _ROUNDS:
        numbers = pc.multiply(pc.bit_wise_xor(numbers, pc.shift_right(numbers, shift)), factor)
    return numbers
