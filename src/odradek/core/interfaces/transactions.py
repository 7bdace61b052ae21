"""Transactions: what a producer needs of them, and the positions of a consumer that become part of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from odradek.core.fetch.progress import DeliveredSpan
from odradek.errors import OdradekError
from odradek.types import Position, TopicPartition

from .groups import Membership
from .produce import ProducerSequences

__all__ = ["ConsumerPositions", "DeliveredBatch", "ProducerTransactions"]


class ProducerTransactions(ProducerSequences, Protocol):
    """The transactions of one producer, one at a time, by way of a coordinator of the cluster.

    `run` carries out what the calls begin; cancelling a call ends only the wait for it.
    """

    transactional_id: str

    @property
    def error(self) -> OdradekError | None:
        """The reason why the open transaction can only be aborted, or why the producer cannot continue."""
        ...

    @property
    def problem(self) -> OdradekError | None:
        """The error after which the current request is tried again; None while nothing is wrong."""
        ...

    async def run(self, added: Callable[[], None], failed: Callable[[OdradekError, bool], None]) -> None:
        """Exchange requests with coordinators until cancelled.

        Args:
            added: Called when more batches `may_send`.
            failed: Called with the error because of which the transaction can only be aborted; the second argument is
                True if the producer cannot continue.
        """
        ...

    async def initialize(self) -> None:
        """Register at the coordinator. It ends what an earlier producer with this id left open, and fences that one.

        Raises:
            OdradekError: The cluster refuses; trying again cannot change that.
        """
        ...

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def fail(self, error: OdradekError) -> None:
        """Let the open transaction only be aborted: a record of it was not written, or not for certain."""
        ...

    def stop(self, error: OdradekError) -> None:
        """Send nothing more: the producer has ended with this error."""
        ...

    async def add_positions(self, member: Membership, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions of a group with the transaction, fenced by the member that owns the partitions.

        Raises:
            OdradekError: The transaction can only be aborted.
        """
        ...

    async def commit(self) -> None:
        """Commit. Every batch must have been written.

        Raises:
            CommitOutcomeUnknown: The transaction is committed or will be aborted.
            OdradekError: It is not committed, and can only be aborted.
        """
        ...

    async def abort(self) -> None:
        """Abort. No batch may be in flight.

        Raises:
            OdradekError: The producer cannot continue. The cluster aborts the transaction once its time is over.
        """
        ...


class ConsumerPositions(Protocol):
    """The positions of one consumer, for transactions that store them."""

    membership: Membership

    async def after(self, spans: Collection[tuple[TopicPartition, DeliveredSpan]]) -> Mapping[TopicPartition, Position]:
        """Return the positions to store so that these spans are done. The consumer itself stores none of these
        partitions from now on, and no store of them is under way.

        Raises:
            GroupError: A partition was given to another member.
            UsageError: A record before them is neither done nor among them.
        """
        ...

    def stored(
        self, spans: Collection[tuple[TopicPartition, DeliveredSpan]], positions: Mapping[TopicPartition, Position]
    ) -> None:
        """Record that a transaction has stored these positions: the spans are done."""
        ...


class DeliveredBatch(Protocol):
    """Records of a consumer that a transaction can mark as done when it is committed."""

    def transaction_spans(self) -> Sequence[tuple[ConsumerPositions, TopicPartition, DeliveredSpan]]:
        """Return what it consists of."""
        ...
