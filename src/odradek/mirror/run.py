"""A run of a mirror: looks at both clusters, decides what goes where, and lets its tasks copy."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import anyio
from anyio.abc import TaskGroup

from odradek.client.cluster import Cluster
from odradek.core.interfaces import ProducerRecord
from odradek.core.observer_calls import ObserverCalls
from odradek.errors import Fenced, OdradekError, Unsupported
from odradek.io.gather import background_tasks
from odradek.io.observation import observer_calls
from odradek.io.retry import retry
from odradek.mirror.clusters import (
    PAUSES,
    Clusters,
    check_creation,
    create_mirror_topic,
    create_topics,
    has_members,
    once_more,
    open_clusters,
    read_state,
    refused_topics,
    survey,
)
from odradek.mirror.config import MirrorConfig
from odradek.mirror.errors import another_run, is_fenced, passes
from odradek.mirror.lags import LagWatch
from odradek.mirror.limits import RateLimit
from odradek.mirror.planning import (
    ClusterTopics,
    MirrorRefused,
    PlannedTopic,
    TopicsAway,
    check,
    check_running,
    lost_text,
    plan_topics,
)
from odradek.mirror.sources import ClusterSource, MirrorSource
from odradek.mirror.stored import CopiedTopic, Finished, Stored, StoredState, stored_records
from odradek.mirror.task import CopiedRecords, LostRange, MirrorTask, TaskSettings
from odradek.observe import MirrorLag, Observer
from odradek.types import Position, TopicPartition

__all__ = ["Begun", "MirrorPlan", "MirrorResult", "Tasks", "begin", "finish", "plan", "plan_open", "run", "run_open"]

log = logging.getLogger(__name__)

TOPICS_AWAY_S = 30.0
"""Time that a run waits for topics of the source that are not there when it begins (s): one that follows for all of its
topics, another one for those that were copied before."""


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """Everything that a run would do.

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
    """The outcome of a run.

    Args:
        records: Source partition -> how many records were committed.
        bytes: Bytes of all their values, keys and headers.
        lost: What the source deleted before it was copied.
    """

    records: dict[TopicPartition, int] = field(default_factory=dict)
    bytes: int = 0
    lost: set[LostRange] = field(default_factory=set)

    def add(self, copied: Iterable[CopiedRecords]) -> None:
        """Count what was committed."""
        for each in copied:
            if each.records:
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
        planned = await plan_open(config, clusters)
        makes = any(topic.create is not None for topic in planned.topics)
        if makes or config.topic not in await clusters.target.topics():
            await check_creation(config, clusters.target)
        return planned


async def plan_open(config: MirrorConfig, clusters: Clusters, *, waits: bool = True) -> MirrorPlan:
    """Do the same with clusters that are open. `waits`: see `read_state`."""
    topics = await survey(config, clusters)
    state, tasks = await read_state(config, clusters.target, whole=False, waits=waits)
    check(config, state, topics)
    planned = _planned(config, clusters, state, topics, tasks)
    await _check_new(config, clusters, planned)
    if config.topics.origin_headers and not planned.exactly_once:
        raise MirrorRefused("topics.origin_headers: the target has no headers, which Kafka 0.11 brought")
    return planned


async def run(
    config: MirrorConfig,
    *,
    follow: bool = False,
    committed: Callable[[Sequence[CopiedRecords]], object] = lambda _: None,
    lags: Callable[[Sequence[MirrorLag]], object] | None = None,
    observer: Observer | None = None,
) -> MirrorResult:
    """Copy what the source has when the run begins.

    Args:
        config: The file.
        follow: Copy what comes later, too, until cancelled: also new partitions, and new topics that `topics.pattern`
            matches, which are looked for each `run.refresh_seconds`. A new topic that must not be copied, for a reason
            for which the beginning of a run would be refused, is left out, and a warning says why.
        committed: Called after each transaction with what was committed.
        lags: Called with the lag of partitions, as `Observer.mirror_lag` is.
        observer: Told of the transactions and the lag of the mirror, and of everything that it does on both clusters.

    Raises:
        MirrorRefused: Copying would be wrong. Nothing was written. If only topics of the source are missing, which
            may be away with a broker, a run that follows waits 30 s for them first.
        Fenced: Another run of this mirror has begun.
        OdradekError: A cluster cannot be reached, or an error that does not pass (see `MirrorTask.run`).

    Cancellation: safe; the next run continues after what was committed.
    """
    async with open_clusters(config, observer) as clusters:
        calls = observer_calls(observer)
        return await run_open(config, clusters, follow=follow, committed=committed, lags=lags, calls=calls)


