"""One request to Produce and its response: batches out, in the versions of the session; a result for each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from odradek.core.interfaces import PartitionBatch, PartitionResult
from odradek.core.kafka.produce import MAGIC_AT, OnLeader, bytes_for, read_produce
from odradek.engine import Buffer
from odradek.errors import RemoteProtocolError
from odradek.io.kafka.connection import MAX_RESPONSE_BYTES, KafkaConnection
from odradek.io.kafka.handshake import Session
from odradek.wire.kafka.headers import decode_response, encode_request
from odradek.wire.kafka.messages.data import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from odradek.wire.kafka.responses import WholeFrameDecoder
from odradek.wire.kafka.schema import ZERO_UUID

__all__ = ["ProduceContext", "ProduceExchange"]

NO_TOPIC_IDS: Mapping[str, bytes] = {}


@dataclass(frozen=True, slots=True)
class ProduceContext:
    """Facts that all Produce requests to one broker share.

    Args:
        address: The broker's address, for errors.
        connection: The connection to that broker.
        timeout_ms: How long the leader waits for its replicas (ms).
        max_message_bytes: The largest batch for encoding again on another release's connection (bytes).
        now_ms: Returns the timestamp of records that have none (ms since the epoch).
        topic_ids: Returns the ids of topics; all zero for those whose id is not known.
        on_leader: Told of leaders that responses name.
    """

    address: str
    connection: KafkaConnection
    timeout_ms: int
    max_message_bytes: int
    now_ms: Callable[[], int]
    topic_ids: Callable[[set[str]], Mapping[str, bytes]]
    on_leader: OnLeader


class ProduceExchange(WholeFrameDecoder):
    """One request to Produce: encodes it when it leaves (`io.requests.RequestEncoder`), and decodes its response to the
    results of its batches (`io.requests.ResponseDecoder`).

    Args:
        context: See `ProduceContext`.
        batches: At most one of each partition, all of one producer.
        acks: -1, 1 or 0; with 0 there is no response.
    """

    api_name = "Produce"
    _max_bytes = MAX_RESPONSE_BYTES  # all that the base class needs

    def __init__(self, context: ProduceContext, batches: Sequence[PartitionBatch], acks: int) -> None:
        self._context, self._batches, self._acks = context, batches, acks
        self._response: ProduceResponse | None = None
        self._version = self._correlation_id = -1
        self._stamp = batches[0].stamp if batches else None
        self._topic_ids = NO_TOPIC_IDS
        self._transactions_v2 = self._stamp is not None and self._stamp.producer.transactions_v2
        if self._transactions_v2:
            # Produce itself adds partitions to a transaction from version 12 on (KIP-890), and names topics by id from
            # 13 on (KIP-516). Other producers stay with the versions that name topics.
            self._topic_ids = context.topic_ids({batch.partition.topic for batch in batches})
        self.size = 0
        for batch in batches:
            self.size += len(batch.encoded or b"")

    @property
    def version(self) -> int:
        """The version that was chosen; -1 before."""
        return self._version

    def encode(self, session: Session) -> tuple[Sequence[Buffer], ProduceExchange | None]:
        """Choose the version, and encode; return no decoder if there will be no response."""
        context, versions, stamp, ids = self._context, session.versions, self._stamp, self._topic_ids
        connection = context.connection
        self._version = versions.version(
            ProduceRequest,
            topic_ids=ids.values() if self._transactions_v2 else None,
            transactions_v2=self._transactions_v2,
        )
        self._correlation_id = connection.next_correlation_id()
        topics: dict[str, list[PartitionProduceData]] = {}
        magic = versions.produce_magic
        for batch in self._batches:
            topic, index, _ = batch.partition
            data = batch.encoded
            if data is None or data[MAGIC_AT] != magic or batch.encoded_stamp is not batch.stamp:
                data = bytes_for(batch, versions, context.max_message_bytes, context.now_ms())
            topics.setdefault(topic, []).append(PartitionProduceData(index=index, records=data))
        request = ProduceRequest(
            transactional_id=None if stamp is None else stamp.producer.transactional_id,
            acks=self._acks,
            timeout_ms=context.timeout_ms,
            topic_data=tuple(
                [
                    TopicProduceData(name=name, topic_id=ids.get(name, ZERO_UUID), partition_data=tuple(partitions))
                    for name, partitions in topics.items()
                ]
            ),
        )
        buffers = encode_request(request, self._version, self._correlation_id, connection.client_id)
        return buffers, self if self._acks else None

    def result(self) -> Sequence[PartitionResult]:
        """Return the result of each batch, in order, once `done`."""
        response, context = self._response, self._context
        assert response is not None, "the response is not complete"
        if response.throttle_time_ms > 0:
            context.connection.honour_throttle(ProduceRequest, self._version, response.throttle_time_ms)
        return read_produce(
            response, self._batches, address=context.address, topic_ids=self._topic_ids, on_leader=context.on_leader
        )

    def _decode(self, frame: bytes) -> None:
        self._response, correlation_id = decode_response(ProduceResponse, self._version, frame)
        if correlation_id != self._correlation_id:
            raise RemoteProtocolError(f"Produce: correlation id {correlation_id}, expected {self._correlation_id}")
