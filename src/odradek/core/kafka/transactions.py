"""Transactions of one producer: the next request, and the meaning of each response (kafka-specification.md 4.4).

`Transactions` does no IO: `next_request` returns a request and its destination, `receive` takes the response. At most
one request is in flight. Both protocols are here: in the first, partitions and groups are added to the transaction by
requests of their own (KIP-98); in the second, a Produce or TxnOffsetCommit request adds them, and the response to
EndTxn has the epoch of the next transaction (KIP-890).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.in_flight import InFlight
from odradek.core.kafka.producer_state import ProducerIdentity
from odradek.core.kafka.transaction_requests import Contents, GroupMetadata, Offset, Requests
from odradek.core.kafka.transaction_states import (
    TRANSACTION,
    TransactionalProducerState,
    TransactionEvent,
    TransactionReaction,
    may_be_applied,
    reaction_to,
    worse_error,
)
from odradek.errors import Fenced, LocalProtocolError, OdradekError
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitResponse,
)
from odradek.wire.kafka.schema import Request, Response

__all__ = ["Destination", "Outgoing", "TransactionalProducerState", "Transactions"]

RETRY_SOON_S = 0.02  # after CONCURRENT_TRANSACTIONS: the marker of the last transaction is still being written

_PASSING = (TransactionReaction.RETRY, TransactionReaction.RETRY_SOON, TransactionReaction.FIND_COORDINATOR)
_RESOLVED_BY_ABORT: tuple[TransactionReaction, ...] = (TransactionReaction.ABORT, TransactionReaction.NEW_EPOCH)
_UNDECIDED = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
)
"""Answers to an addition that say nothing of whether it was applied before."""
_S, _E = TransactionalProducerState, TransactionEvent


class Destination(Enum):
    """Kinds of brokers that transactional requests go to."""

    ANY = "any broker"
    TRANSACTION_COORDINATOR = "the transaction coordinator"
    GROUP_COORDINATOR = "the group coordinator"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request to send.

    Args:
        request: The request.
        destination: The broker to send it to.
        node_id: The broker id of the coordinator; -1 for any broker.
        transactions_v2: Whether versions of the second protocol may be chosen for it.
    """

    request: Request[Any]
    destination: Destination
    node_id: int = -1
    transactions_v2: bool = False


