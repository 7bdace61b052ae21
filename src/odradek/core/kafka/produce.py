"""Batches as bytes, and what the responses say about each of them (kafka-specification.md 3, 4.2, 4.4; KIP-467).

Pure. A batch is encoded once, in the record format of its broker; only if it then leaves on a connection to a broker of
another release is it encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from odradek.core.interfaces import PartitionBatch, PartitionResult, ProducerIdentity, ProducerRecord, Stamp
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.versions import BrokerVersions
from odradek.core.produce.batch import are_small, as_record
from odradek.core.produce.packed_records import EncodedRecords, PackedRecords
from odradek.engine import Headers, PackedBytes
from odradek.errors import MessageTooLarge, OdradekError, RemoteProtocolError, Unsupported
from odradek.types import NO_TIMESTAMP, Position, TopicPartition
from odradek.wire.compression import CompressionType, parse_compression
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.common import NodeEndpoint
from odradek.wire.kafka.messages.data import (
    PartitionProduceResponse,
    ProduceResponse,
)
from odradek.wire.kafka.records.encode import (
    TRANSACTIONAL,
    encode_batch,
    encode_message_set,
    encode_plain_batches,
    passed_on,
    with_producer,
)

__all__ = [
    "MAGIC_AT",
    "OnLeader",
    "batch_error",
    "bytes_for",
    "encode_into",
    "encode_small",
    "has_headers",
    "read_produce",
]

OnLeader = Callable[[TopicPartition, int, int, Sequence[NodeEndpoint]], object]
"""Function that is told of another leader of a partition: its id, its epoch, and addresses of brokers (KIP-951)."""

MAGIC_AT = 16
"""Index of the record format in an encoded batch or message set."""

_MAY_BE_WRITTEN = frozenset(
    {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
)
"""Errors after which the leader may have appended the batch, even if the response has no offset."""

_MAY_BE_DAMAGED = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD})
"""Errors by which brokers refuse a batch that is damaged inside, depending on their release."""

NOT_IDEMPOTENT = ProducerIdentity(-1, -1)
"""The identity in batches of a producer that has none."""

_NO_RECORD_ERRORS: Mapping[int, str] = {}
_new_result = tuple.__new__  # without a Python function that names the fields

_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def encode_into(batch: PartitionBatch, versions: BrokerVersions, max_message_bytes: int, now_ms: int) -> bytes:
    """Encode a batch in the record format of a broker - a record batch, or a message set - and return its bytes, which
    are its `encoded` from now on.

    Args:
        batch: The records, and how they are compressed.
        versions: The versions of the broker.
        max_message_bytes: Maximum size of one message that the broker accepts: of the whole batch where that is the
            unit (bytes).
        now_ms: The timestamp of records without one (ms since the epoch).

    Raises:
        MessageTooLarge: A message would be larger than the limit.
        LocalProtocolError, Unsupported: The broker's format has no place for what a record has.
    """
    compression, level, magic, stamp = CompressionType.NONE, None, versions.produce_magic, None
    records = batch.records
    if batch.compression != "none":
        compression, level = parse_compression(batch.compression)
        _check_compression(compression, versions)
    if type(records) is EncodedRecords and (magic != 2 or records.batch.compression != compression):
        records = records.decoded()
    if magic == 2:
        # A thread may encode the batch while it loses its stamp: what it is sent with is compared with this one then.
        stamp = batch.stamp
        producer_id, epoch, transactional_id, _ = NOT_IDEMPOTENT if stamp is None else stamp.producer
        base_sequence, is_transactional = -1 if stamp is None else stamp.base_sequence, transactional_id is not None
        data = b""
        if type(records) is EncodedRecords:
            stored = records.batch.data
            data = passed_on(stored, producer_id, epoch, base_sequence, is_transactional=is_transactional)
        # The columns of a list of records would take longer than everything else that is done with them.
        elif not compression and type(records) is list and records:
            data = _encode_list(records, stamp, now_ms)
        if not data:
            values, keys, headers, timestamps = _columns(records, now_ms)
            data = encode_batch(
                values,
                keys,
                headers,
                timestamps,
                compression=compression,
                level=level,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=base_sequence,
                is_transactional=is_transactional,
            )
        size = len(data)
    else:
        data = _encode_message_set(records, magic, compression, level, now_ms)
        size = len(data)  # no message of a set has more
        if size > max_message_bytes and not compression and len(records) > 1:
            size = _largest(records)
    if size > max_message_bytes:
        raise MessageTooLarge(str(batch.partition), -1, size, max_message_bytes, "max_message_bytes")
    batch.encoded, batch.encoded_stamp = data, stamp
    return data


def encode_small(
    batches: Sequence[PartitionBatch], versions: BrokerVersions, max_message_bytes: int, now_ms: int
) -> bool:
    """Encode small batches by one call of the engine, as `encode_into` does each. Arguments: as there.

    Returns:
        False: Nothing was encoded. They have to be encoded one by one, which also tells what is wrong with one of them.
    """
    if versions.produce_magic != 2 or not are_small(batches):
        return False
    runs, stamps = [], []
    for batch in batches:
        if type(batch.records) is not list:
            return False
        runs.append(batch.records)
        stamps.append(_stamp_fields(batch.stamp))
    encoded = encode_plain_batches(runs, stamps, now_ms)
    if encoded is None or max(map(len, encoded), default=0) > max_message_bytes:
        return False
    for batch, data in zip(batches, encoded, strict=True):
        batch.encoded, batch.encoded_stamp = data, batch.stamp
    return True


def bytes_for(batch: PartitionBatch, versions: BrokerVersions, max_message_bytes: int, now_ms: int) -> bytes:
    """Return the bytes of a batch for a connection that is about to send them; see `encode_into`.

    Bytes of an earlier attempt are used again if they have the format of that broker, with the stamp that the batch has
    now. Only format 2 has a place for it.
    """
    data, stamp, magic = batch.encoded, batch.stamp, versions.produce_magic
    if data is None or data[MAGIC_AT] != magic:
        return encode_into(batch, versions, max_message_bytes, now_ms)
    if magic == 2 and stamp is not None and stamp is not batch.encoded_stamp:
        data = with_producer(data, stamp.producer.producer_id, stamp.producer.epoch, stamp.base_sequence)
        batch.encoded, batch.encoded_stamp = data, stamp
    return data


def read_produce(
    response: ProduceResponse,
    batches: Sequence[PartitionBatch],
    *,
    address: str,
    topic_ids: Mapping[str, bytes],
    on_leader: OnLeader | None = None,
) -> list[PartitionResult]:
    """Return the result of each batch, in order.

    Args:
        response: The response.
        batches: The batches of the request.
        address: The broker's address, for errors.
        topic_ids: As they were requested.
        on_leader: Called with an answer that names another leader (KIP-951).
    """
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    answers: dict[tuple[str, int], PartitionProduceResponse] = {}
    for topic in response.responses:
        name = topic.name or names.get(topic.topic_id, "")
        for answered in topic.partition_responses:
            answers[name, answered.index] = answered
    results = []
    for batch in batches:
        partition = batch.partition
        answer = answers.get((partition.topic, partition.partition))
        if answer is not None and not answer.error_code:
            results.append(_written(partition, answer))
            continue
        results.append(_refused(batch, answer, f"{address}: produce to {partition}"))
        leader = None if answer is None else answer.current_leader
        if on_leader is not None and leader is not None and leader.leader_id >= 0:
            on_leader(partition, leader.leader_id, leader.leader_epoch, response.node_endpoints)
    return results


def _written(partition: TopicPartition, answer: PartitionProduceResponse) -> PartitionResult:
    position = None if answer.base_offset < 0 else Position(answer.base_offset)
    timestamp = None if answer.log_append_time_ms == NO_TIMESTAMP else answer.log_append_time_ms
    log_start = None if answer.log_start_offset < 0 else Position(answer.log_start_offset)
    return _new_result(PartitionResult, (partition, None, position, timestamp, log_start, _NO_RECORD_ERRORS))


def _refused(batch: PartitionBatch, answer: PartitionProduceResponse | None, context: str) -> PartitionResult:
    if answer is None:
        missing = RemoteProtocolError(f"{context}: the response has no such partition")
        return PartitionResult(batch.partition, missing)
    if answer.error_code in _MAY_BE_DAMAGED and isinstance(batch.records, EncodedRecords):
        damage = batch.records.damage()
        if damage is not None:
            return PartitionResult(batch.partition, damage)
    errors = {each.batch_index: each.batch_index_error_message or "" for each in answer.record_errors}
    said, only = answer.error_message or "", errors.get(0, "") if len(batch.records) == 1 else ""
    texts = (context, said, "" if only in said else only)  # from 4.0 on the one has the other
    error = batch_error(batch, answer.error_code, ": ".join(filter(None, texts)), len(batch.encoded or b""))
    # An error with an offset came after the append: the leader stopped leading, say, while it waited for its replicas.
    error.sent = answer.error_code in _MAY_BE_WRITTEN or answer.base_offset >= 0
    log_start = None if answer.log_start_offset < 0 else Position(answer.log_start_offset)
    return PartitionResult(batch.partition, error, None, None, log_start, errors)


def batch_error(batch: PartitionBatch, code: int, context: str, size: int) -> OdradekError:
    """Return the error of a batch of so many bytes that is answered with this code. If a part of it may be small
    enough, that is MessageTooLarge."""
    if code in _TOO_LARGE and len(batch.records) > 1:
        return MessageTooLarge(str(batch.partition), -1, size, size - 1, "max.message.bytes of the topic")
    error = broker_error(code, context)
    error.fatal = error.fence = False  # it is about this batch; what ends a producer, `BatchSequences` decides
    if code in _TOO_LARGE:
        error.hint = "raise max.message.bytes of the topic"
    elif code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
        error.hint = "topics whose message.format.version is older than 0.11 take no transactions and no headers"
    elif code == ErrorCode.UNKNOWN_SERVER_ERROR and has_headers(batch.records):
        error.hint = "the broker's log says why; topics whose message.format.version is older than 0.11 take no headers"
    return error


def has_headers(records: Sequence[bytes | ProducerRecord]) -> bool:
    """Return True if a record has headers. Records that came encoded are decoded for that, if they can be."""
    if isinstance(records, EncodedRecords):
        if records.damage() is not None:
            return False
        records = records.decoded()
    if isinstance(records, PackedRecords):
        return records.headers is not None
    return any(isinstance(each, ProducerRecord) and each.headers for each in records)


# ---- records ------------------------------------------------------------------------------------------------


def _stamp_fields(stamp: Stamp | None) -> tuple[int, int, int, int]:
    """Return attributes, producer id, producer epoch and base sequence of a batch with this stamp."""
    if stamp is None:
        return 0, -1, -1, -1
    producer_id, epoch, transactional_id, _ = stamp.producer
    return 0 if transactional_id is None else TRANSACTIONAL, producer_id, epoch, stamp.base_sequence


def _encode_list(records: Sequence[bytes | ProducerRecord], stamp: Stamp | None, now_ms: int) -> bytes:
    """Return a record batch, or nothing if a record has headers or does not fit into its fields."""
    encoded = encode_plain_batches([records], [_stamp_fields(stamp)], now_ms)
    return b"" if encoded is None else encoded[0]


def _encode_message_set(
    records: Sequence[bytes | ProducerRecord], magic: int, compression: CompressionType, level: int | None, now_ms: int
) -> bytes:
    values, keys, headers, timestamps = _columns(records, now_ms)
    if headers is not None:
        raise Unsupported("a header", "Kafka 0.11")
    times = timestamps if magic else None
    return encode_message_set(values, keys, times, magic=magic, compression=compression, level=level)


def _columns(
    records: Sequence[bytes | ProducerRecord], now_ms: int
) -> tuple[Sequence[bytes | None], Sequence[bytes | None] | None, Sequence[Headers] | None, Sequence[int]]:
    """Return values, keys, headers and timestamps; None for a column in which no record has anything."""
    if type(records) is PackedRecords:
        known = records.timestamps
        return records.values, records.keys, records.headers, [now_ms] * len(records) if known is None else known
    if type(records) is PackedBytes or set(map(type, records)) <= {bytes}:
        return records, None, None, [now_ms] * len(records)  # type: ignore[return-value]  # plain values, as just seen
    rows = [ProducerRecord(record) if type(record) is bytes else record for record in records]
    values, keys, headers, times = zip(*rows, strict=True)
    return (
        values,
        keys if keys.count(None) < len(keys) else None,
        [tuple(each) for each in headers] if any(headers) else None,
        [now_ms if time is None else time for time in times],
    )


def _largest(records: Sequence[bytes | ProducerRecord]) -> int:
    """Return the payload of the largest message of an uncompressed message set (bytes)."""
    return max(len(record.value or b"") + len(record.key or b"") for record in map(as_record, records))


def _check_compression(compression: CompressionType, versions: BrokerVersions) -> None:
    if compression is CompressionType.ZSTD and not versions.has_zstd:
        raise Unsupported("zstd", "Kafka 2.1")
    if compression is CompressionType.LZ4 and not versions.has_lz4:
        raise Unsupported("lz4", "Kafka 0.8.2")
