"""The sink as Spark sees it: `df.write.format("odradek").mode("append")` and `df.writeStream.format("odradek")`.

**Guarantee: at least once.** Each row is confirmed by its broker before its task ends well, so a query that ends well
has written every row. No topic can take back what was written, or tell what another task writes again (a producer that
is idempotent repeats nothing by itself): a task that fails leaves
what it has written, and its next attempt writes all of its rows again; so does a micro-batch that is run again because
the query died before Spark noted its end. Commit messages and the report say where that happened. A task that runs
twice at the same time would always write twice, which is why speculation is refused.

Spark pickles the writer into each task. `write` runs in Python workers, the rest in a process beside the driver, with
writers that know nothing of each other: all that passes is in commit messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain
from typing import TYPE_CHECKING, Any

from anyio.from_thread import BlockingPortal
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Acks
from odradek.errors import ConfigError, DeliveryError
from odradek.io.gather import gather
from odradek.spark.runtime import connected
from odradek.spark.sink_columns import DestinationRows, RowLayout, kafka_layout, layout
from odradek.spark.sink_options import SinkOptions, parse_sink
from odradek.spark.sink_report import Attempt, TaskCommit, WriteError, report
from odradek.types import MiB

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["BatchWriter", "StreamWriter", "stream_writer", "writer"]

log = logging.getLogger("odradek.spark.sink")

TOGETHER_BYTES = 8 * MiB
"""Spark's batches of 10 000 rows are sent so many bytes at a time: at the end of each there is a pause of a round trip,
and the rows of a topic with few of them travel together."""


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Make the writer of a batch query. Raises ConfigError, Unsupported: an option or column that cannot work."""
    if overwrite:
        raise ConfigError('a topic cannot be overwritten: write with .mode("append")')
    return BatchWriter(*_parse(options, schema, streaming=False))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Make the writer of a streaming query. Raises ConfigError, Unsupported: an option or column that cannot work."""
    parsed, columns = _parse(options, schema, streaming=True)
    if overwrite and parsed.is_kafka07:  # the others take the rows of mode complete, as Spark's own Kafka sink does
        raise ConfigError('a topic cannot be overwritten: write with .outputMode("append")')
    return StreamWriter(parsed, columns)


def _parse(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> tuple[SinkOptions, RowLayout]:
    parsed = parse_sink(options, streaming=streaming)
    fields = ((field.name, field.dataType.simpleString()) for field in schema.fields)
    return parsed, (layout if parsed.is_kafka07 else kafka_layout)(fields, parsed.topic)


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query."""

    def __init__(self, options: SinkOptions, columns: RowLayout) -> None:
        self._options, self._columns = options, columns

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write(iterator, self._options, self._columns)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        report("committed", messages, self._options.report_path)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        report("aborted", messages, self._options.report_path)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a micro-batch."""

    def __init__(self, options: SinkOptions, columns: RowLayout) -> None:
        self._options, self._columns = options, columns

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _write(iterator, self._options, self._columns)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        report("committed", messages, self._options.report_path)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        report("aborted", messages, self._options.report_path)


# ---- in Spark's Python workers -------------------------------------------------------------------------------


def _write(batches: Iterator[pa.RecordBatch], options: SinkOptions, columns: RowLayout) -> TaskCommit:
    written = TaskCommit(_attempt())
    if written.attempt.retried:
        log.warning("%s: rows that an earlier attempt has written are written again", written.attempt)
    tables = _together(batches)
    first = next(tables, None)
    if first is None:  # nothing to write: nothing to connect to
        return written
    usual = Tuning()
    tuning = Tuning(connect_timeout=min(usual.connect_timeout, options.deliver_within_s))
    with connected(options.cluster, tuning, options.deliver_within_s) as handle:
        producer = handle.cluster.producer(
            compression=options.compression,
            deliver_within=options.deliver_within_s,
            max_message_bytes=options.max_message_bytes,
            buffer_bytes=options.buffer_bytes,
            acks=options.acks,
        )
        with handle.portal.wrap_async_context_manager(producer):
            sending = _Sending(handle.portal, producer, columns, written)
            for table in chain([first], tables):
                sending.begin(table)
            sending.finish()
    return written


def _attempt() -> Attempt:
    """Which task this is. Raises ConfigError if another attempt of it may run at the same time."""
    task = TaskContext.get()
    if task is None:
        return Attempt(-1, 0)
    if (task.getLocalProperty("spark.speculation") or "").lower() == "true":
        raise ConfigError(
            "spark.speculation is true: a task that runs twice at the same time writes its rows twice. Set it to false"
        )
    query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
    if query is None or batch is None:
        return Attempt(task.partitionId(), task.attemptNumber())
    return Attempt(task.partitionId(), task.attemptNumber(), query, task.getLocalProperty(RUN) or "", int(batch))


QUERY, RUN, BATCH = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
"""What Spark calls them among the properties of a task, where it also puts all settings of the session."""


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches worth sending, and no more than one if it is large."""
    some: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if some and size + batch.nbytes > TOGETHER_BYTES:
            yield some
            some, size = [], 0
        if batch.num_rows:
            some.append(batch)
            size += batch.nbytes
    if some:
        yield some


class _Sending:
    """The rows of a task on their way. While some are, the next are taken from Spark; not more of them, so that rows
    stay in order."""

    def __init__(self, portal: BlockingPortal, producer: Producer, columns: RowLayout, written: TaskCommit) -> None:
        self._portal, self._producer, self._columns, self._written = portal, producer, columns, written
        self._rows = self._on_way = 0
        self._outcome: Future[list[Acks]] | None = None

    def begin(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Send the next rows, once those before are written. Raises BadRow, WriteError."""
        groups = self._columns.groups(batches, self._rows)
        self.finish()
        self._on_way = sum(len(group.rows) for group in groups)
        self._outcome = self._portal.start_task_soon(_send, self._producer, groups)
        self._rows += self._on_way
        self._written.bytes += sum(group.bytes for group in groups)

    def finish(self) -> None:
        """Wait until all rows are written. Raises WriteError."""
        if self._outcome is None:
            return
        try:
            acks = self._outcome.result()
        except DeliveryError as error:  # there was no room: what came before is still on its way
            raise WriteError(str(self._written.attempt), self._written.rows, 0, 0, self._on_way, [error.why]) from error
        self._outcome = None
        for some in acks:
            self._written.add(some)
        if failed := [one for some in acks for one in some.failed]:
            raise WriteError.of(self._written, failed)


async def _send(producer: Producer, groups: Sequence[DestinationRows]) -> list[Acks]:
    async def one(group: DestinationRows) -> Acks:
        more: dict[str, str] = {name: name for name in ("key", "headers") if name in group.rows.column_names}
        return await producer.send_arrow(group.topic, group.rows, value="value", partition=group.partition, **more)

    return await gather(one, groups)
