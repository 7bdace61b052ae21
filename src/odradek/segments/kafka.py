"""Logs of Kafka 0.8 and later: files `<first offset, 20 digits>.log` in any mixture of the three record formats."""

from __future__ import annotations

import io
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

from odradek.core.interfaces import DecoderOptions
from odradek.errors import CorruptMessage
from odradek.segments._check import KafkaCheck
from odradek.segments._checkpoints import LogFacts, StoredProducerState, read_facts, read_snapshot
from odradek.segments._indexes import TimeIndex
from odradek.segments._kafka_segment import KafkaSegment
from odradek.segments._log import LogCheckResult, Report, SegmentedLog
from odradek.segments._scan import LARGEST_ENTRY, EntryScan, ScanStop, StoredEntry
from odradek.segments._stored_batch import StoredBatch, stored_batch
from odradek.segments._transactions import TransactionScan
from odradek.types import Columns, Position
from odradek.wire.kafka.records.decoder import RecordDecoder

__all__ = ["SUFFIX", "KafkaLog", "KafkaSegment", "kind_of", "without_replaced"]

SUFFIX, SWAPPED = ".log", ".swap"

log = logging.getLogger("odradek.segments")

_NO_END = (1 << 63) - 1


class _SegmentEnd(NamedTuple):
    """The end of what can be read of a segment."""

    at: int
    """Byte behind its last whole entry."""
    offset: int
    """Offset behind its last record."""
    stop: ScanStop
    reason: str


