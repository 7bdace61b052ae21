"""Transactions of an in-memory cluster: its coordinator, and what a producer sends to it.

The coordinator answers as one of Kafka 4 does (the second protocol of KIP-890), with one difference: a transaction has
ended, with all its markers, when its end is answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import TYPE_CHECKING, TypeAlias

from odradek.client.options import Tuning
from odradek.core.interfaces import Membership, Stamp
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.partitions import by_topic
from odradek.core.kafka.producer_state import IdempotentProducer
from odradek.core.kafka.transaction_requests import GroupMetadata, Offset
from odradek.core.kafka.transactions import Outgoing
from odradek.errors import BrokerError, UsageError
from odradek.io.kafka.transactions import CoordinatedTransactions
from odradek.testing.memory.faults import Operation
from odradek.testing.memory.groups import MemoryMembership
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.kafka.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from odradek.wire.kafka.schema import Response

if TYPE_CHECKING:
    from odradek.testing.memory.state import ClusterState

__all__ = ["MemoryTransactions", "TransactionCoordinator", "TransactionalIdState"]

_Request: TypeAlias = InitProducerIdRequest | TxnOffsetCommitRequest | EndTxnRequest


MAX_TIMEOUT_MS = 900_000
"""Kafka's default of `transaction.max.timeout.ms` (ms)."""


