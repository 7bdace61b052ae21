"""Log directories of 0.7 as a source: finding the logs, how far they go, and reading ranges of them. No broker needed.

Files may be written to meanwhile. How far a log goes is decided once, when it is found; its last file may end in the
middle of a message, which is then left out as a broker's recovery would cut it off (specification 4.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from odradek import segments
from odradek.batch import Batch
from odradek.core.interfaces import DecoderOptions
from odradek.errors import ConfigError, CorruptMessage
from odradek.segments import Log, Segment
from odradek.spark.boundary import BoundarySearch, Proved, Unproved, check_landing
from odradek.spark.options import Directories, Directory, Topics
from odradek.spark.planning import Cut, Extent, Range
from odradek.types import MiB, Position, TopicPartition
from odradek.wire.kafka07.entries import check_length
from odradek.wire.kafka07.message_set import SetDecoder

__all__ = ["at_time", "extent", "find_boundary", "find_logs", "read_range"]

CHUNK_BYTES = 1 * MiB

Logs = dict[TopicPartition, Log]


# ---- finding -------------------------------------------------------------------------------------------------


def find_logs(where: Directories, topics: Topics) -> Logs:
    """The logs that are to be read, in canonical order.

    Raises:
        ConfigError: A place without logs; a log that is in two places; a topic or partition that was asked for by name
            and is in none; segments that do not join.
        OSError: A directory cannot be read.
    """
    found: Logs = {}
    for place in where.places:
        for log in _logs_of(place):
            if (other := found.get(log.partition)) is not None:
                both = " and ".join(str(each.segments[0].path.parent) for each in (other, log))
                raise ConfigError(f"{log.partition} is in {both}: say which broker each belongs to, as in 0@/a,1@/b")
            found[log.partition] = log
    wanted = {partition: found[partition] for partition in topics.of(sorted(found))}
    if missing := topics.missing(found):
        raise ConfigError(f"there is no log of {', '.join(missing)} in {', '.join(p.path for p in where.places)}")
    for log in wanted.values():
        _check_joints(log)
    return wanted


def _logs_of(place: Directory) -> Iterator[Log]:
    paths = [Path(place.path)]
    if not paths[0].exists() and set(place.path) & set("*?["):
        pattern = paths[0].absolute().relative_to("/")
        paths = sorted(path for path in Path("/").glob(str(pattern)) if path.is_dir())
        if not paths:
            raise ConfigError(f"{place.path}: matches no directory")
    for path in paths:
        logs = [path] if _is_log(path) else sorted(child for child in path.iterdir() if _is_log_of_broker(child))
        if not logs:
            raise ConfigError(f"{path}: neither a log nor a directory of logs (topic-0/00000000000000000000.kafka)")
        yield from (_with_broker(segments.open(log), place.broker) for log in logs)


def _is_log(path: Path) -> bool:
    if not path.is_dir():
        raise ConfigError(f"{path}: no such directory")
    return any(path.glob("*.kafka"))


def _is_log_of_broker(path: Path) -> bool:
    """Brokers skip stray files in their log.dir, too (specification 4.5)."""
    topic, dash, number = path.name.rpartition("-")
    return bool(topic and dash and number.isascii() and number.isdigit()) and path.is_dir() and _is_log(path)


def _with_broker(log: Log, broker: int) -> Log:
    partition = log.partition._replace(broker=broker)
    return Log(partition, tuple(replace(segment, partition=partition) for segment in log.segments))


def _check_joints(log: Log) -> None:
    for one, following in pairwise(log.segments):
        if one.end != following.start:
            raise ConfigError(f"{one.path} ends at {one.end}, but the next segment starts at {following.start}")


# ---- how far a log goes --------------------------------------------------------------------------------------


def extent(log: Log, max_entry: int) -> Extent:
    """What a log has. Its end is that of its last whole message; looking for it reads 1 to 3 MiB."""
    starts = tuple(int(segment.start) for segment in log.segments)
    return Extent(starts[0], _whole_end(log.segments[-1], max_entry), starts)


def at_time(log: Log, extent: Extent, seconds: float, *, now: float) -> Position:
    """The newest known place not after a moment, as brokers answer (specification 4.1): a segment's start counts as
    written when its file was last written, and the end now. The earliest place when there is none.

    Args:
        log: The log.
        extent: What it has.
        seconds: The moment, as `time.time()` gives it.
        now: This moment.
    """
    if seconds >= now:
        return Position(extent.latest)
    old = [segment.start for segment in log.segments if segment.path.stat().st_mtime <= seconds]
    return Position(old[-1] if old else extent.earliest)


def _whole_end(segment: Segment, max_entry: int) -> int:
    """Where the last whole message of a file ends. The file's end, if what is there is not the beginning of one: who
    reads it is to see the damage."""
    place = int(segment.start)
    cut = max(segment.end - max_entry, place)
    with segment.path.open("rb", buffering=0) as file:
        found = _search(file, segment, BoundarySearch(cut, floor=place, ceiling=segment.end, most=max_entry, torn=True))
        if isinstance(found, Proved):
            place = found.position
        while place < segment.end:
            file.seek(place - segment.start)
            head = file.read(5)
            length = int.from_bytes(head[:4], "big", signed=True)
            if len(head) >= 4 and check_length(length, max_entry, head[4:]):
                return segment.end
            if len(head) < 4 or place + 4 + length > segment.end:
                return place
            place += 4 + length
    return place


def find_boundary(log: Log, cut: Cut, max_entry: int) -> int | None:
    """A boundary for a proposed cut, or None if none can be proved. Raises OSError."""
    segment = next(segment for segment in reversed(log.segments) if segment.start <= cut.floor)
    with segment.path.open("rb", buffering=0) as file:
        search = BoundarySearch(cut.position, floor=cut.floor, ceiling=cut.ceiling, most=max_entry)
        found = _search(file, segment, search)
    return found.position if isinstance(found, Proved) else None


def _search(file: BinaryIO, segment: Segment, search: BoundarySearch) -> Proved | Unproved | None:
    while (wanted := search.wanted) is not None:
        file.seek(wanted[0] - segment.start)
        search.feed(file.read(wanted[1] - wanted[0]))
    return search.result


# ---- reading -------------------------------------------------------------------------------------------------


def read_range(
    log: Log, part: Range, options: DecoderOptions, skipped: Callable[[CorruptMessage], None]
) -> Iterator[Batch]:
    """The messages of a range, some hundred thousand bytes at a time.

    Args:
        log: The log it is a range of.
        part: The range.
        options: How messages are decoded.
        skipped: Called with what is wrong with each message left out (`options.corrupt == "skip"`).

    Raises:
        CorruptMessage, MessageTooLarge: A message cannot be decoded, after all before it were yielded.
        BoundaryMismatch: The range, or a segment in it, does not end where a message does.
        OSError: A file cannot be read.
    """
    decoder = SetDecoder(part.partition, Position(part.start), options)
    for segment in log.segments:
        stop = min(part.end, segment.end)
        if decoder.position < stop:
            for chunk in _chunks(segment, decoder.position, stop):
                decoder.feed(memoryview(chunk))
                columns = decoder.take()
                if len(columns.values):
                    yield Batch(part.partition, columns)
                for report in decoder.take_reports():
                    skipped(report)
                if decoder.error is not None:
                    raise decoder.error
            check_landing(part.partition, part.start, stop, decoder.position)
    check_landing(part.partition, part.start, part.end, decoder.position)


def _chunks(segment: Segment, start: int, stop: int) -> Iterable[bytes]:
    with segment.path.open("rb", buffering=0) as file:
        file.seek(start - segment.start)
        while start < stop and (chunk := file.read(min(stop - start, CHUNK_BYTES))):
            start += len(chunk)
            yield chunk
