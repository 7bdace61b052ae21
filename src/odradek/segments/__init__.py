"""Segment files of a broker, read and verified without a broker: those of Kafka 0.7 to 4.x.

    from odradek import segments

    for batch in segments.open("/var/kafka/orders-0"):
        ...

A log is a directory `<topic>-<partition>` of files named after the position at which they start.

In 0.7 they are `<start position, 20 digits>.kafka`; each file holds the bytes that a fetch from its start would return,
and must end where the next one starts (specification.md 4.2). If the broker died while it wrote a file, that file may
end in the middle of a message: reading stops before such a torn tail without an error, because a broker's recovery cuts
it off; `verify` names it.

From 0.8 on they are `<first offset, 20 digits>.log`, in any mixture of the three record formats and of compressions.
Positions are offsets; holes between them are no damage. The last file may be torn as in 0.7, or end in zeros; any other
one that ends in the middle of an entry is damaged. Indexes beside them only make finding an offset or a time faster:
those that are missing or damaged are not used. `KafkaLog` describes what else the directory says.

Nothing is written or locked; a file that is still being written to may be read. Files are read, not mapped: a file that
is truncated meanwhile ends early, where a mapping would end the process.
"""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path

from odradek import arguments
from odradek.errors import ConfigError
from odradek.segments import kafka, kafka07
from odradek.segments._checkpoints import LeaderEpoch, LogFacts, StoredProducerState
from odradek.segments._files import Fault, SegmentFile
from odradek.segments._log import LogCheckResult, SegmentedLog
from odradek.segments._stored_batch import StoredBatch
from odradek.segments.kafka import KafkaLog, KafkaSegment
from odradek.types import Position, TopicPartition

__all__ = [
    "Fault",
    "KafkaLog",
    "KafkaSegment",
    "LeaderEpoch",
    "LogCheckResult",
    "LogFacts",
    "SegmentFile",
    "SegmentedLog",
    "StoredBatch",
    "StoredProducerState",
    "left_out",
    "logs",
    "open",
]

_DIRECTORY = re.compile(
    r"(?P<topic>.+)-(?P<partition>[0-9]+)(\.[0-9a-f]{32}-(?P<kind>delete|future|stray))?", re.DOTALL | re.ASCII
)
_KAFKA_FILE = re.compile(r"(?P<start>[0-9]+)\.log(\.(deleted|cleaned|swap))?", re.ASCII)
_SWAP = kafka.SUFFIX + kafka.SWAPPED

_PATH = arguments.path()


def open(path: str | PathLike[str]) -> SegmentedLog:
    """Open a log: the directory of a partition, or one segment file of it.

    The name of the directory gives topic and partition; a directory with another name is a topic of that name, with
    partition 0. A single file may have any name: one that ends in `.log` is of Kafka 0.8 or later, any other one of
    0.7; one that is not a number starts at position 0.

    Raises:
        ConfigError: No such file or directory; or a directory without segments, or with those of 0.7 and later ones,
            or with a segment whose name is not a number (a broker refuses such a directory, too). For a directory of
            many logs, see `logs`.
    """
    log: Path = _PATH("path", path)
    if log.is_dir():
        return _open_directory(log)
    partition = _partition(log.absolute().parent)
    if log.suffix == kafka.SUFFIX or _KAFKA_FILE.fullmatch(log.name):
        return KafkaLog(partition, (_kafka_segment(log, partition),), log.parent)
    start = int(log.stem) if _is_segment(log) else 0
    return SegmentedLog(partition, (SegmentFile(log, partition, Position(start), log.stat().st_size),))


def logs(path: str | PathLike[str]) -> list[SegmentedLog]:
    """Open all logs in a broker's directory (its `log.dir`), sorted by topic and partition. A path that `open` takes
    gives a list of that one log.

    Files, and directories without segments, are left out, and so are those that `left_out` names.

    Raises:
        ConfigError: As for `open`; or there are no logs.
    """
    directory: Path = _PATH("path", path)
    inside = [one for one in _logs_in(directory) if not _why_left_out(one)]
    if not inside or any(map(_is_broker_file, _segments_in(directory))):
        return [open(path)]
    return sorted(map(_open_directory, inside), key=lambda log: log.partition)


def left_out(path: str | PathLike[str]) -> list[str]:
    """Return the directories with segments that `logs` leaves out, each with the reason, in words: deleted topics,
    copies that were being moved, replicas that are not the broker's any more, and the brokers' own metadata. `open`
    opens them.

    Raises:
        ConfigError: No such file or directory.
    """
    directory: Path = _PATH("path", path)
    if directory.is_dir() and _segments_in(directory):
        return []
    return [f"{one}: left out: {why}" for one in sorted(_logs_in(directory)) if (why := _why_left_out(one))]


def _why_left_out(directory: Path) -> str | None:
    return kafka.kind_of(directory)


def _logs_in(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [one for one in directory.iterdir() if one.is_dir() and _DIRECTORY.fullmatch(one.name) and _segments_in(one)]


def _segments_in(directory: Path) -> list[Path]:
    return [file for file in directory.iterdir() if file.suffix in (kafka07.SUFFIX, kafka.SUFFIX) or _is_swap(file)]


def _is_swap(file: Path) -> bool:
    return file.name.endswith(_SWAP) and _KAFKA_FILE.fullmatch(file.name) is not None


def _open_directory(directory: Path) -> SegmentedLog:
    files = _segments_in(directory)
    if not any(map(_is_broker_file, files)):
        inside = len(_logs_in(directory))
        hint = f"; {inside} logs in its subdirectories: open one of them, or all with logs()" if inside else ""
        raise ConfigError(f"{directory}: no *{kafka07.SUFFIX} files and no *{kafka.SUFFIX} files of a log in it{hint}")
    for file in files:
        if not _is_numbered(file):
            raise ConfigError(f"{file}: a segment is named after its start position, and this name is not a number")
    partition = _partition(directory.absolute())
    old = [file for file in files if file.suffix == kafka07.SUFFIX]
    if old and len(old) < len(files):
        raise ConfigError(
            f"{directory}: has segments of Kafka 0.7 (*{kafka07.SUFFIX}) and of later ones (*{kafka.SUFFIX}): open the "
            "files by their names, or take those of one of them away"
        )
    if not old:
        return KafkaLog(
            partition, kafka.without_replaced([_kafka_segment(file, partition) for file in files]), directory
        )
    segments = [SegmentFile(file, partition, Position(int(file.stem)), file.stat().st_size) for file in files]
    return SegmentedLog(partition, tuple(sorted(segments, key=lambda segment: segment.start)))


def _kafka_segment(file: Path, partition: TopicPartition) -> KafkaSegment:
    match = _KAFKA_FILE.fullmatch(file.name)
    return KafkaSegment(file, partition, Position(int(match["start"]) if match else 0), file.stat().st_size)


def _is_numbered(file: Path) -> bool:
    return _is_segment(file) or _is_swap(file)


def _is_broker_file(file: Path) -> bool:
    """Return True unless a file may be one of the `*.log` files that other programs write."""
    return file.suffix == kafka07.SUFFIX or _is_numbered(file)


def _is_segment(file: Path) -> bool:
    return file.suffix in (kafka07.SUFFIX, kafka.SUFFIX) and file.stem.isascii() and file.stem.isdigit()


def _partition(directory: Path) -> TopicPartition:
    match = _DIRECTORY.fullmatch(directory.name)
    if match is None:
        return TopicPartition(directory.name, 0)
    return TopicPartition(match["topic"], int(match["partition"]))
