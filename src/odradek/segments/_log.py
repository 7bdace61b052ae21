"""A log of any format, as users read and check it; its methods for Kafka 0.7."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from odradek import arguments
from odradek.batch import Batch
from odradek.core.interfaces import DecoderOptions
from odradek.errors import CorruptMessage
from odradek.segments import kafka07
from odradek.segments._files import CHUNK_BYTES, Fault, SegmentFile
from odradek.types import Columns, MiB, Position, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogCheckResult", "SegmentedLog"]

BATCH_BYTES = 2 * CHUNK_BYTES
"""Bytes of a batch, about."""

Report = Callable[[CorruptMessage], None]
"""Function that is called with each entry that `corrupt="skip"` leaves out."""

_SIZE = arguments.size_bytes()
_POSITION = arguments.optional(arguments.count(0, (1 << 63) - 1, "a position"))
_RANGE = {
    "start": _POSITION,
    "until": _POSITION,
    "corrupt": arguments.choice("fail", "skip", "raw"),
    "read_committed": arguments.flag(),
}
_TIME = arguments.count(-(1 << 63), (1 << 63) - 1, "milliseconds since the epoch")
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


@dataclass(frozen=True)
class SegmentedLog:
    """The segments of one partition, in order. Iterate over it for its batches.

    A log of Kafka 0.8 and later is a `KafkaLog`, which has the same methods.
    """

    partition: TopicPartition
    segments: tuple[SegmentFile, ...]

    unit: ClassVar[str] = "bytes"
    """Unit of positions: `bytes` in 0.7, where a range must begin and end where messages do, else `offsets`, where it
    may begin and end anywhere."""

    @property
    def start(self) -> Position:
        """The first position of the log."""
        return self.segments[0].start

    @property
    def end(self) -> Position:
        """The position after the last record of the log when it was opened; in 0.7 after its last byte."""
        return self.segments[-1].end

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts about the log that are no faults and that its reader should know, in words. A log of 0.7 has none."""
        return ()

    def extent(self, *, read_committed: bool = False) -> tuple[Position, Position]:
        """Return the positions between which a broker would serve the log: in 0.7 `start` and `end`; later up to the
        high watermark, if that is known, and with `read_committed` up to the last stable offset. Raises OSError."""
        return self.start, self.end

    def position_at(self, timestamp_ms: int) -> Position:
        """Return the position of the first record of a time or a later one; `end` if there is none. Records without
        timestamps (before 0.10) have no time.

        In 0.7 it is the start of the newest segment that was not written to since, or the first position.

        Args:
            timestamp_ms: Milliseconds since the epoch.

        Raises:
            CorruptMessage: An entry that may have the time cannot be decoded (0.8 and later).
            OSError: A file cannot be read.
            ConfigError, TypeError: The time is none.
        """
        _TIME("timestamp_ms", timestamp_ms)
        return self._position_at(timestamp_ms)

    def _position_at(self, timestamp_ms: int) -> Position:
        written = [segment for segment in self.segments if segment.path.stat().st_mtime * 1000 <= timestamp_ms]
        return written[-1].start if written else self.start

    def __iter__(self) -> Iterator[Batch]:
        return self.batches()

    def batches(
        self,
        start: int | None = None,
        until: int | None = None,
        *,
        corrupt: str = "fail",
        read_committed: bool = False,
    ) -> Iterator[Batch]:
        """Yield the messages between two positions, in batches of some ten or hundred thousand bytes.

        Memory: one such batch, and the largest message.

        Args:
            start: Where a message starts; None, or a position before the log: its first. From 0.8 on any offset.
            until: Where a message ends; None: the end of the log, or its torn tail. From 0.8 on any offset.
            corrupt: For an entry that cannot be decoded: `fail` raises, `skip` leaves it out, `raw` delivers the
                undecoded entry as a row named in `Batch.corrupt`.
            read_committed: Leave out records of transactions that were aborted, and end in front of those of the first
                transaction that is open. The log is read twice. It has no effect before 0.11.

        Raises:
            CorruptMessage: A message cannot be decoded, or none ends at `until`; from 0.8 on, the log ends before
                `until`. Raised after all messages before it.
            OSError: A file cannot be read.
            ConfigError, TypeError: An argument cannot work.
        """
        decoded = self.columns(start, until, corrupt=corrupt, read_committed=read_committed)
        return (Batch(self.partition, columns) for columns in decoded)

    def arrow(
        self,
        start: int | None = None,
        until: int | None = None,
        *,
        max_bytes: int = 4 * MiB,
        corrupt: str = "fail",
        read_committed: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages as Arrow record batches; `odradek.arrow` describes the fields. Needs `odradek[arrow]`.

        Args:
            start: As for `batches`.
            until: As for `batches`.
            max_bytes: Payload of a record batch, about (bytes); one compressed message may exceed it.
            corrupt: As for `batches`.
            read_committed: As for `batches`.

        Raises:
            ConfigError, TypeError: pyarrow is not installed, or an argument cannot work.
            CorruptMessage: As for `batches`.
            OSError: A file cannot be read.
        """
        from odradek.arrow import record_batch

        decoded = self.columns(start, until, max_bytes=max_bytes, corrupt=corrupt, read_committed=read_committed)
        return (record_batch(self.partition, columns, errors=corrupt == "raw") for columns in decoded)

    def columns(
        self,
        start: int | None = None,
        until: int | None = None,
        *,
        max_bytes: int = BATCH_BYTES,
        corrupt: str = "fail",
        read_committed: bool = False,
        keep_encoded: str | None = None,
        report: Report | None = None,
    ) -> Iterator[Columns]:
        """Yield the messages as columns, none of them empty: what `batches` and `arrow` are made of.

        Args:
            start: As for `batches`.
            until: As for `batches`.
            max_bytes: As for `arrow`.
            corrupt: As for `batches`.
            read_committed: As for `batches`.
            keep_encoded: As for `Cluster.reader`.
            report: Called with the error of each entry that `corrupt="skip"` leaves out, of the latest 1000 of a batch.

        Raises:
            CorruptMessage, OSError, ConfigError, TypeError: As for `batches`.
        """
        arguments.check_all(_RANGE, start=start, until=until, corrupt=corrupt, read_committed=read_committed)
        _SIZE("max_bytes", max_bytes)
        options = DecoderOptions(corrupt=corrupt, read_committed=read_committed, keep_encoded=keep_encoded)
        return self._decode(start, until, options, max_bytes, report or _ignore_report)

    def _decode(
        self, start: int | None, until: int | None, options: DecoderOptions, max_bytes: int, report: Report
    ) -> Iterator[Columns]:
        first, last = max(start or 0, self.start), self.end if until is None else until
        at = Position(first)
        for segment in self.segments:
            if first < segment.end and segment.start < last:
                decoder = kafka07.decoder(self.partition, Position(max(first, segment.start)), options.corrupt)
                for columns in segment.decode(decoder, last, max_bytes):
                    for error in decoder.take_reports():
                        report(error)
                    if columns.values:
                        yield columns
                at = decoder.position
        if until is not None and at < until:
            raise CorruptMessage(str(self.partition), at, f"no message that starts here or later ends at {until}")

    def verify(self, advance: Callable[[int], None] | None = None) -> LogCheckResult:
        """Check every message, and that the segments fit together (otherwise a broker of 0.7 refuses to start). After a
        damaged message the check continues if its length field makes sense.

        From 0.8 on it also checks that offsets and leader epochs grow, and what index files say.

        Memory: a chunk, and the largest message.

        Args:
            advance: Called now and then with the number of bytes checked since the last call.

        Raises:
            OSError: A file cannot be read.
        """
        _ADVANCE("advance", advance)
        return self._check(advance or _ignore)

    def _check(self, advance: Callable[[int], None]) -> LogCheckResult:
        checks = [kafka07.SegmentCheck(segment, advance) for segment in self.segments]
        for check in checks:
            check.run()
        faults = sorted([*(fault for check in checks for fault in check.faults), *self._gaps()], key=_position_of)
        return LogCheckResult(sum(check.messages for check in checks), self.size, tuple(faults))

    def _gaps(self) -> Iterator[Fault]:
        for one, following in zip(self.segments, self.segments[1:], strict=False):
            if one.end != following.start:
                reason = f"ends at {one.end}, but the next segment starts at {following.start}"
                yield Fault(one.path, one.end, reason)


def _ignore(_: int) -> None:
    return


def _ignore_report(_: CorruptMessage) -> None:
    return


def _position_of(fault: Fault) -> int:
    return fault.position
