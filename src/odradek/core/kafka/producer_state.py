"""State of an idempotent producer: its id and epoch, a sequence per partition, and the meaning of Produce errors.

A batch gets its producer id, epoch and base sequence when it is first sent (a `Stamp`), and every further attempt
carries the same ones: that is how a broker recognizes a duplicate. The broker remembers five batches per partition, so
at most five may be in flight. Batches in flight are ordered; a new attempt must not overtake an older batch.

Source: specification 4.4 and 5.3; KIP-98, KIP-360; sequence arithmetic of section 3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import NamedTuple

from odradek.errors import LocalProtocolError
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = [
    "MAX_IN_FLIGHT",
    "Decision",
    "IdempotentProducer",
    "NextStep",
    "ProducerIdentity",
    "Stamp",
    "next_sequence",
    "step_without_sequences",
]

MAX_IN_FLIGHT = 5  # what a broker remembers per producer and partition
LAST_EPOCH = 0x7FFF
_SEQUENCES = 1 << 31


def next_sequence(sequence: int, count: int) -> int:
    """Return the sequence `count` records after `sequence`; 2^31 - 1 is followed by 0."""
    return (sequence + count) % _SEQUENCES


class ProducerIdentity(NamedTuple):
    """Id that the cluster gave to a producer, and the epoch that tells its incarnations apart.

    Args:
        producer_id: The id.
        epoch: The epoch.
        transactional_id: What the producer writes is part of transactions of this id.
        transactions_v2: They follow the second protocol (KIP-890).
    """

    producer_id: int
    epoch: int
    transactional_id: str | None = None
    transactions_v2: bool = False

    def __repr__(self) -> str:
        return f"ProducerIdentity(producer_id={self.producer_id}, epoch={self.epoch})"


class Stamp(NamedTuple):
    """Identity by which brokers recognise a batch: fixed when it is first sent.

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
        return next_sequence(self.base_sequence, self.records)


class NextStep(Enum):
    """Next step for a batch after a response."""

    DONE = "written"
    DUPLICATE = "written by an earlier attempt; the offset is unknown"
    RETRY = "send it again after a back-off"
    REFRESH = "refresh the metadata, then send it again"
    SPLIT = "split it in two and send both"
    FAIL = "report the error for its records"
    ABORT = "fail it; the transaction can only be aborted"
    REINITIALIZE = "get a new producer id, then send it again"
    FENCED = "fail everything: another producer has the identity"
    FATAL = "fail everything: the producer cannot continue"


class Decision(NamedTuple):
    """Decision about a batch.

    Args:
        step: The next step.
        restamped: Old stamp -> new stamp, for this batch and others of its partition: every later attempt uses the
            new one. A response to an attempt with the old stamp may still arrive; pass it to `answered` with that.
    """

    step: NextStep
    restamped: Mapping[Stamp, Stamp] = {}


_STEPS: Mapping[int, NextStep] = {
    ErrorCode.NONE: NextStep.DONE,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: NextStep.DUPLICATE,
    ErrorCode.MESSAGE_TOO_LARGE: NextStep.SPLIT,
    ErrorCode.INVALID_PRODUCER_EPOCH: NextStep.FENCED,
    ErrorCode.PRODUCER_FENCED: NextStep.FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NextStep.FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: NextStep.FATAL,
    ErrorCode.INVALID_TXN_STATE: NextStep.FATAL,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: NextStep.ABORT,
    ErrorCode.TRANSACTION_ABORTABLE: NextStep.ABORT,
}
"""Steps for errors with a special meaning in Produce; the properties of all other errors decide."""


@cache
def _step(code: int) -> NextStep:
    error = ErrorCode(code)
    general = NextStep.REFRESH if error.refresh_metadata else NextStep.RETRY if error.retriable else NextStep.FAIL
    return _STEPS.get(code, general)


def step_without_sequences(code: int, count: int) -> NextStep:
    """Return the next step for a batch of a producer that is not idempotent."""
    step = _step(code)
    if step is NextStep.SPLIT:
        return NextStep.SPLIT if count > 1 else NextStep.FAIL
    return step if step not in (NextStep.FENCED, NextStep.FATAL, NextStep.ABORT) else NextStep.FAIL


@dataclass(slots=True)
class _Sequences:
    """One partition. `pending` has every stamped batch without a known outcome, in order of sequence; `gap` is True
    after one of them expired; `waits_for_id` is True after `REINITIALIZE`."""

    producer: ProducerIdentity
    following: int = 0
    acked: int = -1
    acked_offset: int = -1
    pending: list[Stamp] = field(default_factory=list)
    gap: bool = False
    waits_for_id: bool = False


