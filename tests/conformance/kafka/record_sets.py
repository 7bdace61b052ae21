"""Record sets as the corpus writes them down, and as our decoder reads them."""

from __future__ import annotations

from typing import Any

from odradek.core.interfaces import DecoderOptions
from odradek.types import Columns, Position, TopicPartition
from odradek.wire.kafka.records.batch import batch_header
from odradek.wire.kafka.records.decoder import RecordDecoder

__all__ = ["Row", "decoded_records", "expected_records", "headers_of", "recorded_headers", "rows_of"]

Batches = list[dict[str, Any]]
Row = tuple[Any, ...]

TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def decoded_records(data: bytes, options: DecoderOptions | None = None) -> tuple[RecordDecoder, list[Row]]:
    decoder = RecordDecoder(TopicPartition("t", 0), Position(0), options or DecoderOptions())
    decoder.feed(memoryview(data))
    return decoder, rows_of(decoder.take())


def rows_of(columns: Columns) -> list[Row]:
    """Return a tuple for each record: offset, timestamp, its type, key, value, headers."""
    rows = len(columns.values)
    return list(
        zip(
            columns.positions,
            columns.timestamps if columns.timestamps is not None else [-1] * rows,
            columns.timestamp_types if columns.timestamp_types is not None else [-1] * rows,
            columns.keys if columns.keys is not None else [None] * rows,
            columns.values,
            columns.headers if columns.headers is not None else [()] * rows,
            strict=True,
        )
    )


def expected_records(batches: Batches) -> list[Row]:
    """Return the recorded rows of all batches that consumers are shown, like `rows_of`."""
    return [row for batch in batches if not batch.get("isControl") for row in _rows(batch)]


def _rows(batch: dict[str, Any]) -> list[Row]:
    return [
        (
            record["offset"],
            record["timestamp"],
            TYPES[batch.get("timestampType", "NoTimestampType")],
            _bytes(record["key"]),
            _bytes(record["value"]),
            tuple((name, _bytes(value)) for name, value in record["headers"]),
        )
        for record in batch["records"]
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


FIELDS = {
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "nextOffset": "next_offset",
    "partitionLeaderEpoch": "leader_epoch",
    "attributes": "attributes",
    "crc": "crc",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
    "isControl": "is_control",
    "isTransactional": "is_transactional",
    "maxTimestamp": "max_timestamp",
    "deleteHorizonMs": "delete_horizon",
    "count": "record_count",
}


def recorded_headers(batches: Batches) -> list[Row]:
    """Return what was recorded of the header of each batch of magic 2."""
    return [tuple(batch[name] for name in FIELDS) for batch in batches if batch["magic"] == 2]


def headers_of(data: bytes, batches: Batches) -> list[Row]:
    """Return the headers that stand where the batches of magic 2 were recorded, like `recorded_headers`."""
    positions = [batch["position"] for batch in batches if batch["magic"] == 2]
    headers = [batch_header(memoryview(data)[position:]) for position in positions]
    return [tuple(getattr(header, name) for name in FIELDS.values()) for header in headers]
