"""The columns of source and sink as Spark names their types: the columns that a query asks for, and Spark's batches as
rows of each destination. Nothing is done row by row in Python: rows are checked and grouped by Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from odradek._arrays import group_rows
from odradek.errors import ConfigError, OdradekError, Unsupported
from odradek.ranges.projection import COLUMNS, ERROR, HEADERS, Column, Projection, columns
from odradek.spark.values import suggestion
from odradek.types import TopicPartition

__all__ = ["SPARK_TYPES", "BadRow", "DestinationRows", "RowLayout", "layout", "project"]

# ---- what is read --------------------------------------------------------------------------------------------

_HEADERS = "array<struct<key:string,value:binary>>"

_TYPES = {pa.binary(): "binary", pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint"}
SPARK_TYPES = {
    **{column.name: _TYPES.get(column.arrow, "timestamp") for column in (*COLUMNS, ERROR)},
    HEADERS.name: _HEADERS,
}
"""Columns -> Spark's simple types."""


def project(fields: Iterable[tuple[str, str, bool]], *, headers: bool = False) -> Projection:
    """Return the columns that a user's schema asks for, in its order. Raises ConfigError.

    Args:
        fields: The fields of the schema: name, Spark's simple type (`bigint`), nullable.
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
        if (spark, nullable) != (SPARK_TYPES[name], True):
            asked = spark if nullable else f"{spark} NOT NULL"
            raise ConfigError(
                f"column {name} is {SPARK_TYPES[name]} and may be null, not {asked}: cast it in the query"
            )
        chosen[name] = known[name]
    if not chosen:
        raise ConfigError("the schema has no columns: omit it, or name at least one column")
    return Projection(tuple(chosen.values()))


# ---- what is written -----------------------------------------------------------------------------------------


_WRITTEN = {
    "value": ("binary", "string"),
    "topic": ("string",),
    "key": ("binary", "string"),
    "partition": ("int",),
    "headers": (_HEADERS,),
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
        import pyarrow.compute as pc

        size: int | None = pc.sum(pc.binary_length(self.rows["value"])).as_py()
        return size or 0

    @property
    def has_headers(self) -> bool:
        """True if a row has a header."""
        import pyarrow.compute as pc

        return "headers" in self.rows.column_names and bool(len(pc.list_flatten(self.rows["headers"])))


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
        import pyarrow.compute as pc

        for name, may_be_null in (("value", self.nullable), ("topic", bool(self.topic))):
            if not may_be_null and table[name].null_count:
                raise BadRow(first_row + _first(pc.is_null(table[name])), f"{name} is null")
        if "headers" in self.more:
            headers = table["headers"].combine_chunks()
            if (header := _first(pc.is_null(pc.struct_field(pc.list_flatten(headers), "key")))) >= 0:
                row = pc.list_parent_indices(headers)[header].as_py()
                raise BadRow(first_row + row, "the name of a header is null: only its value may be")
        numbers: dict[str, Any] = {name: table[name] for name in self.partition}
        if len(numbers) > 1 and (row := _first(pc.not_equal(*map(pc.is_null, numbers.values())))) >= 0:
            raise BadRow(first_row + row, f"{' and '.join(numbers)} must both be null, or neither")
        for name, values in numbers.items():
            wrong = pc.or_(pc.less(values, pa.scalar(0)), pc.greater(values, pa.scalar(MAX_PARTITION)))
            if (row := _first(wrong)) >= 0:
                raise BadRow(first_row + row, f"invalid {name}: {values[row].as_py()}")


def _first(flags: Any) -> int:
    """Where the first true one is; -1: nowhere."""
    import pyarrow.compute as pc

    present: int = pc.index(flags, True).as_py()
    return present


MAX_PARTITION = (1 << 31) - 1
"""The largest number of a broker or a partition."""


def _plain(table: pa.Table) -> pa.Table:
    """Return the columns without dictionaries."""
    kinds = [(one.name, one.type.value_type if pa.types.is_dictionary(one.type) else one.type) for one in table.schema]
    return table.cast(pa.schema(kinds))


def layout(fields: Iterable[tuple[str, str]], topic: str, *, by_broker: bool, values_only: bool) -> RowLayout:
    """Check the columns of a query. As in Spark's own sink, those it does not know are not written. Raises ConfigError,
    Unsupported.

    Args:
        fields: Name and Spark's simple type (`bigint`) of each.
        topic: The topic of all rows, if it is not in a column; it goes before the column.
        by_broker: Partitions are numbered on each broker (see `LogAccess.names_brokers`).
        values_only: Neither headers nor null values are stored (see `LogAccess.values_only`).
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
    if values_only and "headers" in present:
        raise Unsupported("column headers", "Kafka 0.11; 0.7 does not store it, so leave it out of the query")
    if "broker" in present and "partition" not in present:
        raise ConfigError("column broker needs column partition: 0.7 numbers partitions per broker")
    more, names = (
        tuple(name for name in of if name in present) for of in (("key", "headers"), ("broker", "partition"))
    )
    return RowLayout(topic, more, names, nullable=not values_only)
