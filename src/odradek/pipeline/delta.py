"""Delta tables, through deltalake (delta-rs) and without Spark.

Each batch is a transaction of the application `odradek:<flow>`, whose version is the batch's number: Delta refuses a
commit when another one of the same application was made meanwhile. The batch's record is part of the commit's metadata.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from odradek.errors import ConfigError
from odradek.pipeline.commits import Commit
from odradek.pipeline.errors import TableConflict, TableHistoryLost, TableMismatch
from odradek.pipeline.layout import RECORD_TIME, partition_text, storage_errors
from odradek.pipeline.merge import DELETED, FIRST_TIME, LAST_TIME, MergeRule, last_rows, read_files, unique_rows
from odradek.pipeline.table import UNLISTED_S, DataFile, ListedFile, Table, TableOptions

try:
    import deltalake
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
    from deltalake.transaction import AddAction
except ImportError:  # pragma: no cover
    raise ConfigError("deltalake is not installed: pip install 'odradek[pipeline]'") from None

__all__ = ["DeltaTable", "column_statistics"]

MADE_BY = b"odradek.flow"
"""Key of the metadata of a column that a flow has made."""

BATCH_ROWS = 16_384
"""Rows in memory at a time."""

APPENDABLE = frozenset({"appendOnly", "changeDataFeed", "invariants", "timestampNtz"})
"""Features of tables to which files of plain columns can be appended."""

LIMITS = (1, 16, 256, None)
"""Commits that are searched for the flow's newest one: it is nearly always the newest of all."""


