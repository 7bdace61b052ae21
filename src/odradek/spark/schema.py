"""The columns of the data source, and the way from a decoder's columns to Arrow batches that Spark takes as they are.

Spark compares the Arrow schema of what a reader yields with its own, field by field: order, names, `binary` and not
`large_binary`, no dictionaries, everything nullable. `COLUMNS` is what both are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from odradek import engine
from odradek.arrow import binaries
from odradek.engine import NO_LIMIT, PackedBytes
from odradek.errors import ConfigError
from odradek.types import NO_TIMESTAMP, Columns, MiB, TopicPartition

__all__ = ["COLUMNS", "ERROR_HEADER", "HEADERS", "Column", "Projection", "columns", "ddl", "join_small", "project"]

Array: TypeAlias = "pa.Array[Any]"

BATCH_ROWS, BATCH_BYTES = 50_000, 4 * MiB
"""A batch has at most so many rows and, if it has more than one, bytes of payload. Between 10 000 and 50 000 rows or 1
and 5 MB all sizes are equally fast in Spark; smaller ones cost up to a quarter."""

SMALL_ROWS, SMALL_BYTES = 10_000, 1 * MiB
"""Batches with less of both are joined."""

ERROR_HEADER = "error"
"""Header of a row that could not be decoded: the reason. The row's value is the raw entry of the log."""


class Column(NamedTuple):
    """A column as Spark and as Arrow call it."""

    name: str
    spark: str
    arrow: pa.DataType


