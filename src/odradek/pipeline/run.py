"""A run of a pipeline: each flow is a streaming query that ends where its logs ended when the run began."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from odradek._version import __version__
from odradek.errors import ConfigError, OdradekError
from odradek.pipeline.audit import Auditor
from odradek.pipeline.causes import describe_error
from odradek.pipeline.checkpoint import Checkpoint, MicroBatch, checkpoint_dir
from odradek.pipeline.commit import EMPTY_WRAPPER, TableWriter, log_bytes
from odradek.pipeline.config import Decode, Flow, Pipeline
from odradek.pipeline.decode import MALFORMED, PARSED_COLUMN, DecodeJob, avro_fields, load_avro
from odradek.pipeline.evolution import arrow_type, check_fields, check_layout
from odradek.pipeline.ledger import LedgerEntry
from odradek.pipeline.lock import table_lock
from odradek.pipeline.report import write_report
from odradek.pipeline.sources import backlog_of, first_offsets, flow_options, range_schema
from odradek.pipeline.staging import StageJob, TaskOutput
from odradek.pipeline.summary import BatchSummary, FlowSummary, RunSummary, Volume
from odradek.pipeline.times import check_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FlowRun", "OnCommit", "RunLimits", "execute", "report_path", "run", "run_flows"]

AT_ONCE = 4
"""Number of flows that run at the same time: while one plans and commits, others read."""

POLL_S = 0.2

START_S = 0.02

INITIALIZING = "Initializing"
"""The beginning of Spark's status of a query whose source does not exist yet."""

_STARTING = Lock()

SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.streaming.stopTimeout": "60s",
}

OnCommit = Callable[[str, BatchSummary], None]
"""A callback for each commit: the flow's name and the batch. Called from several threads."""


class _StopQuery(Exception):
    """Ends a query from inside: the run has reached its limits, or a batch has failed. Spark has no other way."""


@dataclass
class RunLimits:
    """The limits of a run, and what it has used of them. Every flow that has begun does at least one batch.

    Args:
        max_size: Maximum bytes of log, or records of 0.8 and later; None: no limit.
        ends: When it ends (s since the epoch); None: never.
        used: How much of that it has committed.
    """

    max_size: int | None = None
    ends: float | None = None
    used: int = 0
    stopped: bool = False
    """True once the run is being stopped: no further batch begins."""

    @property
    def spent(self) -> bool:
        used_up = self.max_size is not None and self.used >= self.max_size
        return self.stopped or used_up or (self.ends is not None and time.time() >= self.ends)


