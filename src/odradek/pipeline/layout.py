"""The layout of a table: where its files are, and the columns that divide its rows.

A table is in a local directory, or in a store that its format reaches through its own options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute
import pyarrow.fs

from odradek.errors import ConfigError
from odradek.pipeline.errors import StorageError, TableUnreadable
from odradek.types import KiB

__all__ = [
    "RECORD_TIME", "TIME", "PartitionColumn", "Storage", "column_types", "fitted", "floor_hours", "local_hours",
    "parse_columns", "partition_text", "partition_values", "resolve_location", "storage_errors",
]  # fmt: skip

pc: Any = pyarrow.compute

# ---- files ---------------------------------------------------------------------------------------------------

SCHEMES = {
    "delta": frozenset({"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"}),
    "iceberg": frozenset({"s3", "s3a", "s3n", "gs", "abfs", "abfss"}),
}
"""Kind of table -> the schemes of URLs, besides `file`, that its library reaches."""

SYNCS = 16  # files that are forced to disk, or asked for, at the same time: they take little longer than one
BUFFER_BYTES = 64 * KiB  # that are written at once; Arrow itself writes each page of each column

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def resolve_location(text: str, kind: str, folder: Path) -> str:
    """Return where a table is: an absolute path, or a URL of a store without a slash at its end.

    A relative path starts from `folder`. Raises ConfigError for a scheme that tables of this kind do not have, or a URL
    without a bucket or path.
    """
    if _SCHEME.match(text) is None:
        return str((folder / text).absolute())
    url = urlsplit(text)
    if url.scheme == "file":
        if url.netloc not in ("", "localhost") or not url.path.startswith("/"):
            raise ConfigError(f"{text!r}: a file URL has an absolute path, as in file:///data/orders")
        return unquote(url.path).rstrip("/") or "/"
    if url.scheme not in SCHEMES[kind]:
        known = ", ".join(f"{each}://" for each in sorted({"file", *SCHEMES[kind]}))
        raise ConfigError(f"{text!r}: {kind} tables cannot be at {url.scheme}:; use a path, or one of {known}")
    if "://" not in text or not url.netloc:
        raise ConfigError(f"{text!r}: the URL has no bucket, as in {url.scheme}://bucket/orders")
    return text.rstrip("/")


@contextmanager
def storage_errors(where: str, *unreadable: type[Exception]) -> Iterator[None]:
    """Raise StorageError for an OSError of the block, except for a file that does not exist, and TableUnreadable for
    further errors that say that a table cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(where, error) from error
    except unreadable as error:
        raise TableUnreadable(where, error) from error


