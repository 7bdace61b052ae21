"""Log directories as the source of a mirror: the logs of a cluster that no longer starts.

They are read as its brokers would serve them if they could start: each log to its last whole batch or message, because
brokers note only every few seconds how far consumers could read. A transaction that has not ended never will, and
counts as aborted. Of the copies that several brokers have of a partition (0.8 and later), the one is read that would
become the leader: the one of the latest leader epoch, and of those the longest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from glob import glob
from pathlib import Path
from typing import TypeVar

import anyio.to_thread

from odradek import segments
from odradek.arguments import listed
from odradek.client.options import CompressionName
from odradek.core.interfaces import BYTES, Extents, PositionUnit
from odradek.errors import ConfigError, OdradekError
from odradek.mirror.directory_batches import ChosenLog, DirectoryBatches, PartitionReading, WholeLog
from odradek.mirror.sources import SourceBatches, Starts
from odradek.ranges.directories import unit_of_directories
from odradek.ranges.request import Directory
from odradek.segments import KafkaLog, SegmentedLog, log_access
from odradek.segments.kafka import kind_of
from odradek.types import MiB, Position, TopicPartition, by_broker

__all__ = ["DirectorySource"]

log = logging.getLogger(__name__)

T = TypeVar("T")

LARGEST_MESSAGE = 64 * MiB
"""Size of the largest message of 0.7 that the end of a log is found behind (bytes)."""


class DirectorySource:
    """Log directories, as `sources.MirrorSource`. They are listed once, when the first method asks: what brokers write
    later is not read. Files are read in threads.

    Args:
        directories: Directories of partitions, or directories of brokers with such in them, or patterns of either.
            Those of 0.7 say whose they are, where there is more than one broker.
        over_gaps: Read on where a file of 0.7 is missing between two others. From 0.8 on that cannot be told from
            compaction.
    """

    def __init__(self, directories: Sequence[Directory], *, over_gaps: bool = False) -> None:
        self._directories, self._over_gaps = directories, over_gaps
        self._copies: dict[TopicPartition, list[SegmentedLog]] | None = None
        self._logs: dict[TopicPartition, ChosenLog] = {}

    @property
    def unit(self) -> PositionUnit:
        return unit_of_directories(self._directories)

    async def identity(self) -> str:
        """Return the id of the cluster, as its brokers noted it (2.4 and later); otherwise the names of the
        directories. Raises ConfigError: they are of several clusters."""
        return await self._in_thread(self._identity)

    async def listed(self) -> Collection[str]:
        return {partition.topic for partition in await self._in_thread(self._all_copies)}

    async def partitions(self, topic: str) -> Sequence[TopicPartition]:
        return await self._in_thread(self._partitions, topic)

    async def extents(self, partitions: Collection[TopicPartition], *, read_committed: bool) -> Extents:
        """Return where each log begins and ends: behind its last whole batch or message, for either kind of reader.
        Those that no directory has are left out."""
        logs = await self._in_thread(self._chosen, partitions)
        return {partition: chosen.extent for partition, chosen in logs.items()}

    async def topic_configs(self, topic: str) -> Mapping[str, str]:
        """Return `cleanup.policy` of a topic that brokers have compacted; nothing else is in the directories."""
        return await self._in_thread(self._topic_configs, topic)

    @asynccontextmanager
    async def open(
        self,
        starts: Starts,
        ends: Mapping[TopicPartition, Position] | None,
        *,
        read_committed: bool,
        max_message_bytes: int,
        read_ahead_bytes: int | None = None,
        keep_encoded: CompressionName | None = None,
    ) -> AsyncIterator[SourceBatches]:
        """Return the records, to be used as `async with`. Raises ConfigError: no directory has a partition."""
        logs = await self._in_thread(self._chosen, starts)
        if missing := sorted(map(str, starts.keys() - logs.keys())):
            raise ConfigError(f"source.logs: no directory has {', '.join(missing[:10])}")
        until = ends or {}
        readings = [
            PartitionReading(
                logs[p],
                at,
                until.get(p),
                read_committed=read_committed,
                over_gaps=self._over_gaps,
                keep_encoded=keep_encoded,
            )
            for p, at in starts.items()
        ]
        async with DirectoryBatches(readings) as batches:
            yield batches

    # ---- what there is -------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        try:
            return await anyio.to_thread.run_sync(work, *args)
        except OSError as error:
            raise OdradekError(f"{error}") from error

    def _all_copies(self) -> dict[TopicPartition, list[SegmentedLog]]:
        if self._copies is None:
            paths = [(path, at.broker) for at in self._directories for path in _matching(at)]
            for path, _ in paths:
                for text in segments.left_out(path):
                    log.info("%s", text)
            logs = [(files, broker) for path, broker in paths for files in segments.logs(path)]
            _check_units(files for files, _ in logs)
            copies: dict[TopicPartition, list[SegmentedLog]] = {}
            for files, broker in logs:
                _add(copies, files, broker)
            self._copies = copies
        return self._copies

    def _partitions(self, topic: str) -> list[TopicPartition]:
        partitions = sorted((partition for partition in self._all_copies() if partition.topic == topic), key=by_broker)
        numbers = {partition.partition for partition in partitions}
        if partitions and partitions[0].broker < 0 and (missing := set(range(max(numbers))) - numbers):
            log.warning("%s: no directory has its partitions %s", topic, listed(sorted(missing)))
        return partitions

    def _identity(self) -> str:
        parents = {
            copy.segments[0].path.absolute().parent.parent for copies in self._all_copies().values() for copy in copies
        }
        ids = {known: parent for parent in sorted(parents) if (known := _cluster_id(parent))}
        if len(ids) > 1:
            raise ConfigError(f"source.logs: {' and '.join(map(str, ids.values()))} are of different clusters")
        names = sorted(f"{at.broker}@{at.path}" if at.broker >= 0 else at.path for at in self._directories)
        return next(iter(ids), f"logs:{','.join(names)}")

    def _topic_configs(self, topic: str) -> dict[str, str]:
        copies = [
            copy for partition, copies in self._all_copies().items() if partition.topic == topic for copy in copies
        ]
        compacted = any(isinstance(copy, KafkaLog) and copy.facts.cleaned is not None for copy in copies)
        return {"cleanup.policy": "compact"} if compacted else {}

    def _chosen(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ChosenLog]:
        return {p: self._log(p, copies) for p in partitions if (copies := self._all_copies().get(p)) is not None}

    def _log(self, partition: TopicPartition, copies: Sequence[SegmentedLog]) -> ChosenLog:
        """Return the copy of a partition that is read."""
        if partition not in self._logs:
            files = _best(partition, copies)
            for note in files.notes:
                log.warning("%s", note)
            self._logs[partition] = ChosenLog(files, log_access.extent(files, LARGEST_MESSAGE))
        return self._logs[partition]


def _matching(directory: Directory) -> list[str]:
    """Return the directories that are meant; of a pattern, those with logs that count. Raises ConfigError."""
    path = directory.path
    if Path(path).is_dir():
        return [path]
    names = sorted(name for name in glob(path) if Path(name).is_dir() and kind_of(Path(name)) is None)  # noqa: PTH207
    if not (names := [name for name in names if log_access.unit_in(name) is not None]):
        raise ConfigError(f"source.logs: {path!r}: no such directory with logs")
    return names


def _add(copies: dict[TopicPartition, list[SegmentedLog]], files: SegmentedLog, broker: int) -> None:
    counts_bytes = log_access.unit_of(files) is BYTES
    partition = files.partition._replace(broker=broker)
    parent = files.segments[0].path.parent
    if broker >= 0 and not counts_bytes:
        what = "partitions of 0.8 and later are not numbered by broker"
        raise ConfigError(f"source.logs: {parent}: {what}: leave {broker}@ out")
    others = copies.setdefault(partition, [])
    if any(parent.resolve() == other.segments[0].path.parent.resolve() for other in others):
        return
    if others and counts_bytes:
        what = f"{partition} is both {others[0].segments[0].path.parent} and {parent}"
        raise ConfigError(f"source.logs: {what}: name their brokers, as in 0@..., 1@...")
    if isinstance(files, KafkaLog):
        others.append(WholeLog(partition, files.segments, files.directory))
    else:
        others.append(SegmentedLog(partition, files.segments))


def _check_units(logs: Iterable[SegmentedLog]) -> None:
    units = {log_access.unit_of(files).name: files for files in logs}
    if len(units) > 1:
        first, second = (files.segments[0].path.parent for files in units.values())
        what = f"one of {first} and {second} is of 0.7, the other one of a later release"
        raise ConfigError(f"source.logs: {what}: copy them by a mirror each")


def _cluster_id(directory: Path) -> str | None:
    """Return the id of the cluster that a broker noted beside its logs. Raises OSError."""
    file = directory / "meta.properties"
    match = re.search(r"^cluster\.id=(\S+)$", file.read_text(), re.MULTILINE) if file.is_file() else None
    return match and match[1]


def _best(partition: TopicPartition, copies: Sequence[SegmentedLog]) -> SegmentedLog:
    """Return the copy that would become the leader, and say which one that is. Raises ConfigError, OSError."""
    if len(copies) == 1:
        return copies[0]
    if len({copy.facts.topic_id for copy in copies if isinstance(copy, KafkaLog)} - {None}) > 1:
        parents = " and ".join(str(copy.segments[0].path.parent) for copy in copies)
        raise ConfigError(f"source.logs: {partition}: {parents} are of different topics of this name: name one of them")
    best = max(copies, key=_age)
    differ = len({copy.end for copy in copies}) > 1
    others = ", ".join(f"{copy.segments[0].path.parent} ends at {copy.end}" for copy in copies if copy is not best)
    text = "%s: read from %s, which ends at %d: %s"
    log.log(
        logging.WARNING if differ else logging.INFO, text, partition, best.segments[0].path.parent, best.end, others
    )
    return best


def _age(copy: SegmentedLog) -> tuple[int, int, int]:
    """Return the last leader epoch (-1 before 0.11), the end, and how far back the log begins."""
    epochs = copy.facts.leader_epochs if isinstance(copy, KafkaLog) else ()
    return epochs[-1].epoch if epochs else -1, copy.end, -copy.start
