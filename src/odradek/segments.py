"""Segment files of a 0.7 broker, read and verified without a broker.

    for batch in open_log("/var/kafka/orders-0"):
        ...

A log is a directory `<topic>-<partition>` of files `<start position, 20 digits>.kafka`; each file holds the bytes
that a fetch from its start would give, and must end where the next one starts (specification 4.2). A file that was
written to when its broker died may end in the middle of a message: reading stops quietly before such a torn tail, as
a broker's recovery cuts it off; `verify` names it.

Nothing is written, locked or held open between batches; a file still being written to may be read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from odradek.batch import Batch
from odradek.core.interfaces import DecoderOptions
from odradek.errors import ConfigError, CorruptMessage
from odradek.types import MiB, Position, TopicPartition
from odradek.wire.kafka07.message_set import SetDecoder

__all__ = ["Fault", "Log", "Segment", "Verdict", "open_log"]

SUFFIX = ".kafka"
_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)", re.DOTALL)
_CHUNK_BYTES = 1 * MiB
# What was stored was within some broker's limits: only what a length field cannot hold is too large here.
_ANY_SIZE = (1 << 31) - 1
_READ = DecoderOptions(max_message_bytes=_ANY_SIZE)
_VERIFY = DecoderOptions(max_message_bytes=_ANY_SIZE, corrupt="skip")


class Fault(NamedTuple):
    """Something wrong with a log: in which file, at which position of the log, and what."""

    path: Path
    position: Position
    reason: str


class Verdict(NamedTuple):
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
class Segment:
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

    def batches(self, start: int | None = None, options: DecoderOptions = _READ) -> Iterator[Batch]:
        """Yield the messages from `start` on (default: the first), some hundred thousand bytes at a time.

        Raises:
            CorruptMessage: A message cannot be decoded (`options.corrupt == "fail"`), after all before it were yielded.
            OSError: The file cannot be read.
        """
        decoder = self._decoder(start, options)
        for chunk in self._chunks(decoder.position):
            decoder.feed(chunk)
            yield from _taken(decoder)
            if decoder.error is not None:
                raise decoder.error

    def verify(self, advance: Callable[[int], None] | None = None) -> Verdict:
        """Decode everything, going on behind what is broken where its length field still makes sense.

        Args:
            advance: Called now and then with the number of bytes looked at since the last call.
        """
        decoder = self._decoder(None, _VERIFY)
        faults: list[Fault] = []
        messages = 0
        for chunk in self._chunks(decoder.position):
            decoder.feed(chunk)
            if advance is not None:
                advance(len(chunk))
            messages += sum(len(batch) for batch in _taken(decoder))
            faults += (self._fault(report) for report in decoder.take_reports())
            if decoder.error is not None:
                break
        faults += self._ending(decoder)
        return Verdict(messages, self.size, tuple(faults))

    def _ending(self, decoder: SetDecoder) -> Iterator[Fault]:
        torn = decoder.fetch_position - decoder.position
        if isinstance(decoder.error, CorruptMessage):
            yield self._fault(decoder.error)
        elif decoder.error is not None:
            yield Fault(self.path, decoder.position, str(decoder.error))
        elif torn:
            yield Fault(self.path, decoder.position, f"torn tail: the last {torn} bytes are not a whole message")

    def _fault(self, error: CorruptMessage) -> Fault:
        return Fault(self.path, Position(error.position), error.reason)

    def _decoder(self, start: int | None, options: DecoderOptions) -> SetDecoder:
        return SetDecoder(self.partition, Position(max(start or 0, self.start)), options)

    def _chunks(self, position: int) -> Iterator[memoryview]:
        left = self.end - position
        with self.path.open("rb", buffering=0) as file:
            file.seek(position - self.start)
            while left > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
                left -= len(chunk)
                yield memoryview(chunk)


@dataclass(frozen=True, slots=True)
class Log:
    """The segments of one partition, in order. Iterating yields its batches."""

    partition: TopicPartition
    segments: tuple[Segment, ...]

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(self, start: int | None = None, options: DecoderOptions = _READ) -> Iterator[Batch]:
        """Yield the messages from position `start` on (default: the first), as `Segment.batches` does."""
        for segment in self.segments:
            if start is None or start < segment.end:
                yield from segment.batches(start, options)

    def verify(self, advance: Callable[[int], None] | None = None) -> Verdict:
        """Verify every segment, and that each ends where the next one starts (a broker refuses to start otherwise).

        Args:
            advance: As for `Segment.verify`.
        """
        verdicts = [segment.verify(advance) for segment in self.segments]
        faults = [fault for verdict in verdicts for fault in verdict.faults]
        faults += self._gaps()
        faults.sort(key=lambda fault: fault.position)
        return Verdict(sum(v.messages for v in verdicts), sum(v.size for v in verdicts), tuple(faults))

    def _gaps(self) -> Iterator[Fault]:
        for one, following in zip(self.segments, self.segments[1:], strict=False):
            if one.end != following.start:
                reason = f"ends at {one.end}, but the next segment starts at {following.start}"
                yield Fault(one.path, one.end, reason)


def open_log(path: str | PathLike[str]) -> Log:
    """Open a log: the directory of a partition, or one segment file of it.

    The topic and partition are what the directory is called; a directory called otherwise stands for itself, as
    partition 0. A single file may have any name; one that is not a number starts at position 0.

    Raises:
        ConfigError: No such file or directory; or a directory without segments, or with a segment whose name is
            not a number (the broker refuses such a directory, too).
    """
    place = Path(path)
    if place.is_dir():
        return _directory(place)
    if not place.is_file():
        raise ConfigError(f"{place}: no such file or directory")
    partition = _partition(place.absolute().parent)
    start = int(place.stem) if _is_segment(place) else 0
    return Log(partition, (Segment(place, partition, Position(start), place.stat().st_size),))


def _directory(place: Path) -> Log:
    partition = _partition(place.absolute())
    files = [file for file in place.iterdir() if file.suffix == SUFFIX]
    for file in files:
        if not _is_segment(file):
            raise ConfigError(f"{file}: the name of a segment is its start position, and this is not a number")
    if not files:
        raise ConfigError(f"{place}: no *{SUFFIX} files in it")
    segments = [Segment(file, partition, Position(int(file.stem)), file.stat().st_size) for file in files]
    return Log(partition, tuple(sorted(segments, key=lambda segment: segment.start)))


def _is_segment(file: Path) -> bool:
    return file.suffix == SUFFIX and file.stem.isascii() and file.stem.isdigit()


def _partition(directory: Path) -> TopicPartition:
    match = _DIRECTORY.fullmatch(directory.name)
    if match is None:
        return TopicPartition(directory.name, -1, 0)
    return TopicPartition(match["topic"], -1, int(match["partition"]))


def _taken(decoder: SetDecoder) -> Iterator[Batch]:
    columns = decoder.take()
    if columns.values:
        yield Batch(decoder.partition, columns)
