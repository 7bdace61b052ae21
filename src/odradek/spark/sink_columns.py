"""The columns of the sink, and the way from Spark's Arrow batches to what goes to one place each.

Nothing is done row by row in Python here: rows are checked, sorted by where they go and cut by Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from odradek.errors import ConfigError, OdradekError, Unsupported
from odradek.types import TopicPartition

__all__ = ["BadRow", "DestinationRows", "RowLayout", "kafka_layout", "layout"]

TEXT, BYTES, NUMBER = "string", "binary", "int"

HEADERS = "array<struct<key:string,value:binary>>"

KAFKA_KINDS = {
    "value": (BYTES, TEXT),
    "topic": (TEXT,),
    "key": (BYTES, TEXT),
    "partition": (NUMBER,),
    "headers": (HEADERS,),
}
"""The columns that are written to 0.8 and later, and what each may be: those of Spark's own Kafka sink."""

KINDS = {**{name: kinds for name, kinds in KAFKA_KINDS.items() if name != "headers"}, "broker": (NUMBER,)}
"""The same for 0.7."""

ABSENT = {"headers": "Kafka 0.11", "timestamp": "Kafka 0.10"}
"""Columns that Kafka 0.7 cannot store -> the release they need."""

NUMBERS = ("tinyint", "smallint", "int", "bigint")

MOST = (1 << 31) - 1
"""The largest number of a broker or a partition."""


class BadRow(OdradekError):
    """A row that cannot be written as it is.

    Args:
        row: Counts the rows of the task, from 0.
        why: What is wrong with it.
    """

    hint = "no row of its batch, and nothing after it, was sent by this attempt of the task"

    def __init__(self, row: int, why: str) -> None:
        super().__init__(row, why)
        self.row, self.why = row, why

    def message(self) -> str:
        return f"row {self.row} of the task: {self.why}"


