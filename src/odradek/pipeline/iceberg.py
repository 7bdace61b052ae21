"""Apache Iceberg tables, through pyiceberg: any catalog that it has, a file of SQLite by default.

Each batch is a snapshot with its record in the summary. A snapshot is only committed on top of the one that was looked
at (pyiceberg itself would move it on top of any other one).
"""

from __future__ import annotations

import os
import posixpath
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa

from odradek.errors import ConfigError
from odradek.pipeline.commits import Commit
from odradek.pipeline.errors import TableConflict, TableMismatch, TableReplaced
from odradek.pipeline.layout import PartitionColumn, storage_errors
from odradek.pipeline.table import TRIES, UNLISTED_S, DataFile, ListedFile, Table, TableOptions, TableTotals
from odradek.pipeline.write import FileWriter, WriteTarget

try:
    from pyiceberg import exceptions
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.io import pyarrow as arrow_io
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import DataFileContent, FileFormat
    from pyiceberg.table import DataScan, FileScanTask, Transaction
    from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION, TableMetadata
    from pyiceberg.table.snapshots import Snapshot, ancestors_of
    from pyiceberg.table.update.snapshot import ExpireSnapshots
    from pyiceberg.transforms import parse_transform
    from pyiceberg.typedef import Record
    from pyiceberg.utils.bin_packing import ListPacker
    from sqlalchemy.exc import SQLAlchemyError
except ImportError:  # pragma: no cover
    raise ConfigError("pyiceberg is not installed: pip install 'odradek[iceberg]'") from None

__all__ = ["IcebergTable"]

CATALOG = "odradek"
"""Default name of the catalog: tables in a catalog of SQLite belong to a name."""

SQLITE = "sqlite:///"

COUNTS = arrow_io.MetricsMode(arrow_io.MetricModeTypes.COUNTS)
"""Statistics of a column without its smallest and largest value."""

NO_RETRIES = {"commit.retry.num-retries": "0"}

MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"

PROPERTIES = {
    MIN_SNAPSHOTS: "500",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "50",
    "commit.manifest.target-size-bytes": "1048576",
}
"""Properties of a new table, without which each commit takes longer than the one before: it writes the list of all
snapshots and of all manifests again."""


TOTALS = ("total-data-files", "total-records", "total-files-size")
"""Keys of a snapshot's summary with the totals of all files of the table."""


