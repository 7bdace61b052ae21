"""Level-one entries of a message set, one at a time, not decompressed (specification.md 2.1).

The runs of `odradek.engine` are the fast path for ordinary messages; this is the slow path, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from odradek import engine
from odradek.engine import NO_LIMIT, Buffer

__all__ = [
    "LogCheck",
    "LogEntry",
    "ParseStop",
    "Scan",
    "ScanEnd",
    "check_length",
    "check_log",
    "entry_at",
    "entry_size",
    "head_bytes",
    "is_wrapper",
    "make_entry",
    "read_entry",
    "scan",
]


class LogEntry(NamedTuple):
    """One entry with a plausible length. After an unknown magic, `payload` is all the rest."""

    position: int
    size: int
    magic: int
    attributes: int
    crc_ok: bool
    head: bytes | memoryview
    payload: bytes | memoryview

    @property
    def compression(self) -> int:
        """Attribute bits 0-1; 3 is a compression type that does not exist."""
        return self.attributes & 3

    @property
    def end(self) -> int:
        """The position where the next entry starts."""
        return self.position + self.size

    @property
    def raw(self) -> bytes:
        """The whole entry, as it is in the log."""
        return b"".join((self.head, self.payload))

    @property
    def damage(self) -> str:
        """The reason why it cannot be decoded, or an empty string. A compressed payload is not decompressed to tell."""
        if self.magic not in (0, 1):
            return f"unknown magic {self.magic}"
        if not self.crc_ok:
            return "CRC mismatch"
        return "unknown compression type 3" if self.compression == 3 else ""


class ParseStop(Enum):
    """The reason why no further entry could be read."""

    END = "nothing is left"
    CUT = "the last entry is incomplete"
    NEGATIVE = "negative length"
    SHORT = "length too small for a message"
    HEADER = "length 5 is too small for magic 1"
    TOO_LARGE = "larger than the limit"

    @property
    def hopeless(self) -> bool:
        """True if the length itself makes no sense, so that no entry after it can be located."""
        return self in (ParseStop.NEGATIVE, ParseStop.SHORT, ParseStop.HEADER)


class ScanEnd(NamedTuple):
    """The end of a scan: its position and reason."""

    position: int
    reason: ParseStop


class Scan(Iterator[LogEntry]):
    """The level-one entries of a buffer. `end` is None until the iteration is over."""

    def __init__(self, data: Buffer, position: int, max_bytes: int) -> None:
        self._data = memoryview(data)
        self._base = position
        self._next = 0
        self._max_bytes = max_bytes
        self.end: ScanEnd | None = None

    def __next__(self) -> LogEntry:
        entry = read_entry(self._data, self._next, self._base, self._max_bytes)
        if isinstance(entry, ParseStop):
            self.end = ScanEnd(self._base + self._next, entry)
            raise StopIteration
        self._next += entry.size
        return entry


def scan(data: Buffer, position: int = 0, max_bytes: int = NO_LIMIT) -> Scan:
    """Iterate over the level-one entries of a buffer without decompressing or copying them.

    Entries with a bad CRC, magic or compression type are included (see `LogEntry.damage`). The iteration stops at the
    end, at an incomplete entry, and at an impossible length; `Scan.end` says which.

    Args:
        data: Log bytes; the entries' payloads are views into it.
        position: The log position of the first byte of `data`.
        max_bytes: Stop before an entry that is larger, its head included (bytes).
    """
    return Scan(data, position, max_bytes)


class LogCheck(NamedTuple):
    """The result of `check_log`: the last whole entry ends at `position`, no entry follows it because of `reason`, and
    the entries before it are `sound`."""

    position: int
    reason: ParseStop
    sound: bool


def check_log(data: Buffer, position: int = 0, max_bytes: int = NO_LIMIT) -> LogCheck:
    """Check magic, CRC and compression type of every entry, like a scan to its end. Wrappers are not decompressed.

    Args:
        data: Log bytes.
        position: The log position of the first byte of `data`.
        max_bytes: Stop before an entry that is larger, its head included (bytes).
    """
    view = memoryview(data)
    at, sound = 0, True
    while True:
        at, _ = engine.active.check_run(data, at, len(view), max_bytes)
        entry = read_entry(view, at, position, max_bytes)
        if isinstance(entry, ParseStop):
            return LogCheck(position + at, entry, sound)
        sound = sound and not entry.damage
        at += entry.size


def check_length(length: int, max_bytes: int, magic: Buffer = b"") -> ParseStop | None:
    """Return why a length field is impossible, as far as can be told without the rest of the entry; None: it is not.

    Args:
        length: The value of the field.
        max_bytes: Limit for the whole entry, its length field included.
        magic: The byte after it, if it has been received.
    """
    if length < 0:
        return ParseStop.NEGATIVE
    if length < 5:
        return ParseStop.SHORT
    if length == 5 and magic == b"\1":
        return ParseStop.HEADER
    return ParseStop.TOO_LARGE if length + 4 > max_bytes else None


def entry_size(data: memoryview, start: int, max_bytes: int = NO_LIMIT) -> int | ParseStop:
    """Return the bytes of the entry at index `start`, or why there is none. A bad length counts before a cut end: more
    bytes would not help.

    Args:
        data: Log bytes.
        start: Index in `data`.
        max_bytes: Limit for the whole entry.
    """
    left = len(data) - start
    if left < 4:
        return ParseStop.CUT if left else ParseStop.END
    length = int.from_bytes(data[start : start + 4], "big", signed=True)
    if bad := check_length(length, max_bytes, data[start + 4 : start + 5]):
        return bad
    return ParseStop.CUT if left < 4 + length else 4 + length


def read_entry(data: memoryview, start: int, base: int = 0, max_bytes: int = NO_LIMIT) -> LogEntry | ParseStop:
    """Return the entry at index `start`, or why there is none (see `entry_size`). `base`: the position of `data[0]`."""
    size = entry_size(data, start, max_bytes)
    return size if isinstance(size, ParseStop) else entry_at(data, start, size, base)


def entry_at(data: memoryview, start: int, size: int, base: int = 0) -> LogEntry:
    """Return the entry at index `start`, with the size that `entry_size` returned."""
    body = start + head_bytes(data[start + 4])
    return make_entry(base + start, data[start:body], data[body : start + size])


def is_wrapper(head: Buffer) -> bool:
    """Return True if an entry that starts with these 6 bytes or more is compressed, according to its head."""
    return head[4] == 1 and head[5] & 3 != 0


def head_bytes(magic: int) -> int:
    """Return the bytes of an entry before its payload; with an unknown magic, those up to the magic."""
    return 9 + magic if magic < 2 else 5


def make_entry(position: int, head: bytes | memoryview, payload: bytes | memoryview) -> LogEntry:
    """Return an entry made of its two parts, with its CRC checked."""
    magic, size = head[4], len(head) + len(payload)
    crc_ok = magic < 2 and engine.active.crc32(payload) == int.from_bytes(head[-4:], "big")
    return LogEntry(position, size, magic, head[5] if magic == 1 else 0, crc_ok, head, payload)
