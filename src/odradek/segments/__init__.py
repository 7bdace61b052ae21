"""Segment files of a broker, read and verified without a broker: those of Kafka 0.7.

    from odradek import segments

    for batch in segments.open("/var/kafka/orders-0"):
        ...

A log is a directory `<topic>-<partition>` of files `<start position, 20 digits>.kafka`; each file holds the bytes that
a fetch from its start would return, and must end where the next one starts (specification.md 4.2). If the broker died
while it wrote a file, that file may end in the middle of a message: reading stops before such a torn tail without an
error, because a broker's recovery cuts it off; `verify` names it.

Nothing is written or locked; a file that is still being written to may be read. Files are read, not mapped: a file that
is truncated meanwhile ends early, where a mapping would end the process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from odradek import arguments
from odradek.batch import Batch
from odradek.errors import ConfigError, CorruptMessage
from odradek.segments import kafka07
from odradek.segments._files import CHUNK_BYTES, Fault, SegmentFile
from odradek.types import Columns, MiB, Position, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Fault", "LogCheckResult", "SegmentFile", "SegmentedLog", "logs", "open"]

_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)", re.DOTALL)
_BATCH_BYTES = 2 * CHUNK_BYTES

_PATH, _SIZE = arguments.path(), arguments.size_bytes()
_POSITION = arguments.optional(arguments.count(0, (1 << 63) - 1, "a position"))
_RANGE = {"start": _POSITION, "until": _POSITION, "corrupt": arguments.choice("fail", "skip", "raw")}
_ADVANCE = arguments.optional(arguments.function("a callable that takes a number of bytes"))


class LogCheckResult(NamedTuple):
    """The result of `SegmentedLog.verify`.

    Args:
        messages: Whole messages, those inside compressed wrappers counted one by one.
        size: Bytes checked.
        faults: Everything wrong, in the order of the log; empty if the log is sound.
    """

    messages: int
    size: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class SegmentedLog:
    """The segments of one partition, in order. Iterate over it for its batches."""

    partition: TopicPartition
    segments: tuple[SegmentFile, ...]

    @property
    def start(self) -> Position:
        """The first position of the log."""
        return self.segments[0].start

    @property
    def end(self) -> Position:
        """The position after the last byte of the log when it was opened."""
        return self.segments[-1].end

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int | None = None, until: int | None = None, *, corrupt: str = "fail") -> Iterator[Batch]:
        """Yield the messages between two positions, in batches of some ten or hundred thousand bytes.

        Memory: one such batch, and the largest message.

        Args:
            start: Where a message starts; None, or a position before the log: its first.
            until: Where a message ends; None: the end of the log, or its torn tail.
            corrupt: For an entry that cannot be decoded: `fail` raises, `skip` leaves it out, `raw` delivers the
                undecoded entry as a row named in `Batch.corrupt`.

        Raises:
            CorruptMessage: A message cannot be decoded, or none ends at `until`. Raised after all messages before it.
            OSError: A file cannot be read.
            ConfigError, TypeError: An argument cannot work.
        """
        _check_range(start, until, corrupt)
        return (Batch(self.partition, columns) for columns in self._decode(start, until, corrupt, _BATCH_BYTES))

    def arrow(
        self, start: int | None = None, until: int | None = None, *, max_bytes: int = 4 * MiB, corrupt: str = "fail"
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages as Arrow record batches; `odradek.arrow` describes the fields. Needs `odradek[arrow]`.

        Args:
            start: As for `batches`.
            until: As for `batches`.
            max_bytes: Payload of a record batch, about (bytes); one compressed message may exceed it.
            corrupt: As for `batches`.

        Raises:
            ConfigError, TypeError: pyarrow is not installed, or an argument cannot work.
            CorruptMessage: As for `batches`.
            OSError: A file cannot be read.
        """
        from odradek.arrow import record_batch

        _check_range(start, until, corrupt)
        _SIZE("max_bytes", max_bytes)
        decoded = self._decode(start, until, corrupt, max_bytes)
        return (record_batch(self.partition, columns, errors=corrupt == "raw") for columns in decoded)

    def _decode(self, start: int | None, until: int | None, corrupt: str, max_bytes: int) -> Iterator[Columns]:
        first, last = max(start or 0, self.start), self.end if until is None else until
        at = Position(first)
        for segment in self.segments:
            if first < segment.end and segment.start < last:
                decoder = kafka07.decoder(self.partition, Position(max(first, segment.start)), corrupt)
                yield from (columns for columns in segment.decode(decoder, last, max_bytes) if columns.values)
                at = decoder.position
        if until is not None and at < until:
            raise CorruptMessage(str(self.partition), at, f"no message that starts here or later ends at {until}")

    def verify(self, advance: Callable[[int], None] | None = None) -> LogCheckResult:
        """Check every message, and that each segment ends where the next one starts (otherwise a broker refuses to
        start). After a damaged message the check continues if its length field makes sense.

        Memory: a chunk, and the largest message.

        Args:
            advance: Called now and then with the number of bytes checked since the last call.
        """
        _ADVANCE("advance", advance)
        checks = [kafka07.SegmentCheck(segment, advance or _ignore) for segment in self.segments]
        for check in checks:
            check.run()
        faults = sorted([*(fault for check in checks for fault in check.faults), *self._gaps()], key=_position_of)
        return LogCheckResult(sum(check.messages for check in checks), self.size, tuple(faults))

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self.segments)

    def _gaps(self) -> Iterator[Fault]:
        for one, following in zip(self.segments, self.segments[1:], strict=False):
            if one.end != following.start:
                reason = f"ends at {one.end}, but the next segment starts at {following.start}"
                yield Fault(one.path, one.end, reason)