async def run_open(
    config: MirrorConfig,
    clusters: Clusters,
    *,
    follow: bool = False,
    committed: Callable[[Sequence[CopiedRecords]], object] = lambda _: None,
    lags: Callable[[Sequence[MirrorLag]], object] | None = None,
    calls: ObserverCalls | None = None,
) -> MirrorResult:
    """Do the same with clusters that are open."""
    result = MirrorResult()
    watch = LagWatch(config, clusters.source, follow=follow, calls=calls, lags=lags)

    def count(copied: Sequence[CopiedRecords]) -> None:
        result.add(copied)
        watch.committed(copied)
        committed(copied)

    begun = await begin(config, clusters, follow=follow)
    settings = begun.settings(config, clusters, begun=watch.begun, committed=count, lost=result.lost.update)
    partitions = sum(len(topic.partitions) for topic in begun.copied)
    log.info(
        "mirror %s: begins: %d topics, %d partitions, %d tasks",
        config.name,
        len(begun.copied),
        partitions,
        len(begun.tasks),
    )
    async with background_tasks() as group:
        group.start_soon(watch.run)
        await Tasks(settings).run(begun.copied, follow=follow)
    log.info("mirror %s: ends: everything is copied, in this run %d records", config.name, sum(result.records.values()))
    return result


class Begun(NamedTuple):
    """A run whose topics exist and are noted on the target. Any process can copy a task of it.

    Args:
        exactly_once: The target has transactions.
        source: Id of the source.
        copied: Where partitions go.
        ends: Source partition -> where copying ends; None: never.
    """

    exactly_once: bool
    source: str
    copied: Sequence[CopiedTopic]
    ends: Mapping[TopicPartition, Position] | None

    @property
    def tasks(self) -> list[int]:
        """The numbers of the tasks that have partitions."""
        return _tasks_of(self.copied)

    def settings(self, config: MirrorConfig, clusters: Clusters, **callbacks: Any) -> TaskSettings:
        """Return the settings of its tasks, which together keep to the limits of the file.

        Args:
            config, clusters: See `TaskSettings`.
            callbacks: `begun`, `committed` and `lost` of `TaskSettings`.
        """
        return TaskSettings(
            config,
            clusters,
            self.exactly_once,
            self.source,
            ends=self.ends,
            reading=RateLimit(config.run.source_bytes_per_second),
            writing=RateLimit(config.run.target_bytes_per_second),
            **callbacks,
        )


def _tasks_of(topics: Iterable[CopiedTopic]) -> list[int]:
    return sorted({to.task for topic in topics for to in topic.partitions.values()})


async def begin(config: MirrorConfig, clusters: Clusters, *, follow: bool, joins: bool = False) -> Begun:
    """Decide what a run copies, and make the topics of the target, again after errors that pass.

    Args:
        config: The file.
        clusters: Open.
        follow: Do not end.
        joins: Let processes that copy as members of the mirror's group go on, instead of taking over from them.

    Raises and cancellation: as `run`.
    """
    until = anyio.current_time() + TOPICS_AWAY_S

    def may_begin(error: OdradekError) -> bool:
        may_come = isinstance(error, TopicsAway) and (follow or error.copied) and anyio.current_time() < until
        if passes(error) or may_come or (joins and isinstance(error, Fenced)):  # by one that joins at the same time
            log.warning("mirror %s: begins again: %s", config.name, error)
            return True
        return False

    return await retry(lambda: _begin(config, clusters, follow, joins), PAUSES, passes=may_begin)


async def _begin(config: MirrorConfig, clusters: Clusters, follow: bool, joins: bool) -> Begun:
    """Do it once; after an error it can be called again: it finds what was written, such as new topics."""
    exactly_once = _has_transactions(config, clusters.target)
    try:
        await plan_open(config, clusters, waits=not exactly_once)
    except MirrorRefused:
        await plan_open(config, clusters)  # a transaction that is open may have been in the way
    takes_over = not (joins and await has_members(clusters.target, config.group))
    copied, topics = await _prepare(config, clusters, exactly_once, running=False, takes_over=takes_over)
    grows = follow and isinstance(clusters.source, ClusterSource)  # log directories have an end
    ends = None if grows else await _ends(config, clusters.source, copied)
    return Begun(exactly_once, topics.identity.source, copied, ends)


