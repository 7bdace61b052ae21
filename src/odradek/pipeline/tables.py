"""A committed table, from its ledger: batches, files, and their rows in bounded memory. Needs no Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odradek.pipeline.config import Flow
from odradek.pipeline.errors import LedgerCorrupted
from odradek.pipeline.ledger import DataFile, Ledger, LedgerEntry, live_files
from odradek.spark.offsets import parse_partition
from odradek.spark.planning import Range
from odradek.types import TopicPartition

__all__ = [
    "KINDS", "CommittedTable", "batch_gaps", "batch_ranges", "open_table", "partition_of", "read_rows", "row_counts",
    "without",
]  # fmt: skip

BATCH_ROWS = 16_384
"""Rows in memory at a time, from one file."""

KINDS: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "broker": pa.int32(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "index": pa.int32(),
    "nextOffset": pa.int64(),
}
"""Columns that every table has, whatever is in its rows."""


@dataclass(frozen=True, slots=True)
class CommittedTable:
    """A flow's table.

    Args:
        name: Name of the flow.
        flow: Its settings.
        root: Directory of the table.
        entries: Entries of the ledger, oldest first.
        live: The current files of the table, by path.
    """

    name: str
    flow: Flow
    root: Path
    entries: tuple[LedgerEntry, ...]
    live: Mapping[str, DataFile]

    @property
    def appends(self) -> list[LedgerEntry]:
        """The entries that brought rows from the log."""
        return [entry for entry in self.entries if entry.kind == "append"]

    @property
    def keeps_payload(self) -> bool:
        """True if the rows keep the message's bytes as in the log, in `value`."""
        return self.flow.decode.kind == "raw"

    @property
    def dead_root(self) -> Path | None:
        """The directory of the dead letters."""
        return Path(self.flow.dead.path) if self.flow.dead else None

    def files_of(self, batches: Collection[int]) -> list[DataFile]:
        """Return the files that have the rows of these batches now: their own, or compacted ones."""
        wanted: dict[str, DataFile] = {}
        for entry in self.entries:
            hit = entry.kind == "append" and entry.batch in batches
            for path in entry.removed:
                hit |= wanted.pop(path, None) is not None
            if hit:
                wanted.update((file.path, file) for file in entry.files)
        return list(wanted.values())


def open_table(name: str, flow: Flow) -> CommittedTable:
    """Open the table of a flow: read and check its ledger.

    Raises:
        LedgerCorrupted: The ledger does not hold together.
    """
    entries = Ledger(flow.sink.path, name).entries()
    return CommittedTable(name, flow, Path(flow.sink.path), tuple(entries), live_files(entries))


# ---- ranges --------------------------------------------------------------------------------------------------


def partition_of(topic: str, name: str) -> TopicPartition:
    """Return the partition with this name in a ledger. Raises LedgerCorrupted."""
    partition = parse_partition(topic, name)
    if partition is None:
        raise LedgerCorrupted(f"topic {topic}", f"{name!r} is not the name of a partition")
    return partition


def batch_ranges(entry: LedgerEntry) -> list[Range]:
    """Return the ranges of the logs that a batch covers, in canonical order, gaps included."""
    return sorted(
        Range(partition_of(topic, name), start[name], position)
        for topic, partitions in entry.end.items()
        for start in [entry.start.get(topic, {})]
        for name, position in partitions.items()
        if name in start and start[name] < position  # else the partition is new and not read yet
    )


def batch_gaps(entry: LedgerEntry) -> list[Range]:
    """Return the ranges of a batch that had nothing to read."""
    gaps = (Range(partition_of(gap.topic, gap.partition), gap.start, gap.end) for gap in entry.gaps)
    return sorted(gap for gap in gaps if gap.size > 0)


