"""Segment files of any format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from odradek.core.interfaces import LogDecoder
from odradek.types import Columns, KiB, Position, TopicPartition

__all__ = ["CHUNK_BYTES", "Fault", "SegmentFile"]

CHUNK_BYTES = 128 * KiB
"""Bytes read at once. Measured: they stay in the processor's cache, and their memory comes from the allocator; memory
for chunks of 512 KiB and more is new from the kernel each time, at a third of the speed."""


class Fault(NamedTuple):
    """Damage in a log: in which file, at which position of the log, and what it is."""

    path: Path
    position: Position
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One segment file.

    Args:
        path: The file.
        partition: The log it belongs to; `broker` is -1, because files do not name it.
        start: Position of its first byte, according to its name.
        size: Bytes in the file when it was listed; bytes written later are not read.
    """

    path: Path
    partition: TopicPartition
    start: Position
    size: int

    @property
    def end(self) -> Position:
        """The position where the next segment starts."""
        return Position(self.start + self.size)

    def decode(self, decoder: LogDecoder, until: int, max_bytes: int) -> Iterator[Columns]:
        """Yield the rows between the decoder's position and `until`, about `max_bytes` at a time, or a chunk of the
        file. Raises the decoder's error after the rows before it."""
        size = min(CHUNK_BYTES, max_bytes)
        with self.path.open("rb", buffering=0) as file:
            end = min(until, self.end)
            while (left := end - decoder.fetch_position) > 0 and decoder.error is None:
                file.seek(decoder.fetch_position - self.start)  # which may be in the chunk that was read last
                if not (chunk := file.read(min(left, size))):
                    break
                decoder.feed(memoryview(chunk))
                if decoder.pending_bytes + size > max_bytes:
                    yield decoder.take()
        yield decoder.take()
        if decoder.error is not None:
            raise decoder.error