class Tasks:
    """The tasks of a run.

    Args:
        settings: What they share.
    """

    def __init__(self, settings: TaskSettings) -> None:
        self._settings, self._config = settings, settings.config
        self._copied: dict[str, CopiedTopic] = {}
        self._tasks: dict[int, MirrorTask] = {}
        self._errors: list[OdradekError] = []
        self._refused: Sequence[str] = ()
        self._group: TaskGroup

    async def run(self, copied: Sequence[CopiedTopic], *, follow: bool) -> None:
        """Run all; the first error ends the others, and is raised."""
        async with anyio.create_task_group() as self._group:
            self._begin(copied, follow=follow)
        if self._errors:
            raise self._errors[0]

    def _begin(self, copied: Sequence[CopiedTopic], *, follow: bool) -> None:
        self._add(copied)
        if follow:
            self._start(self._follow_topics)

    def _start(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._group.start_soon(self._run, call, *arguments)

    async def _run(self, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            await call(*arguments)
        except OdradekError as error:
            self._errors.append(error)
            self._group.cancel_scope.cancel()

    def _add(self, copied: Iterable[CopiedTopic]) -> None:
        """Copy these, too: tasks that run go on."""
        self._copied |= {topic.source: topic for topic in copied}
        for number in _tasks_of(self._copied.values()):
            if number in self._tasks:
                self._tasks[number].add(self._copied.values())
            elif self._owns(number):
                task = self._tasks[number] = MirrorTask(self._settings, number, self._copied.values())
                self._start(self._copy, number, task)

    def _owns(self, number: int) -> bool:
        """Return True if a task is to be run here."""
        return True

    async def _copy(self, number: int, task: MirrorTask) -> None:
        await task.run()

    async def _follow_topics(self) -> None:
        while True:
            await anyio.sleep(self._config.run.refresh_seconds)
            try:
                await once_more(self._refresh)
            except OdradekError as error:
                if not passes(error):
                    raise
                log.warning("mirror %s: new topics were not looked for: %s", self._config.name, error)

    async def _refresh(self) -> None:
        """Look at both clusters, and copy what is new."""
        config, clusters = self._config, self._settings.clusters
        topics = await survey(config, clusters)
        state, tasks = await read_state(config, clusters.target, whole=False)
        if state.identity is None:
            raise MirrorRefused(lost_text(config.topic))
        taken, refused = await _check_running(config, clusters, state, topics, tasks)
        for text in refused:
            if text not in self._refused:
                log.warning("mirror %s: a new topic is not copied: %s", config.name, text)
        self._refused = refused
        known = {partition for topic in self._copied.values() for partition in topic.partitions}
        if {p for partitions in taken.source.values() for p in partitions} - known:
            self._add(await self._decide(state, taken))

    async def _decide(self, state: StoredState, taken: ClusterTopics) -> Sequence[CopiedTopic]:
        """Return where these topics go, of which some partitions are new."""
        settings = self._settings
        copied, _ = await _prepare(settings.config, settings.clusters, settings.exactly_once, running=True)
        return copied


# ---- what goes where -----------------------------------------------------------------------------------------


def _planned(
    config: MirrorConfig, clusters: Clusters, state: StoredState, topics: ClusterTopics, tasks: int
) -> MirrorPlan:
    tasks = tasks or config.run.tasks
    decided = tuple(plan_topics(config, state, topics, tasks))
    return MirrorPlan(decided, _has_transactions(config, clusters.target), tasks)


async def _check_new(config: MirrorConfig, clusters: Clusters, planned: MirrorPlan) -> None:
    """Raise MirrorRefused if the target would not make a topic."""
    if refused := await refused_topics(config, clusters, planned.topics):
        raise MirrorRefused(*refused.values())


async def _check_running(
    config: MirrorConfig, clusters: Clusters, state: StoredState, topics: ClusterTopics, tasks: int
) -> tuple[ClusterTopics, Sequence[str]]:
    """Do what `planning.check_running` does, and leave out new topics that the target would not make, too."""
    taken, refused = check_running(config, state, topics)
    not_made = await refused_topics(config, clusters, _planned(config, clusters, state, taken, tasks).topics)
    source = {name: partitions for name, partitions in taken.source.items() if name not in not_made}
    return replace(taken, source=source), [*refused, *not_made.values()]


def _has_transactions(config: MirrorConfig, target: Cluster) -> bool:
    try:
        target.driver.producer_transactions(config.transactional_id(), 60.0)
    except Unsupported:
        return False
    return True


async def _prepare(
    config: MirrorConfig, clusters: Clusters, exactly_once: bool, *, running: bool, takes_over: bool = False
) -> tuple[list[CopiedTopic], ClusterTopics]:
    """Make topics, and note what goes where; return that, and what the clusters look like.

    The transactional id is taken first, so that of two processes one decides after the other, and knows what it did.
    """
    if config.topic not in await clusters.target.topics():
        await create_mirror_topic(config, clusters.target)
    async with _deciding(config, clusters.target, exactly_once) as store:
        if takes_over:
            async with _deciding(config, clusters.target, exactly_once, 0):
                pass  # this ends the transaction of a process that was killed: reading would wait for it
        topics = await survey(config, clusters)
        state, tasks = await read_state(config, clusters.target, whole=False)
        if running:
            topics, _ = await _check_running(config, clusters, state, topics, tasks)
        else:
            check(config, state, topics)
        planned = _planned(config, clusters, state, topics, tasks)
        if not running:
            await _check_new(config, clusters, planned)
        ids = await create_topics(config, clusters, planned.topics)
        copied = [
            replace(topic.copied, target_id=ids.get(topic.copied.target, topic.copied.target_id))
            for topic in planned.topics
        ]
        changes: list[Stored] = [topic for topic in copied if state.topics.get(topic.source) != topic]
        if state.identity != topics.identity:
            changes.insert(0, topics.identity)
        if changes:
            await store(changes, 0)
    for changed in changes:
        if isinstance(changed, CopiedTopic):
            count = len(changed.partitions)
            log.info(
                "mirror %s: copies topic %s to %s: %d partitions", config.name, changed.source, changed.target, count
            )
    return copied, topics


@asynccontextmanager
async def _deciding(
    config: MirrorConfig, target: Cluster, exactly_once: bool, task: int | None = None
) -> AsyncIterator[Callable[[Iterable[Stored], int], Any]]:
    """Take a transactional id, that of a task or of what decides; give a function that writes to the mirror's topic."""
    options: Any = {"transactional_id": config.transactional_id(task)} if exactly_once else {}
    async with target.producer(**options) as producer:

        async def store(changes: Iterable[Stored], partition: int) -> None:
            rows = [ProducerRecord(value, key) for key, value in stored_records(changes)]
            if not exactly_once:
                (await producer.send_many(config.topic, rows, partition=partition)).check()
                return
            try:
                async with producer.transaction():
                    for failed in (await producer.send_many(config.topic, rows, partition=partition)).failed:
                        raise failed.error
            except OdradekError as error:
                if not is_fenced(error):
                    raise
                raise another_run(config.name, task) from error

        yield store


async def _ends(
    config: MirrorConfig, source: MirrorSource, copied: Iterable[CopiedTopic]
) -> Mapping[TopicPartition, Position]:
    """Return where the logs end now, for readers of the isolation that is asked for."""
    partitions = [p for topic in copied for p in topic.partitions]
    committed = config.topics.read_committed
    extents = await source.extents(partitions, read_committed=committed)
    return {partition: Position(extent.latest) for partition, extent in extents.items()}


# ---- the end -------------------------------------------------------------------------------------------------


async def finish(config: MirrorConfig, target: Cluster) -> None:
    """End a mirror for good, once consumers and producers use the target: no run of it copies anything any more, and a
    mirror in the other direction, as a way back, is no loop.

    A run that still copies is fenced. Where the target has no transactions, stop it first.

    Raises:
        MirrorRefused: There is no such mirror.
        OdradekError: It could not be written.

    Cancellation: some tasks may be finished; call it again.
    """
    state, tasks = await read_state(config, target, whole=False)
    if state.identity is None:
        raise MirrorRefused(f"the target has no mirror {config.name!r}")
    exactly_once = _has_transactions(config, target)
    ending = state.finished or Finished(round(time.time() * 1000))
    for task in range(tasks):
        async with _deciding(config, target, exactly_once, task) as store:
            await store([ending], task)
    log.info("mirror %s: finished", config.name)
