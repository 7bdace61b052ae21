"""Segment files of Kafka 0.7: how they are named, decoded and checked (specification.md 4.2)."""

from __future__ import annotations

from collections.abc import Callable

from odradek import engine
from odradek.core.interfaces import DecoderOptions, LogDecoder
from odradek.segments._files import Fault, SegmentFile
from odradek.types import KiB, Position, TopicPartition
from odradek.wire.kafka07.decompress import WrapperContents
from odradek.wire.kafka07.entries import LogEntry, read_entry
from odradek.wire.kafka07.message_set import MessageSetDecoder

__all__ = ["SUFFIX", "SegmentCheck", "decoder"]

SUFFIX = ".kafka"

_CHECK_BYTES = 64 * KiB  # read at once while checking

# Stored messages were within some broker's limits: only what a length field cannot hold is too large here.
_ANY_SIZE = (1 << 31) - 1
_MAX_DECOMPRESSED = DecoderOptions().max_decompressed_bytes


def decoder(partition: TopicPartition, position: Position, corrupt: str) -> LogDecoder:
    """Return a decoder for the bytes of a log from `position` on."""
    return MessageSetDecoder(partition, position, DecoderOptions(max_message_bytes=_ANY_SIZE, corrupt=corrupt))


class SegmentCheck:
    """The check of one segment. Plain messages are validated only: no rows are made of them.

    Args:
        segment: The file.
        advance: Called now and then with the number of bytes checked since the last call.

    Attributes:
        messages: Whole messages, those inside compressed wrappers counted one by one.
        faults: Everything wrong, in the order of the log.
    """

    def __init__(self, segment: SegmentFile, advance: Callable[[int], None]) -> None:
        self.messages = 0
        self.faults: list[Fault] = []
        self._segment, self._advance = segment, advance
        self._at: int = segment.start

    def run(self) -> None:
        """Check the file from its start to its end, or to a length that makes no sense."""
        tail = b""
        with self._segment.path.open("rb", buffering=0) as file:
            while (missing := _missing_bytes(tail)) <= (left := self._segment.end - self._at - len(tail)):
                if not (chunk := file.read(min(left, max(_CHECK_BYTES, missing)))):
                    break
                self._advance(len(chunk))
                data = tail + chunk
                if (used := self._check(data)) is None:
                    return
                tail = data[used:]
        if torn := self._segment.end - self._at:
            self._add_fault(f"torn tail: the last {torn} bytes are not a whole message")

    def _check(self, data: bytes) -> int | None:
        """Return the bytes of whole messages; None after a length that makes no sense, which hides what follows it."""
        view, first, stop = memoryview(data), self._at, 0
        while True:
            stop, count = engine.active.check_run(data, stop, len(data))
            self._at = first + stop
            self.messages += count
            entry = read_entry(view, stop, first)
            if isinstance(entry, LogEntry):
                self._check_entry(entry)
                stop += entry.size
            elif entry.hopeless:
                self._add_fault(f"{entry.value}: {int.from_bytes(data[stop : stop + 4], 'big', signed=True)}")
                return None
            else:
                return stop

    def _check_entry(self, entry: LogEntry) -> None:
        if entry.damage:
            self._add_fault(entry.damage)
        elif entry.compression:
            contents = WrapperContents(entry, _MAX_DECOMPRESSED)
            self.messages += len(contents.values) - len(contents.damaged)
            for reason in contents.damaged.values():
                self._add_fault(reason)
        else:
            self.messages += 1

    def _add_fault(self, reason: str) -> None:
        self.faults.append(Fault(self._segment.path, Position(self._at), reason))


def _missing_bytes(tail: bytes) -> int:
    """Return how many bytes the message that begins with `tail` is short of; 1 if its length is not known yet."""
    return max(1, 4 + int.from_bytes(tail[:4], "big") - len(tail)) if len(tail) >= 4 else 1
