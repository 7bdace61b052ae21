"""The files of one task: writes rows to Parquet files with unique names, and counts them.

Files are written to the directories of the table, but are not part of it until the ledger lists them. The number of
open files, and the size of rows that wait for their row group, are bounded.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from odradek.pipeline.decode import POSITION_COLUMNS, RECORD_TIME, Decoded, DecodeJob, decode
from odradek.pipeline.errors import InexactRead
from odradek.pipeline.ledger import DataFile
from odradek.pipeline.times import directories, floor_minutes, local_hours, seconds
from odradek.spark.schema import RANGE_ROWS

__all__ = ["CoveredRange", "StageJob", "Stager", "TaskOutput", "file_prefix", "is_ours"]

pc: Any = pyarrow.compute
Array: TypeAlias = Any
"""A pyarrow array: see `decode`."""

GROUP_BYTES = 32 << 20
"""Size of a row group in memory (bytes)."""

HELD_BYTES = 128 << 20
"""Maximum size of rows that wait for their row group, in all files together (bytes)."""

OPEN_FILES = 64

EXAMPLES = 3


class StageJob(NamedTuple):
    """The work on the rows of a batch. Pickled into tasks.

    Args:
        root: Directory of the table.
        dead_root: Directory of the dead letters; "" if there are none.
        prefix: Prefix of the file names, unique for one attempt at one batch.
        decode: The decoding of values to columns.
        partition_by: Columns that make directories.
        zone: Time zone of dates and hours.
        compression: Compression of the Parquet files.
        bucket_minutes: Length of the audit's time buckets (min).
    """

    root: str
    dead_root: str
    prefix: str
    decode: DecodeJob
    partition_by: tuple[str, ...]
    zone: str
    compression: str
    bucket_minutes: int


class CoveredRange(NamedTuple):
    """A range of a log that was read completely: messages from `start` up to `end`."""

    topic: str
    partition: str
    start: int
    end: int


@dataclass
class TaskOutput:
    """The files and counts of a task."""

    files: list[DataFile] = field(default_factory=list)
    dead_files: list[DataFile] = field(default_factory=list)
    rows: int = 0
    payload: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    audit: Counter[tuple[int, str]] = field(default_factory=Counter)
    hours: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    runs: list[CoveredRange] = field(default_factory=list)

    @property
    def dead(self) -> int:
        return self.reasons.total()

    def add(self, other: TaskOutput) -> None:
        """Add the output of another task."""
        self.files += other.files
        self.dead_files += other.dead_files
        self.rows += other.rows
        self.payload += other.payload
        self.reasons += other.reasons
        self.examples = (self.examples + other.examples)[:EXAMPLES]
        self.audit += other.audit
        self.hours += other.hours
        self.runs += other.runs


def file_prefix(flow: str, batch: int, attempt: str) -> str:
    """Return the prefix of an attempt's file names, unique per batch and attempt."""
    return f"odradek-{flow}-{batch:08}-{attempt}-"


def is_ours(flow: str, name: str) -> bool:
    """Return True if a file name is one of this flow, compactions included. Those of a flow `a-b` are not of `a`."""
    return (
        re.fullmatch(rf"odradek-{flow}-\d{{8,}}-([0-9a-f]{{8}}-[0-9a-f]{{16}}|[0-9a-f]{{32}})\.parquet", name)
        is not None
    )


