"""The logs of a flow: how they are read, what of them is not in the table, the next batch, and what of it was read.

    request = read_request(pipeline, name)
    backlog = backlogs(reached, extents)                      what is not in the table yet
    batch = next_batch(reached, extents, ...)                 some of it
    gaps = coverage(flow, batch, ranges that were read, ...)  what gave no row

A partition that is new is read from its earliest message. A partition that is not there (its broker is down) stays
where it is, and is named as missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from odradek.core.interfaces import Extent, Extents, PositionUnit, SplitPoint
from odradek.io.drivers import zookeeper_url
from odradek.pipeline.commits import Gap
from odradek.pipeline.config import Pipeline
from odradek.pipeline.errors import InexactRead
from odradek.ranges.catalog import find_logs
from odradek.ranges.offsets import NO_IDS, Offsets, TopicIds
from odradek.ranges.planning import (
    PositionGap,
    Range,
    TaskPlan,
    clip_to_logs,
    end_of_micro_batch,
    end_offsets,
    has_shorter,
    in_current_topics,
    topic_ids,
    with_boundaries,
)
from odradek.ranges.reader import ColumnsChunk, read_task
from odradek.ranges.request import (
    MESSAGE_BYTES,
    ClusterConnection,
    Directory,
    ReadRequest,
    RequestNames,
    Topics,
    numbered_brokers_url,
)
from odradek.types import EARLIEST, LATEST, Columns, MiB, Position, TopicPartition

__all__ = [
    "LogReader",
    "PartitionBacklog",
    "PlannedBatch",
    "backlogs",
    "cluster_url",
    "coverage",
    "next_batch",
    "read_request",
    "recorded_starts",
]

# ---- how logs are read ---------------------------------------------------------------------------------------

CORRUPT = {"fail": "fail", "skip": "skip", "dead": "raw"}
"""Policy of a flow -> the decoder's mode."""

STARTS = {"earliest": EARLIEST, "latest": LATEST}


def read_request(pipeline: Pipeline, name: str) -> ReadRequest:
    """Return how the logs of a flow are read. Positions of the table override `start`."""
    flow = pipeline.flows[name]
    topics = Topics(pattern=flow.pattern or "", whole=True)
    return replace(
        _without_topics(pipeline),
        topics=topics if flow.topics is None else Topics(names=tuple(sorted(set(flow.topics)))),
        start=STARTS[flow.start],
        fail_on_data_loss=flow.data_loss == "fail",
        corrupt=CORRUPT[flow.corrupt],
        fetchers=pipeline.source.fetchers_per_broker,
    )


def _without_topics(pipeline: Pipeline) -> ReadRequest:
    """Return how the source is read, without topics. Errors name the keys of the file."""
    source = pipeline.source
    is_default = source.kafka is not None and "max_message_bytes" not in source.model_fields_set
    return ReadRequest(
        _location(pipeline), Topics(), EARLIEST,
        max_message_bytes=MESSAGE_BYTES if is_default else source.max_message_bytes,
        read_committed=source.counts_records,
        names=RequestNames(
            path=pipeline.at("source", "logs"),
            max_message_bytes=pipeline.at("source", "max_message_bytes"),
            skip_loss='data_loss = "skip"',
            corrupt='corrupt = "dead" continues behind it, and keeps its bytes among the dead letters',
        ),
    )  # fmt: skip


def _location(pipeline: Pipeline) -> ClusterConnection | tuple[Directory, ...]:
    source = pipeline.source
    if source.logs is not None:
        return source.directories
    if source.zookeeper is not None:
        return ClusterConnection(zookeeper_url(source.zookeeper))
    return ClusterConnection(source.kafka or numbered_brokers_url(source.brokers or ""))


def cluster_url(pipeline: Pipeline) -> str | None:
    """Return the cluster's URL for `odradek.connect`; None if the source is log directories."""
    where = _location(pipeline)
    return where.url if isinstance(where, ClusterConnection) else None


