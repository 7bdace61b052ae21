"""Transactions: which request comes next, and what an answer means (specification 4.4).

A `Transactions` never waits and sends nothing: `next_request` says what to send where, `receive` takes the answer.
One request is out at a time. Both protocols are here: in the first, partitions and groups are added to the
transaction by requests of their own (KIP-98); in the second, by producing to them, and EndTxn gives the epoch of the
next transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.producer_state import ProducerIdentity
from odradek.core.kafka.transaction_requests import Contents, GroupMetadata, Offset, Requests
from odradek.core.states import Machine
from odradek.errors import Fenced, LocalProtocolError, OdradekError
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.kafka.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitResponse,
)
from odradek.wire.kafka.schema import Request, Response

__all__ = [
    "TRANSACTION",
    "Destination",
    "Outgoing",
    "TransactionEvent",
    "TransactionReaction",
    "TransactionalProducerState",
    "Transactions",
]

RETRY_SOON_S = 0.02  # after CONCURRENT_TRANSACTIONS: the marker of the last transaction is still being written


class TransactionalProducerState(Enum):
    """States of a transactional producer."""

    UNINITIALIZED = "has no producer id"
    INITIALIZING = "asks for a producer id, or for a new epoch"
    READY = "no transaction is open"
    OPEN = "records and offsets can be added"
    COMMITTING = "EndTxn says commit"
    ABORTING = "EndTxn says abort"
    FAILED = "the open transaction can only be aborted"
    FATAL = "the producer cannot continue"


class TransactionEvent(Enum):
    """Events of a transactional producer."""

    INITIALIZE = "initialize"
    INITIALIZED = "producer id and epoch received"
    BEGIN = "begin"
    COMMIT = "commit"
    ABORT = "abort"
    ENDED = "the transaction ended"
    EPOCH_WANTED = "ended, and needs a new epoch"
    FAIL = "an error that aborting gets over"
    FATAL = "fenced, not authorized, or out of step"


_S, _E = TransactionalProducerState, TransactionEvent

TRANSACTION: Machine[TransactionalProducerState, TransactionEvent] = Machine(
    "transactional producer",
    _S.UNINITIALIZED,
    {
        (_S.UNINITIALIZED, _E.INITIALIZE): _S.INITIALIZING,
        (_S.INITIALIZING, _E.INITIALIZED): _S.READY,
        (_S.READY, _E.BEGIN): _S.OPEN,
        (_S.OPEN, _E.COMMIT): _S.COMMITTING,
        (_S.OPEN, _E.ABORT): _S.ABORTING,
        (_S.OPEN, _E.FAIL): _S.FAILED,
        (_S.FAILED, _E.FAIL): _S.FAILED,
        (_S.FAILED, _E.ABORT): _S.ABORTING,
        (_S.COMMITTING, _E.ENDED): _S.READY,
        (_S.COMMITTING, _E.FAIL): _S.FAILED,
        (_S.ABORTING, _E.ENDED): _S.READY,
        (_S.ABORTING, _E.EPOCH_WANTED): _S.INITIALIZING,
        (_S.ABORTING, _E.FAIL): _S.ABORTING,
        **{(state, _E.FATAL): _S.FATAL for state in _S},
        (_S.FATAL, _E.FAIL): _S.FATAL,
    },
)


class TransactionReaction(Enum):
    """Reactions to an error of a transactional request."""

    RETRY = "send it again after a back-off"
    RETRY_SOON = "send it again after a moment"
    FIND_COORDINATOR = "ask who the coordinator is, then send it again"
    ABORT = "the transaction can only be aborted"
    NEW_EPOCH = "abort, then ask for a new epoch"
    FENCED = "another producer has the transactional id"
    FATAL = "the producer cannot continue"


REACTIONS: Mapping[int, TransactionReaction] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: TransactionReaction.RETRY,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: TransactionReaction.RETRY,
    ErrorCode.REQUEST_TIMED_OUT: TransactionReaction.RETRY,
    ErrorCode.CONCURRENT_TRANSACTIONS: TransactionReaction.RETRY_SOON,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: TransactionReaction.FIND_COORDINATOR,
    ErrorCode.NOT_COORDINATOR: TransactionReaction.FIND_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION: TransactionReaction.FIND_COORDINATOR,
    ErrorCode.TRANSACTION_ABORTABLE: TransactionReaction.ABORT,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: TransactionReaction.ABORT,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: TransactionReaction.ABORT,
    ErrorCode.OPERATION_NOT_ATTEMPTED: TransactionReaction.ABORT,
    ErrorCode.ILLEGAL_GENERATION: TransactionReaction.ABORT,
    ErrorCode.UNKNOWN_MEMBER_ID: TransactionReaction.ABORT,
    ErrorCode.FENCED_INSTANCE_ID: TransactionReaction.ABORT,
    ErrorCode.STALE_MEMBER_EPOCH: TransactionReaction.ABORT,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: TransactionReaction.NEW_EPOCH,
    ErrorCode.UNKNOWN_PRODUCER_ID: TransactionReaction.NEW_EPOCH,
    ErrorCode.INVALID_PRODUCER_EPOCH: TransactionReaction.FENCED,
    ErrorCode.PRODUCER_FENCED: TransactionReaction.FENCED,
}
"""Reactions to errors; an error that is not listed is fatal: 48, 53, and unexpected ones."""


class Destination(Enum):
    """Destinations of a request."""

    ANY = "any broker"
    TRANSACTION_COORDINATOR = "the transaction coordinator"
    GROUP_COORDINATOR = "the group coordinator"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request to send.

    Args:
        request: What to send.
        destination: The broker to send it to.
        node_id: The broker id of the coordinator; -1 for any broker.
        transactions_v2: Whether versions of the second protocol may be chosen for it.
    """

    request: Request[Any]
    destination: Destination
    node_id: int = -1
    transactions_v2: bool = False


