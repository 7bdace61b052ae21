"""The sink as Spark sees it: `df.write.format("odradek").mode("append")` and `df.writeStream.format("odradek")`.

**Guarantee: at least once.** Each row is confirmed by its broker before its task ends well, so a query that ends well
has written every row. Rows that a failed task has written stay, and its next attempt writes all of its rows again; so
does a micro-batch that is run again because the query died before Spark noted its end. Commit messages and the report
say where that happened. `docs/howto/spark-write.md` has the whole of it.

Spark pickles the writer into each task. `write` runs in Python workers, the rest in a process beside the driver, with
writers that know nothing of each other: all that passes is in commit messages.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from odradek.client.cluster import Cluster
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Acks, Failed
from odradek.errors import (
    ConfigError,
    DeliveryError,
    MessageTooLarge,
    OdradekError,
    OutcomeUnknown,
    Rejected,
    Unsupported,
)
from odradek.io.gather import gather
from odradek.ranges.offsets import resolve_broker
from odradek.ranges.process import connected
from odradek.ranges.projection import together
from odradek.spark.options import SINK_NAMES, parse_sink
from odradek.spark.schema import DestinationRows, layout
from odradek.types import MiB, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "Attempt",
    "BatchWriter",
    "StreamWriter",
    "TaskCommit",
    "WriteCounts",
    "WriteError",
    "report",
]

log = logging.getLogger("odradek.spark.sink")

TOGETHER_BYTES = 8 * MiB
"""Spark's batches of 10 000 rows are sent at least this many bytes at a time: at the end of each there is a pause of a
round trip, and the rows of a topic with few of them travel together."""

REASONS = 3
"""Maximum number of different failure reasons in a report."""

TAIL_BYTES = 1 * MiB
"""Bytes read from the end of a report file: only the last batch of a query can be written again."""


class _Writer:
    """Raises ConfigError, Unsupported when it is made: an option or column that cannot work."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_sink(options)
        logs = self._options.cluster.connect().driver.logs
        fields = ((field.name, field.dataType.simpleString()) for field in schema.fields)
        topic, by_broker = self._options.topic, logs.names_brokers
        self._columns = layout(fields, topic, by_broker=by_broker, values_only=logs.values_only)

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        """Write the rows of a task, in Spark's Python workers. Raises BadRow, WriteError.

        While some are on their way, the next are taken from Spark; not more of them, so that rows stay in order.
        """
        options, written = self._options, TaskCommit(_attempt())
        if written.attempt.number:
            log.warning("%s: rows that an earlier attempt has written are written again", written.attempt)
        tables = together(iterator, size=TOGETHER_BYTES)
        first = next(tables, None)
        if first is None:  # nothing to write: nothing to connect to
            return written
        with connected(options.cluster, options.deliver_within_s) as (portal, cluster):
            producer = cluster.producer(
                compression=options.compression,
                deliver_within=options.deliver_within_s,
                max_message_bytes=options.max_message_bytes,
                buffer_bytes=options.buffer_bytes,
                acks=options.acks,
            )
            with portal.wrap_async_context_manager(producer):
                under_way: tuple[Future[list[Acks]], int] | None = None
                taken = 0
                for table in chain([first], tables):
                    groups = self._columns.groups(table, taken)
                    if under_way is not None:
                        written.finish(*under_way)
                    rows = sum(len(group.rows) for group in groups)
                    under_way = portal.start_task_soon(_send, cluster, producer, groups), rows
                    taken += rows
                    written.bytes += sum(group.bytes for group in groups)
                assert under_way is not None
                written.finish(*under_way)
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = -1) -> None:
        report("committed", messages, self._options.report_path)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = -1) -> None:
        report("aborted", messages, self._options.report_path)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of a batch query."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the rows of a micro-batch. In mode complete it writes all rows again, as Spark's own Kafka sink."""


# ---- in Spark's Python workers -------------------------------------------------------------------------------


def _attempt() -> Attempt:
    """Return the identity of this task. Raises ConfigError if another attempt of it may run at the same time."""
    task = TaskContext.get()
    if task is None:
        return Attempt(-1, 0)
    if (task.getLocalProperty("spark.speculation") or "").lower() == "true":
        raise ConfigError(
            "spark.speculation is true: a task that runs twice at the same time writes its rows twice. Set it to false"
        )
    query, run, batch = map(task.getLocalProperty, (QUERY, RUN, BATCH))
    of_batch = () if query is None or batch is None else (query, run or "", int(batch))
    return Attempt(task.partitionId(), task.attemptNumber(), *of_batch)