# ---- what is not in the table --------------------------------------------------------------------------------


class PartitionBacklog(NamedTuple):
    """The part of one partition that is not in the table."""

    partition: TopicPartition
    reached: Position | None  # end of what was read; None: the partition is new
    earliest: int  # -1: no broker, and no directory, has the log now
    latest: int
    waiting: int | None  # size to read, in the unit of positions; None: unknown, because the log is missing
    gap: PositionGap | None  # data that was lost before it could be read


def backlogs(reached: Offsets, extents: Extents, ids: TopicIds = NO_IDS) -> list[PartitionBacklog]:
    """Return the backlog of each partition that the table or a log knows. `ids`: the topics that `reached` is of."""
    current, recreated = in_current_topics(reached, ids, extents, topic_ids(extents))
    begin = _with_new(current, extents)
    end = end_offsets(begin, extents)
    ranges, lost = clip_to_logs(begin, end, extents)
    waiting, gaps = {part.partition: part.size for part in ranges}, {gap.partition: gap for gap in (*lost, *recreated)}
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
    ranges, gaps = clip_to_logs(begin, end, extents)
    if not ranges and not has_shorter(gaps):
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


def recorded_starts(batch: PlannedBatch, covered: Iterable[Range]) -> dict[TopicPartition, Position]:
    """Return where the ranges of a batch begin, as its record has it: the starts in a log that was created again, and
    ends before the former position, where the first task has begun to read. A gap of the record has that position."""
    shorter = {partition: batch.end[partition] for partition, at in batch.start.items() if at > batch.end[partition]}
    for part in covered:
        if part.partition in shorter:
            shorter[part.partition] = min(shorter[part.partition], Position(part.start))
    return {**batch.start, **shorter}


# ---- reading again, without a flow ---------------------------------------------------------------------------


class LogReader:
    """A reader of some partitions of the source: of every message, corrupt ones as raw bytes."""

    def __init__(self, pipeline: Pipeline, partitions: Iterable[TopicPartition]) -> None:
        topics = Topics(partitions=tuple(sorted(partitions)))
        self._request = replace(_without_topics(pipeline), topics=topics, corrupt="raw", fetch_bytes=1 * MiB)
        self._fetchers_per_broker = pipeline.source.fetchers_per_broker
        self._logs = find_logs(self._request)
        self._ids: TopicIds = NO_IDS

    @property
    def missing_is_deleted(self) -> bool:
        """True if a log that `extents` leaves out was deleted: in 0.7 its broker may be away, and a directory may be
        elsewhere."""
        return isinstance(self._request.where, ClusterConnection) and not self._logs.names_brokers

    def extents(self) -> dict[TopicPartition, Extent]:
        """Return the extent of each partition; those that no broker and no directory has are left out."""
        extents = self._logs.extents()
        brokers = {extent.broker for extent in extents.values()}  # partitions of 0.8 and later do not name theirs
        self._request = replace(self._request, fetch_ahead=self._fetchers_per_broker * max(1, len(brokers)))
        self._ids = topic_ids(extents)
        return extents

    def compacted(self, topics: Collection[str]) -> set[str]:
        """Return those of these topics that brokers compact, as far as they say so."""
        return self._logs.compacted(topics)

    def read(self, ranges: Sequence[Range]) -> Iterator[tuple[TopicPartition, Columns]]:
        """Yield the messages of these ranges, in order within each range. Call `extents` first.

        Raises:
            BoundaryMismatch: A range does not begin or end where a message does.
            DataLoss, TransportError, DeadlineError, OSError: A range cannot be read.
        """
        task = TaskPlan(tuple(ranges), self._logs.paths({part.partition for part in ranges}), self._ids)
        with closing(read_task(task, self._request)) as chunks:
            yield from ((chunk.partition, chunk.rows) for chunk in chunks if isinstance(chunk, ColumnsChunk))
