"""The transactions of one producer: `core.interfaces.ProducerTransactions`.

`core.kafka.transactions` decides. `run` sends its requests, one at a time, and reports what changed. All other methods
only begin something, and those that wait may be cancelled at any moment: `run` finishes what they began.
`KafkaTransactions` sends the requests to real coordinators; those of an in-memory cluster are in
`odradek.testing.memory.transactions`.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import random
from typing import Any

import anyio

from odradek.core.backoff import Backoff
from odradek.core.interfaces import Membership, PartitionBatch
from odradek.core.kafka.batch_sequences import BatchSequences
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.producer_state import IdempotentProducer
from odradek.core.kafka.transaction_requests import unfenced
from odradek.core.kafka.transaction_states import TransactionalProducerState, may_be_applied
from odradek.core.kafka.transactions import Outgoing, Transactions
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import BrokerError, CommitOutcomeUnknown, NotWritten, OdradekError, UsageError
from odradek.io.kafka.connection import VersionLimits
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.io.kafka.membership import KafkaMembership
from odradek.io.kafka.offsets import CoordinatorAccess, DeletedTopics
from odradek.io.notifier import Notifier
from odradek.types import Broker, Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.wire.kafka.messages.transactions import (
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from odradek.wire.kafka.schema import Request, Response

__all__ = ["CoordinatedTransactions", "KafkaTransactions"]

log = logging.getLogger("odradek.produce")

_S = TransactionalProducerState
_IN_TRANSACTION = (_S.OPEN, _S.FAILED, _S.COMMITTING, _S.ABORTING)


class CoordinatedTransactions(BatchSequences, ABC):
    """Stamps and transactions of one producer. A subclass sends the requests, and says what fences positions.

    Args:
        producer: Its identity and sequences.
        transactional_id: Its id.
        timeout_s: The coordinator aborts a transaction that is open for longer (s).
        backoff: Between two attempts.
        v2: The cluster has the second protocol (KIP-890).
        has_epoch_bump: A producer may raise its own epoch (KIP-360).
    """

    def __init__(
        self,
        producer: IdempotentProducer,
        transactional_id: str,
        timeout_s: float,
        backoff: Backoff,
        *,
        v2: bool,
        has_epoch_bump: bool,
    ) -> None:
        super().__init__(producer)
        self.transactional_id, self.name = transactional_id, f"transactional id {transactional_id}"
        self._backoff, self._v2 = backoff, v2
        self._machine = Transactions(transactional_id, int(timeout_s * 1000), has_epoch_bump=has_epoch_bump)
        self._work = Notifier()  # the machine may have a request
        self._changed = Notifier()  # its state changed, or what the transaction contains
        self._failures = 0
        self._problem: OdradekError | None = None
        self._commit_in_doubt = False
        self._reported = self._machine.state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._machine!r}>"

    @property
    def error(self) -> OdradekError | None:
        """The reason why the transaction can only be aborted, or why the producer cannot continue."""
        return self._machine.error

    @property
    def problem(self) -> OdradekError | None:
        """The last passing error, until a request succeeds."""
        return self._problem

    # ---- batches ---------------------------------------------------------------------------------------------

    async def identify(self) -> None:
        """Wait until `initialize` has got the identity. Cancellation: safe."""
        while not self.ready:
            await self._changed.wait(self._changed.version)

    def may_send(self, batch: PartitionBatch, in_flight: int) -> bool:
        """Return True if a batch may be sent now. Under the first protocol its partition is added to the transaction
        before: `run` reports when that is done."""
        machine, partition = self._machine, batch.partition
        if not machine.may_send(partition):
            # A batch must not reach the log before AddPartitionsToTxn does the coordinator, which would write no
            # marker there at the end of the transaction: readers would wait there for good (KIP-890).
            if machine.state is _S.OPEN:
                machine.add_partition(partition)
                self._work.notify()
            if not machine.may_send(partition):  # under the second protocol Produce adds it, so that it may be sent now
                return False
        return super().may_send(batch, in_flight)

    # ---- calls -----------------------------------------------------------------------------------------------

    async def initialize(self) -> None:
        """Get a producer id (see `ProducerTransactions.initialize`). Cancellation: safe, if `run` ends too."""
        self._machine.initialize()
        await self._carry_out()

    def begin(self) -> None:
        """Open a transaction. Raises LocalProtocolError while another one is open."""
        self._commit_in_doubt = False
        self._machine.begin(v2=self._v2)

    def fail(self, error: OdradekError) -> None:
        """Let the open transaction only be aborted."""
        if self._machine.state in (_S.OPEN, _S.FAILED):
            self._machine.batch_failed(error)
            self._work.notify()

    def stop(self, error: OdradekError) -> None:
        """Send nothing more."""
        if self._machine.state is not _S.FATAL:
            self._machine.fatal(error)
        self._work.notify()
        self._changed.notify()

    @abstractmethod
    async def add_positions(self, member: Membership, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions with the transaction (see `ProducerTransactions.add_positions`)."""

    async def _until_offsets_sent(self) -> None:
        self._work.notify()
        while self._machine.state is _S.OPEN and not self._machine.offsets_sent:
            await self._changed.wait(self._changed.version)
        if self._machine.error is not None:
            raise self._machine.error

    def _notify_members(self) -> None:
        """Tell members whose positions were part of a transaction that it has ended, if they cannot know."""

    async def commit(self) -> None:
        """Commit (see `ProducerTransactions.commit`). Cancellation: `run` continues to commit."""
        self._machine.commit()
        await self._carry_out()

    async def abort(self) -> None:
        """Abort (see `ProducerTransactions.abort`). Cancellation: `run` continues to abort.

        If a broker may expect other sequences than those of the next batches, the producer gets a new epoch.
        """
        machine = self._machine
        if not machine.has_epoch_bump:  # then any other gap ends the producer
            self.producer.begin_forgotten_again()
        if machine.state in (_S.OPEN, _S.FAILED) and self.producer.has_gap:
            machine.batch_failed(machine.error or NotWritten((), "the transaction was aborted"), new_epoch=True)
        if machine.state in (_S.OPEN, _S.FAILED):
            machine.abort()
        await self._carry_out()

    async def _carry_out(self) -> None:
        """Wait until the machine has done what it was told. Raises its error."""
        self._work.notify()
        machine = self._machine
        while machine.state in (_S.INITIALIZING, _S.COMMITTING, _S.ABORTING):
            await self._changed.wait(self._changed.version)
        if machine.state is _S.READY:
            return
        error = machine.error
        assert error is not None
        if self._commit_in_doubt:
            raise CommitOutcomeUnknown(self.transactional_id, str(error)) from error
        raise error

    # ---- requests --------------------------------------------------------------------------------------------

    async def run(self, added: Callable[[], None], failed: Callable[[OdradekError, bool], None]) -> None:
        """Exchange requests with coordinators until cancelled (see `ProducerTransactions.run`)."""
        try:
            await self._run(added, failed)
        finally:
            self._notify_members()

    async def _run(self, added: Callable[[], None], failed: Callable[[OdradekError, bool], None]) -> None:
        while True:
            version, now = self._work.version, anyio.current_time()
            outgoing = self._machine.next_request(now)
            if outgoing is not None:
                await self._exchange(outgoing)
            self._set_identity()
            if self._machine.state not in _IN_TRANSACTION:
                self._notify_members()
            self._changed.notify()
            state, before = self._machine.state, self._reported
            self._reported = state
            if state is not before and state in (_S.FAILED, _S.FATAL) and self._machine.error is not None:
                failed(self._machine.error, state is _S.FATAL)
            elif outgoing is not None:
                added()
            # An answer may make the next request due at once, and so may a change of state. Only a pass with neither
            # waits. What is notified since `version` was read ends the wait, so that nothing is missed in between.
            if outgoing is None and state is before:
                wake_at = self._machine.tick(now)
                await self._work.wait(version, math.inf if wake_at is None else max(0.0, wake_at - now))

    async def _exchange(self, outgoing: Outgoing) -> None:
        delay = self._backoff.delay(self._failures, random())
        try:
            response = await self._request(outgoing)
        except OdradekError as error:
            self._failures += 1
            self._problem = error
            # EndTxn is sent again, and mostly the coordinator then says how the first one ended. But if the epoch was
            # raised meanwhile, by another producer with this id or because the transaction was open for too long, all
            # it says is that this producer is fenced, and the first one may have committed. So the doubt lasts until
            # the next `begin`.
            self._commit_in_doubt |= _commits(outgoing) and error.sent
            if error.retriable:
                log.info("%s: %s; trying again", self.transactional_id, error)
                self._machine.connection_lost(anyio.current_time(), delay)
            elif self._machine.state is not _S.FATAL:
                self._machine.fatal(error)
            return
        code = getattr(response, "error_code", 0)
        self._commit_in_doubt |= _commits(outgoing) and may_be_applied(code)
        self._machine.receive(response, anyio.current_time(), delay)
        self._problem = self._machine.passing
        self._failures = 0 if self._problem is None else self._failures + 1

    @abstractmethod
    async def _request(self, outgoing: Outgoing) -> Response:
        """Send a request, and return the response."""

    def _set_identity(self) -> None:
        """Have sequences begin at 0 after the coordinator has given another id or epoch."""
        new, old = self._machine.identity, self.producer.identity
        if new is None or (old is not None and (old.producer_id, old.epoch) == (new.producer_id, new.epoch)):
            return
        self._batches.clear()
        self.producer.identify(new.producer_id, new.epoch, self.transactional_id, transactions_v2=self._v2)