@dataclass(eq=False, slots=True)
class TransactionalIdState:
    """State of a transactional id at the coordinator.

    Args:
        producer_id: The number of its producer.
        epoch: Grows with every producer of this id, and with every transaction.
        timeout_s: A transaction that is open for longer is aborted (s).
        started: When the open transaction began, on the clock of the cluster (s); None: none is open.
        committed: How the last one ended; None: the producer has ended none.
        partitions: What the open transaction has records in.
        groups: The groups that it stores positions of.
    """

    producer_id: int
    epoch: int = -1
    timeout_s: float = inf
    started: float | None = None
    committed: bool | None = None
    partitions: dict[TopicPartition, int] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Name of its state, as brokers list it."""
        if self.started is not None:
            return "Ongoing"
        return {None: "Empty", True: "CompleteCommit", False: "CompleteAbort"}[self.committed]


class TransactionCoordinator:
    """The transactions of all producers.

    Args:
        state: The cluster.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._numbers = count()
        self.ids: dict[str, TransactionalIdState] = {}
        """By transactional id."""

    def next_producer_id(self) -> int:
        """Return a producer id that no other producer has."""
        return next(self._numbers)

    async def ask(self, request: _Request, timeout: float) -> Response:
        """Serve a request, after at most `timeout` (s). Raises the error that a test wants it to have. A BrokerError is
        answered as its code."""
        faults, (operation, partitions) = self._state.faults, self._described(request)
        try:
            await self._state.serve(operation, timeout, partitions=partitions)
            response = self._answer(request)
        except BrokerError as error:
            return _refusal(request, error.code)
        if (lost := faults.request_error(operation, partitions, applied=True)) is not None:
            raise lost
        return response

    def _described(self, request: _Request) -> tuple[Operation, Mapping[TopicPartition, int]]:
        if isinstance(request, TxnOffsetCommitRequest):
            return "add_positions", {partition: offset.offset for partition, offset in _offsets(request).items()}
        if isinstance(request, InitProducerIdRequest):
            return "init_producer", {}
        known = self.ids.get(request.transactional_id)
        partitions = {} if known is None else dict(known.partitions)
        return "commit_transaction" if request.committed else "abort_transaction", partitions

    def _answer(self, request: _Request) -> Response:
        if isinstance(request, InitProducerIdRequest):
            return self._init(request)
        return self._add_offsets(request) if isinstance(request, TxnOffsetCommitRequest) else self._end(request)

    def _init(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """Give a producer an epoch of its own; what an earlier one left open is aborted."""
        name = request.transactional_id or ""
        if not 0 < request.transaction_timeout_ms <= MAX_TIMEOUT_MS:
            raise broker_error(ErrorCode.INVALID_TRANSACTION_TIMEOUT, name)
        if (known := self.ids.get(name)) is None:
            known = self.ids[name] = TransactionalIdState(next(self._numbers))
        elif (request.producer_id, request.producer_epoch) not in ((-1, -1), (known.producer_id, known.epoch)):
            raise broker_error(ErrorCode.PRODUCER_FENCED, name)
        if known.started is not None:
            self._finish(known, committed=False)
        known.epoch += 1
        known.committed, known.timeout_s = None, request.transaction_timeout_ms / 1000
        return InitProducerIdResponse(producer_id=known.producer_id, producer_epoch=known.epoch)

    def add_partition(self, stamp: Stamp) -> None:
        """Make the partition of a batch part of the transaction of its producer. Raises BrokerError if another producer
        has the transactional id, or the transaction has ended."""
        name = stamp.producer.transactional_id or ""
        self.expire()
        known = self._known(name, stamp.producer.producer_id)
        if known.epoch != stamp.producer.epoch:
            raise broker_error(ErrorCode.INVALID_PRODUCER_EPOCH, name)
        self._begin(known)
        known.partitions[stamp.partition] = 0

    def _add_offsets(self, request: TxnOffsetCommitRequest) -> Response:
        """Store positions with a transaction, if the member that sends them owns its partitions."""
        known = self._known(request.transactional_id, request.producer_id)
        if known.epoch != request.producer_epoch:
            raise broker_error(ErrorCode.INVALID_PRODUCER_EPOCH, request.transactional_id)
        offsets, group = _offsets(request), self._state.group(request.group_id)
        self._begin(known)
        known.groups.add(group.name)
        member = GroupMetadata(group.name, request.generation_id, request.member_id)
        if code := group.fence(member, offsets):
            raise broker_error(code, group.name)
        group.add_to_transaction(known.producer_id, {p: at for p, at in offsets.items() if p in self._state.logs})
        return _refusal(request, ErrorCode.NONE)

    def _end(self, request: EndTxnRequest) -> EndTxnResponse:
        """Commit or abort. The epoch grows, so that a request that is sent again has that of the transaction before."""
        name = request.transactional_id
        known = self._known(name, request.producer_id)
        is_over, is_repeated = known.started is None, known.epoch == request.producer_epoch + 1
        if known.epoch != request.producer_epoch and not (is_repeated and is_over and known.committed is not None):
            raise broker_error(ErrorCode.PRODUCER_FENCED, name)
        if known.committed is not request.committed if is_repeated else (is_over and request.committed):
            raise broker_error(ErrorCode.INVALID_TXN_STATE, name)
        if not is_repeated:
            self._finish(known, committed=request.committed)
        return EndTxnResponse(producer_id=known.producer_id, producer_epoch=known.epoch)

    def _known(self, name: str, producer_id: int) -> TransactionalIdState:
        known = self.ids.get(name)
        if known is None or known.producer_id != producer_id:
            raise broker_error(ErrorCode.INVALID_PRODUCER_ID_MAPPING, name)
        return known

    def _begin(self, known: TransactionalIdState) -> None:
        if known.started is None:
            known.started = self._state.clock.now()

    def _finish(self, known: TransactionalIdState, *, committed: bool) -> None:
        """End a transaction: write its markers, and give the next one another epoch."""
        for partition in known.partitions:
            if (log := self._state.logs.get(partition)) is not None:
                log.end_transaction(known.producer_id, committed=committed)
        for name in known.groups & self._state.groups.keys():
            self._state.groups[name].end_transaction(known.producer_id, committed=committed)
        known.partitions.clear()
        known.groups.clear()
        known.epoch += 1
        known.started, known.committed = None, committed
        self._state.changed.notify()

    def next_expiry(self) -> float:
        """Return when the next open transaction is aborted (s, on the clock of the cluster); infinity: none is open."""
        ends = [known.started + known.timeout_s for known in self.ids.values() if known.started is not None]
        return min(ends, default=inf)

    def expire(self) -> None:
        """Abort the transactions that are open for too long."""
        now = self._state.clock.now()
        for known in self.ids.values():
            if known.started is not None and now >= known.started + known.timeout_s:
                self._finish(known, committed=False)


class MemoryTransactions(CoordinatedTransactions):
    """The transactions of one producer (`core.interfaces.ProducerTransactions`).

    Args:
        state: The cluster.
        transactional_id: Its id.
        timeout_s: The cluster aborts a transaction that is open for longer (s).
        tuning: How long one request may take, and the wait between attempts.
    """

    def __init__(self, state: ClusterState, transactional_id: str, timeout_s: float, tuning: Tuning) -> None:
        producer = IdempotentProducer(transactional=True)
        super().__init__(producer, transactional_id, timeout_s, tuning.backoff, v2=True, has_epoch_bump=True)
        self._state, self._timeout = state, tuning.request_timeout

    async def add_positions(self, member: Membership, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions with the transaction (see `ProducerTransactions.add_positions`).

        Raises:
            UsageError: The member belongs to another cluster.
            GroupError: It does not own the partitions any more.
        """
        if not isinstance(member, MemoryMembership) or not member.shares(self._state):
            raise UsageError("a transaction stores positions of consumers of its own cluster only")
        self._machine.add_offsets(member.offsets(positions), member.token(positions))
        await self._until_offsets_sent()
        if missing := sorted(partition for partition in positions if partition not in self._state.logs):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise broker_error(code, f"TxnOffsetCommit of {self.transactional_id}: {missing[0]}")

    async def _request(self, outgoing: Outgoing) -> Response:
        request = outgoing.request
        if isinstance(request, FindCoordinatorRequest):
            return FindCoordinatorResponse(node_id=0)
        assert isinstance(request, InitProducerIdRequest | TxnOffsetCommitRequest | EndTxnRequest)
        return await self._state.transactions.ask(request, self._timeout)


def _offsets(request: TxnOffsetCommitRequest) -> dict[TopicPartition, Offset]:
    return {
        TopicPartition(topic.name, each.partition_index): Offset(each.committed_offset, -1, each.committed_metadata)
        for topic in request.topics
        for each in topic.partitions
    }


def _refusal(request: _Request, code: int) -> Response:
    """Return the response with this code."""
    if isinstance(request, InitProducerIdRequest):
        return InitProducerIdResponse(error_code=code)
    if isinstance(request, EndTxnRequest):
        return EndTxnResponse(error_code=code)
    partition = TxnOffsetCommitResponsePartition
    topics = (
        TxnOffsetCommitResponseTopic(
            name=topic, partitions=tuple(partition(partition_index=n, error_code=code) for n in numbers)
        )
        for topic, numbers in by_topic(_offsets(request)).items()
    )
    return TxnOffsetCommitResponse(topics=tuple(topics))