class IdempotentProducer:
    """The identity of one producer and the sequences of its partitions.

    Args:
        transactional: True for a producer with a transactional id: a possible gap in the sequences then aborts the
            transaction; otherwise the producer raises its epoch itself.
    """

    def __init__(self, *, transactional: bool = False) -> None:
        self._transactional = transactional
        self._partitions: dict[TopicPartition, _Sequences] = {}
        self.identity: ProducerIdentity | None = None

    def __repr__(self) -> str:
        return f"<IdempotentProducer {self.identity}, {len(self._partitions)} partitions>"

    @property
    def has_gap(self) -> bool:
        """True if a broker may expect another sequence than the next one of its partition: the epoch must change."""
        return any(
            state.pending or next_sequence(state.acked, 1) != state.following for state in self._partitions.values()
        )

    def identify(
        self, producer_id: int, epoch: int, transactional_id: str | None = None, *, transactions_v2: bool = False
    ) -> dict[Stamp, Stamp]:
        """Apply the response to InitProducerId (or to EndTxn of transactions v2): sequences begin at 0. No batch
        outlives its transaction: those of a transactional producer are forgotten.

        Returns:
            Old stamp -> new stamp of the batches for which `REINITIALIZE` was returned, and of those after them.
        """
        self.identity = identity = ProducerIdentity(producer_id, epoch, transactional_id, transactions_v2)
        kept = {} if self._transactional else self._partitions
        self._partitions = {where: state for where, state in kept.items() if state.pending}
        restamped: dict[Stamp, Stamp] = {}
        for state in self._partitions.values():
            if state.waits_for_id:
                restamped |= self._restart(state, identity)
        return restamped

    def can_send(self, partition: TopicPartition) -> bool:
        """Return True if a batch that was not sent before may be sent now."""
        state = self._partitions.get(partition)
        if self.identity is None:
            return False
        if state is None:
            return True
        if state.producer != self.identity or state.gap:
            return not state.pending  # batches with the old epoch, or after the gap, need their outcome first
        return len(state.pending) < MAX_IN_FLIGHT

    def stamp(self, partition: TopicPartition, count: int) -> Stamp:
        """Return the stamp of a batch that is sent for the first time. Raises LocalProtocolError unless `can_send`."""
        if self.identity is None or not self.can_send(partition):
            raise LocalProtocolError(f"{partition}: no batch can be sent yet: wait for a producer id or for responses")
        state = self._partitions.get(partition)
        if state is None or state.producer != self.identity:
            state = self._partitions[partition] = _Sequences(self.identity)
        stamp = Stamp(partition, state.producer, state.following, count)
        state.following = stamp.following
        state.pending.append(stamp)
        return stamp

    def is_first(self, stamp: Stamp) -> bool:
        """Return True if every older batch of the partition has an outcome: a new attempt must wait until then."""
        state = self._partitions.get(stamp.partition)
        return state is not None and state.pending[:1] == [stamp]

    def answered(self, stamp: Stamp, code: int, offset: int = -1, log_start_offset: int = -1) -> Decision:
        """Decide what to do with a batch after a response.

        A batch that was restamped while this attempt was in flight is retried with its new stamp, whatever the error:
        brokers refuse the old stamp, and only the response to the new one counts. Ignore the decision about a batch
        that was given up.

        Args:
            stamp: The stamp with which this attempt was sent.
            code: The error code of its partition.
            offset: The offset of its first record, if it was written.
            log_start_offset: Where the broker's log begins; -1 if the response does not say.
        """
        state = self._partitions.get(stamp.partition)
        if state is None or stamp not in state.pending:
            written = _step(code) in (NextStep.DONE, NextStep.DUPLICATE)
            return Decision(_step(code) if written else NextStep.RETRY)
        decision = self._decide(state, stamp, code, offset, log_start_offset)
        if state.gap:
            self._close_gap(state)
        return decision

    def expire(self, stamp: Stamp) -> None:
        """Give up on a batch that may or may not have been written: whether its sequences are used is unknown.

        No other batch of the partition is stamped until all stamped ones have an outcome. A gap that then remains is
        closed by a higher epoch. If the producer is transactional, the caller aborts the transaction.
        """
        state = self._partitions.get(stamp.partition)
        if state is not None and stamp in state.pending:
            state.pending.remove(stamp)
            state.gap = True
            self._close_gap(state)

    def withdraw(self, stamp: Stamp) -> Mapping[Stamp, Stamp]:
        """Withdraw the stamp of a batch that was certainly not written and will not be sent again.

        Returns:
            Old stamp -> new stamp of the batches after it, which close up.
        """
        state = self._partitions.get(stamp.partition)
        if state is None or stamp not in state.pending:
            return {}
        restamped = self._remove(state, stamp)
        self._close_gap(state)
        return restamped

    def is_established(self, partition: TopicPartition) -> bool:
        """Return True if a batch of the current epoch was written. Until then the broker takes any sequence for the
        first: if a batch was refused, the ones behind it would be written before it."""
        state = self._partitions.get(partition)
        return state is not None and state.acked >= 0

    def is_idle(self, partition: TopicPartition) -> bool:
        """Return True if every batch of a partition has an outcome."""
        state = self._partitions.get(partition)
        return state is None or not state.pending

    def divide(self, stamp: Stamp, counts: Sequence[int]) -> tuple[Sequence[Stamp], Mapping[Stamp, Stamp]]:
        """Replace a batch that was refused, and so not written, by parts of it, which are sent before those behind it.

        Args:
            stamp: The stamp of the batch.
            counts: Number of records in each part.

        Returns:
            The stamps of the parts; and old stamp -> new stamp of the batches behind it, which close up.
        """
        state = self._partitions.get(stamp.partition)
        if state is None or stamp not in state.pending:
            return (), {}
        index, sequence = state.pending.index(stamp), stamp.base_sequence
        before, later = state.pending[:index], state.pending[index + 1 :]
        parts = []
        for count in counts:
            parts.append(Stamp(stamp.partition, state.producer, sequence, count))
            sequence = next_sequence(sequence, count)
        return parts, self._renumber(state, later, sequence, keep=[*before, *parts])

    # ---- inside ----

    def _decide(self, state: _Sequences, stamp: Stamp, code: int, offset: int, log_start_offset: int) -> Decision:
        step = _step(code)
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return self._out_of_order(state, stamp)
        if code == ErrorCode.UNKNOWN_PRODUCER_ID:
            return self._unknown_producer(state, stamp, log_start_offset)
        if step is NextStep.SPLIT:
            if stamp.records == 1:
                return self._fail(state, stamp)
            return Decision(NextStep.SPLIT, self._remove(state, stamp))
        if step in (NextStep.DONE, NextStep.DUPLICATE):
            self._acknowledge(state, stamp, offset)
        elif step is NextStep.ABORT and not self._transactional:
            return self._raise_epoch(state)
        elif step is NextStep.FAIL:
            return self._fail(state, stamp)
        return Decision(step)

    def _acknowledge(self, state: _Sequences, stamp: Stamp, offset: int) -> None:
        state.pending.remove(stamp)
        state.acked = next_sequence(stamp.base_sequence, stamp.records - 1)
        if offset >= 0:
            state.acked_offset = max(state.acked_offset, offset + stamp.records - 1)

    def _fail(self, state: _Sequences, stamp: Stamp) -> Decision:
        """Give up a batch that is refused and not written. A transaction without it can only be aborted."""
        step = NextStep.ABORT if self._transactional else NextStep.FAIL
        return Decision(step, self._remove(state, stamp))

    def _out_of_order(self, state: _Sequences, stamp: Stamp) -> Decision:
        """Wait for earlier batches; if there are none, treat the gap as permanent."""
        if state.pending[0] != stamp:
            return Decision(NextStep.RETRY)
        if self._transactional:
            return Decision(NextStep.ABORT)
        return self._raise_epoch(state)

    def _unknown_producer(self, state: _Sequences, stamp: Stamp, log_start_offset: int) -> Decision:
        """Decide why the broker does not know the producer: retention deleted its records, or data was lost."""
        if log_start_offset < 0:
            return Decision(NextStep.RETRY)  # this response does not say; a later one may
        if state.acked_offset < log_start_offset:
            return Decision(NextStep.RETRY, self._restart(state, state.producer))
        if self._transactional:
            return Decision(NextStep.ABORT)
        return self._raise_epoch(state)

    def _raise_epoch(self, state: _Sequences) -> Decision:
        """Continue with a higher epoch, in which the sequences of this partition begin at 0 (KIP-360). Other partitions
        follow when none of their batches is in flight."""
        identity = self.identity
        if identity is not None and state.producer == identity and identity.epoch >= LAST_EPOCH:
            identity = self.identity = None
        if identity is None:
            state.waits_for_id = True
            return Decision(NextStep.REINITIALIZE)
        if state.producer == identity:  # else the epoch was raised before, for another partition
            identity = self.identity = ProducerIdentity(identity.producer_id, identity.epoch + 1)
        return Decision(NextStep.RETRY, self._restart(state, identity))

    def _restart(self, state: _Sequences, producer: ProducerIdentity) -> dict[Stamp, Stamp]:
        state.producer, state.acked, state.acked_offset, state.gap = producer, -1, -1, False
        state.waits_for_id = False
        return self._renumber(state, state.pending, 0)

    def _remove(self, state: _Sequences, stamp: Stamp) -> dict[Stamp, Stamp]:
        """Remove a batch whose sequences are free again, so that the ones after it close up."""
        index = state.pending.index(stamp)
        later = state.pending[index + 1 :]
        del state.pending[index:]
        return self._renumber(state, later, stamp.base_sequence, keep=state.pending)

    @staticmethod
    def _renumber(
        state: _Sequences, stamps: Sequence[Stamp], sequence: int, keep: Sequence[Stamp] = ()
    ) -> dict[Stamp, Stamp]:
        restamped = {}
        for stamp in stamps:
            restamped[stamp] = Stamp(stamp.partition, state.producer, sequence, stamp.records)
            sequence = next_sequence(sequence, stamp.records)
        state.pending = [*keep, *restamped.values()]
        state.following = sequence
        return restamped

    def _close_gap(self, state: _Sequences) -> None:
        """Once no batch is pending, decide whether all were written after all, or the gap is real."""
        if not state.gap or state.pending:
            return
        state.gap = False
        if next_sequence(state.acked, 1) != state.following and not self._transactional:
            self._raise_epoch(state)
