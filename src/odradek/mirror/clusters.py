"""The two clusters of a mirror, and what it has to know of them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from odradek.client.cluster import Cluster
from odradek.client.consumer.positions import resolve_positions
from odradek.core.backoff import Backoff
from odradek.errors import BrokerError, NotWritten, OdradekError, OffsetOutOfRange, Unsupported
from odradek.io.gather import gather
from odradek.io.retry import retry
from odradek.mirror.config import TOPICS, MirrorConfig
from odradek.mirror.directories import DirectorySource
from odradek.mirror.errors import passes
from odradek.mirror.planning import ClusterTopics, MirrorRefused, PlannedTopic, TargetTopic, chosen_topics, lost_text
from odradek.mirror.sources import LATEST_TIMESTAMP, ClusterSource, MirrorSource
from odradek.mirror.stored import MirrorIdentity, StoredState
from odradek.observe import Observer
from odradek.ranges.catalog import SHOWN_WITHIN_S
from odradek.types import EARLIEST, LATEST, Position, PositionSpec, StartPosition, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = [
    "Clusters",
    "check_creation",
    "create_topics",
    "existing_topics",
    "has_members",
    "once_more",
    "open_clusters",
    "read_progress",
    "read_state",
    "refused_topics",
    "survey",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSES = Backoff(first_s=0.1, max_s=10.0)
"""Between attempts of what is begun again after an error."""

TAIL = 64
"""Records at the end of a task's partition in which its progress is looked for first."""

