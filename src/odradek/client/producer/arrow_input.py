"""Arrow data as rows to send. A column of values alone becomes `PackedBytes` slices, which share its buffers.

Needs pyarrow (`pip install odradek[arrow]`); importing this module without it raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from odradek import arguments
from odradek.core.interfaces import ProducerRecord
from odradek.engine import PackedBytes
from odradek.errors import ConfigError
from odradek.types import KiB

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise ConfigError("send_arrow needs pyarrow: pip install 'odradek[arrow]'") from error

__all__ = ["Data", "runs"]

Data: TypeAlias = "pa.Table | pa.RecordBatch | pa.Array[Any] | pa.ChunkedArray[Any]"

SMALL_BYTES = 64 * KiB
"""Adjacent chunks smaller than this are copied into one: each chunk becomes a batch and a part of a request."""

ROWS_AT_ONCE = 4096
"""Rows converted in one step where that takes a copy: views, nulls, and rows with more than a value."""


def runs(
    data: Data,
    value: str | None = None,
    key: str | None = None,
    headers: str | None = None,
    timestamp: str | None = None,
) -> Iterator[PackedBytes | list[ProducerRecord]]:
    """Return the rows in order: packed values, or records where a row has more than a value or a null for it.

    Rows are converted as they are asked for, and a chunk with damaged offsets raises ValueError then. All other errors
    are raised at once. For the arguments see `Producer.send_arrow`.

    Raises:
        TypeError: `data` is not Arrow, or a column has a type that cannot be sent.
        ConfigError: A column does not exist, or it is not clear which one has the values.
        ValueError: The name of a header is null.
    """
    values = _column(data, value, "value")
    named = {"key": key, "headers": headers, "timestamp": timestamp}
    others = {role: _column(data, name, role) for role, name in named.items() if name is not None}
    if "headers" in others:
        _check_header_names(others["headers"])
    return _records({"value": values, **others}) if others or values.null_count else map(_packed, _chunks(values))


# ---- which column -------------------------------------------------------------------------------------------

_CONTIGUOUS = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
_VIEWS = (pa.types.is_binary_view, pa.types.is_string_view)


class _Role(NamedTuple):
    """The use of a column: key, value, headers or timestamp."""

    accepts: Callable[[Any], bool]
    types: str
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


def _is_headers(kind: Any) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return set(fields) == {"key", "value"} and all(map(_is_bytes, fields.values()))


def _check_header_names(headers: pa.ChunkedArray[Any]) -> None:
    for chunk in headers.chunks:
        if pc.struct_field(pc.list_flatten(chunk), "key").null_count:
            raise ValueError("the name of a header is null: only its value may be")


# ---- packed values ------------------------------------------------------------------------------------------


def _chunks(column: pa.ChunkedArray[Any]) -> Iterator[pa.Array[Any]]:
    """Return the column in arrays large enough for a batch each, none of them empty."""
    small: list[pa.Array[Any]] = []
    size = 0
    for chunk in _contiguous(column):
        small.append(chunk)
        size += chunk.nbytes
        if size >= SMALL_BYTES:
            yield _concat(small)
            small, size = [], 0
    if small:
        yield _concat(small)


def _concat(chunks: list[pa.Array[Any]]) -> pa.Array[Any]:
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _contiguous(column: pa.ChunkedArray[Any]) -> Iterator[pa.Array[Any]]:
    views = any(is_kind(column.type) for is_kind in _VIEWS)
    for chunk in column.chunks:
        if not views and len(chunk):
            yield chunk
        elif views:
            for start in range(0, len(chunk), ROWS_AT_ONCE):
                yield chunk.slice(start, ROWS_AT_ONCE).cast(pa.large_binary())


def _packed(values: pa.Array[Any]) -> PackedBytes:
    """Return the same rows over the same memory."""
    large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    values = values.cast(pa.large_binary() if large else pa.binary())  # strings, too, have their bytes as they are
    values.validate(full=True)  # data from a file may be anything, and nothing checks it later
    _, offsets, data = values.buffers()
    assert offsets is not None
    stop = values.offset + len(values) + 1
    ends = memoryview(offsets)[: stop * (8 if large else 4)].cast("B").cast("q" if large else "i")
    return PackedBytes(ends[values.offset :], memoryview(b"" if data is None else data).cast("B"))


# ---- records ------------------------------------------------------------------------------------------------


def _records(columns: Mapping[str, pa.ChunkedArray[Any]]) -> Iterator[list[ProducerRecord]]:
    """Return records, of which `columns` has a field each."""
    for batch in pa.table(list(columns.values()), list(columns)).to_batches(ROWS_AT_ONCE):
        fields = {role: _ROLES[role].convert(batch.column(role)) for role in columns}
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


def _milliseconds_of(column: Any) -> list[Any]:
    if pa.types.is_timestamp(column.type):  # without a time zone: UTC
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False)
    times: list[Any] = column.cast(pa.int64()).to_pylist()
    return times


def _is_time(kind: Any) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_integer(kind)


_STRINGS = "binary or string"
_ROLES = {
    "value": _Role(_is_bytes, _STRINGS, _bytes_of),
    "key": _Role(_is_bytes, _STRINGS, _bytes_of),
    "headers": _Role(_is_headers, "list<struct<key: string, value: binary>>", _headers_of),
    "timestamp": _Role(_is_time, "a timestamp, or an integer of milliseconds since the epoch", _milliseconds_of),
}
