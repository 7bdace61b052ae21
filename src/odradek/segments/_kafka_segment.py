"""One segment file of Kafka 0.8 and later: finding offsets in it, and its rows."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from odradek.errors import ConfigError, CorruptMessage, MessageTooLarge
from odradek.segments._files import CHUNK_BYTES, SegmentFile
from odradek.segments._indexes import OffsetIndex
from odradek.segments._scan import EntryScan, read_sound_entry
from odradek.types import Columns, Position
from odradek.wire.kafka.records.decoder import RecordDecoder

__all__ = ["KafkaSegment"]

log = logging.getLogger("odradek.segments")

_TRIED = 8  # entries of an index before it is not asked any more


@dataclass(frozen=True, slots=True)
class KafkaSegment(SegmentFile):
    """One segment file of Kafka 0.8 or later; `start` is an offset. `KafkaLog.end` is the end of its positions."""

    @property
    def end(self) -> Position:
        """The end, which its size does not give. Raises ConfigError."""
        raise ConfigError(
            f"{self.path}: a log of Kafka 0.8 or later, whose positions are offsets: what reads it here expects "
            "files of Kafka 0.7, whose positions are bytes"
        )

    def index(self, suffix: str) -> Path:
        """Return the path of its file with this suffix, which need not exist."""
        return self.path.with_suffix(suffix)

    def byte_before(self, file: io.FileIO, offset: int) -> int:
        """Return a byte at which a sound entry starts, at or before the one with this offset and near it, as far as its
        index helps; otherwise 0."""
        if offset <= self.start:
            return 0
        index = OffsetIndex(self.index(".index"), self.start)
        candidates = index.before(offset, _TRIED)
        for at in candidates:
            entry = read_sound_entry(file, at, self.size)
            if entry is not None and self.start <= entry.base_offset <= offset:
                return at
        if candidates and candidates[-1]:
            log.warning("%s: read from its beginning, because its index does not fit it", self.path)
        return 0

    def seek(self, file: io.FileIO, offset: int) -> int:
        """Return the byte at which the first entry starts that has this offset or a later one, or is damaged."""
        at = self.byte_before(file, offset)
        scan = EntryScan(file, at, self.size, self.start)
        for entry in scan:
            if entry.last_offset >= offset:
                return entry.at
        return scan.at

    def byte_behind(self, offset: int) -> int:
        """Return the byte behind the entry with the last offset before this one: what comes then is behind it, too. The
        size of the file, if the headers do not lead there. Raises OSError."""
        with io.FileIO(self.path) as file:
            for entry in EntryScan(file, self.byte_before(file, offset - 1), self.size, self.start):
                if entry.next_offset >= offset:
                    return entry.end
        return self.size

    def rows(self, decoder: RecordDecoder, end: int, stop: int, max_bytes: int) -> Iterator[Columns]:
        """Yield the rows from the decoder's position on, about `max_bytes` at a time, up to the offset `stop` or to
        the byte `end` of the file. Some may be behind `stop`, and columns may be empty.

        Raises:
            CorruptMessage: The decoder's error, or there is no whole entry where one must be, or one that is too large.
                Raised after the rows before it.
            OSError: The file cannot be read.
        """
        size = min(CHUNK_BYTES, max_bytes)
        with io.FileIO(self.path) as file:
            at = self.seek(file, decoder.position)
            file.seek(at)
            while at < end and decoder.error is None and decoder.fetch_position < stop:
                if not (chunk := file.read(min(end - at, size))):
                    break
                at += len(chunk)
                decoder.feed(memoryview(chunk))
                if decoder.at_filler or decoder.partial_size > decoder.partial_bytes + end - at:
                    break  # what follows cannot be found, and its length must not decide how much memory is taken
                if decoder.unread_bytes:
                    at -= decoder.unread_bytes
                    file.seek(at)
                if decoder.pending_bytes + size > max_bytes:
                    yield decoder.take()
        yield decoder.take()
        if isinstance(error := decoder.error, MessageTooLarge):
            raise CorruptMessage(str(decoder.partition), error.position, f"an entry of {error.size} bytes")
        if error is not None:
            raise error
        if decoder.fetch_position < stop and (decoder.partial_bytes or decoder.at_filler):
            what = "an entry at offset -1" if decoder.at_filler else "the file ends in the middle of an entry"
            raise CorruptMessage(str(decoder.partition), decoder.fetch_position, f"{self.path}: {what}")