@dataclass
class FlowRun:
    """One flow in one run.

    Args:
        name: Name of the flow.
        flow: Its settings.
        pipeline: The checked pipeline file.
        budget: The limits of the run.
        run: Identifies the run.
        on_commit: Called for each commit.
    """

    name: str
    flow: Flow
    pipeline: Pipeline
    budget: RunLimits
    run: str
    on_commit: OnCommit = lambda _flow, _batch: None
    started: float = field(default_factory=time.time)
    lag_before: int | None = None
    error: str = ""
    _entries: list[LedgerEntry] = field(default_factory=list)
    _batches: list[BatchSummary] = field(default_factory=list)
    _failure: BaseException | None = None
    _query: Any = None
    _auditor: Auditor | None = None

    def __post_init__(self) -> None:
        counts_records = self.pipeline.source.kafka is not None
        self.table = TableWriter(
            self.name, self.flow, self.pipeline.run.max_error_percent, max_gap=0 if counts_records else EMPTY_WRAPPER
        )
        self.checkpoint = Checkpoint(checkpoint_dir(self.pipeline.run.checkpoint, self.name))
        self.options = flow_options(self.pipeline, self.flow)

    # ---- before Spark ----------------------------------------------------------------------------------------

    def lock_and_prepare(self, locks: ExitStack) -> None:
        """Take the table's lock until `locks` is closed, and prepare."""
        locks.enter_context(table_lock(self.table.root))
        self.prepare()

    def prepare(self) -> None:
        """Recover from a killed run, and check that file, table and checkpoint match. Needs the table's lock."""
        self.table.recover()
        self.table.check(self.checkpoint)
        check_layout(self.pipeline, self.name, self.table.ledger)
        self._load_fields()
        if self.checkpoint.done is None and self.checkpoint.planned in (None, 0):
            self.checkpoint.begin(0, first_offsets(self.options), time.time())
        audit = self.flow.audit.topic
        if audit is not None:
            self._auditor = Auditor(self.pipeline.source, audit, self.checkpoint.directory / "odradek-audit")
        self.lag_before = self._lag()

    def _load_fields(self) -> None:
        """Load the schema for decoding, and check its fields. Those of JSON need a Spark session."""
        decode = self.flow.decode
        self._avro = load_avro(decode.schema_file) if decode.schema_file else ""
        if decode.kind != "json":
            self._set_fields(avro_fields(self._avro) if self._avro else {"value": pa.binary()})

    def _set_fields(self, columns: Mapping[str, pa.DataType]) -> None:
        if self.flow.decode.time is not None:
            _check_time(self.flow.decode, columns)
        self.table.fields = check_fields(self.pipeline, self.name, self.table.ledger, columns)

    def _lag(self) -> int:
        done = self.checkpoint.done
        reached = self.table.ledger.reached()
        ends = reached.end if reached else self.checkpoint.offsets(done or 0)
        return sum(log.waiting for log in backlog_of(self.options, ends))

    # ---- with Spark ------------------------------------------------------------------------------------------

    def execute(self, spark: SparkSession) -> None:
        """Run the query to its end; a failure is stored in `error`."""
        if self.budget.spent:
            return
        try:
            self.begin(spark)
            self._start(spark)
            self._wait()
        except Exception as error:
            cause = self._failure or error
            if not _is_stop_query(cause):
                self.error = describe_error(cause)
        self._audit()

    def begin(self, spark: SparkSession) -> None:
        """Prepare `commit` in the process that calls it. Raises ConfigError."""
        self._load_fields()
        self._columns = self._spark_columns(spark)

    def resume(self) -> None:
        """Load the entries that this run has committed from other processes."""
        self._entries = self.table.ledger.written_by(self.run)

    def _start(self, spark: SparkSession) -> None:
        """Start the query; no other one starts until its source exists.

        Spark keeps one unlocked map for all queries of a data source class and sends it with each task: two queries
        that start together would change it at the same time.
        """
        with _STARTING:
            if self.budget.stopped:  # while waiting for the lock
                raise _StopQuery
            reader = spark.readStream.format("odradek").options(**self.options)
            if self.pipeline.source.kafka is not None:
                reader = reader.schema(range_schema())
            rows = reader.load()
            writer = rows.writeStream.foreachBatch(self._committer()).trigger(availableNow=True)
            # With its scheme: on a cluster, Spark resolves a path without one in the cluster's file system.
            self._query = writer.option("checkpointLocation", f"file://{self.checkpoint.directory.absolute()}").start()
            while self._query.isActive and self._query.status["message"].startswith(INITIALIZING):
                time.sleep(START_S)

    def _committer(self) -> Callable[[DataFrame, int], None]:
        return self._batch

    def _wait(self) -> None:
        self._query.awaitTermination()

    def _audit(self) -> None:
        if self._auditor is None:
            return
        try:
            self._auditor.send(self.table.ledger.entries())
        except (OdradekError, OSError) as error:
            self.error = self.error or f"counts were not sent: {error}"

    def interrupt(self, spark: SparkSession) -> None:
        """Cancel the jobs of all flows."""
        spark.sparkContext.cancelAllJobs()

    def stop(self) -> None:
        """End the query, if it is running."""
        if self._query is not None:
            self._query.stop()

    def _batch(self, rows: DataFrame, number: int) -> None:
        """Commit a micro-batch. Spark calls this, and considers the batch done when it returns."""
        began = time.time()
        try:
            entry = self.commit(rows, number)
        except BaseException as error:
            self._failure = error
            raise _StopQuery from None  # Spark searches its text, which takes very long with a long trace
        if entry is not None:
            self._committed(entry, began)

    def commit(self, rows: DataFrame, number: int) -> LedgerEntry | None:
        """Commit Spark's micro-batch of this number, unless the run has reached its limits.

        Raises as `TableWriter.commit`.
        """
        if self.budget.stopped or (self.budget.spent and self._entries):
            raise _StopQuery
        batch = self.checkpoint.batch(number)
        return self.table.commit(batch, lambda names: self._stage(rows, batch, names), self.run)

    def _stage(self, rows: DataFrame, batch: MicroBatch, names: str) -> TaskOutput:
        from odradek.pipeline.stage_sink import FORMAT, collect, write_options

        job = self._job(batch, names)
        output_file = self.table.root.absolute() / "_odradek" / "stage" / names.rstrip("-")
        output_file.parent.mkdir(parents=True, exist_ok=True)
        chosen = rows.select("*", *self._columns)
        chosen.write.format(FORMAT).mode("append").options(**write_options(job, output_file)).save()
        return collect(output_file)

    def _job(self, batch: MicroBatch, names: str) -> StageJob:
        flow = self.flow
        decode = DecodeJob(
            flow.decode.kind, self._avro, flow.decode.time, flow.decode.time_format, int(batch.planned * 1_000_000),
            _microseconds(flow.decode.time_behind_days), _microseconds(flow.decode.time_ahead_days),
        )  # fmt: skip
        return StageJob(
            root=str(self.table.root.absolute()),
            dead_root=str(self.table.dead_root.absolute()) if self.table.dead_root else "",
            prefix=names,
            decode=decode,
            partition_by=tuple(flow.sink.partition_by),
            zone=flow.sink.zone,
            compression=flow.sink.compression,
            bucket_minutes=flow.audit.bucket_minutes,
        )

    def _spark_columns(self, spark: SparkSession) -> Sequence[Any]:
        """Return the columns that Spark adds to the rows: the parsed JSON."""
        decode = self.flow.decode
        if decode.kind != "json":
            return ()
        from pyspark.errors import PySparkException
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructType

        try:
            schema: Any = StructType.fromDDL(decode.fields or "")
        except PySparkException as error:
            raise ConfigError(f"fields = {decode.fields!r}: {str(error).splitlines()[0]}") from None
        self._set_fields({field.name: arrow_type(field.dataType) for field in schema.fields})
        text = F.col("value").cast("string")
        how = {
            "mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED, "allowSingleQuotes": "false",
            "allowNonNumericNumbers": "false", "timeZone": "UTC",
        }  # fmt: skip
        record = F.from_json(text, schema.add(MALFORMED, StringType()), how)
        return (record.alias(PARSED_COLUMN),)

    # ---- results ---------------------------------------------------------------------------------------------

    def _committed(self, entry: LedgerEntry, began: float) -> None:
        size = log_bytes(entry.start, entry.end)
        self.budget.used += size
        self._entries.append(entry)
        done = sum(batch.log_bytes for batch in self._batches) + size
        lag = None if self.lag_before is None else max(0, self.lag_before - done)
        seconds = entry.written - began
        self._batches.append(
            BatchSummary(entry.batch, entry.written, seconds, entry.rows, size, entry.dead, lag, self.pipeline.unit)
        )
        self.on_commit(self.name, self._batches[-1])

    def summary(self) -> FlowSummary:
        """Return the summary of the flow."""
        hours: dict[str, dict[int, Volume]] = {}
        reasons: dict[str, int] = {}
        for entry in self._entries:
            for topic, volumes in entry.hours.items():
                mine = hours.setdefault(topic, {})
                for hour, amount in volumes.items():
                    mine[int(hour)] = mine.get(int(hour), Volume()) + Volume(**amount)
            for reason, count in entry.reasons.items():
                reasons[reason] = reasons.get(reason, 0) + count
        files = [file for entry in self._entries for file in entry.files]
        return FlowSummary(
            name=self.name, started=self.started, ended=time.time(), batches=tuple(self._batches),
            bytes=sum(entry.payload for entry in self._entries), reasons=reasons, lag_before=self.lag_before,
            lag_after=self._lag_now(), hours=hours, gaps=tuple(gap for entry in self._entries for gap in entry.gaps),
            files=len(files), file_bytes=sum(file.size for file in files), error=self.error,
            unit=self.pipeline.unit,
        )  # fmt: skip

    def _lag_now(self) -> int | None:
        try:
            return self._lag() if self.lag_before is not None else None
        except (OdradekError, OSError):
            return None