class Transactions:
    """One transactional producer.

    Args:
        transactional_id: Its id; the cluster lets only one producer have it.
        timeout_ms: After this the coordinator aborts an open transaction (ms).
        has_epoch_bump: Whether the coordinator can raise the epoch of a producer that names its own (KIP-360).
    """

    def __init__(self, transactional_id: str, timeout_ms: int, *, has_epoch_bump: bool = True) -> None:
        self.transactional_id, self.has_epoch_bump = transactional_id, has_epoch_bump
        self._timeout_ms = timeout_ms
        self.state = TRANSACTION.start
        self.identity: ProducerIdentity | None = None
        self.error: OdradekError | None = None
        self.v2 = False
        self._coordinators: dict[Destination, int] = {}
        self._in_flight: Outgoing | None = None
        self._retry_at = 0.0
        self._new_epoch = False
        self._contents = Contents()

    def __repr__(self) -> str:
        return f"<Transactions {self.transactional_id} {self.state.name} {self.identity}>"

    # ---- what the user does ----

    def initialize(self) -> None:
        """Ask for a producer id. What a former producer with this transactional id left open is aborted."""
        self._go(_E.INITIALIZE)

    def begin(self, *, v2: bool) -> None:
        """Open a transaction, under the second protocol where `BrokerVersions.has_transactions_v2` says so."""
        self._go(_E.BEGIN)
        self.v2 = v2
        self._clear()

    def add_partition(self, partition: TopicPartition) -> None:
        """Make a partition part of the transaction, before the first record for it is sent."""
        self._require_open()
        if self.v2:
            self._contents.added.add(partition)
            self._contents.started = True
        elif partition not in self._contents.added:
            self._contents.wanted[partition] = None

    def may_send(self, partition: TopicPartition) -> bool:
        """Return True if batches for this partition may be sent now."""
        return self.state in (_S.OPEN, _S.COMMITTING) and partition in self._contents.added

    def add_offsets(self, offsets: Mapping[TopicPartition, Offset], group: GroupMetadata) -> None:
        """Commit a group's offsets with the transaction. One group and one set of offsets at a time.

        Where `BrokerVersions.has_group_fencing` is False, give the group's name alone.

        Raises:
            LocalProtocolError: No transaction is open, or the last offsets are still being sent.
        """
        self._require_open()
        if self._contents.offsets:
            raise LocalProtocolError(f"{self.transactional_id}: the offsets added before are still being sent")
        if self._contents.group is not None and self._contents.group.group != group.group:
            self._coordinators.pop(Destination.GROUP_COORDINATOR, None)
            self._contents.group_added = False
        self._contents.offsets, self._contents.group = dict(offsets), group

    def commit(self) -> None:
        """Begin to commit. Every batch of the transaction must have been acknowledged, and all offsets sent."""
        self._go(_E.COMMIT)

    def abort(self) -> None:
        """Begin to abort. No batch of the transaction may be on its way any more."""
        self._go(_E.ABORT)
        self._contents.wanted.clear()
        self._contents.offsets.clear()

    def batch_failed(self, error: OdradekError, *, new_epoch: bool = False) -> None:
        """Handle a batch of the transaction that failed for good: the transaction can only be aborted.

        Args:
            error: Why.
            new_epoch: True after errors with sequences: the next transaction then needs a new epoch.
        """
        self._fail(error, new_epoch=new_epoch)

    def fatal(self, error: OdradekError) -> None:
        """Stop the producer with an error it cannot recover from."""
        self._go(_E.FATAL)
        self.error = error

    @property
    def offsets_sent(self) -> bool:
        """True when no added offsets wait for their answer."""
        return not self._contents.offsets

    # ---- what goes out ----

    def next_request(self, now: float) -> Outgoing | None:
        """Return the request to send now; None if there is none, one is in flight, or a back-off is not over."""
        if self._in_flight is not None or now < self._retry_at:
            return None
        work = self._work()
        if work is None:
            return None
        destination, request = work
        self._in_flight = self._addressed(destination, request)
        return self._in_flight

    def tick(self, now: float) -> float | None:
        """Return when to ask for a request again: after a back-off; None when nothing waits for time to pass."""
        return self._retry_at if now < self._retry_at and self._in_flight is None else None

    def receive(self, response: Response, now: float, backoff_s: float = 0.1) -> None:
        """Handle the response to the request in flight.

        Args:
            response: The answer.
            now: The time (s).
            backoff_s: How long to wait where the error asks for a wait (s); the caller adds its jitter.
        """
        sent = self._take_in_flight()
        code = self._read(sent, response)
        if code:
            self._react(sent, code, now, backoff_s)

    def connection_lost(self, now: float, backoff_s: float = 0.1) -> None:
        """Handle the loss of the request in flight: the coordinator may have moved."""
        self._react(self._take_in_flight(), ErrorCode.NETWORK_EXCEPTION, now, backoff_s)

    # ---- inside: requests ----

    def _work(self) -> tuple[Destination, Request[Any]] | None:
        match self.state:
            case _S.INITIALIZING:
                return Destination.TRANSACTION_COORDINATOR, self._init_producer_id()
            case _S.ABORTING:
                return self._end(committed=False)
            case _S.OPEN | _S.COMMITTING:
                return self._additions() or (self._end(committed=True) if self.state is _S.COMMITTING else None)
        return None

    def _additions(self) -> tuple[Destination, Request[Any]] | None:
        contents = self._contents
        if contents.wanted:
            return Destination.TRANSACTION_COORDINATOR, self._requests().add_partitions(contents.wanted)
        if contents.offsets and contents.group is not None:
            if not (contents.group_added or self.v2):
                return Destination.TRANSACTION_COORDINATOR, self._requests().add_group(contents.group)
            contents.started = True
            request = self._requests().commit_offsets(contents.group, contents.offsets)
            return Destination.GROUP_COORDINATOR, request
        return None

    def _addressed(self, destination: Destination, request: Request[Any]) -> Outgoing:
        """Return the request, or the question who its coordinator is."""
        node_id = self._coordinators.get(destination)
        if node_id is not None:
            return Outgoing(request, destination, node_id, self.v2)
        key, key_type = self.transactional_id, 1
        if destination is Destination.GROUP_COORDINATOR and self._contents.group is not None:
            key, key_type = self._contents.group.group, 0
        return Outgoing(FindCoordinatorRequest(key=key, key_type=key_type), Destination.ANY)

    def _requests(self) -> Requests:
        return Requests(self.transactional_id, self._ids())

    def _ids(self) -> ProducerIdentity:
        return self.identity or ProducerIdentity(-1, -1)

    def _init_producer_id(self) -> InitProducerIdRequest:
        known = self._ids() if self._new_epoch else ProducerIdentity(-1, -1)
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
        )

    def _end(self, *, committed: bool) -> tuple[Destination, Request[Any]] | None:
        """Return EndTxn; a transaction to which nothing was added ends without it."""
        if not self._contents.started:
            self._ended()
            return None if self.state is _S.READY else self._work()
        return Destination.TRANSACTION_COORDINATOR, self._requests().end(committed=committed)

    # ---- inside: answers ----

    def _read(self, sent: Outgoing, response: Response) -> int:
        """Apply a response. Return the error that needs a reaction, or 0."""
        match response:
            case FindCoordinatorResponse():
                return self._read_coordinator(sent, response)
            case AddPartitionsToTxnResponse():
                return self._read_partitions(response)
            case TxnOffsetCommitResponse():
                return self._read_offsets(response)
            case InitProducerIdResponse() | AddOffsetsToTxnResponse() | EndTxnResponse():
                if not response.error_code:
                    self._read_success(response)
                return response.error_code
        raise LocalProtocolError(f"{type(response).__name__} is no answer to a request of a transaction")

    def _read_success(self, response: InitProducerIdResponse | AddOffsetsToTxnResponse | EndTxnResponse) -> None:
        if isinstance(response, AddOffsetsToTxnResponse):
            self._contents.group_added = self._contents.started = True
            return
        if response.producer_id >= 0:  # EndTxn gives a new identity in the second protocol only
            self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            self._new_epoch = False
        if isinstance(response, InitProducerIdResponse):
            self._go(_E.INITIALIZED)
        else:
            self._ended()

    def _read_coordinator(self, sent: Outgoing, response: FindCoordinatorResponse) -> int:
        if not response.error_code and isinstance(sent.request, FindCoordinatorRequest):
            of_group = sent.request.key_type == 0
            destination = Destination.GROUP_COORDINATOR if of_group else Destination.TRANSACTION_COORDINATOR
            self._coordinators[destination] = response.node_id
        return response.error_code

    def _read_partitions(self, response: AddPartitionsToTxnResponse) -> int:
        """Apply the result of each partition. Those with a retriable error are requested again."""
        worst = 0
        for topic in response.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                partition = TopicPartition(topic.name, result.partition_index)
                if not result.partition_error_code:
                    self._contents.added.add(partition)
                    self._contents.wanted.pop(partition, None)
                    self._contents.started = True
                worst = _worse(worst, result.partition_error_code)
        return worst

    def _read_offsets(self, response: TxnOffsetCommitResponse) -> int:
        worst = 0
        for topic in response.topics:
            for result in topic.partitions:
                if not result.error_code:
                    self._contents.offsets.pop(TopicPartition(topic.name, result.partition_index), None)
                worst = _worse(worst, result.error_code)
        return worst

    def _react(self, sent: Outgoing, code: int, now: float, backoff_s: float) -> None:
        error = broker_error(code, f"{sent.request.SPEC.name} of {self.transactional_id}")
        match REACTIONS.get(code, TransactionReaction.FATAL):
            case TransactionReaction.RETRY:
                self._retry_at = now + backoff_s
            case TransactionReaction.RETRY_SOON:
                self._retry_at = now + min(backoff_s, RETRY_SOON_S)
            case TransactionReaction.FIND_COORDINATOR:
                self._coordinators.pop(sent.destination, None)
                self._retry_at = now + backoff_s
            case (TransactionReaction.ABORT | TransactionReaction.NEW_EPOCH) as reaction if (
                self.state is not _S.INITIALIZING
            ):
                self._fail(error, new_epoch=reaction is TransactionReaction.NEW_EPOCH)
                if self.state is _S.ABORTING and isinstance(sent.request, EndTxnRequest):
                    self._ended()  # the coordinator has no such transaction any more: it is over
            case TransactionReaction.FENCED:
                self.fatal(Fenced(f"transactional id {self.transactional_id}", str(error)))
            case _:
                self.fatal(error)

    def _fail(self, error: OdradekError, *, new_epoch: bool = False) -> None:
        if new_epoch and not self.has_epoch_bump:
            self.fatal(error)
            return
        self._go(_E.FAIL)
        self._new_epoch = self._new_epoch or new_epoch
        self.error = self.error or error

    def _ended(self) -> None:
        self._go(_E.EPOCH_WANTED if self._new_epoch else _E.ENDED)
        self._clear()

    def _clear(self) -> None:
        self._contents = Contents()
        self.error = None

    def _require_open(self) -> None:
        if self.state is not _S.OPEN:
            raise LocalProtocolError(f"{self.transactional_id}: no transaction is open, but {self.state.name}")

    def _take_in_flight(self) -> Outgoing:
        if self._in_flight is None:
            raise LocalProtocolError(f"{self.transactional_id}: an answer, but no request is out")
        sent, self._in_flight = self._in_flight, None
        return sent

    def _go(self, event: TransactionEvent) -> None:
        self.state = TRANSACTION.after(self.state, event)


_SEVERITY = list(TransactionReaction)


def _worse(a: int, b: int) -> int:
    """Return the error that asks for more."""
    if not a or not b:
        return a or b
    return max(a, b, key=lambda code: _SEVERITY.index(REACTIONS.get(code, TransactionReaction.FATAL)))