class DeltaTable(Table):
    """A Delta table."""

    conflicts = (CommitFailedError,)
    failures = (DeltaError, OSError)

    def __init__(self, options: TableOptions) -> None:
        super().__init__(options)
        self._application = f"odradek:{options.flow}"
        self._written: set[str] = set()  # columns of the flow, as it is now
        self._store = dict(options.storage.options)

    def refresh(self) -> bool:
        self._loaded = None
        with storage_errors(self.where, DeltaError), suppress(TableNotFoundError):  # `is_deltatable` lists all files
            self._loaded = deltalake.DeltaTable(self.where, storage_options=self._store)
        return self.exists

    def create(self, schema: pa.Schema, first: Commit) -> None:
        schema = self._stored(schema)
        try:
            deltalake.DeltaTable.create(
                self.where, schema, mode="error", partition_by=self._partitions, storage_options=self._store,
                commit_properties=self._properties(first),
            )  # fmt: skip
        except DeltaError as error:
            if self.refresh():
                raise TableConflict(self.options.flow, self.where, "another process has created it") from error
            raise
        self.refresh()

    @property
    def _partitions(self) -> list[str]:
        return [column.name for column in self.options.columns]

    @property
    def identity(self) -> str:
        return str(self.loaded.metadata().id)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self.loaded.schema().to_arrow())

    def file_schema(self) -> pa.Schema:
        names = self.loaded.metadata().partition_columns
        return pa.schema([field for field in self.schema if field.name not in names])

    def check(self) -> None:
        has = self.loaded.metadata().partition_columns
        if has != self._partitions:
            raise TableMismatch(self.where, f"the table is partitioned by {has}, the flow by {self._partitions}")
        if foreign := self._foreign_features():
            names = ", ".join(sorted(foreign))
            what = f"others have given the table {names}, which its writer here does not keep to; remove that again"
            raise TableMismatch(self.where, what)

    def _foreign_features(self) -> set[str]:
        """Return features that ask more of new files than to have the table's columns under their names."""
        features = set(self.loaded.protocol().writer_features or ()) - APPENDABLE
        settings = self.loaded.metadata().configuration
        if settings.get("delta.columnMapping.mode", "none") != "none":
            features.add("columnMapping")
        if any(key.startswith("delta.constraints.") for key in settings):
            features.add("checkConstraints")
        return features

    def evolve(self, schema: pa.Schema) -> None:
        schema, known = self._stored(schema), {field.name: field.type for field in self.schema}
        self._written = set(schema.names)
        for field in schema:
            if known.get(field.name, field.type) != field.type:
                what = (
                    f"column {field.name} is {known[field.name]} in the table, and would be {field.type}: deltalake "
                    "changes no types, so give the field another name"
                )
                raise TableMismatch(self.where, what)
        new = [field for field in schema if field.name not in known]
        if new:
            self.loaded.alter.add_columns(list(deltalake.Schema.from_arrow(pa.schema(new)).fields))
            self.refresh()

    def _stored(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema in the types that Delta has: bytes of a fixed size, as of Avro, are bytes. Raises
        TableMismatch for a column that it has no type for."""
        fields: list[pa.Field[Any]] = []
        for field in schema:
            try:
                stored: Any = deltalake.Schema.from_arrow(pa.schema([field])).to_arrow()
                fields += pa.schema(stored)
            except Exception as error:  # deltalake raises no other class
                what = f"column {field.name} is {field.type}, which Delta tables cannot have"
                raise TableMismatch(self.where, what) from error
        return pa.schema([field.with_metadata({MADE_BY: self.options.flow}) for field in fields])

    # ---- records ---------------------------------------------------------------------------------------------

    def recorded_batch(self) -> int | None:
        version: int | None = self.loaded.transaction_version(self._application)
        return version

    def commits(self) -> Iterator[Commit]:
        """Leave out what a restoration has undone."""
        seen, newest = 0, math.inf
        for limit in LIMITS:
            with storage_errors(self.where):
                history = self.loaded.history(limit)
            for entry in history[seen:]:
                if (version := entry["version"]) > newest:
                    continue
                if entry.get("operation") == "RESTORE":
                    newest = self._restored(entry)
                elif self._key in entry:
                    yield Commit.from_json(entry[self._key], f"{self.where}, version {version}")
            seen = len(history)
            if limit is None or seen < limit:
                return

    def _restored(self, entry: Mapping[str, Any]) -> int:
        """Return the version that a commit has gone back to."""
        parameters = entry.get("operationParameters", {})
        if "version" in parameters:
            return int(parameters["version"])
        at = parameters.get("datetime", parameters.get("timestamp"))
        raise TableHistoryLost(self.where, f"it was restored to {at}, which does not say which version this is")

    def _check_follows(self, commit: Commit) -> None:
        with storage_errors(self.where):  # Delta takes a commit on top of a restoration that it has not seen
            self.loaded.update_incremental()
        super()._check_follows(commit)

    def _append(self, files: Sequence[DataFile], commit: Commit) -> None:
        actions = [_action(file, commit) for file in files]
        self.loaded.create_write_transaction(
            actions, "append", self.loaded.schema(), self._partitions, commit_properties=self._properties(commit)
        )

    def merge(self, files: Sequence[DataFile], tombstones: pa.Table, commit: Commit) -> None:
        rule, storage = self.options.merge, self.options.storage
        assert rule is not None
        rows = read_files(storage, files, self.schema)
        rows = last_rows(rule, rows, tombstones) if rule.last_by else unique_rows(rule, rows, self._between)
        if rows.num_rows:
            self._apply(commit, lambda: self._merge(rule, rows, commit))
        else:
            self.append([], commit)
        for file in files:
            storage.remove(file.path)

    def _between(self, name: str, first: Any, last: Any) -> Iterator[pa.RecordBatch]:
        """Yield a column, and the time, of the rows with a time from `first` to `last`."""
        return self._read([name, RECORD_TIME], (pc.field(RECORD_TIME) >= first) & (pc.field(RECORD_TIME) <= last))

    def _merge(self, rule: MergeRule, rows: pa.Table, commit: Commit) -> None:
        columns = {f"`{name}`": f"s.`{name}`" for name in self.schema.names}
        # A column of another program stays as it is. One that the flow has no more gets a null, like those of new rows.
        own = {field.name for field in self.schema if MADE_BY in (field.metadata or {})} | self._written
        updates = {f"`{name}`": f"s.`{name}`" for name in self.schema.names if name in own}
        merge = self.loaded.merge(
            rows, _condition(rule, rows), source_alias="s", target_alias="t", commit_properties=self._properties(commit)
        )
        if rule.last_by:
            merge = merge.when_matched_delete(f"s.{DELETED}")
            merge = merge.when_matched_update(updates, f"NOT s.{DELETED}")
            merge.when_not_matched_insert(columns, f"NOT s.{DELETED}").execute()
        else:
            merge.when_not_matched_insert(columns).execute()
        if not self._is_committed(commit):  # delta-rs commits no merge that changes nothing
            self._check_follows(commit)
            self._append([], commit)

    def _properties(self, commit: Commit) -> CommitProperties:
        return CommitProperties(
            custom_metadata={self._key: commit.to_json()},
            app_transactions=[Transaction(self._application, commit.batch)],
        )

    # ---- files -----------------------------------------------------------------------------------------------

    def files(self) -> list[ListedFile]:
        adds = self.loaded.get_add_actions(flatten=True)
        columns = (adds[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
        return [ListedFile(path, size, rows or 0) for path, size, rows in zip(*columns, strict=True)]

    def rows(self, columns: Sequence[str], span: tuple[int, int] | None) -> Iterator[pa.RecordBatch]:
        offset = pc.field("offset")
        return self._read(columns, None if span is None else (offset >= span[0]) & (offset < span[1]))

    def _read(self, columns: Sequence[str], where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            rows = self.loaded.to_pyarrow_dataset()
        except DeltaProtocolError as error:  # others have given it a feature that needs another reader
            raise TableMismatch(self.where, f"its rows cannot be read here: {error}") from error
        yield from rows.to_batches(columns=list(columns), filter=where, batch_size=BATCH_ROWS)

    def compact(self, file_bytes: int) -> Mapping[str, int]:
        metrics = self.loaded.optimize.compact(target_size=file_bytes)
        self.refresh()
        return {"removed": int(metrics["numFilesRemoved"]), "added": int(metrics["numFilesAdded"])}

    def clean(self, older_s: float, *, dry_run: bool) -> list[str]:
        removed = self._vacuum(older_s, dry_run=dry_run, full=False)  # what a version has listed
        ahead = max(0.0, time.time() - self.options.storage.now())  # delta-rs takes this machine's clock for the ages
        removed += self._vacuum(max(older_s, UNLISTED_S) + ahead, dry_run=dry_run, full=True)
        if not dry_run:
            self.loaded.create_checkpoint()
            self.loaded.cleanup_metadata()  # of the log, as old as the table's own property says
        self.refresh()
        return list(dict.fromkeys(removed))

    def _vacuum(self, older_s: float, *, dry_run: bool, full: bool) -> list[str]:
        hours = math.ceil(older_s / 3600)
        removed = self.loaded.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=full)
        self.refresh()
        return list(removed)


def _condition(rule: MergeRule, rows: pa.Table) -> str:
    """Return when a row of the table is that of a row to merge."""
    if rule.last_by:
        return " AND ".join(f"t.`{name}` = s.`{name}`" for name in rule.last_by)
    first, last = pc.min(rows[FIRST_TIME]).as_py(), pc.max(rows[LAST_TIME]).as_py()
    return (
        f"t.`{rule.unique}` = s.`{rule.unique}` AND t.{RECORD_TIME} BETWEEN s.{FIRST_TIME} AND s.{LAST_TIME} "
        f"AND t.{RECORD_TIME} >= '{first.isoformat()}' AND t.{RECORD_TIME} <= '{last.isoformat()}'"  # skips files
    )


def _action(file: DataFile, commit: Commit) -> AddAction:
    statistics = json.dumps(column_statistics(file.footer), ensure_ascii=False)
    partition = {name: partition_text(value) for name, value in file.partition.items()}
    return AddAction(quote(file.path, safe="/="), file.size, partition, int(commit.written * 1000), True, statistics)


# ---- statistics of a file, by which readers skip it ----------------------------------------------------------

LONGEST = 64
"""Longer texts are cut off in a minimum, and leave out a maximum."""


def column_statistics(footer: Any) -> dict[str, Any]:
    """Return Delta's statistics of a file with this footer (`pyarrow.parquet.FileMetaData`).

    They are `numRecords`, and `minValues`, `maxValues` and `nullCount` of columns with one value.
    """
    result: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    dots = any("." in f"{field.name}{field.type}" for field in footer.schema.to_arrow_schema())  # paths are ambiguous
    for number in range(footer.num_columns):
        column = footer.schema.column(number)
        path = [column.path] if column.path == column.name else column.path.split(".")
        known: list[Any] = [group.column(number).statistics for group in groups]
        if column.max_repetition_level or (len(path) > 1 and dots) or any(each is None for each in known):
            continue
        _put(result["nullCount"], path, sum(each.null_count for each in known))
        present = [each for each in known if each.has_min_max]
        if present and all(each.has_min_max or each.null_count == each.num_values for each in known):
            with suppress(ValueError, OverflowError):  # a time after the year 9999
                minimum = _json_value(min(each.min for each in present))
                maximum = _json_value(max(each.max for each in present))
                _put(result["minValues"], path, minimum[:LONGEST] if isinstance(minimum, str) else minimum)
                too_long = isinstance(maximum, str) and len(maximum) > LONGEST
                _put(result["maxValues"], path, None if too_long else maximum)
    return result


def _put(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    if value is not None:
        for name in path[:-1]:
            into = into.setdefault(name, {})
        into[path[-1]] = value


def _json_value(value: Any) -> Any:
    """Return a value as JSON has it; None where it has none."""
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, date):  # or a time without a zone
        return value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str) and not isinstance(value, bool) else None
