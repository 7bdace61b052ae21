"""Record batches: the format of magic 2, since 0.11 (kafka-specification.md 3.3)."""

import struct
from typing import NamedTuple

from odradek import engine
from odradek.engine import Buffer
from odradek.wire.compression import CompressionType, DecompressedTooLarge
from odradek.wire.kafka.records.compression import decompress

__all__ = [
    "HEADER_BYTES",
    "MIN_LENGTH",
    "MIN_RECORD_BYTES",
    "NO_EPOCH",
    "ROW_BYTES",
    "BatchHeader",
    "batch_header",
    "body_of",
    "control_type",
    "damage_of",
    "end_of_damaged",
    "epochs_of",
]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_START = struct.Struct(">qii")  # base offset, length and leader epoch
HEADER_BYTES = _HEADER.size
NO_EPOCH = -1
"""The leader epoch of what no leader has written yet."""
MIN_LENGTH = HEADER_BYTES - 12
"""The least a length field may say."""
MIN_RECORD_BYTES = 7
"""Bytes of a record without key, value and headers."""
_CRC_FROM = 21

ROW_BYTES = 64
"""Bytes that a record counts beyond its own in `max_decompressed_bytes`: about those of its row in the columns."""

_COMPRESSION, _APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 7, 8, 16, 32, 64


class BatchHeader(NamedTuple):
    """The header of a record batch, field by field."""

    base_offset: int
    length: int
    """Bytes behind this field."""
    leader_epoch: int
    magic: int
    crc: int
    """CRC-32C of everything behind it."""
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    """Start of the timestamp deltas (ms), or the delete horizon of a batch that has one."""
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record, also when that was compacted away."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """First offset that the next batch may have."""
        return self.last_offset + 1

    @property
    def compression(self) -> int:
        """A `CompressionType`, or a number that is none."""
        return self.attributes & _COMPRESSION

    @property
    def is_append_time(self) -> bool:
        """True: the broker set the timestamp of all records, `max_timestamp`."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """True: not for consumers; its record says how a transaction ended, or belongs to the brokers."""
        return bool(self.attributes & _CONTROL)

    @property
    def delete_horizon(self) -> int | None:
        """Time from which on compaction may remove the batch's tombstones or marker (ms), once that is decided."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None


def batch_header(entry: memoryview) -> BatchHeader:
    """Return the header of the batch at the start of a buffer, which has `HEADER_BYTES` at least."""
    return BatchHeader._make(_HEADER.unpack_from(entry))


def epochs_of(data: memoryview, start: int, end: int) -> list[tuple[int, int]]:
    """Return the leader epochs of the whole batches in `data[start:end]`, each with the base offset of the first batch
    that has it."""
    epochs: list[tuple[int, int]] = []
    previous = None
    while start < end:
        base_offset, length, epoch = _START.unpack_from(data, start)
        if epoch != previous:
            epochs.append((base_offset, epoch))
            previous = epoch
        start += 12 + length
    return epochs


def damage_of(batch: BatchHeader, entry: memoryview) -> str:
    """Return what is wrong with a whole batch, in words; "" when nothing is. Its records are not looked at."""
    if engine.active.crc32c(entry[_CRC_FROM:]) != batch.crc:
        return "CRC mismatch"
    if batch.compression > CompressionType.ZSTD:
        return f"unknown compression {batch.compression}"
    if batch.last_offset_delta < 0 or not 0 <= batch.base_offset <= (1 << 63) - 2 - batch.last_offset_delta:
        return f"offsets {batch.base_offset} to {batch.last_offset}, which cannot be"
    if batch.record_count < 0:
        return f"{batch.record_count} records"
    return ""


def end_of_damaged(batch: BatchHeader, position: int, max_decompressed_bytes: int) -> int:
    """Return the offset behind a batch whose header may be wrong.

    Its last offset counts where it is plausible: there are no more records than offsets, and no more offsets than
    records can ever have been in it, of which compaction has left some. Otherwise the damage would decide how many good
    records behind it are lost; so the end is one offset behind `position`, and every further fetch moves on by one.
    """
    maximum = max_decompressed_bytes // MIN_RECORD_BYTES
    if batch.base_offset >= 0 and 0 < batch.record_count <= batch.last_offset_delta + 1 <= maximum:
        return batch.next_offset
    return max(position, batch.base_offset) + 1


def body_of(batch: BatchHeader, entry: memoryview, max_bytes: int) -> Buffer:
    """Return the records of a batch, decompressed. Raises CompressionError."""
    if not batch.compression:
        return entry[HEADER_BYTES:]
    max_body = max(0, max_bytes - ROW_BYTES * batch.record_count)
    try:
        return decompress(batch.compression, entry[HEADER_BYTES:], max_body, magic=2)
    except DecompressedTooLarge:  # which names what the rows leave of the limit
        raise DecompressedTooLarge(f"grows beyond {max_bytes} bytes (max_decompressed_bytes)") from None


def control_type(batch: BatchHeader, body: Buffer) -> int | None:
    """Return the type of the control record of a control batch: 0 abort, 1 commit; None: it cannot be read."""
    records = engine.active.RecordBuilder()
    records.decode_batch(body, 0, len(body), min(batch.record_count, 1), 0, batch.last_offset_delta, 0, 0, False)
    keys = records.take().keys
    key = None if keys is None else keys[0]
    return None if key is None or len(key) < 4 else int.from_bytes(key[2:4], "big", signed=True)
