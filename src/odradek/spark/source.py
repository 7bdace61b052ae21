"""The data source as Spark sees it: `format("odradek")`, once `pyspark_odradek` can be imported where Spark runs.

Spark pickles what is made here and calls it in several processes: planning in one beside its driver, `read` in its
Python workers. They share nothing but options and offsets. `pushFilters` must not be overridden: what Spark 4.1 to 4.3
pushes down once sticks to the DataFrame, and other queries of it silently lose rows.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from odradek.spark.admission import backlog, end_of_micro_batch, end_offsets, has_new_partitions, should_read
from odradek.spark.brokers import tuning
from odradek.spark.directories import read_files
from odradek.spark.logs import LogCatalog, find_logs
from odradek.spark.offsets import offsets_from_dict, offsets_to_dict
from odradek.spark.options import ClusterOptions, SourceOptions, parse_kind, parse_source
from odradek.spark.planning import Extent
from odradek.spark.queries import TaskPlan, plan, plan_all, start_offsets
from odradek.spark.range_reader import ColumnsChunk, CompletedRange, RangeReader
from odradek.spark.runtime import connected
from odradek.spark.schema import Projection, ddl, join_small, project
from odradek.types import Position, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchReader", "OdradekSource", "StreamReader"]


class OdradekSource(DataSource):
    """Topics as tables: `odradek.spark.options` has its options and `odradek.spark.schema` its columns."""

    @classmethod
    def name(cls) -> str:
        return "odradek"

    def schema(self) -> str:
        """All columns. Called at `load`, so that wrong options are errors there. Raises ConfigError, Unsupported."""
        return ddl(parse_kind(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_source(self.options, streaming=False)
        return BatchReader(options, _projection(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_source(self.options, streaming=True)
        return StreamReader(options, _projection(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from odradek.spark import sink

        return sink.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from odradek.spark import sink

        return sink.stream_writer(self.options, schema, overwrite)


def _projection(schema: StructType, options: SourceOptions) -> Projection:
    fields = ((field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields)
    return project(fields, headers=options.headers)


class TaskPartition(InputPartition):
    """The input of one task."""

    def __init__(self, task: TaskPlan) -> None:
        super().__init__(task)

    def __repr__(self) -> str:
        ranges = self.value.ranges
        return f"<{type(self).__name__} {len(ranges)} ranges of {sum(part.size for part in ranges)} positions>"


class BatchReader(DataSourceReader):
    """Everything between two places, as it is when the query is planned: once for each `load`."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options, self._projection = options, projection

    def partitions(self) -> list[InputPartition]:
        return [TaskPartition(task) for task in plan_all(find_logs(self._options), self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition.value, self._options, self._projection)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Everything from a place on, batch by batch. All it has to remember is in its offsets."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options, self._projection = options, projection
        self._logs: LogCatalog | None = None
        self._initial: dict[str, Any] | None = None
        self._frozen: dict[TopicPartition, Extent] | None = None
        self._seen: dict[TopicPartition, Extent] = {}
        self._last = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_logs": None}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.limits.max_size
        if most is None:
            return ReadAllAvailable()
        return ReadMaxBytes(most) if self._options.unit.exact else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the current ends of the logs as the end of this run."""
        self._frozen = self._extents()

    def initialOffset(self) -> dict[str, Any]:
        """Asked for twice by Spark: the same both times, though `latest` moves on; and never beyond the end."""
        if self._initial is None:
            current = self._extents() if self._frozen is None else self._frozen
            self._initial = offsets_to_dict(start_offsets(self._find(), self._options, current))
        return self._initial

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; `start` itself if it is not time for one."""
        begin = offsets_from_dict(start)
        current = self._within_target(self._extents())
        end = end_offsets(begin, current)
        waiting = sum(backlog(begin, end, current).values())
        if not (has_new_partitions(begin, current) or self._due(waiting)):
            return offsets_to_dict(begin)
        admitted = end_of_micro_batch(begin, end, current, _size(limit), self._options.unit)
        ends = admitted.with_boundaries(self._find().boundaries(admitted.cuts))
        self._last = time.monotonic()
        return offsets_to_dict(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the current ends of the logs, which Spark's progress shows together with the lag."""
        return offsets_to_dict({partition: Position(log.latest) for partition, log in self._seen.items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = plan(self._find(), self._options, offsets_from_dict(start), offsets_from_dict(end))
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition.value, self._options, self._projection)

    def _find(self) -> LogCatalog:
        self._logs = self._logs or find_logs(self._options)
        return self._logs

    def _extents(self) -> dict[TopicPartition, Extent]:
        self._seen = self._find().extents()
        return self._seen

    def _within_target(self, current: dict[TopicPartition, Extent]) -> dict[TopicPartition, Extent]:
        """What there is of what there was when a run with an end began. A log made anew is no longer than it is."""
        frozen = self._frozen
        if frozen is None:
            return current
        return {
            partition: log._replace(latest=min(log.latest, max(frozen[partition].latest, log.earliest)))
            for partition, log in current.items()
            if partition in frozen
        }

    def _due(self, waiting: int) -> bool:
        limits = self._options.limits
        if self._frozen is not None:  # waiting for more would be waiting for ever
            limits = replace(limits, min_size=0)
        return should_read(waiting, limits, now=time.monotonic(), last=self._last)


def _size(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    return limit.max_bytes if isinstance(limit, ReadMaxBytes) else None


# ---- in Spark's Python workers -------------------------------------------------------------------------------


def _read(task: TaskPlan | None, options: SourceOptions, projection: Projection) -> Iterator[pa.RecordBatch]:
    """The rows of a task; none without one, which is what Spark calls for when there are no tasks at all."""
    if task is None:
        return
    chunks = _from_cluster(task, options) if isinstance(options.where, ClusterOptions) else _from_files(task, options)
    with closing(chunks):
        yield from join_small(batch for chunk in chunks for batch in _batches(chunk, projection))


def _batches(chunk: ColumnsChunk | CompletedRange, projection: Projection) -> Iterable[pa.RecordBatch]:
    if isinstance(chunk, ColumnsChunk):
        return projection.batches(chunk.partition, chunk.rows)
    return [projection.end_of_range(*chunk)] if projection.has_range_rows else []


def _from_cluster(task: TaskPlan, options: SourceOptions) -> Generator[ColumnsChunk | CompletedRange, None, None]:
    assert isinstance(options.where, ClusterOptions)
    with (
        connected(options.where, tuning(options), options.poll_deadline_s) as (portal, cluster),
        portal.wrap_async_context_manager(RangeReader(cluster.driver, task.ranges, options)) as reader,
    ):
        while chunks := portal.call(reader.take):
            yield from chunks


def _from_files(task: TaskPlan, options: SourceOptions) -> Generator[ColumnsChunk | CompletedRange, None, None]:
    for part in task.ranges:
        count = 0
        for rows in read_files(part, task.paths[part.partition], options):
            count += len(rows.values)
            yield ColumnsChunk(part.partition, rows)
        yield CompletedRange(part.partition, part.start, part.end, count)
