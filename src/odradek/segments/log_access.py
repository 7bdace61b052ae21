"""Logs in directories as wholes: what `core.interfaces.LogAccess` is for brokers, without waiting for anything.

All functions raise OSError.
"""

from __future__ import annotations

import logging
from base64 import urlsafe_b64decode
from itertools import chain
from pathlib import Path

from odradek.core.interfaces import BYTES, RECORDS, DecoderOptions, Extent, LogDecoder, PositionUnit, SplitPoint
from odradek.core.kafka.list_offsets import time_ms
from odradek.segments import KafkaLog, SegmentedLog, SegmentFile, kafka, kafka07
from odradek.types import AtTime, MiB, Position, TopicPartition
from odradek.wire.kafka07.boundary import BoundarySearch
from odradek.wire.kafka07.entries import ParseStop, check_log
from odradek.wire.kafka07.message_set import MessageSetDecoder

__all__ = ["CHUNK", "boundary", "decoder", "extent", "position_at", "topic_id", "unit_in", "unit_of"]

log = logging.getLogger(__name__)

CHUNK = 4 * MiB
"""Decoded at a time (bytes)."""

TAIL = 4
"""Times the largest message: so far from its end the last segment is followed to where its last message ends."""


def unit_of(segmented: SegmentedLog) -> PositionUnit:
    """Return the unit of positions in a log."""
    return RECORDS if isinstance(segmented, KafkaLog) else BYTES


def unit_in(path: str) -> PositionUnit | None:
    """Return the unit of positions in the first segment that is met in a directory with logs, a log, or a file; None if
    there is none. No log is opened. Raises OSError."""
    start = Path(path)
    for file in chain([start], start.glob("*"), start.glob("*/*")):
        if file.suffix == kafka07.SUFFIX:
            return BYTES
        if file.suffix == kafka.SUFFIX and file.stem.isdigit():
            return RECORDS
    return None


def extent(segmented: SegmentedLog, max_entry_bytes: int, *, read_committed: bool = False) -> Extent:
    """Return the extent of a log: in 0.7 it ends where its last whole message ends, later where a broker would let
    consumers read to (see `SegmentedLog.extent`)."""
    if isinstance(segmented, KafkaLog):
        first, last = segmented.extent(read_committed=read_committed)
        return Extent(first, last, topic_id=topic_id(segmented))
    starts = tuple(segment.start for segment in segmented.segments)
    return Extent(segmented.start, _end(segmented, max_entry_bytes), starts, segmented.partition.broker)


def topic_id(segmented: SegmentedLog) -> str:
    """Return the id of a log's topic as in `Extent`; "" where brokers have noted none (before 2.8)."""
    noted = segmented.facts.topic_id if isinstance(segmented, KafkaLog) else None
    return urlsafe_b64decode(f"{noted}==").hex() if noted else ""


def position_at(segmented: SegmentedLog, at: AtTime, *, ending: bool = False) -> Position:
    """Return the position of a time; in 0.7 like a broker does, and it may be behind the end of the log, in what is
    torn there. Records of 0.8 and 0.9 have no time: their position is the end. Raises CorruptMessage, too."""
    if isinstance(segmented, KafkaLog):
        return segmented.position_at(time_ms(at))
    written = [segment for segment in segmented.segments if segment.path.stat().st_mtime <= at.seconds]
    newest = written[-1] if written else segmented.segments[0]
    return newest.end if ending and written else newest.start


def boundary(segmented: SegmentedLog, cut: SplitPoint, max_entry_bytes: int) -> int | None:
    """Return the first position at or after a cut that is proved to be where a message begins; None where that cannot
    be proved. Every offset is a boundary."""
    if isinstance(segmented, KafkaLog):
        return cut.position
    segment = next(segment for segment in segmented.segments if segment.end > cut.floor)
    return _search(segment, cut._replace(ceiling=min(cut.ceiling, segment.end)), max_entry_bytes)


def decoder(partition: TopicPartition, position: Position, options: DecoderOptions) -> LogDecoder:
    """Return a decoder for the bytes of a log from a position on."""
    return MessageSetDecoder(partition, position, options)


def _search(segment: SegmentFile, cut: SplitPoint, most: int, *, torn: bool = False) -> int | None:
    search = BoundarySearch(cut.position, floor=cut.floor, ceiling=cut.ceiling, most=most, torn=torn)
    with segment.path.open("rb", buffering=0) as file:
        while search.wanted is not None:
            start, stop = search.wanted
            file.seek(start - segment.start)
            search.feed(file.read(stop - start))
    if search.proved is None:
        log.info("%s: no boundary at %d: %s", cut.partition, cut.position, search.reason)
    return search.proved


def _end(segmented: SegmentedLog, most: int) -> Position:
    """Return where the last whole message ends: a file that is or was being written to ends anywhere.

    Only the end is looked at, if a boundary can be proved in front of it. Where a length makes no sense, the end is
    that of the file, so that the damage is met and not taken for an end.
    """
    segment = segmented.segments[-1]
    cut = SplitPoint(segmented.partition, max(segment.start, segment.end - TAIL * most), segment.start, segment.end)
    begin = _search(segment, cut, most, torn=True)
    at = segment.start if begin is None else begin
    with segment.path.open("rb", buffering=0) as file:
        file.seek(at - segment.start)
        tail = b""
        while chunk := file.read(min(CHUNK, segment.end - at - len(tail))):
            data = tail + chunk
            checked = check_log(data, at, most)
            tail, at = data[checked.position - at :], checked.position
            if checked.reason not in (ParseStop.END, ParseStop.CUT):
                return segment.end
    return Position(at)
