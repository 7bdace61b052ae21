"""Arrow on its way out: the rows of a column as `PackedBytes` slices, which share its buffers.

Needs pyarrow (`pip install odradek[arrow]`); importing this module without it raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from odradek.engine import PackedBytes
from odradek.errors import ConfigError
from odradek.types import KiB

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise ConfigError("send_arrow needs pyarrow: pip install 'odradek[arrow]'") from error

__all__ = ["Data", "Pairs", "runs"]

Data: TypeAlias = "pa.Table | pa.RecordBatch | pa.Array[Any] | pa.ChunkedArray[Any]"

Pairs = list[tuple[bytes | None, bytes]]

SMALL_BYTES = 64 * KiB
"""Neighbouring chunks smaller than this are copied into one: each would be a batch, and a part of a request."""

PIECE_ROWS = 4096
"""So many rows are converted at once where that takes a copy: views, and rows with keys."""


def runs(data: Data, value: str | None, key: str | None) -> Iterator[PackedBytes | Pairs]:
    """The rows, in order: values, or (key, value) pairs if a key column is named. Pieces are made as they are asked
    for; a chunk with damaged offsets raises ValueError then. Everything else is found now.

    Raises:
        TypeError: `data` is not Arrow, or a column is neither binary nor string.
        ConfigError: There is no such column, or it is not clear which is meant.
        ValueError: A value is null.
    """
    values, name = _column(data, value, "value")
    if values.null_count:
        row = pc.index(pc.is_null(values), True).as_py()
        raise ValueError(f"row {row} of {name} is null, and a record has a value: fill it, or leave the row out")
    if key is None:
        return map(_packed, _pieces(values))
    return _pairs(_column(data, key, "key")[0], values)


# ---- which column -------------------------------------------------------------------------------------------


def _column(data: Data, name: str | None, role: str) -> tuple[pa.ChunkedArray[Any], str]:
    """The column, and what to call it."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        name = _name(data.schema.names, name, role)
        column: Any = data.column(name)
        title = f"column {name!r}"
    elif isinstance(data, pa.Array | pa.ChunkedArray):
        if name is not None:
            raise ConfigError(f"{role}={name!r} names a column, and an array has none: send a table")
        column, title = data, "the array"
    else:
        raise TypeError(f"data is a pyarrow Table, RecordBatch, Array or ChunkedArray, not {type(data).__name__}")
    if not any(is_kind(column.type) for is_kind in (*_CONTIGUOUS, *_VIEWS)):
        raise TypeError(f"{title} is {column.type}: what is sent is binary or string, so cast it first")
    return (column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])), title


def _name(names: list[str], name: str | None, role: str) -> str:
    if name is None:
        name = names[0] if len(names) == 1 else "value"
    if names.count(name) != 1:
        found = "more than one" if name in names else "no"
        raise ConfigError(f"there is {found} column {name!r}, but {', '.join(names) or 'none'}: say {role}=...")
    return name


_CONTIGUOUS = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
_VIEWS = (pa.types.is_binary_view, pa.types.is_string_view)


# ---- conversion ---------------------------------------------------------------------------------------------


def _pieces(column: pa.ChunkedArray[Any]) -> Iterator[pa.Array[Any]]:
    """The column in arrays worth a batch each, none of them empty."""
    small: list[pa.Array[Any]] = []
    size = 0
    for chunk in _contiguous(column):
        small.append(chunk)
        size += chunk.nbytes
        if size >= SMALL_BYTES:
            yield _joined(small)
            small, size = [], 0
    if small:
        yield _joined(small)


def _joined(chunks: list[pa.Array[Any]]) -> pa.Array[Any]:
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _contiguous(column: pa.ChunkedArray[Any]) -> Iterator[pa.Array[Any]]:
    views = any(is_kind(column.type) for is_kind in _VIEWS)
    for chunk in column.chunks:
        if not views and len(chunk):
            yield chunk
        elif views:
            for start in range(0, len(chunk), PIECE_ROWS):
                yield chunk.slice(start, PIECE_ROWS).cast(pa.large_binary())


def _packed(values: pa.Array[Any]) -> PackedBytes:
    """The same rows over the same memory."""
    large = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    values = values.cast(pa.large_binary() if large else pa.binary())  # strings, too, have their bytes as they are
    values.validate(full=True)  # what comes from a file may be anything, and from here on nobody looks again
    _, offsets, data = values.buffers()
    assert offsets is not None
    stop = values.offset + len(values) + 1
    ends = memoryview(offsets)[: stop * (8 if large else 4)].cast("B").cast("q" if large else "i")
    return PackedBytes(ends[values.offset :], memoryview(b"" if data is None else data).cast("B"))


def _pairs(keys: pa.ChunkedArray[Any], values: pa.ChunkedArray[Any]) -> Iterator[Pairs]:
    for batch in pa.table([keys, values], ["key", "value"]).to_batches(PIECE_ROWS):
        pairs = [column.cast(pa.large_binary()).to_pylist() for column in batch.columns]
        yield list(zip(*pairs, strict=True))
