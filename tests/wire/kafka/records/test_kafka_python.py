"""Another implementation reads what we write, and we read what it writes."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
from tests.wire.kafka.records.reading import read

from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set

with warnings.catch_warnings():  # of its own imports; importlib, because it has no types
    warnings.simplefilter("ignore")
    DefaultRecordBatchBuilder = importlib.import_module("kafka.record.default_records").DefaultRecordBatchBuilder
    LegacyRecordBatchBuilder = importlib.import_module("kafka.record.legacy_records").LegacyRecordBatchBuilder
    MemoryRecords = importlib.import_module("kafka.record.memory_records").MemoryRecords

pytestmark = pytest.mark.usefixtures("either_engine")

VALUES = [b"one", None, b"", b"three" * 300]
KEYS = [None, b"key", b"", b"k" * 200]
TIMES = [1_600_000_000_000, 1_600_000_000_001, 1_599_999_999_999, 1_600_000_000_002]
HEADERS: list[tuple[tuple[str, bytes | None], ...]] = [(), (("a", b"1"), ("a", None)), (), (("\N{SNOWMAN}", b""),)]
COMPRESSIONS = [
    CompressionType.NONE,
    CompressionType.GZIP,
    CompressionType.SNAPPY,
]


def theirs(data: bytes) -> list[tuple[Any, ...]]:
    """Return what kafka-python reads."""
    rows, records = [], MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        for record in batch:
            headers = tuple((name, value) for name, value in record.headers or ())
            rows.append((record.offset, record.timestamp, record.key, record.value, headers))
    return rows


@pytest.mark.parametrize("compression", [*COMPRESSIONS, CompressionType.ZSTD])
def test_record_batches_are_the_same_to_kafka_python(compression: CompressionType) -> None:
    data = encode_batch(VALUES, KEYS, HEADERS, TIMES, compression=compression, base_offset=7)
    rows = list(zip(range(7, 11), TIMES, KEYS, VALUES, HEADERS, strict=True))
    assert theirs(data) == rows

    builder = DefaultRecordBatchBuilder(2, int(compression), True, 9, 1, 5, 1 << 20)
    for offset, (time, key, value, headers) in enumerate(zip(TIMES, KEYS, VALUES, HEADERS, strict=True)):
        builder.append(offset, time, key, value, list(headers))
    written = bytes(builder.build())
    assert [(row[0] + 7, row[1], *row[3:]) for row in read(written).rows] == rows
    if not compression:
        options = {"producer_id": 9, "producer_epoch": 1, "base_sequence": 5, "is_transactional": True}
        ours = encode_batch(VALUES, KEYS, HEADERS, TIMES, **options)  # type: ignore[arg-type]
        assert ours[:12] + bytes(4) + ours[16:] == written  # its leader epoch is 0


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_message_sets_are_the_same_to_kafka_python(magic: int, compression: CompressionType) -> None:
    times = TIMES if magic else None
    data = encode_message_set(VALUES, KEYS, times, magic=magic, compression=compression)
    rows = [(offset, TIMES[offset] if magic else None, KEYS[offset], VALUES[offset], ()) for offset in range(4)]
    assert theirs(data) == rows

    builder = LegacyRecordBatchBuilder(magic, int(compression), 1 << 20)
    for offset, (time, key, value) in enumerate(zip(TIMES, KEYS, VALUES, strict=True)):
        builder.append(offset, timestamp=time if magic else None, key=key, value=value)
    ours = [(row[0], row[1] if magic else None, *row[3:]) for row in read(bytes(builder.build())).rows]
    assert ours == rows
