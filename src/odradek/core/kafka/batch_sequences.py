"""Stamps of an idempotent producer's batches, and what results mean for them: `core.interfaces.ProducerSequences`.

`producer_state` decides; here its decisions become stamps of batches and errors for the accumulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.core.interfaces import PartitionBatch, PartitionResult
from odradek.core.kafka.produce import has_headers
from odradek.core.kafka.producer_state import IdempotentProducer, NextStep, Stamp
from odradek.errors import BrokerError, Fenced, MessageTooLarge
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["BatchSequences"]

_AGAIN = (NextStep.RETRY, NextStep.REFRESH)
_TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE


class BatchSequences:
    """The stamps of the batches of one producer.

    Args:
        producer: Its identity and sequences.
    """

    name = "this producer"
    """The producer in error texts."""

    def __init__(self, producer: IdempotentProducer) -> None:
        self.producer = producer
        self._batches: dict[Stamp, PartitionBatch] = {}
        self._enabled = True
        self._without: set[str] = set()  # topics whose batches have no stamps

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.producer!r}, {len(self._batches)} batches without an outcome>"

    @property
    def ready(self) -> bool:
        """True if the producer has an identity, or does without."""
        return self.producer.identity is not None or not self._enabled

    def disable(self) -> None:
        """Do without stamps from now on."""
        self._enabled = False

    def disable_for(self, topic: str) -> bool:
        """Do without stamps in one topic from now on. Return False if it did already."""
        is_new = topic not in self._without
        self._without.add(topic)
        return is_new

    def set_identity(self, producer_id: int, epoch: int) -> None:
        """Apply an identity from the cluster."""
        self.producer.identify(producer_id, epoch)

    def may_send(self, batch: PartitionBatch, in_flight: int) -> bool:
        """Return True if a batch may be sent now, as far as other batches of its partition are concerned. Without
        stamps nothing else may be in flight: the broker might refuse that, and write this one before it."""
        if not self._enabled or batch.partition.topic in self._without:
            return not in_flight
        if self.producer.identity is None:
            return True
        return self.producer.can_send(batch.partition, batch.stamp)

    def assign(self, batch: PartitionBatch) -> None:
        """Set the stamp of a batch that is about to be sent for the first time. One with headers has it in each topic:
        without it, a broker that cannot store them says no more than UNKNOWN_SERVER_ERROR."""
        if not self._enabled or (batch.partition.topic in self._without and not has_headers(batch.records)):
            return
        stamp = self.producer.stamp(batch.partition, len(batch.records))
        batch.stamp = stamp
        self._batches[stamp] = batch

    def resolve(self, batch: PartitionBatch, result: PartitionResult) -> PartitionResult:
        """Return what a result means for a batch (see `ProducerSequences.resolve`)."""
        stamp, error = batch.stamp, result.error
        if stamp is None or not (error is None or isinstance(error, BrokerError | MessageTooLarge)):
            return result
        # The accumulator divides such a batch, and its parts take over its sequences (`divide`): to end its stamp here
        # would leave a gap before the batches behind it. One that may be written is released with its error instead.
        if stamp.records > 1 and (isinstance(error, MessageTooLarge) or result.record_errors):
            return result
        step = self.producer.answered(
            stamp,
            ErrorCode.NONE if error is None else error.code if isinstance(error, BrokerError) else _TOO_LARGE,
            -1 if result.position is None else result.position,
            -1 if result.log_start is None else result.log_start,
            may_be_written=batch.may_be_written or (error is not None and error.sent),
        )
        if step not in _AGAIN:
            self._batches.pop(stamp, None)
        return result if step is NextStep.DONE else self._meaning(step, batch, result)

    def resolve_refusals(self, partition: TopicPartition) -> Sequence[PartitionBatch]:
        """Return the batches that cannot be sent again (see `ProducerSequences.resolve_refusals`)."""
        abandoned, renewed = self.producer.resolve_refusals(
            partition, lambda stamp: self._batches[stamp].may_be_written
        )
        for stamp in renewed:
            batch = self._batches.pop(stamp)
            batch.stamp = batch.encoded = None
        return [self._batches.pop(stamp) for stamp in abandoned]

    def divide(self, batch: PartitionBatch, parts: Sequence[PartitionBatch]) -> None:
        """Move the numbers of a batch to parts of it (see `ProducerSequences.divide`)."""
        stamp = batch.stamp
        if stamp is None or self._batches.get(stamp) is not batch:
            return
        del self._batches[stamp]
        stamps = self.producer.divide(stamp, [len(part.records) for part in parts])
        for part, own in zip(parts, stamps, strict=True):
            part.stamp = own
            self._batches[own] = part

    def release(self, batch: PartitionBatch, *, may_be_written: bool) -> None:
        """End a batch that will not be sent again (see `ProducerSequences.release`)."""
        stamp = batch.stamp
        if stamp is None or self._batches.get(stamp) is not batch:
            return
        del self._batches[stamp]
        self.producer.give_up(stamp, may_be_written=may_be_written)

    def _meaning(self, step: NextStep, batch: PartitionBatch, result: PartitionResult) -> PartitionResult:
        """Return what a decision makes of the result of a batch, unless it is DONE. An error that stays is that of the
        batch, made of the code of the response: its attributes say what the decision is."""
        error = result.error
        if step is NextStep.DUPLICATE:
            return PartitionResult(result.partition)
        if not isinstance(error, BrokerError):  # too large: divided if it can be, else refused
            return result
        if step is NextStep.FENCED:
            return result._replace(error=Fenced(self.name, error.message()))
        error.retriable, error.fatal, error.fence = step in _AGAIN, step is NextStep.FATAL, False
        error.refresh_metadata |= step is NextStep.REFRESH
        return result