class Stager:
    """Writes one task's rows. Use `add` for each batch, then `finish`; or `abandon`."""

    def __init__(self, job: StageJob) -> None:
        self.job = job
        self.output = TaskOutput()
        self._files: dict[tuple[str, ...], _File] = {}
        self._dead: _File | None = None
        self._runs = _Runs(self.output.runs)
        self._ranges = _Ranges(self.output.runs, job.prefix)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the data source, in the order of their log."""
        if not batch.num_rows:
            return
        if RANGE_ROWS.name in batch.schema.names:
            batch = self._ranges.add(batch)
            if not batch.num_rows:
                return
        else:
            self._runs.add(batch)
        decoded = decode(self.job.decode, batch)
        good: Array = pc.is_null(decoded.reasons)
        dead = batch.num_rows - pc.sum(good).as_py()
        if dead:
            self._add_dead(batch.filter(pc.invert(good)), decoded.reasons.drop_null())
        table = _table(batch, decoded)
        values: Array = batch["value"]
        sizes = pc.binary_length(values)
        if dead:
            table, sizes = table.filter(good), sizes.filter(good)
        if table.num_rows:
            self._count(table, sizes)
            self._add_good(table)

    def finish(self) -> TaskOutput:
        """Close all files; they are on disk when this returns.

        Raises:
            InexactRead: Rows are missing, or came twice, according to the ranges that the data source has read.
        """
        self._ranges.check()
        for values in list(self._files):
            self._close(values)
        if self._dead is not None:
            self.output.dead_files.append(self._dead.close())
        self._runs.close()
        return self.output

    def abandon(self) -> None:
        """Remove all written files."""
        for file in [*self._files.values(), *([self._dead] if self._dead else [])]:
            file.remove()
        for root, files in ((self.job.root, self.output.files), (self.job.dead_root, self.output.dead_files)):
            for done in files:
                (Path(root) / done.path).unlink(missing_ok=True)

    # ---- good rows -------------------------------------------------------------------------------------------

    def _count(self, table: pa.Table, sizes: Array) -> None:
        output, times = self.output, table[RECORD_TIME].combine_chunks()
        output.rows += table.num_rows
        output.payload += pc.sum(sizes).as_py() or 0
        counted = pa.table({
            "topic": table["topic"], "size": sizes,
            "bucket": floor_minutes(times, self.job.bucket_minutes), "hour": floor_minutes(times, 60),
        })  # fmt: skip
        for row in counted.group_by(["bucket", "topic"]).aggregate([([], "count_all")]).to_pylist():
            output.audit[row["bucket"], row["topic"]] += row["count_all"]
        for row in counted.group_by(["hour", "topic"]).aggregate([([], "count_all"), ("size", "sum")]).to_pylist():
            output.hours[row["topic"], row["hour"], "rows"] += row["count_all"]
            output.hours[row["topic"], row["hour"], "bytes"] += row["size_sum"] or 0

    def _add_good(self, table: pa.Table) -> None:
        hours = local_hours(table[RECORD_TIME].combine_chunks(), self.job.zone)
        if "hour" not in self.job.partition_by:
            hours = pc.floor_temporal(hours, unit="day")
        keys = pa.table({"topic": table["topic"], "hour": hours}).combine_chunks()
        groups = keys.group_by(["topic", "hour"]).aggregate([]).to_pylist()
        for group in groups:
            part = table
            if len(groups) > 1:
                mine = pc.and_(pc.equal(keys["topic"], group["topic"]), pc.equal(keys["hour"], group["hour"]))
                part = table.filter(mine)
            self._file(directories(group["hour"], group["topic"], self.job.partition_by)).add(part)
        self._bound()

    def _file(self, partition: Mapping[str, str]) -> _File:
        values = tuple(partition.values())
        file = self._files.pop(values, None)
        if file is None:
            if len(self._files) >= OPEN_FILES:
                self._close(next(iter(self._files)))
            file = _File(self.job.root, self.job, partition)
        self._files[values] = file  # the last one used is last
        return file

    def _close(self, values: tuple[str, ...]) -> None:
        self.output.files.append(self._files.pop(values).close())

    def _bound(self) -> None:
        while sum(file.held for file in self._files.values()) > HELD_BYTES:
            max(self._files.values(), key=lambda file: file.held).flush()

    # ---- dead rows -------------------------------------------------------------------------------------------

    def _add_dead(self, batch: pa.RecordBatch, reasons: Array) -> None:
        output = self.output
        output.reasons.update(reasons.to_pylist())
        if len(output.examples) < EXAMPLES:
            output.examples += [
                f"{why}: {row['topic']}/{_log(row['broker'], row['partition'])} at {row['offset']}"
                for row, why in zip(batch.slice(0, EXAMPLES).to_pylist(), reasons[:EXAMPLES].to_pylist(), strict=True)
            ]
        if not self.job.dead_root:
            return
        if self._dead is None:
            self._dead = _File(self.job.dead_root, self.job, {})
        names = [*POSITION_COLUMNS, "value"]
        self._dead.add(pa.table([*(batch[name] for name in names), reasons], names=[*names, "reason"]))
        if self._dead.held > GROUP_BYTES:
            self._dead.flush()


def _table(batch: pa.RecordBatch, decoded: Decoded) -> pa.Table:
    arrays = [*(batch[name] for name in POSITION_COLUMNS), decoded.times, *decoded.columns]
    return pa.table(arrays, names=[*POSITION_COLUMNS, RECORD_TIME, *decoded.names])


def _log(broker: int | None, partition: int) -> str:
    """Return a partition's name, as in offsets."""
    return str(partition) if broker is None or broker < 0 else f"{broker}-{partition}"


# ---- one file ------------------------------------------------------------------------------------------------


