"""Log directories, for ranges: which logs they have, and the rows of a range.

They are imported where a query names directories: those of a cluster need none of it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path

from odradek import segments
from odradek.core.interfaces import BYTES, INTERNAL_TOPICS, Extent, PositionUnit, SplitPoint
from odradek.errors import ConfigError, CorruptMessage
from odradek.ranges.planning import BoundaryMismatch, Loss, PositionGap, Range
from odradek.ranges.reader import Chunk, ColumnsChunk, CompletedRange
from odradek.ranges.request import Directory, ReadRequest, log_skipped
from odradek.segments import KafkaLog, SegmentedLog, log_access
from odradek.types import AtTime, Columns, Position, TopicPartition

__all__ = ["DirectoryCatalog", "read_files", "unit_of_directories"]

log = logging.getLogger(__name__)


# ---- which logs they have ------------------------------------------------------------------------------------


class DirectoryCatalog:
    """The logs in directories, like `BrokerCatalog`. Every `extents` lists the files, and the first with a log says
    what is to be known of it; raises OSError, too.

    All of them count in one unit, that of 0.7 if there are none. The logs of 0.8 and later are copies of what other
    brokers have, too: they are not told apart by brokers, and only one copy of each is read.
    """

    def __init__(self, directories: Sequence[Directory], request: ReadRequest) -> None:
        self._directories, self._request = directories, request
        self._logs: dict[TopicPartition, SegmentedLog] = {}
        self._noted: set[TopicPartition] = set()  # logs whose notes were logged

    @property
    def unit(self) -> PositionUnit:
        """The unit of positions."""
        for paths in self._logs.values():
            return log_access.unit_of(paths)
        return unit_of_directories(self._directories)

    @property
    def names_brokers(self) -> bool:
        """True for logs of 0.7 (see `LogAccess.names_brokers`)."""
        return self.unit is BYTES

    def extents(self) -> dict[TopicPartition, Extent]:
        self._find()
        for partition in sorted(self._logs.keys() - self._noted):
            for note in self._logs[partition].notes:
                log.warning("%s", note)
        self._noted.update(self._logs)
        most, committed = self._request.max_entry, self._request.read_committed
        return {
            partition: log_access.extent(paths, most, read_committed=committed)._replace(broker=partition.broker)
            for partition, paths in sorted(self._logs.items())
        }

    def uncommitted(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Extent]:
        if not self._request.read_committed:
            return {}
        return {each: log_access.extent(self._logs[each], self._request.max_entry) for each in partitions}

    def at(self, times: Mapping[TopicPartition, AtTime], *, ending: bool = False) -> dict[TopicPartition, Position]:
        return {
            partition: log_access.position_at(self._logs[partition], at, ending=ending)
            for partition, at in times.items()
        }

    def boundaries(self, cuts: Sequence[SplitPoint]) -> dict[SplitPoint, int | None]:
        most = self._request.max_entry
        return {cut: log_access.boundary(self._logs[cut.partition], cut, most) for cut in cuts}

    def paths(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the directories in which executors find the partitions."""
        return {partition: str(self._logs[partition].segments[0].path.parent.absolute()) for partition in partitions}

    def compacted(self, topics: Collection[str]) -> set[str]:
        """Return none: the configuration of topics is not in their directories."""
        return set()

    def _find(self) -> None:
        self._logs = {}
        name, topics = self._request.names.path, self._request.topics
        named = {*topics.names, *(partition.topic for partition in topics.partitions)}
        for directory in self._directories:
            for path in _paths(directory, name):
                for paths in segments.logs(path):
                    if paths.partition.topic in named or paths.partition.topic not in INTERNAL_TOPICS:
                        self._add(paths, directory.broker)
        units = {log_access.unit_of(paths).name: paths for paths in self._logs.values()}
        if len(units) > 1:
            first, second = (paths.segments[0].path.parent for paths in units.values())
            what = f"one of {first} and {second} is of 0.7, the other one of a later release"
            raise ConfigError(f"{name}: {what}: read them one after the other")

    def _add(self, paths: SegmentedLog, broker: int) -> None:
        counts_bytes = log_access.unit_of(paths) is BYTES
        partition = paths.partition._replace(broker=broker)
        if not self._request.topics.has_partition(partition):
            return
        if broker >= 0 and not counts_bytes:
            where, what = paths.segments[0].path.parent, "partitions of 0.8 and later are not numbered by broker"
            raise ConfigError(f"{self._request.names.path}: {where}: {what}: leave {broker}@ out")
        if partition in self._logs:
            first, second = (log.segments[0].path.parent for log in (self._logs[partition], paths))
            if first.resolve() == second.resolve():
                return
            way = "name their brokers, as in 0@..., 1@..." if counts_bytes else "name one of these copies"
            raise ConfigError(f"{self._request.names.path}: {partition} is both {first} and {second}: {way}")
        self._logs[partition] = _connected(paths, self._request) if counts_bytes else paths


