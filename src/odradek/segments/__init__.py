"""Segment files of a 0.7 broker, read and verified without a broker.

    from odradek import segments

    for batch in segments.open("/var/kafka/orders-0"):
        ...

A log is a directory `<topic>-<partition>` of files `<start position, 20 digits>.kafka`; each file holds the bytes
that a fetch from its start would give, and must end where the next one starts (specification 4.2). A file that was
written to when its broker died may end in the middle of a message: reading stops quietly before such a torn tail, as
a broker's recovery cuts it off; `verify` names it.

Nothing is written or locked; a file still being written to may be read. Files are read, not mapped: one that is
truncated meanwhile ends early, where a mapping would end the process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from odradek import engine
from odradek.batch import Batch
from odradek.core.interfaces import DecoderOptions
from odradek.errors import ConfigError, CorruptMessage
from odradek.types import Columns, KiB, MiB, Position, TopicPartition
from odradek.wire.kafka07.decompress import WrapperContents
from odradek.wire.kafka07.entries import LogEntry, read_entry
from odradek.wire.kafka07.message_set import MessageSetDecoder

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Fault", "LogCheckResult", "SegmentFile", "SegmentedLog", "logs", "open"]

SUFFIX = ".kafka"
_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)", re.DOTALL)
# Measured: what is read at once stays in the cache, and its memory comes from the allocator; pieces of 512 KiB and more
# come fresh from the kernel each time, at a third of the speed.
_CHUNK_BYTES, _LOOK_BYTES = 128 * KiB, 64 * KiB
_BATCH_BYTES = 2 * _CHUNK_BYTES
# What was stored was within some broker's limits: only what a length field cannot hold is too large here.
_ANY_SIZE = (1 << 31) - 1
_MAX_DECOMPRESSED = DecoderOptions().max_decompressed_bytes


class Fault(NamedTuple):
    """Something wrong with a log: in which file, at which position of the log, and what."""

    path: Path
    position: Position
    reason: str


class LogCheckResult(NamedTuple):
    """What `verify` found out.

    Args:
        messages: Messages that are whole, those inside compressed wrappers counted one by one.
        size: Bytes looked at.
        faults: Everything wrong, in the order of the log; empty when all is well.
    """

    messages: int
    size: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One segment file.

    Args:
        path: The file.
        partition: The log it belongs to; `broker` is -1, because files do not say it.
        start: Position of its first byte, as its name says.
        size: Bytes in the file when it was listed; what is written later is not read.
    """

    path: Path
    partition: TopicPartition
    start: Position
    size: int

    @property
    def end(self) -> Position:
        """Where the next segment starts."""
        return Position(self.start + self.size)

    def decode(self, decoder: MessageSetDecoder, until: int, max_bytes: int) -> Iterator[Columns]:
        """What lies between where the decoder is and `until`, about `max_bytes` at a time, or a chunk of the file."""
        size = min(_CHUNK_BYTES, max_bytes)
        with self.path.open("rb", buffering=0) as file:
            file.seek(decoder.position - self.start)
            left = min(until, self.end) - decoder.position
            while left > 0 and decoder.error is None and (chunk := file.read(min(left, size))):
                left -= len(chunk)
                decoder.feed(memoryview(chunk))
                if decoder.pending_bytes + size > max_bytes:
                    yield decoder.take()
        yield decoder.take()
        if decoder.error is not None:
            raise decoder.error


