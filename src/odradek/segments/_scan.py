"""Entries of a segment file of Kafka 0.8 and later, by their headers: what is where, without decoding."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from odradek.segments._files import CHUNK_BYTES
from odradek.types import NO_TIMESTAMP, KiB, MiB
from odradek.wire.kafka.records.batch import (
    HEADER_BYTES,
    MIN_LENGTH,
    NO_EPOCH,
    batch_header,
)
from odradek.wire.kafka.records.entries import end_of
from odradek.wire.kafka.records.message_set import HEAD_BYTES
from odradek.wire.kafka.records.message_set import MIN_LENGTH as MIN_MESSAGE_LENGTH

__all__ = ["LARGEST_ENTRY", "EntryScan", "ScanStop", "StoredEntry", "read_entry", "read_sound_entry"]

LARGEST_ENTRY = 256 * MiB
"""The largest batch or message that is read: a damaged length must not decide how much memory is taken."""

_START = struct.Struct(">qi")
_MESSAGE_TIME = struct.Struct(">q")
_LARGE_BYTES = 64 * KiB  # behind an entry of this size only the next header is read, not a chunk
_LITTLE_READ = 4 * KiB
_MOST_TRIES = 64  # of what looks like an entry, each of which may be large
_MATCHED_BYTES = 17  # of an entry that is looked for: up to its magic
_MAX_OFFSET = (1 << 63) - 1
_NO_PRODUCER = -1


class ScanStop(Enum):
    """The reason why a scan ended."""

    END = "the file ends with a whole entry"
    TORN = "an entry is incomplete, and nothing follows it"
    ZEROS = "only zeros follow: space that was allocated and not written"
    DAMAGED = "the entry's header cannot be right"


class StoredEntry(NamedTuple):
    """The header of one entry of a file: a batch of magic 2, or a message of magic 0 or 1.

    Args:
        at: Byte of the file at which it starts.
        size: Its bytes.
        magic: 0, 1 or 2.
        base_offset: The first offset; of a message its own, which in a compressed one is that of the last inside.
        last_offset: The last offset, also if compaction has removed that record.
        attributes: The bits of its format.
        record_count: Number of records; None for a compressed message of magic 0 or 1.
        max_timestamp: In ms since the epoch; -1 if it has none.
        leader_epoch, producer_id, producer_epoch, base_sequence: -1 where the format or the entry has none.
    """

    at: int
    size: int
    magic: int
    base_offset: int
    last_offset: int
    attributes: int
    record_count: int | None
    max_timestamp: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int

    @property
    def end(self) -> int:
        """The byte of the file behind it."""
        return self.at + self.size

    @property
    def next_offset(self) -> int:
        """The first offset that the next entry may have."""
        return self.last_offset + 1

    @property
    def compression(self) -> int:
        """A `CompressionType`, or a number that is none."""
        return self.attributes & 7

    @property
    def is_append_time(self) -> bool:
        """True: the broker set the timestamps."""
        return bool(self.attributes & 8)

    @property
    def is_transactional(self) -> bool:
        """True: part of a transaction."""
        return self.magic == 2 and bool(self.attributes & 16)

    @property
    def is_control(self) -> bool:
        """True: its record is a marker of the brokers, not for consumers."""
        return self.magic == 2 and bool(self.attributes & 32)

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; -1 if it has none."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset - self.base_offset) & 0x7FFF_FFFF


class EntryScan:
    """A scan over the entries of a file, by their length fields. Iterate over it once.

    Memory: a chunk.

    Args:
        file: Opened for reading, without a buffer.
        at: Byte at which an entry starts.
        size: Bytes of the file that count.
        offset: The offset at which damage is named if it is at the first entry.

    Attributes:
        at: Byte behind the last entry.
        offset: Offset behind the last entry.
        stop: The reason for the end, once there are no more entries.
        reason: It in words, if that is not `ScanStop.END`.
    """

    def __init__(self, file: io.FileIO, at: int, size: int, offset: int) -> None:
        self._file, self._size = file, size
        self.at, self.offset = at, offset
        self.stop, self.reason = ScanStop.END, ""
        self._data, self._from = b"", at

    def __iter__(self) -> Iterator[StoredEntry]:
        little = False
        while self.at < self._size:
            head = self._head(_LITTLE_READ if little else CHUNK_BYTES)
            entry = self._entry(head)
            if entry is None:
                return
            self.at, self.offset = entry.end, max(self.offset, entry.next_offset)
            little = entry.size > _LARGE_BYTES
            yield entry

    def _head(self, chunk: int) -> memoryview:
        start = self.at - self._from
        if start + HEADER_BYTES > len(self._data):
            self._file.seek(self.at)
            self._data, self._from, start = self._file.read(min(chunk, self._size - self.at)), self.at, 0
        return memoryview(self._data)[start : start + HEADER_BYTES]

    def _entry(self, head: memoryview) -> StoredEntry | None:
        left = self._size - self.at
        if len(head) == HEADER_BYTES and head[16] == 2:
            batch = batch_header(head)
            base, size, delta = batch.base_offset, 12 + batch.length, batch.last_offset_delta
            if HEADER_BYTES <= size <= min(left, LARGEST_ENTRY) and delta >= 0 and 0 <= base < _MAX_OFFSET - delta:
                producer = batch.producer_id, batch.producer_epoch, batch.base_sequence
                facts = batch.attributes, batch.record_count, batch.max_timestamp, batch.leader_epoch
                return StoredEntry(self.at, size, 2, base, base + delta, *facts, *producer)
        wrong = self._wrong_with(head, left)
        if wrong is not None:
            self.stop, self.reason = wrong
            return None
        return _message(self.at, 12 + _START.unpack_from(head)[1], head)

    def _wrong_with(self, head: memoryview, left: int) -> tuple[ScanStop, str] | None:
        """Return the reason why the scan ends in front of the entry with this header, if it does."""
        if not len(head):
            return ScanStop.TORN, f"the last {left} bytes are not there any more"
        if len(head) < HEAD_BYTES or (head[16] == 2 and len(head) < HEADER_BYTES):
            return ScanStop.TORN, f"the last {left} bytes are not a whole entry"
        if not any(head[:HEAD_BYTES]):
            return self._at_zeros(left)
        offset, length = _START.unpack_from(head)
        magic, size = head[16], 12 + length
        if magic > 2:
            return ScanStop.DAMAGED, f"unknown magic {magic}"
        if length < (MIN_LENGTH if magic == 2 else MIN_MESSAGE_LENGTH):
            return ScanStop.DAMAGED, f"an entry whose length field says {length}"
        if (impossible := _impossible(head, offset, size)) is not None or size <= left:
            return impossible
        if self._has_sound_entry(head, left):
            return ScanStop.DAMAGED, f"an entry whose length field says {length}, and entries follow it"
        return ScanStop.TORN, f"the last {left} bytes are not a whole entry"

    def _at_zeros(self, left: int) -> tuple[ScanStop, str]:
        self._file.seek(self.at)
        while chunk := self._file.read(min(CHUNK_BYTES, left)):
            left -= len(chunk)
            if any(chunk):
                return ScanStop.DAMAGED, "zeros where an entry must be"
        return ScanStop.ZEROS, f"the last {self._size - self.at} bytes are zeros, which were never written"

    def _has_sound_entry(self, head: memoryview, left: int) -> bool:
        """Return True if entries behind this one are somewhere in the rest of the file, and lead to its end."""
        following = batch_header(head).next_offset if head[16] == 2 else _START.unpack_from(head)[0] + 1
        pattern = _entries_from(following)
        at, tail, tries = self.at + 1, b"", 0
        while at < self._size:
            self._file.seek(at)
            if not (chunk := self._file.read(CHUNK_BYTES)):
                break
            data, first = tail + chunk, at - len(tail)
            match = pattern.search(data)
            while match is not None:
                entry = read_sound_entry(self._file, first + match.start(), self._size)
                if entry is not None and entry.base_offset >= following and self._leads_to_end(entry):
                    return True
                tries += 1
                if tries == _MOST_TRIES:
                    return False
                match = pattern.search(data, match.start() + 1)
            at, tail = at + len(chunk), data[-_MATCHED_BYTES + 1 :]
        return False

    def _leads_to_end(self, entry: StoredEntry) -> bool:
        """Return True if entry follows entry up to the end of the file. Those in a record's value do not."""
        at, least = entry.end, entry.next_offset
        while at < self._size:
            self._file.seek(at)
            head = self._file.read(HEAD_BYTES)
            if len(head) < HEAD_BYTES:
                break
            offset, length = _START.unpack_from(head)
            if offset < least or length < MIN_MESSAGE_LENGTH or head[16] > 2:
                return False
            at, least = at + 12 + length, offset + 1
        return True


