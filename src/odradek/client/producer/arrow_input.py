"""Arrow data as rows to send: packed columns, which share its buffers.

Needs pyarrow (`pip install odradek[arrow]`); importing this module without it raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from struct import calcsize
from typing import Any, Literal, NamedTuple, TypeAlias

from odradek import arguments
from odradek.client.options import TIMESTAMP
from odradek.core.interfaces import ProducerRecord
from odradek.core.produce.packed_records import PackedRecords, pack
from odradek.engine import HeaderColumns, PackedBytes
from odradek.errors import ConfigError
from odradek.types import NO_TIMESTAMP, KiB

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise ConfigError("send_arrow needs pyarrow: pip install 'odradek[arrow]'") from error

__all__ = ["Data", "runs"]

Run: TypeAlias = PackedBytes | PackedRecords | list[ProducerRecord]

Data: TypeAlias = "pa.Table | pa.RecordBatch | pa.Array[Any] | pa.ChunkedArray[Any]"

SMALL_BYTES = 64 * KiB
"""Adjacent chunks smaller than this are copied into one: each chunk becomes a batch and a part of a request."""

ROWS_AT_ONCE = 4096
"""Rows converted in one step where that takes a copy: views, and rows that become records."""


def runs(
    data: Data,
    value: str | None = None,
    key: str | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
) -> Iterator[Run]:
    """Return the rows in order: packed columns, or records where some rows have no timestamp.

    Rows are converted as they are asked for, and a chunk with damaged offsets raises ValueError then. All other errors
    are raised at once. For the arguments see `Producer.send_arrow`.

    Raises:
        TypeError: `data` is not Arrow, or a column has a type that cannot be sent.
        ConfigError: A column does not exist, it is not clear which one has the values, or a time is before 1970.
        ValueError: The name of a header is null or not UTF-8, or headers are damaged; or a time is beyond the range of
            milliseconds.
    """
    values = _column(data, value, "value")
    named = {"key": key, "headers": headers, "timestamp": timestamp}
    others = {role: _column(data, name, role) for role, name in named.items() if name is not None}
    if "headers" in others:
        _check_header_names(others["headers"])
    if "timestamp" in others:
        others["timestamp"] = _checked_milliseconds(others["timestamp"])
    columns = {"value": values, **others}
    return chain.from_iterable(map(_runs, _chunks(pa.table(list(columns.values()), list(columns)))))


# ---- which column -------------------------------------------------------------------------------------------

_CONTIGUOUS = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
_VIEWS = (pa.types.is_binary_view, pa.types.is_string_view)


class _Role(NamedTuple):
    """The use of a column: key, value, headers or timestamp."""

    accepts: Callable[[Any], bool]
    types: str
    pack: Callable[[Any], PackedBytes | HeaderColumns | memoryview | None]
    convert: Callable[[Any], list[Any]]


def _column(data: Data, name: str | None, role: str) -> pa.ChunkedArray[Any]:
    """Return the column for a role."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        name = _name(data.schema.names, name, role)
        column: Any = data.column(name)
        title = f"column {name!r}"
    elif isinstance(data, pa.Array | pa.ChunkedArray):
        if name is not None:
            raise ConfigError(f"{role}={arguments.shown(name)} names a column, and an array has none: send a table")
        column, title = data, "the array"
    else:
        raise TypeError(f"data must be a pyarrow Table, RecordBatch, Array or ChunkedArray, not {type(data).__name__}")
    if not _ROLES[role].accepts(column.type):
        raise TypeError(f"{title} is {column.type}: {role} must be {_ROLES[role].types}, so cast it first")
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _name(names: list[str], name: str | None, role: str) -> str:
    if name is None:
        name = names[0] if len(names) == 1 else "value"
    if names.count(name) != 1:
        count = "more than one" if name in names else "no"
        raise ConfigError(
            f"there is {count} column {arguments.shown(name)}, but {', '.join(names) or 'none'}: set {role}=..."
        )
    return name


def _is_bytes(kind: Any) -> bool:
    return any(is_kind(kind) for is_kind in (*_CONTIGUOUS, *_VIEWS))


def _is_view(kind: Any) -> bool:
    return any(is_kind(kind) for is_kind in _VIEWS)


def _is_headers(kind: Any) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return set(fields) == {"key", "value"} and all(map(_is_bytes, fields.values()))


def _check_header_names(headers: pa.ChunkedArray[Any]) -> None:
    for chunk in headers.chunks:
        chunk.validate(full=True)  # as of other columns, before it is looked at; names are UTF-8
        if pc.struct_field(pc.list_flatten(chunk), "key").null_count:
            raise ValueError("the name of a header is null: only its value may be")


