"""Tables that are merged into rather than appended to: the last row of each key, or one row of each id.

The rows of a batch are merged by one process, in memory: `run.batch_bytes` bounds them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from odradek.pipeline.errors import TableMismatch
from odradek.pipeline.layout import RECORD_TIME, TIME, Storage, fitted

__all__ = ["DELETED", "FIRST_TIME", "LAST_TIME", "MergeRule", "check_rule", "last_rows", "read_files", "unique_rows"]

pc: Any = pyarrow.compute

DELETED = "odradek_deleted"
"""Column of the rows to merge: True for a tombstone, which deletes the row of its key."""

FIRST_TIME, LAST_TIME = "odradek_first_time", "odradek_last_time"

Stored: TypeAlias = Callable[[str, datetime, datetime], Iterable[pa.RecordBatch]]

_POSITION = ("topic", "broker", "partition", "offset", "index")


class MergeRule(NamedTuple):
    """The rows that a table keeps."""

    last_by: tuple[str, ...] = ()  # the last row of each value of these columns
    unique: str = ""  # or: leave out a row if the table has one with the same value of this column...
    hours: float = 0.0  # ...whose time differs by at most this (h)
    value: str = ""  # the column whose null marks a tombstone; "": none does

    @property
    def window_us(self) -> int:
        """The length of `hours` (us)."""
        return round(self.hours * 3_600_000_000)


def check_rule(rule: MergeRule, schema: pa.Schema, where: str) -> None:
    """Raise TableMismatch for a column that the table does not have, or that has no single value."""
    for name in rule.last_by or (rule.unique,):
        if name not in schema.names:
            raise TableMismatch(where, f"rows are merged by {name!r}, but its columns are {', '.join(schema.names)}")
        if pa.types.is_nested(schema.field(name).type):
            raise TableMismatch(where, f"rows are merged by {name!r}, which is {schema.field(name).type}")


def read_files(storage: Storage, files: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """Return the rows of files (`DataFile`), with the columns of their partitions."""
    tables = [schema.empty_table()]
    for file in files:
        with storage.open(file.path) as source:
            rows = pq.ParquetFile(source).read()
        for name, value in file.partition.items():
            if name not in rows.schema.names:
                constant: Any = pa.scalar(value, schema.field(name).type)
                rows = rows.append_column(name, pa.repeat(constant, rows.num_rows))
        tables.append(fitted(rows, schema))
    return pa.concat_tables(tables).combine_chunks()


def last_rows(rule: MergeRule, rows: pa.Table, tombstones: pa.Table) -> pa.Table:
    """Return the last row of each key of a batch, by position, with a column `DELETED`.

    Rows with a null in their key all stay. `tombstones` are records without a value, with the columns of records.
    """
    gone: Any = pc.is_null(rows[rule.value]) if rule.value else pa.repeat(False, rows.num_rows)
    erased: Any = pa.repeat(True, tombstones.num_rows)
    every = pa.concat_tables(
        [rows.append_column(DELETED, gone), fitted(tombstones, rows.schema).append_column(DELETED, erased)]
    )
    every = _numbered(every)
    known = pc.is_valid(every[rule.last_by[0]])
    for name in rule.last_by[1:]:
        known = pc.and_(known, pc.is_valid(every[name]))
    last = every.filter(known).group_by(list(rule.last_by)).aggregate([("row", "max")])["row_max"]
    without_key = every.filter(pc.and_not(pc.invert(known), every[DELETED]))["row"]
    return every.take(pa.concat_arrays([*last.chunks, *without_key.chunks])).drop_columns(["row"])


def unique_rows(rule: MergeRule, rows: pa.Table, stored: Stored) -> pa.Table:
    """Return the rows of a batch without those whose id another one has that is kept, with a time within the window.

    The ends of the window around each row are in the columns `FIRST_TIME` and `LAST_TIME`. An id that the
    batch has once stays, even if the table has it: the merge leaves that row out. `stored` yields a column, and the
    time, of the table's rows with a time in a range.
    """
    rows = _numbered(rows)
    ids = rows[rule.unique]
    counts = pc.value_counts(ids.drop_null())
    several = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    is_repeated = pc.and_(pc.is_in(ids, value_set=several), pc.is_valid(ids))
    kept: dict[Any, list[int]] = defaultdict(list)
    if len(several):
        window = timedelta(microseconds=rule.window_us)
        ends = pc.min_max(rows[RECORD_TIME])
        for batch in stored(rule.unique, ends["min"].as_py() - window, ends["max"].as_py() + window):
            known = batch[rule.unique].cast(several.type)
            for identity, time in _pairs(known, batch[RECORD_TIME], pc.is_in(known, value_set=several)):
                kept[identity].append(time)
    dropped: list[int] = []
    repeated_rows: Any = rows["row"].filter(is_repeated)
    for row, (identity, time) in zip(
        repeated_rows.to_pylist(), _pairs(ids, rows[RECORD_TIME], is_repeated), strict=True
    ):
        if any(abs(time - other) <= rule.window_us for other in kept[identity]):
            dropped.append(row)
        else:
            kept[identity].append(time)
    rows = rows.filter(pc.invert(pc.is_in(rows["row"], value_set=pa.array(dropped, pa.int64())))).drop_columns(["row"])
    numbers = rows[RECORD_TIME].cast(pa.int64())
    for name, distance in ((FIRST_TIME, -rule.window_us), (LAST_TIME, rule.window_us)):
        rows = rows.append_column(name, pc.add(numbers, distance).cast(TIME))
    return rows


def _pairs(ids: Any, times: Any, chosen: Any) -> Iterator[tuple[Any, int]]:
    """Yield the ids and times (us) of some rows."""
    numbers = times.filter(chosen).cast(pa.int64()).to_pylist()
    return zip(ids.filter(chosen).to_pylist(), numbers, strict=True)


def _numbered(rows: pa.Table) -> pa.Table:
    """Return rows in the order of their positions, with their number in a column `row`."""
    keys: Any = [(name, "ascending") for name in _POSITION if name in rows.schema.names]
    return rows.sort_by(keys).append_column("row", pa.array(range(rows.num_rows), pa.int64()))
