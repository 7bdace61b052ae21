"""The logs of a flow: how they are read, what of them is not in the table, the next batch, and what of it was read.

    options = parse_source(flow_options(pipeline, flow), streaming=True)
    backlog = backlogs(reached, extents)                      what is not in the table yet
    batch = next_batch(reached, extents, ...)                 some of it
    gaps = coverage(flow, batch, ranges that were read, ...)  what gave no row

A partition that is new is read from its earliest message. A partition that is not there (its broker is down) stays
where it is, and is named as missing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from odradek.pipeline.commits import Gap
from odradek.pipeline.config import Flow, Pipeline, SourceConfig
from odradek.pipeline.errors import InexactRead
from odradek.spark.logs import TaskPlan, find_logs
from odradek.spark.options import ClusterOptions, SourceOptions, Topics, parse_source
from odradek.spark.planning import (
    Extent,
    Extents,
    PositionGap,
    PositionUnit,
    Range,
    SplitPoint,
    clip_to_logs,
    end_of_micro_batch,
    end_offsets,
    with_boundaries,
)
from odradek.spark.range_reader import ColumnsChunk, read_task
from odradek.spark.values import Offsets
from odradek.types import Columns, MiB, Position, TopicPartition

__all__ = [
    "LogReader",
    "PartitionBacklog",
    "PlannedBatch",
    "backlogs",
    "cluster_url",
    "coverage",
    "flow_options",
    "next_batch",
]

# ---- options of the data source ------------------------------------------------------------------------------

CORRUPT = {"fail": "fail", "skip": "skip-message", "dead": "dead"}

PROTOCOLS = {"kafka": "PLAINTEXT", "kafka+ssl": "SSL", "kafka+sasl": "SASL_PLAINTEXT", "kafka+sasl+ssl": "SASL_SSL"}


def flow_options(pipeline: Pipeline, flow: Flow) -> dict[str, str]:
    """Return the options of the data source. Positions of the table override `startingOffsets`."""
    topics = {"subscribePattern": flow.pattern or ""} if flow.topics is None else {"subscribe": ",".join(flow.topics)}
    return {
        **_location_options(pipeline.source),
        **topics,
        "startingOffsets": flow.start,
        "failOnDataLoss": str(flow.data_loss == "fail").lower(),
        "corrupt": CORRUPT[flow.corrupt],
        "includeHeaders": "true",
        "maxFetchersPerBroker": str(pipeline.source.fetchers_per_broker),
    }


def _location_options(source: SourceConfig) -> dict[str, str]:
    limit = {"maxMessageBytes": str(source.max_message_bytes)}
    if source.kafka is not None:
        scheme, _, servers = source.kafka.partition("://")
        return {
            "kafka.bootstrap.servers": servers,
            "kafka.security.protocol": PROTOCOLS[scheme],
            "kafka.isolation.level": "read_committed",
            **(limit if "max_message_bytes" in source.model_fields_set else {}),
        }
    if source.zookeeper is not None:
        return {"kafka.zk.connect": source.zookeeper, **limit}
    if source.brokers is not None:
        return {"kafka.broker.list": source.brokers, **limit}
    return {"path": json.dumps(source.logs), **limit}


def _all_of(source: SourceConfig) -> SourceOptions:
    return parse_source({**_location_options(source), "subscribePattern": ".*"}, streaming=False)


def cluster_url(source: SourceConfig) -> str | None:
    """Return the cluster's URL for `odradek.connect`; None if the source is log directories."""
    where = _all_of(source).where
    return where.url if isinstance(where, ClusterOptions) else None


# ---- what is not in the table --------------------------------------------------------------------------------


class PartitionBacklog(NamedTuple):
    """The part of one partition that is not in the table."""

    partition: TopicPartition
    reached: Position | None  # end of what was read; None: the partition is new
    earliest: int  # -1: no broker, and no directory, has the log now
    latest: int
    waiting: int | None  # size to read, in the unit of positions; None: unknown, because the log is missing
    gap: PositionGap | None  # data that was lost before it could be read


