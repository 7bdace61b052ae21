"""One flow in one run: prepare its table, then plan, read, decode, write and commit batch after batch.

    1. the batch is planned from the newest record in the table's own log
    2. tasks write files that no table lists yet
    3. what they have read is compared with what was planned, dead records with their limit
    4. one commit makes files and record part of the table: this decides
    5. the dead letters, whose files the record names, are added to their own table
    6. the table is remembered (`commits`)

A run that is killed before 4 has changed nothing for readers, and the next one reads the batch again; a run that is
killed later finds the batch in the table, and does 5 if it is missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odradek._version import __version__
from odradek.core.interfaces import Extent
from odradek.errors import ConfigError
from odradek.pipeline.commits import (
    Commit,
    Gap,
    Remembered,
    check_dead_table,
    check_table,
    recall,
    remember,
    to_offsets,
    to_positions,
)
from odradek.pipeline.config import Pipeline, PipelineFileError
from odradek.pipeline.decode import DeadReason, stored_name
from odradek.pipeline.errors import (
    BatchTooOld,
    FileNotVisible,
    InexactRead,
    TableMismatch,
    TableReplaced,
    TooManyDeadLetters,
)
from odradek.pipeline.layout import Storage, column_types, storage_errors
from odradek.pipeline.merge import MergeRule, check_rule, read_files
from odradek.pipeline.source import (
    PartitionBacklog,
    PlannedBatch,
    backlogs,
    coverage,
    next_batch,
    read_request,
    recorded_starts,
)
from odradek.pipeline.table import UNLISTED_S, DataFile, Table, TableOptions, make_table
from odradek.pipeline.task import TaskJob, TaskOutput, TimeRule, check_time, dead_schema, record_schema
from odradek.pipeline.write import FileWriter, SmallGroups, WriteTarget
from odradek.ranges.catalog import extents_from, find_logs, plan, start_offsets
from odradek.ranges.planning import DataLoss, PositionGap, TaskPlan, in_current_topics, topic_ids, within
from odradek.ranges.request import ClusterConnection
from odradek.types import MiB, TopicPartition

__all__ = ["Execute", "FlowRun", "dead_options", "open_flow", "open_table", "table_options"]

EMPTY_WRAPPER = 64
"""Maximum bytes of a log of 0.7 without a row that are accepted under every loss policy: an empty compressed message
has none. `verify` reads them again."""

HOURS = 48
"""Hours of records' times that a commit counts one by one."""

SMALL_BYTES, TASK_SMALL_BYTES = 64 * MiB, 8 * MiB
"""Maximum size of rows that all tasks of a batch, and one of them, leave for files that they share."""

MAX_BATCH_S = UNLISTED_S - 3600
"""A batch that takes longer than this is not committed (s): its first files are nearly old enough for `clean`."""

Execute: TypeAlias = Callable[[Sequence[TaskJob]], list[TaskOutput]]
"""Runs the tasks of a batch; returns the output of one attempt of each."""


# ---- tables --------------------------------------------------------------------------------------------------


def table_options(pipeline: Pipeline, name: str) -> TableOptions:
    """Return where the table of a flow is, and what it is like."""
    flow, state, merge = pipeline.flows[name], Path(pipeline.run.state), None
    sink, catalog, known = flow.sink, flow.sink.catalog or {}, recall(state, name)
    if sink.kind == "iceberg" and sink.catalog is None:
        catalog = {"type": "sql", "uri": f"sqlite:///{state / 'iceberg.db'}"}
    if sink.last_by:
        merge = MergeRule(last_by=tuple(sink.last_by), value="value" if flow.decode.kind == "raw" else "")
    elif sink.unique:
        merge = MergeRule(unique=sink.unique.field, hours=sink.unique.hours)
    return TableOptions(
        kind=sink.kind, flow=name, storage=Storage(sink.path, sink.kind, sink.options), columns=sink.columns,
        zone=sink.zone, name=sink.table or f"odradek.{name}", catalog=catalog,
        noted=None if known is None else known.commit, merge=merge,
    )  # fmt: skip


def dead_options(pipeline: Pipeline, name: str) -> TableOptions | None:
    """Return where the dead letters of a flow are; None: they are only counted."""
    dead, table = pipeline.flows[name].dead, table_options(pipeline, name)
    if dead is None:
        return None
    storage = replace(table.storage, root=dead.path)
    return TableOptions(table.kind, name, storage, name=f"{table.name}_dead", catalog=table.catalog, letters=True)