class DestinationRows(NamedTuple):
    """Rows that go to one place, in their order.

    Args:
        topic: Theirs.
        partition: The partition all of them name; None: they name none.
        rows: Their columns: value, and key and headers if there are any.
    """

    topic: str
    partition: TopicPartition | None
    rows: pa.Table

    @property
    def bytes(self) -> int:
        """Size of the values (bytes)."""
        size: int | None = pc.sum(pc.binary_length(self.rows["value"])).as_py()
        return size or 0


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The columns of the rows; small, because it is pickled into every task.

    Args:
        topic: Topic of all rows; "": the column topic has it.
        more: Those of the columns key and headers that there are.
        partition: The columns that name a partition: broker and partition in 0.7, partition later; or none.
        nullable: True if a value may be null.
    """

    topic: str
    more: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    nullable: bool = False

    def groups(self, batches: Sequence[pa.RecordBatch], first_row: int) -> list[DestinationRows]:
        """The rows of some batches, by where they go.

        Args:
            batches: Of one schema, as Spark hands them over.
            first_row: What the first of their rows counts as, in errors.

        Raises:
            BadRow: A null, or a number that cannot be one.
        """
        table = pa.Table.from_batches(batches)
        rows = table.select(["value", *self.more])
        rows = rows.cast(pa.schema([pa.field(one.name, _plain(one.type)) for one in rows.schema]))
        if not self.nullable:
            _no_nulls(rows["value"], "value", first_row)
        if not self.topic:
            _no_nulls(table["topic"], "topic", first_row)
        if self.partition:
            _check_partitions(table, self.partition, first_row)
        return list(self._divide(table, rows))

    def _divide(self, table: pa.Table, rows: pa.Table) -> Iterator[DestinationRows]:
        """Yield one group for each combination of topic and partition."""
        names = [*(() if self.topic else ("topic",)), *self.partition]
        codes, group_keys = _number([_encode(table[name]) for name in names], len(rows))
        if len(group_keys) > 1:
            rows = rows.take(pc.sort_indices(codes))  # which is stable
        start = 0
        for _, count, group_key in sorted(group_keys, key=itemgetter(0)):
            yield self._group(group_key, rows.slice(start, count))
            start += count

    def _group(self, group_key: tuple[Any, ...], rows: pa.Table) -> DestinationRows:
        topic, group_key = (self.topic, group_key) if self.topic else (group_key[0], group_key[1:])
        if not group_key or group_key[0] is None:
            return DestinationRows(topic, None, rows)
        return DestinationRows(topic, TopicPartition(topic, *reversed(group_key)), rows)


def kafka_layout(fields: Iterable[tuple[str, str]], topic: str) -> RowLayout:
    """Check the columns of a query that writes to 0.8 or later. As in Spark's own sink, others are not written.

    Args:
        fields: Name and Spark's simple type (`bigint`) of each.
        topic: Of all rows, if it is not in a column; it goes before the column.

    Raises:
        ConfigError: A column is missing, or has a type that cannot be written.
    """
    present = _checked([field for field in fields if field[0] in KAFKA_KINDS], topic, KAFKA_KINDS)
    more = tuple(name for name in ("key", "headers") if name in present)
    return RowLayout(topic, more, tuple(name for name in ("partition",) if name in present), nullable=True)


def layout(fields: Iterable[tuple[str, str]], topic: str) -> RowLayout:
    """Check the columns of a query that writes to 0.7.

    Args:
        fields: Name and Spark's simple type (`bigint`) of each.
        topic: Of all rows, if it is not in a column; it goes before the column.

    Raises:
        ConfigError: A column that is not known, is missing, or has a type that cannot be written.
        Unsupported: A column that 0.7 has no place for.
    """
    present = _checked(fields, topic, KINDS)
    if ("broker" in present) != ("partition" in present):
        raise ConfigError("columns broker and partition must both be present: 0.7 numbers partitions per broker")
    more = tuple(name for name in ("key",) if name in present)
    return RowLayout(topic, more, ("broker", "partition") if "broker" in present else ())


def _checked(fields: Iterable[tuple[str, str]], topic: str, kinds: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    present: dict[str, str] = {}
    for name, kind in fields:
        if name in present:
            raise ConfigError(f"column {name} is named twice")
        _check_column(name, kind, kinds)
        present[name] = kind
    if "value" not in present:
        raise ConfigError("the query must have a column named `value`")
    if not topic and "topic" not in present:
        raise ConfigError("no target topic: set option `topic` or add a column `topic`")
    return present


def _check_column(name: str, kind: str, kinds: Mapping[str, tuple[str, ...]]) -> None:
    if name not in kinds and name in ABSENT:
        raise Unsupported(f"column {name}", f"{ABSENT[name]}; 0.7 does not store it, so leave it out of the query")
    if name not in kinds:
        raise ConfigError(f"there is no column {name!r} to write: select only what is, of {', '.join(kinds)}")
    family = TEXT if kind.split(" ")[0].split("(")[0] in ("string", "varchar", "char") else kind
    if (NUMBER if kind in NUMBERS else family) not in kinds[name]:
        raise ConfigError(f"column {name} is {kind}: cast it to {' or '.join(kinds[name])} in the query")


# ---- Arrow ---------------------------------------------------------------------------------------------------


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type without a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _no_nulls(column: pa.ChunkedArray[Any], name: str, first_row: int) -> None:
    if column.null_count:
        raise BadRow(first_row + _first(pc.is_null(column)), f"{name} is null")


def _check_partitions(table: pa.Table, names: Sequence[str], first_row: int) -> None:
    columns: dict[str, Any] = {name: table[name] for name in names}
    if len(columns) > 1 and any(column.null_count for column in columns.values()):
        half = pc.not_equal(*(pc.is_null(column) for column in columns.values()))
        if (row := _first(half)) >= 0:
            raise BadRow(first_row + row, f"{' and '.join(names)} must both be null, or neither")
    for name, values in columns.items():
        wrong = pc.or_(pc.less(values, pa.scalar(0)), pc.greater(values, pa.scalar(MOST)))
        if (row := _first(wrong)) >= 0:
            raise BadRow(first_row + row, f"invalid {name}: {values[row].as_py()}")


def _first(flags: Any) -> int:
    """Where the first true one is; -1: nowhere."""
    present: int = pc.index(flags, True).as_py()
    return present


def _encode(column: pa.ChunkedArray[Any]) -> Any:
    """A number for each row that says which of a few values it has; a null is one of them."""
    flat: Any = column.cast(_plain(column.type)).combine_chunks()
    return pc.dictionary_encode(flat, null_encoding="encode")


def _number(columns: Sequence[Any], rows: int) -> tuple[Any, list[tuple[int, int, tuple[Any, ...]]]]:
    """The same for several columns at once: a number for each row; and each number, how many rows have it, and the
    values it stands for."""
    codes: Any = pa.repeat(pa.scalar(0, pa.int64()), rows)
    for column in columns:
        codes = pc.add(pc.multiply(codes, len(column.dictionary)), column.indices.cast(pa.int64()))
    return codes, [
        (code, count, tuple(_values(columns, code)))
        for code, count in ((one["values"], one["counts"]) for one in pc.value_counts(codes).to_pylist())
    ]


def _values(columns: Sequence[Any], code: int) -> list[Any]:
    values = []
    for column in reversed(columns):
        code, index = divmod(code, len(column.dictionary))
        values.append(column.dictionary[index].as_py())
    return values[::-1]