def backlogs(reached: Offsets, extents: Extents) -> list[PartitionBacklog]:
    """Return the backlog of each partition that the table or a log knows."""
    begin = _with_new(reached, extents)
    end = end_offsets(begin, extents)
    ranges, lost = clip_to_logs(begin, end, extents)
    waiting, gaps = {part.partition: part.size for part in ranges}, {gap.partition: gap for gap in lost}
    return [
        PartitionBacklog(
            partition, reached.get(partition), *extents.get(partition, Extent(-1, -1))[:2],
            waiting.get(partition, 0) if partition in extents else None, gaps.get(partition),
        )
        for partition in sorted(end)
    ]  # fmt: skip


def _with_new(reached: Offsets, extents: Extents) -> dict[TopicPartition, Position]:
    return {**{partition: Position(log.earliest) for partition, log in extents.items()}, **reached}


# ---- the next batch ------------------------------------------------------------------------------------------


class PlannedBatch(NamedTuple):
    """A planned batch: where its ranges begin, and where the next batch begins."""

    start: dict[TopicPartition, Position]  # only of partitions that it reads
    end: dict[TopicPartition, Position]  # of every partition that is known


def next_batch(
    reached: Offsets,
    extents: Extents,
    max_size: int | None,
    unit: PositionUnit,
    boundaries: Callable[[Sequence[SplitPoint]], Mapping[SplitPoint, int | None]],
) -> PlannedBatch | None:
    """Return the next batch, of at most about `max_size`; None: there is nothing to read. `boundaries` returns where
    messages begin, at or after the ends of shares."""
    begin = _with_new(reached, extents)
    end = end_offsets(begin, extents)
    if not clip_to_logs(begin, end, extents)[0]:
        return None
    ends, cuts = end_of_micro_batch(begin, end, extents, max_size, unit)
    end = with_boundaries(ends, boundaries(cuts))
    start = {partition: first for partition, first in begin.items() if end[partition] != first}
    return PlannedBatch(start, end) if start else None


# ---- what was read -------------------------------------------------------------------------------------------


def coverage(flow: str, batch: PlannedBatch, covered: Iterable[Range], reason: str) -> list[Gap]:
    """Return the parts of a batch's ranges that no task has read, with the reason why there may be such parts.

    Raises:
        InexactRead: A task has read something outside of the batch, or something was read twice.
    """
    read: defaultdict[TopicPartition, list[Range]] = defaultdict(list)
    for part in sorted(covered):
        read[part.partition].append(part)
    gaps: list[Gap] = []
    for partition, start in batch.start.items():
        at, end, parts = int(start), int(batch.end[partition]), read.pop(partition, [])
        holes: list[tuple[int, int]] = []
        if at > end:  # the log was recreated
            holes, at = [(at, end)], parts[0].start if parts else end
        for part in [*parts, Range(partition, end, end)]:
            if part.start < at:
                what = f"positions {part.start}-{at} were read twice, or are not in this batch"
                raise InexactRead(flow, f"{partition}: {what}")
            holes += [(at, part.start)] if at < part.start else []
            at = part.end
        gaps += (Gap(partition.topic, partition.name, *hole, reason) for hole in holes)
    if read:
        raise InexactRead(flow, f"a task has read {next(iter(read))}, which is not in this batch")
    return gaps


# ---- reading again, without a flow ---------------------------------------------------------------------------


class LogReader:
    """A reader of some partitions of the source: of every message, corrupt ones as raw bytes."""

    def __init__(self, source: SourceConfig, partitions: Iterable[TopicPartition]) -> None:
        wanted = tuple(sorted(partitions))
        fetches = source.fetchers_per_broker * len({partition.broker for partition in wanted})
        topics = Topics(partitions=wanted)
        self._options = replace(_all_of(source), topics=topics, corrupt="raw", fetch_bytes=1 * MiB, fetch_ahead=fetches)
        self._logs = find_logs(self._options)

    def extents(self) -> dict[TopicPartition, Extent]:
        """Return the extent of each partition; those that no broker and no directory has are left out."""
        return self._logs.extents()

    def read(self, ranges: Sequence[Range]) -> Iterator[tuple[TopicPartition, Columns]]:
        """Yield the messages of these ranges, in order within each range. Call `extents` first.

        Raises:
            BoundaryMismatch: A range does not begin or end where a message does.
            DataLoss, TransportError, DeadlineError, OSError: A range cannot be read.
        """
        task = TaskPlan(tuple(ranges), self._logs.paths({part.partition for part in ranges}))
        with closing(read_task(task, self._options)) as chunks:
            yield from ((chunk.partition, chunk.rows) for chunk in chunks if isinstance(chunk, ColumnsChunk))