@dataclass(frozen=True)
class KafkaLog(SegmentedLog):
    """A log of Kafka 0.8 or later, in its segments. Iterate over it for its batches.

    Positions are offsets. Compaction leaves holes between them, which are no damage. Reading ends where the log ended
    when it was opened, after the last whole batch: that may be more than a broker would serve, see `extent`.
    """

    directory: Path
    """The directory of the log."""

    unit: ClassVar[str] = "offsets"

    @cached_property
    def facts(self) -> LogFacts:
        """The facts that files beside the log state: topic id, leader epochs, checkpoints. Raises OSError."""
        is_rest = any(segment.path.suffix in (".deleted", ".cleaned") for segment in self.segments)
        name = self.directory.absolute().name
        is_replica = not is_rest and not any(name.endswith(f"-{kind}") for kind in _KINDS)
        return read_facts(self.directory, self.partition, is_replica=is_replica)

    @property
    def start(self) -> Position:
        """The first offset: that of the first segment, or a later one if records before it were deleted."""
        return Position(min(max(self.segments[0].start, self.facts.log_start or 0), self.end))

    @property
    def end(self) -> Position:
        """The offset behind the last whole batch."""
        return Position(self._tail.offset)

    @property
    def high_watermark(self) -> Position | None:
        """The offset behind what a consumer could get, as the broker last noted it (every 5 s, and when it stops);
        None if that is not known."""
        mark = self.facts.high_watermark
        return None if mark is None else Position(min(max(mark, self.start), self.end))

    @property
    def last_stable_offset(self) -> Position:
        """The offset up to which all transactions are over, at most the high watermark. The first use reads the headers
        of the whole log. Raises OSError."""
        end = self.end if self.high_watermark is None else self.high_watermark
        unstable = self._transactions.first_unstable()
        return end if unstable is None else Position(max(min(unstable, end), self.start))

    @property
    def producers(self) -> list[StoredProducerState]:
        """The states of producers with an id at the end of the log, from its batches. Reads as `last_stable_offset`
        does. Raises OSError."""
        return self._transactions.states

    def snapshot(self) -> tuple[Position, list[StoredProducerState]] | None:
        """Return the newest states of producers that the broker stored (`*.snapshot`, 0.11 and later), and the offset
        behind them; None if there are none that can be read. Raises OSError."""
        for path in sorted(self.directory.glob("*.snapshot"), reverse=True):
            if path.stem.isdigit() and isinstance(states := read_snapshot(path), list):
                return Position(int(path.stem)), states
        return None

    def extent(self, *, read_committed: bool = False) -> tuple[Position, Position]:
        if read_committed:
            return self.start, self.last_stable_offset
        return self.start, self.end if self.high_watermark is None else self.high_watermark

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts about the log that are no faults and that its reader should know, in words."""
        return (*self.facts.notes, *self._notes())

    def _notes(self) -> Iterator[str]:
        first = self.segments[0].start
        if (kind := kind_of(self.directory)) is not None:
            yield f"{self.directory}: {kind}"
        if self.facts.log_start is not None and self.facts.log_start < first:
            yield (
                f"{self.directory}: offsets {self.facts.log_start} to {first - 1} are not here, although the log "
                "begins with them: they were moved to remote storage, or their files are missing"
            )
        if self.facts.log_start is not None and self.facts.log_start > self.end:
            yield f"{self.directory}: the log ends at {self.end}, and {self.facts.log_start} was noted as its start"
        if self.high_watermark is not None and self.high_watermark < self.end:
            yield (
                f"{self.directory}: offsets {self.high_watermark} to {self.end - 1} are behind the high watermark: "
                "consumers had not got them when the broker noted it, and another leader may not have them"
            )
        if (noted := self.facts.high_watermark) is not None and noted > self.end:
            yield (
                f"{self.directory}: the log ends at {self.end}, and the broker noted {noted} as its high watermark: "
                "records that consumers could get are missing here, unless the log was copied before it was noted"
            )
        if self._tail.stop in (ScanStop.TORN, ScanStop.ZEROS):
            yield f"{self.segments[-1].path}: the log ends at {self.end}: {self._tail.reason}"
        for suffix, words in _LEFT_OVER.items():
            if any(self.directory.glob(f"*{suffix}")):
                yield f"{self.directory}: *{suffix}: {words}"
        if holes := list(self._holes()):
            start, until = holes[0]
            count = f"the first of {len(holes)} gaps: " if len(holes) > 1 else ""
            yield (
                f"{self.directory}: {count}offsets {start} to {until - 1} are in no file, between two others: "
                "compaction on another broker took them, or a file is missing"
            )

    def _holes(self) -> Iterator[tuple[int, int]]:
        """Yield the offsets between the end of a file and the start of the next one, but for those that were compacted
        here."""
        first = max(self.start, self.facts.cleaned or 0)
        for segment, following in self._between(first, _NO_END):
            end = _end_of(segment)
            if end.stop is ScanStop.END and end.offset < following < _NO_END:
                yield end.offset, following

    def _position_at(self, timestamp_ms: int) -> Position:
        for segment, following in self._between(self.start, _NO_END):
            with io.FileIO(segment.path) as file:
                if following < _NO_END and self._is_before(segment, file, timestamp_ms):
                    continue
                before = int(segment.start)
                for entry in EntryScan(file, 0, segment.size, segment.start):
                    first, before = max(before, self.start), entry.next_offset
                    if first < before and _may_have(entry, timestamp_ms):
                        position = self._first_at(first, before, timestamp_ms)
                        if position is not None:
                            return position
        return self.end

    def stored_batches(self, start: int | None = None, until: int | None = None) -> Iterator[StoredBatch]:
        """Yield the headers of all batches, and messages of the older formats, that have offsets between two positions,
        up to the end of the log or of a file's readable part. They are checked, not decoded.

        Args:
            start: An offset; None: the first of the files.
            until: An offset; None: the end of the log.

        Raises:
            OSError: A file cannot be read.
        """
        first, last = start or 0, _NO_END if until is None else until
        for segment, following in self._between(first, last):
            with io.FileIO(segment.path) as file:
                scan, before = EntryScan(file, segment.byte_before(file, first), segment.size, segment.start), 0
                for entry in scan:
                    # A compressed message has its own offset and those before it.
                    if (before if entry.record_count is None else entry.base_offset) >= min(last, following):
                        break
                    before = entry.next_offset
                    if entry.last_offset >= first:
                        yield stored_batch(segment.path, file, entry)

    # -- reading --

    def _between(self, first: int, last: int) -> Iterator[tuple[KafkaSegment, int]]:
        """Yield the segments with offsets from `first` to `last`, each with the offset at which the next one starts."""
        starts = [segment.start for segment in self.segments]
        for segment, following in zip(self.segments, [*starts[1:], _NO_END], strict=True):
            if first < following and segment.start < last:
                assert isinstance(segment, KafkaSegment)
                yield segment, following

    def _decode(
        self, start: int | None, until: int | None, options: DecoderOptions, max_bytes: int, report: Report
    ) -> Iterator[Columns]:
        first, last = max(start or 0, self.start), _NO_END if until is None else until
        stop = min(last, self.last_stable_offset if options.read_committed else self.end)
        is_visible = self._transactions.is_visible if options.read_committed else None
        options = options._replace(max_message_bytes=LARGEST_ENTRY)
        for segment, following in self._between(first, stop):
            decoder = RecordDecoder(self.partition, Position(max(first, segment.start)), options)
            decoder.start_response(is_visible)
            end = self._tail.at if following == _NO_END else segment.size
            if stop < min(following, self.end):
                end = min(end, segment.byte_behind(stop))  # damage behind it is not that of the records asked for
            for columns in segment.rows(decoder, end, stop, max_bytes):
                for error in decoder.take_reports():
                    report(error)
                if len(columns) and columns.positions[-1] >= stop:
                    columns = columns.slice(0, bisect_left(columns.positions, stop))
                if len(columns):
                    yield columns
        if until is None and self._tail.stop is ScanStop.DAMAGED and stop == self.end:
            raise CorruptMessage(str(self.partition), self.end, f"{self.segments[-1].path}: {self._tail.reason}")
        if until is not None and until > self.end:
            why = f": {self._tail.reason}" if self._tail.reason else ""
            raise CorruptMessage(str(self.partition), self.end, f"the log ends here, in front of {until}{why}")

    @cached_property
    def _tail(self) -> _SegmentEnd:
        segment = self.segments[-1]
        assert isinstance(segment, KafkaSegment)
        return _end_of(segment)

    @cached_property
    def _transactions(self) -> TransactionScan:
        scan = TransactionScan(self.high_watermark)
        for segment, following in self._between(0, _NO_END):
            with io.FileIO(segment.path) as file:
                for entry in EntryScan(file, 0, segment.size, segment.start):
                    if entry.base_offset < following:
                        scan.add(entry, file)
        return scan

    # -- times --

    def _is_before(self, segment: KafkaSegment, file: io.FileIO, timestamp_ms: int) -> bool:
        """Return True if a segment's time index says that all of it is older, its last entry is true, and what comes
        behind that is older, too: the end of an index may not have been flushed."""
        last = TimeIndex(segment.index(".timeindex"), segment.start).last()
        if last is None or last[0] >= timestamp_ms:
            return False
        time, offset = last
        scan = EntryScan(file, segment.byte_before(file, offset), segment.size, segment.start)
        entry = next((entry for entry in scan if entry.last_offset >= offset), None)
        if entry is not None and entry.base_offset <= offset and entry.max_timestamp == time:
            return not any(_may_have(following, timestamp_ms) for following in scan)
        log.warning("%s: searched for a time without its time index, which does not fit it", segment.path)
        return False

    def _first_at(self, first: int, until: int, timestamp_ms: int) -> Position | None:
        for columns in self.columns(first, until):
            times: Sequence[int] = () if columns.timestamps is None else columns.timestamps
            for offset, time in zip(columns.positions, times, strict=False):
                if time >= max(timestamp_ms, 0):
                    return Position(offset)
        return None

    # -- checking --

    def _check(self, advance: Callable[[int], None]) -> LogCheckResult:
        check = KafkaCheck(self.partition, self.facts, self.directory, advance)
        segments = list(self._between(0, _NO_END))
        for segment, following in segments:
            check.check(segment, following, is_last=segment is self.segments[-1])
        return LogCheckResult(check.messages, self.size, tuple(check.faults))


def _end_of(segment: KafkaSegment) -> _SegmentEnd:
    with io.FileIO(segment.path) as file:
        scan = EntryScan(file, segment.byte_before(file, _NO_END), segment.size, segment.start)
        for _ in scan:
            pass
    return _SegmentEnd(scan.at, scan.offset, scan.stop, scan.reason)


def _may_have(entry: StoredEntry, timestamp_ms: int) -> bool:
    """Return True if an entry may have a record of a time or a later one. Brokers set the header's to the largest."""
    return entry.magic > 0 and entry.max_timestamp >= max(timestamp_ms, 0)