class KafkaTransactions(CoordinatedTransactions):
    """Stamps and transactions of one producer, by way of the coordinators of a real cluster.

    Args:
        access: The way to coordinators.
        transactional_id, timeout_s, v2, has_epoch_bump: See `CoordinatedTransactions`.
    """

    def __init__(
        self, access: CoordinatorAccess, transactional_id: str, timeout_s: float, *, v2: bool, has_epoch_bump: bool
    ) -> None:
        producer = IdempotentProducer(lambda: access.versions().remembered_batches, transactional=True)
        super().__init__(producer, transactional_id, timeout_s, access.backoff, v2=v2, has_epoch_bump=has_epoch_bump)
        self._access = access
        self._brokers: dict[int, Broker] = {}
        self._asked: set[tuple[CoordinatorType, str]] = set()
        self._stored: dict[KafkaMembership, dict[TopicPartition, Position]] = {}  # for brokers before 2.5
        self._deleted = DeletedTopics(access.metadata)  # among those whose positions are being stored

    async def add_positions(self, member: Membership, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions with the transaction (see `ProducerTransactions.add_positions`).

        Raises:
            UsageError: The member belongs to another cluster.
            GroupError: It does not own the partitions any more.
        """
        if not isinstance(member, KafkaMembership) or not member.shares(self._access):
            raise UsageError("a transaction stores positions of consumers of its own cluster only")
        self._machine.add_offsets(member.offsets(positions), member.token(positions))
        self._deleted = DeletedTopics(self._access.metadata, {partition.topic for partition in positions})
        if not self._access.versions().has_stable_offsets:
            self._remember(member, positions)
        await self._until_offsets_sent()

    def _remember(self, member: KafkaMembership, positions: Mapping[TopicPartition, Position]) -> None:
        if member not in self._stored:
            self._stored[member] = {}
            member.transaction_began()
        self._stored[member] |= positions

    def _notify_members(self) -> None:
        """Notify the members whose positions were part of the transaction that it has ended, and how."""
        stored, self._stored = self._stored, {}
        for member, positions in stored.items():
            member.transaction_ended(positions if self._machine.committed else {})

    async def _request(self, outgoing: Outgoing) -> Response:
        request = outgoing.request
        if isinstance(request, FindCoordinatorRequest):
            return await self._find(request)
        if isinstance(request, TxnOffsetCommitRequest):
            await self._check_topics(request)
        connection = self._access.connections.get(self._brokers[outgoing.node_id], "transactions")

        def build(versions: BrokerVersions) -> Request[Any]:
            if isinstance(request, TxnOffsetCommitRequest) and not versions.has_group_fencing:
                return unfenced(request)
            return request

        limits = VersionLimits(transactions_v2=outgoing.transactions_v2)
        response: Response = await connection.submit_built(type(request), build, limits=limits)
        unknown = _unknown(response)
        if unknown:
            # Deleted, probably, which the producer's routing table does not say yet: its records wait for an answer
            # that adds the partition, and no leader gets a chance to say so.
            with suppress(OdradekError):
                await self._access.metadata.refresh()
        if isinstance(response, TxnOffsetCommitResponse) and (deleted := self._deleted.of(unknown)):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self.fail(broker_error(code, f"TxnOffsetCommit of {self.transactional_id}: {deleted[0]}"))
        return response

    async def _check_topics(self, request: TxnOffsetCommitRequest) -> None:
        """Raise, and let the transaction only be aborted, if a topic was made again since its positions were added:
        requests name topics, and the coordinator would store positions of the former one for it."""
        positions = [TopicPartition(t.name, p.partition_index) for t in request.topics for p in t.partitions]
        if again := await self._deleted.made_again(positions):
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            error = broker_error(code, f"TxnOffsetCommit of {self.transactional_id}: {again[0]} was made again")
            self.fail(error)
            raise error

    async def _find(self, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        """Return the coordinator, by way of those that the cluster has found; the machine asks again if it moved."""
        kind, key = CoordinatorType(request.key_type), request.key
        if (kind, key) in self._asked:
            self._access.coordinators.forget(kind, key)
        self._asked.add((kind, key))
        try:
            broker = await self._access.coordinators.find(kind, key)
        except BrokerError as error:
            return FindCoordinatorResponse(error_code=error.code)
        self._brokers[broker.id] = broker
        return FindCoordinatorResponse(node_id=broker.id, host=broker.host, port=broker.port)


def _unknown(response: Response) -> list[TopicPartition]:
    """Return the partitions that the coordinator does not know."""
    answers: list[tuple[str, int, int]] = []
    if isinstance(response, AddPartitionsToTxnResponse):
        for topic in response.results_by_topic_v3_and_below:
            results = topic.results_by_partition
            answers += [(topic.name, each.partition_index, each.partition_error_code) for each in results]
    elif isinstance(response, TxnOffsetCommitResponse):
        for stored in response.topics:
            answers += [(stored.name, each.partition_index, each.error_code) for each in stored.partitions]
    return [TopicPartition(name, n) for name, n, code in answers if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def _commits(outgoing: Outgoing) -> bool:
    return isinstance(outgoing.request, EndTxnRequest) and outgoing.request.committed