@dataclass(frozen=True, slots=True)
class SegmentedLog:
    """The segments of one partition, in order. Iterating yields its batches."""

    partition: TopicPartition
    segments: tuple[SegmentFile, ...]

    @property
    def start(self) -> Position:
        """The first position there is."""
        return self.segments[0].start

    @property
    def end(self) -> Position:
        """The position behind the last byte there was when the log was opened."""
        return self.segments[-1].end

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int | None = None, until: int | None = None, *, corrupt: str = "fail") -> Iterator[Batch]:
        """Yield the messages between two positions, some ten or hundred thousand bytes at a time.

        Memory: one such batch, and the largest message.

        Args:
            start: Where a message starts; None, or a position before the log: its first.
            until: Where a message ends; None: the end of the log, or its torn tail.
            corrupt: `fail` raises at what cannot be decoded, `skip` leaves it out, `raw` hands the undecoded entry
                over, named in `Batch.corrupt`.

        Raises:
            CorruptMessage: A message cannot be decoded, or none ends at `until`: after all before it were yielded.
            OSError: A file cannot be read.
        """
        return (Batch(self.partition, columns) for columns in self._decode(start, until, corrupt, _BATCH_BYTES))

    def arrow(
        self, start: int | None = None, until: int | None = None, *, max_bytes: int = 4 * MiB, corrupt: str = "fail"
    ) -> Iterator[pa.RecordBatch]:
        """As `batches`, but Arrow: `odradek.arrow` says what is in it. Needs pyarrow (`odradek[arrow]`).

        Args:
            start: As for `batches`.
            until: As for `batches`.
            max_bytes: About so much payload makes a record batch (bytes); what one compressed message grows to comes on
                top.
            corrupt: As for `batches`.

        Raises:
            ConfigError: There is no pyarrow, or `max_bytes` is no room.
            CorruptMessage: As for `batches`.
            OSError: A file cannot be read.
        """
        from odradek.arrow import record_batch

        if max_bytes <= 0:
            raise ConfigError(f"max_bytes is a number of bytes, not {max_bytes}")
        decoded = self._decode(start, until, corrupt, max_bytes)
        return (record_batch(self.partition, columns, errors=corrupt == "raw") for columns in decoded)

    def _decode(self, start: int | None, until: int | None, corrupt: str, max_bytes: int) -> Iterator[Columns]:
        options = DecoderOptions(max_message_bytes=_ANY_SIZE, corrupt=corrupt)
        first, last = max(start or 0, self.start), self.end if until is None else until
        at = Position(first)
        for segment in self.segments:
            if first < segment.end and segment.start < last:
                decoder = MessageSetDecoder(self.partition, Position(max(first, segment.start)), options)
                yield from (columns for columns in segment.decode(decoder, last, max_bytes) if columns.values)
                at = decoder.position
        if until is not None and at < until:
            raise CorruptMessage(str(self.partition), at, f"no message that starts here or later ends at {until}")

    def verify(self, advance: Callable[[int], None] | None = None) -> LogCheckResult:
        """Check every message, going on behind what is broken where its length field still makes sense, and that each
        segment ends where the next one starts (a broker refuses to start otherwise).

        Memory: a chunk, and the largest message.

        Args:
            advance: Called now and then with the number of bytes looked at since the last call.
        """
        checks = [_Check(segment, advance or _nobody) for segment in self.segments]
        for check in checks:
            check.run()
        faults = sorted([*(fault for check in checks for fault in check.faults), *self._gaps()], key=_by_position)
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


def _nobody(_: int) -> None:
    return


def _by_position(fault: Fault) -> int:
    return fault.position


