"""Administration of transactions of Kafka 2.8 or later: `core.admin_transactions.TransactionsAdmin`."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.core.admin import Results
from odradek.core.admin_transactions import ProducerDescription, TransactionDescription, TransactionListing
from odradek.core.kafka import admin_transactions as transactions
from odradek.io.gather import gather
from odradek.io.kafka.admin_requests import AdminRequests, each
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)

__all__ = ["KafkaTransactionsAdmin"]


class KafkaTransactionsAdmin:
    """Administration of transactions by requests (see `TransactionsAdmin`): to each broker, coordinators, leaders.

    Args:
        requests: Sends requests.
    """

    def __init__(self, requests: AdminRequests) -> None:
        self._requests = requests

    async def list_transactions(
        self, states: Sequence[str], producer_ids: Sequence[int], longer_than_s: float | None, pattern: str | None
    ) -> list[TransactionListing]:
        """Return transactional ids (see `TransactionsAdmin`): each broker lists those that it coordinates."""
        await self._requests.require(ListTransactionsRequest, "listing transactions", "Kafka 3.0")

        async def listed(broker: Broker) -> list[TransactionListing]:
            response = await self._requests.ask_broker(
                broker.id,
                ListTransactionsRequest,
                lambda v: transactions.list_transactions_request(states, producer_ids, longer_than_s, pattern, v),
                lambda response: [response.error_code],
            )
            return transactions.read_transactions(response, broker)

        lists = await gather(listed, await self._requests.brokers())
        return sorted(transaction for listing in lists for transaction in listing)

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> Results[str, TransactionDescription]:
        """Return transactions (see `TransactionsAdmin`)."""
        await self._requests.require(DescribeTransactionsRequest, "describing a transaction", "Kafka 3.0")

        async def describe(name: str) -> TransactionDescription:
            request = DescribeTransactionsRequest(transactional_ids=(name,))
            return await self._requests.ask_coordinator(
                name,
                DescribeTransactionsRequest,
                lambda v: request,
                lambda response, broker: transactions.read_transaction(response, name, broker),
                changes=False,
                kind=CoordinatorType.TRANSACTION,
            )

        return await each(transactional_ids, describe)

    async def describe_producers(
        self, partitions: Sequence[TopicPartition]
    ) -> Results[TopicPartition, Sequence[ProducerDescription]]:
        """Return the producers of partitions (see `TransactionsAdmin`)."""
        await self._requests.require(DescribeProducersRequest, "describing producers", "Kafka 2.8")
        await self._requests.read_topics_of(partitions)

        async def describe(partition: TopicPartition) -> Sequence[ProducerDescription]:
            return await self._requests.ask_leader(
                partition,
                DescribeProducersRequest,
                lambda v: transactions.producers_request(partition),
                lambda response: transactions.read_producers(response, partition),
                "describing producers of",
            )

        return await each(partitions, describe)

    async def abort_transaction(self, partition: TopicPartition, producer: ProducerDescription) -> None:
        """Write the marker that aborts a transaction (see `TransactionsAdmin`). It may be written twice."""
        await self._requests.require(WriteTxnMarkersRequest, "aborting a transaction", "Kafka 0.11")
        await self._requests.read_topics_of([partition])
        await self._requests.ask_leader(
            partition,
            WriteTxnMarkersRequest,
            lambda v: transactions.abort_request(partition, producer),
            lambda response: transactions.read_aborted(response, partition),
            "aborting a transaction in",
            changes=True,
        )