class _File:
    """A file that is being written. Rows are held back until they make a row group."""

    def __init__(self, root: str, job: StageJob, partition: Mapping[str, str]) -> None:
        self._root, self._partition = Path(root), partition
        self._compression: Any = job.compression
        folder = "".join(f"{name}={quote(value, safe='')}/" for name, value in partition.items())
        self.path = f"{folder}{job.prefix}{uuid4().hex[:16]}.parquet"
        self.held = 0
        self._waiting: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self.held += rows.nbytes
        if self.held >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self.held = [], 0
        if self._writer is None:
            path = self._root / self.path
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, rows.schema, compression=self._compression)
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> DataFile:
        """Close the file; return its entry, from its own footer."""
        self.flush()
        assert self._writer is not None
        self._writer.close()
        path = self._root / self.path
        _to_disk(path, self._root)
        footer = pq.read_metadata(path)
        least, most = _range(footer)
        return DataFile(self.path, footer.num_rows, path.stat().st_size, self._partition, least, most)

    def remove(self) -> None:
        if self._writer is not None:
            with suppress(OSError):  # closing fails for the same reason as writing, such as a full disk
                self._writer.close()
            (self._root / self.path).unlink(missing_ok=True)


def _range(footer: pq.FileMetaData) -> tuple[float | None, float | None]:
    """Return the smallest and the largest time."""
    names = [footer.schema.column(index).path for index in range(footer.num_columns)]
    if RECORD_TIME not in names:
        return None, None
    column = names.index(RECORD_TIME)
    statistics: list[Any] = [
        footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)
    ]
    return seconds(min(each.min for each in statistics)), seconds(max(each.max for each in statistics))


def _to_disk(file: Path, root: Path) -> None:
    """Force a file and its directories to disk: a ledger must not list a file that a loss of power removes."""
    for path in (file, *file.parents):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if path == root:
            return


# ---- covered ranges ------------------------------------------------------------------------------------------


class _Ranges:
    """Ranges that the data source says it has read (`RANGE_ROWS`), and the rows that came of them."""

    def __init__(self, runs: list[CoveredRange], attempt: str) -> None:
        self._runs, self._attempt = runs, attempt
        self._missing: Counter[tuple[str, int]] = Counter()

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count rows and take note of ranges; return the rows of records."""
        is_record: Array = pc.is_null(batch[RANGE_ROWS.name])
        records = batch.filter(is_record)
        for row in batch.filter(pc.invert(is_record)).to_pylist():
            self._missing[row["topic"], row["partition"]] += row[RANGE_ROWS.name]
            self._runs.append(CoveredRange(row["topic"], str(row["partition"]), row["offset"], row["nextOffset"]))
        logs = pa.table({"topic": records["topic"], "partition": records["partition"]})
        for row in logs.group_by(["topic", "partition"]).aggregate([([], "count_all")]).to_pylist():
            self._missing[row["topic"], row["partition"]] -= row["count_all"]
        return records

    def check(self) -> None:
        """Raise InexactRead unless every range gave the rows that it should."""
        for (topic, partition), count in self._missing.items():
            if count:
                what = f"{count} rows are missing" if count > 0 else f"{-count} rows too many came"
                raise InexactRead(self._attempt, f"{topic}/{partition}: {what}")


class _Runs:
    """Joins rows to ranges without holes.

    Each row has the position of the next one; in a compressed wrapper, all but the last have that of the wrapper.
    """

    def __init__(self, runs: list[CoveredRange]) -> None:
        self._runs = runs
        self._last: CoveredRange | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        for first, stop in _gapless_runs(batch):
            row = {name: batch[name][first].as_py() for name in ("topic", "broker", "partition", "offset")}
            end = batch["nextOffset"][stop - 1].as_py()
            name = _log(row["broker"], row["partition"])
            last = self._last
            if last is not None and last[:2] == (row["topic"], name) and last.end == row["offset"]:
                self._last = last._replace(end=end)
            else:
                self.close()
                self._last = CoveredRange(row["topic"], name, row["offset"], end)

    def close(self) -> None:
        if self._last is not None:
            self._runs.append(self._last)
            self._last = None


def _gapless_runs(batch: pa.RecordBatch) -> Sequence[tuple[int, int]]:
    """Return runs of rows of one log without holes, as [first, stop)."""
    last = batch.num_rows - 1
    breaks: Array = pc.not_equal(batch["offset"].slice(1), batch["nextOffset"].slice(0, last))
    for name in ("topic", "partition", "broker"):
        column: Array = pc.fill_null(batch[name], -1) if name == "broker" else batch[name]
        breaks = pc.or_(breaks, pc.not_equal(column.slice(1), column.slice(0, last)))
    nonzero: Array = pc.indices_nonzero(breaks)
    stops = [*(row + 1 for row in nonzero.to_pylist()), last + 1]
    return list(zip([0, *stops], stops, strict=False))