def _entries_from(offset: int) -> re.Pattern[bytes]:
    """Return what the headers of entries look like, up to the magic, that have this offset or one not far behind it:
    a compressed message has the offset of its last record, and compaction leaves holes."""
    starts = sorted({(offset >> 24).to_bytes(5, "big"), (offset + (1 << 16) >> 24).to_bytes(5, "big")})
    too_small = b"\\0\\0\\0[\\0-\\x%02x]" % (MIN_MESSAGE_LENGTH - 1)
    return re.compile(
        b"(?:%s)...(?!%s)[\\0-\\x10].{7}[\\0-\\2]" % (b"|".join(map(re.escape, starts)), too_small), re.DOTALL
    )


def _impossible(head: memoryview, offset: int, size: int) -> tuple[ScanStop, str] | None:
    last = batch_header(head).last_offset if head[16] == 2 else offset
    if not 0 <= offset <= last < _MAX_OFFSET:
        return ScanStop.DAMAGED, f"an entry of offsets {offset} to {last}, which cannot be"
    if size > LARGEST_ENTRY:
        return ScanStop.DAMAGED, f"an entry of {size} bytes, where {LARGEST_ENTRY} are the limit"
    return None


def _message(at: int, size: int, head: memoryview) -> StoredEntry:
    offset, magic, attributes = _START.unpack_from(head)[0], head[16], head[HEAD_BYTES]
    time = _MESSAGE_TIME.unpack_from(head, 18)[0] if magic == 1 and len(head) >= 26 else NO_TIMESTAMP
    count = None if attributes & 7 else 1
    none = (NO_EPOCH, _NO_PRODUCER, -1, -1)
    return StoredEntry(at, size, magic, offset, offset, attributes, count, max(time, NO_TIMESTAMP), *none)


def read_entry(file: io.FileIO, entry: StoredEntry) -> memoryview:
    """Return the bytes of an entry; fewer if the file was truncated meanwhile."""
    file.seek(entry.at)
    return memoryview(file.read(entry.size))


def read_sound_entry(file: io.FileIO, at: int, size: int) -> StoredEntry | None:
    """Return the entry that starts at this byte, if one does, whole and with the right CRC."""
    if not 0 <= at <= size - HEAD_BYTES:
        return None
    file.seek(at)
    head = file.read(min(HEADER_BYTES, size - at))
    if len(head) < HEAD_BYTES or head[16] > 2:
        return None
    length = int.from_bytes(head[8:12], "big", signed=True)
    minimum = MIN_LENGTH if head[16] == 2 else MIN_MESSAGE_LENGTH
    if not minimum <= length <= min(size - at, LARGEST_ENTRY) - 12:
        return None
    entry = next(iter(EntryScan(file, at, at + 12 + length, 0)), None)
    if entry is None:
        return None
    data = read_entry(file, entry)
    return entry if len(data) == entry.size and end_of(data, 0, LARGEST_ENTRY)[1] else None
