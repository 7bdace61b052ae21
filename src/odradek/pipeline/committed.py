"""A table as its own log describes it: its batches, and their rows in bounded memory, also as plain files."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute

from odradek._arrays import group_rows, row_numbers
from odradek.errors import ConfigError
from odradek.pipeline.commits import Commit
from odradek.pipeline.config import Pipeline
from odradek.pipeline.errors import TableMismatch, TableMissing
from odradek.pipeline.flow import dead_options, open_table, table_options
from odradek.pipeline.layout import PartitionColumn, Storage, column_types
from odradek.pipeline.table import DataFile, Table
from odradek.pipeline.write import FileWriter, WriteTarget
from odradek.ranges.planning import Range
from odradek.types import TopicPartition

__all__ = [
    "IDENTITY", "KINDS", "LOG", "CommittedTable", "by_log", "constant", "export_table", "open_committed", "parted",
    "select",
]  # fmt: skip

pc: Any = pyarrow.compute

KINDS: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "broker": pa.int32(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "index": pa.int32(),
}
IDENTITY = tuple(KINDS)
"""Columns that identify a row."""

DEFAULTS: Mapping[str, int] = {"broker": -1, "index": 0}
"""Numbers that stand for columns which tables of 0.8 and later do not have."""

LOG = TopicPartition._fields
"""Columns that identify the log of a row."""


@dataclass(frozen=True)
class CommittedTable:
    """A flow's table."""

    name: str  # of the flow
    table: Table
    dead: Table | None  # the table with its dead letters, if there is one
    commits: tuple[Commit, ...]  # its records, oldest first, as far as the table's log goes back
    keeps_payload: bool  # True if the rows keep the records' bytes, in `value`

    @property
    def batches(self) -> Sequence[Commit]:
        """The records of batches: without that of the table's creation."""
        return [commit for commit in self.commits if commit.batch > 0]

    def rows(
        self, ranges: Sequence[Range] | None, columns: Sequence[str] = (), *, dead: bool = False
    ) -> Iterator[pa.Table]:
        """Yield rows, or dead letters, that start in some ranges, at most one of each log (None: all).

        Their columns are `IDENTITY`, and these. Raises TableMismatch if others have renamed or dropped one of them.
        """
        table = self.dead if dead else self.table
        if table is None or (ranges is not None and not ranges):
            return
        wanted, known = list(dict.fromkeys((*IDENTITY, *columns))), table.schema.names
        if lost := [name for name in wanted if name not in (*known, *DEFAULTS)]:
            what = f"the table has no column {lost[0]} any more: others have renamed or dropped it"
            raise TableMismatch(table.where, what)
        span = None if ranges is None else (min(part.start for part in ranges), max(part.end for part in ranges))
        for batch in table.rows([name for name in wanted if name in known], span):
            rows = pa.table({name: _column(batch, name) for name in wanted})
            if ranges is not None:
                rows, _ = parted(rows, ranges)
            if rows.num_rows:
                yield rows


def _column(batch: pa.RecordBatch, name: str) -> Any:
    kind = KINDS.get(name)
    if name not in batch.schema.names:
        return constant(DEFAULTS[name], KINDS[name], batch.num_rows)
    column: Any = batch[name] if kind is None else batch[name].cast(kind)
    return column.fill_null(-1) if name == "broker" else column


def open_committed(pipeline: Pipeline, name: str) -> CommittedTable:
    """Open the table of a flow. Raises TableMissing if there is none."""
    options, dead = table_options(pipeline, name), dead_options(pipeline, name)
    table = open_table(options)
    if table is None:
        raise TableMissing(name, options.storage.root)
    commits = tuple(reversed(list(table.commits())))
    raw = pipeline.flows[name].decode.kind == "raw"
    return CommittedTable(name, table, None if dead is None else open_table(dead), commits, raw)


def select(
    commits: Sequence[Commit],
    *,
    numbers: Sequence[str] = (),
    since: float | None = None,
    until: float | None = None,
) -> list[Commit]:
    """Return the selected batches; all by default. Raises ConfigError for a malformed number.

    Args:
        commits: The records of all batches, in order.
        numbers: Any of these: `7`, `3:9` (both included), `3:`, `:9`.
        since, until: Only batches committed at this time or later, and before this time (s since the epoch).
    """
    ranges = [_numbers(text) for text in numbers]
    return [
        commit
        for commit in commits
        if (not ranges or any(first <= commit.batch <= last for first, last in ranges))
        and (since is None or commit.written >= since)
        and (until is None or commit.written < until)
    ]


def _numbers(text: str) -> tuple[float, float]:
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text, re.ASCII)
    if match is None or not (match[1] or match[3]):
        raise ConfigError(f"batch {text!r}: must be a number, or like 3:9, 3: or :9")
    first = float(match[1] or 0)
    return (first, float(match[3] or math.inf)) if match[2] else (first, first)


# ---- ranges and rows -----------------------------------------------------------------------------------------


def parted(rows: pa.Table, ranges: Iterable[Range]) -> tuple[pa.Table, pa.Table]:
    """Return the rows that start in some ranges, at most one of each log, and the other rows; neither in order."""
    spans = pa.Table.from_pylist(
        [{**part.partition._asdict(), "start": part.start, "end": part.end} for part in ranges],
        pa.schema([*((name, KINDS[name]) for name in LOG), ("start", pa.int64()), ("end", pa.int64())]),
    )  # fmt: skip
    positions = rows.select([*LOG, "offset"]).append_column("row", row_numbers(rows.num_rows))
    joined = positions.join(spans, list(LOG), join_type="left outer", use_threads=False)
    offset = joined["offset"]
    inside = pc.and_(pc.greater_equal(offset, joined["start"]), pc.less(offset, joined["end"])).fill_null(False)
    return rows.take(joined["row"].filter(inside)), rows.take(joined["row"].filter(pc.invert(inside)))


def constant(value: object, kind: pa.DataType, rows: int) -> Any:
    """Return a column of one value."""
    scalar: Any = pa.scalar(value, kind)
    return pa.repeat(scalar, rows)


def by_log(rows: pa.Table) -> Iterator[tuple[TopicPartition, pa.Table]]:
    """Yield the rows of each log, by offset and index."""
    rows = rows.sort_by([(name, "ascending") for name in (*LOG, "offset", "index")])
    for log, mine in group_rows(rows.select(LOG)):
        yield TopicPartition(*log), rows.slice(mine[0].as_py(), len(mine))  # sorted: they follow one another


# ---- plain files ---------------------------------------------------------------------------------------------


def export_table(
    table: Table,
    folder: Path,
    columns: tuple[PartitionColumn, ...],
    compression: str,
    advance: Callable[[int], None] = lambda rows: None,
) -> list[DataFile]:
    """Write all rows of a table's newest version as plain Parquet files; return the files.

    They are below `folder`, which must be empty or not exist, in Hive-style directories by these columns. `advance` is
    called with the number of rows that were read, from time to time.

    Raises:
        ConfigError: There is something in the directory, or no such column.
        OSError: A file cannot be read or written. The files written so far are removed.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: name a new directory")
    schema = table.schema
    types = column_types(columns, {field.name: field.type for field in schema})
    kept = pa.schema([field for field in schema if field.name not in types])
    storage = Storage(str(folder.absolute()), "parquet")
    prefix = f"{table.options.flow}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-"
    target = WriteTarget(storage, kept, "parquet", columns, table.options.zone, compression, prefix)
    with FileWriter(target) as writer:
        for batch in table.rows(schema.names, None):
            writer.add(batch.cast(schema))
            advance(batch.num_rows)
        return writer.finish()
