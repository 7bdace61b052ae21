"""Writing: records, batches with their results, and the decisions of a driver about batches that are refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from odradek.engine import BatchBase
from odradek.errors import OdradekError
from odradek.types import Position, TopicPartition

__all__ = [
    "SEQUENCES",
    "AnsweringBrokerPolicy",
    "PartitionBatch",
    "PartitionResult",
    "ProducerIdentity",
    "ProducerRecord",
    "ProducerSequences",
    "RefusalPolicy",
    "Stamp",
    "next_sequence",
]


class ProducerRecord(NamedTuple):
    """One record to be written.

    Args:
        value: Its payload; None (a tombstone) where the protocol has null values, which 0.7 has not.
        key: Chooses the partition; 0.7 does not store it.
        headers: Names and values; from Kafka 0.11 on.
        timestamp: Milliseconds since the epoch; from Kafka 0.10 on.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None


SEQUENCES = 1 << 31
"""Number of sequences: they begin again at 0."""


def next_sequence(sequence: int, count: int) -> int:
    """Return the sequence `count` records after `sequence`; 2^31 - 1 is followed by 0."""
    return (sequence + count) % SEQUENCES


class ProducerIdentity(NamedTuple):
    """Id that the cluster gave to a producer, and the epoch that tells its incarnations apart.

    Args:
        producer_id: The id.
        epoch: The epoch.
        transactional_id: The id of the transactions that all records of the producer are part of.
        transactions_v2: They follow the second protocol (KIP-890).
    """

    producer_id: int
    epoch: int
    transactional_id: str | None = None
    transactions_v2: bool = False

    def __repr__(self) -> str:
        return f"ProducerIdentity(producer_id={self.producer_id}, epoch={self.epoch})"


class Stamp(NamedTuple):
    """Identity by which brokers recognise a batch: the same on every attempt that may have been written.

    Args:
        partition: The partition of the batch.
        producer: The id and epoch it is sent with.
        base_sequence: The sequence of its first record.
        records: Number of records in it.
    """

    partition: TopicPartition
    producer: ProducerIdentity
    base_sequence: int
    records: int

    @property
    def following(self) -> int:
        """The base sequence of the batch after this one."""
        return (self.base_sequence + self.records) % SEQUENCES


@dataclass(eq=False, slots=True)
class PartitionBatch(BatchBase):
    """The records that go to one partition in one request.

    Args:
        partition: Where they go.
        records: Any sequence, also an `engine.PackedBytes` or `PackedRecords`; an item of type `bytes` is a record that
            is only this value. It does not change once the batch has been encoded.
        compression: Name of the compression, with a level if one was chosen (`zstd:9`), or `none`.
        encoded: The bytes that `BrokerClient.encode` made of the records; every attempt sends them unchanged.
        isolate_with: The most batches that may share a request with it, itself included, while nothing else is in
            flight to that broker; 0: no restriction. Set by a `RefusalPolicy`, as is `refusals`.
        refusals: How often the broker closed the connection on this batch when it was alone.
        stamp: The identity that `ProducerSequences` gave the batch, or None.
        encoded_stamp: The stamp that is part of `encoded`.
        may_be_written: An earlier attempt may have been applied. From then on the batch is neither moved nor divided,
            and keeps its stamp.
    """

    partition: TopicPartition
    records: Sequence[bytes | ProducerRecord]
    compression: str = "none"
    encoded: bytes | None = None
    isolate_with: int = 0
    refusals: int = 0
    stamp: Stamp | None = None
    encoded_stamp: Stamp | None = None
    may_be_written: bool = False


class PartitionResult(NamedTuple):
    """Result of one batch of a produce request.

    Args:
        partition: The partition of the batch.
        error: Why it was not appended, or None. Its attributes `retriable`, `refresh_metadata`, `fatal` and `fence`
            say what to do; `sent` says that it may have been appended nevertheless.
        position: Where its first record was appended, if the broker says so (0.7 does not).
        timestamp: The time the broker gave its records (ms since the epoch), if it did.
        log_start: The first position of the log, if the broker says so.
        record_errors: Row -> what is wrong with that record, if the broker refused the batch because of these alone.
    """

    partition: TopicPartition
    error: OdradekError | None = None
    position: Position | None = None
    timestamp: int | None = None
    log_start: Position | None = None
    record_errors: Mapping[int, str] = {}


class RefusalPolicy(Protocol):
    """Conclusions from a lost request about its batches if brokers refuse a produce by closing the connection (0.7)."""

    def request_failed(
        self, batches: Sequence[PartitionBatch], error: OdradekError, *, answered: bool
    ) -> Sequence[PartitionBatch]:
        """Set `isolate_with` of the batches that have to be sent apart from others from now on.

        Args:
            batches: The batches of one request, which is to be sent again.
            error: How it failed.
            answered: The batches were isolated, and the broker had answered on that connection right before them.

        Returns:
            The batches that are given up.
        """
        ...

    def describe(self, batch: PartitionBatch) -> tuple[str, str]:
        """Return why a batch is given up, and a hint on what to do."""
        ...


class AnsweringBrokerPolicy(RefusalPolicy):
    """The policy for brokers that never refuse by closing the connection (0.8 and later)."""

    def request_failed(
        self, batches: Sequence[PartitionBatch], error: OdradekError, *, answered: bool
    ) -> Sequence[PartitionBatch]:
        """Give up no batch."""
        return ()

    def describe(self, batch: PartitionBatch) -> tuple[str, str]:
        """Return no reason: none is ever needed."""
        return "", ""


class ProducerSequences(Protocol):
    """The identity of one producer, and the numbers by which brokers recognise a batch that is sent again.

    The numbers of a partition have no gap. A batch that may have been written keeps its stamp until it has an outcome.
    """

    @property
    def ready(self) -> bool:
        """True if the producer has an identity; without one nothing can be sent."""
        ...

    async def identify(self) -> None:
        """Get an identity from the cluster. Cancellation: safe.

        Raises:
            OdradekError: `retriable` tells whether trying again may help.
        """
        ...

    def may_send(self, batch: PartitionBatch, in_flight: int) -> bool:
        """Return True if a batch may be sent now, as far as other batches of its partition are concerned, of which so
        many are in flight."""
        ...

    def assign(self, batch: PartitionBatch) -> None:
        """Set the `stamp` of a batch that is about to be sent and has none, unless its partition does without. Only if
        it `may_send`."""
        ...

    def resolve(self, batch: PartitionBatch, result: PartitionResult) -> PartitionResult:
        """Return what a result means for a batch with a stamp: whether it counts as written, or what to do instead."""
        ...

    def resolve_refusals(self, partition: TopicPartition) -> Sequence[PartitionBatch]:
        """Decide, while no batch of a partition is in flight, about those whose numbers the broker refuses.

        Returns the batches that cannot be sent again: they may be written, or are before one that may be. The others
        lose their stamp, and get another one when they are sent again."""
        ...

    def divide(self, batch: PartitionBatch, parts: Sequence[PartitionBatch]) -> None:
        """Move the numbers of a batch that was refused, and so not written, to parts of it, which are sent instead."""
        ...

    def release(self, batch: PartitionBatch, *, may_be_written: bool) -> None:
        """End a batch that will not be sent again. Does nothing if its result was resolved to an outcome."""
        ...
