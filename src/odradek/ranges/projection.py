"""The rows of ranges as Arrow batches: from a decoder's columns to the columns that a query asks for.

Spark takes such batches as they are, and compares their schema with its own, field by field: order, names, `binary` and
not `large_binary`, no dictionaries, everything nullable. `COLUMNS` is what both are made of. Nothing is done row by row
in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from odradek import engine
from odradek._arrays import (
    Array,
    binaries,
    constant,
    error_texts,
    header_lists,
    inner_indexes,
    int64,
    integers,
    null,
    nulls,
    repeated,
    timestamp_types,
    timestamps,
)
from odradek.engine import NO_LIMIT, PackedBytes
from odradek.types import Columns, MiB, TopicPartition

__all__ = [
    "BROKER",
    "COLUMNS",
    "ERROR",
    "HEADERS",
    "MICROSECONDS",
    "Column",
    "Projection",
    "columns",
    "join_small",
    "together",
]

BATCH_ROWS, BATCH_BYTES = 50_000, 4 * MiB
"""Maximum rows of a batch, and maximum payload of one with several rows (bytes). Between 10 000 and 50 000 rows or 1
and 5 MB all sizes are equally fast in Spark; smaller ones cost up to a quarter."""

SMALL_ROWS, SMALL_BYTES = 10_000, 1 * MiB
"""Batches with less of both are joined."""


class Column(NamedTuple):
    """A column, with its type in Arrow."""

    name: str
    arrow: pa.DataType


MICROSECONDS = pa.timestamp("us", tz="UTC")

BROKER = Column("broker", pa.int32())

COLUMNS = (
    Column("key", pa.binary()),
    Column("value", pa.binary()),
    Column("topic", pa.string()),
    Column("partition", pa.int32()),
    Column("offset", pa.int64()),
    Column("timestamp", MICROSECONDS),
    Column("timestampType", pa.int32()),
    BROKER,
    Column("index", pa.int32()),
    Column("nextOffset", pa.int64()),
)
"""Spark's own Kafka columns first, so that a query is carried over by changing the format's name; then the id of the
broker (0.7 counts partitions on each of them; null elsewhere), the place in a compressed wrapper (0 outside of one) and
where reading resumes after the row."""

HEADERS = Column(
    "headers",
    pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
)
"""Present only with `includeHeaders`."""

ERROR = Column("error", pa.string())
"""The reason why a message could not be decoded, or null. The row's value is then the raw entry of the log. Part of the
columns with `corrupt=dead`; a schema may name it in any case."""


def columns(*, headers: bool = False, positions: bool = True, errors: bool = False) -> tuple[Column, ...]:
    """Return the columns of a query that names none, in order; `positions`: with those of 0.7, which Spark's own Kafka
    source does not have."""
    chosen = COLUMNS if positions else COLUMNS[: COLUMNS.index(BROKER)]
    return (*chosen, *((HEADERS,) if headers else ()), *((ERROR,) if errors else ()))


class Projection:
    """Turns columns of one partition into Arrow batches with the chosen columns. Pickled into tasks."""

    def __init__(self, chosen: Sequence[Column] = COLUMNS) -> None:
        self.columns = tuple(chosen)
        self.schema = pa.schema([pa.field(column.name, column.arrow) for column in self.columns])

    def batches(self, partition: TopicPartition, rows: Columns) -> Iterator[pa.RecordBatch]:
        """The rows as batches of at most `BATCH_ROWS` and about `BATCH_BYTES`. Payloads and positions that come in
        buffers are shared with them, not copied."""
        start, count, fit = 0, len(rows.values), engine.active.fit
        while start < count:
            stop, _ = fit(rows.values, start, min(start + BATCH_ROWS, count), BATCH_BYTES, 0, NO_LIMIT, nullable=True)
            stop = max(stop, start + 1)
            part = rows.slice(start, stop)
            arrays = [_MAKERS[column.name](partition, part, stop - start) for column in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            start = stop


def join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, in the same order, with batches that are small put together: a task that reads many partitions
    gets a few rows of each."""
    for some in together(batches, size=SMALL_BYTES, rows=SMALL_ROWS):
        yield some[0] if len(some) == 1 else pa.Table.from_batches(some).combine_chunks().to_batches()[0]