class Transactions:
    """The transactions of one producer.

    Args:
        transactional_id: Its id; the cluster accepts only the newest producer that uses it.
        timeout_ms: The coordinator aborts a transaction that is open for longer (ms).
        has_epoch_bump: True if the coordinator can raise the epoch of a producer that names its own (KIP-360).

    Attributes:
        committed: The last transaction is committed for certain.
        passing: Why the last request is sent again, if its response says so.
    """

    def __init__(self, transactional_id: str, timeout_ms: int, *, has_epoch_bump: bool = True) -> None:
        self.transactional_id, self.has_epoch_bump = transactional_id, has_epoch_bump
        self._timeout_ms = timeout_ms
        self.state = TRANSACTION.start
        self.identity: ProducerIdentity | None = None
        self.error: OdradekError | None = None
        self.passing: OdradekError | None = None
        self.v2 = False
        self.committed = False
        self._coordinators: dict[tuple[str, int], int] = {}
        self._in_flight = InFlight[Outgoing]()
        self._new_epoch = False
        self._contents = Contents()

    def __repr__(self) -> str:
        return f"<Transactions {self.transactional_id} {self.state.name} {self.identity}>"

    # ---- calls of the user ----

    def initialize(self) -> None:
        """Request a producer id. The coordinator aborts what an earlier producer with this id left open."""
        self._go(_E.INITIALIZE)

    def begin(self, *, v2: bool) -> None:
        """Open a transaction, under the second protocol if `BrokerVersions.has_transactions_v2` is True."""
        self._go(_E.BEGIN)
        self.v2, self.committed = v2, False
        self._clear()

    def add_partition(self, partition: TopicPartition) -> None:
        """Make a partition part of the transaction, before its first record is sent."""
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

        To a coordinator without `BrokerVersions.has_group_fencing` the request is sent as `unfenced` returns it.

        Raises:
            LocalProtocolError: No transaction is open, or the last offsets are still being sent.
        """
        self._require_open()
        contents = self._contents
        if contents.offsets:
            raise LocalProtocolError(f"{self.transactional_id}: the offsets added before are still being sent")
        if contents.group is not None and contents.group.group != group.group:
            contents.group_added = False
        contents.offsets, contents.group = dict(offsets), group

    def commit(self) -> None:
        """Begin to commit. Every batch of the transaction must have been acknowledged; offsets are sent first."""
        self._go(_E.COMMIT)

    def abort(self) -> None:
        """Begin to abort. No batch of the transaction may be in flight."""
        self._go(_E.ABORT)
        self._contents.wanted.clear()
        self._contents.offsets.clear()

    def batch_failed(self, error: OdradekError, *, new_epoch: bool = False) -> None:
        """Handle a batch of the transaction that failed for good: the transaction can only be aborted.

        Args:
            error: Why it failed.
            new_epoch: True after errors with sequences: the next transaction then needs a new epoch.
        """
        self._fail(error, new_epoch=new_epoch)

    def fatal(self, error: OdradekError) -> None:
        """Stop the producer with an error from which it cannot recover."""
        self._go(_E.FATAL)
        self.error = error

    @property
    def offsets_sent(self) -> bool:
        """True if no added offsets wait for their response."""
        return not self._contents.offsets

    # ---- requests and responses ----

    def next_request(self, now: float) -> Outgoing | None:
        """Return the request to send now; None if there is none, one is in flight, or a back-off is not over."""
        work = self._work() if self._in_flight.can_send(now) else None
        return None if work is None else self._in_flight.send(self._addressed(*work))

    def tick(self, now: float) -> float | None:
        """Return when to call `next_request` again: after a back-off; None if only a call or a response matters."""
        return self._in_flight.wake_at(now)

    def receive(self, response: Response, now: float, backoff_s: float = 0.1) -> None:
        """Handle the response to the request in flight.

        Args:
            response: The response.
            now: The time (s).
            backoff_s: Back-off if the error is a passing one (s); the caller adds its jitter.
        """
        sent, self.passing = self._in_flight.complete(self), None
        if self.state is _S.FATAL:
            return
        code = self._read(sent, response)
        if code:
            self._react(sent, code, now, backoff_s)

    def connection_lost(self, now: float, backoff_s: float = 0.1) -> None:
        """Handle the loss of the request in flight: the coordinator may have moved."""
        sent = self._in_flight.complete(self)
        if self.state is not _S.FATAL:
            self._react(sent, ErrorCode.NETWORK_EXCEPTION, now, backoff_s)

    # ---- inside: requests ----

    def _work(self) -> tuple[Destination, Request[Any]] | None:
        match self.state:
            case _S.INITIALIZING:
                return Destination.TRANSACTION_COORDINATOR, self._init_producer_id()
            case _S.ABORTING:
                return self._addition_in_doubt() or self._end(committed=False)
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

    def _addition_in_doubt(self) -> tuple[Destination, Request[Any]] | None:
        """Return the addition that may be applied, if nothing else proves that the coordinator has the transaction.

        Without EndTxn a transaction that the coordinator has would stay open until it times out, which fences the
        producer. EndTxn for one that it does not have is an error. Repeating the addition decides between the two,
        unless its topic was deleted: then EndTxn is sent, and INVALID_TXN_STATE counts as the end (`_react`).
        """
        contents = self._contents
        if contents.in_doubt is None or contents.started or contents.undecidable:
            return None
        return Destination.TRANSACTION_COORDINATOR, contents.in_doubt

    def _addressed(self, destination: Destination, request: Request[Any]) -> Outgoing:
        """Address the request to its coordinator, or return FindCoordinator if that is not known."""
        key, key_type = self._coordinator_key(destination)
        node_id = self._coordinators.get((key, key_type))
        if node_id is None:
            return Outgoing(FindCoordinatorRequest(key=key, key_type=key_type), Destination.ANY)
        return Outgoing(request, destination, node_id, self.v2)

    def _coordinator_key(self, destination: Destination) -> tuple[str, int]:
        """Return the key and the key type by which FindCoordinator finds a coordinator."""
        group = self._contents.group
        if destination is Destination.GROUP_COORDINATOR and group is not None:
            return group.group, 0
        return self.transactional_id, 1

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
        """Return EndTxn. A transaction to which nothing was added ends without it."""
        if not (self._contents.started or self._contents.undecidable):
            self._ended()
            return None if self.state is _S.READY else self._work()
        return Destination.TRANSACTION_COORDINATOR, self._requests().end(committed=committed)

    # ---- inside: responses ----

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
        raise LocalProtocolError(f"{type(response).__name__} is not a response to {type(sent.request).__name__}")

    def _read_success(self, response: InitProducerIdResponse | AddOffsetsToTxnResponse | EndTxnResponse) -> None:
        if isinstance(response, AddOffsetsToTxnResponse):
            self._contents.group_added = self._contents.started = True
            return
        if response.producer_id >= 0:  # EndTxn has a new identity in the second protocol only
            self.identity = ProducerIdentity(response.producer_id, response.producer_epoch)
            self._new_epoch = False
        if isinstance(response, InitProducerIdResponse):
            self._go(_E.INITIALIZED)
        else:
            self._ended()

    def _read_coordinator(self, sent: Outgoing, response: FindCoordinatorResponse) -> int:
        if not response.error_code and isinstance(sent.request, FindCoordinatorRequest):
            self._coordinators[sent.request.key, sent.request.key_type] = response.node_id
        return response.error_code

    def _read_partitions(self, response: AddPartitionsToTxnResponse) -> int:
        """Apply the result of each partition. Partitions with a passing error are requested again; those that do not
        exist only if there are still records for them (`add_partition`)."""
        worst = 0
        for topic in response.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                partition = TopicPartition(topic.name, result.partition_index)
                if not result.partition_error_code:
                    self._contents.added.add(partition)
                    self._contents.wanted.pop(partition, None)
                    self._contents.started = True
                elif result.partition_error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._contents.wanted.pop(partition, None)
                worst = worse_error(worst, result.partition_error_code)
        return worst

    def _read_offsets(self, response: TxnOffsetCommitResponse) -> int:
        worst = 0
        for topic in response.topics:
            for result in topic.partitions:
                if not result.error_code:
                    self._contents.offsets.pop(TopicPartition(topic.name, result.partition_index), None)
                worst = worse_error(worst, result.error_code)
        return worst

    def _react(self, sent: Outgoing, code: int, now: float, backoff_s: float) -> None:
        error = broker_error(code, f"{sent.request.SPEC.name} of {self.transactional_id}")
        if isinstance(sent.request, AddPartitionsToTxnRequest | AddOffsetsToTxnRequest) and may_be_applied(code):
            self._contents.in_doubt = sent.request
        if self.state is _S.ABORTING and sent.request is self._contents.in_doubt and code in _UNDECIDED:
            self._contents.undecidable = True
            return
        if self._contents.undecidable and code == ErrorCode.INVALID_TXN_STATE:
            self._ended()  # the coordinator never had the transaction
            return
        reaction = self._reaction(sent, code)
        self.passing = error if reaction in _PASSING else None
        match reaction:
            case TransactionReaction.RETRY:
                self._in_flight.back_off(now, backoff_s)
            case TransactionReaction.RETRY_SOON:
                self._in_flight.back_off(now, min(backoff_s, RETRY_SOON_S))
            case TransactionReaction.FIND_COORDINATOR:
                if sent.destination is not Destination.ANY:
                    self._coordinators.pop(self._coordinator_key(sent.destination), None)
                self._in_flight.back_off(now, backoff_s)
            case TransactionReaction.ABORT | TransactionReaction.NEW_EPOCH:
                self._refused(sent, error, new_epoch=reaction is TransactionReaction.NEW_EPOCH)
            case TransactionReaction.FENCED:
                self.fatal(Fenced(f"transactional id {self.transactional_id}", str(error)))
            case _:
                self.fatal(error)

    def _reaction(self, sent: Outgoing, code: int) -> TransactionReaction:
        """Return the reaction to an error. An order to abort is final in answer to an abort; and while the producer
        registers (InitProducerId), when there is nothing to abort, and no epoch to raise."""
        reaction, final = reaction_to(code), _RESOLVED_BY_ABORT if self.state is _S.INITIALIZING else ()
        if self._aborts(sent):
            final = (TransactionReaction.ABORT,)
        return TransactionReaction.FATAL if reaction in final else reaction

    def _refused(self, sent: Outgoing, error: OdradekError, *, new_epoch: bool) -> None:
        if sent.request is self._contents.in_doubt:
            self._contents.in_doubt = None
        self._fail(error, new_epoch=new_epoch)
        if self._aborts(sent):
            self._ended()  # the coordinator no longer has the transaction

    def _aborts(self, sent: Outgoing) -> bool:
        return self.state is _S.ABORTING and isinstance(sent.request, EndTxnRequest)

    def _fail(self, error: OdradekError, *, new_epoch: bool = False) -> None:
        if new_epoch and not self.has_epoch_bump:
            self.fatal(error)
            return
        self._go(_E.FAIL)
        self._new_epoch = self._new_epoch or new_epoch
        self.error = self.error or error

    def _ended(self) -> None:
        self.committed = self.state is _S.COMMITTING
        self._go(_E.EPOCH_WANTED if self._new_epoch else _E.ENDED)
        self._clear()

    def _clear(self) -> None:
        self._contents = Contents()
        self.error = None

    def _require_open(self) -> None:
        if self.state is not _S.OPEN:
            raise LocalProtocolError(
                f"{self.transactional_id}: no transaction is open (the producer is {self.state.name}); call begin first"
            )

    def _go(self, event: TransactionEvent) -> None:
        self.state = TRANSACTION.after(self.state, event)
