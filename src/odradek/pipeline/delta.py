"""Commits to a Delta table, through delta-rs and without Spark.

The ledger's entry is part of the commit, as metadata. The commit makes a batch part of the table; if a crash prevented
the ledger's entry, it is restored from the commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.errors import ConfigError
from odradek.pipeline.decode import RECORD_TIME
from odradek.pipeline.ledger import DataFile, Ledger, LedgerEntry
from odradek.pipeline.times import seconds

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["DeltaLog", "refused"]

METADATA = "odradek"
"""Key of the entry in a commit."""

COLUMNS = {"topic": pa.string(), "date": pa.date32(), "hour": pa.int32()}


class DeltaLog:
    """The log of a Delta table that one flow writes.

    Args:
        root: Directory of the table.
        flow: Name of the flow; its batches are transactions of the application `odradek:<flow>`.
        partition_by: The table's partition columns.
    """

    def __init__(self, root: Path, flow: str, partition_by: Sequence[str]) -> None:
        self.root, self.application, self.partition_by = root, f"odradek:{flow}", list(partition_by)

    def newest(self) -> LedgerEntry | None:
        """Return the entry of the newest commit of this flow, or None."""
        table = self._table()
        if table is None or table.transaction_version(self.application) is None:
            return None
        for commit in table.history():
            if METADATA in commit:
                return LedgerEntry.decode(commit[METADATA].encode())
        return None

    def finish(self, ledger: Ledger) -> None:
        """Write the entry of the newest commit to the ledger if a crash prevented that."""
        newest, tail = self.newest(), ledger.tail()
        if newest is not None and newest.batch > (tail.batch if tail else -1):
            ledger.commit(newest)

    def files(self) -> dict[str, DataFile]:
        """Return the current files of the table, by path."""
        table = self._table()
        rows = [] if table is None else pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return {file.path: file for file in map(_listed, rows)}

    def compact(self, size: int) -> None:
        """Merge small files into files of about `size` bytes, in a commit that changes no rows."""
        table = self._table()
        if table is not None:
            table.optimize.compact(target_size=size)

    def commit(self, entry: LedgerEntry) -> None:
        """Make the files of an entry part of the table. Does nothing without files, or if already committed."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import create_table_with_add_actions

        if not entry.files:
            return
        properties = CommitProperties(
            custom_metadata={METADATA: entry.encode().decode()},
            app_transactions=[Transaction(self.application, entry.batch)],
        )
        actions = [_add(file, int(entry.written * 1000)) for file in entry.files]
        schema = self._schema(entry.files[0])
        table = self._table()
        if table is None:
            create_table_with_add_actions(
                str(self.root), schema, actions, "error", self.partition_by, commit_properties=properties
            )
        elif self._version(table) < entry.batch:
            self._widen(table, schema)
            table.create_write_transaction(actions, "append", schema, self.partition_by, commit_properties=properties)

    def _widen(self, table: DeltaTable, schema: Any) -> None:
        """Add the columns that the table lacks, in a commit of its own: Delta readers see declared columns only."""
        known = {field.name for field in table.schema().fields}
        new = [field for field in schema.fields if field.name not in known]
        if new:
            table.alter.add_columns(new)

    def _version(self, table: DeltaTable) -> int:
        version = table.transaction_version(self.application)
        return -1 if version is None else version

    def _table(self) -> DeltaTable | None:
        try:
            from deltalake import DeltaTable
        except ImportError:
            raise ConfigError("deltalake is not installed: pip install odradek[pipeline]") from None
        return DeltaTable(str(self.root)) if DeltaTable.is_deltatable(str(self.root)) else None

    def _schema(self, file: DataFile) -> Any:
        from deltalake import Schema

        fields = {field.name: field for field in pq.read_schema(self.root / file.path)}
        fields |= {name: pa.field(name, COLUMNS[name]) for name in self.partition_by}
        return Schema.from_arrow(pa.schema(list(fields.values())))


def refused(columns: Mapping[str, pa.DataType]) -> str:
    """Return the reason why Delta cannot have such columns, or ""."""
    from deltalake import Schema

    try:
        Schema.from_arrow(pa.schema(list(columns.items())))
    except Exception as error:  # deltalake raises no narrower class
        return str(error).splitlines()[0]
    return ""


def _listed(row: Mapping[str, Any]) -> DataFile:
    partition = {
        name.removeprefix("partition."): f"{value:02}" if isinstance(value, int) else str(value)
        for name, value in row.items()
        if name.startswith("partition.")
    }
    least, most = (seconds(row.get(f"{which}.{RECORD_TIME}")) for which in ("min", "max"))
    return DataFile(unquote(row["path"]), row["num_records"] or 0, row["size_bytes"], partition, least, most)


def _add(file: DataFile, when: int) -> Any:
    from deltalake.transaction import AddAction

    partition: Mapping[str, str | None] = dict(file.partition)
    stats = json.dumps({"numRecords": file.rows})
    return AddAction(file.path, file.size, partition, when, True, stats)
