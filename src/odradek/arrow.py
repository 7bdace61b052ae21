"""Records as Arrow tables. What the compiled engine decoded becomes arrays that share its buffers: nothing is copied.

Needs pyarrow (`pip install odradek[arrow]`); importing this module without it raises ConfigError. Every batch and table
that odradek makes has these fields, in this order: those of Spark's own Kafka source first, then three that say where
a 0.7 message lies.

- `key` and `value`, binary; large_binary in a table with a batch of 2 GiB or more. `key` is null where a record has
  none, as always in 0.7; `value` is null in a tombstone (0.8 and later).
- `topic`, a dictionary of string; `partition`, a dictionary of int32.
- `offset`, int64: the record's position; in 0.7 the byte where the message's entry starts.
- `timestamp`, timestamp[ms, UTC]; null where a record has none (0.10 and later).
- `timestampType`, int32: 0 if the producer set the timestamp, 1 if the broker did, -1 if the message format has none.
- `broker`, a dictionary of int32: 0.7 numbers partitions on each broker; null for later Kafka.
- `index`, int32: counts the messages of a compressed 0.7 wrapper, which share an offset; 0 for all others.
- `nextOffset`, int64: where to resume after the record.
- `headers`, a list of (`key`: string, `value`: nullable binary); empty where a record has none (0.11 and later).
- `error`, string, with `corrupt="raw"` only: what is wrong with a row whose value is an entry that cannot be decoded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from odradek.engine.columns import bytes_of
from odradek.errors import ConfigError
from odradek.types import Columns, TopicPartition

try:
    import pyarrow as pa
except ImportError as error:
    raise ConfigError("Arrow needs pyarrow: pip install 'odradek[arrow]'") from error

from odradek._arrays import (
    HEADERS,
    TIMESTAMP,
    Array,
    binaries,
    constant,
    error_texts,
    header_lists,
    inner_indexes,
    integers,
    nulls,
    timestamp_types,
    timestamps,
)

__all__ = ["Part", "record_batch", "schema", "table"]

Part = tuple[TopicPartition, Columns]
"""Columns and the partition they come from."""


def _not_null(name: str, kind: pa.DataType) -> pa.Field[Any]:
    return pa.field(name, kind, nullable=False)


_BINARY, _LARGE_BINARY, _INT32, _INT64 = pa.binary(), pa.large_binary(), pa.int32(), pa.int64()

_LABEL_TYPES: list[pa.DictionaryType[Any, Any]] = [
    pa.dictionary(_INT32, pa.string()),
    *[pa.dictionary(_INT32, _INT32)] * 2,
]
"""Types of the fields with one value for all rows of a part: those of its TopicPartition."""

_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    _not_null("topic", pa.dictionary(pa.int32(), pa.string())),
    _not_null("partition", pa.dictionary(pa.int32(), pa.int32())),
    _not_null("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP),
    _not_null("timestampType", pa.int32()),
    pa.field("broker", pa.dictionary(pa.int32(), pa.int32())),
    _not_null("index", pa.int32()),
    _not_null("nextOffset", pa.int64()),
    _not_null("headers", HEADERS),
]
_ERROR: pa.Field[Any] = pa.field("error", pa.string())
_BINARY_BYTES = (1 << 31) - 1  # what the offsets of a `binary` array can count

# A chunk of its own costs a few dozen us. For fewer rows and bytes than these, copying them into one chunk with their
# neighbours is cheaper, and so is all later work on the table. A chunk of copies holds up to 64 MiB.
_SMALL_ROWS, _SMALL_BYTES, _COPIED_BYTES = 1024, 1 << 17, 1 << 26


def schema(*, errors: bool = False, large: bool = False) -> pa.Schema:
    """Return the schema of odradek's tables.

    Args:
        errors: With the field `error`.
        large: `key` and `value` are large_binary.
    """
    fields = [*_FIELDS, _ERROR] if errors else _FIELDS
    if large:
        fields = [pa.field(field.name, pa.large_binary()) for field in fields[:2]] + fields[2:]
    return pa.schema(fields)


_schema = lru_cache(schema)


def record_batch(partition: TopicPartition, columns: Columns, *, errors: bool = False) -> pa.RecordBatch:
    """Return the columns of one partition as a record batch that shares their buffers.

    Args:
        partition: Where they come from.
        columns: Lists are copied, everything else is shared.
        errors: Add the field `error`.
    """
    return _BatchMaker([(partition, columns)], errors).batch([(partition, columns)])


def table(parts: Sequence[Part], *, errors: bool = False) -> pa.Table:
    """Return the columns of any partitions as one table, in this order.

    Each part is a chunk that shares its buffers, except that neighbours with few and small rows are copied into one
    chunk. The chunks share their dictionaries.

    Args:
        parts: Columns and the partition they come from.
        errors: Add the field `error`.
    """
    if not parts:
        return schema(errors=errors).empty_table()
    maker = _BatchMaker(parts, errors)
    return pa.Table.from_batches([maker.batch(run) for run in _runs(parts)], schema=maker.schema)


def _runs(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Divide the parts into chunks: adjacent small parts together, each other part alone."""
    small: list[Part] = []
    copied = 0
    for part in parts:
        size = part[1].payload_bytes
        is_small = size < _SMALL_BYTES and len(part[1]) < _SMALL_ROWS
        if small and not (is_small and copied + size <= _COPIED_BYTES):
            yield small
            small, copied = [], 0
        if is_small:
            small.append(part)
            copied += size
        else:
            yield [part]
    if small:
        yield small


