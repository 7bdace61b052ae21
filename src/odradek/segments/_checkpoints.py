"""Small files that a broker of Kafka 0.8 and later keeps beside its logs: checkpoints, ids, states of producers."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import NamedTuple

from odradek import engine
from odradek.types import MiB, TopicPartition

__all__ = ["LeaderEpoch", "LogFacts", "StoredProducerState", "read_facts", "read_snapshot"]

_MOST_BYTES = 64 * MiB  # of one of these files
_ENTRY = struct.Struct(">qhiqiqiq")
_HEAD = struct.Struct(">hI")
_VERSIONS = (1, 2)


class LeaderEpoch(NamedTuple):
    """The leader epoch that begins at an offset, from the file `leader-epoch-checkpoint` (0.11 and later)."""

    epoch: int
    start: int


class StoredProducerState(NamedTuple):
    """The state of a producer with an id: idempotent, or of transactions.

    Args:
        producer_id: Its id.
        epoch: Its epoch.
        last_sequence: The sequence number of its last record; -1 if there is none.
        last_offset: The offset of its last record.
        timestamp: That of its last batch (ms).
        open_since: The offset of the first record of its open transaction; None if there is none.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    timestamp: int
    open_since: int | None


class LogFacts(NamedTuple):
    """The facts that files beside a log state about it; None where there is no such file, or it cannot be read.

    Args:
        topic_id: The id of the topic (`partition.metadata`, 2.8 and later).
        leader_epochs: The epochs, in order (`leader-epoch-checkpoint`).
        log_start: The first offset that counts (`log-start-offset-checkpoint`, 1.0 and later).
        high_watermark: The offset behind what all replicas in sync had (`replication-offset-checkpoint`).
        recovery_point: The offset up to which the log was flushed (`recovery-point-offset-checkpoint`).
        cleaned: The offset up to which this replica was compacted (`cleaner-offset-checkpoint`).
        notes: Files that cannot be read, in words.
    """

    topic_id: str | None
    leader_epochs: tuple[LeaderEpoch, ...]
    log_start: int | None
    high_watermark: int | None
    recovery_point: int | None
    cleaned: int | None
    notes: tuple[str, ...]


def read_facts(directory: Path, partition: TopicPartition, *, is_replica: bool) -> LogFacts:
    """Return what the files in a log's directory state about it, and if it `is_replica` those in the directory that it
    is in: their offsets are those of the broker's replica of the partition, not of what is left of another one."""
    notes: list[str] = []

    def offset(name: str) -> int | None:
        if not is_replica:
            return None
        rows = _checkpoint(directory.parent / name, 3, notes)
        key = [partition.topic, str(partition.partition)]
        offsets = [int(row[2]) for row in rows if row[:2] == key]
        return offsets[-1] if offsets and offsets[-1] >= 0 else None

    epochs = [LeaderEpoch(int(epoch), int(start)) for epoch, start in _checkpoint(directory / _EPOCHS, 2, notes)]
    return LogFacts(
        _topic_id(directory / "partition.metadata", notes),
        tuple(epochs),
        offset("log-start-offset-checkpoint"),
        offset("replication-offset-checkpoint"),
        offset("recovery-point-offset-checkpoint"),
        offset("cleaner-offset-checkpoint"),
        tuple(notes),
    )


_EPOCHS = "leader-epoch-checkpoint"
_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def _text(path: Path, notes: list[str]) -> str | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        notes.append(f"{path}: ignored, because it cannot be read: {error}")
        return None


def _checkpoint(path: Path, fields: int, notes: list[str]) -> list[list[str]]:
    """Return the rows of a checkpoint: a version, a count, and as many lines."""
    text = _text(path, notes)
    if text is None or not text:
        return []
    version, count, *lines = [*text.split("\n"), "", ""]
    rows = [line.split(" ") for line in lines if line]
    # a topic of 0.8 cannot have a space in its name either
    good = all(len(row) == fields and all(map(_NUMBER.fullmatch, row[-2 if fields == 2 else -1 :])) for row in rows)
    if version.strip() != "0" or count.strip() != str(len(rows)) or not good:
        notes.append(f"{path}: ignored, because it is not a checkpoint of version 0 with as many lines as it says")
        return []
    return rows


def _topic_id(path: Path, notes: list[str]) -> str | None:
    text = _text(path, notes)
    if text is None:
        return None
    match = re.search(r"^topic_id: ?([A-Za-z0-9_-]{22})$", text, re.MULTILINE)
    if match is None or not re.search(r"^version: ?0$", text, re.MULTILINE):
        notes.append(f"{path}: ignored, because it does not hold a version 0 and a topic id")
        return None
    return match[1]


def read_snapshot(path: Path) -> list[StoredProducerState] | str:
    """Return the states of producers in a file `.snapshot`, or what is wrong with it, in words. Raises OSError."""
    with path.open("rb") as file:
        data = memoryview(file.read(_MOST_BYTES))
    start = _HEAD.size + 4
    if len(data) < start:
        return "too short"
    version, crc = _HEAD.unpack_from(data)
    if version not in _VERSIONS:
        return f"version {version}, which is not known"
    if engine.active.crc32c(data[_HEAD.size :]) != crc:
        return "CRC mismatch"
    count = int.from_bytes(data[_HEAD.size : start], "big", signed=True)
    if count < 0 or start + count * _ENTRY.size > len(data):
        return f"{count} entries, for which it is too short"
    states = []
    for at in range(start, start + count * _ENTRY.size, _ENTRY.size):
        producer, epoch, sequence, offset, _, time, _, first = _ENTRY.unpack_from(data, at)
        states.append(StoredProducerState(producer, epoch, sequence, offset, time, None if first < 0 else first))
    return states
