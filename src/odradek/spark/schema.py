"""The columns of the data source, and the way from a decoder's columns to Arrow batches that Spark takes as they are.

Spark compares the Arrow schema of what a reader yields with its own, field by field: order, names, `binary` and not
`large_binary`, no dictionaries, everything nullable. `COLUMNS` is what both are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from odradek import engine
from odradek._arrays import Array, binaries, constant, header_lists, integers, nulls, timestamp_types, timestamps
from odradek.engine import NO_LIMIT, PackedBytes
from odradek.errors import ConfigError
from odradek.types import Columns, MiB, TopicPartition

__all__ = [
    "COLUMNS",
    "ERROR",
    "ERROR_HEADER",
    "HEADERS",
    "RANGE_ROWS",
    "Column",
    "Projection",
    "columns",
    "ddl",
    "join_small",
    "project",
]

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


BROKER = Column("broker", "int", pa.int32())

COLUMNS = (
    Column("key", "binary", pa.binary()),
    Column("value", "binary", pa.binary()),
    Column("topic", "string", pa.string()),
    Column("partition", "int", pa.int32()),
    Column("offset", "bigint", pa.int64()),
    Column("timestamp", "timestamp", pa.timestamp("us", tz="UTC")),
    Column("timestampType", "int", pa.int32()),
    BROKER,
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


ERROR = Column("error", "string", pa.string())
"""The reason why a row could not be decoded, or null. Only in a schema that names it."""

RANGE_ROWS = Column("rangeRows", "bigint", pa.int64())
"""Null in the row of a record. A schema that names it gets one row more for each range that a task has read to its end:
its offset and nextOffset are the range, `rangeRows` the number of rows it gave. So a sink can prove what was read, even
of ranges in which no offset has a record."""


def columns(*, headers: bool = False, positions: bool = True) -> tuple[Column, ...]:
    """Return the columns of a query that names none, in order.

    Args:
        headers: With a headers column.
        positions: With those columns that Spark's own Kafka source does not have.
    """
    without_headers = COLUMNS if positions else COLUMNS[: COLUMNS.index(BROKER)]
    return (*without_headers, HEADERS) if headers else without_headers


def ddl(chosen: Iterable[Column]) -> str:
    """Return columns as Spark's DDL writes them."""
    return ", ".join(f"{column.name} {column.spark}" for column in chosen)


