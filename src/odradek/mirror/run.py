"""A run of a mirror: looks at both clusters, decides what goes where, and lets its tasks copy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from odradek.client.cluster import Cluster
from odradek.core.interfaces import ProducerRecord
from odradek.errors import OdradekError, Unsupported
from odradek.mirror.clusters import (
    Clusters,
    create_mirror_topic,
    create_topics,
    open_clusters,
    read_state,
    survey,
)
from odradek.mirror.config import MirrorConfig
from odradek.mirror.planning import ClusterTopics, PlannedTopic, check, plan_topics
from odradek.mirror.stored import CopiedTopic, Stored, StoredState, stored_records
from odradek.mirror.task import CopiedRecords, MirrorTask
from odradek.types import Position, TopicPartition

__all__ = ["MirrorPlan", "MirrorResult", "plan", "run"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """What a run would do.

    Args:
        topics: What goes where.
        exactly_once: The target has transactions; otherwise records may be copied twice after an error.
        tasks: How many tasks copy.
    """

    topics: tuple[PlannedTopic, ...]
    exactly_once: bool
    tasks: int


@dataclass(slots=True)
class MirrorResult:
    """What a run has done.

    Args:
        records: Source partition -> how many records were committed.
        bytes: Bytes of all their values, keys and headers.
    """

    records: dict[TopicPartition, int] = field(default_factory=dict)
    bytes: int = 0

    def add(self, copied: Iterable[CopiedRecords]) -> None:
        """Count what was committed."""
        for each in copied:
            self.records[each.partition] = self.records.get(each.partition, 0) + each.records
            self.bytes += each.bytes


async def plan(config: MirrorConfig) -> MirrorPlan:
    """Return what a run would do; writes nothing.

    Raises:
        MirrorRefused: Copying would be wrong.
        OdradekError: A cluster cannot be reached.

    Cancellation: safe.
    """
    async with open_clusters(config) as clusters:
        return (await _decide(config, clusters))[0]


async def run(
    config: MirrorConfig,
    *,
    follow: bool = False,
    committed: Callable[[Sequence[CopiedRecords]], object] = lambda _: None,
) -> MirrorResult:
    """Copy what the source has when the run begins.

    Args:
        config: The file.
        follow: Copy what comes later, too, until cancelled.
        committed: Called after each transaction with what was committed.

    Raises:
        MirrorRefused: Copying would be wrong. Nothing was written.
        Fenced: Another run of this mirror has begun.
        OdradekError: A cluster cannot be reached, or an error that does not pass.

    Cancellation: safe; the next run continues after what was committed.
    """
    result = MirrorResult()

    def count(copied: Sequence[CopiedRecords]) -> None:
        result.add(copied)
        committed(copied)

    async with open_clusters(config) as clusters:
        planned, topics, state = await _decide(config, clusters)
        copied = await _prepare(config, clusters, planned, topics, state)
        ends = None if follow else await _ends(config, clusters.source, copied)
        numbers = {to.task for topic in copied for to in topic.partitions.values()}
        tasks = [
            MirrorTask(config, clusters, number, copied, ends, exactly_once=planned.exactly_once, committed=count)
            for number in sorted(numbers)
        ]
        await _run_all(tasks)
    return result


async def _run_all(tasks: Sequence[MirrorTask]) -> None:
    """Run all tasks; the first error ends the others, and is raised."""
    errors: list[OdradekError] = []

    async def one(task: MirrorTask) -> None:
        try:
            await task.run()
        except OdradekError as error:
            errors.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(one, task)
    if errors:
        raise errors[0]


async def _decide(config: MirrorConfig, clusters: Clusters) -> tuple[MirrorPlan, ClusterTopics, StoredState]:
    topics = await survey(config, clusters)
    state, tasks = await read_state(config, clusters.target, whole=False)
    check(config, state, topics)
    tasks = tasks or config.run.tasks
    decided = tuple(plan_topics(config, state, topics, tasks))
    return MirrorPlan(decided, _has_transactions(config, clusters.target), tasks), topics, state


def _has_transactions(config: MirrorConfig, target: Cluster) -> bool:
    try:
        target.driver.producer_transactions(config.transactional_id(), 60.0)
    except Unsupported:
        return False
    return True


async def _prepare(
    config: MirrorConfig, clusters: Clusters, planned: MirrorPlan, topics: ClusterTopics, state: StoredState
) -> list[CopiedTopic]:
    """Make topics, and note what goes where; return that."""
    if config.topic not in await clusters.target.topics():
        await create_mirror_topic(config, clusters.target)
    await create_topics(config, clusters, planned.topics)
    targets = (await survey(config, clusters)).target
    copied = [_with_id(topic.copied, targets[topic.copied.target].topic_id) for topic in planned.topics]
    changes: list[Stored] = [topic for topic in copied if state.topics.get(topic.source) != topic]
    if state.identity != topics.identity:
        changes.insert(0, topics.identity)
    if changes:
        await _store(config, clusters.target, changes, exactly_once=planned.exactly_once)
    return copied


def _with_id(topic: CopiedTopic, topic_id: str | None) -> CopiedTopic:
    return CopiedTopic(topic.source, topic.target, topic_id, topic.partitions)


async def _store(config: MirrorConfig, target: Cluster, changes: Iterable[Stored], *, exactly_once: bool) -> None:
    rows = [ProducerRecord(value, key) for key, value in stored_records(changes)]
    options: Any = {"transactional_id": config.transactional_id()} if exactly_once else {}
    async with target.producer(**options) as producer:
        if exactly_once:
            async with producer.transaction():
                (await producer.send_many(config.topic, rows, partition=0)).check()
        else:
            (await producer.send_many(config.topic, rows, partition=0)).check()


async def _ends(
    config: MirrorConfig, source: Cluster, copied: Iterable[CopiedTopic]
) -> Mapping[TopicPartition, Position]:
    """Return where the logs end now, for readers of the isolation that is asked for."""
    partitions = [p for topic in copied for p in topic.partitions]
    committed = config.topics.isolation == "read_committed"
    extents = await source.driver.logs.extents(partitions, read_committed=committed)
    return {partition: Position(extent.latest) for partition, extent in extents.items()}
