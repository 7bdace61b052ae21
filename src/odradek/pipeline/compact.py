"""Compaction: merge many small files into few large ones, as one entry of the ledger.

Delta tables are compacted by deltalake, and the ledger records the result.

A kill before the entry leaves files that no entry lists: readers never see them, and `repair` removes them. After the
entry only the old files remain. They are kept for readers of an older state of the table: `delete_retired` is a
separate step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from odradek._version import __version__
from odradek.errors import OdradekError
from odradek.pipeline.config import Flow
from odradek.pipeline.delta import DeltaLog
from odradek.pipeline.ledger import GENESIS, DataFile, Ledger, LedgerEntry
from odradek.pipeline.lock import table_lock
from odradek.pipeline.row_checksums import IDENTITY, RowChecksums
from odradek.pipeline.tables import BATCH_ROWS, CommittedTable, open_table, read_rows
from odradek.types import MiB

__all__ = ["CompactionGroup", "compact", "delete_retired", "plan_compaction", "retired"]

ROW_GROUP_BYTES, ROW_GROUP_ROWS = 64 * MiB, 1 << 20
"""Maximum size of a row group in memory, and its number of rows."""


class CompactionFailed(OdradekError):
    """The rows written are not those that were read. The table is unchanged."""

    hint = "nothing was committed; `odradek pipeline verify` checks whether the table's files are sound"


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """Files of one table partition that are merged into one."""

    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of the files; the merged file is usually smaller."""
        return sum(file.size for file in self.files)

    @property
    def directory(self) -> str:
        """The directory of the files, relative to the table."""
        return self.files[0].path.rpartition("/")[0]


def plan_compaction(table: CommittedTable) -> list[CompactionGroup]:
    """Group files of less than half of `sink.file_bytes` up to about that size."""
    most = table.flow.sink.file_bytes
    by_partition: dict[tuple[tuple[str, str], ...], list[DataFile]] = {}
    for file in table.live.values():
        if file.size < most / 2:
            by_partition.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    return [
        CompactionGroup(tuple(files))
        for small in by_partition.values()
        for files in _filled(small, most)
        if len(files) > 1
    ]


def _filled(files: Iterable[DataFile], most: int) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    for file in files:
        if group and sum(each.size for each in group) + file.size > most:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def compact(name: str, flow: Flow, *, run: str = "compact", now: float | None = None) -> LedgerEntry | None:
    """Compact a flow's table; return the new entry, or None if there is nothing to do. Old files stay where they are.

    A Delta table is compacted by deltalake, in a commit of its own before the ledger's. Compactions that are in Delta's
    log but not in the ledger are recorded, too.

    Memory: one row group, 64 MiB; for a Delta table, as much as deltalake uses.

    Raises:
        TableLocked: Another process is writing this table.
        CompactionFailed: The new files do not have the rows of the old ones. Nothing was committed.
        OSError, pyarrow.ArrowException: A file cannot be read or written.
    """
    with table_lock(flow.sink.path):
        removed, files = _rewrite(name, flow) if flow.sink.kind == "parquet" else _rewrite_delta(name, flow)
        if not removed and not files:
            return None
        table = open_table(name, flow)
        entry = LedgerEntry(
            flow=name,
            batch=len(table.entries),
            start={},
            end={},
            files=files,
            kind="replace",
            removed=tuple(file.path for file in removed),
            rows=sum(file.rows for file in files),
            run=run,
            code=__version__,
            written=time.time() if now is None else now,
            previous=table.entries[-1].digest if table.entries else GENESIS,
        )
        return Ledger(flow.sink.path, name).commit(entry)


Files = tuple[DataFile, ...]


def _rewrite(name: str, flow: Flow) -> tuple[Files, Files]:
    """Return the old files and the new ones, which no entry lists yet."""
    table = open_table(name, flow)
    groups = plan_compaction(table)
    names = (f"odradek-{name}-{len(table.entries):08d}-{uuid4().hex}.parquet" for _ in groups)
    made = tuple(map(_merge, repeat(table), groups, names))
    return tuple(file for group in groups for file in group.files), made


