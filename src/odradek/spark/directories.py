"""Log directories of 0.7, read without a broker: what they have, and their rows."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path

from odradek import segments
from odradek.errors import ConfigError, MessageTooLarge
from odradek.segments import SegmentedLog, SegmentFile
from odradek.spark.errors import check_range_end
from odradek.spark.gaps import Loss, PositionGap
from odradek.spark.options import Directories, Directory, SourceOptions
from odradek.spark.planning import Extent, Range, SplitPoint
from odradek.spark.rules import decoder_options, explained, lost, skipped
from odradek.types import AtTime, Columns, MiB, Position, TopicPartition
from odradek.wire.kafka07.boundary import BoundarySearch, Proved
from odradek.wire.kafka07.entries import ParseStop, check_log
from odradek.wire.kafka07.message_set import MessageSetDecoder

__all__ = ["DirectoryCatalog", "read_files"]

log = logging.getLogger("odradek.spark")

TAIL = 4
"""Times the largest message: so far from its end the last segment is followed to where its last message ends."""

CHUNK = 4 * MiB
"""Decoded at a time."""


class DirectoryCatalog:
    """Implements `spark.logs.Logs` over files. They are listed anew by every `extents`.

    Args:
        where: The directories.
        options: What to read.
    """

    def __init__(self, where: Directories, options: SourceOptions) -> None:
        self._where, self._options = where, options
        self._logs: dict[TopicPartition, SegmentedLog] = {}

    def extents(self) -> dict[TopicPartition, Extent]:
        self._logs = {}
        for directory in self._where.directories:
            for path in _paths(directory):
                for paths in segments.logs(path):
                    self._add(paths, directory.broker)
        return {partition: self._extent(paths) for partition, paths in sorted(self._logs.items())}

    def at(self, times: Mapping[TopicPartition, AtTime]) -> dict[TopicPartition, Position]:
        """Answer like a broker: the start of the newest segment whose last message was written by that time."""
        return {partition: _at(self._logs[partition], time.seconds) for partition, time in times.items()}

    def boundaries(self, cuts: Sequence[SplitPoint]) -> dict[SplitPoint, int | None]:
        return {cut: self._boundary(cut) for cut in cuts}

    def paths(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the directories in which executors find the partitions."""
        return {partition: str(self._logs[partition].segments[0].path.parent.absolute()) for partition in partitions}

    def _add(self, paths: SegmentedLog, broker: int) -> None:
        partition = paths.partition._replace(broker=broker)
        topics = self._options.topics
        if not topics.has(partition.topic) or (topics.partitions and partition not in topics.partitions):
            return
        if partition in self._logs:
            first, second = (log.segments[0].path.parent for log in (self._logs[partition], paths))
            if first.resolve() == second.resolve():
                return
            raise ConfigError(f"{partition} is both {first} and {second}: name their brokers, as in path=0@...,1@...")
        self._logs[partition] = _connected(paths, self._options.fail_on_data_loss)

    def _extent(self, paths: SegmentedLog) -> Extent:
        last = paths.segments[-1]
        return Extent(paths.start, _whole_end(last, self._options.max_entry), tuple(s.start for s in paths.segments))

    def _boundary(self, cut: SplitPoint) -> int | None:
        paths = self._logs[cut.partition]
        segment = next(segment for segment in paths.segments if segment.end > cut.floor)
        search = BoundarySearch(
            cut.position, floor=cut.floor, ceiling=min(cut.ceiling, segment.end), most=self._options.max_entry
        )
        return _run(search, segment)


def _paths(directory: Directory) -> list[str]:
    if Path(directory.path).exists():
        return [directory.path]
    paths = sorted(glob(directory.path))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not paths:
        raise ConfigError(f"option path={directory.path!r}: no such file or directory")
    return paths


def _connected(paths: SegmentedLog, strict: bool) -> SegmentedLog:
    """The log behind its last hole: there is nothing to read in a hole, and what is there cannot be reached over it."""
    for number in range(len(paths.segments) - 1, 0, -1):
        before, after = paths.segments[number - 1 : number + 1]
        if before.end != after.start:
            text = f"{before.path} ends at {before.end}, but the next segment starts at {after.start}"
            if strict:
                raise ConfigError(f"{text} (failOnDataLoss=false reads the rest)")
            log.warning("%s: reading the rest", text)
            return SegmentedLog(paths.partition, paths.segments[number:])
    return paths


def _at(paths: SegmentedLog, seconds: float) -> Position:
    written = [segment.start for segment in paths.segments if segment.path.stat().st_mtime <= seconds]
    return max(written, default=paths.start)


def _run(search: BoundarySearch, segment: SegmentFile) -> int | None:
    with segment.path.open("rb", buffering=0) as file:
        while search.wanted is not None:
            start, stop = search.wanted
            file.seek(start - segment.start)
            search.feed(file.read(stop - start))
    return search.result.position if isinstance(search.result, Proved) else None


def _whole_end(segment: SegmentFile, most: int) -> Position:
    """Where its last whole message ends: a file that is or was being written to ends anywhere.

    Only the end is looked at, if a boundary can be proved in front of it. Where a length makes no sense, the end is
    that of the file, so that the damage is met and not taken for an end.
    """
    cut = max(segment.start, segment.end - TAIL * most)
    search = BoundarySearch(cut, floor=segment.start, ceiling=segment.end, most=most, torn=True)
    begin = _run(search, segment)
    at = segment.start if begin is None else begin
    with segment.path.open("rb", buffering=0) as file:
        file.seek(at - segment.start)
        tail = b""
        while chunk := file.read(min(CHUNK, segment.end - at - len(tail))):
            data = tail + chunk
            checked = check_log(data, at, most)
            tail, at = data[checked.position - at :], checked.position
            if checked.reason not in (ParseStop.END, ParseStop.CUT):
                return segment.end
    return Position(at)


# ---- rows ----------------------------------------------------------------------------------------------------


def read_files(part: Range, path: str, options: SourceOptions) -> Iterator[Columns]:
    """The rows of a range, some MiB at a time.

    Raises:
        BoundaryMismatch: No message ends at the range's end, or at the end of a segment in it.
        CorruptMessage, MessageTooLarge: A message that cannot be read, unless it is left out or handed over raw.
        DataLoss: A segment is not there any more.
        OSError: A file cannot be read.
    """
    at = part.start
    for segment in segments.open(path).segments:
        if at < segment.end and segment.start < part.end:
            if segment.start > at:
                _lose(part, Loss.EXPIRED, at, segment.start, options)
            at = max(at, segment.start)
            yield from _read_segment(segment, Range(part.partition, at, min(segment.end, part.end)), options)
            at = segment.end
    if at < part.end:
        _lose(part, Loss.TRUNCATED, at, part.end, options)


def _read_segment(segment: SegmentFile, part: Range, options: SourceOptions) -> Iterator[Columns]:
    decoder = MessageSetDecoder(part.partition, Position(part.start), decoder_options(options))
    try:
        yield from (columns for columns in segment.decode(decoder, part.end, CHUNK) if columns.values)
    except MessageTooLarge as error:
        raise explained(error) from None
    skipped(decoder.take_reports())
    check_range_end(part.partition, part.start, part.end, decoder.position)


def _lose(part: Range, loss: Loss, start: int, end: int, options: SourceOptions) -> None:
    """What was there when the query was planned is not any more."""
    lost([PositionGap(part.partition, loss, start, end, -1, -1, end)], options)