def together(batches: Iterable[pa.RecordBatch], *, size: int, rows: float = math.inf) -> Iterator[list[pa.RecordBatch]]:
    """Yield the batches that have rows, as many at a time as have at least `size` bytes, or this many rows."""
    waiting: list[pa.RecordBatch] = []
    rows_left, size_left = rows, size
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            rows_left, size_left = rows_left - batch.num_rows, size_left - batch.nbytes
        if rows_left <= 0 or size_left <= 0:
            yield waiting
            waiting, rows_left, size_left = [], rows, size
    if waiting:
        yield waiting


def _binary(strings: Sequence[bytes | None] | None, count: int) -> Array:
    if strings is None:
        return nulls(pa.binary(), count)
    if not isinstance(strings, PackedBytes) or strings.offsets.itemsize == 4:
        return binaries(strings)
    import pyarrow.compute as pc

    # Offsets of 8 bytes: these rows are small, but may lie beyond the reach of 4 bytes. So count from the first.
    first, last = int(strings.offsets[0]), int(strings.offsets[-1])
    offsets: Any = pc.subtract(integers(strings.offsets, pa.int64()), int64(first)).cast(pa.int32())
    rebased = memoryview(offsets.buffers()[1]).cast("i")[: count + 1]
    return binaries(PackedBytes(rebased, strings.data[first:last], strings.validity))


def _microseconds(times: Sequence[int] | None, count: int) -> Array:
    """Return what Spark has; null beyond the year 294,246, which only a broken clock writes."""
    if times is None:
        return nulls(MICROSECONDS, count)
    import pyarrow.compute as pc

    milliseconds = timestamps(times, count).cast(pa.int64())
    maximum = ((1 << 63) - 1) // 1000
    fits = pc.and_(pc.less_equal(milliseconds, int64(maximum)), pc.greater_equal(milliseconds, int64(-maximum)))
    microseconds: Array = pc.multiply(pc.if_else(fits, milliseconds, null(pa.int64())), int64(1000))
    return microseconds.cast(MICROSECONDS)


def _headers(rows: Columns, count: int) -> Array:
    """Return headers, null where a row has none, as in Spark's own Kafka source."""
    if rows.headers is None:
        return nulls(HEADERS.arrow, count)
    import pyarrow.compute as pc

    lists: Any = header_lists(rows.headers, count).cast(HEADERS.arrow)
    has_any = pc.greater(pc.list_value_length(lists), int64(0))
    present: Array = pc.if_else(has_any, lists, null(HEADERS.arrow))
    return present


@lru_cache(maxsize=256)
def _repeated(topic: str, power: int) -> Array:
    """Return 2**power times the same; batch after batch of a partition shares it, and often those of all partitions."""
    return repeated(topic, 1 << power)


_MAKERS: Mapping[str, Callable[[TopicPartition, Columns, int], Array]] = {
    "key": lambda _, rows, count: _binary(rows.keys, count),
    "value": lambda _, rows, count: _binary(rows.values, count),
    "topic": lambda partition, _, count: _repeated(partition.topic, max(10, count.bit_length())).slice(0, count),
    "partition": lambda partition, _, count: constant(partition.partition, count),
    "offset": lambda _, rows, count: integers(rows.positions, pa.int64()),
    "timestamp": lambda _, rows, count: _microseconds(rows.timestamps, count),
    "timestampType": lambda _, rows, count: timestamp_types(rows.timestamp_types, count),
    "broker": lambda partition, _, count: (
        nulls(pa.int32(), count) if partition.broker < 0 else constant(partition.broker, count)
    ),
    "index": lambda _, rows, count: inner_indexes(rows.inner_indexes, count),
    "nextOffset": lambda _, rows, count: integers(rows.next_positions, pa.int64()),
    "headers": lambda _, rows, count: _headers(rows, count),
    "error": lambda _, rows, count: error_texts(rows, count),
}
