"""Another implementation reads what we write, and we read what it writes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from tests.wire.kafka.records.reading import read

from odradek.wire.compression import CompressionType
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set

with warnings.catch_warnings():  # of its own imports
    warnings.simplefilter("ignore")
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.legacy_records import LegacyRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords

pytestmark = pytest.mark.usefixtures("either_engine")

VALUES = [b"one", None, b"", b"three" * 300]
KEYS = [None, b"key", b"", b"k" * 200]
TIMES = [1_600_000_000_000, 1_600_000_000_001, 1_599_999_999_999, 1_600_000_000_002]
HEADERS: list[tuple[tuple[str, bytes | None], ...]] = [(), (("a", b"1"), ("a", None)), (), (("\N{SNOWMAN}", b""),)]
CODECS = [CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY]  # what it needs no further package for


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


@pytest.mark.parametrize("codec", [*CODECS, CompressionType.ZSTD])
def test_record_batches_are_the_same_to_kafka_python(codec: CompressionType) -> None:
    data = encode_batch(VALUES, KEYS, HEADERS, TIMES, compression=codec, base_offset=7)
    rows = list(zip(range(7, 11), TIMES, KEYS, VALUES, HEADERS, strict=True))
    assert theirs(data) == rows

    builder = DefaultRecordBatchBuilder(2, int(codec), True, 9, 1, 5, 1 << 20)
    for offset, (time, key, value, headers) in enumerate(zip(TIMES, KEYS, VALUES, HEADERS, strict=True)):
        builder.append(offset, time, key, value, list(headers))
    written = bytes(builder.build())
    assert [(row[0] + 7, row[1], *row[3:]) for row in read(written).rows] == rows
    if not codec:
        options = {"producer_id": 9, "producer_epoch": 1, "base_sequence": 5, "is_transactional": True}
        ours = encode_batch(VALUES, KEYS, HEADERS, TIMES, **options)  # type: ignore[arg-type]
        assert ours[:12] + bytes(4) + ours[16:] == written  # its leader epoch is 0


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", CODECS)
def test_message_sets_are_the_same_to_kafka_python(magic: int, codec: CompressionType) -> None:
    times = TIMES if magic else None
    data = encode_message_set(VALUES, KEYS, times, magic=magic, compression=codec)
    rows = [(offset, TIMES[offset] if magic else None, KEYS[offset], VALUES[offset], ()) for offset in range(4)]
    assert theirs(data) == rows

    builder = LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)
    for offset, (time, key, value) in enumerate(zip(TIMES, KEYS, VALUES, strict=True)):
        builder.append(offset, timestamp=time if magic else None, key=key, value=value)
    ours = [(row[0], row[1] if magic else None, *row[3:]) for row in read(bytes(builder.build())).rows]
    assert ours == rows