def without(whole: Range, gaps: Iterable[Range]) -> list[Range]:
    """Return a range without some gaps, which are in canonical order."""
    left: list[Range] = []
    at = whole.start
    for gap in gaps:
        if gap.partition == whole.partition and gap.start < whole.end and gap.end > at:
            if at < gap.start:
                left.append(whole._replace(start=at, end=gap.start))
            at = gap.end
    if at < whole.end:
        left.append(whole._replace(start=at))
    return left


# ---- rows ----------------------------------------------------------------------------------------------------


def read_rows(
    root: Path,
    files: Iterable[DataFile],
    columns: Sequence[str],
    *,
    ranges: Sequence[Range] | None = None,
    done: Callable[[DataFile], None] = lambda file: None,
) -> Iterator[pa.Table]:
    """Yield rows of Parquet files, a batch at a time.

    Args:
        root: Directory that the files' paths are relative to.
        files: The files.
        columns: The columns; partition columns are filled in from the file's path.
        ranges: Only rows that start in one of these ranges; None: all rows.
        done: Called with each file that was read.

    Raises:
        OSError, pyarrow.ArrowException: A file is missing, damaged or without one of the columns.
    """
    for file in files:
        with pq.ParquetFile(
            root / file.path, pre_buffer=False
        ) as reader:  # pre_buffer would hold whole columns of a file
            yield from _rows_of(reader, file, columns, ranges)
        done(file)


def _rows_of(
    reader: pq.ParquetFile, file: DataFile, columns: Sequence[str], ranges: Sequence[Range] | None
) -> Iterator[pa.Table]:
    names = reader.schema_arrow.names
    groups = [number for number in range(reader.num_row_groups) if _may_have(reader.metadata.row_group(number), ranges)]
    where = None if ranges is None else _in_ranges(ranges)
    wanted = columns if ranges is None else list(dict.fromkeys([*columns, *KINDS]))
    inside = [name for name in wanted if name in names]
    for batch in reader.iter_batches(BATCH_ROWS, row_groups=groups, columns=inside, use_threads=False):
        table = _filled(batch, file, [name for name in wanted if name in names or name in file.partition])
        if where is not None:
            table = table.filter(where).select(list(columns))
        if table.num_rows:
            yield table


def _may_have(group: pq.RowGroupMetaData, ranges: Sequence[Range] | None) -> bool:
    """Return True if a row group can have rows of these ranges, according to its statistics."""
    for number in range(group.num_columns if ranges is not None else 0):
        column = group.column(number)
        known = column.statistics
        if column.path_in_schema == "offset" and known is not None and known.has_min_max:
            least, most = cast(int, known.min), cast(int, known.max)
            return any(part.start <= most and least < part.end for part in ranges or ())
    return True


def _filled(batch: pa.RecordBatch, file: DataFile, columns: Sequence[str]) -> pa.Table:
    """Return a table with the partition columns added, and all columns cast to their types in memory."""
    arrays: list[Any] = []
    for name in columns:
        kind = KINDS.get(name)
        array: Any
        if name in batch.schema.names:
            array = batch.column(name)
        else:
            array = pa.repeat(pa.scalar(file.partition[name]), batch.num_rows)
        arrays.append(array if kind is None or array.type == kind else array.cast(kind))
    return pa.table(arrays, names=list(columns))


def _in_ranges(ranges: Sequence[Range]) -> pc.Expression:
    return reduce(or_, map(_in_range, ranges), pc.scalar(False))


def _in_range(part: Range) -> pc.Expression:
    topic, partition, broker = part.partition
    where = pc.field("broker").is_null() if broker < 0 else pc.field("broker") == broker
    where &= (pc.field("topic") == topic) & (pc.field("partition") == partition)
    return where & (pc.field("offset") >= part.start) & (pc.field("offset") < part.end)


def row_counts(root: Path, file: DataFile) -> tuple[int, int]:
    """Return bytes and rows of a file on disk. Raises OSError, pyarrow.ArrowException."""
    path = root / file.path
    return path.stat().st_size, pq.read_metadata(path).num_rows
