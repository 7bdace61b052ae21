"""The work of one task: read ranges of logs, decode their records, write files; return an output of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from odradek._arrays import integers
from odradek.core.interfaces import PositionUnit
from odradek.errors import ConfigError
from odradek.pipeline.decode import DEAD_FIELDS, Decoding
from odradek.pipeline.decode.columns import Array, fit_each, pc
from odradek.pipeline.decode.fields import DAY_US, MICROSECONDS, text_parser
from odradek.pipeline.errors import InexactRead
from odradek.pipeline.layout import RECORD_TIME, TIME, floor_hours
from odradek.pipeline.table import DataFile
from odradek.pipeline.write import FileWriter, SmallGroups, WriteTarget
from odradek.ranges.planning import Range, TaskPlan
from odradek.ranges.projection import BROKER, COLUMNS, ERROR, HEADERS, Projection, join_small
from odradek.ranges.reader import ColumnsChunk, CompletedRange, read_task
from odradek.ranges.request import ReadRequest
from odradek.types import TopicPartition

__all__ = ["TaskJob", "TaskOutput", "TimeRule", "check_time", "dead_schema", "record_schema", "run_task", "times_of"]

EXAMPLES = 3

PENDING_ROWS, PENDING_BATCHES = 50_000, 1_000
"""Rows and batches of many partitions that are put together before they are decoded."""

# ---- times of records ----------------------------------------------------------------------------------------

# One day less than the years that calendars have, on both sides: a zone moves a time by less than a day.
FIRST_TIME, END_OF_TIME = MICROSECONDS[0] + DAY_US, MICROSECONDS[1] - DAY_US

UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def check_time(decoded: pa.Schema, name: str, time_format: str) -> None:
    """Raise ConfigError unless a decoded field can have times of this format. Timestamps and dates need none."""
    if name not in decoded.names:
        raise ConfigError(f"there is no field {name!r}; choose from {', '.join(decoded.names)}")
    kind, is_iso = decoded.field(name).type, time_format == "iso"
    fits = pt.is_string(kind) if is_iso else pt.is_integer(kind) or pt.is_floating(kind)
    if not (fits or pt.is_timestamp(kind) or pt.is_date(kind)):
        what = f"{'text' if is_iso else 'numbers'}, timestamps or dates, not {kind}"
        raise ConfigError(f"{name}: time_format {time_format!r} needs {what}")


def times_of(column: Array, time_format: str) -> Array:
    """Return times as `TIME`, for a date its midnight; null where there is no time, or its year is not 1 to 9999."""
    if pt.is_date(column.type):
        column = column.cast(pa.timestamp("us"))
    if time_format == "iso" and pt.is_string(column.type):
        column, _ = fit_each(column, TIME, text_parser(TIME))
    if pt.is_timestamp(column.type):
        return _to_time(column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64()), 1)
    return _to_time(column, UNITS[time_format])


def _to_time(numbers: Array, unit: int) -> Array:
    """Convert numbers with a unit in microseconds. Floats may have a fraction, or be NaN or infinite."""
    kind = pa.float64() if pt.is_floating(numbers.type) else pa.int64()
    numbers = numbers.cast(kind)
    minimum, maximum = (pa.scalar(end // unit).cast(kind, safe=False) for end in (FIRST_TIME, END_OF_TIME))
    possible = pc.and_(pc.greater_equal(numbers, minimum), pc.less(numbers, maximum))
    kept = pc.multiply(pc.if_else(pc.fill_null(possible, False), numbers, pa.scalar(None, kind)), unit)
    return (pc.round(kept) if kind == pa.float64() else kept).cast(pa.int64()).cast(TIME)


class TimeRule(NamedTuple):
    """The source of a record's time: a decoded field; or its own timestamp, and if it has none, or one that no calendar
    has, the time the batch was planned."""

    field: str | None = None
    format: str = "ms"  # as in the pipeline file
    planned: int = 0  # us since the epoch

    def times(self, rows: pa.RecordBatch) -> Array:
        """Return the time of each row; null if its field has none that a calendar has."""
        if self.field is not None:
            return times_of(rows[self.field], self.format)
        planned = pa.scalar(self.planned, pa.int64()).cast(TIME)
        return pc.fill_null(times_of(rows["timestamp"], self.format), planned)


# ---- tasks ---------------------------------------------------------------------------------------------------


class TaskJob(NamedTuple):
    """The work of one task. Pickled into it."""

    plan: TaskPlan
    request: ReadRequest
    unit: PositionUnit
    decoding: Decoding
    time: TimeRule
    target: WriteTarget
    dead: WriteTarget | None  # the table of dead letters; None: they are only counted
    small_bytes: int  # maximum size of rows in small groups that are not written but left in the output


@dataclass
class TaskOutput:
    """The result of a task."""

    files: list[DataFile] = field(default_factory=list)
    dead_files: list[DataFile] = field(default_factory=list)
    covered: list[Range] = field(default_factory=list)  # the ranges that it has read completely
    rows: int = 0
    payload: int = 0  # bytes of their values
    reasons: Counter[str] = field(default_factory=Counter)  # why records are dead
    examples: list[str] = field(default_factory=list)  # of dead records: reason and position
    hours: Counter[int] = field(default_factory=Counter)  # start of the hour (s since the epoch) -> rows
    small: list[SmallGroups] = field(default_factory=list)  # rows for files that the tasks of a batch share
    small_dead: list[SmallGroups] = field(default_factory=list)

    @property
    def dead(self) -> int:
        return self.reasons.total()

    def add(self, other: TaskOutput) -> None:
        """Add the output of another task."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.examples = self.examples[:EXAMPLES]


