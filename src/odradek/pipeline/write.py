"""The files of one task: rows are grouped by their partition of the table, once, and written to one file each.

Rows wait in memory; a partition with few of them needs no open file. When more than `HELD_BYTES` wait, the largest
groups are written out as row groups of their files. At the end, partitions with few rows can be left to the process
that commits: it writes one file for those of all tasks, where each task would write one of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from odradek._arrays import group_rows
from odradek.pipeline.errors import TableMismatch
from odradek.pipeline.layout import PartitionColumn, Storage, fitted, partition_text, partition_values, storage_errors
from odradek.pipeline.table import DataFile
from odradek.types import KiB, MiB

__all__ = ["FileWriter", "SmallGroups", "WriteTarget"]

DIVIDE_BYTES = 32 * MiB  # rows in memory that are divided into groups together
GROUP_BYTES = 32 * MiB  # size of a row group in memory
HELD_BYTES = 128 * MiB  # maximum size of rows that wait for their row group, in all files together
SMALL_BYTES = 16 * KiB  # of rows in a small file: to begin with compression and dictionaries costs more than they save
FEW = 64  # groups of less than this part of the rows are taken out of them together
OPEN_FILES = 64  # maximum; the one that was not written to for the longest time is closed
FOLDER_LENGTH = 128  # characters of a partition's folder: file systems have a limit, and the values of fields have none
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

Key: TypeAlias = tuple[Any, ...]
"""The values of the partition columns."""


class WriteTarget(NamedTuple):
    """The table that files are written for. Pickled into tasks."""

    storage: Storage
    schema: pa.Schema  # columns of the files
    kind: str  # `delta`, `iceberg`, or `parquet` for plain files
    columns: tuple[PartitionColumn, ...] = ()
    zone: str = "UTC"  # of dates and hours
    compression: str = "zstd"
    prefix: str = ""  # beginning of the names of the files, unique for one attempt at one batch


class SmallGroups(NamedTuple):
    """Rows of partitions that have few of them, which are in no file yet. Pickled."""

    keys: list[Key]
    ends: list[int]  # 0, and the row after the last one of each group
    rows: pa.Table  # one group after the other


class FileWriter(AbstractContextManager["FileWriter"]):
    """Writes rows for one table: `add` each batch, then `finish`; or `abandon`, as a block with an error does."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._groups: defaultdict[Key, list[pa.Table]] = defaultdict(list)  # which are in no file yet
        self._held: Counter[Key] = Counter()  # their bytes
        self._open: dict[Key, _File] = {}
        self._written: list[DataFile] = []

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows that have the columns of the files and those that partition the table. Raises OSError."""
        if not rows.num_rows:
            return
        self._waiting.append(pa.Table.from_batches([rows]))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= DIVIDE_BYTES:
            self._divide()

    def take_small(self, maximum: int) -> list[SmallGroups]:
        """Take the groups of few rows that have no file yet, up to `maximum` bytes in all."""
        self._divide()
        keys: list[Key] = []
        ends = [0]
        tables: list[pa.Table] = []
        for key, held in self._held.most_common()[::-1]:
            maximum -= held
            if held >= SMALL_BYTES or maximum < 0:
                break
            if key not in self._open:
                keys.append(key)
                mine = self._groups.pop(key)
                ends.append(ends[-1] + sum(rows.num_rows for rows in mine))
                tables += mine
                del self._held[key]
        return [SmallGroups(keys, ends, pa.concat_tables(tables).combine_chunks())] if keys else []

    def add_small(self, small: SmallGroups) -> None:
        """Add what another writer of the same table has left. Raises OSError."""
        groups = (small.rows.slice(start, end - start) for start, end in pairwise(small.ends))
        self._hold(zip(small.keys, groups, strict=True), small.rows.nbytes / small.rows.num_rows)

    def finish(self) -> list[DataFile]:
        """Write everything; return the files, which are durable then. Raises OSError."""
        self._divide()
        for key in list(self._groups):
            self._flush(key)
            self._close(key)  # it has no more rows
        for key in list(self._open):
            self._close(key)
        self._target.storage.sync(file.path for file in self._written)
        return self._written

    def abandon(self) -> None:
        """Remove the files that were written."""
        for file in self._open.values():
            file.discard()
        for path in (*(file.path for file in self._open.values()), *(file.path for file in self._written)):
            with suppress(OSError):
                self._target.storage.remove(path)

    # ---- groups ----------------------------------------------------------------------------------------------

    def _divide(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting).combine_chunks()
        size = self._waiting_bytes / table.num_rows
        self._waiting, self._waiting_bytes = [], 0
        self._hold(_by_partition(table, self._target), size)

    def _hold(self, groups: Iterable[tuple[Key, pa.Table]], row_bytes: float) -> None:
        for key, rows in groups:
            self._groups[key].append(rows)
            self._held[key] += int(row_bytes * rows.num_rows)
            if self._held[key] >= GROUP_BYTES:
                self._flush(key)
        while self._held.total() > HELD_BYTES:
            self._flush(max(self._held, key=self._held.__getitem__))

    def _flush(self, key: Key) -> None:
        """Write the waiting rows of one group to its file."""
        rows, is_small = pa.concat_tables(self._groups.pop(key)), self._held.pop(key) < SMALL_BYTES
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= OPEN_FILES:
                self._close(next(iter(self._open)))
            file = _File(self._target, key, is_small=is_small)
        self._open[key] = file  # the one that was written to last is last
        file.write(rows.combine_chunks() if is_small else rows)

    def _close(self, key: Key) -> None:
        self._written.append(self._open[key].close())  # it stays open for `abandon` if this fails
        del self._open[key]


def _by_partition(rows: pa.Table, target: WriteTarget) -> Iterator[tuple[Key, pa.Table]]:
    """Yield the rows of each partition of the table, as they are written; within one they keep their order. Raises
    TableMismatch for a null in a column that others have made one without."""
    table = fitted(rows, target.schema)
    if null := [each.name for each in target.schema if not each.nullable and table[each.name].null_count]:
        what = f"column {null[0]} of the table must not be null, and the flow has no value for it in each row"
        raise TableMismatch(target.storage.root, what)
    if not target.columns:
        yield (), table
        return
    groups = group_rows(partition_values(target.columns, rows, target.kind, target.zone))
    if len(groups) == 1:
        yield groups[0][0], table
        return
    many = rows.num_rows // FEW
    few = [mine for _, mine in groups if len(mine) < many]
    together = table.take(pa.concat_arrays(few)) if few else table.slice(0, 0)  # one copy, not one for each group
    taken = 0
    for key, mine in groups:
        if len(mine) < many:
            yield key, together.slice(taken, len(mine))
            taken += len(mine)
        else:
            yield key, table.take(mine)


# ---- one file ------------------------------------------------------------------------------------------------


class _File:
    """A file that is being written."""

    def __init__(self, target: WriteTarget, key: Key, *, is_small: bool) -> None:
        self._partition = dict(zip((column.name for column in target.columns), key, strict=True))
        self.path = f"{_folder(self._partition, target.kind)}{target.prefix}{uuid4().hex[:16]}.parquet"
        self._storage = target.storage
        self._footers: list[Any] = []
        compression: Any = "none" if is_small else target.compression
        with storage_errors(self._storage.url(self.path)):
            self._stream = self._storage.create(self.path)
            self._writer = pq.ParquetWriter(
                self._stream, target.schema, compression=compression, use_dictionary=not is_small, store_schema=False,
                metadata_collector=self._footers,
            )  # fmt: skip

    def write(self, rows: pa.Table) -> None:
        with storage_errors(self._storage.url(self.path)):
            self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> DataFile:
        with storage_errors(self._storage.url(self.path)):
            self._writer.close()
            self._stream.close()
        size = self._storage.size(self.path)
        if size is None:
            raise FileNotFoundError(f"{self._storage.url(self.path)} is gone although it was just written")
        return DataFile(self.path, size, self._partition, self._footers[0])

    def discard(self) -> None:
        for each in (self._writer, self._stream):
            with suppress(Exception):  # what made writing fail, such as a full disk, is what the caller is told
                each.close()


def _folder(partition: Mapping[str, Any], kind: str) -> str:
    """Return the folder of a partition. In a table it is for people, and may be cut off: what counts is in the table's
    log, which has paths encoded, so nothing is encoded twice. Plain files have nothing else, as Hive writes them."""
    text = partition_text if kind == "parquet" else str
    values = {name: HIVE_NULL if value is None else text(value) for name, value in partition.items()}
    names = [f"{quote(name, safe='')}={quote(str(value), safe='')}" for name, value in values.items()]
    if kind != "parquet":
        names = [name.replace("%", "_")[:FOLDER_LENGTH] for name in names]
    return "".join(f"{name}/" for name in names)
