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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any

from odradek.engine import PackedBytes
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
    header_lists,
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
"""Of the fields with one value for all rows of a part: those of its TopicPartition."""

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
        is_small = size < _SMALL_BYTES and len(part[1].values) < _SMALL_ROWS
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
        self._dictionaries, self._numbers = _dictionaries(tuple(dict.fromkeys([partition for partition, _ in parts])))

    def batch(self, parts: Sequence[Part]) -> pa.RecordBatch:
        """Return the rows of all parts as one record batch."""
        columns = [columns for _, columns in parts]
        sizes = [len(each.values) for each in columns]
        topic, partition, broker = (self._label(which, parts, sizes) for which in range(len(_LABEL_TYPES)))
        only, rows = (columns[0] if len(columns) == 1 else None), sizes[0]

        def joined(name: str, make: Callable[[Any, int], Array]) -> Array:
            if only is not None:  # as for every record batch: a third of what it costs
                return make(getattr(only, name), rows)
            return _joined([getattr(each, name) for each in columns], sizes, make)

        arrays = [
            joined("keys", self._strings),
            joined("values", self._strings),
            topic,
            partition,
            joined("positions", _int64s),
            joined("timestamps", timestamps),
            joined("timestamp_types", timestamp_types),
            broker,
            joined("inner_indexes", _inner_indexes),
            joined("next_positions", _int64s),
            joined("headers", header_lists),
        ]
        if self._errors:
            arrays.append(_joined(columns, sizes, _errors))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _strings(self, strings: Sequence[bytes | None] | None, rows: int) -> Array:
        kind = _LARGE_BINARY if self._large else _BINARY
        return nulls(kind, rows) if strings is None else binaries(strings, kind)

    def _label(self, which: int, parts: Sequence[Part], sizes: Sequence[int]) -> Array:
        """Return the column of topics, partitions or brokers."""
        numbers = [self._numbers[which].get(partition[which]) for partition, _ in parts]
        if len(numbers) == 1:
            return self._only_label(which, numbers[0], sizes[0])
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


def _joined(columns: Sequence[Any], sizes: Sequence[int], make: Callable[[Any, int], Array]) -> Array:
    """Return one column of several parts as one array: shared if there is one part, else copied.

    Args:
        columns: That of each part, or None.
        sizes: The rows of each part.
        make: Makes an array of a column, or None, and its number of rows.
    """
    if all(column is None for column in columns):
        return make(None, sum(sizes))
    if all(isinstance(column, memoryview) for column in columns):  # cheaper than an array of each
        return make(memoryview(b"".join(columns)).cast(columns[0].format), sum(sizes))
    arrays = list(map(make, columns, sizes))
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _int64s(numbers: Sequence[int], rows: int) -> Array:
    return integers(numbers, _INT64)


def _inner_indexes(numbers: Sequence[int] | None, rows: int) -> Array:
    return constant(0, rows) if numbers is None else integers(numbers, _INT32)


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
def _dictionaries(partitions: Sequence[TopicPartition]) -> tuple[Sequence[Array], Sequence[Mapping[str | int, int]]]:
    """Return the dictionaries of topics, partitions and brokers, and of each the index of every value."""
    labels: list[dict[Any, None]] = [dict.fromkeys(values) for values in zip(*partitions, strict=True)]
    labels[2].pop(-1, None)  # no broker: null
    dictionaries = [pa.array(list(values), kind.value_type) for values, kind in zip(labels, _LABEL_TYPES, strict=True)]
    return dictionaries, [{value: index for index, value in enumerate(values)} for values in labels]


def _is_large(columns: Columns) -> bool:
    return any(_exceeds_binary(strings) for strings in (columns.values, columns.keys) if strings is not None)


def _exceeds_binary(strings: Sequence[bytes | None]) -> bool:
    if isinstance(strings, PackedBytes):
        return strings.offsets.itemsize == 8
    return sum(map(len, filter(None, strings))) > _BINARY_BYTES


def _errors(columns: Columns, rows: int) -> Array:
    wrong = columns.corrupt
    if not wrong:
        return nulls(pa.string(), rows)
    return pa.array([wrong[row].reason if row in wrong else None for row in range(rows)], pa.string())