def _paths(directory: Directory, name: str) -> list[str]:
    paths = _matching(directory)
    if not paths:
        raise ConfigError(f"{name}: {directory.path!r}: no such file or directory")
    return paths


def _matching(directory: Directory) -> list[str]:
    path = directory.path
    return [path] if Path(path).exists() else sorted(glob(path))  # noqa: PTH207 - Path.glob takes no absolute pattern


def _connected(paths: SegmentedLog, request: ReadRequest) -> SegmentedLog:
    """The log behind its last hole: there is nothing to read in a hole, and what is there cannot be reached over it."""
    for number in range(len(paths.segments) - 1, 0, -1):
        before, after = paths.segments[number - 1 : number + 1]
        if before.end != after.start:
            text = f"{before.path} ends at {before.end}, but the next segment starts at {after.start}"
            if request.fail_on_data_loss:
                raise ConfigError(f"{text} ({request.names.skip_loss} reads the rest)")
            log.warning("%s: reading the rest", text)
            return SegmentedLog(paths.partition, paths.segments[number:])
    return paths


def unit_of_directories(directories: Sequence[Directory]) -> PositionUnit:
    """Return the unit of positions in directories, that of 0.7 if they have no segments. Raises OSError."""
    units = (log_access.unit_in(path) for directory in directories for path in _matching(directory))
    return next((unit for unit in units if unit is not None), BYTES)


# ---- the rows of a range -----------------------------------------------------------------------------------


def read_files(part: Range, path: str, request: ReadRequest, topic_id: str | None = None) -> Iterator[Chunk]:
    """Yield the rows of a range, some MiB at a time, and then what of it was read. In a topic that was made again since
    it was planned, with another id than this, all of it is lost.

    Raises BoundaryMismatch (of 0.7, also at the end of a segment in it), CorruptMessage, MessageTooLarge, DataLoss,
    OSError.
    """
    paths, count = segments.open(path), 0
    if isinstance(paths, KafkaLog):
        part = _kept(paths, part, request, topic_id)
        read = _read_records(paths, part, request)
    else:
        read = _read_messages(paths, part, request)
    for rows in read:
        count += len(rows.values)
        yield ColumnsChunk(part.partition, rows)
    if part.size:
        yield CompletedRange(*part, count)


def _kept(paths: KafkaLog, part: Range, request: ReadRequest, topic_id: str | None) -> Range:
    """Return the part of a range of offsets that the log still has."""
    partition, start, end = part
    if topic_id is not None and log_access.topic_id(paths) not in ("", topic_id):
        request.check_loss([PositionGap(partition, Loss.RECREATED, start, end, -1, -1, end)])
        return Range(partition, end, end)
    first = min(max(start, paths.start), end)
    last = max(first, min(end, paths.end))
    expired = PositionGap(partition, Loss.EXPIRED, start, first, -1, -1, end)
    truncated = PositionGap(partition, Loss.TRUNCATED, last, end, -1, -1, end)
    request.check_loss([gap for gap in (expired, truncated) if gap.start < gap.end])
    return Range(partition, first, last)


def _read_records(paths: KafkaLog, part: Range, request: ReadRequest) -> Iterator[Columns]:
    """Yield the rows of offsets: a range may begin and end anywhere, and not each offset has a record."""
    skipped = list[CorruptMessage]()
    if part.size:
        yield from paths.columns(
            part.start,
            part.end,
            max_bytes=log_access.CHUNK,
            corrupt=request.corrupt,
            read_committed=request.read_committed,
            report=skipped.append,
        )
    log_skipped(skipped)


def _read_messages(paths: SegmentedLog, part: Range, request: ReadRequest) -> Iterator[Columns]:
    """Yield the rows of bytes: messages must begin and end where the range and the segments do."""
    at = part.start
    for segment in paths.segments:
        if segment.end <= at or part.end <= segment.start:
            continue
        if segment.start > at:
            request.check_loss([PositionGap(part.partition, Loss.EXPIRED, at, segment.start, -1, -1, part.end)])
        at, end = max(at, segment.start), min(segment.end, part.end)
        decoder = log_access.decoder(part.partition, Position(at), request.decoder_options())
        yield from (columns for columns in segment.decode(decoder, end, log_access.CHUNK) if columns.values)
        log_skipped(decoder.take_reports())
        if decoder.position != end:
            raise BoundaryMismatch(str(part.partition), at, end, decoder.position)
        at = segment.end
    if at < part.end:
        request.check_loss([PositionGap(part.partition, Loss.TRUNCATED, at, part.end, -1, -1, part.end)])
