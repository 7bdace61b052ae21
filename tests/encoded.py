"""Record batches that nobody has decoded, as readers hand them over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.kafka_logs import with_crc

from odradek.core.interfaces import ProducerRecord
from odradek.types import Columns, EncodedBatch, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.encode import encode_batch
from odradek.wire.kafka.records.encoded import EncodedColumns

__all__ = ["encoded_columns", "encoded_of", "undecodable"]

SOURCE = TopicPartition("source", 2)


def encoded_of(data: bytes, records: int, compression: CompressionType, first_offset: int = 0) -> Columns:
    """Return the columns of a batch with these bytes."""
    batch = EncodedBatch(data, records, first_offset, compression, 9)
    return Columns.of(EncodedColumns(SOURCE, [batch], 1 << 26))


def encoded_columns(
    rows: Sequence[ProducerRecord],
    compression: CompressionType = CompressionType.LZ4,
    first_offset: int = 0,
    **options: Any,
) -> Columns:
    """Return the columns of a batch of these records, each of which has a timestamp."""
    values, keys, headers, times = zip(*rows, strict=True)
    data = encode_batch(
        values, keys, headers, times, compression=compression, base_offset=first_offset, producer_id=77, **options
    )
    return encoded_of(data, len(rows), compression, first_offset)


def undecodable(rows: int, compression: CompressionType = CompressionType.LZ4) -> Columns:
    """Return the columns of a batch that is damaged inside, although its CRC is right."""
    data = encode_batch([b"x" * 50] * rows, timestamps=[9] * rows, compression=compression)
    return encoded_of(with_crc(data[:61] + b"\xff" * 8 + data[69:]), rows, compression)
