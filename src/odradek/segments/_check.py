"""The check of a log of Kafka 0.8 and later."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from odradek.core.interfaces import DecoderOptions
from odradek.errors import CorruptMessage
from odradek.segments._checkpoints import LogFacts, read_snapshot
from odradek.segments._files import CHUNK_BYTES, Fault
from odradek.segments._indexes import OffsetIndex, TimeIndex, read_aborted
from odradek.segments._kafka_segment import KafkaSegment
from odradek.segments._scan import LARGEST_ENTRY, EntryScan, ScanStop, StoredEntry
from odradek.segments._transactions import TransactionScan
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.records.decoder import RecordDecoder

__all__ = ["KafkaCheck"]

_REBUILT = "a broker creates it again when it starts without it"


class KafkaCheck:
    """Checks the segments of a log, one after the other.

    Args:
        partition: Named in errors.
        facts: The facts that files beside the log state.
        directory: The directory of the log.
        advance: Called now and then with the number of bytes checked since the last call.

    Attributes:
        messages: Records, but the markers of transactions.
        faults: Everything wrong, in the order of the log.
    """

    def __init__(
        self, partition: TopicPartition, facts: LogFacts, directory: Path, advance: Callable[[int], None]
    ) -> None:
        self.messages = 0
        self.faults: list[Fault] = []
        self._partition, self._facts, self._advance = partition, facts, advance
        self._epochs_path: Path | None = directory / "leader-epoch-checkpoint"  # None once its fault is named
        self._epoch_starts = [start for _, start in facts.leader_epochs]
        self._scan = TransactionScan(None)
        self._offset, self._epoch = 0, -1

    def check(self, segment: KafkaSegment, following: int, *, is_last: bool) -> None:
        """Check a segment, given the offset at which the next one starts."""
        faults: list[Fault] = []
        aborted = len(self._scan.aborted)
        with io.FileIO(segment.path) as file:
            scan = EntryScan(file, 0, segment.size, segment.start)
            indexes = _IndexCheck(segment)
            for entry in scan:
                faults += self._out_of_order(segment, entry, following)
                indexes.add(entry)
                self._scan.add(entry, file)
        if scan.stop is ScanStop.DAMAGED or (scan.reason and not is_last):
            faults.append(Fault(segment.path, Position(scan.offset), scan.reason))
        elif scan.stop is ScanStop.TORN:
            faults.append(Fault(segment.path, Position(scan.offset), f"torn tail: {scan.reason}"))
        faults += self._decoded(segment, scan.at)
        faults += indexes.faults()
        faults += self._unknown_aborts(segment, aborted)
        faults += _damaged_snapshot(segment)
        self.faults += sorted(faults, key=lambda fault: fault.position)
        self._advance(segment.size)

    def _out_of_order(self, segment: KafkaSegment, entry: StoredEntry, following: int) -> Iterator[Fault]:
        at = Position(entry.base_offset)
        if entry.base_offset < max(self._offset, segment.start):
            minimum = max(self._offset, segment.start)
            yield Fault(segment.path, at, f"an entry at offset {entry.base_offset}, where {minimum} is the least")
        elif entry.last_offset >= following:
            yield Fault(segment.path, at, f"offset {entry.last_offset}, but the next segment starts at {following}")
        self._offset = max(self._offset, entry.next_offset)
        if entry.leader_epoch < 0:
            return
        if entry.leader_epoch < self._epoch:
            yield Fault(segment.path, at, f"leader epoch {entry.leader_epoch} behind epoch {self._epoch}")
        self._epoch = max(self._epoch, entry.leader_epoch)
        number = bisect_right(self._epoch_starts, entry.base_offset) - 1
        if self._epochs_path and number >= 0:
            epoch = self._facts.leader_epochs[number].epoch
            if epoch != entry.leader_epoch:
                yield Fault(self._epochs_path, at, f"says epoch {epoch}, and the log says {entry.leader_epoch}")
                self._epochs_path = None

    def _decoded(self, segment: KafkaSegment, end: int) -> Iterator[Fault]:
        options = DecoderOptions(max_message_bytes=LARGEST_ENTRY, corrupt="skip")
        decoder = RecordDecoder(self._partition, segment.start, options)
        try:
            for columns in segment.rows(decoder, end, (1 << 63) - 1, CHUNK_BYTES):
                self.messages += len(columns)
                for report in decoder.take_reports():
                    yield Fault(segment.path, Position(report.position), report.reason)
        except CorruptMessage as error:
            yield Fault(segment.path, Position(error.position), error.reason)

    def _unknown_aborts(self, segment: KafkaSegment, before: int) -> Iterator[Fault]:
        """Compare the segment's index of aborted transactions with the log. Of those that have no records in the log,
        because they never had one, or compaction or retention has removed them, the index may have an entry or not."""
        path = segment.index(".txnindex")
        listed = read_aborted(path)
        if listed is None:
            yield Fault(path, segment.start, f"not an index of aborted transactions of version 0; {_REBUILT}")
            return
        logged = {(one.producer_id, one.last_offset): one.first_offset for one in self._scan.aborted[before:]}
        indexed = {(one.producer_id, one.last_offset) for one in listed}
        wrong = indexed - logged.keys() | {one for one, first in logged.items() if first >= 0 and one not in indexed}
        if wrong:
            producer, offset = min(wrong, key=lambda one: one[1])
            where = "the log" if (producer, offset) in logged else "this index"
            reason = f"only {where} has the abort of producer {producer} at {offset}; {_REBUILT}"
            yield Fault(path, Position(max(offset, 0)), reason)


class _IndexCheck:
    """The check of a segment's indexes of offsets and times against its entries; names the first fault of each."""

    def __init__(self, segment: KafkaSegment) -> None:
        self._segment = segment
        self._path = segment.index(".index")
        self._entries = iter(OffsetIndex(self._path, segment.start).entries()) if self._path.exists() else iter(())
        self._next = next(self._entries, None)
        self._fault: Fault | None = None
        times = segment.index(".timeindex")
        self._time = TimeIndex(times, segment.start).last() if times.exists() else None
        self._has_time = self._time is None
        self._is_disordered = self._time is None and _has_entries(times)

    def add(self, entry: StoredEntry) -> None:
        """Add the next entry of the segment."""
        if self._time is not None and entry.base_offset <= self._time[1] <= entry.last_offset:
            self._has_time = self._has_time or entry.max_timestamp == self._time[0]
        elif self._time is not None and entry.magic < 2 and entry.max_timestamp == self._time[0]:
            self._has_time = True  # a compressed message has the offsets before its own, too
        while self._fault is None and self._next is not None and self._next[1] < entry.end:
            offset, at = self._next
            first = entry.base_offset if entry.magic == 2 else 0
            if at != entry.at or not first <= offset <= entry.last_offset:
                self._add_fault(offset, at)
            self._next = next(self._entries, None)

    def faults(self) -> Iterator[Fault]:
        """Yield the faults, once there are no more entries."""
        if self._fault is None and self._next is not None and self._next[1]:
            self._add_fault(*self._next)
        if self._fault is not None:
            yield self._fault
        path = self._segment.index(".timeindex")
        if self._is_disordered:
            yield Fault(path, self._segment.start, f"its entries are not in order; {_REBUILT}")
        elif not self._has_time and self._time is not None:
            reason = f"says time {self._time[0]} at {self._time[1]}, which the log does not have; {_REBUILT}"
            yield Fault(path, Position(max(self._time[1], 0)), reason)

    def _add_fault(self, offset: int, at: int) -> None:
        reason = f"no batch with offset {offset} starts at byte {at}; {_REBUILT}"
        self._fault = Fault(self._path, Position(max(offset, 0)), reason)


def _has_entries(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open("rb") as file:
        return any(file.read(12))  # zeros are space


def _damaged_snapshot(segment: KafkaSegment) -> Iterator[Fault]:
    path = segment.index(".snapshot")
    if path.exists() and isinstance(wrong := read_snapshot(path), str):
        yield Fault(path, segment.start, f"states of producers: {wrong}; {_REBUILT}")