def open_table(options: TableOptions) -> Table | None:
    """Open a table; None: there is none."""
    table = make_table(options)
    return table if table.refresh() else None


# ---- one flow ------------------------------------------------------------------------------------------------


@dataclass
class FlowRun:
    """One flow in one run. Use `prepare`, then `step` until it returns None; or `open`, which changes nothing."""

    name: str
    pipeline: Pipeline
    run: str = ""  # identifies the run
    follow: bool = False  # read what is appended to the logs meanwhile, too
    deadline_s: float | None = None  # for the answers of brokers; None: as long as usual
    newest: Commit = field(default_factory=lambda: Commit("", -1))  # of the table; without one, that to begin with
    backlog: Sequence[PartitionBacklog] = ()
    _missing: Sequence[str] = ()
    _lost: Sequence[str] = ()
    _target: Mapping[TopicPartition, int] | None = None
    _extents: dict[TopicPartition, Extent] | None = None
    _is_idle: bool = False  # the step before had nothing to read

    def __post_init__(self) -> None:
        self.flow = self.pipeline.flows[self.name]
        self._source = read_request(self.pipeline, self.name)
        if self.deadline_s is not None:
            self._source = replace(self._source, deadline_s=self.deadline_s)
        self._logs = find_logs(self._source)
        self.table = make_table(table_options(self.pipeline, self.name))
        dead = dead_options(self.pipeline, self.name)
        self.dead = None if dead is None else make_table(dead)
        self._state = Path(self.pipeline.run.state)
        self._with_brokers = self._logs.names_brokers

    @property
    def waiting(self) -> int:
        """Size of what is not in the table, as far as it is known, in the unit of positions."""
        return sum(log.waiting or 0 for log in self.backlog)

    @property
    def batches(self) -> int:
        """Minimum number of commits for that."""
        return -(-self.waiting // self.pipeline.batch_size)

    @property
    def problems(self) -> list[str]:
        """Topics that do not exist, partitions whose broker is away, dead letters that are lost."""
        return [*self._missing, *self._lost]

    @property
    def losses(self) -> list[str]:
        """The data that the logs no longer have, if a run fails for that."""
        gaps = [log.gap for log in self.backlog if log.gap is not None]
        fails = gaps and self._source.fail_on_data_loss
        return [str(DataLoss(gaps, self._source.names.skip_loss))] if fails else []

    # ---- before the first batch ------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the tables, and see how far they are behind the logs.

        Raises:
            TableReplaced, TableMismatch, TableHistoryLost: The table cannot be continued.
            OdradekError: The logs do not answer.
        """
        known, exists = recall(self._state, self.name), self.table.refresh()
        newest = self.table.newest() if exists else None
        self.newest = newest or self.newest
        check_table(known, self.name, self.table.where, self.table.identity if exists else None, newest)
        if self.dead is not None:
            identity = self.dead.identity if self.dead.refresh() else None
            check_dead_table(known, self.name, self.dead.where, identity)
        if exists and newest is None:
            raise TableMismatch(self.table.where, f"there is a table that flow {self.name} has not made")
        extents = extents_from(self._logs, to_positions({} if newest is None else newest.end))
        if newest is None:
            forgiving = replace(self._source, fail_on_data_loss=False)  # a topic that is missing is a problem below
            end = to_offsets(start_offsets(self._logs, forgiving, extents))
            newest = self._first_record(end=end, topic_ids=topic_ids(extents))
        self.newest = newest
        self.refresh_backlog(extents)

    def prepare(self) -> None:
        """Open the tables, or create them, for the first batch. Raises as `open`, and ConfigError if the columns of
        the flow do not fit."""
        self.open()
        schema = self.check()
        if not self.table.exists:
            self.newest = replace(self.newest, written=time.time())
            self.table.create(schema, self.newest)
            self._remember(self.newest)
        self.table.evolve(schema)
        self._add_dead_letters()
        extents = self._extents or {}
        self._target = None if self.follow else {partition: log.latest for partition, log in extents.items()}

    def check(self) -> pa.Schema:
        """Return the columns of the flow, whose tables are open. Changes nothing.

        Raises:
            ConfigError: The file names columns that there are not, or a schema cannot be read.
            TableMismatch: The table is partitioned in another way, or has a column whose name differs in case.
        """
        topics = {partition.topic for partition in self._extents or {}} or set(self._source.topics.names)
        self._decoding = self.flow.decode.decoding().with_newest_schema(sorted(topics))
        schema = self._schema()
        if self.table.exists:
            self.table.check()
            self.table.check_names(schema)
        return schema

    def refresh_backlog(self, extents: dict[TopicPartition, Extent] | None = None) -> int:
        """Look at the logs; return the size of what is not in the table."""
        self._extents = extents if extents is not None else self._current_extents()
        known = backlogs(to_positions(self.newest.end), self._extents, self.newest.topic_ids)
        # The table also knows topics that the flow does not have any more: if it has them again, they go on there.
        self.backlog = [log for log in known if self._source.topics.has_partition(log.partition)]
        topics = {partition.topic for partition in self._extents}
        missing = set(self._source.topics.names) - topics
        gone = [log for log in self.backlog if log.waiting is None]
        if isinstance(self._source.where, ClusterConnection) and not self._with_brokers:
            # A partition without a leader is an error of `extents`: these topics were deleted. Gaps are in `losses`.
            gone = [log for log in gone if log.gap is None and self._source.fail_on_data_loss]
            missing |= {log.partition.topic for log in gone} - topics
            gone = [log for log in gone if log.partition.topic in topics]
        self._missing = [
            *(f"topic {topic} does not exist" for topic in sorted(missing)),
            *(f"no broker, and no directory, has {log.partition} now" for log in gone),
        ]
        return self.waiting

    def _current_extents(self) -> dict[TopicPartition, Extent]:
        return extents_from(self._logs, to_positions(self.newest.end))

    def _schema(self) -> pa.Schema:
        """Return the columns of the table. Raises ConfigError for columns that the flow names and does not have."""
        decoded, decode, options = self._decoding.decoder().schema, self.flow.decode, self.table.options
        records = record_schema(with_brokers=self._with_brokers)
        fields = {field.name: field.type for field in (*records, *decoded)}
        with self._mistakes_of("decode", "time"):
            if decode.time is not None:
                check_time(decoded, stored_name(decode.time), decode.time_format)
        with self._mistakes_of("sink", "partition_by"):
            types = column_types(options.columns, fields)
        if options.kind == "delta":
            fields |= types
        schema = pa.schema(list(fields.items()))
        if options.merge is not None:
            check_rule(options.merge, schema, self.table.where)
        return schema

    @contextmanager
    def _mistakes_of(self, *key: str) -> Iterator[None]:
        """Name a key of the flow in the errors of a block."""
        try:
            yield
        except ConfigError as error:
            raise PipelineFileError(f"{self.pipeline.at('flows', self.name, *key)}: {error}") from None

    def _first_record(self, **more: Any) -> Commit:
        """Return the record of a table's creation: where the first batch begins, whenever that is read."""
        return Commit(self.name, 0, os.urandom(8).hex(), run=self.run, code=__version__, **more)

    # ---- a batch ---------------------------------------------------------------------------------------------

    def step(self, execute: Execute, max_size: int | None) -> Commit | None:
        """Read, write and commit the next batch; None: there is nothing to read.

        Args:
            execute: Runs the tasks.
            max_size: Approximate maximum size of the batch, in the unit of positions.

        Raises:
            DataLoss: Something of it is no longer there, and the flow says that this is an error.
            TableMismatch: Others have changed the table, and the flow does not fit it any more.
            OdradekError: Nothing of the batch was committed, except with a TableConflict.
        """
        extents = self._extents if self._extents is not None else self._current_extents()
        self._extents = None  # the next step looks again
        current = extents if self._target is None else within(extents, self._target)
        ids = {**self.newest.topic_ids, **topic_ids(extents)}
        reached, lost = in_current_topics(to_positions(self.newest.end), self.newest.topic_ids, current, ids)
        self._source.check_loss(lost)
        for partition in {gap.partition for gap in lost} - extents.keys():  # the topic is smaller than it was
            del reached[partition]
        batch = next_batch(reached, current, max_size, self._logs.unit, self._logs.boundaries)
        self._is_idle, was_idle = batch is None, self._is_idle
        if batch is None:
            return None
        tasks = plan(self._logs, self._source, batch.start, batch.end, extents, end_ids=ids)
        self._check_table(refresh=was_idle)  # others may have changed it since the batch before
        attempt, began = os.urandom(8).hex(), _clocks()
        prefix = f"odradek-{self.name}-{self.newest.batch + 1:08}-{attempt}-"
        output = TaskOutput()
        try:
            jobs = self._jobs(tasks, prefix) if tasks else []
            outputs = execute(jobs) if jobs else []
            if len(outputs) != len(tasks):
                raise InexactRead(self.name, f"{len(tasks)} tasks have {len(outputs)} results")
            for each in outputs:
                output.add(each)
            if jobs:  # all have the same targets
                output.files += _written(output.small, jobs[0].target)
                output.dead_files += _written(output.small_dead, jobs[0].dead)
            commit = self._check(batch, output, attempt)
            commit = replace(commit, topic_ids=ids, gaps=(*map(_recreated, lost), *commit.gaps))
            self._check_files(output, _seconds_since(began))
        except BaseException:
            for table in self._tables():
                table.options.storage.remove_attempt(prefix)
            raise
        if self.table.options.merge is None:
            self.table.append(output.files, commit)  # its files stay when it fails: it may have succeeded
        else:
            self.table.merge(output.files, self._tombstones(output), commit)
        self.newest = commit
        self._add_dead_letters()
        self._remember(commit)
        return commit

    def _check_table(self, *, refresh: bool) -> None:
        """Check the table as it is after the last batch, or now, and add the columns that it lacks."""
        if refresh and not self.table.refresh():
            raise TableReplaced(self.name, self.table.where, "the table is gone")
        self.table.check()
        self.table.evolve(self._schema())

    def _tombstones(self, output: TaskOutput) -> pa.Table:
        """Return the records without a value that are among the dead letters of a batch."""
        if self.dead is None or not output.dead_files:
            return record_schema(with_brokers=self._with_brokers).empty_table()
        letters = read_files(self.dead.options.storage, output.dead_files, self.dead.schema)
        return letters.filter(pc.field("reason") == DeadReason.TOMBSTONE)

    def _remember(self, commit: Commit) -> None:
        dead = self.dead.identity if self.dead is not None and self.dead.exists else ""
        known = Remembered(self.table.identity, self.table.where, commit.batch, commit.written, dead, commit.to_json())
        remember(self._state, self.name, known)

    def _jobs(self, tasks: Sequence[TaskPlan], prefix: str) -> list[TaskJob]:
        decode = self.flow.decode
        name = None if decode.time is None else stored_name(decode.time)
        rule = TimeRule(name, decode.time_format, int(time.time() * 1_000_000))
        if self.dead is not None:
            if not self.dead.refresh():
                self._create_dead(self.dead)
            self.dead.check()  # before rows are committed whose dead letters it would refuse
            self.dead.evolve(dead_schema(with_brokers=self._with_brokers))
        targets = [
            WriteTarget(
                table.options.storage, table.file_schema(), table.options.kind, table.options.columns,
                table.options.zone, self.flow.sink.compression, prefix,
            )
            for table in self._tables()
        ]  # fmt: skip
        dead = targets[1] if self.dead else None
        small = min(TASK_SMALL_BYTES, SMALL_BYTES // len(tasks)) if len(tasks) > 1 else 0
        unit = self._logs.unit
        return [TaskJob(task, self._source, unit, self._decoding, rule, targets[0], dead, small) for task in tasks]

    def _tables(self) -> list[Table]:
        return [self.table, *([self.dead] if self.dead else [])]

    def _create_dead(self, table: Table) -> None:
        table.create(dead_schema(with_brokers=self._with_brokers), self._first_record(written=time.time()))

    def _check(self, batch: PlannedBatch, output: TaskOutput, attempt: str) -> Commit:
        """Return the record of a batch. Raises InexactRead, TooManyDeadLetters."""
        gaps = self._gaps(batch, output)
        wrong = output.dead - output.reasons[DeadReason.TOMBSTONE]  # which delete a key: nothing is wrong with them
        total, maximum = output.rows + wrong, self.pipeline.run.max_error_percent
        if 100 * wrong > maximum * total:
            examples = "; ".join(output.examples)
            raise TooManyDeadLetters(self.name, wrong, total, 100 * wrong / total, maximum, examples)
        hours = sorted(output.hours.items())[-HOURS:]
        return Commit(
            flow=self.name, batch=self.newest.batch + 1, attempt=attempt,
            start=to_offsets(recorded_starts(batch, output.covered)), end=to_offsets(batch.end),
            rows=output.rows, dead=output.dead, payload=output.payload,
            reasons=dict(output.reasons), examples=tuple(output.examples),
            gaps=tuple(gaps), dead_files=tuple(file.path for file in output.dead_files),
            hours={str(hour): rows for hour, rows in hours}, older=output.hours.total() - sum(dict(hours).values()),
            files=len(output.files), file_bytes=sum(file.size for file in output.files),
            run=self.run, code=__version__, written=time.time(),
        )  # fmt: skip

    def _gaps(self, batch: PlannedBatch, output: TaskOutput) -> list[Gap]:
        allowed = {"the log no longer had it": self.flow.data_loss, "corrupt messages were left out": self.flow.corrupt}
        may = [reason for reason, policy in allowed.items() if policy == "skip"]
        gaps = coverage(self.name, batch, output.covered, ", or ".join(may) or "an empty compressed message")
        for gap in gaps:
            if not may and not 0 < gap.size <= (EMPTY_WRAPPER if self._logs.unit.exact else 0):
                where = f"{gap.topic}/{gap.partition} between {gap.start} and {gap.end}"
                raise InexactRead(self.name, f"nothing was read from {where}")
        return gaps

    def _check_files(self, output: TaskOutput, seconds: float) -> None:
        """Raise FileNotVisible unless this machine sees all files: tasks may have run on other ones, and something may
        have deleted files. Raise BatchTooOld if `clean` may do that from now on."""
        for table, files in zip(self._tables(), (output.files, output.dead_files), strict=False):
            storage = table.options.storage
            with storage_errors(table.where):
                sizes = storage.sizes([file.path for file in files])
            for file, size in zip(files, sizes, strict=True):
                if size != file.size:
                    raise FileNotVisible(self.name, storage.url(file.path))
        if seconds > MAX_BATCH_S:
            raise BatchTooOld(self.name, seconds / 3600, MAX_BATCH_S / 3600)

    # ---- dead letters ----------------------------------------------------------------------------------------

    def _add_dead_letters(self) -> None:
        """Add the dead letters of the newest batch to their table, unless they are there.

        Raises:
            TableReplaced: Their table, or one of the files, is gone, and the user has not accepted that.
        """
        commit, dead = self.newest, self.dead
        if dead is None or not commit.dead_files:
            return
        accepted, storage = recall(self._state, self.name) is None, dead.options.storage
        if not dead.refresh():
            if not accepted:
                raise TableReplaced(self.name, dead.where, "the table with the dead letters is gone")
            self._create_dead(dead)
        if dead.has(commit):
            return
        files: list[DataFile] = []
        for path in commit.dead_files:
            if size := storage.size(path):
                with storage.open(path) as file:
                    files.append(DataFile(path, size, {}, pq.read_metadata(file)))
        if gone := len(commit.dead_files) - len(files):
            what = f"{gone} files with dead letters of batch {commit.batch} are gone, and were never part of the table"
            if not accepted:
                raise TableReplaced(self.name, dead.where, f"{what}: `clean`, or another vacuum, has removed them")
            self._lost = [f"{what}; going on without them"]
        dead.append(files, commit)


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.time()


def _seconds_since(began: tuple[float, float]) -> float:
    """Return the time since `_clocks` said this: one clock stands still while the machine sleeps, the other is set."""
    return max(now - then for now, then in zip(_clocks(), began, strict=True))


def _recreated(gap: PositionGap) -> Gap:
    """Return the gap of a topic that was made again: what the former log had after it is not known."""
    return Gap(gap.partition.topic, gap.partition.name, gap.start, gap.end, gap.loss.value)


def _written(small: Sequence[SmallGroups], target: WriteTarget | None) -> list[DataFile]:
    """Write what tasks have left: one file for each partition of the table. Raises OSError."""
    if target is None or not small:
        return []
    with FileWriter(target) as writer:
        for groups in small:
            writer.add_small(groups)
        return writer.finish()


# ---- without a run -------------------------------------------------------------------------------------------


def open_flow(pipeline: Pipeline, name: str) -> FlowRun:
    """Return a flow with what a run would read for it. Changes nothing.

    Raises:
        TableReplaced, TableMismatch, TableHistoryLost: The table cannot be continued.
        OdradekError: The logs do not answer, or the table cannot be read.
    """
    flow = FlowRun(name, pipeline)
    flow.open()
    return flow