def record_schema(*, with_brokers: bool) -> pa.Schema:
    """Return the record's own columns, which every table has; in 0.7 with broker, index and next position."""
    columns = COLUMNS if with_brokers else COLUMNS[: COLUMNS.index(BROKER)]
    kept = [column for column in (*columns, HEADERS) if column.name != "value"]
    return pa.schema([*((column.name, column.arrow) for column in kept), (RECORD_TIME, TIME)])


def dead_schema(*, with_brokers: bool) -> pa.Schema:
    """Return the columns of dead letters: the record's own ones, its value, and what is wrong with it."""
    records = [field for field in record_schema(with_brokers=with_brokers) if field.name != RECORD_TIME]
    return pa.schema([*records, *(field.with_nullable(True) for field in DEAD_FIELDS)])


def run_task(job: TaskJob) -> TaskOutput:
    """Do the work of a task; on failure nothing of it is left.

    Raises:
        OdradekError: The ranges cannot be read completely.
        OSError: A file cannot be written.
    """
    with ExitStack() as writers:
        return _Task(job, writers).run()


class _Task:
    def __init__(self, job: TaskJob, writers: ExitStack) -> None:
        self._job, self._output = job, TaskOutput()
        self._decoder = job.decoding.decoder()
        self._rows = writers.enter_context(FileWriter(job.target))
        self._dead = None if job.dead is None else writers.enter_context(FileWriter(job.dead))
        self._exact = job.unit.exact
        self._counts: Counter[TopicPartition] = Counter()

    def run(self) -> TaskOutput:
        projection = Projection((*COLUMNS, HEADERS, ERROR))
        pending: list[pa.RecordBatch] = []
        for chunk in read_task(self._job.plan, self._job.request):
            if isinstance(chunk, CompletedRange):
                self._complete(chunk)
                continue
            self._cover(chunk)
            pending += projection.batches(chunk.partition, chunk.rows)
            if sum(batch.num_rows for batch in pending) >= PENDING_ROWS or len(pending) >= PENDING_BATCHES:
                self._add(pending)
                pending = []
        self._add(pending)
        for partition, count in self._counts.items():
            if count:
                what = f"{-count} rows are missing" if count < 0 else f"{count} rows too many came"
                raise InexactRead(self._job.target.prefix, f"{partition}: {what}")
        output, small_bytes = self._output, self._job.small_bytes
        output.small, output.files = self._rows.take_small(small_bytes), self._rows.finish()
        if self._dead is not None:
            output.small_dead, output.dead_files = self._dead.take_small(small_bytes), self._dead.finish()
        return output

    # ---- what was read ---------------------------------------------------------------------------------------

    def _cover(self, chunk: ColumnsChunk) -> None:
        """Take note of the positions of rows: in 0.7 each one says where the next message is, so holes are known."""
        rows, count = chunk.rows, len(chunk.rows.values)
        if not self._exact:
            self._counts[chunk.partition] += count
        elif count:
            starts, ends = (integers(each, pa.int64()) for each in (rows.positions, rows.next_positions))
            holes = pc.indices_nonzero(pc.not_equal(starts.slice(1), ends.slice(0, count - 1))).to_pylist()
            for first, last in zip([0, *(row + 1 for row in holes)], [*holes, count - 1], strict=True):
                self._add_range(Range(chunk.partition, rows.positions[first], rows.next_positions[last]))

    def _complete(self, done: CompletedRange) -> None:
        if not self._exact:
            self._counts[done.partition] -= done.rows
            self._add_range(Range(done.partition, done.start, done.end))

    def _add_range(self, part: Range) -> None:
        covered = self._output.covered
        if covered and covered[-1].partition == part.partition and covered[-1].end == part.start:
            covered[-1] = covered[-1]._replace(end=part.end)
        else:
            covered.append(part)

    # ---- rows ------------------------------------------------------------------------------------------------

    def _add(self, batches: Sequence[pa.RecordBatch]) -> None:
        output = self._output
        for batch in join_small(batches):
            rows, dead = self._decoder.decode(batch, self._job.time.times)
            output.reasons.update(map(str, dead["reason"].to_pylist()))
            if len(output.examples) < EXAMPLES:
                output.examples += map(_example, dead.slice(0, EXAMPLES).to_pylist())
            if self._dead is not None:
                self._dead.add(dead)
            output.rows += rows.num_rows
            output.payload += _payload(batch) - _payload(dead)
            for each in pc.value_counts(floor_hours(rows[RECORD_TIME])).to_pylist():
                output.hours[each["values"]] += each["counts"]
            self._rows.add(rows)


def _payload(records: pa.RecordBatch) -> int:
    return pc.sum(pc.binary_length(records["value"])).as_py() or 0


def _example(row: Mapping[str, Any]) -> str:
    broker = row.get("broker")
    name = row["partition"] if broker is None else f"{broker}-{row['partition']}"
    what = row["reason"] + (f" in {row['field']}" if row.get("field") else "")
    return f"{what}: {row['topic']}/{name} at {row['offset']}"