def _rewrite_delta(name: str, flow: Flow) -> tuple[Files, Files]:
    """Return the old files and those that have replaced them in the Delta table."""
    log = DeltaLog(Path(flow.sink.path), name, flow.sink.partition_by)
    log.finish(Ledger(flow.sink.path, name))
    log.compact(flow.sink.file_bytes)
    table, listed = open_table(name, flow), log.files()
    removed = tuple(file for path, file in table.live.items() if path not in listed)
    made = tuple(file for path, file in listed.items() if path not in table.live)
    _check(table, removed, made)
    return removed, made


# ---- one file ------------------------------------------------------------------------------------------------


def _merge(table: CommittedTable, group: CompactionGroup, name: str) -> DataFile:
    path = f"{group.directory}/{name}" if group.directory else name
    target = table.root / path
    schema = pa.unify_schemas([_schema(table.root / file.path) for file in group.files], promote_options="permissive")
    compression = table.flow.sink.compression
    with pq.ParquetWriter(target, schema, compression=compression, coerce_timestamps="us") as writer:
        for rows in _row_groups(_batches(table.root, group.files), schema):
            writer.write_table(rows, row_group_size=rows.num_rows)
    _sync(target)
    made = DataFile(
        path,
        pq.read_metadata(target).num_rows,
        target.stat().st_size,
        group.files[0].partition,
        min((file.least for file in group.files if file.least is not None), default=None),
        max((file.most for file in group.files if file.most is not None), default=None),
    )
    _check(table, group.files, (made,))
    return made


def _schema(path: Path) -> pa.Schema:
    """Return the schema to write a file again with. Spark's INT96 columns become times in UTC."""
    footer = pq.read_metadata(path)
    schema = pq.read_schema(path).remove_metadata()
    old = {footer.schema.column(number).name for number in range(len(footer.schema)) if _is_int96(footer, number)}
    kind = pa.timestamp("us", tz="UTC")
    return pa.schema([field.with_type(kind) if field.name in old else field for field in schema])


def _is_int96(footer: pq.FileMetaData, number: int) -> bool:
    return footer.schema.column(number).physical_type == "INT96"


def _batches(root: Path, files: Sequence[DataFile]) -> Iterator[pa.Table]:
    for file in files:
        with pq.ParquetFile(root / file.path, pre_buffer=False) as reader:
            for batch in reader.iter_batches(BATCH_ROWS, use_threads=False):
                yield pa.Table.from_batches([batch])


def _row_groups(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        held.append(_as(table, schema))
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with exactly the columns of the schema; those it lacks are null."""
    columns: list[Any] = [
        table[field.name].cast(field.type, safe=False)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _check(table: CommittedTable, old: Files, made: Files) -> None:
    """Read the new files back and compare their rows with the old ones: by position, and by payload if it is kept."""
    payload = table.keeps_payload
    columns = [*IDENTITY, *(["value"] if payload else [])]
    before, after = (RowChecksums({}, payload=payload) for _ in range(2))
    for files, sums in ((old, before), (made, after)):
        for rows in read_rows(table.root, files, columns):
            sums.add_rows(rows)
    if before.sums != after.sums or sum(file.rows for file in made) != sum(file.rows for file in old):
        names = ", ".join(file.path for file in made)
        raise CompactionFailed(f"{names} do not have the rows of the {len(old)} files they were made of")


def _sync(path: Path) -> None:
    for target in (path, path.parent):
        handle = os.open(target, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ---- old files -----------------------------------------------------------------------------------------------


def retired(table: CommittedTable) -> Mapping[str, float]:
    """Return the files on disk that a compaction has replaced -> when (s since the epoch)."""
    gone = {path: entry.written for entry in table.entries for path in entry.removed}
    return {path: when for path, when in gone.items() if (table.root / path).exists()}


def delete_retired(name: str, flow: Flow, *, older_than: float, now: float | None = None) -> list[str]:
    """Delete files that were replaced more than `older_than` seconds ago; return their paths.

    Raises TableLocked, OSError.
    """
    moment = time.time() if now is None else now
    with table_lock(flow.sink.path):
        table = open_table(name, flow)
        old = sorted(path for path, when in retired(table).items() if moment - when >= older_than)
        for path in old:
            (table.root / path).unlink(missing_ok=True)
    return old
