"""The protocol driver of 0.7: its rules, its metadata, and its brokers (`core.interfaces.ProtocolDriver`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any, NoReturn, Self

from anyio.abc import TaskGroup

from odradek.core.interfaces import (
    NOT_OPEN,
    ClusterMetadata,
    ClusterStatistics,
    DecoderOptions,
    PartitionFetch,
    ProducerRecord,
    RawRequest,
    ShareSubscription,
    Subscription,
)
from odradek.core.kafka07.refusal import ClosingBrokerPolicy
from odradek.core.kafka07.znodes import GROUPS, MAX_PARTITIONS
from odradek.core.observer_calls import ObserverCalls
from odradek.core.produce.partitioners import KeyHash
from odradek.errors import (
    BrokerError,
    Closed,
    ConfigError,
    InternalError,
    LocalProtocolError,
    MessageTooLarge,
    OffsetOutOfRange,
    Rejected,
    RemoteProtocolError,
    Unsupported,
    UsageError,
)
from odradek.io.connection import Connection, ConnectionOptions
from odradek.io.connection_totals import ConnectionTotals
from odradek.io.gather import background_tasks
from odradek.io.kafka07.admin import Kafka07Admin
from odradek.io.kafka07.broker_client import BrokerClientOptions, Kafka07BrokerClient
from odradek.io.kafka07.log_access import Kafka07LogAccess
from odradek.io.kafka07.membership import RebalanceOptions, ZooKeeperMembership
from odradek.io.kafka07.metadata import StaticMetadata, ZooKeeperMetadata, broker_list
from odradek.io.kafka07.offsets import ZooKeeperOffsets
from odradek.io.observation import ConnectionObservation
from odradek.io.proxy import Proxy
from odradek.io.tcp import connect
from odradek.io.zookeeper import ZooKeeper
from odradek.types import Broker, KiB, Position, TopicPartition
from odradek.wire.kafka07.message_set import entry_bytes
from odradek.wire.kafka07.responses import Kafka07ErrorCode
from odradek.wire.kafka07.topic_names import check_topic

__all__ = ["Kafka07Driver", "Kafka07Options"]

log = logging.getLogger(__name__)

PROBE_PARTITIONS = 256
"""Partitions asked for in one request. A broker with more of one topic is asked again."""


SESSION_TIMEOUT_S = 6.0
"""The default of 0.7's own clients (zk.sessiontimeout.ms)."""


@dataclass(frozen=True, slots=True)
class Kafka07Options:
    """The options of one 0.7 cluster.

    Args:
        session_timeout_s: ZooKeeper considers this client dead after this long without a sign of life (s).
        zookeeper_timeout_s: For connecting to ZooKeeper, and for each call (s).
        connection: How connections to brokers are made.
        api: How requests are made.
        rebalance: How often, and how long, claiming partitions is retried.
        observer: Told of what the driver does.
        proxy: All connections to brokers go through it.
    """

    session_timeout_s: float = SESSION_TIMEOUT_S
    zookeeper_timeout_s: float = SESSION_TIMEOUT_S
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    api: BrokerClientOptions = field(default_factory=BrokerClientOptions)
    rebalance: RebalanceOptions = field(default_factory=RebalanceOptions)
    observer: ObserverCalls | None = None
    proxy: Proxy | None = None