class _Check:
    """The verification of one segment. Most messages are only looked at: no row is made of them."""

    def __init__(self, segment: SegmentFile, advance: Callable[[int], None]) -> None:
        self.messages = 0
        self.faults: list[Fault] = []
        self._segment, self._advance = segment, advance
        self._at: int = segment.start

    def run(self) -> None:
        tail = b""
        with self._segment.path.open("rb", buffering=0) as file:
            while (needed := _needed(tail)) <= (left := self._segment.end - self._at - len(tail)):
                if not (chunk := file.read(min(left, max(_LOOK_BYTES, needed)))):
                    break
                self._advance(len(chunk))
                data = tail + chunk
                if (used := self._look(data)) is None:
                    return
                tail = data[used:]
        if torn := self._segment.end - self._at:
            self._fault(f"torn tail: the last {torn} bytes are not a whole message")

    def _look(self, data: bytes) -> int | None:
        """Bytes of whole messages; None where a length makes no sense, so that nothing behind it can be found."""
        view, first, stop = memoryview(data), self._at, 0
        while True:
            stop, count = engine.active.check_run(data, stop, len(data))
            self._at = first + stop
            self.messages += count
            found = read_entry(view, stop, first)
            if isinstance(found, LogEntry):
                self._look_into(found)
                stop += found.size
            elif found.hopeless:
                self._fault(f"{found.value}: {int.from_bytes(data[stop : stop + 4], 'big', signed=True)}")
                return None
            else:
                return stop

    def _look_into(self, entry: LogEntry) -> None:
        if entry.damage:
            self._fault(entry.damage)
        elif entry.compression:
            opened = WrapperContents(entry, _MAX_DECOMPRESSED)
            self.messages += len(opened.values) - len(opened.damaged)
            for reason in opened.damaged.values():
                self._fault(reason)
        else:
            self.messages += 1

    def _fault(self, reason: str) -> None:
        self.faults.append(Fault(self._segment.path, Position(self._at), reason))


def _needed(tail: bytes) -> int:
    """How many bytes the message is short of that begins with `tail`; 1 when it does not say so yet."""
    return max(1, 4 + int.from_bytes(tail[:4], "big") - len(tail)) if len(tail) >= 4 else 1


def open(path: str | PathLike[str]) -> SegmentedLog:
    """Open a log: the directory of a partition, or one segment file of it.

    The topic and partition are what the directory is called; a directory called otherwise stands for itself, as
    partition 0. A single file may have any name; one that is not a number starts at position 0.

    Raises:
        ConfigError: No such file or directory; or a directory without segments, or with a segment whose name is
            not a number (the broker refuses such a directory, too). Of a directory of many logs, see `logs`.
    """
    place = Path(path)
    if place.is_dir():
        return _directory(place)
    if not place.is_file():
        raise ConfigError(f"{place}: no such file or directory")
    partition = _partition(place.absolute().parent)
    start = int(place.stem) if _is_segment(place) else 0
    return SegmentedLog(partition, (SegmentFile(place, partition, Position(start), place.stat().st_size),))


def logs(path: str | PathLike[str]) -> list[SegmentedLog]:
    """Open all logs in a broker's directory (its `log.dir`), sorted by topic and partition. Of what `open` takes, a
    list of this one.

    Files, and directories without segments, are left out.

    Raises:
        ConfigError: As for `open`; or there is not one log.
    """
    inside = _logs_in(Path(path))
    if not inside or _segments_in(Path(path)):
        return [open(path)]
    return sorted((_directory(place) for place in inside), key=lambda log: log.partition)


def _logs_in(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [one for one in place.iterdir() if one.is_dir() and _DIRECTORY.fullmatch(one.name) and _segments_in(one)]


def _segments_in(place: Path) -> list[Path]:
    return [file for file in place.iterdir() if file.suffix == SUFFIX]


def _directory(place: Path) -> SegmentedLog:
    partition = _partition(place.absolute())
    files = _segments_in(place)
    for file in files:
        if not _is_segment(file):
            raise ConfigError(f"{file}: the name of a segment is its start position, and this is not a number")
    if not files:
        inside = len(_logs_in(place))
        hint = f"; {inside} logs in directories below: open one of them, or all with logs()" if inside else ""
        raise ConfigError(f"{place}: no *{SUFFIX} files in it{hint}")
    segments = [SegmentFile(file, partition, Position(int(file.stem)), file.stat().st_size) for file in files]
    return SegmentedLog(partition, tuple(sorted(segments, key=lambda segment: segment.start)))


def _is_segment(file: Path) -> bool:
    return file.suffix == SUFFIX and file.stem.isascii() and file.stem.isdigit()


def _partition(directory: Path) -> TopicPartition:
    match = _DIRECTORY.fullmatch(directory.name)
    if match is None:
        return TopicPartition(directory.name, 0)
    return TopicPartition(match["topic"], int(match["partition"]))
