"""One column of records as an Arrow array. Packed columns and memoryviews share their buffers; lists are copied.

Needs pyarrow; `odradek.arrow` is where its absence is reported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias

import pyarrow as pa

from odradek.engine import HeaderColumns, Headers, PackedBytes
from odradek.types import NO_TIMESTAMP, Columns

__all__ = [
    "HEADERS",
    "TIMESTAMP",
    "Array",
    "binaries",
    "constant",
    "error_texts",
    "group_rows",
    "header_lists",
    "inner_indexes",
    "int64",
    "integers",
    "null",
    "nulls",
    "repeated",
    "row_numbers",
    "timestamp_types",
    "timestamps",
]

Array: TypeAlias = "pa.Array[Any]"

_INT32 = pa.int32()
_HIGHEST_BYTE = 7 if sys.byteorder == "little" else 0
"""Index of the highest byte of an int64: it is 0xFF in `NO_TIMESTAMP`, and 0 in the timestamp of any recent record."""

_HEADER_FIELDS: list[pa.Field[Any]] = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]

HEADERS = pa.list_(pa.struct(_HEADER_FIELDS))
"""The type of a column of headers."""

_NO_PAIRS: Array = pa.nulls(0, HEADERS.value_type)


TIMESTAMP = pa.timestamp("ms", tz="UTC")
"""The type of a column of timestamps."""


# ---- without pandas: `pa.array` and `pa.scalar` import it if it is there, which takes longer than importing odradek


def null(kind: Any) -> Any:
    """Return the null of a type."""
    return pa.nulls(1, kind)[0]


@lru_cache(maxsize=64)
def int64(value: int) -> Any:
    """Return an integer as Arrow's scalar."""
    buffers = [None, pa.py_buffer(value.to_bytes(8, sys.byteorder, signed=True))]
    return pa.Array.from_buffers(pa.int64(), 1, buffers)[0]


def repeated(text: str, rows: int) -> Array:
    """Return an array of strings with the same in each row."""
    data = text.encode()
    offsets = b"".join(offset.to_bytes(4, sys.byteorder) for offset in (0, len(data)))
    one: Any = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    strings: Array = pa.repeat(one[0], rows)
    return strings