@dataclass(frozen=True)
class Storage:
    """The files below one location. Pickled into tasks. Paths of its methods are relative to the location."""

    root: str  # an absolute path, or a URL
    kind: str  # `delta` or `iceberg`, whose options these are; `parquet` for plain files
    options: Mapping[str, str] = field(default_factory=dict)  # deltalake's, or pyiceberg's properties of a FileIO

    @property
    def is_local(self) -> bool:
        return self.root.startswith("/")

    def url(self, path: str) -> str:
        """Return the full path or URL of a file."""
        return f"{self.root}/{path}"

    def create(self, path: str) -> Any:
        """Open a new file for writing bytes. On a local disk it is durable after `sync`. Raises OSError."""
        if self.is_local:
            Path(self.url(path)).parent.mkdir(parents=True, exist_ok=True)
        return self._files().open_output_stream(path, buffer_size=BUFFER_BYTES)

    def sync(self, paths: Iterable[str]) -> None:
        """Force new files and their names to disk: a table must not list a file that a loss of power removes."""
        if not self.is_local:
            return
        files = list(paths)
        folders = list({str(folder) for file in files for folder in Path(file).parents})
        with ThreadPoolExecutor(SYNCS) as pool:
            for new in (files, folders):
                list(pool.map(self._sync, (new[first::SYNCS] for first in range(min(SYNCS, len(new))))))

    def _sync(self, paths: Iterable[str]) -> None:
        for path in paths:
            handle = os.open(self.url(path), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def open(self, path: str) -> Any:
        """Open a file for reading at any position. Raises OSError."""
        return self._files().open_input_file(path)

    def files(self) -> Iterator[tuple[str, float]]:
        """Yield the path of each file, and when it was written (s since the epoch)."""
        for info in self._files().get_file_info(pyarrow.fs.FileSelector("", recursive=True)):
            if info.is_file and info.mtime_ns is not None:
                yield info.path, info.mtime_ns / 1e9

    def now(self) -> float:
        """Return the time (s since the epoch) by the clock that dates files: that of the store, not of this machine."""
        path = f"_odradek-clock-{uuid4().hex}"
        with self.create(path) as file:
            file.write(b"\n")
        written = self._files().get_file_info(path).mtime_ns
        self.remove(path)
        return cast(int, written) / 1e9

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self._files().delete_file(path)

    def remove_attempt(self, prefix: str) -> None:
        """Remove the files whose names begin so, where listing is cheap: on a local disk, which may be full. Others
        stay, in no table, until `clean`."""
        if self.is_local:
            for path in Path(self.root).rglob(f"{prefix}*.parquet"):
                path.unlink(missing_ok=True)

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None if it is not there."""
        return cast("int | None", self._files().get_file_info(path).size)

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return `size` of each path, several at the same time."""
        files = self._files()
        with ThreadPoolExecutor(SYNCS) as pool:
            return [info.size for info in pool.map(files.get_file_info, paths)]

    def _files(self) -> Any:
        if self.is_local:
            return pyarrow.fs.SubTreeFileSystem(self.root, pyarrow.fs.LocalFileSystem())
        if self.kind == "delta":
            from deltalake.fs import DeltaStorageHandler

            return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.root, dict(self.options)))
        from pyiceberg.io import load_file_io

        file_io: Any = load_file_io(dict(self.options), self.root)
        if not hasattr(file_io, "fs_by_scheme"):  # it is fsspec's
            from fsspec.implementations import dirfs  # type: ignore[import-untyped]

            url, handler = urlsplit(self.root), cast(Any, pyarrow.fs.FSSpecHandler)
            store = file_io.get_fs(url.scheme, url.hostname)
            return pyarrow.fs.PyFileSystem(handler(dirfs.DirFileSystem(self.root, store)))
        scheme, host, root = file_io.parse_location(self.root, file_io.properties)
        return pyarrow.fs.SubTreeFileSystem(root, file_io.fs_by_scheme(scheme, host))


# ---- partitions ----------------------------------------------------------------------------------------------

RECORD_TIME = "record_time"
"""Column of every table: the time of the record, as the flow determines it."""

TIME = pa.timestamp("us", tz="UTC")
"""Type of record times, and of fields that are timestamps."""

_OWN_TYPES: Mapping[str, pa.DataType] = {"date": pa.date32(), "hour": pa.int32()}

_TRANSFORMABLE = (pa.string(), pa.binary(), pa.int32(), pa.int64())

_TRANSFORM = re.compile(r"(bucket|truncate)\(\s*([1-9][0-9]{0,8})\s*,\s*([^\s()]+)\s*\)")


class PartitionColumn(NamedTuple):
    """One column that divides a table."""

    name: str  # in the table's partitions
    source: str  # the column of the rows that its values come from
    transform: str = "identity"  # or `date`, `hour`, `bucket`, `truncate`
    argument: int = 0  # number of buckets, or length of what is left


def parse_columns(texts: Sequence[str], kind: str) -> tuple[PartitionColumn, ...]:
    """Parse `topic`, `date`, `hour`, a field, `bucket(16, field)` and `truncate(4, field)`, as in the pipeline file.

    Raises:
        ConfigError: A transform that the kind of table does not have, or a column that is named twice.
    """
    columns = tuple(_parse(text, kind) for text in texts)
    if kind == "iceberg" and any(column.transform == "hour" for column in columns):
        columns = tuple(column for column in columns if column.transform != "date")  # hours know their day
    if len({column.name for column in columns}) < len(columns):
        raise ConfigError("a column is named twice")
    return columns


