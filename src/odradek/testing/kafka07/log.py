"""One partition's log: segment files, append, high-water mark, roll, retention, recovery (specification.md 4).

Names and order of steps follow the real broker closely, because its oddities are part of its behaviour (App. H 2, 3):
a file that a roll finds in its way is deleted although an older segment object still reads from it, the flush is
skipped while no message was counted, and the binary search meets two segments with the same start.

Nothing is fsynced: a flush moves the high-water mark only. Written bytes survive the broker's death as they do with the
real one; they need not survive the machine's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from odradek.engine import Buffer
from odradek.testing.kafka07.config import parse_integer
from odradek.testing.kafka07.errors import OffsetNotInLog, RequestRefused, StartRefused
from odradek.testing.kafka07.validate import InvalidSet, ValidSet, check_entry

__all__ = ["LogLimits", "LogSegment", "PartitionLog", "Slice", "segment_name"]

EARLIEST_TIME, LATEST_TIME = -2, -1
SUFFIX = ".kafka"
SMALLEST_MESSAGE = 5  # magic 0 without payload

_LENGTH = struct.Struct(">i")

Clock = Callable[[], float]


def segment_name(start: int) -> str:
    return f"{start:020d}{SUFFIX}"


def to_ms(seconds: float) -> int:
    return int(seconds * 1000)


class LogSegment:
    """One file and what is known about it. `size` counts everything written, `high_water` what may be read."""

    __slots__ = ("fd", "first_append", "high_water", "path", "size", "start")

    def __init__(self, path: Path, start: int) -> None:
        self.path, self.start = path, start
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = self.high_water = os.fstat(self.fd).st_size
        self.first_append: float | None = None

    @property
    def modified_ms(self) -> int:
        """The time of the file that now has the name (ms since the epoch); 0 if there is none, as Java answers."""
        try:
            return self.path.stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return 0

    def contains(self, offset: int) -> bool:
        return offset == self.start if self.high_water == 0 else self.start <= offset < self.start + self.high_water

    def append(self, data: memoryview, now: float) -> None:
        if self.first_append is None:
            self.first_append = now
        while data:
            written = os.pwrite(self.fd, data, self.size)
            self.size += written
            data = data[written:]

    def recover(self) -> None:
        """Cut the file at its first invalid entry. StartRefused where the real one dies of it (App. H 4)."""
        valid = 0
        while (entry_end := self._valid_entry(valid)) is not None:
            valid = entry_end
        os.ftruncate(self.fd, valid)
        self.size = self.high_water = valid

    def _valid_entry(self, position: int) -> int | None:
        if self.size - position < 4:
            return None
        (length,) = _LENGTH.unpack(os.pread(self.fd, 4, position))
        stop = position + 4 + length
        if length < SMALLEST_MESSAGE or stop > self.size:
            return None
        try:
            return stop if check_entry(os.pread(self.fd, 4 + length, position)) else None
        except InvalidSet as error:
            raise StartRefused(f"{self.path} at {position}: {error}") from error

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Slice(NamedTuple):
    """Bytes of a segment file to be sent. A negative length cannot be: the answer breaks off there (3.2)."""

    segment: LogSegment
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class LogLimits:
    """The limits of one log, from the configuration: bytes, messages, seconds."""

    segment_size: int
    flush_interval: int
    roll_seconds: float


@dataclass(slots=True)
class PartitionLog:
    """Open, and if need be recover, the log in `directory`; an empty one when there is none yet.

    Raises StartRefused on files no broker could have left (specification.md 4.5, App. H 5), OSError.
    """

    directory: Path
    limits: LogLimits
    clock: Clock
    needs_recovery: bool = False
    segments: list[LogSegment] = field(init=False)
    last_flush: float = field(init=False)
    unflushed: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.last_flush = self.clock()
        self.segments = _load(self.directory) or [self._new_segment(0)]
        try:
            _check_contiguous(self.segments)
            if self.needs_recovery:
                self.segments[-1].recover()
        except BaseException:
            self.close()
            raise

    def _new_segment(self, start: int) -> LogSegment:
        return LogSegment(self.directory / segment_name(start), start)

    @property
    def active(self) -> LogSegment:
        return self.segments[-1]

    @property
    def high_water(self) -> int:
        return self.active.start + self.active.high_water

    @property
    def size(self) -> int:
        """Readable bytes in all segments."""
        return sum(segment.high_water for segment in self.segments)

    # ---- writing ------------------------------------------------------------------------------------------

    def append(self, data: Buffer, valid: ValidSet) -> None:
        """Append the valid bytes of a checked set. Raises OSError: the disk is full or gone."""
        now = self.clock()
        if self._roll_due(now):  # also for a set without a single entry (App. H 3)
            self.roll()
        if valid.valid_bytes:
            self.active.append(memoryview(data)[: valid.valid_bytes], now)
        self.unflushed += valid.messages
        if self.unflushed >= self.limits.flush_interval:
            self.flush()

    def _roll_due(self, now: float) -> bool:
        first = self.active.first_append
        aged = first is not None and now - first > self.limits.roll_seconds
        return aged or self.active.size > self.limits.segment_size

    def roll(self) -> None:
        """Start a new segment at the flushed end. A file of that name is deleted first, whatever it holds."""
        self.flush()
        start = self.high_water
        (self.directory / segment_name(start)).unlink(missing_ok=True)
        self.segments.append(self._new_segment(start))

    def flush(self) -> None:
        """Make everything readable; nothing happens while no message was counted (specification.md 4.3, quirk)."""
        if self.unflushed:
            self.active.high_water = self.active.size
            self.unflushed = 0
            self.last_flush = self.clock()

    # ---- reading ------------------------------------------------------------------------------------------

    def read(self, offset: int, max_size: int) -> Slice | None:
        """The bytes a fetch gets: at most to the end of one segment; None at the high-water mark. Raises
        OffsetNotInLog."""
        segment = self._find(offset)
        if segment is None:
            return None
        position = offset - segment.start
        return Slice(segment, position, min(max_size, segment.high_water - position))

    def _find(self, offset: int) -> LogSegment | None:
        segments = self.segments
        if not segments[0].start <= offset <= self.high_water:
            raise OffsetNotInLog(f"offset {offset} is not in {segments[0].start}..{self.high_water}")
        low, high = 0, len(segments) - 1 if offset < self.high_water else -1
        while low <= high:
            middle = (low + high) // 2
            if segments[middle].contains(offset):
                return segments[middle]
            if offset < segments[middle].start:
                high = middle - 1
            else:
                low = middle + 1
        return None

    def offsets_before(self, time_ms: int, max_number: int) -> list[int]:
        """specification.md 4.1. Raises Refused for a negative number: the connection is closed."""
        known = [(segment.start, segment.modified_ms) for segment in self.segments]
        if self.active.high_water > 0:
            known.append((self.high_water, to_ms(self.clock())))
        index = {LATEST_TIME: len(known) - 1, EARLIEST_TIME: 0}.get(time_ms)
        if index is None:
            index = next((i for i in reversed(range(len(known))) if known[i][1] <= time_ms), -1)
        if max_number < 0:
            raise RequestRefused(f"{max_number} offsets asked for")
        return [known[i][0] for i in range(index, max(index - max_number, -1), -1)]

    # ---- retention ----------------------------------------------------------------------------------------

    def expire(self, now: float, retention_seconds: float) -> None:
        """Delete the longest prefix of segments whose files are older (specification.md 4.4)."""
        self._delete_while(lambda segment: to_ms(now) - segment.modified_ms > to_ms(retention_seconds), now)

    def shrink(self, now: float, retention_size: int) -> None:
        """Delete oldest segments while the rest is still at least so large. Negative: no limit."""
        if retention_size < 0 or self.size < retention_size:
            return
        excess = self.size - retention_size

        def fits(segment: LogSegment) -> bool:
            nonlocal excess
            if segment.high_water > excess:
                return False
            excess -= segment.high_water
            return True

        self._delete_while(fits, now)

    def _delete_while(self, condition: Callable[[LogSegment], bool], now: float) -> None:
        doomed = list(takewhile(condition, self.segments))
        if len(doomed) == len(self.segments):  # offsets never start again at 0
            if self.active.high_water > 0:
                self.roll()
            else:  # a new one would have the same name: keep it, as new
                os.utime(doomed.pop().path, (now, now))
        del self.segments[: len(doomed)]
        for segment in doomed:
            segment.close()
            segment.path.unlink(missing_ok=True)

    def close(self) -> None:
        for segment in self.segments:
            segment.close()


def _load(directory: Path) -> list[LogSegment]:
    segments: list[LogSegment] = []
    try:
        for path in sorted(directory.iterdir()):
            if path.name.endswith(SUFFIX) and path.is_file():
                segments.append(LogSegment(path, _start_of(path)))
    except BaseException:
        for segment in segments:
            segment.close()
        raise
    return sorted(segments, key=lambda segment: segment.start)


def _start_of(path: Path) -> int:
    start = parse_integer(path.name.removesuffix(SUFFIX), 2**63 - 1)
    if start is None:
        raise StartRefused(f"{path}: not named after an offset")
    return start


def _check_contiguous(segments: list[LogSegment]) -> None:
    for one, following in pairwise(segments):
        end = one.start + one.size
        if end != following.start:
            raise StartRefused(f"{one.path} ends at {end}, the next segment starts at {following.start}")
