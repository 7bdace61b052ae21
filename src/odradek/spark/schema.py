"""The columns of source and sink: from a decoder's columns to Arrow batches that Spark takes as they are, and from
Spark's batches to the rows of each destination.

Spark compares the Arrow schema of what a reader yields with its own, field by field: order, names, `binary` and not
`large_binary`, no dictionaries, everything nullable. `COLUMNS` is what both are made of. Nothing is done row by row in
Python: rows are checked, grouped and cut by Arrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from odradek import engine
from odradek._arrays import (
    Array,
    binaries,
    constant,
    error_texts,
    group_rows,
    header_lists,
    inner_indexes,
    integers,
    nulls,
    timestamp_types,
    timestamps,
)
from odradek.engine import NO_LIMIT, PackedBytes
from odradek.errors import ConfigError, OdradekError, Unsupported
from odradek.spark.values import suggestion
from odradek.types import Columns, MiB, TopicPartition

__all__ = [
    "COLUMNS",
    "ERROR",
    "HEADERS",
    "BadRow",
    "Column",
    "DestinationRows",
    "Projection",
    "RowLayout",
    "columns",
    "join_small",
    "layout",
    "project",
    "together",
]

BATCH_ROWS, BATCH_BYTES = 50_000, 4 * MiB
"""A batch has at most so many rows and, if it has more than one, bytes of payload. Between 10 000 and 50 000 rows or 1
and 5 MB all sizes are equally fast in Spark; smaller ones cost up to a quarter."""

SMALL_ROWS, SMALL_BYTES = 10_000, 1 * MiB
"""Batches with less of both are joined."""


class Column(NamedTuple):
    """A column as Spark and as Arrow call it."""

    name: str
    spark: str
    arrow: pa.DataType


MICROSECONDS = pa.timestamp("us", tz="UTC")

BROKER = Column("broker", "int", pa.int32())

COLUMNS = (
    Column("key", "binary", pa.binary()),
    Column("value", "binary", pa.binary()),
    Column("topic", "string", pa.string()),
    Column("partition", "int", pa.int32()),
    Column("offset", "bigint", pa.int64()),
    Column("timestamp", "timestamp", MICROSECONDS),
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
"""Present only with `includeHeaders`."""

ERROR = Column("error", "string", pa.string())
"""The reason why a message could not be decoded, or null. The row's value is then the raw entry of the log. Part of the
columns with `corrupt=dead`; a schema may name it in any case."""


# ---- what is read --------------------------------------------------------------------------------------------


def columns(*, headers: bool = False, positions: bool = True, errors: bool = False) -> tuple[Column, ...]:
    """Return the columns of a query that names none, in order; `positions`: with those of 0.7, which Spark's own Kafka
    source does not have."""
    chosen = COLUMNS if positions else COLUMNS[: COLUMNS.index(BROKER)]
    return (*chosen, *((HEADERS,) if headers else ()), *((ERROR,) if errors else ()))


def project(fields: Iterable[tuple[str, str, bool]], *, headers: bool = False) -> Projection:
    """Return the columns that a user's schema asks for, in its order. Raises ConfigError.

    Args:
        fields: Of the schema: name, Spark's simple type (`bigint`), nullable.
        headers: True if there is a headers column.
    """
    known = {column.name: column for column in columns(headers=headers, errors=True)}
    chosen: dict[str, Column] = {}
    for name, spark, nullable in fields:
        if name not in known:
            more = "" if headers else " (and headers with includeHeaders=true)"
            near = suggestion(name, known) or f": there are {', '.join(known)}{more}"
            raise ConfigError(f"there is no column {name!r}{near}")
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
    """Yield the batches that have rows, as many at a time as have at least `size` bytes, or so many rows."""
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
    # Offsets of 8 bytes: these rows are small, but may lie beyond the reach of 4 bytes. So count from the first.
    first, last = int(strings.offsets[0]), int(strings.offsets[-1])
    offsets: Any = pc.subtract(integers(strings.offsets, pa.int64()), pa.scalar(first)).cast(pa.int32())
    rebased = memoryview(offsets.buffers()[1]).cast("i")[: count + 1]
    return binaries(PackedBytes(rebased, strings.data[first:last], strings.validity))


def _microseconds(times: Sequence[int] | None, count: int) -> Array:
    """Return what Spark has; null beyond the year 294,246, which only a broken clock writes."""
    if times is None:
        return nulls(MICROSECONDS, count)
    milliseconds = timestamps(times, count).cast(pa.int64())
    most = ((1 << 63) - 1) // 1000
    fits = pc.and_(pc.less_equal(milliseconds, pa.scalar(most)), pc.greater_equal(milliseconds, pa.scalar(-most)))
    microseconds: Array = pc.multiply(pc.if_else(fits, milliseconds, pa.scalar(None, pa.int64())), pa.scalar(1000))
    return microseconds.cast(MICROSECONDS)


def _headers(rows: Columns, count: int) -> Array:
    """Return headers, null where a row has none, as in Spark's own Kafka source."""
    if rows.headers is None:
        return nulls(HEADERS.arrow, count)
    lists: Any = header_lists(rows.headers, count).cast(HEADERS.arrow)
    has_any = pc.greater(pc.list_value_length(lists), pa.scalar(0))
    present: Array = pc.if_else(has_any, lists, pa.scalar(None, HEADERS.arrow))
    return present


@lru_cache(maxsize=256)
def _repeated(topic: str, power: int) -> Array:
    """Return 2**power times the same; batch after batch of a partition shares it, and often those of all partitions."""
    filled: Array = pa.repeat(pa.scalar(topic, pa.string()), 1 << power)
    return filled


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


