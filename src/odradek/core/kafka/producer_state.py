"""State of an idempotent producer: its id and epoch, a sequence per partition, and the meaning of Produce errors.

A batch gets its producer id, epoch and base sequence when it is first sent (a `Stamp`), and every further attempt
carries the same ones: that is how a broker recognizes a duplicate. A broker remembers the last five batches of each
partition, so at most five may be in flight; before 1.0 it remembers one (KAFKA-5494). Batches in flight are ordered; a
new attempt must not overtake an older batch.

A batch that may have been written never gets another stamp: under that it would be written once more. If its stamp is
refused as well, its outcome stays unknown. Batches that were certainly not written give their stamp up instead, and get
another one when they are sent again; `resolve_refusals` decides which do, once nothing of the partition is in flight.

Source: kafka-specification.md 3.3 (arithmetic of sequences), 4.4 and 5.3; KIP-98, KIP-360.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from odradek.core.interfaces.produce import SEQUENCES, ProducerIdentity, Stamp, next_sequence
from odradek.errors import LocalProtocolError
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = [
    "MAX_IN_FLIGHT",
    "IdempotentProducer",
    "NextStep",
    "ProducerIdentity",
    "Stamp",
    "next_sequence",
]

MAX_IN_FLIGHT = 5  # what a broker remembers per producer and partition, from 1.0 on
LAST_EPOCH = 0x7FFF

_new_stamp = tuple.__new__  # without a Python function that names the fields


class NextStep(Enum):
    """Next step for a batch after a response."""

    DONE = "written"
    DUPLICATE = "written by an earlier attempt; the offset is unknown"
    RETRY = "send it again after a back-off"
    REFRESH = "refresh the metadata, then send it again"
    FAIL = "report the error for its records"
    ABORT = "fail it; the transaction can only be aborted"
    FENCED = "fail everything: another producer has the identity"
    FATAL = "fail everything: the producer cannot continue"


_STEPS: Mapping[int, NextStep] = {
    ErrorCode.NONE: NextStep.DONE,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: NextStep.DUPLICATE,
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


@dataclass(slots=True)
class _Sequences:
    """The sequences of one partition.

    Args:
        producer: The identity of its batches.
        following: The sequence of the next batch that gets a stamp.
        expected: The sequence after the newest batch that was acknowledged.
        established: A batch of this identity was acknowledged.
        acked_offset: The last offset that was acknowledged; -1: none.
        pending: The stamps without an outcome, in their order.
        overtaken: How many batches were acknowledged behind the first pending one.
        in_doubt: The broker may expect neither `expected` nor the sequence of the first pending batch.
        refused: The first pending batch does not have the sequence that the broker expects.
        forgotten: The broker has lost the producer with acknowledged records, as where the topic was made again: it
            expects sequence 0.
    """

    producer: ProducerIdentity
    following: int = 0
    expected: int = 0
    established: bool = False
    acked_offset: int = -1
    pending: list[Stamp] = field(default_factory=list)
    overtaken: int = 0
    in_doubt: bool = False
    refused: bool = False
    forgotten: bool = False

    def before(self, sequence: int) -> int:
        """Return how many sequences `sequence` is before the next one."""
        return (self.following - sequence) % SEQUENCES

    def is_last(self, stamp: Stamp) -> bool:
        """Return True if no batch behind a pending one has an outcome to come, or was acknowledged. A broker to which
        the producer is unknown takes any sequence for the first one, and so may have taken that of a later batch."""
        return self.pending[-1] == stamp and self.before(self.expected) >= self.before(stamp.base_sequence)


class IdempotentProducer:
    """The identity of one producer and the sequences of its partitions.

    Args:
        remembered: Returns how many batches of a producer and partition every broker remembers.
        transactional: True for a producer with a transactional id: a possible gap in the sequences then aborts the
            transaction; otherwise the producer raises its epoch itself.
    """

    def __init__(self, remembered: Callable[[], int] = lambda: MAX_IN_FLIGHT, *, transactional: bool = False) -> None:
        self._remembered, self._transactional = remembered, transactional
        self._partitions: dict[TopicPartition, _Sequences] = {}
        self.identity: ProducerIdentity | None = None

    def __repr__(self) -> str:
        return f"<IdempotentProducer {self.identity}, {len(self._partitions)} partitions>"

    @property
    def has_gap(self) -> bool:
        """True if a broker may expect another sequence than the next one of its partition: the epoch must change."""
        return any(
            state.pending or state.expected != state.following or state.forgotten for state in self._partitions.values()
        )

    def begin_forgotten_again(self) -> None:
        """Let the partitions whose broker has lost the producer begin at sequence 0 of the same epoch, if that is all
        that is wrong there. For clusters that raise no epoch (KIP-360), after a transaction whose batches there were
        refused: none of them can be written any more."""
        for partition, state in list(self._partitions.items()):
            if state.forgotten and not state.pending and state.expected == state.following:
                del self._partitions[partition]

    def identify(
        self, producer_id: int, epoch: int, transactional_id: str | None = None, *, transactions_v2: bool = False
    ) -> None:
        """Apply the response to InitProducerId (or to EndTxn of transactions v2): sequences begin at 0. No batch
        outlives its transaction: those of a transactional producer are forgotten."""
        self.identity = ProducerIdentity(producer_id, epoch, transactional_id, transactions_v2)
        kept = {} if self._transactional else self._partitions
        self._partitions = {where: state for where, state in kept.items() if state.pending}

    def can_send(self, partition: TopicPartition, stamp: Stamp | None = None) -> bool:
        """Return True if a batch may be sent now.

        Until a batch is acknowledged only one is in flight: a broker that does not know the producer takes any sequence
        for the first (2.5 and later), so if it refused one batch, it would write the ones behind it before it.

        Args:
            partition: The partition of the batch.
            stamp: That of an earlier attempt; None: the batch has none.
        """
        state = self._partitions.get(partition)
        if state is None:
            return self.identity is not None and stamp is None
        if stamp is not None:
            if stamp not in state.pending:
                return False
            ahead = state.pending.index(stamp)
        elif state.producer != self.identity or state.in_doubt or state.refused:
            # Batches of another epoch, or behind a gap, need their outcome first.
            return self.identity is not None and not state.pending
        else:
            ahead = len(state.pending)
        # The first one may have been written. If so, it has to be among the last batches when it comes again.
        return not ahead or (state.established and ahead + state.overtaken < self._remembered())

    def stamp(self, partition: TopicPartition, count: int) -> Stamp:
        """Return a stamp for a batch that has none. Raises LocalProtocolError unless `can_send`."""
        state = self._partitions.get(partition)
        if self.identity is None or (state is not None and state.pending and not self.can_send(partition)):
            raise LocalProtocolError(f"{partition}: no batch can be sent yet: wait for a producer id or for responses")
        if state is None or state.producer != self.identity:
            state = self._partitions[partition] = _Sequences(self.identity)
        stamp = _new_stamp(Stamp, (partition, state.producer, state.following, count))
        state.following = (state.following + count) % SEQUENCES
        state.pending.append(stamp)
        return stamp

    def answered(
        self, stamp: Stamp, code: int, offset: int = -1, log_start_offset: int = -1, *, may_be_written: bool = False
    ) -> NextStep:
        """Return the next step for a batch after a response.

        Args:
            stamp: The stamp of the batch.
            code: The error code of its partition.
            offset: The offset of its first record, if it was written.
            log_start_offset: Where the broker's log begins; -1 if the response does not say.
            may_be_written: This attempt or an earlier one may have been written in spite of its error.
        """
        state = self._partitions.get(stamp.partition)
        if state is None or stamp not in state.pending:
            return _step(code)
        step = self._next_step(state, stamp, code, log_start_offset) if code else NextStep.DONE
        # What is sent again keeps its stamp: by that the broker recognises a batch that it has written before (KIP-98).
        # Every other error ends the stamp. Only FAIL, and the ABORT of a broker that does not know the producer, say
        # that nothing was written; otherwise its numbers may be in use, and no later batch of the partition may be
        # written before that is known.
        if step in (NextStep.DONE, NextStep.DUPLICATE):
            self._acknowledge(state, stamp, offset)
        elif step not in (NextStep.RETRY, NextStep.REFRESH):
            is_refused = step is NextStep.FAIL or (step is NextStep.ABORT and state.forgotten)
            self.give_up(stamp, may_be_written=may_be_written or not is_refused)
            if self._transactional and step is NextStep.FAIL:
                return NextStep.ABORT
        return step

    def resolve_refusals(
        self, partition: TopicPartition, may_be_written: Callable[[Stamp], bool]
    ) -> tuple[Sequence[Stamp], Sequence[Stamp]]:
        """Decide about the batches of a partition after the broker has refused the sequence of the first one. To be
        called before any is sent again, when none is in flight; does nothing unless there was such a refusal.

        No later batch, not even one that lost its stamp, must be written before a batch that may have been written. So
        all batches up to the last one in doubt are given up, and so are those before one that was acknowledged.

        Args:
            partition: The partition.
            may_be_written: Returns whether an attempt with a stamp may have been written.

        Returns:
            The stamps of the batches to give up, and of those that get another stamp when they are sent again.
        """
        state = self._partitions.get(partition)
        if state is None or not state.refused:
            return (), ()
        abandoned = 0
        for index, stamp in enumerate(state.pending, 1):
            maybe_written = may_be_written(stamp)
            state.in_doubt |= maybe_written
            if maybe_written or state.before(stamp.base_sequence) > state.before(state.expected):
                abandoned = index
        stamps, state.pending = state.pending, []
        self._continue(partition, state)
        return stamps[:abandoned], stamps[abandoned:]

    def give_up(self, stamp: Stamp, *, may_be_written: bool) -> None:
        """End a batch that will not be sent again.

        Args:
            stamp: Its stamp.
            may_be_written: Its sequences may be in use: no other batch of the partition gets a stamp until all that
                have one have an outcome, and a gap that then remains is closed by a higher epoch. If the producer is
                transactional, the caller aborts the transaction.
        """
        state = self._partitions.get(stamp.partition)
        if state is None or stamp not in state.pending:
            return
        is_last = state.is_last(stamp)
        state.pending.remove(stamp)
        if may_be_written:
            state.in_doubt = True
        elif is_last and not state.in_doubt:  # else the ones behind it have a gap before them
            state.following = stamp.base_sequence
        self._continue(stamp.partition, state)

    def divide(self, stamp: Stamp, counts: Sequence[int]) -> Sequence[Stamp]:
        """Replace a batch that was refused, and so not written, by parts of it, which are sent before those behind it.

        Args:
            stamp: The stamp of the batch.
            counts: Number of records in each part. If some were left out, the batches behind have a gap before them.

        Returns:
            The stamps of the parts.
        """
        state = self._partitions.get(stamp.partition)
        if state is None or stamp not in state.pending:
            return ()
        parts, sequence = [], stamp.base_sequence
        for count in counts:
            parts.append(Stamp(stamp.partition, state.producer, sequence, count))
            sequence = next_sequence(sequence, count)
        if state.is_last(stamp):
            state.following = sequence
        index = state.pending.index(stamp)
        state.pending[index : index + 1] = parts
        return parts

    # ---- inside ----

    def _next_step(self, state: _Sequences, stamp: Stamp, code: int, log_start_offset: int) -> NextStep:
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID):
            return self._sequence_refused(state, stamp, code, log_start_offset)
        step = _step(code)
        if step is NextStep.ABORT and not self._transactional:  # there is none: a new epoch helps as well
            state.refused = state.in_doubt = True
            return NextStep.RETRY
        return step

    def _sequence_refused(self, state: _Sequences, stamp: Stamp, code: int, log_start_offset: int) -> NextStep:
        """Wait for earlier batches; if there are none, the sequence does not fit, and never will."""
        if state.pending[0] != stamp:
            return NextStep.RETRY
        forgotten = code == ErrorCode.UNKNOWN_PRODUCER_ID
        if not self._transactional:
            state.refused = True
            state.in_doubt |= forgotten or stamp.base_sequence == state.expected
            return NextStep.RETRY
        if forgotten and log_start_offset < 0:
            return NextStep.RETRY  # this response does not say why; a later one may
        if not forgotten or state.acked_offset >= log_start_offset:
            state.forgotten = forgotten
            return NextStep.ABORT  # data was lost
        # Retention has deleted all that the producer wrote: the broker expects sequence 0 of the same epoch.
        state.expected, state.established, state.acked_offset, state.refused = 0, False, -1, True
        return NextStep.RETRY

    def _acknowledge(self, state: _Sequences, stamp: Stamp, offset: int) -> None:
        state.overtaken += state.pending[0] != stamp
        state.pending.remove(stamp)
        state.established = True
        following = stamp.following
        if following == state.following or state.before(following) < state.before(state.expected):
            state.expected = following
        if offset >= 0:
            state.acked_offset = max(state.acked_offset, offset + stamp.records - 1)
        self._continue(stamp.partition, state)

    def _continue(self, partition: TopicPartition, state: _Sequences) -> None:
        """Once no batch is pending, let the next one have the sequence that the broker expects; if that is in doubt,
        the first of a higher epoch (KIP-360). Other partitions follow to that when none of their batches is pending."""
        if not state.pending or state.before(state.expected) >= state.before(state.pending[0].base_sequence):
            state.overtaken = 0
        if state.pending:
            return
        state.refused = False
        if not state.in_doubt or state.expected == state.following:  # those given up in doubt were written after all
            state.in_doubt, state.following = False, state.expected
        elif not self._transactional:
            # A batch that was given up may have been written, so that the broker expects one of two sequences, and the
            # wrong one would be refused, or taken for a duplicate. A higher epoch begins at 0, whatever it
            # expects. There is none after the last: without an identity, the client asks for another producer id.
            identity = self.identity
            if identity == state.producer:  # else it was raised before, for another partition
                last = identity.epoch >= LAST_EPOCH
                self.identity = None if last else ProducerIdentity(identity.producer_id, identity.epoch + 1)
            del self._partitions[partition]