def binaries(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> Array:
    """Return nullable byte strings as an array of `kind`: binary (the default), string, or the large variant of either.

    Packed ones are shared if their offsets are as wide as those of `kind`.
    """
    kind = pa.binary() if kind is None else kind
    if not isinstance(values, PackedBytes):
        return pa.array(values, kind)
    own = pa.large_binary() if values.offsets.itemsize == 8 else pa.binary()
    buffers = [_validity(values.validity), pa.py_buffer(values.offsets), pa.py_buffer(values.data)]
    strings = pa.Array.from_buffers(own, len(values), buffers)
    return strings if own == kind else strings.cast(kind)


def _validity(validity: memoryview | None) -> pa.Buffer | None:
    """Return a byte per row as Arrow's bit per row."""
    if validity is None:
        return None
    flags = pa.Array.from_buffers(pa.uint8(), len(validity), [None, pa.py_buffer(validity)])
    return flags.cast(pa.bool_()).buffers()[1]


def integers(numbers: Sequence[int], kind: pa.DataType) -> Array:
    """Return integers as an array of `kind`; a memoryview has items of its width."""
    if isinstance(numbers, memoryview):
        return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
    return pa.array(numbers, kind)


def timestamps(times: Sequence[int] | None, rows: int) -> Array:
    """Return milliseconds since the epoch as `timestamp[ms, UTC]`, null for `NO_TIMESTAMP`."""
    if times is None:
        return nulls(TIMESTAMP, rows)
    if isinstance(times, memoryview) and 0xFF not in times.tobytes()[_HIGHEST_BYTE::8]:  # faster than comparing
        return integers(times, TIMESTAMP)
    import pyarrow.compute as pc

    milliseconds = integers(times, pa.int64())
    known = pc.not_equal(milliseconds, int64(NO_TIMESTAMP))
    known_times: Array = pc.if_else(known, milliseconds, null(pa.int64()))
    return known_times.cast(TIMESTAMP)


def timestamp_types(types: Sequence[int] | None, rows: int) -> Array:
    """Return the types of timestamps as int32: 0, 1, or -1 for a message format without timestamps."""
    if types is None:
        return constant(NO_TIMESTAMP, rows)
    if isinstance(types, memoryview) and (kinds := types.tobytes()).count(kinds[:1]) == rows:
        return constant(types[0], rows)
    return integers(types, pa.int8()).cast(pa.int32())


def header_lists(columns: Sequence[Headers] | None, rows: int) -> Array:
    """Return the headers of each row as `HEADERS`; all lists are empty if there is no such column."""
    if columns is None:
        return _no_headers(rows)
    if not isinstance(columns, HeaderColumns):
        return pa.array(columns, HEADERS)
    arrays = [binaries(columns.names, pa.string()), binaries(columns.values)]
    pairs = pa.StructArray.from_arrays(arrays, fields=_HEADER_FIELDS)
    return pa.Array.from_buffers(HEADERS, rows, [None, pa.py_buffer(columns.offsets)], children=[pairs])


def inner_indexes(numbers: Sequence[int] | None, rows: int) -> Array:
    """Return the places of messages in their wrappers as int32; 0 without such a column."""
    return constant(0, rows) if numbers is None else integers(numbers, _INT32)


def error_texts(columns: Columns, rows: int) -> Array:
    """Return why each row could not be decoded; null for those that could."""
    wrong = columns.corrupt
    if not wrong:
        return nulls(pa.string(), rows)
    return pa.array([wrong[row].reason if row in wrong else None for row in range(rows)], pa.string())


# ---- constants: all with one value share a buffer, which is never written to ------------------------------------
# A batch has several arrays that are the same, and the next batch often has as many rows.


@lru_cache(maxsize=64)
def _no_headers(rows: int) -> Array:
    return pa.Array.from_buffers(HEADERS, rows, [None, _filled(0, 4 * (rows + 1))], children=[_NO_PAIRS])


@lru_cache(maxsize=64)
def constant(value: int, rows: int) -> Array:
    """Return an int32 array with the same value in each row."""
    return pa.Array.from_buffers(_INT32, rows, [None, _filled(value, 4 * rows)])


def nulls(kind: pa.DataType, rows: int) -> Array:
    """Return an array of nulls: of strings, of lists, or of a type of up to 8 bytes."""
    buffer = _filled(0, 8 * (rows + 1))
    if isinstance(kind, pa.ListType):
        return pa.Array.from_buffers(kind, rows, [buffer, buffer], null_count=rows, children=[_none(kind)])
    return pa.Array.from_buffers(kind, rows, [buffer] * kind.num_buffers, null_count=rows)


@cache  # making one costs 20 us
def _none(kind: pa.ListType[Any]) -> Array:
    """Return no items for a column of lists."""
    none: Array = pa.nulls(0, kind.value_type)
    return none


_shared: dict[int, pa.Buffer] = {}


def _filled(value: int, size: int) -> pa.Buffer:
    """Return `size` bytes of an int32 array that repeats this value."""
    buffer = _shared.get(value)
    if buffer is None or buffer.size < size:
        buffer = _shared[value] = pa.py_buffer(value.to_bytes(4, sys.byteorder, signed=True) * (size // 2 + 1))
    return buffer.slice(0, size)


# ---- rows of tables ------------------------------------------------------------------------------------------


def row_numbers(rows: int) -> Array:
    """Return the numbers of this many rows, from 0 on (int64)."""
    import pyarrow.compute as pc

    ones: Array = pa.repeat(int64(1), rows)
    return pc.cumulative_sum(ones, start=int64(-1))


def group_rows(keys: pa.Table) -> list[tuple[tuple[Any, ...], Array]]:
    """Return each combination of values in the rows of a table, and the numbers of its rows, in their order."""
    names = [str(number) for number in range(keys.num_columns)]
    numbered = keys.rename_columns(names).append_column("rows", row_numbers(keys.num_rows))
    groups = numbered.group_by(names, use_threads=False).aggregate([("rows", "list")])
    values = zip(*(groups[name].to_pylist() for name in names), strict=True)
    indexes: Any = groups["rows_list"]
    return [(key, mine.values) for key, mine in zip(values, indexes, strict=True)]