class CachedTransaction(Transaction):
    """A transaction that applies its changes to the metadata once, not for each look at it: a copy of the metadata
    takes longer the more snapshots there are, and a commit looks 15 times."""

    _applied: tuple[int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The metadata with the changes."""
        count = len(self._updates)
        if self._applied is None or self._applied[0] != count:
            self._applied = count, super().table_metadata
        return self._applied[1]


class _Compacted(NamedTuple):
    """Small files of one partition, and the file with all of their rows; None: others have deleted all of them."""

    tasks: Sequence[FileScanTask]
    file: DataFile | None


class IcebergTable(Table):
    """An Iceberg table."""

    conflicts = (exceptions.CommitFailedException,)
    failures = (exceptions.CommitFailedException, exceptions.CommitStateUnknownException, OSError)

    def __init__(self, options: TableOptions) -> None:
        super().__init__(options)
        self._first = f"{self._key}.first"  # property with the record of batch 0: a new table has no snapshot
        self._batch = f"{self._key}.batch"  # property with the number of the newest batch
        self._path = f"{self._key}.path"  # property with `sink.path`; a catalog may choose another location
        self._stale = ""  # why what the catalog has under the name is not the table of these options

    @property
    def where(self) -> str:
        return f"{self.options.name} ({self.options.storage.root})"

    @property
    def _location(self) -> str:
        storage = self.options.storage
        return f"file://{storage.root}" if storage.is_local else storage.root

    @cached_property
    def _catalog(self) -> Catalog:
        properties = {**self.options.storage.options, **self.options.catalog}
        if (uri := properties.get("uri", "")).startswith(SQLITE):
            Path(uri.removeprefix(SQLITE)).parent.mkdir(parents=True, exist_ok=True)
        name = properties.pop("name", CATALOG)
        try:
            return load_catalog(name, **properties)
        except SQLAlchemyError:
            return load_catalog(name, **properties)  # another process may have just created the tables of the catalog

    def refresh(self) -> bool:
        self._loaded, self._stale = None, ""
        try:
            with storage_errors(self.where, SQLAlchemyError):
                catalog = self._catalog
            with storage_errors(self.where, SQLAlchemyError, exceptions.ValidationError, ValueError):
                loaded = catalog.load_table(self.options.name)
        except exceptions.NoSuchTableError:
            return False
        except FileNotFoundError:
            self._stale = "whose metadata is gone"
            return False
        root = self.options.storage.root
        path = loaded.properties.get(self._path, root)  # tables of earlier versions do not have it
        if os.path.realpath(path) != os.path.realpath(root):
            self._stale = f"which is at {path}"
            return False
        self._loaded = loaded
        return True

    def release(self) -> str:
        self.refresh()
        if not self._stale:
            return ""
        name = f"{self.options.name}_{uuid4().hex[:8]}"
        with suppress(FileNotFoundError):  # pyiceberg loads it under its new name
            self._catalog.rename_table(self.options.name, name)
        return f"{self.options.name}, {self._stale}, is {name} in the catalog now"

    def create(self, schema: pa.Schema, first: Commit) -> None:
        if self._stale:
            what = f"the catalog has {self.options.name}, {self._stale}"
            raise TableReplaced(self.options.flow, self.where, what)
        namespace = self.options.name.rpartition(".")[0]
        try:
            self._catalog.create_namespace(namespace)
        except exceptions.NamespaceAlreadyExistsError:
            pass
        except Exception:  # a catalog of SQL has its database's error if another process has just created it
            if not self._catalog.namespace_exists(namespace):
                raise
        try:
            with self._catalog.create_table_transaction(self.options.name, schema, location=self._location) as new:
                with new.update_spec() as spec:
                    for column in self.options.columns:
                        spec.add_field(column.source, _transform(column), column.name)
                new.set_properties({**PROPERTIES, self._first: first.to_json(), self._path: self.options.storage.root})
        except (exceptions.TableAlreadyExistsError, exceptions.CommitFailedException) as error:
            raise TableConflict(self.options.flow, self.where, "another process has created it") from error
        self.refresh()

    @property
    def identity(self) -> str:
        return str(self.loaded.metadata.table_uuid)

    @property
    def schema(self) -> pa.Schema:
        return arrow_io.schema_to_pyarrow(self.loaded.schema(), include_field_ids=False)

    def file_schema(self) -> pa.Schema:
        return arrow_io.schema_to_pyarrow(self.loaded.schema())

    def check(self) -> None:
        spec, schema = self.loaded.spec(), self.loaded.schema()
        has = [(schema.find_column_name(field.source_id), str(field.transform)) for field in spec.fields]
        wanted = [(column.source, str(_transform(column))) for column in self.options.columns]
        if has != wanted:
            raise TableMismatch(self.where, f"the table is partitioned by {has}, the flow by {wanted}")
        if (version := self.loaded.format_version) > (known := SUPPORTED_TABLE_FORMAT_VERSION):
            what = f"others have given the table format version {version}, and pyiceberg writes {known} at most"
            raise TableMismatch(self.where, what)

    def evolve(self, schema: pa.Schema) -> None:
        before = self.loaded.metadata_location
        try:
            with CachedTransaction(self.loaded) as transaction, transaction.update_schema() as update:
                update.union_by_name(schema)
        except exceptions.ValidationError as error:
            raise TableMismatch(self.where, str(error)) from error
        if self.loaded.metadata_location != before:
            self.refresh()

    # ---- records ---------------------------------------------------------------------------------------------

    def recorded_batch(self) -> int | None:
        batch = self.loaded.properties.get(self._batch)
        return None if batch is None else int(batch)

    def _snapshots(self) -> Iterator[tuple[Snapshot, str | None]]:
        """Yield the current snapshot and those before it, with their records; of what was rolled back it has none."""
        for snapshot in ancestors_of(self.loaded.current_snapshot(), self.loaded.metadata):
            summary = snapshot.summary
            yield snapshot, None if summary is None else summary.additional_properties.get(self._key)

    def commits(self) -> Iterator[Commit]:
        complete, last = self.recorded_batch() is None, -1
        for snapshot, text in self._snapshots():
            if text is not None:
                commit = Commit.from_json(text, f"{self.where}, snapshot {snapshot.snapshot_id}")
                complete = commit.batch == 1
                if commit.batch != last:  # a compaction has the record of the batch before it
                    yield commit
                last = commit.batch
        first = self.loaded.properties.get(self._first)
        if first is not None and complete:  # else snapshots have expired in between
            yield Commit.from_json(first, f"{self.where}, property {self._first}")

    def _append(self, files: Sequence[DataFile], commit: Commit) -> None:
        with self._transaction() as transaction:
            with transaction.update_snapshot({self._key: commit.to_json()}).merge_append() as snapshot:
                for file in files:
                    snapshot.append_data_file(self._data_file(file))
            transaction.set_properties({self._batch: str(commit.batch)})
            self._expire_oldest(transaction)

    def _transaction(self) -> CachedTransaction:
        """Return a transaction that is committed on top of the snapshot that is loaded, or not at all."""
        table = self.loaded
        properties = {**table.metadata.properties, **NO_RETRIES}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return CachedTransaction(table)

    def _expire_oldest(self, transaction: Transaction) -> None:
        """Expire snapshots above the number that the table's property has; branches and tags keep theirs."""
        metadata = transaction.table_metadata
        kept = int(metadata.properties.get(MIN_SNAPSHOTS, PROPERTIES[MIN_SNAPSHOTS]))
        needed = {ref.snapshot_id for ref in metadata.refs.values()}
        snapshots = sorted(metadata.snapshots, key=lambda each: each.timestamp_ms)
        old = [each.snapshot_id for each in snapshots[: -max(1, kept)] if each.snapshot_id not in needed]
        if old:
            ExpireSnapshots(transaction).by_ids(old).commit()

    def _data_file(self, file: DataFile) -> IcebergFile:
        schema = arrow_io.pyarrow_to_schema(file.footer.schema.to_arrow_schema())  # of the table when it was written
        columns = arrow_io.compute_statistics_plan(schema, self.loaded.metadata.properties)
        ids = arrow_io.parquet_path_to_id_mapping(schema)
        for path in _late(file.footer):
            columns[ids[path]] = replace(columns[ids[path]], mode=COUNTS)
        statistics = arrow_io.data_file_statistics_from_parquet_metadata(file.footer, columns, ids)
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._location}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*(file.partition[column.name] for column in self.options.columns)),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=self.loaded.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    # ---- files -----------------------------------------------------------------------------------------------

    def files(self) -> list[ListedFile]:
        prefix = f"{self._location}/"
        rows = self.loaded.inspect.data_files()
        columns = (rows[name].to_pylist() for name in ("file_path", "file_size_in_bytes", "record_count"))
        return [ListedFile(path.removeprefix(prefix), size, count) for path, size, count in zip(*columns, strict=True)]

    def totals(self) -> TableTotals:
        """Return the totals of the newest snapshot, as far as its writer has counted: the list of all files is long."""
        snapshot = self.loaded.current_snapshot()
        if snapshot is None:
            return TableTotals()
        counted = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if counted.get("total-delete-files") != "0" or not counted.keys() >= set(TOTALS):
            return super().totals()  # files of deletes are part of the size
        return TableTotals(*(int(counted[name]) for name in TOTALS))

    def rows(self, columns: Sequence[str], span: tuple[int, int] | None) -> Iterator[pa.RecordBatch]:
        where = "true" if span is None else f"offset >= {span[0]} and offset < {span[1]}"
        scan = self.loaded.scan(row_filter=where, selected_fields=tuple(columns))
        return self._read(scan, scan.plan_files())

    def _read(self, scan: DataScan, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files, one after another: of several, pyiceberg keeps all in memory."""
        reader = arrow_io.ArrowScan(self.loaded.metadata, self.loaded.io, scan.projection(), scan.row_filter)
        for task in tasks:
            yield from reader.to_record_batches([task])

    # ---- small files ----

    def compact(self, file_bytes: int) -> Mapping[str, int]:
        """Write the rows of small files again; if others commit meanwhile, what they have not touched is merged."""
        compacted = [self._compacted(tasks) for tasks in self._small_files(file_bytes)]
        for _ in range(TRIES):
            deletes = {task.file: task.delete_files for task in self.loaded.scan().plan_files()}
            current = [
                each for each in compacted if all(deletes.get(task.file) == task.delete_files for task in each.tasks)
            ]
            if not current or self._replace(current):
                break
            self.refresh()
        else:
            current = []
        for each in compacted:
            if each.file is not None and each not in current:
                self.options.storage.remove(each.file.path)
        self.refresh()
        added = sum(each.file is not None for each in current)
        return {"removed": sum(len(each.tasks) for each in current), "added": added}

    def _small_files(self, file_bytes: int) -> Iterator[list[FileScanTask]]:
        """Yield files that make one of about this size together, at least two of the same partition."""
        partitions: dict[Any, list[FileScanTask]] = defaultdict(list)
        for task in self.loaded.scan().plan_files():
            file = task.file
            inside = file.spec_id == self.loaded.spec().spec_id and file.file_path.startswith(f"{self._location}/")
            if inside and 2 * file.file_size_in_bytes < file_bytes:
                partitions[tuple(file.partition)].append(task)
        for tasks in partitions.values():
            tasks.sort(key=lambda each: each.file.file_path)
            packed = ListPacker[FileScanTask](file_bytes, 1, False).pack(
                tasks, lambda each: each.file.file_size_in_bytes
            )
            yield from (group for group in packed if len(group) > 1)

    def _compacted(self, tasks: Sequence[FileScanTask]) -> _Compacted:
        options, first = self.options, tasks[0].file
        folder = posixpath.dirname(first.file_path.removeprefix(f"{self._location}/"))
        prefix = posixpath.join(folder, f"odradek-{options.flow}-merged-")
        target = WriteTarget(options.storage, self.file_schema(), options.kind, prefix=prefix)
        with FileWriter(target) as writer:
            for batch in self._read(self.loaded.scan(), tasks):
                writer.add(batch)
            files = writer.finish()
        if not files:
            return _Compacted(tasks, None)
        partition = {column.name: first.partition[number] for number, column in enumerate(options.columns)}
        return _Compacted(tasks, files[0]._replace(partition=partition))

    def _replace(self, compacted: Sequence[_Compacted]) -> bool:
        """Commit new files for small ones in one snapshot; return False if it is to be tried again.

        It has the newest record too, so that the snapshot before it, which needs the small files, can expire.
        """
        newest = next(self.commits(), None)
        record = {} if newest is None or newest.batch == 0 else {self._key: newest.to_json()}
        try:
            with self._transaction() as transaction, transaction.update_snapshot(record).overwrite() as change:
                for each in compacted:
                    for task in each.tasks:
                        change.delete_data_file(task.file)
                    if each.file is not None:
                        change.append_data_file(self._data_file(each.file))
        except (exceptions.CommitFailedException, exceptions.ValidationException):
            # Another commit was first; or pyiceberg has missed a small file in a manifest, because the threads that
            # read manifests compare each with the same object, which has the partitions of one manifest at a time.
            # Before 0.12 it did not notice, and left the rows of that file in the table twice.
            return False
        return True

    # ---- files that no snapshot needs ----

    def clean(self, older_s: float, *, dry_run: bool) -> list[str]:
        storage = self.options.storage
        before, removable = storage.now() - max(older_s, UNLISTED_S), dict(filter(self._is_removable, storage.files()))
        self.refresh()  # what was committed while they were listed counts
        listed = self._referenced_files(())
        candidates = [
            path for path, changed in removable.items() if changed < before or f"{self._location}/{path}" in listed
        ]
        expired = self._expirable((time.time() - older_s) * 1000)
        if expired and not dry_run:
            self.loaded.maintenance.expire_snapshots().by_ids(expired).commit()
            self.refresh()
        needed = self._referenced_files(expired)
        unneeded = sorted(path for path in candidates if f"{self._location}/{path}" not in needed)
        for path in () if dry_run else unneeded:
            storage.remove(path)
        return unneeded

    def _is_removable(self, file: tuple[str, float]) -> bool:
        """Return True for a path, with its time, of a file that writers of this table make."""
        folder, _, name = file[0].rpartition("/")
        if name.endswith(".parquet"):
            return name.startswith(f"odradek-{self.options.flow}-") or file[0].startswith("data/")
        return folder == "metadata" and name.endswith((".avro", ".metadata.json"))

    def _expirable(self, before_ms: float) -> list[int]:
        """Return the ids of older snapshots that nothing needs; that with the newest record and later ones stay."""
        needed = {ref.snapshot_id for ref in self.loaded.refs().values()}
        for snapshot, text in self._snapshots():
            needed.add(snapshot.snapshot_id)
            if text is not None:
                break
        old = (each for each in self.loaded.snapshots() if each.timestamp_ms < before_ms)
        return [each.snapshot_id for each in old if each.snapshot_id not in needed]

    def _referenced_files(self, expired: Collection[int]) -> set[str]:
        """Return the URLs of the files that the table needs, data and metadata, without some snapshots."""
        table = self.loaded
        statistics = (*table.metadata.statistics, *table.metadata.partition_statistics)
        paths = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        paths |= {each.statistics_path for each in statistics if each.snapshot_id not in expired}
        for snapshot in table.snapshots():
            if snapshot.snapshot_id in expired:
                continue
            paths.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path not in paths:
                    paths.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    paths.update(entry.data_file.file_path for entry in entries)
        return paths


def _late(footer: Any) -> Iterator[str]:
    """Yield the paths of columns of a file with a time after the year 9999, which Python has no value for."""
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            statistics = column.statistics
            if statistics is not None and statistics.logical_type.type in ("DATE", "TIMESTAMP"):
                try:
                    _ = statistics.min, statistics.max
                except (OverflowError, ValueError):
                    yield column.path_in_schema


def _transform(column: PartitionColumn) -> Any:
    name = "day" if column.transform == "date" else column.transform
    return parse_transform(f"{name}[{column.argument}]" if column.argument else name)
