"""Administration of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from odradek.core.admin import Results
from odradek.types import Broker, Position, TopicPartition

__all__ = ["ProducerDescription", "TransactionDescription", "TransactionListing", "TransactionsAdmin"]


class TransactionListing(NamedTuple):
    """A transactional id in a list.

    Args:
        transactional_id: The name of its producer.
        producer_id: The number that its producer has now.
        state: `Ongoing`, `Empty`, `CompleteCommit` and so on.
        coordinator: Id of the broker that coordinates it.
    """

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The transaction of a transactional id.

    Args:
        transactional_id: The name of its producer.
        state: See `TransactionListing`.
        producer_id: The number that its producer has now.
        producer_epoch: Grows with every producer of this name.
        timeout_s: The coordinator aborts it after that (s).
        started: When it began (seconds since the epoch); None: none is open.
        partitions: What it has written to.
        coordinator: The broker that coordinates it.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_s: float
    started: float | None
    partitions: tuple[TopicPartition, ...]
    coordinator: Broker


class ProducerDescription(NamedTuple):
    """A producer with a number, such as one in transactions, as a partition knows it.

    Args:
        producer_id: Its number.
        producer_epoch: The epoch of its last batch.
        last_sequence: The sequence of its last record; None if there is none.
        last_timestamp: The time of its last batch (ms since the epoch); None if there is none.
        coordinator_epoch: The epoch of the coordinator that ended its last transaction; None if there was none.
        transaction_start: Where its open transaction begins in this partition; None if none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp: int | None
    coordinator_epoch: int | None
    transaction_start: Position | None


class TransactionsAdmin(Protocol):
    """Administration of transactions. Every method may raise Unsupported, TransportError and DeadlineError."""

    async def list_transactions(
        self, states: Sequence[str], producer_ids: Sequence[int], longer_than_s: float | None, pattern: str | None
    ) -> Sequence[TransactionListing]:
        """Return transactional ids, sorted."""
        ...

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> Results[str, TransactionDescription]:
        """Return the transactions of these ids."""
        ...

    async def describe_producers(
        self, partitions: Sequence[TopicPartition]
    ) -> Results[TopicPartition, Sequence[ProducerDescription]]:
        """Return the producers that partitions know."""
        ...

    async def abort_transaction(self, partition: TopicPartition, producer: ProducerDescription) -> None:
        """Write the marker that aborts the open transaction of a producer in a partition."""
        ...