class Kafka07Driver:
    """A 0.7 cluster, over its ZooKeeper or a list of its brokers.

    An asynchronous context manager. Entering connects to ZooKeeper and reads the brokers, and raises Unreachable or
    ConfigError; connections to brokers are opened when they are first needed. Leaving closes all connections: what is
    outstanding fails with ConnectionLost. A defect on one connection ends that connection, never the others.

    Args:
        zookeeper: `host:port,host:port/chroot`.
        brokers: Instead of ZooKeeper: `host:port` or `id@host:port` each. There are no groups and no topic lists then.
        auth: Credentials for ZooKeeper, as `(scheme, credential)` pairs.
        options: See Kafka07Options.
    """

    name = "kafka07"
    long_poll = False
    compressions = frozenset({"none", "gzip", "snappy"})
    refuses_batches = False
    has_headers = False
    batch_bytes = 960 * KiB
    compressed_batch_bytes = 256 * KiB  # a larger wrapper may be too large for consumers of 0.7.0, which fetch 300 KiB

    def __init__(
        self,
        *,
        zookeeper: str | None = None,
        brokers: Sequence[str] = (),
        auth: Sequence[tuple[str, str]] = (),
        options: Kafka07Options | None = None,
    ) -> None:
        if (zookeeper is None) == (not brokers):
            raise ConfigError("a 0.7 cluster is reached either through ZooKeeper or through a list of brokers")
        self._options = options or Kafka07Options()
        self.logs, self.observer = Kafka07LogAccess(self), self._options.observer
        self._brokers = broker_list(brokers) if brokers else []
        self._zk = None if zookeeper is None else self._session(zookeeper, auth)
        self._metadata: ZooKeeperMetadata | StaticMetadata | None = None
        self._clients: dict[tuple[int, str], Kafka07BrokerClient] = {}
        self._totals = ConnectionTotals()
        self._tasks: TaskGroup | None = None
        self._thread = 0  # in which it was entered
        self._stack = AsyncExitStack()

    def _session(self, hosts: str, auth: Sequence[tuple[str, str]]) -> ZooKeeper:
        options = self._options
        return ZooKeeper(
            hosts,
            session_timeout=options.session_timeout_s,
            connect_timeout=options.zookeeper_timeout_s,
            auth=auth,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._metadata or 'not open'} connections={len(self._clients)}>"

    async def __aenter__(self) -> Self:
        self._thread = get_ident()
        async with AsyncExitStack() as stack:
            self._tasks = await stack.enter_async_context(background_tasks())
            if self._zk is None:
                metadata: ZooKeeperMetadata | StaticMetadata = StaticMetadata(self._brokers, self._count_partitions)
            else:
                metadata = ZooKeeperMetadata(await stack.enter_async_context(self._zk))
            self._metadata = await stack.enter_async_context(metadata)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks = None
        await self._stack.__aexit__(kind, error, trace)

    @property
    def metadata(self) -> ClusterMetadata:
        if self._metadata is None:
            raise Closed(NOT_OPEN)
        return self._metadata

    def statistics(self) -> ClusterStatistics:
        """Return the counters of the connections to brokers (ProtocolDriver)."""
        return self._totals.statistics()

    # ---- brokers --------------------------------------------------------------------------------------------

    def broker(self, broker: Broker, *, purpose: str) -> Kafka07BrokerClient:
        """Return the client of a broker (ProtocolDriver).

        A broker whose address changed gets another connection, and so does one whose connection ended by a defect; the
        old one is closed.

        Raises:
            Closed: Outside the block.
            UsageError: In another thread than that of the block.
        """
        if self._thread != get_ident():
            self._check_thread()
        client = self._clients.get((broker.id, purpose))
        if client is not None and (client.broker is broker or client.broker == broker):
            return client
        if self._tasks is None:
            raise Closed(NOT_OPEN)
        if client is not None:
            self._tasks.start_soon(client.connection.aclose)
        observed = None if self.observer is None else ConnectionObservation(self.observer, broker, purpose)
        connection = Connection(
            broker.host,
            broker.port,
            connect=partial(connect, proxy=self._options.proxy),
            options=self._options.connection,
            observation=observed,
        )
        self._totals.add(connection)
        client = Kafka07BrokerClient(broker, connection, self._options.api)
        self._tasks.start_soon(self._run, client, purpose)
        self._clients[broker.id, purpose] = client
        return client

    def _check_thread(self) -> None:
        if self._tasks is not None:
            raise UsageError(
                f"{self!r} was used in another thread than that of its `async with` block: call it there, for example "
                "through loop.call_soon_threadsafe or anyio.from_thread"
            )

    async def _run(self, client: Kafka07BrokerClient, purpose: str) -> None:
        """Run a connection. A defect that ends it has failed its requests; others must not see it."""
        try:
            await client.connection.run()
        except InternalError:  # logged by the connection
            if self._clients.get((client.broker.id, purpose)) is client:
                del self._clients[client.broker.id, purpose]
        finally:
            self._totals.remove(client.connection)

    async def _count_partitions(self, broker: Broker, topic: str) -> int:
        """Return how many partitions a broker has of a topic: those not answered by code 3 (specification.md 3.2).

        Asking for no bytes creates nothing. A topic without messages has its configured number.
        """
        client = self.broker(broker, purpose="control")
        for first in range(0, MAX_PARTITIONS, PROBE_PARTITIONS):
            asked = [TopicPartition(topic, n, broker.id) for n in range(first, first + PROBE_PARTITIONS)]
            fetches = [PartitionFetch(client.decoder(p, Position(0), DecoderOptions()), 0) for p in asked]
            await client.fetch(fetches)
            for partition, error in zip(asked, [fetch.error for fetch in fetches], strict=True):
                if isinstance(error, BrokerError) and error.code == Kafka07ErrorCode.WRONG_PARTITION:
                    return partition.partition
                if error is not None and not isinstance(error, OffsetOutOfRange):
                    raise error
        raise RemoteProtocolError(f"{broker.address} claims to have more than {MAX_PARTITIONS} partitions of {topic}")

    # ---- the rules ------------------------------------------------------------------------------------------

    def refusal_policy(self) -> ClosingBrokerPolicy:
        """Return the policy for brokers that refuse a produce by closing the connection (see `ProtocolDriver`)."""
        return ClosingBrokerPolicy()

    def producer_sequences(self) -> None:
        """Return None: 0.7 brokers do not notice repeated batches."""

    def producer_transactions(self, transactional_id: str, timeout_s: float) -> NoReturn:
        """Raise Unsupported."""
        raise Unsupported("a transaction (transactional_id)", "Kafka 0.11")

    def default_partitioner(self) -> KeyHash:
        """Return the partitioner of producers that name none."""
        return KeyHash()

    def validate_record(self, topic: str, record: ProducerRecord, max_message_bytes: int) -> None:
        """Validate a record (see `ProtocolDriver`). Keys are allowed: they choose the partition, and are not stored."""
        if record.headers:
            raise Unsupported("a header", "Kafka 0.11")
        if record.timestamp is not None:
            raise Unsupported("a timestamp", "Kafka 0.10")
        if record.value is None:
            raise Unsupported("a null value", "Kafka 0.8")
        try:
            check_topic(topic)
        except LocalProtocolError as error:
            raise Rejected([record], str(error)) from error
        if len(record.value) > max_message_bytes:
            too_large = MessageTooLarge(topic, -1, len(record.value), max_message_bytes, "max_message_bytes")
            raise Rejected([record], str(too_large)) from too_large

    def record_size(self, record: ProducerRecord) -> int:
        """Return the size of a record on the wire (see `ProtocolDriver.record_size`)."""
        return entry_bytes(len(record.value or b""))

    # ---- groups ---------------------------------------------------------------------------------------------

    async def request(self, request: RawRequest) -> NoReturn:
        """Raise Unsupported."""
        raise Unsupported("a raw request", "Kafka 0.8")

    def share_group(self, subscription: ShareSubscription) -> NoReturn:
        """Raise Unsupported."""
        raise Unsupported("a share group", "Kafka 4.2")

    def membership(self, subscription: Subscription) -> ZooKeeperMembership:
        """Return a member of a group, in this cluster's ZooKeeper session.

        Raises:
            Unsupported: Without ZooKeeper, or with assignors, a group protocol or commit metadata.
            ConfigError: ZooKeeper refuses the name of the group or consumer, or a broker that of a topic.
        """
        if subscription.assignors is not None:
            raise Unsupported("a choice of assignors", "Kafka 0.9: members of 0.7 share partitions by one rule")
        if subscription.group_protocol is not None:
            raise Unsupported("a choice of the group's protocol", "Kafka 0.9")
        if subscription.commit_metadata:
            raise Unsupported("metadata of commits (commit_metadata)", "Kafka 0.9")
        zookeeper = self._zookeeper("a consumer group")
        return ZooKeeperMembership(zookeeper, subscription, self._options.rebalance, self._spawn)

    def offsets(self, group: str) -> ZooKeeperOffsets:
        """Return the stored positions of a group. Raises Unsupported without ZooKeeper."""
        return ZooKeeperOffsets(self._zookeeper("storing positions"), group)

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` until it returns or this driver is closed. An error of it is logged: the cluster lives on."""
        if self._tasks is not None:
            self._tasks.start_soon(self._guard, work)

    async def _guard(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception:
            log.exception("%r: a background task failed", self)

    def admin(self) -> Kafka07Admin:
        """Return the little administration that 0.7 has."""
        return Kafka07Admin(self.metadata, self._zookeeper)

    async def groups(self) -> list[str]:
        return await self._zookeeper("listing groups").children(GROUPS) or []

    def _zookeeper(self, feature: str) -> ZooKeeper:
        if self._zk is None:
            raise Unsupported(feature, "ZooKeeper")
        return self._zk
