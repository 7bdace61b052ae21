"""What aiokafka and librdkafka (confluent-kafka) write we read, and they read what we write."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.wire.kafka.records.reading import read

from odradek.wire.compression import CompressionType
from odradek.wire.kafka.headers import decode_response, encode_request
from odradek.wire.kafka.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from odradek.wire.kafka.records.encode import encode_batch, encode_message_set
from odradek.wire.kafka.schema import R_co, Request, response_of

# importlib, because it has no types
DefaultRecordBatchBuilder = importlib.import_module("aiokafka.record.default_records").DefaultRecordBatchBuilder
LegacyRecordBatchBuilder = importlib.import_module("aiokafka.record.legacy_records").LegacyRecordBatchBuilder
MemoryRecords = importlib.import_module("aiokafka.record.memory_records").MemoryRecords

VALUES = [b"one", None, b"", b"three" * 300]
KEYS = [None, b"key", b"", b"k" * 200]
TIMES = [1_600_000_000_000, 1_600_000_000_001, 1_599_999_999_999, 1_600_000_000_002]
HEADERS: list[tuple[tuple[str, bytes | None], ...]] = [(), (("a", b"1"), ("a", None)), (), (("\N{SNOWMAN}", b""),)]
ROWS = list(zip(range(4), TIMES, KEYS, VALUES, HEADERS, strict=True))


# ---- aiokafka ----


def read_by_aiokafka(data: bytes) -> list[tuple[Any, ...]]:
    rows, records = [], MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            headers = tuple(record.headers or ())
            rows.append((record.offset, record.timestamp, record.key, record.value, headers))
    return rows


@pytest.mark.usefixtures("either_engine")
@pytest.mark.parametrize("compression", CompressionType)
def test_record_batches_are_the_same_to_aiokafka(compression: CompressionType) -> None:
    assert read_by_aiokafka(encode_batch(VALUES, KEYS, HEADERS, TIMES, compression=compression)) == ROWS

    builder = DefaultRecordBatchBuilder(2, int(compression), True, 9, 1, 5, 1 << 20)
    for offset, time, key, value, headers in ROWS:
        assert builder.append(offset, time, key, value, list(headers)) is not None
    written = bytes(builder.build())
    reading = read(written)
    assert (reading.error, [(row[0], row[1], *row[3:]) for row in reading.rows]) == ((), ROWS)
    if not compression:
        ours = encode_batch(
            VALUES, KEYS, HEADERS, TIMES, producer_id=9, producer_epoch=1, base_sequence=5, is_transactional=True
        )
        assert ours == written


@pytest.mark.usefixtures("either_engine")
@pytest.mark.parametrize(
    ("magic", "compression"),  # aiokafka has no lz4 for magic 0
    [*((0, compression) for compression in list(CompressionType)[:3]), *((1, c) for c in list(CompressionType)[:4])],
)
def test_message_sets_are_the_same_to_aiokafka(magic: int, compression: CompressionType) -> None:
    times = TIMES if magic else None
    rows = [(offset, time if magic else None, key, value, ()) for offset, time, key, value, _ in ROWS]
    data = encode_message_set(VALUES, KEYS, times, magic=magic, compression=compression)
    assert read_by_aiokafka(data) == rows

    builder = LegacyRecordBatchBuilder(magic, int(compression), 1 << 20)
    for offset, time, key, value, _ in ROWS:
        assert builder.append(offset, timestamp=time if magic else None, key=key, value=value) is not None
    reading = read(bytes(builder.build()))
    assert [(row[0], row[1] if magic else None, *row[3:]) for row in reading.rows] == rows


# ---- librdkafka, with its broker for tests ----


class MockBroker:
    """A broker inside of librdkafka: it stores what is produced as it came, and gives it back."""

    def __init__(self, **options: str) -> None:
        self.producer = Producer({"test.mock.num.brokers": 1, "linger.ms": 5000, "log_level": 0, **options})
        (broker,) = self.producer.list_topics(timeout=30).brokers.values()
        self.address = broker.host, broker.port

    def call(self, request: Request[R_co], version: int) -> R_co:
        """Send a request of ours, and return the response."""
        with socket.create_connection(self.address, timeout=30) as connection:
            connection.sendall(b"".join(encode_request(request, version, 1)))
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            return decode_response(response_of(type(request)), version, connection.recv(size, socket.MSG_WAITALL))[0]

    def fetch(self, topic: str, offset: int = 0) -> bytes:
        """Return record bytes of partition 0, of one batch at least."""
        partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        topics = (FetchTopic(topic=topic, partitions=(partition,)),)
        request = FetchRequest(max_wait_ms=5000, min_bytes=1, max_bytes=1 << 20, topics=topics)
        (data,) = self.call(request, 11).responses[0].partitions
        assert data.error_code == 0 and data.records is not None
        return bytes(data.records)

    def produce(self, topic: str, records: bytes) -> None:
        """Send record bytes to partition 0."""
        topics = (TopicProduceData(name=topic, partition_data=(PartitionProduceData(index=0, records=records),)),)
        response = self.call(ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics), 7)
        assert response.responses[0].partition_responses[0].error_code == 0

    def consume(self, topic: str, count: int) -> list[tuple[Any, ...]]:
        """Return what librdkafka's consumer reads."""
        servers = "{}:{}".format(*self.address)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g", "check.crcs": True, "log_level": 0})
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            messages = consumer.consume(count, timeout=30)
            return [(m.offset(), m.timestamp()[1], m.key(), m.value(), tuple(m.headers() or ())) for m in messages]
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    broker = MockBroker()
    yield broker
    broker.producer.flush(10)


@pytest.mark.parametrize("compression", CompressionType)
def test_librdkafka_reads_the_batches_we_write(
    compression: CompressionType, broker: MockBroker, either_engine: str
) -> None:
    topic = f"ours-{compression.name}-{either_engine}"
    broker.producer.list_topics(topic, timeout=30)
    batches = [encode_batch(VALUES, KEYS, HEADERS, TIMES, compression=compression) for _ in range(2)]
    for batch in batches:
        broker.produce(topic, batch)
    assert broker.consume(topic, 8) == [*ROWS, *((offset + 4, *rest) for offset, *rest in ROWS)]


@pytest.mark.usefixtures("either_engine")
@pytest.mark.parametrize("compression", CompressionType)
def test_we_read_the_batches_that_librdkafka_writes(compression: CompressionType) -> None:
    broker = MockBroker(**{"compression.type": compression.name.lower()})
    for _, time, key, value, headers in ROWS:
        broker.producer.produce("theirs", value, key, 0, timestamp=time, headers=list(headers))
    assert broker.producer.flush(30) == 0
    data = broker.fetch("theirs")
    while (end := read(data).rows[-1][0] + 1) < len(ROWS):  # librdkafka decides how many batches it makes
        data += broker.fetch("theirs", end)
    reading = read(data)
    assert (reading.error, [(row[0], row[1], *row[3:]) for row in reading.rows]) == ((), ROWS)
