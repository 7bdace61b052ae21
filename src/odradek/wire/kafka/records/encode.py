"""Record sets for Produce, in any of the three formats (kafka-specification.md 3.2 to 3.4)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

from odradek import engine
from odradek.engine import Headers
from odradek.errors import LocalProtocolError
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.compression import compress

__all__ = [
    "TRANSACTIONAL",
    "encode_batch",
    "encode_message_set",
    "encode_plain_batches",
    "passed_on",
    "with_producer",
]

_CRC_AT, _ATTRIBUTES_AT, _PRODUCER_AT = 17, 21, 43
_NO_LEADER_EPOCH = b"\xff\xff\xff\xff"
_PRODUCER = struct.Struct(">qhi")
_CONTROL = 32

TRANSACTIONAL = 16
"""The attribute of a batch that is part of a transaction."""

Strings = Sequence[bytes | None]


def encode_batch(
    values: Strings,
    keys: Strings | None = None,
    headers: Sequence[Headers] | None = None,
    timestamps: Sequence[int] | None = None,
    *,
    compression: CompressionType = CompressionType.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    base_offset: int = 0,
) -> bytes:
    """Return one record batch of magic 2.

    Args:
        values: Lists or `PackedBytes`; None is a tombstone.
        keys: As many, or None: no record has one.
        headers: As many, or None: no record has any.
        timestamps: In ms since the epoch; None: the records have none.
        compression: How the records are compressed together.
        level: The level of that; None: the usual one.
        producer_id: From InitProducerId; -1: not idempotent.
        producer_epoch: From InitProducerId.
        base_sequence: The sequence number of the first record.
        is_transactional: Part of a transaction.
        is_control: Records of the brokers themselves: markers.
        base_offset: 0, unless a log is written.

    Raises:
        LocalProtocolError: There is no record, or the batch or a field of it is too large for the format.
    """
    _check_count(values)
    attributes = compression | (TRANSACTIONAL if is_transactional else 0) | (_CONTROL if is_control else 0)
    packer = partial(compress, compression, level=level, magic=2) if compression else None
    producer = producer_id, producer_epoch, base_sequence
    try:
        return engine.active.encode_batch(values, keys, headers, timestamps, attributes, base_offset, *producer, packer)
    except OverflowError as error:
        raise _too_large(error) from None


def encode_plain_batches(
    runs: Sequence[Sequence[Any]], stamps: Sequence[tuple[int, int, int, int]], now_ms: int
) -> list[bytes] | None:
    """Return one record batch of magic 2 for each run of records, not compressed: the same bytes as `encode_batch`
    makes of it, for a fraction of what a small batch costs.

    Args:
        runs: At least one record each: payloads, or tuples of value, key, headers and timestamp.
        stamps: The attributes, producer id, producer epoch and base sequence of each run.
        now_ms: The timestamp of records without one (ms since the epoch).

    Returns:
        None if a record has headers, or a value does not fit into its field: encode the runs one by one.
    """
    try:
        return engine.active.encode_batches(runs, stamps, now_ms)
    except (OverflowError, TypeError):
        return None


def with_producer(batch: bytes, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """Return a record batch of magic 2 with another producer and sequence; itself if it has these already."""
    producer = _PRODUCER.pack(producer_id, producer_epoch, base_sequence)
    if batch[_PRODUCER_AT : _PRODUCER_AT + _PRODUCER.size] == producer:
        return batch
    return _with_fields(batch[:_CRC_AT], batch[_ATTRIBUTES_AT:_PRODUCER_AT] + producer, batch)


def passed_on(
    batch: bytes, producer_id: int, producer_epoch: int, base_sequence: int, *, is_transactional: bool
) -> bytes:
    """Return a record batch of magic 2 that was read from a log as one for Produce. Its records are not looked at.

    Args:
        batch: A batch of a producer, without gaps (`encoded.can_stay_encoded`).
        producer_id: The producer that sends it now; see `encode_batch`, also for what follows.
        producer_epoch: Its epoch.
        base_sequence: The sequence number of the first record.
        is_transactional: Part of a transaction of that producer.
    """
    head = bytes(8) + batch[8:12] + _NO_LEADER_EPOCH + batch[16:_CRC_AT]
    attributes = int.from_bytes(batch[_ATTRIBUTES_AT : _ATTRIBUTES_AT + 2], "big") & ~TRANSACTIONAL
    attributes |= TRANSACTIONAL if is_transactional else 0
    producer = _PRODUCER.pack(producer_id, producer_epoch, base_sequence)
    fields = attributes.to_bytes(2, "big") + batch[_ATTRIBUTES_AT + 2 : _PRODUCER_AT] + producer
    return _with_fields(head, fields, batch)


def _with_fields(head: bytes, fields: bytes, batch: bytes) -> bytes:
    """Return a record batch with other fields up to the sequence, and the CRC that this gives."""
    rest = memoryview(batch)[_PRODUCER_AT + _PRODUCER.size :]
    crc = engine.active.crc32c(rest, engine.active.crc32c(fields))
    return b"".join((head, crc.to_bytes(4, "big"), fields, rest))


def encode_message_set(
    values: Strings,
    keys: Strings | None = None,
    timestamps: Sequence[int] | None = None,
    *,
    magic: int = 1,
    compression: CompressionType = CompressionType.NONE,
    level: int | None = None,
) -> bytes:
    """Return a message set of magic 0 (0.8 and 0.9) or 1 (0.10); compressed, it is one message around the others.

    Args:
        values: Lists or `PackedBytes`; None is a tombstone.
        keys: As many, or None: no message has one.
        timestamps: In ms since the epoch; None: the messages have none. Magic 0 has no field for them.
        magic: 0 or 1.
        compression: How the messages are compressed together; zstd needs magic 2.
        level: The level of that; None: the usual one.

    Raises:
        LocalProtocolError: There is no message, or the format does not have what is asked for.
    """
    _check_count(values)
    if magic not in (0, 1) or compression is CompressionType.ZSTD or (timestamps is not None and not magic):
        what = f"magic {magic} with codec {compression.name.lower()}{' and timestamps' if timestamps else ''}"
        raise LocalProtocolError(f"there is no message set of {what}: use encode_batch, or leave them out")
    try:
        messages = engine.active.encode_messages(values, keys, timestamps, magic)
        if not compression:
            return messages
        wrapped = [compress(compression, messages, level, magic=magic)]
        latest = [max(timestamps)] if timestamps else None
        return engine.active.encode_messages(wrapped, None, latest, magic, compression, len(values) - 1)
    except OverflowError as error:
        raise _too_large(error) from None


def _check_count(values: Strings) -> None:
    if not len(values):
        raise LocalProtocolError("a batch needs at least one record: leave a partition without any out")


def _too_large(error: Exception) -> LocalProtocolError:
    return LocalProtocolError(f"a length, timestamp or number of the batch does not fit into its field: {error}")