CREATED_WITHIN = 30.0
"""Time that brokers may take until a topic that was made can be used (s)."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """Both clusters, open."""

    source: MirrorSource
    target: Cluster

    @property
    def source_cluster(self) -> Cluster:
        """The source, for what only clusters have. Raises MirrorRefused: it is log directories."""
        if not isinstance(self.source, ClusterSource):
            raise MirrorRefused("log directories have no groups: a source with source.url has")
        return self.source.cluster


@asynccontextmanager
async def open_clusters(config: MirrorConfig, observer: Observer | None = None) -> AsyncIterator[Clusters]:
    """Connect to both clusters. Raises Unreachable, ZooKeeperError or ConfigError: one of them cannot be reached."""
    async with _open_source(config, observer) as source, config.target.connect(observer) as target:
        yield Clusters(source, target)


@asynccontextmanager
async def _open_source(config: MirrorConfig, observer: Observer | None) -> AsyncIterator[MirrorSource]:
    if config.source.logs is not None:
        yield DirectorySource(config.source.directories, over_gaps=config.topics.lost == "continue")
        return
    async with config.source.connect(observer) as cluster:
        yield ClusterSource(cluster, config.source.url)


# ---- what they look like -------------------------------------------------------------------------------------


async def survey(config: MirrorConfig, clusters: Clusters) -> ClusterTopics:
    """Return what both clusters look like. Raises OdradekError: a broker did not answer. Cancellation: safe."""
    listed = await clusters.source.listed()
    names = chosen_topics(config, config.topics.include if listed is None else listed)
    every = zip(names, await gather(clusters.source.partitions, names), strict=True)
    source = {name: partitions for name, partitions in every if partitions}
    on_target = await existing_topics(clusters.target, {config.topics.target_name(name) for name in source})
    target = await _target_topics(clusters.target, on_target)
    on_target_side = ClusterSource(clusters.target, config.target.url)
    identity = MirrorIdentity(await clusters.source.identity(), await on_target_side.identity())
    mirrors = {}
    if isinstance(clusters.source, ClusterSource):  # nothing copies to directories
        mirrors = await _mirrors(clusters.source.cluster, listed or ())
    return ClusterTopics(identity, source, target, mirrors)


async def existing_topics(cluster: Cluster, names: Collection[str]) -> set[str]:
    """Return which of these topics there are.

    Raises:
        BrokerError: This client may not describe one, which is not listed then, like a topic that does not exist.
        OdradekError: A broker did not answer. Cancellation: safe.
    """
    listed = set(names) & await cluster.topics()
    if missing := sorted(set(names) - listed):
        for error in (await cluster.admin.describe_topics(missing)).failed.values():
            if isinstance(error, BrokerError) and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise error
    return listed


async def _mirrors(source: Cluster, topics: Iterable[str]) -> dict[str, StoredState]:
    """Return what the mirrors store that copy to the source."""
    names = sorted(topic for topic in topics if topic.startswith(TOPICS) and not source.driver.logs.values_only)
    return {name.removeprefix(TOPICS): (await _read_topic(name, source, whole=False))[0] for name in names}


async def _target_topics(cluster: Cluster, names: Collection[str]) -> dict[str, TargetTopic]:
    if not names:
        return {}
    described = (await cluster.admin.describe_topics(names)).check()
    partitions = [partition for each in await gather(cluster.partitions, names) for partition in each]
    first = await _resolved(cluster, partitions, EARLIEST)
    last = await _resolved(cluster, partitions, LATEST)
    records: dict[str, dict[int, int]] = {name: {} for name in names}
    for partition in partitions:
        if span := last.get(partition, 0) - first.get(partition, 0):
            records[partition.topic][partition.partition] = span
    return {
        n: TargetTopic(topic.topic_id, len(topic.partitions), sum(records[n].values()), records[n].keys())
        for n, topic in described.items()
    }


async def has_members(cluster: Cluster, group: str) -> bool:
    """Return True if a group has members; False also where brokers cannot say it."""
    try:
        described = (await cluster.admin.describe_groups(group)).done.get(group)
    except Unsupported:
        return False
    return described is not None and bool(described.members)


async def once_more(call: Callable[[], Awaitable[T]]) -> T:
    """Call; if refused, again for `SHOWN_WITHIN_S`: a broker that has just started may not know every topic, and
    a topic that it does not know seems to be deleted.

    Raises:
        MirrorRefused: It is still refused then.
        OdradekError: Another error of the call. Cancellation: that of the call.
    """
    try:
        return await call()
    except MirrorRefused as refused:
        may_pass = refused
    return await retry(
        call,
        PAUSES,
        passes=lambda error: passes(error) or isinstance(error, MirrorRefused),
        limit_s=SHOWN_WITHIN_S,
        late=may_pass,
    )


# ---- the topic of the mirror ---------------------------------------------------------------------------------


async def read_state(
    config: MirrorConfig, cluster: Cluster, *, whole: bool = True, waits: bool = True
) -> tuple[StoredState, int]:
    """Return what the topic of the mirror says, and how many partitions it has: 0 if there is none.

    Args:
        config: The file.
        cluster: The target.
        whole: Read all of it; otherwise only partition 0, which has the clusters and the topics.
        waits: Wait for the end of transactions that are open; otherwise only what comes before them is read. The broker
            ends that of a process that was killed after a minute.

    Raises:
        StoredStateError: A record is not what a mirror writes.
        OdradekError: It cannot be read.

    Cancellation: safe.
    """
    if not await existing_topics(cluster, {config.topic}):
        return StoredState(config.topic), 0
    return await _read_topic(config.topic, cluster, whole=whole, waits=waits)


async def _read_topic(topic: str, cluster: Cluster, *, whole: bool, waits: bool = True) -> tuple[StoredState, int]:
    state = StoredState(topic)
    ends = await _ends(topic, cluster, waits=waits)
    chosen = [p for p in ends if whole or p.partition == 0]
    await _read(state, cluster, dict.fromkeys(chosen, EARLIEST), ends)
    return state, len(ends)


async def _ends(topic: str, cluster: Cluster, *, waits: bool) -> Mapping[TopicPartition, Position]:
    """Return where the logs end; without `waits`, where the first transaction that is open begins."""
    return await _resolved(cluster, await cluster.partitions(topic), LATEST, read_committed=not waits)


async def _resolved(
    cluster: Cluster, partitions: Iterable[TopicPartition], at: PositionSpec, *, read_committed: bool = False
) -> Mapping[TopicPartition, Position]:
    """Return positions of partitions of any topics."""
    wanted = dict.fromkeys(partitions, at)
    positions, errors = await resolve_positions(cluster.driver, wanted, read_committed=read_committed)
    for error in errors.values():
        raise error
    return positions


async def _read(
    state: StoredState,
    cluster: Cluster,
    starts: Mapping[TopicPartition, StartPosition],
    ends: Mapping[TopicPartition, Position],
) -> None:
    """Add what is committed. The ends are those of the logs: where a transaction that was left behind is open, what
    comes after it is waited for, until the broker aborts it."""
    until = {partition: ends[partition] for partition in starts}
    try:
        async with cluster.reader(starts, until=until, isolation="read_committed") as reader:
            async for record in reader:
                state.add(record.partition.partition, record.key, record.value)
    except OffsetOutOfRange as error:
        raise MirrorRefused(lost_text(state.topic)) from error


async def read_progress(
    config: MirrorConfig, cluster: Cluster, task: int, *, waits: bool = True, least: int = 0
) -> StoredState:
    """Return what the end of a task's partition says: its newest progress, if there is any.

    `waits`, raises and cancellation: as `read_state`; `NotWritten`, which passes, if the log is said to end before the
    offset `least`. A broker of 0.11 to 2.1 that has just become the leader says so for a moment (KIP-207).
    """
    partition = TopicPartition(config.topic, task)
    first = (await cluster.positions(config.topic, EARLIEST))[partition]
    start = end = (await _ends(config.topic, cluster, waits=waits))[partition]
    if end < least:
        raise NotWritten((), f"{partition} ends at {end} according to its leader, and has offset {least - 1}")
    length = TAIL
    while start > first:
        start = Position(max(first, end - length))
        state = StoredState(config.topic)
        await _read(state, cluster, {partition: start}, {partition: end})
        if task in state.progress or state.finished is not None:
            return state
        length *= 4
    return StoredState(config.topic)


# ---- making topics -------------------------------------------------------------------------------------------

_NOT_COPIED = (
    "leader.replication.",
    "follower.replication.",
    "message.format.version",
    "message.timestamp.before.",
    "message.timestamp.difference.",
    "min.insync.replicas",
    "remote.",
    "local.retention.",
)
"""Beginnings of configurations of topics that belong to one cluster, which has its own number of replicas, or that
refuse records which are older than when they were written to the source."""

NO_LIMIT = str((1 << 63) - 1)
"""Value of `LATEST_TIMESTAMP` of topics that take any, as those of brokers before 3.6 do."""


async def create_mirror_topic(config: MirrorConfig, cluster: Cluster) -> None:
    """Make the topic of the mirror, and wait until it can be written to."""
    settings = {"cleanup.policy": "compact"}
    await _create(config, cluster, config.topic, config.run.tasks, settings)


async def _create(
    config: MirrorConfig, cluster: Cluster, topic: str, partitions: int, settings: Mapping[str, str]
) -> str | None:
    """Make a topic, unless another process has just made it, and wait until its partitions can be written to; return
    its id."""
    replicas = config.target.replicas
    try:
        made = await cluster.admin.create_topics({topic: partitions}, replicas=replicas, config=settings)
    except Unsupported as error:
        raise _too_old(error) from error
    for failed in made.failed.values():
        if not _exists(failed):
            raise failed

    late = NotWritten((), f"topic {topic!r} has partitions without a leader")

    async def describe() -> str | None:
        described = (await cluster.admin.describe_topics(topic)).check()[topic]
        if not described.partitions or any(p.leader is None for p in described.partitions):
            raise late
        return described.topic_id

    return await retry(describe, Backoff(), limit_s=CREATED_WITHIN, late=late)


def _exists(error: OdradekError) -> bool:
    return isinstance(error, BrokerError) and error.name == "TOPIC_ALREADY_EXISTS"


async def check_creation(config: MirrorConfig, cluster: Cluster) -> None:
    """Raise MirrorRefused if this cluster is too old to make the topics of a mirror as its file says; makes none."""
    replicas = config.target.replicas
    topics = {config.topic: config.run.tasks} if replicas is None else {}  # an empty request needs no answer
    try:
        await cluster.admin.create_topics(topics, replicas=replicas, validate_only=bool(topics))
    except Unsupported as error:
        raise _too_old(error) from error


def _too_old(error: Unsupported) -> MirrorRefused:
    why = "target.url: this cluster is too old"
    if error.needs.startswith("Kafka 2.4"):  # to choose a number of replicas
        why = "target.replicas: give it a number, which brokers before 2.4 need"
    return MirrorRefused(f"{why}: {error}")


async def refused_topics(config: MirrorConfig, clusters: Clusters, planned: Iterable[PlannedTopic]) -> dict[str, str]:
    """Return which topics the target would not make, by name on the source, and why; makes none. Brokers before 0.10.2
    cannot say it: none."""
    new = [topic for topic in planned if topic.create is not None]
    known = await _known_configs(config, clusters.target) if new else ()

    async def refusal(topic: PlannedTopic) -> str | None:
        name = topic.copied.target
        try:
            made = await clusters.target.admin.create_topics(
                {name: topic.create or 0},
                replicas=config.target.replicas,
                config=await _topic_configs(clusters, topic.copied.source, known),
                validate_only=True,
            )
        except Unsupported:
            return None
        for error in made.failed.values():
            if error.retriable:
                raise error
            if not _exists(error):
                return f"{error}: make topic {name!r} yourself, with {topic.create} partitions, or leave it out"
        return None

    refusals = zip(new, await gather(refusal, new), strict=True)
    return {topic.copied.source: why for topic, why in refusals if why is not None}


async def create_topics(
    config: MirrorConfig, clusters: Clusters, planned: Collection[PlannedTopic]
) -> dict[str, str | None]:
    """Make the topics that the target does not have, with the configurations of the source that it knows; return their
    ids."""
    known = await _known_configs(config, clusters.target) if any(topic.create is not None for topic in planned) else ()
    made: dict[str, str | None] = {}
    for topic in planned:
        name = topic.copied.target
        if topic.create is not None:
            settings = await _topic_configs(clusters, topic.copied.source, known)
            made[name] = await _create(config, clusters.target, name, topic.create, settings)
            log.info("mirror %s: made topic %s with %d partitions", config.name, name, topic.create)
        elif topic.grow is not None:
            (await clusters.target.admin.add_partitions({name: topic.grow})).check()
            log.info("mirror %s: topic %s has %d partitions now", config.name, name, topic.grow)
    return made


async def _known_configs(config: MirrorConfig, target: Cluster) -> Collection[str]:
    """Return the names of the configurations that topics of the target have: none while it has no topic that it can
    describe."""
    try:
        existing = await target.topics()
        if config.topic in existing:
            return (await target.admin.describe_topic_configs(config.topic)).check()[config.topic].keys()
        if not existing:
            return ()
        described = (await target.admin.describe_topic_configs(any_topic := min(existing))).done
        return described.get(any_topic, {}).keys()
    except Unsupported:  # before 0.11
        return ()


async def _topic_configs(clusters: Clusters, topic: str, known: Collection[str]) -> dict[str, str]:
    """Return what was configured for a topic of the source, as far as the target knows it. Topics take timestamps of
    any time in the future if those of the source do: from 4.0 on they take them up to an hour ahead by default."""
    own = {LATEST_TIMESTAMP: NO_LIMIT, **await clusters.source.topic_configs(topic)}
    return {name: value for name, value in own.items() if name in known and not name.startswith(_NOT_COPIED)}
