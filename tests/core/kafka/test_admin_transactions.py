"""Requests about transactions, and what their responses mean."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.core.admin_transactions import ProducerDescription, TransactionDescription, TransactionListing
from odradek.core.kafka import admin_transactions as transactions
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.errors import BrokerError, ConfigError, RemoteProtocolError, Unsupported
from odradek.types import Broker, Position, TopicPartition
from odradek.wire.kafka.encode import encode
from odradek.wire.kafka.messages.transactions import (
    DescribeProducersPartition,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeTransactionsResponse,
    DescribeTransactionsTopicData,
    ListedTransaction,
    ListTransactionsResponse,
    ProducerState,
    TransactionState,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)

B1 = Broker(1, "h", 9092)
P3 = TopicPartition("t", 3)


@pytest.mark.parametrize(
    ("last", "arguments", "needs"),
    [
        (0, {}, ""),
        (0, {"longer_than_s": 1.5}, "3.8"),
        (1, {"longer_than_s": 1.5}, ""),
        (1, {"pattern": "a.*"}, "4.1"),
        (2, {"pattern": "a.*", "longer_than_s": 1.5}, ""),
    ],
)
def test_transactions_are_listed_by_what_brokers_can_compare(last: int, arguments: dict[str, Any], needs: str) -> None:
    conditions: dict[str, Any] = {"longer_than_s": None, "pattern": None, **arguments}
    versions = BrokerVersions({66: VersionRange(0, last)})
    if needs:
        with pytest.raises(Unsupported, match=needs):
            transactions.list_transactions_request(["Ongoing"], [7], versions=versions, **conditions)
        return
    request = transactions.list_transactions_request(["Ongoing"], [7], versions=versions, **conditions)
    assert (request.state_filters, request.producer_id_filters) == (("Ongoing",), (7,))
    assert request.duration_filter == (1500 if conditions["longer_than_s"] else -1)
    encode(request, last)


def test_a_list_has_the_broker_that_coordinates_each() -> None:
    listed = ListedTransaction(transactional_id="x", producer_id=7, transaction_state="Ongoing")
    response = ListTransactionsResponse(transaction_states=(listed,))
    assert transactions.read_transactions(response, B1) == [TransactionListing("x", 7, "Ongoing", 1)]
    with pytest.raises(BrokerError, match="h:9092"):
        transactions.read_transactions(ListTransactionsResponse(error_code=14), B1)
    with pytest.raises(ConfigError, match="do not know Nonsense"):
        transactions.read_transactions(ListTransactionsResponse(unknown_state_filters=("Nonsense",)), B1)


@pytest.mark.parametrize(("start_ms", "started"), [(1500, 1.5), (-1, None)])
def test_a_transaction_is_described(start_ms: int, started: float | None) -> None:
    state = TransactionState(
        transactional_id="x",
        transaction_state="Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=start_ms,
        producer_id=7,
        producer_epoch=2,
        topics=(DescribeTransactionsTopicData(topic="t", partitions=(3, 1)),),
    )
    response = DescribeTransactionsResponse(transaction_states=(state,))
    expected = TransactionDescription("x", "Ongoing", 7, 2, 60.0, started, (TopicPartition("t", 1), P3), B1)
    assert transactions.read_transaction(response, "x", B1) == expected
    with pytest.raises(RemoteProtocolError, match="'y'"):
        transactions.read_transaction(response, "y", B1)


def test_an_id_that_does_not_exist_is_an_error() -> None:
    state = TransactionState(transactional_id="x", error_code=105)
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        transactions.read_transaction(DescribeTransactionsResponse(transaction_states=(state,)), "x", B1)


def producers(*states: ProducerState, code: int = 0) -> DescribeProducersResponse:
    partition = DescribeProducersPartition(
        partition_index=3, error_code=code, error_message="why" if code else None, active_producers=states
    )
    return DescribeProducersResponse(topics=(DescribeProducersTopic(name="t", partitions=(partition,)),))


def test_producers_are_described_by_what_is_known_of_them() -> None:
    new = ProducerState(producer_id=8, producer_epoch=1, coordinator_epoch=-1)
    old = ProducerState(
        producer_id=7,
        producer_epoch=0,
        last_sequence=4,
        last_timestamp=1000,
        coordinator_epoch=2,
        current_txn_start_offset=0,
    )
    assert transactions.read_producers(producers(new, old), P3) == [
        ProducerDescription(7, 0, 4, 1000, 2, Position(0)),
        ProducerDescription(8, 1, None, None, None, None),
    ]
    with pytest.raises(BrokerError, match="why"):
        transactions.read_producers(producers(code=6), P3)
    with pytest.raises(RemoteProtocolError, match="t/4"):
        transactions.read_producers(producers(), TopicPartition("t", 4))
    (topic,) = transactions.producers_request(P3).topics
    assert (topic.name, topic.partition_indexes) == ("t", (3,))


@pytest.mark.parametrize(("known", "sent"), [(None, 0), (0, 0), (5, 5)])
def test_a_marker_has_the_epochs_that_the_partition_knows(known: int | None, sent: int) -> None:
    producer = ProducerDescription(7, 2, None, None, known, Position(0))
    (marker,) = transactions.abort_request(P3, producer).markers
    assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (7, 2, sent)
    assert marker.transaction_result is False
    assert [(topic.name, topic.partition_indexes) for topic in marker.topics] == [("t", (3,))]


def test_a_marker_is_written_or_has_an_error() -> None:
    def answer(code: int) -> WriteTxnMarkersResponse:
        partition = WritableTxnMarkerPartitionResult(partition_index=3, error_code=code)
        topic = WritableTxnMarkerTopicResult(name="t", partitions=(partition,))
        return WriteTxnMarkersResponse(markers=(WritableTxnMarkerResult(producer_id=7, topics=(topic,)),))

    transactions.read_aborted(answer(0), P3)
    with pytest.raises(BrokerError, match="INVALID_PRODUCER_EPOCH"):
        transactions.read_aborted(answer(47), P3)
    with pytest.raises(RemoteProtocolError, match="t/4"):
        transactions.read_aborted(answer(0), TopicPartition("t", 4))