def _microseconds(days: float | None) -> int | None:
    return None if days is None else int(days * 86_400_000_000)


def _check_time(decode: Decode, known: Mapping[str, pa.DataType]) -> None:
    assert decode.time is not None
    if decode.time not in known:
        raise ConfigError(f'time = "{decode.time}": no such field; choose from {", ".join(known)}')
    check_time(known[decode.time], decode.time_format, decode.time)


def _is_stop_query(error: BaseException) -> bool:
    """Return True for _StopQuery, raised here or, over Spark Connect, in another process."""
    return isinstance(error, _StopQuery) or f"{_StopQuery.__module__}.{_StopQuery.__name__}" in str(error)


# ---- all flows -----------------------------------------------------------------------------------------------


def run(
    pipeline: Pipeline,
    file: str,
    on_commit: OnCommit,
    *,
    master: str | None = None,
    remote: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> RunSummary:
    """Run every flow up to the ends of its logs at the start, or until the run's limits are reached.

    Args:
        pipeline: The checked pipeline file.
        file: Its name.
        on_commit: Called for each commit.
        master: Spark's master; None: that of `spark-submit` if it started this process, else `local[*]`.
        remote: `sc://host:port` of a Spark Connect server, instead of a master.
        settings: Further settings of Spark.

    Returns:
        The summary. A failed flow has an error in it, and does not stop the other flows.

    Raises:
        ConfigError: Spark cannot be started.
        OSError: The report of the run cannot be written.
    """
    from odradek.spark.session import remote_session, session, submitted

    spark_settings = {**SETTINGS, **(settings or {})}

    def with_session(flows: Sequence[FlowRun]) -> None:
        with session("odradek-pipeline", master=master, settings=spark_settings) as spark:
            if not submitted():
                spark.sparkContext.setLogLevel("OFF")  # failures are reported once, at the end
            run_flows(flows, spark)

    def with_remote(flows: Sequence[FlowRun]) -> None:
        with remote_session(remote or "", spark_settings) as spark:
            run_flows(flows, spark)

    if remote is None:
        return execute(pipeline, file, on_commit, with_session)
    from odradek.pipeline.spark_connect import RemoteRun

    return execute(pipeline, file, on_commit, with_remote, RemoteRun)


def execute(
    pipeline: Pipeline,
    file: str,
    on_commit: OnCommit,
    with_session: Callable[[Sequence[FlowRun]], None],
    kind: type[FlowRun] = FlowRun,
) -> RunSummary:
    """Run like `run` in the caller's session.

    Args:
        pipeline, file, on_commit: As for `run`.
        with_session: Called with the flows that can run, if any.
        kind: The class of flows that matches the session.
    """
    started = time.time()
    identity = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(started))}-{os.urandom(3).hex()}"
    minutes = pipeline.run.max_minutes
    budget = RunLimits(pipeline.run_size, None if minutes is None else started + 60 * minutes)
    flows = [kind(name, flow, pipeline, budget, identity, on_commit) for name, flow in pipeline.flows.items()]
    with ExitStack() as locks:
        ready = [flow for flow in flows if _prepared(flow, locks)]
        if ready:
            with_session(sorted(ready, key=_newest))
        summaries = tuple(flow.summary() for flow in flows)
    summary = RunSummary(identity, file, __version__, started, time.time(), summaries)
    write_report(summary, report_path(pipeline, summary))
    return summary


