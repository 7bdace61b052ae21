"""The state of a mirror: positions, lag and age."""

from __future__ import annotations

import time
from dataclasses import dataclass

import anyio

from odradek.core.interfaces import BYTES, Extent, Extents
from odradek.io.gather import gather
from odradek.mirror.clusters import Clusters, open_clusters, read_progress, read_state
from odradek.mirror.config import MirrorConfig
from odradek.mirror.sources import MirrorSource
from odradek.mirror.stored import CopiedTopic, SourcePosition, StoredState
from odradek.types import Position, TopicPartition

__all__ = ["MirrorStatus", "PartitionStatus", "status", "status_open"]

OLDEST_WITHIN_S = 10.0
"""Time limit for reading the oldest record that is not copied, whose age is wanted (s)."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The state of one partition.

    Args:
        source: The partition on the source.
        target: The partition on the target; with the number -1 where a rule divides records among all.
        records: How many records were copied.
        position: What is copied next; None: it was not begun.
        end: Where the log of the source ends, for readers of the isolation that is asked for; None: its broker is away.
        lag: Distance from `position` to `end`, in `MirrorStatus.unit`. Of offsets that is more than the number of
            records where transactions end, or compaction has removed some. The size of the whole log where `position`
            is none in it, because its topic was made again, or it was cut.
        lag_seconds: Age of the oldest record that was not copied (s); 0 if there is none, None if it has no time
            (before 0.10), or was not read in time.
        at: When its task committed last (ms since the epoch).
    """

    source: TopicPartition
    target: TopicPartition
    records: int
    position: int | None
    end: int | None
    lag: int | None
    lag_seconds: float | None
    at: int | None


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """The state of a mirror.

    Args:
        name: Its name.
        unit: What positions count: `records`, or `bytes` (0.7).
        finished: When it was finished (ms since the epoch); None: it was not.
        partitions: Its partitions, by topic.
    """

    name: str
    unit: str
    finished: int | None
    partitions: tuple[PartitionStatus, ...]

    @property
    def lag(self) -> int | None:
        """The lag of all partitions; None if one is not known, or the mirror has not begun."""
        lags = [each.lag for each in self.partitions]
        return None if None in lags or not lags else sum(lag for lag in lags if lag is not None)


async def status(config: MirrorConfig) -> MirrorStatus:
    """Return how far a mirror is, whether or not it runs; one that has not begun has no partitions. It does not wait
    for transactions that are open, such as that of a process that was killed: what was committed before them counts.

    Raises:
        StoredStateError: A record of its topic is not what a mirror writes.
        OdradekError: A cluster cannot be reached.

    Cancellation: safe.
    """
    async with open_clusters(config) as clusters:
        return await status_open(config, clusters)


async def status_open(config: MirrorConfig, clusters: Clusters) -> MirrorStatus:
    """Do the same with clusters that are open."""
    state, tasks = await read_state(config, clusters.target, whole=False, waits=False)

    async def read(task: int) -> StoredState:
        return await read_progress(config, clusters.target, task, waits=False)

    for ending in await gather(read, range(tasks)):
        state.progress.update(ending.progress)
    ends = await _ends(config, clusters.source, state)
    copied = [(partition, topic) for topic in state.topics.values() for partition in topic.partitions]

    async def one(item: tuple[TopicPartition, CopiedTopic]) -> PartitionStatus:
        return await _partition(config, clusters.source, state, ends, *item)

    unit, finished = clusters.source.unit.name, None if state.finished is None else state.finished.at
    return MirrorStatus(config.name, unit, finished, tuple(await gather(one, copied)))


async def _ends(config: MirrorConfig, source: MirrorSource, state: StoredState) -> Extents:
    """Return where the logs of the source begin and end."""
    for topic in state.topics:
        await source.partitions(topic)
    partitions = [partition for topic in state.topics.values() for partition in topic.partitions]
    committed = config.topics.read_committed
    return await source.extents(partitions, read_committed=committed)


async def _partition(
    config: MirrorConfig,
    source: MirrorSource,
    state: StoredState,
    ends: Extents,
    partition: TopicPartition,
    topic: CopiedTopic,
) -> PartitionStatus:
    to = topic.partitions[partition]
    progress = state.progress.get(to.task)
    known = None if progress is None else progress.partitions.get(partition)
    log = ends.get(partition)
    following = None if known is None or log is None or not known.next.is_in(log) else known.next
    lag = None if log is None else log.latest - (log.earliest if following is None else following.position)
    return PartitionStatus(
        partition,
        TopicPartition(topic.target, to.partition if topic.rule is None else -1),
        0 if known is None else known.records,
        None if known is None else known.next.position,
        None if log is None else log.latest,
        lag,
        await _age(config, source, partition, following, log) if lag else None if lag is None else 0.0,
        None if progress is None else progress.at,
    )


async def _age(
    config: MirrorConfig,
    source: MirrorSource,
    partition: TopicPartition,
    following: SourcePosition | None,
    log: Extent | None,
) -> float | None:
    """Return the age of the oldest record that was not copied (s), or None."""
    if source.unit is BYTES or log is None:
        return None
    start = None if following is None or following.position < log.earliest else following
    with anyio.move_on_after(OLDEST_WITHIN_S):
        async with source.open(
            {partition: start},
            {partition: Position(log.latest)},
            read_committed=config.topics.read_committed,
            max_message_bytes=config.run.max_message_bytes,
        ) as batches:
            batch = await batches.next_batch()
            times = None if batch is None else batch.columns.timestamps
            return None if times is None or times[0] < 0 else max(0.0, time.time() - times[0] / 1000)
    return None
