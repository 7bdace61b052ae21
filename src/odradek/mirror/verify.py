"""Verify: compares what a mirror has copied with the source, record by record, from both logs.

Each partition is compared in chunks, from the first transaction of the mirror that both logs still have to the
progress that was stored when verifying began: see `verify_partition`. A file may keep what is done after each chunk.
Topics whose records a rule divides are compared as a whole: see `verify_rule`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from pydantic import TypeAdapter, ValidationError

from odradek.errors import OdradekError
from odradek.mirror.clusters import Clusters, open_clusters, read_state, survey
from odradek.mirror.comparing import MessagePosition
from odradek.mirror.config import MirrorConfig
from odradek.mirror.planning import ClusterTopics, MirrorRefused, check
from odradek.mirror.stored import IndexEntry, SourcePosition, StoredState
from odradek.mirror.verify_partition import Difference, PartitionComparison, VerifiedPartition
from odradek.mirror.verify_rule import DividedTopic, TopicComparison
from odradek.types import TopicPartition

__all__ = ["Difference", "DividedTopic", "VerifiedMirror", "VerifiedPartition", "verify"]

PARALLEL = 4
"""Partitions that are compared at the same time."""


@dataclass(slots=True)
class VerifiedMirror:
    """The comparison of all partitions.

    Args:
        mirror: The name of the mirror.
        source, target: The clusters; see `MirrorIdentity`.
        started: When it began (s since the epoch).
        seconds: How long it took, without interruptions.
        partitions: By source partition.
        topics: Topics whose records a rule divides, instead (`topics.partition_by`).
    """

    mirror: str
    source: str
    target: str
    started: float
    seconds: float = 0.0
    partitions: list[VerifiedPartition] = field(default_factory=list)
    topics: list[DividedTopic] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """True if all partitions and topics are."""
        return all(each.equal for each in self.partitions) and all(topic.equal for topic in self.topics)


_STATE = TypeAdapter(VerifiedMirror)


async def verify(
    config: MirrorConfig, *, state: Path | None = None, progress: Callable[[VerifiedPartition], object] = lambda _: None
) -> VerifiedMirror:
    """Compare what a mirror has copied so far with the source. Both sides may change meanwhile.

    Args:
        config: The file.
        state: A file that has the state of the comparison while it runs: after an interruption the next call with the
            same file continues after the last chunk. It is removed at the end.
        progress: Called after each chunk, and at the end of each partition, with the partition.

    Raises:
        MirrorRefused: There is nothing to compare, the clusters are not those of the mirror, or `state` is the file of
            another comparison.
        OdradekError: A cluster cannot be reached.
        OSError: The file cannot be written.

    Cancellation: safe; see `state`.
    """
    async with open_clusters(config) as clusters:
        topics = await survey(config, clusters)
        stored, _ = await read_state(config, clusters.target)
        check(config, stored, topics)
        file = _StateFile(state)
        result = file.read(config, topics) or await _begin(config, clusters, stored, topics)
        await _Verification(config, clusters, stored, result, file, progress).run()
    return result


async def _begin(
    config: MirrorConfig, clusters: Clusters, stored: StoredState, topics: ClusterTopics
) -> VerifiedMirror:
    identity = topics.identity
    if stored.identity is None or not topics.source.keys() & stored.topics.keys():
        raise MirrorRefused(f"the mirror {config.name!r} has copied nothing yet: run it first")
    if not config.topics.by_source:
        divided = [DividedTopic(name, stored.topics[name].target) for name in topics.source if name in stored.topics]
        return VerifiedMirror(config.name, identity.source, identity.target, time.time(), topics=divided)
    partitions = [_begin_partition(config, stored, partition) for each in topics.source.values() for partition in each]
    await _accept_empty(clusters, [partition for partition in partitions if partition.error])
    return VerifiedMirror(config.name, identity.source, identity.target, time.time(), partitions=partitions)


async def _accept_empty(clusters: Clusters, partitions: Sequence[VerifiedPartition]) -> None:
    """Take the error from partitions of which nothing was copied because the source has no records in them."""
    extents = await clusters.source.extents([partition.source for partition in partitions], read_committed=False)
    for partition in partitions:
        extent = extents.get(partition.source)
        if extent is not None and extent.earliest == extent.latest:
            partition.error = ""


def _begin_partition(config: MirrorConfig, stored: StoredState, source: TopicPartition) -> VerifiedPartition:
    copied = stored.topics.get(source.topic)
    to = None if copied is None else copied.partitions.get(source)
    if copied is not None and to is not None and to.task in stored.progress:
        progress = stored.progress[to.task].partitions.get(source)
        if progress is not None:
            return VerifiedPartition(
                source, TopicPartition(copied.target, to.partition), progress.next, progress.records
            )
    target = TopicPartition(config.topics.target_name(source.topic), source.partition if to is None else to.partition)
    return VerifiedPartition(source, target, SourcePosition(0), 0, error="it has not been copied yet", done=True)


class _StateFile:
    """The state of a comparison, in a file.

    Args:
        path: The file; None: there is none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self, config: MirrorConfig, topics: ClusterTopics) -> VerifiedMirror | None:
        """Return the state; None: there is none. Raises MirrorRefused: it is another's."""
        if self._path is None or not self._path.exists():
            return None
        try:
            result = _STATE.validate_json(self._path.read_bytes())
        except ValidationError as error:
            raise MirrorRefused(f"{self._path} is not the state of a comparison: {error}") from error
        if (result.mirror, result.source, result.target) != (
            config.name, topics.identity.source, topics.identity.target,
        ):  # fmt: skip
            raise MirrorRefused(
                f"{self._path} is the state of a comparison of the mirror {result.mirror!r} from {result.source} to "
                f"{result.target}: name another file"
            )
        return result

    def write(self, result: VerifiedMirror) -> None:
        """Write the file whole or not at all."""
        if self._path is not None:
            scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            scratch.write_bytes(_STATE.dump_json(result))
            scratch.replace(self._path)

    def remove(self) -> None:
        """Remove the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class _Verification:
    """Compares the partitions of a result that are not done."""

    def __init__(
        self,
        config: MirrorConfig,
        clusters: Clusters,
        stored: StoredState,
        result: VerifiedMirror,
        file: _StateFile,
        progress: Callable[[VerifiedPartition], object],
    ) -> None:
        self._config, self._clusters, self._index, self._topics = config, clusters, stored.index, stored.topics
        self._result, self._file, self._progress = result, file, progress
        self._before, self._began = result.seconds, time.monotonic()

    async def run(self) -> None:
        """Compare all partitions. Errors of one of them are in its result."""
        left = iter([partition for partition in self._result.partitions if not partition.done])
        self._save()
        async with anyio.create_task_group() as tasks:
            for _ in range(PARALLEL):
                tasks.start_soon(self._work, left)
        for topic in self._result.topics:
            await self._compare_topic(topic)
        self._result.seconds = self._seconds()
        self._file.remove()

    async def _work(self, left: Iterator[VerifiedPartition]) -> None:
        for partition in left:
            comparison = PartitionComparison(
                self._config, self._clusters, partition, self._entries(partition), self._noted
            )
            try:
                await comparison.run()
            except OdradekError as error:
                partition.error = str(error)
            partition.done = True
            self._noted(partition)

    async def _compare_topic(self, topic: DividedTopic) -> None:
        if topic.done:
            return
        try:
            await TopicComparison(self._config, self._clusters, self._topics[topic.source], topic).run()
        except OdradekError as error:
            topic.error = str(error)
        topic.done = True
        self._save()

    def _entries(self, partition: VerifiedPartition) -> list[IndexEntry]:
        """Return what was copied of a partition and is still to be compared, in order."""
        entries = self._index.get(partition.source, {})
        start, end = partition.at or MessagePosition(-1), MessagePosition(*partition.end[:2])
        return [entries[at] for at in sorted(entries) if start <= at < end]

    def _noted(self, partition: VerifiedPartition) -> None:
        self._save()
        self._progress(partition)

    def _save(self) -> None:
        self._result.seconds = self._seconds()
        self._file.write(self._result)

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._began
