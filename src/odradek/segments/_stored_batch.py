"""The header of a batch in a file, as users see it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

from odradek.core.kafka.read_committed import ABORT_MARKER, COMMIT_MARKER
from odradek.segments._scan import LARGEST_ENTRY, StoredEntry, read_entry
from odradek.segments._transactions import marker_of
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.entries import end_of

__all__ = ["StoredBatch", "stored_batch"]

_MARKERS = {ABORT_MARKER: "abort", COMMIT_MARKER: "commit", None: "unknown"}


class StoredBatch(NamedTuple):
    """The header of a batch of magic 2, or of a message of magic 0 or 1, in a file. A field that its format, or it,
    does not have is None.

    Args:
        path: The file.
        at: Byte of the file at which it starts.
        size: Its bytes.
        magic: 0, 1 or 2.
        base_offset: The first offset; of a message its own, which in a compressed one is that of the last inside.
        next_offset: The first offset that the next batch may have.
        compression: `none`, `gzip` and so on.
        record_count: Number of records; None for a compressed message.
        timestamp: The largest one (ms).
        timestamp_type: `create` or `append`.
        leader_epoch: That of the leader that wrote it.
        producer_id, producer_epoch, base_sequence, last_sequence: The stamp of an idempotent or transactional producer.
        is_transactional: True: part of a transaction.
        marker: The type of a control batch: `commit`, `abort`, or another type as a number; `unknown` if it is damaged.
        damage: "" if the CRC and the header are right, otherwise what is wrong.
    """

    path: Path
    at: int
    size: int
    magic: int
    base_offset: int
    next_offset: int
    compression: str
    record_count: int | None
    timestamp: int | None
    timestamp_type: str | None
    leader_epoch: int | None
    producer_id: int | None
    producer_epoch: int | None
    base_sequence: int | None
    last_sequence: int | None
    is_transactional: bool
    marker: str | None
    damage: str


def stored_batch(path: Path, file: io.FileIO, entry: StoredEntry) -> StoredBatch:
    """Return the header of an entry in an open file, and check its CRC. Raises OSError."""
    data = read_entry(file, entry)
    is_sound = len(data) == entry.size and end_of(data, 0, LARGEST_ENTRY)[1]
    has_producer = entry.producer_id >= 0
    marker = None
    if entry.is_control:
        kind = marker_of(file, entry)
        marker = _MARKERS.get(kind, str(kind))
    return StoredBatch(
        path,
        entry.at,
        entry.size,
        entry.magic,
        entry.base_offset,
        entry.next_offset,
        _compression(entry.compression),
        entry.record_count,
        _known(entry.max_timestamp),
        ("append" if entry.is_append_time else "create") if entry.magic else None,
        _known(entry.leader_epoch),
        entry.producer_id if has_producer else None,
        entry.producer_epoch if has_producer else None,
        _known(entry.base_sequence),
        _known(entry.last_sequence),
        entry.is_transactional,
        marker,
        "" if is_sound else "CRC mismatch",
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _compression(number: int) -> str:
    return CompressionType(number).name.lower() if number <= CompressionType.ZSTD else f"unknown {number}"
