"""The readers of the data source: what a query reads, planned beside Spark's driver, and its rows in Python workers.

They share nothing but options and offsets. `pushFilters` must not be overridden: what Spark 4.1 to 4.3 pushes down once
sticks to the DataFrame, and other queries of it silently lose rows.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from odradek.core.interfaces import Extent, Extents, PositionUnit
from odradek.errors import OdradekError
from odradek.ranges import planning
from odradek.ranges.catalog import check_exist, extents_from, find_logs, plan, plan_all, start_offsets
from odradek.ranges.offsets import NO_OFFSETS, Offsets, ids_from_dict, offsets_from_dict, offsets_to_dict
from odradek.ranges.projection import Projection, join_small
from odradek.ranges.reader import ColumnsChunk, read_task
from odradek.ranges.request import Topics
from odradek.spark.options import SourceOptions
from odradek.types import Position, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchReader", "RefusedStream", "StreamReader", "lag_metrics"]


class _SourceReader:
    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        self._options, self._projection = options, projection

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, in Spark's Python workers."""
        if partition.value is None:  # which is what Spark calls for when there are no tasks at all
            return
        with closing(read_task(partition.value, self._options)) as chunks:
            rows = (chunk for chunk in chunks if isinstance(chunk, ColumnsChunk))
            batches = (batch for chunk in rows for batch in self._projection.batches(chunk.partition, chunk.rows))
            yield from join_small(batches)


class BatchReader(_SourceReader, DataSourceReader):
    """Everything between two places, as it is when the query is planned: once for each `load`."""

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in plan_all(find_logs(self._options), self._options)]


class RefusedStream(DataSourceStreamReader):
    """A streaming query that cannot work: pyspark loses errors of `streamReader` itself, but not of calls."""

    def __init__(self, error: OdradekError) -> None:
        self._error = error

    def initialOffset(self, *args: Any, **named: Any) -> Any:
        raise self._error

    latestOffset = partitions = read = initialOffset


