"""One client's driver of an in-memory cluster (`core.interfaces.ProtocolDriver`)."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn, Self

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from odradek.client.options import Tuning
from odradek.core.interfaces import (
    NOT_OPEN,
    AnsweringBrokerPolicy,
    ClusterStatistics,
    ProducerRecord,
    RawRequest,
    ShareSubscription,
    Subscription,
)
from odradek.core.kafka.batch_sequences import BatchSequences
from odradek.core.kafka.partitioners import Murmur2
from odradek.core.kafka.producer_state import IdempotentProducer
from odradek.core.observer_calls import ObserverCalls
from odradek.errors import Closed, MessageTooLarge, OdradekError, Rejected, Unsupported
from odradek.io.observation import ConnectionObservation
from odradek.testing.memory.admin import MemoryAdmin
from odradek.testing.memory.broker import MemoryBrokerClient
from odradek.testing.memory.groups import MemoryMembership, MemoryOffsets
from odradek.testing.memory.log import TOPIC_NAME, record_bytes
from odradek.testing.memory.log_access import MemoryLogAccess
from odradek.testing.memory.metadata import MemoryMetadata
from odradek.testing.memory.share import MemoryShareGroup
from odradek.testing.memory.state import ClusterState
from odradek.testing.memory.transactions import MemoryTransactions
from odradek.types import Broker, KiB

__all__ = ["MemoryDriver"]


class MemorySequences(BatchSequences):
    """Stamps of the batches of one producer without transactions.

    Args:
        state: The cluster.
    """

    def __init__(self, state: ClusterState) -> None:
        super().__init__(IdempotentProducer())
        self._state = state

    async def identify(self) -> None:
        """Get an identity (see `ProducerSequences.identify`): here without a request."""
        self.set_identity(self._state.transactions.next_producer_id(), 0)


class MemoryDriver:
    """One client of an in-memory cluster.

    Args:
        state: The cluster.
        tuning: Time limits and back-off.
        observer: Told of what this client does.
    """

    name = "memory"
    long_poll = True
    compressions = frozenset({"none", "gzip", "snappy", "lz4", "zstd"})
    refuses_batches = has_headers = True
    batch_bytes = compressed_batch_bytes = 960 * KiB

    def __init__(self, state: ClusterState, tuning: Tuning, observer: ObserverCalls | None = None) -> None:
        self.observer = observer
        self._metadata = MemoryMetadata(state, tuning.request_timeout)
        self._state, self._tuning = state, tuning
        self.logs = MemoryLogAccess(self)
        self._clients: dict[tuple[Broker, str], MemoryBrokerClient] = {}
        self._tasks: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._clients)} connections>"

    async def __aenter__(self) -> Self:
        await self._state.serve("connect", self._tuning.connect_timeout)
        self._tasks = await anyio.create_task_group().__aenter__()
        self._state.clients.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        self._state.clients.discard(self)
        self._metadata.is_open = False
        self._state.changed.notify()
        for client in self._clients.values():
            if client.observation is not None:
                client.observation.ended("closed by this client", lost=False)
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)

    def _check_open(self) -> TaskGroup:
        if self._tasks is None:
            raise Closed(NOT_OPEN)
        return self._tasks

    @property
    def metadata(self) -> MemoryMetadata:
        """Brokers, topics and leaders. Raises Closed outside the block."""
        self._check_open()
        return self._metadata

    def broker(self, broker: Broker, *, purpose: str) -> MemoryBrokerClient:
        """Return the client of a broker: see `ProtocolDriver.broker`. Raises Closed outside the block."""
        client = self._clients.get((broker, purpose))
        if client is None:
            tasks = self._check_open()
            client = self.client_of(broker)
            if self.observer is not None:
                client.observation = ConnectionObservation(self.observer, broker, purpose)
            self._clients[broker, purpose] = client
            tasks.start_soon(client.run)
        return client

    def client_of(self, broker: Broker) -> MemoryBrokerClient:
        """Make the client of a broker."""
        return MemoryBrokerClient(broker, self._state, self._tuning, lambda topic: self.metadata.table.topic_id(topic))

    def cut(self, broker: int, error: OdradekError, applied: int) -> None:
        """Cut the connections of this client to a broker: see `MemoryCluster.cut`."""
        for client in self._clients.values():
            if client.broker.id == broker:
                client.cut(error, applied)

    def statistics(self) -> ClusterStatistics:
        """Return the counters of the connections: see `ProtocolDriver.statistics`."""
        clients = self._clients.values()
        connected = [client for client in clients if client.is_connected]
        return ClusterStatistics(
            brokers=len({client.broker for client in connected}),
            connections=len(connected),
            connects=sum(client.connects for client in clients),
            losses=sum(client.losses for client in clients),
            requests=sum(client.requests for client in clients),
        )

    # ---- the rules --------------------------------------------------------------------------------------------

    def refusal_policy(self) -> AnsweringBrokerPolicy:
        """Return a policy that gives up nothing: an in-memory broker answers every request."""
        return AnsweringBrokerPolicy()

    def producer_sequences(self) -> MemorySequences:
        """Return what makes one producer idempotent (see `ProtocolDriver`)."""
        return MemorySequences(self._state)

    def producer_transactions(self, transactional_id: str, timeout_s: float) -> MemoryTransactions:
        """Return the transactions of one producer (see `ProtocolDriver`)."""
        return MemoryTransactions(self._state, transactional_id, timeout_s, self._tuning)

    def default_partitioner(self) -> Murmur2:
        """Return the partitioner of producers that name none: that of a real cluster of 0.8 or later."""
        return Murmur2()

    def validate_record(self, topic: str, record: ProducerRecord, max_message_bytes: int) -> None:
        """Raise Rejected for a topic name or a size that cannot be: see ProtocolDriver."""
        if not TOPIC_NAME.fullmatch(topic):
            raise Rejected([record], f"topic {topic!r}: a name has 1 to 249 of the characters a-z A-Z 0-9 . _ -")
        if (size := record_bytes(record)) > max_message_bytes:
            too_large = MessageTooLarge(topic, -1, size, max_message_bytes, "max_message_bytes")
            raise Rejected([record], str(too_large)) from too_large

    def record_size(self, record: ProducerRecord) -> int:
        """Return what a record counts towards limits (bytes)."""
        return record_bytes(record)

    async def request(self, request: RawRequest) -> NoReturn:
        """Raise Unsupported."""
        raise Unsupported("a raw request", "a real cluster, of Kafka 0.8 or later")

    # ---- groups -----------------------------------------------------------------------------------------------

    def membership(self, subscription: Subscription) -> MemoryMembership:
        """Return a member of a group, which has yet to join."""
        return MemoryMembership(self._state, subscription, self._tuning.request_timeout, self._tuning.backoff)

    def share_group(self, subscription: ShareSubscription) -> MemoryShareGroup:
        """Return a member of a share group, which has yet to join."""
        return MemoryShareGroup(self._state, subscription, self._tuning.request_timeout)

    def offsets(self, group: str) -> MemoryOffsets:
        """Return the stored positions of a group."""
        self._check_open()
        return MemoryOffsets(self._state, group, self._tuning.request_timeout)

    def admin(self) -> MemoryAdmin:
        """Return the administration of this cluster."""
        self._check_open()
        return MemoryAdmin(self._state)

    async def groups(self) -> list[str]:
        """Return the names of all groups, sorted. Cancellation: safe."""
        await anyio.lowlevel.checkpoint()
        self._check_open()
        return sorted(name for name, group in self._state.groups.items() if group.exists)