def _prepared(flow: FlowRun, locks: ExitStack) -> bool:
    try:
        flow.lock_and_prepare(locks)
    except (OdradekError, OSError) as error:
        flow.error = str(error)
    return not flow.error


def _newest(flow: FlowRun) -> float:
    """Return when a flow was last committed: the oldest goes first, since limits may end a run before all flows ran."""
    tail = flow.table.ledger.tail()
    return tail.written if tail else 0.0


def run_flows(flows: Sequence[FlowRun], spark: SparkSession) -> None:
    """Run prepared flows, a few at the same time.

    An exception such as KeyboardInterrupt ends their queries: commits that have begun are finished, nothing else.
    """
    from odradek.pipeline.stage_sink import StageSink

    spark.dataSource.register(StageSink)  # before any query, which runs in a copy of the session
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="odradek-flow") as pool:
        running = [pool.submit(flow.execute, spark) for flow in flows]
        try:
            wait(running)
        except BaseException:
            _end(flows, running, spark)
            raise
        for future in running:
            future.result()


def _end(flows: Sequence[FlowRun], running: Sequence[Future[None]], spark: SparkSession) -> None:
    for flow in flows:
        flow.budget.stopped = True
    with ThreadPoolExecutor(len(flows)) as pool:
        for flow in flows:
            pool.submit(flow.stop)  # ends waits for brokers, and waits for the batch that has begun
        while wait(running, POLL_S).not_done:
            flows[0].interrupt(spark)  # again, because a job may just have been starting


def report_path(pipeline: Pipeline, summary: RunSummary) -> Path:
    """Return the path of a run's report."""
    return Path(pipeline.run.checkpoint) / "reports" / f"{summary.run}.html"