COLUMNS = (
    Column("key", "binary", pa.binary()),
    Column("value", "binary", pa.binary()),
    Column("topic", "string", pa.string()),
    Column("partition", "int", pa.int32()),
    Column("offset", "bigint", pa.int64()),
    Column("timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
    Column("timestampType", "int", pa.int32()),
    Column("broker", "int", pa.int32()),
    Column("index", "int", pa.int32()),
    Column("nextOffset", "bigint", pa.int64()),
)
"""Spark's own Kafka columns first, so that a query is carried over by changing the format's name; then the id of the
broker (0.7 counts partitions on each of them; null elsewhere), the place in a compressed wrapper (0 outside of one) and
where reading resumes after the row."""

HEADERS = Column(
    "headers",
    "array<struct<key:string,value:binary>>",
    pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
)
"""The last column, present only with `includeHeaders`."""


def columns(*, headers: bool = False) -> tuple[Column, ...]:
    """All columns of a reader, in order."""
    return (*COLUMNS, HEADERS) if headers else COLUMNS


def ddl(*, headers: bool = False) -> str:
    """The schema as Spark's DDL writes it."""
    return ", ".join(f"{column.name} {column.spark}" for column in columns(headers=headers))


def project(fields: Iterable[tuple[str, str, bool]], *, headers: bool = False) -> Projection:
    """The columns that a user's schema asks for, in its order.

    Args:
        fields: Of the schema: name, Spark's simple type (`bigint`), nullable.
        headers: Is there a headers column?

    Raises:
        ConfigError: A column there is not, or that has another type or may be null.
    """
    known = {column.name: column for column in columns(headers=headers)}
    chosen: dict[str, Column] = {}
    for name, spark, nullable in fields:
        if name not in known:
            raise ConfigError(f"there is no column {name!r}{_nearest(name, known)}")
        if name in chosen:
            raise ConfigError(f"column {name} is named twice")
        if (spark, nullable) != (known[name].spark, True):
            asked = spark if nullable else f"{spark} NOT NULL"
            raise ConfigError(
                f"column {name} is {known[name].spark} and may be null, not {asked}: cast it in the query"
            )
        chosen[name] = known[name]
    if not chosen:
        raise ConfigError("the schema has no columns: omit it, or name at least one column")
    return Projection(tuple(chosen.values()))


def _nearest(name: str, known: Mapping[str, Column]) -> str:
    by_lower = {other.lower(): other for other in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    if near:
        return f": did you mean {by_lower[near[0]]}?"
    return f": there are {', '.join(known)}" + (
        "" if HEADERS.name in known else " (and headers with includeHeaders=true)"
    )


class Projection:
    """Turns columns of one partition into Arrow batches with the chosen columns. Pickled into tasks."""

    def __init__(self, chosen: Sequence[Column] = COLUMNS) -> None:
        self.columns = tuple(chosen)
        self.schema = pa.schema([pa.field(column.name, column.arrow) for column in self.columns])

    def __reduce__(self) -> tuple[Any, ...]:
        return Projection, (self.columns,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(column.name for column in self.columns)}>"

    def batches(self, partition: TopicPartition, rows: Columns) -> Iterator[pa.RecordBatch]:
        """The rows as batches of at most `BATCH_ROWS` and about `BATCH_BYTES`. Payloads and positions that come in
        buffers are shared with them, not copied."""
        start, count = 0, len(rows.values)
        while start < count:
            stop, _ = engine.active.fit(rows.values, start, min(start + BATCH_ROWS, count), BATCH_BYTES, 0, NO_LIMIT)
            stop = max(stop, start + 1)
            part = _Part(partition, rows, start, stop)
            arrays = [_MAKERS[column.name](part) for column in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            start = stop


def join_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, in the same order, with batches that are small put together: a task that reads many partitions
    gets a few rows of each."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= SMALL_ROWS or size >= SMALL_BYTES:
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


# ---- one column of some rows ---------------------------------------------------------------------------------


class _Part(NamedTuple):
    partition: TopicPartition
    rows: Columns
    start: int
    stop: int

    @property
    def height(self) -> int:
        return self.stop - self.start


def _key(part: _Part) -> Array:
    if part.rows.keys is None:
        return _nulls(pa.binary(), part.height)
    return pa.array(part.rows.keys[part.start : part.stop], pa.binary())


def _value(part: _Part) -> Array:
    values = part.rows.values[part.start : part.stop]
    if not isinstance(values, PackedBytes) or values.offsets.itemsize == 4:
        return binaries(values)
    # As large_binary is laid out: what is cut out here is small, but may lie anywhere.
    first, last = int(values.offsets[0]), int(values.offsets[-1])
    offsets = pa.Array.from_buffers(pa.int64(), part.height + 1, [None, pa.py_buffer(values.offsets)])
    moved = pc.subtract(offsets, pa.scalar(first))
    data = [None, moved.cast(pa.int32()).buffers()[1], pa.py_buffer(values.data[first:last])]
    return pa.Array.from_buffers(pa.binary(), part.height, data)


def _offset(part: _Part) -> Array:
    return _integers(part.rows.positions, pa.int64(), part)


def _next_offset(part: _Part) -> Array:
    return _integers(part.rows.next_positions, pa.int64(), part)


def _index(part: _Part) -> Array:
    if part.rows.inner_indexes is None:
        return _constant(0, pa.int32(), part.height)
    return _integers(part.rows.inner_indexes, pa.int32(), part)


def _timestamp(part: _Part) -> Array:
    kind = pa.timestamp("us", tz="UTC")
    if part.rows.timestamps is None:
        return _nulls(kind, part.height)
    times = part.rows.timestamps[part.start : part.stop]
    return pa.array([None if time == NO_TIMESTAMP else time * 1000 for time in times], kind)


def _headers(part: _Part) -> Array:
    rows, corrupt = part.rows, part.rows.corrupt
    if rows.headers is None and not any(part.start <= row < part.stop for row in corrupt):
        return _nulls(HEADERS.arrow, part.height)
    each: list[list[tuple[str, bytes | None]] | None] = []
    for row in range(part.start, part.stop):
        headers = None if rows.headers is None else list(rows.headers[row])
        if row in corrupt:
            headers = [*(headers or ()), (ERROR_HEADER, corrupt[row].reason.encode())]
        each.append(headers)
    return pa.array(each, HEADERS.arrow)


_MAKERS: Mapping[str, Callable[[_Part], Array]] = {
    "key": _key,
    "value": _value,
    "topic": lambda part: _constant(part.partition.topic, pa.string(), part.height),
    "partition": lambda part: _constant(part.partition.partition, pa.int32(), part.height),
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": lambda part: _constant(
        NO_TIMESTAMP if part.rows.timestamps is None else 0, pa.int32(), part.height
    ),
    "broker": lambda part: _broker(part.partition.broker, part.height),
    "index": _index,
    "nextOffset": _next_offset,
    "headers": _headers,
}


def _broker(broker: int, count: int) -> Array:
    return _nulls(pa.int32(), count) if broker < 0 else _constant(broker, pa.int32(), count)


def _integers(numbers: Sequence[int], kind: pa.DataType, part: _Part) -> Array:
    cut = numbers[part.start : part.stop]
    if isinstance(cut, memoryview) and cut.itemsize * 8 == kind.bit_width:
        return pa.Array.from_buffers(kind, part.height, [None, pa.py_buffer(cut)])
    return pa.array(cut, kind)


def _constant(value: object, kind: pa.DataType, count: int) -> Array:
    return _repeated(value, kind, _round_up(count)).slice(0, count)


def _nulls(kind: pa.DataType, count: int) -> Array:
    return _repeated(None, kind, _round_up(count)).slice(0, count)


def _round_up(count: int) -> int:
    """So that few sizes are kept; powers of two from 1024 on."""
    return max(1024, 1 << (count - 1).bit_length())


@lru_cache(maxsize=256)
def _repeated(value: object, kind: pa.DataType, count: int) -> Array:
    """The same value so many times: the same for batch after batch of one partition, and often of all."""
    filled: Array = pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)  # type: ignore[call-overload]
    return filled