class StreamReader(_SourceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Everything from a place on, batch by batch. All it has to remember is in its offsets."""

    def __init__(self, options: SourceOptions, projection: Projection) -> None:
        super().__init__(options, projection)
        self._logs = find_logs(options)
        self._initial: dict[str, Any] | None = None
        self._frozen: dict[TopicPartition, Extent] | None = None
        self._seen: dict[TopicPartition, Extent] = {}
        self._reached: dict[TopicPartition, Position] = {}
        self._is_first = True
        self._observed: deque[tuple[float, int]] = deque(maxlen=1000)
        self._last = -math.inf  # time of the last micro-batch; the first never waits for more records

    def getDefaultReadLimit(self) -> ReadLimit:
        maximum = self._options.max_size
        if maximum is None:
            return ReadAllAvailable()
        return ReadMaxBytes(maximum) if self._logs.unit.exact else ReadMaxRows(maximum)

    def prepareForTriggerAvailableNow(self) -> None:
        """Freeze the current ends of the logs as the end of this run."""
        self._frozen = self._extents()

    def initialOffset(self) -> dict[str, Any]:
        """Asked for twice by Spark: the same both times, though `latest` moves on; and never beyond the end."""
        if self._initial is None:
            current = self._extents() if self._frozen is None else self._frozen
            start = start_offsets(self._logs, self._options, current)
            self._is_first = False
            self._initial = offsets_to_dict(start, planning.topic_ids(current))
        return self._initial

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; `start` itself if it is not time for one."""
        begin, ids = offsets_from_dict(start), ids_from_dict(start)
        known = [] if self._logs.unit.exact else list(filter(self._options.topics.has_partition, begin))
        current = self._extents(begin, known)
        if self._is_first:  # a checkpoint does not have topics that the options have named since
            check_exist(self._options, {*begin, *current})
            self._is_first = False
        gone = planning.gone(begin, known, current)
        self._options.check_loss(gone)
        for gap in gone:  # when the topic is made again, it is read from its earliest message
            del begin[gap.partition]
        if self._frozen is not None:  # a new leader may have shown less than the former one had
            frozen = {partition: max(log.latest, begin.get(partition, 0)) for partition, log in self._frozen.items()}
            current = planning.within(current, frozen)
        now = {**ids, **planning.topic_ids(current)}
        begin, lost = planning.in_current_topics(begin, ids, current, now)
        self._reached = begin
        end = planning.end_offsets(begin, current)
        ranges, gaps = planning.clip_to_logs(begin, end, current)
        waiting = sum(part.size for part in ranges)
        has_new = any(log.latest > log.earliest for partition, log in current.items() if partition not in begin)
        # A run that is to end (availableNow) must not wait for more records: it would never end.
        enough = self._frozen is not None or waiting >= self._options.min_size
        now_s = time.monotonic()
        is_due = waiting > 0 and (enough or now_s - self._last >= self._options.max_delay_s)
        self._last = now_s if math.isinf(self._last) else self._last
        if not (has_new or is_due or gone or lost or planning.has_shorter(gaps)):
            return start
        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else getattr(limit, "max_bytes", None)
        ends, cuts = planning.end_of_micro_batch(begin, end, current, maximum, self._logs.unit)
        self._reached = planning.with_boundaries(ends, self._logs.boundaries(cuts))
        self._last = now_s
        return offsets_to_dict(self._reached, now)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return what Spark's progress shows as `latestOffset`: the ends of the logs, and metrics of the lag.

        Spark takes no metrics of its own from a source in Python, nor a description.
        """
        ends = offsets_to_dict({partition: Position(log.latest) for partition, log in self._seen.items()})
        metrics = lag_metrics(self._reached, self._seen, self._observed, time.monotonic(), self._logs.unit)
        return {**ends, "description": f"Odradek[{_described(self._options.topics)}]", "metrics": metrics}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, ends = offsets_from_dict(start), offsets_from_dict(end)
        logs, options = self._logs, self._options
        read = (partition for partition, last in ends.items() if begin.get(partition, last) != last)
        if not all(map(options.topics.has_partition, read)):  # an earlier run, with other topics, has begun the batch
            options = replace(options, topics=Topics(partitions=tuple(ends)))
            logs = find_logs(options)
        tasks = plan(logs, options, begin, ends, start_ids=ids_from_dict(start), end_ids=ids_from_dict(end))
        return [InputPartition(task) for task in tasks]

    def _extents(
        self, reached: Offsets = NO_OFFSETS, needed: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, Extent]:
        self._seen = extents_from(self._logs, reached, needed)
        self._observed.append((time.monotonic(), sum(log.latest for log in self._seen.values())))
        return self._seen


def _described(topics: Topics) -> str:
    """Return topics as Spark's own source names them."""
    if topics.pattern:
        return f"SubscribePattern[{topics.pattern}]"
    if topics.partitions:
        return f"Assign[{', '.join(map(str, topics.partitions[:10]))}]"
    return f"Subscribe[{', '.join(topics.names[:10])}]"


def lag_metrics(
    reached: Offsets, logs: Extents, observed: Iterable[tuple[float, int]], now: float, unit: PositionUnit
) -> dict[str, float]:
    """Return how far a streaming query is behind the ends of its logs: `minOffsetsBehindLatest`, `max...` and `avg...`,
    as Spark's own Kafka source calls them, and `total...`; `Bytes` instead of `Offsets` where positions are bytes.

    `secondsBehindLatest` is the time since the logs ended where reading is now; it is left out if that was before the
    first of the times (s of the clock of `now`) and sums of all ends that were `observed`.
    """
    behind = [max(log.latest - reached.get(partition, log.earliest), 0) for partition, log in logs.items()]
    if not behind:
        return {}
    total, name = sum(behind), "BytesBehindLatest" if unit.exact else "OffsetsBehindLatest"
    read = sum(log.latest for log in logs.values()) - total
    since = [then for then, latest in observed if latest <= read]
    seconds = {"secondsBehindLatest": round(now - since[-1], 3) if total else 0.0} if since or not total else {}
    return {
        f"min{name}": min(behind),
        f"max{name}": max(behind),
        f"avg{name}": total / len(behind),
        f"total{name}": total,
        **seconds,
    }
