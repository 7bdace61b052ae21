"""Requests about transactions, and what responses say. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.core.admin_transactions import ProducerDescription, TransactionDescription, TransactionListing
from odradek.core.kafka.admin_topics import item_error, known
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import ConfigError, RemoteProtocolError, Unsupported
from odradek.types import Broker, Position, TopicPartition
from odradek.wire.kafka.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

__all__ = [
    "abort_request",
    "list_transactions_request",
    "producers_request",
    "read_aborted",
    "read_producers",
    "read_transaction",
    "read_transactions",
]


def list_transactions_request(
    states: Sequence[str],
    producer_ids: Sequence[int],
    longer_than_s: float | None,
    pattern: str | None,
    versions: BrokerVersions,
) -> ListTransactionsRequest:
    """Return the request for transactional ids. Raises Unsupported for conditions that the broker is too old for."""
    if longer_than_s is not None and not versions.has(ListTransactionsRequest, 1):
        raise Unsupported("listing transactions by their age", "Kafka 3.8")
    if pattern is not None and not versions.has(ListTransactionsRequest, 2):
        raise Unsupported("listing transactions by a pattern", "Kafka 4.1")
    return ListTransactionsRequest(
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
        duration_filter=-1 if longer_than_s is None else int(longer_than_s * 1000),
        transactional_id_pattern=pattern,
    )


def read_transactions(response: ListTransactionsResponse, broker: Broker) -> list[TransactionListing]:
    """Return the transactional ids of a broker. Raises BrokerError; ConfigError if it does not know a state."""
    if response.error_code:
        raise broker_error(response.error_code, f"{broker.address}: ListTransactions")
    if response.unknown_state_filters:
        raise ConfigError(f"states: brokers do not know {', '.join(response.unknown_state_filters)}")
    return [
        TransactionListing(each.transactional_id, each.producer_id, each.transaction_state, broker.id)
        for each in response.transaction_states
    ]


def read_transaction(response: DescribeTransactionsResponse, name: str, coordinator: Broker) -> TransactionDescription:
    """Return the transaction of an id. Raises BrokerError, also if there is no such id."""
    state = next((each for each in response.transaction_states if each.transactional_id == name), None)
    if state is None:
        raise RemoteProtocolError(f"DescribeTransactions: the response says nothing about {name!r}")
    if error := item_error(state.error_code, None, f"transactional id {name!r}"):
        raise error
    started = state.transaction_start_time_ms
    return TransactionDescription(
        name,
        state.transaction_state,
        state.producer_id,
        state.producer_epoch,
        state.transaction_timeout_ms / 1000,
        started / 1000 if started >= 0 else None,
        tuple(sorted(TopicPartition(topic.topic, n) for topic in state.topics for n in topic.partitions)),
        coordinator,
    )


def producers_request(partition: TopicPartition) -> DescribeProducersRequest:
    """Return the request for the producers of a partition."""
    topic = DescribeProducersTopicRequest(name=partition.topic, partition_indexes=(partition.partition,))
    return DescribeProducersRequest(topics=(topic,))


def read_producers(response: DescribeProducersResponse, partition: TopicPartition) -> list[ProducerDescription]:
    """Return the producers of a partition. Raises BrokerError."""
    for topic in response.topics:
        for each in topic.partitions:
            if (topic.name, each.partition_index) == (partition.topic, partition.partition):
                if error := item_error(each.error_code, each.error_message, f"producers of {partition}"):
                    raise error
                return sorted(map(_producer, each.active_producers), key=lambda producer: producer.producer_id)
    raise RemoteProtocolError(f"DescribeProducers: the response says nothing about {partition}")


def _producer(state: ProducerState) -> ProducerDescription:
    start = state.current_txn_start_offset
    return ProducerDescription(
        state.producer_id,
        state.producer_epoch,
        known(state.last_sequence),
        known(state.last_timestamp),
        known(state.coordinator_epoch),
        Position(start) if start >= 0 else None,
    )


def abort_request(partition: TopicPartition, producer: ProducerDescription) -> WriteTxnMarkersRequest:
    """Return the request to write the marker that aborts a transaction. Brokers compare the epoch of the coordinator
    with that of the last marker; there is none before the first one (KIP-664)."""
    topic = WritableTxnMarkerTopic(name=partition.topic, partition_indexes=(partition.partition,))
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=producer.coordinator_epoch or 0,
    )
    return WriteTxnMarkersRequest(markers=(marker,))


def read_aborted(response: WriteTxnMarkersResponse, partition: TopicPartition) -> None:
    """Raise the error of the marker, if there is one."""
    for topic in [topic for marker in response.markers for topic in marker.topics]:
        for each in topic.partitions:
            if (topic.name, each.partition_index) == (partition.topic, partition.partition):
                if error := item_error(each.error_code, None, f"aborting a transaction in {partition}"):
                    raise error
                return
    raise RemoteProtocolError(f"WriteTxnMarkers: the response says nothing about {partition}")
