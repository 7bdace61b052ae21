"""The two clusters of a mirror, and what it has to know of them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from odradek.client.cluster import Cluster
from odradek.core.admin import ConfigSource
from odradek.errors import Unsupported
from odradek.mirror.config import MirrorConfig
from odradek.mirror.planning import ClusterTopics, PlannedTopic, TargetTopic, chosen_topics
from odradek.mirror.stored import MirrorIdentity, StoredState
from odradek.types import EARLIEST, LATEST, Position, TopicPartition

__all__ = ["Clusters", "create_topics", "open_clusters", "read_progress", "read_state", "survey"]

log = logging.getLogger(__name__)

TAIL = 64
"""Records at the end of a task's partition in which its progress is looked for first."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """Both clusters, open."""

    source: Cluster
    target: Cluster


@asynccontextmanager
async def open_clusters(config: MirrorConfig) -> AsyncIterator[Clusters]:
    """Connect to both clusters. Raises Unreachable, ZooKeeperError or ConfigError: one of them cannot be reached."""
    async with config.source.connect() as source, config.target.connect() as target:
        yield Clusters(source, target)


# ---- what they look like -------------------------------------------------------------------------------------


async def survey(config: MirrorConfig, clusters: Clusters) -> ClusterTopics:
    """Return what both clusters look like. Raises OdradekError: a broker did not answer. Cancellation: safe."""
    names = chosen_topics(config, await _listed(config, clusters.source))
    every = {name: await clusters.source.partitions(name) for name in names}
    source = {name: partitions for name, partitions in every.items() if partitions}
    target = {}
    on_target = await clusters.target.topics()
    for name in {config.topics.target_name(name) for name in source} & on_target:
        target[name] = await _target_topic(clusters.target, name)
    identity = MirrorIdentity(
        await _identity(clusters.source, config.source.url), await _identity(clusters.target, config.target.url)
    )
    return ClusterTopics(identity, source, target)


async def _listed(config: MirrorConfig, cluster: Cluster) -> Iterable[str]:
    """Return the topics of the source; those that the file names, where a cluster cannot list them (0.7 without
    ZooKeeper)."""
    if config.topics.pattern is None:
        return config.topics.include
    return await cluster.topics()


async def _target_topic(cluster: Cluster, name: str) -> TargetTopic:
    first = await cluster.positions(name, EARLIEST)
    last = await cluster.positions(name, LATEST)
    described = (await cluster.admin.describe_topics(name)).check()[name]
    return TargetTopic(described.topic_id, len(described.partitions), sum(last.values()) - sum(first.values()))


async def _identity(cluster: Cluster, url: str) -> str:
    """Return the id of a cluster; where brokers have none (before 0.10.1), its URL without a user."""
    described = (await cluster.admin.describe_cluster()).cluster_id
    if described is not None:
        return described
    scheme, _, rest = url.partition("://")
    servers, slash, chroot = rest.partition("/")
    if scheme == "kafka07+zk":
        servers = servers.rpartition("@")[2]
    return f"{scheme.partition('+')[0]}://{','.join(sorted(servers.split(',')))}{slash}{chroot}"


# ---- the topic of the mirror ---------------------------------------------------------------------------------


async def read_state(config: MirrorConfig, cluster: Cluster, *, whole: bool = True) -> tuple[StoredState, int]:
    """Return what the topic of the mirror says, and how many partitions it has: 0 if there is none.

    Args:
        config: The file.
        cluster: The target.
        whole: Read all of it; otherwise only partition 0, which has the clusters and the topics.

    Raises:
        StoredStateError: A record is not what a mirror writes.
        OdradekError: It cannot be read.

    Cancellation: safe.
    """
    state = StoredState(config.topic)
    if config.topic not in await cluster.topics():
        return state, 0
    partitions = await cluster.partitions(config.topic)
    starts = {p: EARLIEST for p in partitions if whole or p.partition == 0}
    async with cluster.reader(starts, until=LATEST, isolation="read_committed") as reader:
        async for record in reader:
            state.add(record.partition.partition, record.key, record.value)
    return state, len(partitions)


async def read_progress(config: MirrorConfig, cluster: Cluster, task: int) -> StoredState:
    """Return what the end of a task's partition says: its newest progress, if there is any.

    Raises and cancellation: as `read_state`.
    """
    partition = TopicPartition(config.topic, task)
    first = (await cluster.positions(config.topic, EARLIEST))[partition]
    start = end = (await cluster.positions(config.topic, LATEST))[partition]
    length = TAIL
    while start > first:
        start = Position(max(first, end - length))
        state = StoredState(config.topic)
        async with cluster.reader({partition: start}, until=LATEST, isolation="read_committed") as reader:
            async for record in reader:
                state.add(task, record.key, record.value)
        if task in state.progress:
            return state
        length *= 4
    return StoredState(config.topic)


# ---- making topics -------------------------------------------------------------------------------------------

_NOT_COPIED = ("leader.replication.", "follower.replication.", "message.format.version")
"""Beginnings of configurations of topics that belong to one cluster."""


async def create_mirror_topic(config: MirrorConfig, cluster: Cluster) -> None:
    """Make the topic of the mirror, and wait until it can be written to."""
    settings = {"cleanup.policy": "compact"}
    made = await cluster.admin.create_topics(
        config.topic, partitions=config.run.tasks, replicas=config.target.replicas, config=settings
    )
    made.check()
    await cluster.partitions(config.topic)


async def create_topics(config: MirrorConfig, clusters: Clusters, planned: Iterable[PlannedTopic]) -> None:
    """Make the topics that the target does not have, with the configurations of the source that it knows."""
    for topic in planned:
        name = topic.copied.target
        if topic.create is not None:
            settings = await _topic_configs(config, clusters, topic.copied.source)
            made = await clusters.target.admin.create_topics(
                {name: topic.create}, replicas=config.target.replicas, config=settings
            )
            made.check()
            log.info("mirror %s: made topic %s with %d partitions", config.name, name, topic.create)
        elif topic.grow is not None:
            (await clusters.target.admin.add_partitions({name: topic.grow})).check()
            log.info("mirror %s: topic %s has %d partitions now", config.name, name, topic.grow)


async def _topic_configs(config: MirrorConfig, clusters: Clusters, topic: str) -> dict[str, str]:
    """Return what was configured for a topic of the source, and what the target knows of that."""
    try:
        entries = (await clusters.source.admin.describe_topic_configs(topic)).check()[topic]
        known = (await clusters.target.admin.describe_topic_configs(config.topic)).check()[config.topic]
    except Unsupported:  # before 0.11
        return {}
    own = {e.name: e.value for e in entries.values() if e.source is ConfigSource.TOPIC and e.value is not None}
    return {name: value for name, value in own.items() if name in known and not name.startswith(_NOT_COPIED)}