def without_replaced(files: Sequence[KafkaSegment]) -> tuple[KafkaSegment, ...]:
    """Return the segments of a log in order, where the broker ended in the middle of a compaction those that a broker
    would have after its next start: a file `.swap` replaces the segments between its offsets, unless there is a
    `.cleaned` in front of it or with its offset, which says that its compaction was not complete. Raises OSError.
    """
    kept = [segment for segment in files if segment.path.suffix != SWAPPED]
    for swapped in sorted((segment for segment in files if segment.path.suffix == SWAPPED), key=_start_of):
        names = [path.name.split(".")[0] for path in swapped.path.parent.glob("*.cleaned")]
        if min((int(name) for name in names if name.isascii() and name.isdigit()), default=_NO_END) <= swapped.start:
            continue
        with io.FileIO(swapped.path) as file:
            scan = EntryScan(file, 0, swapped.size, swapped.start)
            for _ in scan:
                pass
        behind = max(scan.offset, swapped.start + 1)
        kept = [*(segment for segment in kept if not swapped.start <= segment.start < behind), swapped]
    return tuple(sorted(kept, key=_start_of))


def _start_of(segment: KafkaSegment) -> int:
    return segment.start


_LEFT_OVER = {
    ".swap": "segments of a compaction that had not ended: read in place of those that they replace, as by a broker "
    "when it starts, if the compaction was complete, otherwise ignored",
    ".deleted": "segments that the broker had taken out of the log and not yet deleted; ignored",
    ".cleaned": "files of a compaction that had not ended; ignored, as a broker deletes them when it starts",
}
_KINDS = {
    "delete": "the topic or replica was deleted: a broker removes the directory when it starts",
    "future": "a copy that was being moved between directories of a broker, and need not be complete",
    "stray": "a replica that the broker had no more when it started: a later leader may have written what is missing",
}
_METADATA_LOG = "__cluster_metadata"


def kind_of(directory: Path) -> str | None:
    name = directory.absolute().name
    if name.startswith(_METADATA_LOG + "-"):
        return (
            "the log of the brokers' own metadata (KRaft): its values are in their binary format, and what was before "
            "its start is in its files *.checkpoint"
        )
    return next((words for kind, words in _KINDS.items() if name.endswith(f"-{kind}")), None)
