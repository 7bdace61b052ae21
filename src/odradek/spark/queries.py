"""The way from options to tasks: `planning`, `admission` and `boundary`, combined with answers of the logs."""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from odradek.errors import ConfigError, TransportError
from odradek.spark.logs import LogCatalog
from odradek.spark.offsets import Offsets, PartitionPosition
from odradek.spark.options import SourceOptions
from odradek.spark.planning import (
    Extent,
    Range,
    SplitPoint,
    check_order,
    clip_to_logs,
    pack,
    positions,
    propose_splits,
    resolve_per_partition,
    size_tasks,
    split,
)
from odradek.spark.rules import lost
from odradek.types import AtTime, Position, TopicPartition

__all__ = ["TaskPlan", "plan", "plan_all", "start_offsets"]

log = logging.getLogger("odradek.spark")

TASKS_PER_CORE = 4

Extents = Mapping[TopicPartition, Extent]


class TaskPlan(NamedTuple):
    """The work of one task.

    Args:
        ranges: Ranges, in reading order.
        paths: Log directories of the partitions; empty for a cluster.
    """

    ranges: tuple[Range, ...]
    paths: Mapping[TopicPartition, str]


def plan_all(logs: LogCatalog, options: SourceOptions) -> list[TaskPlan]:
    """The tasks of a batch query.

    Raises:
        ConfigError: Options that do not fit what there is.
        DataLoss: What is to be read is not there, and the options say that this is an error.
        OdradekError: There is no answer from the logs.
    """
    current = logs.extents()
    _check_topics(options, current)
    starts = resolve_per_partition(current, options.start, "startingOffsets")
    ends = resolve_per_partition(current, options.end, "endingOffsets")
    check_order(starts, ends)
    start = _resolve(logs, starts, current, "startingOffsets")
    _check_times(options, start, current)
    end = _resolve(logs, ends, current, "endingOffsets")
    behind = {partition: max(position, start[partition]) for partition, position in end.items()}
    return _divide(logs, options, start, behind, current)


def plan(logs: LogCatalog, options: SourceOptions, start: Offsets, end: Offsets) -> list[TaskPlan]:
    """The tasks of a micro-batch. Raises as `plan_all`."""
    return _divide(logs, options, start, end, logs.extents())


def start_offsets(logs: LogCatalog, options: SourceOptions, current: Extents) -> dict[TopicPartition, Position]:
    """Return the start offsets of a streaming query that sees these logs for the first time. Raises as `plan_all`."""
    if not options.unit.exact:  # a cluster of 0.7 does not know a topic that has no messages yet
        _check_topics(options, current)
    resolved = _resolve(
        logs, resolve_per_partition(current, options.start, "startingOffsets"), current, "startingOffsets"
    )
    _check_times(options, resolved, current)
    return dict(sorted(resolved.items()))


def _check_topics(options: SourceOptions, current: Extents) -> None:
    """A query that will never see more than there is now says what it does not see."""
    topics = options.topics
    missing = sorted(set(topics.names) - {partition.topic for partition in current})
    missing += map(str, sorted(set(topics.partitions) - current.keys()))
    if not missing:
        return
    text = f"nothing has {', '.join(missing[:10])} now: no live broker, and no directory"
    if options.fail_on_data_loss:
        raise ConfigError(f"{text} (failOnDataLoss=false reads the logs that exist)")
    log.warning("%s", text)


# ---- places -> positions -------------------------------------------------------------------------------------


def _resolve(
    logs: LogCatalog, specs: Mapping[TopicPartition, PartitionPosition], current: Extents, option: str
) -> dict[TopicPartition, Position]:
    times = {partition: position for partition, position in specs.items() if isinstance(position, AtTime)}
    resolved = logs.at(times)
    for partition in sorted(times.keys() - resolved.keys()):
        raise TransportError(f"{partition}: its broker is no longer registered")
    resolved = {partition: _inside(position, current[partition]) for partition, position in resolved.items()}
    known = {partition: resolved.get(partition, position) for partition, position in specs.items()}
    _check_positions(logs, {p: position for p, position in known.items() if isinstance(position, int)}, current, option)
    return positions({p: position for p, position in known.items() if not isinstance(position, AtTime)}, current)


def _inside(position: Position, log: Extent) -> Position:
    """Return the nearest position that the log had: it may have moved on since."""
    return Position(min(max(position, log.earliest), log.latest))


def _check_times(options: SourceOptions, start: Offsets, current: Extents) -> None:
    """Raise ConfigError for a partition without a record of the time to start from, as Spark's own source does."""
    if options.unit.exact or options.start_at_end:
        return
    times = options.start if isinstance(options.start, Mapping) else dict.fromkeys(start, options.start)
    missing = [p for p, at in times.items() if isinstance(at, AtTime) and start[p] >= current[p].latest]
    if missing:
        raise ConfigError(
            f"no record is as late as the starting time in {', '.join(map(str, sorted(missing)[:10]))}: "
            "startingOffsetsByTimestampStrategy=latest starts these at their ends"
        )


def _check_positions(logs: LogCatalog, specs: Offsets, current: Extents, option: str) -> None:
    """Users' positions must be where messages begin: inside of one, what looks like messages may be something else."""
    cuts = [
        _cut(partition, position, current[partition])
        for partition, position in specs.items()
        if current[partition].earliest <= position <= current[partition].latest
    ]
    boundaries = logs.boundaries([cut for cut in cuts if cut.floor != cut.position != cut.ceiling])
    wrong = {cut: position for cut, position in boundaries.items() if position != cut.position}
    for cut, position in wrong.items():
        last = f"the segment begins at {cut.floor}"
        near = (
            "cannot verify that a message starts at this position"
            if position is None
            else f"the next message is at {position}"
        )
        raise ConfigError(f"option {option}: {cut.partition} has no message boundary at {cut.position}: {near}; {last}")


def _cut(partition: TopicPartition, position: int, log: Extent) -> SplitPoint:
    """With the known boundaries around it."""
    known = sorted({log.earliest, *log.boundaries, log.latest})
    return SplitPoint(
        partition, position, known[bisect_right(known, position) - 1], known[bisect_left(known, position)]
    )


# ---- tasks ---------------------------------------------------------------------------------------------------


def _divide(logs: LogCatalog, options: SourceOptions, start: Offsets, end: Offsets, current: Extents) -> list[TaskPlan]:
    ranges, gaps = clip_to_logs(start, end, current, fail_on_data_loss=options.fail_on_data_loss)
    lost(gaps, options)
    packing = options.packing
    most = packing.max_tasks or max(packing.min_tasks, TASKS_PER_CORE * (os.cpu_count() or 1))
    total = sum(part.size for part in ranges)
    unit = options.unit
    work = size_tasks(
        total, max_size=packing.max_size, min_tasks=packing.min_tasks, max_tasks=most, min_split=unit.min_split
    )
    cuts = propose_splits(ranges, current, work.split_size)
    boundaries = logs.boundaries(cuts)
    ranges_split = split(
        ranges, [(cut.partition, position) for cut, position in boundaries.items() if position is not None]
    )
    paths = logs.paths({part.partition for part in ranges})
    return [
        TaskPlan(task.ranges, {part.partition: paths[part.partition] for part in task.ranges} if paths else {})
        for task in pack(
            ranges_split,
            work.tasks,
            fetchers=packing.fetchers,
            leader=lambda partition: partition.broker if unit.exact else current[partition].broker,
        )
    ]