def _checked_milliseconds(times: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Return times as milliseconds since 1970. Raises ConfigError, ValueError (see `runs`)."""
    milliseconds = times
    if pa.types.is_timestamp(times.type):  # without a time zone: UTC
        unit = pa.timestamp("ms", tz=times.type.tz)
        milliseconds = times.cast(options=pc.CastOptions(unit, allow_time_truncate=True))
    milliseconds = milliseconds.cast(pa.int64())
    TIMESTAMP("timestamp", pc.min(milliseconds).as_py())
    return milliseconds


# ---- packed columns -----------------------------------------------------------------------------------------


def _chunks(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Return the rows in parts large enough for a batch each, none of them empty."""
    small: list[pa.RecordBatch] = []
    size = 0
    for chunk in _contiguous(table):
        small.append(chunk)
        size += chunk.nbytes
        if size >= SMALL_BYTES:
            yield from _concat(small)
            small, size = [], 0
    yield from _concat(small)


def _concat(chunks: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return chunks if len(chunks) < 2 else pa.Table.from_batches(chunks).combine_chunks().to_batches()


def _contiguous(table: pa.Table) -> Iterator[pa.RecordBatch]:
    if not any(map(_is_view, table.schema.types)):
        yield from filter(len, table.to_batches())
        return
    for chunk in table.to_batches(ROWS_AT_ONCE):
        columns = [column.cast(pa.large_binary()) if _is_view(column.type) else column for column in chunk.columns]
        yield pa.RecordBatch.from_arrays(columns, chunk.schema.names)


def _runs(chunk: pa.RecordBatch) -> Iterator[Run]:
    columns: dict[str, Any] = {role: _ROLES[role].pack(chunk.column(role)) for role in chunk.schema.names}
    packed = pack(**columns)
    return _records(chunk) if packed is None else iter((packed,))


def _packed(strings: Any) -> PackedBytes:
    """Return the same rows over the same memory, but for nulls."""
    is_narrow = pa.types.is_binary(strings.type) or pa.types.is_string(strings.type)
    strings = strings.cast(pa.binary() if is_narrow else pa.large_binary())  # the bytes of strings are as they are
    strings.validate(full=True)  # data from a file may be anything, and nothing checks it later
    data = strings.buffers()[2]
    validity = _items(pc.is_valid(strings).cast(pa.uint8()), "B") if strings.null_count else None
    offsets = _items(strings, "i" if is_narrow else "q", 1)
    return PackedBytes(offsets, memoryview(b"" if data is None else data).cast("B"), validity)


def _items(column: Any, kind: Literal["B", "i", "q"], more: int = 0) -> memoryview:
    """Return the numbers of a column, which are in its second buffer: one for each row, and so many more."""
    size, stop = calcsize(kind), column.offset + len(column) + more
    items: memoryview = memoryview(column.buffers()[1]).cast("B")[: stop * size].cast(kind)
    return items[column.offset :]


def _packed_headers(column: Any) -> HeaderColumns | None:
    pairs = pc.list_flatten(column)  # nothing of what is below a null
    if not len(pairs):
        return None
    counts = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum_checked(counts)])
    names = pc.struct_field(pairs, "key").cast(pa.large_string())  # which is UTF-8
    return HeaderColumns(_items(ends, "i"), _packed(names), _packed(pc.struct_field(pairs, "value")))


def _packed_times(column: Any) -> memoryview:
    return _items(pc.fill_null(column, NO_TIMESTAMP), "q")


# ---- records ------------------------------------------------------------------------------------------------


def _records(chunk: pa.RecordBatch) -> Iterator[list[ProducerRecord]]:
    """Return records, of which `chunk` has a column for each field."""
    for start in range(0, chunk.num_rows, ROWS_AT_ONCE):
        batch = chunk.slice(start, ROWS_AT_ONCE)
        fields = {role: _ROLES[role].convert(batch.column(role)) for role in batch.schema.names}
        nothing = [None] * batch.num_rows
        rows = (fields.get(role, nothing) for role in ("value", "key", "headers", "timestamp"))
        yield [
            ProducerRecord(value, key, headers or (), timestamp)
            for value, key, headers, timestamp in zip(*rows, strict=True)
        ]


def _bytes_of(column: Any) -> list[Any]:
    strings: list[Any] = column.cast(pa.large_binary()).to_pylist()
    return strings


def _headers_of(column: Any) -> list[Any]:
    kind = pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])
    rows: list[Any] = column.cast(pa.large_list(kind)).to_pylist()
    return [tuple((header["key"], header["value"]) for header in row or ()) for row in rows]


def _times_of(column: Any) -> list[Any]:
    times: list[Any] = column.to_pylist()
    return times


def _is_time(kind: Any) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_integer(kind)


_STRINGS = "binary or string"
_HEADERS = "list<struct<key: string, value: binary>>"
_TIMES = "a timestamp, or an integer of milliseconds since the epoch"
_ROLES = {
    "value": _Role(_is_bytes, _STRINGS, _packed, _bytes_of),
    "key": _Role(_is_bytes, _STRINGS, _packed, _bytes_of),
    "headers": _Role(_is_headers, _HEADERS, _packed_headers, _headers_of),
    "timestamp": _Role(_is_time, _TIMES, _packed_times, _times_of),
}