class _BatchMaker:
    """Makes the batches of one table, which agree in schema and dictionaries."""

    def __init__(self, parts: Sequence[Part], errors: bool) -> None:
        self._errors = errors
        self._large = any(_is_large(columns) for _, columns in parts)
        self.schema = _schema(errors=errors, large=self._large)
        partitions = tuple(dict.fromkeys([partition for partition, _ in parts]))
        self._dictionaries, self._numbers, self._has_nulls = _dictionaries(partitions)

    def batch(self, parts: Sequence[Part]) -> pa.RecordBatch:
        """Return the rows of all parts as one record batch."""
        sizes = [len(columns) for _, columns in parts]
        topic, partition, broker = (self._label(which, parts, sizes) for which in range(len(_LABEL_TYPES)))
        columns = Columns.concat([columns for _, columns in parts])
        rows = len(columns)
        arrays = [
            self._strings(columns.keys, rows),
            self._strings(columns.values, rows),
            topic,
            partition,
            integers(columns.positions, _INT64),
            timestamps(columns.timestamps, rows),
            timestamp_types(columns.timestamp_types, rows),
            broker,
            inner_indexes(columns.inner_indexes, rows),
            integers(columns.next_positions, _INT64),
            header_lists(columns.headers, rows),
        ]
        if self._errors:
            arrays.append(error_texts(columns, rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _strings(self, strings: Sequence[bytes | None] | None, rows: int) -> Array:
        kind = _LARGE_BINARY if self._large else _BINARY
        return nulls(kind, rows) if strings is None else binaries(strings, kind)

    def _label(self, which: int, parts: Sequence[Part], sizes: Sequence[int]) -> Array:
        """Return the column of topics, partitions or brokers."""
        known = self._numbers[which]
        if len(parts) == 1 or len(known) + self._has_nulls[which] == 1:
            return self._only_label(which, known.get(parts[0][0][which]), sum(sizes))
        numbers = [known.get(partition[which]) for partition, _ in parts]
        indices = _repeated(numbers, sizes)
        # Safe by construction; checking each index again would double the cost of a table.
        return pa.DictionaryArray.from_arrays(indices, self._dictionaries[which], safe=False)

    def _only_label(self, which: int, number: int | None, rows: int) -> Array:
        """Return a column of topics, partitions or brokers that has one value, or null, in all rows."""
        indices = nulls(_INT32, rows) if number is None else constant(number, rows)
        made: Array = pa.DictionaryArray.from_buffers(
            _LABEL_TYPES[which], rows, indices.buffers(), self._dictionaries[which]
        )
        return made


def _repeated(numbers: Sequence[int | None], rows: Sequence[int]) -> Array:
    """Return an int32 array with each number in as many rows as stands beside it."""
    distinct = set(numbers)
    if distinct == {0}:
        return constant(0, sum(rows))
    if distinct == {None}:
        return nulls(pa.int32(), sum(rows))
    if None in distinct:
        return pa.array(list(chain.from_iterable(map(repeat, numbers, rows))), pa.int32())
    runs = array("i")
    for number, count in zip(numbers, rows, strict=True):
        runs += array("i", [number or 0]) * count
    return integers(memoryview(runs), pa.int32())


@lru_cache(maxsize=16)  # table after table has the same ones, and making them takes 15 us
def _dictionaries(
    partitions: Sequence[TopicPartition],
) -> tuple[Sequence[Array], Sequence[Mapping[str | int, int]], Sequence[bool]]:
    """Return the dictionaries of topics, partitions and brokers, of each the index of every value, and for each whether
    there are nulls beside them."""
    labels: list[dict[Any, None]] = [dict.fromkeys(values) for values in zip(*partitions, strict=True)]
    has_nulls = [False, False, -1 in labels[2]]
    labels[2].pop(-1, None)  # no broker: null
    dictionaries = [pa.array(list(values), kind.value_type) for values, kind in zip(labels, _LABEL_TYPES, strict=True)]
    return dictionaries, [{value: index for index, value in enumerate(values)} for values in labels], has_nulls


def _is_large(columns: Columns) -> bool:
    if columns.is_wide or columns.payload_bytes <= _BINARY_BYTES:
        return columns.is_wide
    return any(bytes_of(strings) > _BINARY_BYTES for strings in (columns.values, columns.keys) if strings is not None)