def project(fields: Iterable[tuple[str, str, bool]], *, headers: bool = False) -> Projection:
    """Return the columns that a user's schema asks for, in its order.

    Args:
        fields: Of the schema: name, Spark's simple type (`bigint`), nullable.
        headers: True if there is a headers column.

    Raises:
        ConfigError: A column there is not, or that has another type or may be null.
    """
    known = {column.name: column for column in (*columns(headers=headers), ERROR, RANGE_ROWS)}
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

    @property
    def has_range_rows(self) -> bool:
        """True if every range that was read to its end has a row of its own (`RANGE_ROWS`)."""
        return RANGE_ROWS in self.columns

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(column.name for column in self.columns)}>"

    def batches(self, partition: TopicPartition, rows: Columns) -> Iterator[pa.RecordBatch]:
        """The rows as batches of at most `BATCH_ROWS` and about `BATCH_BYTES`. Payloads and positions that come in
        buffers are shared with them, not copied."""
        start, count, fit = 0, len(rows.values), engine.active.fit
        while start < count:
            stop, _ = fit(rows.values, start, min(start + BATCH_ROWS, count), BATCH_BYTES, 0, NO_LIMIT, nullable=True)
            stop = max(stop, start + 1)
            part = _Part(partition, rows.slice(start, stop))
            arrays = [_MAKERS[column.name](part) for column in self.columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            start = stop

    def end_of_range(self, partition: TopicPartition, start: int, end: int, rows: int) -> pa.RecordBatch:
        """Return the row that says that a range was read to its end (`RANGE_ROWS`)."""
        known = {
            "topic": partition.topic,
            "partition": partition.partition,
            "broker": None if partition.broker < 0 else partition.broker,
            "offset": start,
            "nextOffset": end,
            RANGE_ROWS.name: rows,
        }
        arrays = [pa.array([known.get(column.name)], column.arrow) for column in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


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

    @property
    def height(self) -> int:
        return len(self.rows.values)


def _binary(strings: Sequence[bytes | None] | None, height: int) -> Array:
    if strings is None:
        return nulls(pa.binary(), height)
    if not isinstance(strings, PackedBytes) or strings.offsets.itemsize == 4:
        return binaries(strings)
    # Offsets of 8 bytes: these rows are small, but may lie beyond the reach of 4 bytes. So count from the first.
    first, last = int(strings.offsets[0]), int(strings.offsets[-1])
    offsets: Any = pc.subtract(integers(strings.offsets, pa.int64()), pa.scalar(first)).cast(pa.int32())
    rebased = memoryview(offsets.buffers()[1]).cast("i")[: height + 1]
    return binaries(PackedBytes(rebased, strings.data[first:last], strings.validity))


def _timestamp(part: _Part) -> Array:
    """Return microseconds, which is what Spark has; null beyond the year 294,246, which only a broken clock writes."""
    kind = pa.timestamp("us", tz="UTC")
    milliseconds = timestamps(part.rows.timestamps, part.height).cast(pa.int64())
    fits = pc.and_(
        pc.less_equal(milliseconds, pa.scalar(_MAX_MILLISECONDS)),
        pc.greater_equal(milliseconds, pa.scalar(-_MAX_MILLISECONDS)),
    )
    microseconds: Array = pc.multiply(pc.if_else(fits, milliseconds, pa.scalar(None, pa.int64())), pa.scalar(1000))
    return microseconds.cast(kind)


_MAX_MILLISECONDS = ((1 << 63) - 1) // 1000


def _headers(part: _Part) -> Array:
    """Return headers, null where a row has none, as in Spark's own Kafka source."""
    rows, corrupt = part.rows, part.rows.corrupt
    if corrupt:
        named = [
            ((ERROR_HEADER, corrupt[row].reason.encode()),) if row in corrupt else () for row in range(part.height)
        ]
        of_rows = repeat(()) if rows.headers is None else rows.headers
        rows = rows._replace(headers=[(*own, *error) for own, error in zip(of_rows, named, strict=False)])
    elif rows.headers is None:
        return nulls(HEADERS.arrow, part.height)
    lists: Any = header_lists(rows.headers, part.height).cast(HEADERS.arrow)
    has_any = pc.greater(pc.list_value_length(lists), pa.scalar(0))
    present: Array = pc.if_else(has_any, lists, pa.scalar(None, HEADERS.arrow))
    return present


def _errors(part: _Part) -> Array:
    corrupt = part.rows.corrupt
    if not corrupt:
        return nulls(pa.string(), part.height)
    return pa.array([corrupt[row].reason if row in corrupt else None for row in range(part.height)], pa.string())


_MAKERS: Mapping[str, Callable[[_Part], Array]] = {
    "key": lambda part: _binary(part.rows.keys, part.height),
    "value": lambda part: _binary(part.rows.values, part.height),
    "topic": lambda part: _constant(part.partition.topic, pa.string(), part.height),
    "partition": lambda part: _constant(part.partition.partition, pa.int32(), part.height),
    "offset": lambda part: integers(part.rows.positions, pa.int64()),
    "timestamp": _timestamp,
    "timestampType": lambda part: timestamp_types(part.rows.timestamp_types, part.height),
    "broker": lambda part: _broker(part.partition.broker, part.height),
    "index": lambda part: _index(part.rows.inner_indexes, part.height),
    "nextOffset": lambda part: integers(part.rows.next_positions, pa.int64()),
    "headers": _headers,
    "error": _errors,
    "rangeRows": lambda part: nulls(pa.int64(), part.height),
}


def _broker(broker: int, count: int) -> Array:
    return nulls(pa.int32(), count) if broker < 0 else _constant(broker, pa.int32(), count)


def _index(inner: Sequence[int] | None, count: int) -> Array:
    return constant(0, count) if inner is None else integers(inner, pa.int32())


def _constant(value: object, kind: pa.DataType, count: int) -> Array:
    return _repeated(value, kind, _round_up(count)).slice(0, count)


def _round_up(count: int) -> int:
    """Return a power of two from 1024 on, so that few sizes are kept."""
    return max(1024, 1 << (count - 1).bit_length())


@lru_cache(maxsize=256)
def _repeated(value: object, kind: pa.DataType, count: int) -> Array:
    """Return an array of one value; batch after batch of a partition shares it, and often those of all partitions."""
    filled: Array = pa.repeat(pa.scalar(value, kind), count)  # type: ignore[call-overload]
    return filled
