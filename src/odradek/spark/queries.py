"""From options to tasks: `planning`, `admission` and `boundary` put together, with answers from the logs in between."""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from odradek.errors import ConfigError, TransportError
from odradek.spark.logs import LogCatalog
from odradek.spark.offsets import Offsets, Place
from odradek.spark.options import SourceOptions
from odradek.spark.planning import (
    Extent,
    Range,
    SplitPoint,
    check_order,
    divide,
    pack,
    place_of_each,
    positions,
    propose_cuts,
    settle,
    task_count,
)
from odradek.spark.rules import lost
from odradek.types import AtTime, Position, TopicPartition

__all__ = ["TaskPlan", "plan", "plan_all", "start_offsets"]

log = logging.getLogger("odradek.spark")

TASKS_PER_CORE = 4

Extents = Mapping[TopicPartition, Extent]


class TaskPlan(NamedTuple):
    """What one task reads.

    Args:
        ranges: In this order.
        paths: Of log directories; none for those of a cluster.
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
    there = logs.extents()
    _check_topics(options, there)
    starts = place_of_each(there, options.start, "startingOffsets")
    ends = place_of_each(there, options.end, "endingOffsets")
    check_order(starts, ends)
    start = _resolve(logs, starts, there, "startingOffsets")
    end = _resolve(logs, ends, there, "endingOffsets")
    behind = {partition: max(position, start[partition]) for partition, position in end.items()}
    return _divide(logs, options, start, behind, there)


def plan(logs: LogCatalog, options: SourceOptions, start: Offsets, end: Offsets) -> list[TaskPlan]:
    """The tasks of a micro-batch. Raises as `plan_all`."""
    return _divide(logs, options, start, end, logs.extents())


def start_offsets(logs: LogCatalog, options: SourceOptions, there: Extents) -> dict[TopicPartition, Position]:
    """Where a streaming query begins that has just found these logs. Raises as `plan_all`."""
    found = _resolve(logs, place_of_each(there, options.start, "startingOffsets"), there, "startingOffsets")
    return dict(sorted(found.items()))


def _check_topics(options: SourceOptions, there: Extents) -> None:
    """A query that will never see more than there is now says what it does not see."""
    topics = options.topics
    missing = sorted(set(topics.names) - {partition.topic for partition in there})
    missing += map(str, sorted(set(topics.partitions) - there.keys()))
    if not missing:
        return
    text = f"nothing has {', '.join(missing[:10])} now: no live broker, and no directory"
    if options.fail_on_data_loss:
        raise ConfigError(f"{text} (failOnDataLoss=false reads what is there)")
    log.warning("%s", text)


# ---- places -> positions -------------------------------------------------------------------------------------


def _resolve(
    logs: LogCatalog, places: Mapping[TopicPartition, Place], there: Extents, option: str
) -> dict[TopicPartition, Position]:
    times = {partition: place for partition, place in places.items() if isinstance(place, AtTime)}
    found = logs.at(times)
    for partition in sorted(times.keys() - found.keys()):
        raise TransportError(f"{partition}: its broker has just gone")
    known = {partition: found.get(partition, place) for partition, place in places.items()}
    _check_positions(logs, {p: place for p, place in known.items() if isinstance(place, int)}, there, option)
    return positions({p: place for p, place in known.items() if not isinstance(place, AtTime)}, there)


def _check_positions(logs: LogCatalog, places: Offsets, there: Extents, option: str) -> None:
    """Users' positions must be where messages begin: inside of one, what looks like messages may be something else."""
    cuts = [
        _cut(partition, place, there[partition])
        for partition, place in places.items()
        if there[partition].earliest <= place <= there[partition].latest
    ]
    found = logs.boundaries([cut for cut in cuts if cut.floor != cut.position != cut.ceiling])
    wrong = {cut: place for cut, place in found.items() if place != cut.position}
    for cut, place in wrong.items():
        last = f"the segment begins at {cut.floor}"
        near = "it cannot be proved that a message begins there" if place is None else f"the next message is at {place}"
        raise ConfigError(f"option {option}: {cut.partition} has no message boundary at {cut.position}: {near}; {last}")


def _cut(partition: TopicPartition, place: int, log: Extent) -> SplitPoint:
    """With the known boundaries around it."""
    known = sorted({log.earliest, *log.boundaries, log.latest})
    return SplitPoint(partition, place, known[bisect_right(known, place) - 1], known[bisect_left(known, place)])


# ---- tasks ---------------------------------------------------------------------------------------------------


def _divide(logs: LogCatalog, options: SourceOptions, start: Offsets, end: Offsets, there: Extents) -> list[TaskPlan]:
    ranges, gaps = settle(start, end, there, fail_on_data_loss=options.fail_on_data_loss)
    lost(gaps, options)
    packing = options.packing
    most = packing.max_tasks or max(packing.min_tasks, TASKS_PER_CORE * (os.cpu_count() or 1))
    total = sum(part.size for part in ranges)
    work = task_count(total, max_bytes=packing.max_bytes, min_tasks=packing.min_tasks, max_tasks=most)
    cuts = propose_cuts(ranges, there, work.piece)
    found = logs.boundaries(cuts)
    pieces = divide(ranges, [(cut.partition, place) for cut, place in found.items() if place is not None])
    paths = logs.paths({part.partition for part in ranges})
    return [
        TaskPlan(task.ranges, {part.partition: paths[part.partition] for part in task.ranges} if paths else {})
        for task in pack(pieces, work.tasks, fetchers=packing.fetchers)
    ]