QUERY, RUN, BATCH = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
"""Names of the ids of query, run and batch among the properties of a task. Spark puts all settings of the session
there, too."""


async def _send(cluster: Cluster, producer: Producer, groups: Sequence[DestinationRows]) -> list[Acks]:
    """Raises Unsupported, in front of all rows: otherwise each attempt of the task would write those before it."""
    if not cluster.driver.has_headers and any(group.has_headers for group in groups):
        raise Unsupported("column headers", "Kafka 0.11; where it is null, rows can be written")

    async def one(group: DestinationRows) -> Acks:
        more: dict[str, str] = {name: name for name in ("key", "headers") if name in group.rows.column_names}
        partition = group.partition
        if partition is not None and partition.broker < 0 and cluster.driver.logs.names_brokers:
            partition = resolve_broker(partition, await cluster.partitions(partition.topic), "column partition")
            if partition.broker < 0:
                raise ConfigError(f"{partition}: no broker has it: name one in column broker")
        return await producer.send_arrow(group.topic, group.rows, value="value", partition=partition, **more)

    return await gather(one, groups)


# ---- what tasks report ---------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """The identity of one run of one task. (Python is not told that Spark runs all tasks of a stage again, as it does
    when an executor is lost with its shuffle files.)"""

    partition: int  # Spark's number of the task's part of the rows
    number: int  # from 0
    query: str = ""  # id of the streaming query, and of its run, which changes when the query is restarted
    run: str = ""
    batch: int = -1

    def __str__(self) -> str:
        batch = f"query {self.query} batch {self.batch} " if self.query else ""
        return f"{batch}partition {self.partition} attempt {self.number}"


@dataclass(slots=True)
class WriteCounts:
    """Counts of what was written to one partition of a topic."""

    rows: int = 0
    repeated: int = 0  # that may be duplicates, because the producer had to send them again
    first: int | None = None  # positions of the first and the last row, if the cluster reports them (0.7 does not)
    last: int | None = None

    def add(self, other: WriteCounts) -> None:
        self.rows += other.rows
        self.repeated += other.repeated
        self.first = min((at for at in (self.first, other.first) if at is not None), default=None)
        self.last = max((at for at in (self.last, other.last) if at is not None), default=None)


@dataclass
class TaskCommit(WriterCommitMessage):
    """A task's commit message."""

    attempt: Attempt
    bytes: int = 0  # of values, uncompressed
    partitions: dict[TopicPartition, WriteCounts] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(counts.rows for counts in self.partitions.values())

    def finish(self, outcome: Future[list[Acks]], rows: int) -> None:
        """Wait until these rows are written, and count them. Raises WriteError."""
        try:
            acks = outcome.result()
        except DeliveryError as error:  # there was no room: what came before is still on its way
            raise WriteError(str(self.attempt), self.rows, 0, 0, rows, [error.why]) from error
        for ack in chain.from_iterable(some.acks for some in acks):
            last = None if ack.position is None else ack.position + ack.records - 1
            counts = WriteCounts(ack.records, ack.records * ack.repeated, ack.position, last)
            self.partitions.setdefault(ack.partition, WriteCounts()).add(counts)
        if failed := [one for some in acks for one in some.failed]:
            kinds = Counter(type(one.error) for one in failed)
            rejected, unknown = kinds[Rejected], kinds[OutcomeUnknown]
            reasons = dict.fromkeys(map(_reason, failed))
            not_written = len(failed) - rejected - unknown
            raise WriteError(str(self.attempt), self.rows, rejected, not_written, unknown, list(reasons)[:REASONS])


def _reason(failed: Failed) -> str:
    """Return where a row was to go, and why it did not."""
    error, where = failed.error, str(failed.partition or failed.topic)
    if isinstance(large := error.__cause__, MessageTooLarge):
        return str(MessageTooLarge(where, -1, large.size, large.limit, SINK_NAMES.get(large.option, large.option)))
    return f"{where}: {error.why if isinstance(error, DeliveryError) else error}"


