"""The one interface to tables, which Delta and Iceberg implement.

A table's own log is the truth. An append makes files and the batch's record (`Commit`) part of the table in one step,
or neither; it fails if the newest record is not the one that the batch was planned from.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from odradek.errors import ConfigError
from odradek.pipeline.commits import PROPERTY, Commit
from odradek.pipeline.errors import StorageError, TableConflict, TableHistoryLost, TableMismatch, TableReplaced
from odradek.pipeline.layout import PartitionColumn, Storage
from odradek.pipeline.merge import MergeRule
from odradek.ranges.planning import Range

__all__ = ["TRIES", "UNLISTED_S", "DataFile", "ListedFile", "Table", "TableOptions", "TableTotals", "make_table"]

TRIES = 8
"""Attempts at one commit, while other applications change the table."""


UNLISTED_S = 24 * 3600.0
"""`clean` leaves a file that no version has ever listed for this long (s): a run may be about to commit it. A batch
that takes nearly as long is not committed (`flow`), so that no commit can list what was deleted."""


class DataFile(NamedTuple):
    """A Parquet file that a task has written."""

    path: str  # relative to the table's location
    size: int  # bytes
    partition: Mapping[str, Any]  # the value of each partition column
    footer: Any  # its Parquet footer, `pyarrow.parquet.FileMetaData`


class ListedFile(NamedTuple):
    """A file that is part of a table now."""

    path: str  # relative to the table's location, or a full URL
    size: int  # bytes
    rows: int


class TableTotals(NamedTuple):
    """Totals of the current files of a table."""

    files: int = 0
    rows: int = 0
    size: int = 0  # of the files (bytes)


@dataclass(frozen=True)
class TableOptions:
    """The location and the layout of a table."""

    kind: str  # `delta` or `iceberg`
    flow: str  # name of the flow that writes it
    storage: Storage
    columns: tuple[PartitionColumn, ...] = ()
    zone: str = "UTC"  # of dates and hours
    name: str = ""  # Iceberg: its identifier in the catalog
    catalog: Mapping[str, str] = field(default_factory=dict)  # Iceberg: properties of the catalog
    noted: Commit | None = None  # the record of the newest batch as it was noted outside of the table
    merge: MergeRule | None = None  # the rows that it keeps; None: all. Delta only
    letters: bool = False  # of dead letters: the numbers of batches begin again with the flow's own table


class Table(ABC):
    """A table at one location, as of the last `refresh`. All methods may raise OdradekError and OSError."""

    conflicts: tuple[type[Exception], ...]  # the library's errors of a commit that lost against another one
    failures: tuple[type[Exception], ...]  # all of its errors of a commit, which may be part of the table nevertheless

    def __init__(self, options: TableOptions) -> None:
        self.options = options
        self._key = f"{PROPERTY}.{options.flow}"  # of the flow's record in the metadata of commits
        self._loaded: Any = None

    @property
    def where(self) -> str:
        """The location, for messages."""
        return self.options.storage.root

    @property
    def exists(self) -> bool:
        """True if the last `refresh` has found a table."""
        return self._loaded is not None

    @property
    def loaded(self) -> Any:
        """The library's own table, as of the last `refresh`."""
        assert self._loaded is not None
        return self._loaded

    @abstractmethod
    def refresh(self) -> bool:
        """Load the newest version; return False if there is no table."""

    def release(self) -> str:
        """Free the name of the table for a new one, where a catalog gives it to one that is gone or elsewhere; return
        what was done, "" if nothing. The user has accepted that."""
        return ""

    @abstractmethod
    def create(self, schema: pa.Schema, first: Commit) -> None:
        """Create the table, with a record that says where its first batch begins. Raises TableConflict."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """The table's own id, which it keeps when it is moved, and which no other table has."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns, those that only partition the table included."""

    @abstractmethod
    def file_schema(self) -> pa.Schema:
        """Return the columns of its files, as they are written."""

    @abstractmethod
    def check(self) -> None:
        """Raise TableMismatch if it is not partitioned as the options say."""

    @abstractmethod
    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns that it lacks. Raises TableMismatch for a column that has another type."""

    def check_names(self, schema: pa.Schema) -> None:
        """Raise TableMismatch for a column that it lacks, but for the case of the name: most readers ignore case."""
        names = set(self.schema.names)
        known = {name.casefold(): name for name in names}
        for name in schema.names:
            if name not in names and (same := known.get(name.casefold())) is not None:
                what = f"column {name} is {same} in the table, and most readers ignore case"
                raise TableMismatch(self.where, what)

    # ---- records ---------------------------------------------------------------------------------------------

    @abstractmethod
    def commits(self) -> Iterator[Commit]:
        """Yield the records of the flow, newest first, as far as the table's log goes back."""

    @abstractmethod
    def recorded_batch(self) -> int | None:
        """Return the number of the newest batch that was committed; the table keeps it longer than the record."""

    def newest(self) -> Commit | None:
        """Return the newest record of the flow whose rows are part of the table; None if the flow has none.

        When others have committed for so long that the log no longer has it, the record that was noted outside of the
        table counts, if the table still has rows of that batch: an older version may have been restored. Raises
        TableHistoryLost: the log had a record, and nothing else says what it was.
        """
        newest = next(self.commits(), None)
        batch = self.recorded_batch()
        if newest is not None or batch is None:
            return newest
        noted = self.options.noted
        if noted is not None and noted.batch == batch and any(map(self._has_rows, noted.ranges())):
            return noted
        raise TableHistoryLost(self.where, f"its log no longer has the record of batch {batch}")

    def newest_batch(self) -> int:
        """Return the number of the newest batch that is part of the table; -1 if there is none."""
        newest = next(self.commits(), None)
        batch = self.recorded_batch() if newest is None else newest.batch
        return -1 if batch is None else batch

    def has(self, commit: Commit) -> bool:
        """Return True if this very attempt at a batch is part of the table; without a record its number decides."""
        if self.newest_batch() < commit.batch:
            return False
        attempts = [each.attempt for each in self.commits()]
        return commit.attempt in attempts or not attempts

    def _has_rows(self, part: Range) -> bool:
        where = (pc.field("offset") >= part.start) & (pc.field("offset") < part.end)
        log = {name: value for name, value in part.partition._asdict().items() if name in self.schema.names}
        for name, value in log.items():
            where &= pc.field(name) == value
        batches = self.rows([*log, "offset"], (part.start, part.end))
        return any(pa.Table.from_batches([batch]).filter(where).num_rows for batch in batches)

    def append(self, files: Sequence[DataFile], commit: Commit) -> None:
        """Make files part of the table, with the record of their batch; without files, only the record.

        Other writers may have committed meanwhile. If it is not known whether a commit has succeeded, the table's log
        is read again.

        Raises:
            TableConflict: Another run has written this batch.
            TableReplaced: The newest record is older than that of the batch before this one.
            TableMismatch: Others have changed how the table is partitioned.
            StorageError: The store does not answer, or is full. The commit may be part of the table.
        """
        self._apply(commit, lambda: self._append(files, commit))

    @abstractmethod
    def _append(self, files: Sequence[DataFile], commit: Commit) -> None:
        """Commit once, on top of the version that is loaded."""

    def merge(self, files: Sequence[DataFile], tombstones: pa.Table, commit: Commit) -> None:
        """Merge the rows of files into the table by its rule, with the record of their batch, in one commit.

        The files are removed then: they do not become part of the table. `tombstones` are the batch's records without a
        value that are in no file, with the columns of records. Raises ConfigError if the format's library cannot do
        that in one commit, else as `append`.
        """
        raise ConfigError(f"{self.where}: {self.options.kind} tables cannot be merged into; use kind = 'delta'")

    def _apply(self, commit: Commit, change: Callable[[], None]) -> None:
        """Make a change with the record of a batch, again if another application's commit was first."""
        for attempt in range(TRIES):
            self._check_follows(commit)
            self.check()
            try:
                change()
            except self.failures as error:
                if self._is_committed(commit, error):
                    return
                if isinstance(error, OSError):
                    raise StorageError(self.where, error) from error
                if not isinstance(error, self.conflicts):
                    raise
                if attempt + 1 == TRIES:
                    why = f"others have changed the table during each of {TRIES} attempts to commit"
                    raise TableConflict(self.options.flow, self.where, why) from error
                time.sleep(0.05 * (attempt + 1))
            else:
                self.refresh()
                return

    def _check_follows(self, commit: Commit) -> None:
        batch = self.newest_batch()
        if self.has(commit) if self.options.letters else batch >= commit.batch:
            raise TableConflict(self.options.flow, self.where, f"batch {batch} is in the table already")
        if not self.options.letters and batch + 1 < commit.batch:  # it was restored: those between would be lost
            what = f"the table is an older version: its newest batch is {batch}, and this is batch {commit.batch}"
            raise TableReplaced(self.options.flow, self.where, what)

    def _is_committed(self, commit: Commit, error: Exception | None = None) -> bool:
        """Load the newest version; return True if it has this very commit, whatever the error says."""
        if not self.refresh():
            raise TableConflict(self.options.flow, self.where, "the table is gone") from error
        newest = next(self.commits(), None)
        return newest is not None and newest.attempt == commit.attempt

    # ---- files -----------------------------------------------------------------------------------------------

    @abstractmethod
    def files(self) -> list[ListedFile]:
        """Return its current files."""

    def totals(self) -> TableTotals:
        """Return the totals of its current files."""
        files = self.files()
        return TableTotals(len(files), sum(file.rows for file in files), sum(file.size for file in files))

    @abstractmethod
    def rows(self, columns: Sequence[str], span: tuple[int, int] | None) -> Iterator[pa.RecordBatch]:
        """Yield these columns of rows, in bounded memory.

        Files that have no offset in `span` [first, last) are left out, as far as statistics tell; None: all rows.
        """

    @abstractmethod
    def compact(self, file_bytes: int) -> Mapping[str, int]:
        """Merge small files; return how many were `removed` and `added`."""

    @abstractmethod
    def clean(self, older_s: float, *, dry_run: bool) -> list[str]:
        """Delete files that no version of the last `older_s` seconds needs; return their paths.

        Files that no version has ever listed stay for `UNLISTED_S` at least, by the clock of the store that dates them.
        """


def make_table(options: TableOptions) -> Table:
    """Return the table of these options; nothing is opened yet. Raises ConfigError if its library is missing."""
    if options.kind == "delta":
        from odradek.pipeline.delta import DeltaTable

        return DeltaTable(options)
    from odradek.pipeline.iceberg import IcebergTable

    return IcebergTable(options)