def _parse(text: str, kind: str) -> PartitionColumn:
    if text in _OWN_TYPES:
        return PartitionColumn(text, RECORD_TIME, text)
    match = _TRANSFORM.fullmatch(text)
    if match is not None and kind == "delta":
        raise ConfigError(f"{text!r}: Delta tables have no transforms; use a field, or kind = 'iceberg'")
    if match is not None:
        return PartitionColumn(f"{match[3]}_{match[1]}", match[3], match[1], int(match[2]))
    if "(" in text:
        raise ConfigError(f"{text!r}: expected a column, bucket(16, column) or truncate(4, column)")
    return PartitionColumn(text, text)


def column_types(columns: Sequence[PartitionColumn], fields: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the types of the partition columns as columns of their own, which Delta tables have.

    Raises ConfigError if there is no such column, or its type cannot divide a table.
    """
    types: dict[str, pa.DataType] = {}
    for column in columns:
        if column.source not in fields:
            raise ConfigError(f"there is no column {column.source!r}; choose from {', '.join(fields)}")
        kind = fields[column.source]
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise ConfigError(f"{column.source} is {kind}, which cannot divide a table")
        if column.argument and kind not in _TRANSFORMABLE:
            raise ConfigError(f"{column.transform} of {column.source}: it cannot be made of {kind}")
        types[column.name] = _OWN_TYPES.get(column.transform, kind)
    return types


def partition_values(columns: Sequence[PartitionColumn], rows: pa.Table, kind: str, zone: str) -> pa.Table:
    """Return the partition values of rows, one column for each partition column.

    In Delta tables and plain files they are dates and hours of the day in `zone`; in Iceberg days and hours since the
    epoch, as all of its dates and times are numbers.
    """
    return pa.table({each.name: _values(each, rows[each.source].combine_chunks(), kind, zone) for each in columns})


def _values(column: PartitionColumn, values: Any, kind: str, zone: str) -> Any:
    if column.transform == "identity":
        if kind == "iceberg" and pa.types.is_temporal(values.type):
            return values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
        return values
    if column.argument:
        return _transformed(column, values)
    if kind == "iceberg":
        day = values.cast(pa.date32(), safe=False).cast(pa.int32())
        return day if column.transform == "date" else pc.divide(floor_hours(values), 3600).cast(pa.int32())
    hours = local_hours(values, zone)
    return pc.hour(hours).cast(pa.int32()) if column.transform == "hour" else hours.cast(pa.date32(), safe=False)


def partition_text(value: Any) -> str | None:
    """Return a partition value as text: as the log of a Delta table has it, and the folder of a plain file. Raises
    ConfigError for bytes that are none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            what = f"partition_by has a column with the value {value[:40]!r}, which is not UTF-8"
            raise ConfigError(f"{what}: only Iceberg tables can be divided by it") from None
    return None if value is None else str(value)


def _transformed(column: PartitionColumn, values: Any) -> Any:
    """Apply a transform of Iceberg once to each distinct value."""
    from pyiceberg import transforms, types

    kinds: Mapping[pa.DataType, Any] = {
        pa.string(): types.StringType(), pa.binary(): types.BinaryType(),
        pa.int32(): types.IntegerType(), pa.int64(): types.LongType(),
    }  # fmt: skip
    transform = transforms.parse_transform(f"{column.transform}[{column.argument}]").transform(kinds[values.type])
    encoded = pc.dictionary_encode(values)
    result = pa.int32() if column.transform == "bucket" else values.type
    distinct = pa.array([transform(value) for value in encoded.dictionary.to_pylist()], result)
    return distinct.take(encoded.indices)


def local_hours(times: Any, zone: str) -> Any:
    """Return the local hour in a zone, as timestamps without a zone. The repeated hour, when clocks go back, is one."""
    return pc.floor_temporal(pc.local_timestamp(times.cast(pa.timestamp("us", tz=zone))), unit="hour")


def floor_hours(times: Any) -> Any:
    """Return the start of each time's hour (s since the epoch, int64)."""
    return pc.floor_temporal(times, unit="hour").cast(pa.timestamp("s", tz="UTC")).cast(pa.int64())


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema, in their types; what they lack is null."""
    known = set(rows.schema.names)
    columns = [
        rows[each.name].cast(each.type) if each.name in known else pa.nulls(rows.num_rows, each.type) for each in schema
    ]
    return pa.table(columns, schema=schema)