def _check_range(start: object, until: object, corrupt: object) -> None:
    arguments.check_all(_RANGE, start=start, until=until, corrupt=corrupt)


def _ignore(_: int) -> None:
    return


def _position_of(fault: Fault) -> int:
    return fault.position


def open(path: str | PathLike[str]) -> SegmentedLog:
    """Open a log: the directory of a partition, or one segment file of it.

    The name of the directory gives topic and partition; a directory with another name is a topic of that name, with
    partition 0. A single file may have any name; one that is not a number starts at position 0.

    Raises:
        ConfigError: No such file or directory; or a directory without segments, or with a segment whose name is not a
            number (a broker refuses such a directory, too). For a directory of many logs, see `logs`.
    """
    log: Path = _PATH("path", path)
    if log.is_dir():
        return _open_directory(log)
    partition = _partition(log.absolute().parent)
    start = int(log.stem) if _is_segment(log) else 0
    return SegmentedLog(partition, (SegmentFile(log, partition, Position(start), log.stat().st_size),))


def logs(path: str | PathLike[str]) -> list[SegmentedLog]:
    """Open all logs in a broker's directory (its `log.dir`), sorted by topic and partition. A path that `open` takes
    gives a list of that one log.

    Files, and directories without segments, are left out.

    Raises:
        ConfigError: As for `open`; or there are no logs.
    """
    directory: Path = _PATH("path", path)
    inside = _logs_in(directory)
    if not inside or _segments_in(directory):
        return [open(path)]
    return sorted(map(_open_directory, inside), key=lambda log: log.partition)


def _logs_in(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [one for one in directory.iterdir() if one.is_dir() and _DIRECTORY.fullmatch(one.name) and _segments_in(one)]


def _segments_in(directory: Path) -> list[Path]:
    return [file for file in directory.iterdir() if file.suffix == kafka07.SUFFIX]


def _open_directory(directory: Path) -> SegmentedLog:
    partition = _partition(directory.absolute())
    files = _segments_in(directory)
    for file in files:
        if not _is_segment(file):
            raise ConfigError(f"{file}: a segment is named after its start position, and this name is not a number")
    if not files:
        inside = len(_logs_in(directory))
        hint = f"; {inside} logs in its subdirectories: open one of them, or all with logs()" if inside else ""
        raise ConfigError(f"{directory}: no *{kafka07.SUFFIX} files in it{hint}")
    segments = [SegmentFile(file, partition, Position(int(file.stem)), file.stat().st_size) for file in files]
    return SegmentedLog(partition, tuple(sorted(segments, key=lambda segment: segment.start)))


def _is_segment(file: Path) -> bool:
    return file.suffix == kafka07.SUFFIX and file.stem.isascii() and file.stem.isdigit()


def _partition(directory: Path) -> TopicPartition:
    match = _DIRECTORY.fullmatch(directory.name)
    if match is None:
        return TopicPartition(directory.name, 0)
    return TopicPartition(match["topic"], int(match["partition"]))