# ---- what is written -----------------------------------------------------------------------------------------


_WRITTEN = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "key": ("binary", "string"),
    "partition": ("int",),
    "headers": (HEADERS.spark,),
    "broker": ("int",),
}
"""The columns that are written, and what each may be: those of Spark's own Kafka sink, and the broker's id for 0.7."""

_LIKE = {"varchar": "string", "char": "string", "tinyint": "int", "smallint": "int", "bigint": "int"}
"""Spark's types that are written like another one."""


class BadRow(OdradekError):
    """A row that cannot be written as it is; `row` counts those of the task, from 0."""

    hint = "no row of its batch, and nothing after it, was sent by this attempt of the task"

    def __init__(self, row: int, why: str) -> None:
        super().__init__(row, why)
        self.row, self.why = row, why

    def message(self) -> str:
        return f"row {self.row} of the task: {self.why}"


class DestinationRows(NamedTuple):
    """Rows that go to one place, in their order: columns value, and key and headers if there are any."""

    topic: str
    partition: TopicPartition | None  # that all of them name
    rows: pa.Table

    @property
    def bytes(self) -> int:
        """Size of the values (bytes)."""
        size: int | None = pc.sum(pc.binary_length(self.rows["value"])).as_py()
        return size or 0


class RowLayout(NamedTuple):
    """The columns of the rows; small, because it is pickled into every task."""

    topic: str  # of all rows; "": the column topic has it
    more: tuple[str, ...] = ()  # those of the columns key and headers that there are
    partition: tuple[str, ...] = ()  # the columns that name one: partition, in 0.7 also broker and partition; or none
    nullable: bool = False  # may a value be null?

    def groups(self, batches: Sequence[pa.RecordBatch], first_row: int) -> list[DestinationRows]:
        """Return the rows of batches of one schema by topic and partition, each group in their order.

        Raises BadRow for a null, or a number that cannot be one; the first row counts as `first_row`.
        """
        table = pa.Table.from_batches(batches)
        self._check(table, first_row)
        rows = _plain(table.select(["value", *self.more]))
        names = [*(() if self.topic else ("topic",)), *self.partition]
        if not names:
            return [self._group((), rows)]
        groups = group_rows(_plain(table.select(names)))
        if len(groups) == 1:
            return [self._group(groups[0][0], rows)]
        rows = rows.combine_chunks()
        return [self._group(key, rows.take(own)) for key, own in groups]

    def _group(self, key: tuple[Any, ...], rows: pa.Table) -> DestinationRows:
        topic, numbers = (self.topic, key) if self.topic else (key[0], key[1:])
        named = bool(numbers) and numbers[0] is not None
        return DestinationRows(topic, TopicPartition(topic, *reversed(numbers)) if named else None, rows)

    def _check(self, table: pa.Table, first_row: int) -> None:
        for name, may_be_null in (("value", self.nullable), ("topic", bool(self.topic))):
            if not may_be_null and table[name].null_count:
                raise BadRow(first_row + _first(pc.is_null(table[name])), f"{name} is null")
        numbers: dict[str, Any] = {name: table[name] for name in self.partition}
        if len(numbers) > 1 and (row := _first(pc.not_equal(*map(pc.is_null, numbers.values())))) >= 0:
            raise BadRow(first_row + row, f"{' and '.join(numbers)} must both be null, or neither")
        for name, values in numbers.items():
            wrong = pc.or_(pc.less(values, pa.scalar(0)), pc.greater(values, pa.scalar(MOST)))
            if (row := _first(wrong)) >= 0:
                raise BadRow(first_row + row, f"invalid {name}: {values[row].as_py()}")


def _first(flags: Any) -> int:
    """Where the first true one is; -1: nowhere."""
    present: int = pc.index(flags, True).as_py()
    return present


MOST = (1 << 31) - 1
"""The largest number of a broker or a partition."""


def _plain(table: pa.Table) -> pa.Table:
    """Return the columns without dictionaries."""
    kinds = [(one.name, one.type.value_type if pa.types.is_dictionary(one.type) else one.type) for one in table.schema]
    return table.cast(pa.schema(kinds))


def layout(fields: Iterable[tuple[str, str]], topic: str, *, by_broker: bool) -> RowLayout:
    """Check the columns of a query. As in Spark's own sink, those it does not know are not written. Raises ConfigError,
    Unsupported.

    Args:
        fields: Name and Spark's simple type (`bigint`) of each.
        topic: Of all rows, if it is not in a column; it goes before the column.
        by_broker: Partitions are numbered on each broker, which stores values alone: 0.7.
    """
    present: set[str] = set()
    for name, kind in fields:
        if name not in _WRITTEN or (name == "broker" and not by_broker):
            continue
        if name in present:
            raise ConfigError(f"column {name} is named twice")
        plain = kind.split(" ")[0].split("(")[0]
        if _LIKE.get(plain, plain) not in _WRITTEN[name]:
            raise ConfigError(f"column {name} is {kind}: cast it to {' or '.join(_WRITTEN[name])} in the query")
        present.add(name)
    if "value" not in present:
        raise ConfigError("the query must have a column named `value`")
    if not topic and "topic" not in present:
        raise ConfigError("no target topic: set option `topic` or add a column `topic`")
    if by_broker and "headers" in present:
        raise Unsupported("column headers", "Kafka 0.11; 0.7 does not store it, so leave it out of the query")
    if "broker" in present and "partition" not in present:
        raise ConfigError("column broker needs column partition: 0.7 numbers partitions per broker")
    more, names = (
        tuple(name for name in of if name in present) for of in (("key", "headers"), ("broker", "partition"))
    )
    return RowLayout(topic, more, names, nullable=not by_broker)