class WriteError(OdradekError):
    """A task could not write all of its rows. Counts rows that were written, will never be (rejected), surely were not,
    and may have been (unknown); `reasons` are the first different ones.
    """

    hint = "what was written stays, and another attempt of the task writes all of its rows again"

    def __init__(
        self, attempt: str, written: int, rejected: int, not_written: int, unknown: int, reasons: Sequence[str]
    ) -> None:
        super().__init__(attempt, written, rejected, not_written, unknown, tuple(reasons))
        self.attempt, self.written, self.reasons = attempt, written, tuple(reasons)
        self.rejected, self.not_written, self.unknown = rejected, not_written, unknown

    def message(self) -> str:
        failed = {"rejected": self.rejected, "not written": self.not_written, "in an unknown state": self.unknown}
        counts = ", ".join(f"{count} {state}" for state, count in failed.items() if count)
        return f"{self.attempt}: {self.written} rows written, {counts}: {'; '.join(self.reasons)}"


# ---- on the driver -------------------------------------------------------------------------------------------


def report(outcome: str, messages: Sequence[WriterCommitMessage | None], path: str) -> dict[str, Any]:
    """Sum up the messages of tasks: one line in the log and, if there is a path, one in that file. Return the latter.

    Args:
        outcome: `committed` or `aborted`.
        messages: One of each task; None of one that failed.
    """
    tasks = [message for message in messages if isinstance(message, TaskCommit)]
    streaming = [task.attempt for task in tasks if task.attempt.query]
    batch = {"query": streaming[0].query, "run": streaming[0].run, "batch": streaming[0].batch} if streaming else {}
    partitions: defaultdict[TopicPartition, WriteCounts] = defaultdict(WriteCounts)
    for task in tasks:
        for partition, counts in task.partitions.items():
            partitions[partition].add(counts)
    topics: defaultdict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    for partition, counts in sorted(partitions.items()):
        topics[partition.topic][partition.name] = {
            key: value for key, value in asdict(counts).items() if value is not None
        }
    line = {
        "outcome": outcome,
        **batch,
        "tasks": len(tasks),
        "lost": len(messages) - len(tasks),
        "retried": sum(task.attempt.number > 0 for task in tasks),
        "replayed": False,
        "rows": sum(task.rows for task in tasks),
        "bytes": sum(task.bytes for task in tasks),
        "topics": topics,
    }
    if not log.hasHandlers():  # nothing sets up logging in Spark's process; the driver shows its standard error
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        log.setLevel(logging.INFO)
    if path:
        try:
            _append(Path(path), line)
        except OSError as error:  # the rows are written: a query that fails for this would write them again
            log.warning("the report cannot be written: %s", error)
    _log(line)
    return line


def _append(path: Path, line: dict[str, Any]) -> None:
    """Append a line of its own, even behind one that was cut off. It says `replayed` if an earlier one is about the
    same batch of the same query: of another run, or aborted. `foreachBatch` may write a batch to several topics."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        before = file.read().split(b"\n")
        for text in before if "query" in line else ():
            with suppress(ValueError):  # a line that is cut off: its begin is not read, or the driver died in it
                entry = json.loads(text)
                is_same = (entry.get("query"), entry.get("batch")) == (line["query"], line["batch"])
                line["replayed"] |= is_same and (entry.get("run") != line["run"] or entry.get("outcome") == "aborted")
        file.write(b"\n" * bool(before[-1]) + json.dumps(line).encode("ascii") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _log(line: Mapping[str, Any]) -> None:
    query = f"query {line['query']} batch {line['batch']}: " if "query" in line else ""
    partitions = sum(map(len, line["topics"].values()))
    text = f"{query}{line['outcome']} {line['rows']} rows, {line['bytes']} bytes, {partitions} partitions of topics"
    notes = {
        f"{line['retried']} tasks were tried again": line["retried"],
        "the batch was written before": line["replayed"],
        f"{line['lost']} tasks failed, and what they wrote stays": line["lost"],
    }
    if reasons := [note for note, applies in notes.items() if applies]:
        log.warning("%s; rows may be duplicates: %s", text, ", ".join(reasons))
    else:
        log.info("%s", text)
