"""Columns as Arrow. What the compiled engine decoded becomes arrays that share its buffers: nothing is copied.

Needs pyarrow (`pip install odradek[arrow]`); importing this module without it raises ConfigError. Every batch and table
that comes from odradek has these fields, in this order:

- `value`, binary; large_binary in a table with a batch of 2 GiB or more.
- `position` and `next_position`, int64: where the message's entry starts, and where to resume behind it.
- `index`, int32: inside a compressed wrapper it counts its messages, which share a position; else 0.
- `topic`, a dictionary of string; `broker` and `partition`, dictionaries of int32.
- Where an era has them: `key`, binary; `headers`, a list of (key: string, value: binary); `time`, a UTC timestamp (ms).
- With `corrupt="raw"`: `error`, string: what is wrong with a row whose value is an entry that could not be decoded.

Only `key`, `time` and `error` are ever null.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from odradek.engine import PackedBytes
from odradek.errors import ConfigError
from odradek.types import NO_TIMESTAMP, Columns, TopicPartition

try:
    import pyarrow as pa
except ImportError as error:
    raise ConfigError("Arrow needs pyarrow: pip install 'odradek[arrow]'") from error

__all__ = ["Part", "binaries", "record_batch", "schema", "table"]

Part = tuple[TopicPartition, Columns]
"""Columns and where they are from."""


def _never_null(name: str, kind: pa.DataType) -> pa.Field[Any]:
    return pa.field(name, kind, nullable=False)


_LABELS: dict[str, pa.DictionaryType[Any, Any]] = {
    "topic": pa.dictionary(pa.int32(), pa.string()),
    "broker": pa.dictionary(pa.int32(), pa.int32()),
    "partition": pa.dictionary(pa.int32(), pa.int32()),
}
_HEADER = pa.struct([_never_null("key", pa.string()), pa.field("value", pa.binary())])
_ALWAYS: list[pa.Field[Any]] = [
    _never_null("value", pa.binary()),
    _never_null("position", pa.int64()),
    _never_null("next_position", pa.int64()),
    _never_null("index", pa.int32()),
    *(_never_null(name, kind) for name, kind in _LABELS.items()),
]
_SOMETIMES: dict[str, pa.Field[Any]] = {
    "key": pa.field("key", pa.binary()),
    "headers": _never_null("headers", pa.list_(_HEADER)),
    "time": pa.field("time", pa.timestamp("ms", tz="UTC")),
    "error": pa.field("error", pa.string()),
}
_BINARY_BYTES = (1 << 31) - 1  # what the offsets of a `binary` array can count

# Making a chunk of its own costs a few dozen us; below so many rows and bytes, copying them into one with their
# neighbours is cheaper, and so is everything anybody does with the table later.
_SMALL_ROWS, _SMALL_BYTES = 64, 1 << 16


def schema(*also: str, large: bool = False) -> pa.Schema:
    """The schema of what comes out of odradek.

    Args:
        also: Which of the fields that are not always there it has: `key`, `headers`, `time`, `error`.
        large: `value` is a large_binary.

    Raises:
        ConfigError: There is no such field.
    """
    if unknown := set(also).difference(_SOMETIMES):
        raise ConfigError(f"no field {', '.join(sorted(unknown))}: what is not always there is {', '.join(_SOMETIMES)}")
    first = _never_null("value", pa.large_binary()) if large else _ALWAYS[0]
    return pa.schema([first, *_ALWAYS[1:], *(field for name, field in _SOMETIMES.items() if name in also)])


_schema = lru_cache(schema)


def record_batch(partition: TopicPartition, columns: Columns, *, errors: bool = False) -> pa.RecordBatch:
    """Columns of one partition as a record batch that shares their buffers.

    Args:
        partition: Where they are from.
        columns: Lists are copied, everything else is not.
        errors: Add the field `error`.
    """
    return _Maker([(partition, columns)], errors).batch([(partition, columns)])


def table(parts: Sequence[Part], *, errors: bool = False) -> pa.Table:
    """Columns of any partitions as one table, in this order.

    Each part is a chunk that shares its buffers, but for neighbours with a few small rows, which are copied into one.
    The chunks share their dictionaries.

    Args:
        parts: All of one era: they have the same fields.
        errors: Add the field `error`.
    """
    if not parts:
        return schema(*["error"] * errors).empty_table()
    maker = _Maker(parts, errors)
    return pa.Table.from_batches([maker.batch(run) for run in _runs(parts)], schema=maker.schema)


def _extra(columns: Columns, errors: bool) -> list[str]:
    """Names of the fields that are not always there, but here."""
    had = (("key", columns.keys), ("headers", columns.headers), ("time", columns.timestamps))
    return [*(name for name, column in had if column is not None), *["error"] * errors]


def _runs(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """What makes a chunk together: neighbours that are small, or one part."""
    small: list[Part] = []
    for part in parts:
        if len(part[1].values) < _SMALL_ROWS and part[1].payload_bytes < _SMALL_BYTES:
            small.append(part)
            continue
        if small:
            yield small
            small = []
        yield [part]
    if small:
        yield small


class _Maker:
    """Makes the batches of one table: they agree in schema and dictionaries."""

    def __init__(self, parts: Sequence[Part], errors: bool) -> None:
        self._large = any(_is_large(columns.values) for _, columns in parts)
        self.schema = _schema(*_extra(parts[0][1], errors), large=self._large)
        names = [tuple(dict.fromkeys(getattr(partition, label) for partition, _ in parts)) for label in _LABELS]
        self._dictionaries = list(map(_dictionary, _LABELS, names))
        self._numbers = [{name: number for number, name in enumerate(column)} for column in names]

    def batch(self, parts: Sequence[Part]) -> pa.RecordBatch:
        columns = Columns.concat([columns for _, columns in parts])
        inner = columns.inner_indexes
        arrays = [
            binaries(columns.values, large=self._large),
            _integers(columns.positions, pa.int64()),
            _integers(columns.next_positions, pa.int64()),
            _zeros(len(columns.values)) if inner is None else _integers(inner, pa.int32()),
            *(self._label(which, parts) for which in range(len(_LABELS))),
        ]
        arrays += (_MADE[name](columns) for name in self.schema.names[len(arrays) :])
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _label(self, which: int, parts: Sequence[Part]) -> pa.Array[Any]:
        """The column `topic`, `broker` or `partition`: the same in every row of a part."""
        label = tuple(_LABELS)[which]
        numbers = [self._numbers[which][getattr(partition, label)] for partition, _ in parts]
        rows = [len(columns.values) for _, columns in parts]
        if any(numbers):
            runs = array("i")
            for number, count in zip(numbers, rows, strict=True):
                runs += array("i", [number]) * count
            indices = _integers(memoryview(runs), pa.int32())
        else:
            indices = _zeros(sum(rows))
        # The indices were made right here: looking at each of them once more would double the cost of a table.
        return pa.DictionaryArray.from_arrays(indices, self._dictionaries[which], safe=False)


@lru_cache(maxsize=64)  # table after table has the same ones, and making three takes 10 us
def _dictionary(label: str, names: tuple[str | int, ...]) -> pa.Array[Any]:
    made: pa.Array[Any] = pa.array(names, _LABELS[label].value_type)
    return made


def _is_large(values: Sequence[bytes | None]) -> bool:
    return (
        values.offsets.itemsize == 8
        if isinstance(values, PackedBytes)
        else sum(len(value or b"") for value in values) > _BINARY_BYTES
    )


def binaries(values: Sequence[bytes | None], *, large: bool = False) -> pa.Array[Any]:
    """Byte strings as a binary, or large_binary, array. Packed ones share their memory where their offsets fit."""
    kind: pa.DataType = pa.large_binary() if large else pa.binary()
    if not isinstance(values, PackedBytes):
        return pa.array(values, kind)
    own = pa.large_binary() if values.offsets.itemsize == 8 else pa.binary()
    buffers = [None, pa.py_buffer(values.offsets), pa.py_buffer(values.data)]
    strings = pa.Array.from_buffers(own, len(values), buffers)
    return strings if own == kind else strings.cast(kind)


def _integers(numbers: Sequence[int], kind: pa.DataType) -> pa.Array[Any]:
    if isinstance(numbers, memoryview):
        return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
    return pa.array(numbers, kind)


_nothing = pa.py_buffer(b"")


def _zeros(count: int) -> pa.Array[Any]:
    """So many zeros of 4 bytes. All arrays of them share one buffer, which nobody writes to."""
    global _nothing
    if len(_nothing) < 4 * count:
        _nothing = pa.py_buffer(bytes(8 * count))
    return pa.Array.from_buffers(pa.int32(), count, [None, _nothing.slice(0, 4 * count)])


def _reasons(columns: Columns) -> pa.Array[Any]:
    wrong = columns.corrupt
    return pa.array([wrong[row].reason if row in wrong else None for row in range(len(columns.values))], pa.string())


_MADE: dict[str, Callable[[Columns], pa.Array[Any]]] = {
    "key": lambda columns: pa.array(columns.keys or (), pa.binary()),
    "headers": lambda columns: pa.array(columns.headers or (), _SOMETIMES["headers"].type),
    "time": lambda columns: pa.array(
        [None if t == NO_TIMESTAMP else t for t in columns.timestamps or ()], _SOMETIMES["time"].type
    ),
    "error": _reasons,
}
