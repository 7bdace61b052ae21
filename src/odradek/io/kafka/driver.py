"""The protocol driver of Kafka 0.8 and later (`core.interfaces.ProtocolDriver`)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import shuffle
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from anyio.abc import TaskGroup

from odradek.core.interfaces import NOT_OPEN, ClusterStatistics
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.fetch_results import FailedReplicas
from odradek.core.kafka.leader_epochs import LeaderEpochs
from odradek.core.kafka.routing import KafkaRoutingTable
from odradek.core.kafka.versions import BrokerVersions
from odradek.core.observer_calls import ObserverCalls
from odradek.errors import Closed, ConfigError, MessageTooLarge, OdradekError, Rejected, Unsupported, UsageError
from odradek.io.connection import ConnectionOptions
from odradek.io.gather import background_tasks, gather
from odradek.io.kafka.broker_client import BrokerClientSettings, KafkaBrokerClient
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.connections import BrokerConnections
from odradek.io.kafka.coordinators import Coordinators, CoordinatorType
from odradek.io.kafka.log_access import KafkaLogAccess
from odradek.io.kafka.metadata import SILENCE_S, KafkaMetadata, MetadataOptions
from odradek.io.kafka.topic_check import TopicCheck
from odradek.io.retry import first_answer, may_be_of_one_broker, quickest_answer
from odradek.io.tls import ContextSource
from odradek.types import Broker, KiB
from odradek.wire.kafka import messages
from odradek.wire.kafka.schema import Request, Response

if TYPE_CHECKING:  # imported when they are first needed, with their messages
    from odradek.core.interfaces import (
        AnsweringBrokerPolicy,
        ProducerRecord,
        RawRequest,
        RawResponse,
        ShareSubscription,
        Subscription,
    )
    from odradek.core.kafka.member_states import MemberSettings
    from odradek.core.kafka.partitioners import Murmur2
    from odradek.io.kafka.admin import KafkaAdmin
    from odradek.io.kafka.authentication import TokenSource
    from odradek.io.kafka.handshake import Login
    from odradek.io.kafka.membership import KafkaMembership
    from odradek.io.kafka.metrics_pusher import MetricsPusher
    from odradek.io.kafka.offsets import CoordinatorAccess, KafkaOffsets
    from odradek.io.kafka.producer_sequences import KafkaProducerSequences
    from odradek.io.kafka.share_group import KafkaShareGroup
    from odradek.io.kafka.transactions import KafkaTransactions
    from odradek.io.proxy import Proxy
    from odradek.io.security import Security
    from odradek.observe.push import ClientMetrics

__all__ = ["KafkaDriver", "KafkaOptions"]

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

RECORD_BYTES = 34
"""Maximum size of what surrounds key and value: a message of format 1. A record of a batch takes up to 31 bytes."""

HEADER_BYTES = 10
"""Maximum size of the two lengths of a header."""

CONSUMER_PROTOCOL_TYPES = ("consumer", "")
"""Protocol types of groups of consumers; one without members, whose positions were committed from outside, has none."""

SESSION_TIMEOUT_S = 30.0
"""The longest session timeout that every release accepts by default (group.max.session.timeout.ms)."""

R = TypeVar("R", bound=Response)


class KafkaOptions(NamedTuple):
    """Options of one cluster.

    Args:
        connection: How connections to brokers are made.
        metadata: How brokers and topics are read.
        request_timeout_s: From a call to its outcome (s).
        client_id: In every request; brokers show it in logs, metrics and quotas.
        rack: Where this client runs: fetches go to a replica in the same rack where brokers allow it (KIP-392).
        session_timeout_s: A group removes a member after this time without a heartbeat (s).
        heartbeat_s: Time between two heartbeats of a member (s); less if a third of the session timeout is less.
        rebalance_timeout_s: Maximum time for members of a group to give up partitions and join again (s); more if a
            consumer's `revoke_within` needs more.
        observer: Told of what the driver does.
        metrics: Metrics of this client, pushed to brokers that ask for them; None: nothing is pushed.
        proxy: All connections go through it.
    """

    connection: ConnectionOptions = ConnectionOptions()
    metadata: MetadataOptions = MetadataOptions()
    request_timeout_s: float = 10.0
    client_id: str = "odradek"
    rack: str | None = None
    session_timeout_s: float = SESSION_TIMEOUT_S
    heartbeat_s: float = 3.0
    rebalance_timeout_s: float = 60.0
    observer: ObserverCalls | None = None
    metrics: ClientMetrics | None = None
    proxy: Proxy | None = None


class KafkaDriver:
    """A cluster of Kafka 0.8 or later.

    An asynchronous context manager. Entering reads the brokers from one of the bootstrap addresses, and raises
    Unreachable or AuthFailed; other connections are opened when they are first needed. Leaving closes all connections:
    what is outstanding fails with ConnectionLost. A defect on one connection ends that connection, never the others.

    Args:
        bootstrap: Some of its brokers; their ids are not used.
        options: See KafkaOptions.
        security: Options of TLS and SASL.
        tls: Connections use TLS.
        sasl: Connections authenticate.

    Raises:
        ConfigError: Options of `security` are missing, or contradict each other.
    """

    name = "kafka"
    long_poll = True
    refuses_batches = True
    batch_bytes = compressed_batch_bytes = 960 * KiB

    def __init__(
        self,
        bootstrap: Sequence[Broker],
        options: KafkaOptions | None = None,
        security: Security | None = None,
        *,
        tls: bool = False,
        sasl: bool = False,
    ) -> None:
        self._options = options or KafkaOptions()
        self.logs, self.observer = KafkaLogAccess(self), self._options.observer
        login, tokens = self._authentication(_or_default(security)) if sasl else (None, None)
        self.connections = BrokerConnections(
            frozenset(broker.address for broker in bootstrap),
            client_id=self._options.client_id,
            request_timeout_s=self._options.request_timeout_s,
            options=self._options.connection,
            tls=ContextSource(_or_default(security)) if tls else None,
            login=login,
            tokens=tokens,
            observer=self.observer,
            proxy=self._options.proxy,
        )
        self.epochs = LeaderEpochs()
        self._failed_replicas = FailedReplicas()
        self._metadata = KafkaMetadata(
            bootstrap, self.connections.ask_metadata, self._options.metadata, self.epochs.forget_topics
        )
        self.coordinators = Coordinators(self._ask_any)
        self._clients: dict[tuple[int, str], KafkaBrokerClient] = {}
        self._thread = 0  # in which it was entered
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._members = 0  # of groups, made so far

    def _authentication(self, security: Security) -> tuple[Login, TokenSource | None]:
        from odradek.io.kafka.authentication import TokenSource, login, token_provider

        provider, limits = token_provider(security), self._options.connection
        tokens = None if provider is None else TokenSource(provider, limits.connect_timeout_s, limits.backoff)
        return login(security, tokens), tokens

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._metadata!r} {self.connections!r}>"

    async def __aenter__(self) -> Self:
        self._thread = get_ident()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.connections)
            await stack.enter_async_context(self._metadata)
            self._tasks = await stack.enter_async_context(background_tasks())
            if self._options.metrics is not None:
                await stack.enter_async_context(self._metrics_pusher(self._options.metrics, self._tasks))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    @property
    def metadata(self) -> KafkaMetadata:
        """Brokers, topics and leaders (ProtocolDriver)."""
        if self._tasks is None:
            raise Closed(NOT_OPEN)
        return self._metadata

    def statistics(self) -> ClusterStatistics:
        """Return the counters of the connections (ProtocolDriver). Heartbeats that a consumer sends from a thread while
        its event loop is blocked are not counted."""
        return self.connections.statistics()

    def _metrics_pusher(self, metrics: ClientMetrics, tasks: TaskGroup) -> MetricsPusher:
        from odradek.io.kafka.metrics_pusher import MetricsPusher  # with messages that nothing else needs

        return MetricsPusher(metrics, self.connections, lambda: self.metadata.table.brokers.values(), tasks)

    # ---- brokers ---------------------------------------------------------------------------------------------

    def broker(self, broker: Broker, *, purpose: str) -> KafkaBrokerClient:
        """Return the client of a broker (ProtocolDriver). One whose address changed gets another connection; the old
        one is closed.

        Raises:
            Closed: Outside the block.
            UsageError: In another thread than that of the block.
        """
        if self._thread != get_ident():
            self._check_thread()
        client = self._clients.get((broker.id, purpose))
        if client is not None and (client.broker is broker or client.broker == broker) and client.connection.is_open:
            return client
        if client is not None:
            self.connections.close(client.broker, purpose)
        connection = self.connections.get(broker, purpose)
        settings = BrokerClientSettings(self._options.request_timeout_s, rack=self._options.rack or "")
        client = KafkaBrokerClient(
            broker,
            connection,
            versions=self.versions,
            routing=self._routing,
            on_leader=self._metadata.leader_changed,
            epochs=self.epochs,
            topics=TopicCheck(self.metadata),
            failed_replicas=self._failed_replicas,
            settings=settings,
        )
        self._clients[broker.id, purpose] = client
        return client

    def _check_thread(self) -> None:
        if self._thread:
            raise UsageError(
                f"{self!r} was used in another thread than that of its `async with` block: call it there, for example "
                "through loop.call_soon_threadsafe or anyio.from_thread"
            )

    async def coordinator(self, kind: CoordinatorType, key: str) -> KafkaConnection:
        """Return a connection to the coordinator of a group or transactional id, for its requests only: one that waits
        for other members holds up nothing else. See `Coordinators.find`."""
        broker = await self.coordinators.find(kind, key)
        return self.connections.get(broker, f"{kind.name.lower()} {key}")

    async def ask(self, api: type[Request[R]], build: Callable[[BrokerVersions], Request[R]]) -> R:
        """Send a request to any broker: each is tried once, until one answers. Cancellation: safe.

        Raises the error of the last one, or the first that each of them would have.
        """
        none = Closed(f"{self!r}: no broker is known")
        async with self._shuffled_brokers() as brokers:
            return await first_answer(
                brokers,
                lambda broker: self.connections.ask(broker, api, build),
                none,
                may_be_of_one_broker,
            )

    @asynccontextmanager
    async def _shuffled_brokers(self) -> AsyncIterator[list[Broker]]:
        """Yield the known brokers for one request. If none of them answers, the metadata are read again for the next
        one: all of them may have got other addresses."""
        if not self.metadata.table.brokers:  # the cluster has asked this client to begin again (KIP-1102)
            await self.metadata.refresh()
        brokers = list(self.metadata.table.brokers.values())
        shuffle(brokers)
        try:
            yield brokers
        except OdradekError as error:
            if error.retriable:
                with suppress(OdradekError):
                    await self.metadata.refresh()
            raise

    async def _ask_any(
        self, build: Callable[[BrokerVersions], messages.groups.FindCoordinatorRequest]
    ) -> messages.groups.FindCoordinatorResponse:
        api, none = messages.groups.FindCoordinatorRequest, Closed(f"{self!r}: no broker is known")
        async with self._shuffled_brokers() as brokers:
            return await quickest_answer(brokers, lambda each: self.connections.ask(each, api, build), none, SILENCE_S)

    def _routing(self) -> KafkaRoutingTable:
        return self._metadata.table.state

    def versions(self) -> BrokerVersions:
        """Return what every broker met so far has: what holds for the whole cluster."""
        common = self.connections.known.common()
        if common is None:
            raise Closed(NOT_OPEN)
        return common

    # ---- the rules -------------------------------------------------------------------------------------------

    @property
    def compressions(self) -> frozenset[str]:
        """Names of the compressions that every broker met so far can store."""
        known = self.connections.known
        later = {"lz4": known.all_have(lambda v: v.has_lz4), "zstd": known.all_have(lambda v: v.has_zstd)}
        return frozenset({"none", "gzip", "snappy", *(name for name, has in later.items() if has)})

    @property
    def has_headers(self) -> bool:
        """True if every broker met so far can store headers (0.11 and later)."""
        return self.connections.known.all_have(lambda v: v.has_headers)

    def refusal_policy(self) -> AnsweringBrokerPolicy:
        """Return a policy that gives up nothing: brokers say why they refuse a batch."""
        from odradek.core.interfaces import AnsweringBrokerPolicy

        return AnsweringBrokerPolicy()

    def producer_sequences(self) -> KafkaProducerSequences | None:
        """Return what makes one producer idempotent (see `ProtocolDriver`): 0.11 and later."""
        if not self.connections.known.all_have(lambda v: v.has_idempotence):
            return None
        from odradek.io.kafka.producer_sequences import KafkaProducerSequences

        return KafkaProducerSequences(lambda request: self.ask(type(request), lambda versions: request), self.versions)

    def producer_transactions(self, transactional_id: str, timeout_s: float) -> KafkaTransactions:
        """Return the transactions of one producer (see `ProtocolDriver`). Raises Unsupported before 0.11."""
        known = self.connections.known
        if not known.all_have(lambda v: v.has_transactions):
            raise Unsupported("a transaction (transactional_id)", "Kafka 0.11, and log.message.format.version 0.11")
        from odradek.io.kafka.transactions import KafkaTransactions

        return KafkaTransactions(
            self._coordinator_access(),
            transactional_id,
            timeout_s,
            v2=self.versions().has_transactions_v2,
            has_epoch_bump=known.all_have(lambda v: v.has_epoch_bump),
        )

    def default_partitioner(self) -> Murmur2:
        """Return the partitioner of producers that name none: that of Java's client."""
        from odradek.core.kafka.partitioners import Murmur2

        return Murmur2()

    def validate_record(self, topic: str, record: ProducerRecord, max_message_bytes: int) -> None:
        """Validate a record (see `ProtocolDriver`)."""
        known = self.connections.known
        if record.headers and not known.all_have(lambda v: v.has_headers):
            raise Unsupported("a header", "Kafka 0.11")
        if record.timestamp is not None and not known.all_have(lambda v: v.has_timestamps):
            raise Unsupported("a timestamp", "Kafka 0.10")
        if refusal := _refusal_of(topic):
            raise Rejected([record], refusal)
        if (size := self.record_size(record)) > max_message_bytes:
            too_large = MessageTooLarge(topic, -1, size, max_message_bytes, "max_message_bytes")
            raise Rejected([record], str(too_large)) from too_large

    def record_size(self, record: ProducerRecord) -> int:
        """Return the most bytes a record takes on the wire, in any format."""
        value, key, headers, _ = record
        size = RECORD_BYTES + len(value or b"") + len(key or b"")
        return size + sum([HEADER_BYTES + len(name.encode()) + len(content or b"") for name, content in headers])

    # ---- groups ----------------------------------------------------------------------------------------------

    def membership(self, subscription: Subscription) -> KafkaMembership:
        """Return a member of a group.

        Raises:
            Unsupported, ConfigError: See `group_protocol`: raised here if a broker was met already, else by `run`.
            ConfigError: It names an unknown assignor, or no topic can have a name of it: where brokers assign, they
                take such a name for that of a topic to come.
        """
        from odradek.core.kafka.group_protocol import group_protocol
        from odradek.io.kafka.group_topics import GroupTopics
        from odradek.io.kafka.member_runner import MemberRunner
        from odradek.io.kafka.membership import KafkaMembership

        for refusal in filter(None, map(_refusal_of, subscription.topics or ())):
            raise ConfigError(refusal)
        settings = self._member_settings(subscription)
        if (common := self.connections.known.common()) is not None:
            group_protocol(subscription, settings, common)
        self._members += 1
        access, topics = self._coordinator_access(), GroupTopics(subscription, self._metadata, self.ask)
        return KafkaMembership(
            MemberRunner(
                access,
                topics,
                subscription,
                settings,
                spawn=self._spawn,
                number=self._members,
                observer=self.observer,
            )
        )

    def _member_settings(self, subscription: Subscription) -> MemberSettings:
        from odradek.core.kafka.member_states import MemberSettings

        options = self._options
        return MemberSettings(
            subscription.group,
            instance_id=subscription.consumer_id,
            rack=options.rack,
            session_timeout_s=options.session_timeout_s,
            # Giving up partitions ends with a commit, which takes up to the time limit of a request.
            rebalance_timeout_s=max(
                options.rebalance_timeout_s, subscription.revoke_within + 2 * options.request_timeout_s
            ),
            heartbeat_interval_s=min(options.heartbeat_s, options.session_timeout_s / 3),
        )

    def share_group(self, subscription: ShareSubscription) -> KafkaShareGroup:
        """Return a member of a share group, which has yet to join."""
        from odradek.core.interfaces import Subscription
        from odradek.core.kafka.member_states import MemberSettings
        from odradek.io.kafka.group_topics import GroupTopics
        from odradek.io.kafka.share_group import KafkaShareGroup

        self._members += 1
        options, topics = self._options, dict.fromkeys(subscription.topics, 1)
        group_topics = GroupTopics(Subscription(subscription.group, topics), self._metadata, self.ask)
        settings = MemberSettings(subscription.group, rack=options.rack, heartbeat_interval_s=options.heartbeat_s)
        return KafkaShareGroup(self._coordinator_access(), group_topics, subscription, settings, self._members)

    def offsets(self, group: str) -> KafkaOffsets:
        """Return the committed positions of a group."""
        from odradek.io.kafka.offsets import KafkaOffsets

        return KafkaOffsets(self._coordinator_access(), group)

    async def groups(self) -> list[str]:
        """Return the groups of consumers, sorted: each broker lists those that it coordinates.

        Raises:
            Unsupported: The brokers are older than 0.9.
        """
        if not self.versions().has(messages.groups.ListGroupsRequest):
            raise Unsupported("listing groups", "Kafka 0.9")
        brokers = (await self.metadata.refresh()).brokers  # what only one that has just joined lists would be missing
        listed = await gather(self._groups_of, brokers.values())
        return sorted({group for groups in listed for group in groups})

    async def _groups_of(self, broker: Broker) -> list[str]:
        request = messages.groups.ListGroupsRequest()
        response = await self.connections.ask(broker, type(request), lambda versions: request)
        if response.error_code:
            raise broker_error(response.error_code, f"{broker.address}: ListGroups")
        return [group.group_id for group in response.groups if group.protocol_type in CONSUMER_PROTOCOL_TYPES]

    def admin(self) -> KafkaAdmin:
        """Return the administration of this cluster."""
        from odradek.io.kafka.admin import KafkaAdmin
        from odradek.io.kafka.admin_requests import AdminRequests

        return KafkaAdmin(AdminRequests(self._coordinator_access(), self.metadata))

    async def request(self, request: RawRequest) -> RawResponse:
        """Send a request as it is (see `ProtocolDriver`)."""
        from odradek.io.kafka.raw_requests import send_raw  # with all messages, which nothing else needs

        return await send_raw(request, self._coordinator_access())

    def _coordinator_access(self) -> CoordinatorAccess:
        from odradek.io.kafka.offsets import CoordinatorAccess

        options = self._options
        return CoordinatorAccess(
            self.connections,
            self.coordinators,
            self.ask,
            self.versions,
            self.epochs,
            self._metadata,
            options.request_timeout_s,
            options.connection.backoff,
        )

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` until it returns or this driver is closed."""
        if self._tasks is None:
            raise Closed(NOT_OPEN)
        self._tasks.start_soon(work)


def _or_default(security: Security | None) -> Security:
    from odradek.io.security import Security

    return security or Security()


def _refusal_of(topic: str) -> str:
    """Return why no topic can have this name; an empty text if one can."""
    if TOPIC_NAME.fullmatch(topic) and topic not in (".", ".."):
        return ""
    return f"topic {topic!r}: a name has 1 to 249 of the characters a-z A-Z 0-9 . _ -"
