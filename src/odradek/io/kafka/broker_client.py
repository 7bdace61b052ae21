"""The data requests of one broker of Kafka 0.8 or later, over one connection: `core.interfaces.BrokerClient`.

Requests are made for the broker that a connection leads to, when they leave. A long poll uses a fetch session, so that
thousands of idle partitions are named once; other fetches name what they want, because several may be in flight. The
polls of `SessionPolls` keep the parts of their requests, too, from one to the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio

from odradek.core.kafka.fetch_results import FailedReplicas
from odradek.core.kafka.fetch_session import FetchRequestSettings, FetchSession
from odradek.core.kafka.leader_epochs import LeaderEpochs
from odradek.core.kafka.list_offsets import Outcome, list_offsets_request, read_ends, read_list_offsets
from odradek.core.kafka.routing import KafkaRoutingTable
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import ConfigError, OdradekError, RemoteProtocolError
from odradek.io.kafka.connection import NO_LIMITS, KafkaConnection, VersionLimits
from odradek.io.kafka.epoch_check import exclude_truncated
from odradek.io.kafka.fetch_exchange import MAX_RESPONSE_BYTES, FetchExchange, PartitionExchange
from odradek.io.kafka.log_decoder import KafkaLogDecoder
from odradek.io.kafka.topic_check import TopicCheck
from odradek.io.requests import InFlightRequest
from odradek.types import EARLIEST, LATEST, AtTime, Broker, Position, PositionSpec, TopicPartition
from odradek.wire.kafka.fetch_response import FetchResponseDecoder
from odradek.wire.kafka.messages.data import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
)
from odradek.wire.kafka.schema import ZERO_UUID

if TYPE_CHECKING:
    from odradek.core.interfaces import DecoderOptions, LogDecoder, PartitionBatch, PartitionFetch
    from odradek.core.kafka.produce import OnLeader
    from odradek.io.kafka.produce_exchange import ProduceExchange

__all__ = ["BrokerClientSettings", "KafkaBrokerClient"]

T = TypeVar("T")

FETCH_ATTEMPTS = 3
"""Requests for one fetch: a broker may have forgotten a session, or count otherwise."""


class BrokerClientSettings(NamedTuple):
    """Settings of a broker client.

    Args:
        request_timeout_s: Time limit from a call to its outcome (s).
        max_message_bytes: The largest batch for encoding again on another release's connection (bytes).
        rack: Where this client runs, for fetching from the nearest replica.
    """

    request_timeout_s: float = 30.0
    max_message_bytes: int = 1 << 30
    rack: str = ""


class _Polled(NamedTuple):
    """A long poll in a session, and the routing table that its parts are of."""

    exchange: FetchExchange
    table: KafkaRoutingTable


class KafkaBrokerClient:
    """Implementation of `core.interfaces.BrokerClient`. Its creator runs the connection.

    Args:
        broker: The broker it sends requests to.
        connection: Connection to that broker; not shared with other purposes.
        versions: Returns what is known of the broker before its first connection: what the cluster's other brokers can.
        routing: Returns the routing table.
        on_leader: Told of leaders that responses name.
        epochs: Told of the epochs of records that were fetched.
        topics: Notices topics that were made again.
        failed_replicas: Those that leaders prefer, and that have failed; shared by all clients of a cluster.
        settings: See `BrokerClientSettings`.
        clock: Seconds since the epoch: the timestamp of records that have none.
    """

    def __init__(
        self,
        broker: Broker,
        connection: KafkaConnection,
        *,
        versions: Callable[[], BrokerVersions],
        routing: Callable[[], KafkaRoutingTable],
        on_leader: OnLeader,
        epochs: LeaderEpochs,
        topics: TopicCheck,
        failed_replicas: FailedReplicas,
        settings: BrokerClientSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.broker, self.connection = broker, connection
        self._cluster_versions, self._routing, self._on_leader = versions, routing, on_leader
        self._epochs, self._topics, self._settings, self._clock = epochs, topics, settings, clock
        self._failed_replicas = failed_replicas
        self._session = FetchSession()
        self._in_session = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} broker {self.broker.id} {self.connection!r}>"

    @property
    def incarnation(self) -> int:
        """Incarnation of the connection: grows when it is replaced (see `BrokerClient`)."""
        return self.connection.connection.incarnation

    @property
    def available_at(self) -> float:
        """Time from which on a request is not delayed by a back-off (see `BrokerClient`)."""
        return self.connection.connection.available_at

    @property
    def versions(self) -> BrokerVersions:
        """Versions of the broker, as of its latest connection."""
        session = self.connection.connection.session
        return self._cluster_versions() if session is None else session.versions

    # ---- produce --------------------------------------------------------------------------------------------

    def encode(self, batch: PartitionBatch, max_message_bytes: int) -> None:
        """Encode a batch for the release of the broker (see `BrokerClient.encode`)."""
        if batch.encoded is None:
            from odradek.core.kafka.produce import encode_into

            encode_into(batch, self.versions, max_message_bytes, int(self._clock() * 1000))

    def produce(self, batches: Sequence[PartitionBatch], *, acks: int) -> InFlightRequest[Any]:
        """Send batches (see `BrokerClient.produce`). With `acks=0` the result is None.

        Raises:
            Closed: Nothing was queued.
        """
        exchange = self._new_exchange(batches, acks)
        connection = self.connection
        connection.renew_session()
        # The broker waits for its replicas, and answers after that time at the latest.
        timeout_s = (2 if acks else 1) * self._settings.request_timeout_s
        observed = None if connection.observation is None else connection.observation.of("", exchange)
        pending: InFlightRequest[Any] = connection.connection.submit(
            (), None, deadline_s=timeout_s, request=exchange, observation=observed
        )
        return pending

    def produce_plain(
        self, batches: Sequence[PartitionBatch], *, acks: int, max_message_bytes: int
    ) -> InFlightRequest[Any] | None:
        """Send small batches, encoded all at once (see `BrokerClient.produce_plain`). Each has a checksum and
        timestamps, so that it is encoded once: `encoded` is set."""
        if not self._encode_small(batches, self.versions, max_message_bytes, int(self._clock() * 1000)):
            return None
        return self.produce(batches, acks=acks)

    @cached_property
    def _encode_small(self) -> Callable[[Sequence[PartitionBatch], BrokerVersions, int, int], bool]:
        from odradek.core.kafka.produce import encode_small  # with the first request

        return encode_small

    @cached_property
    def _new_exchange(self) -> Callable[[Sequence[PartitionBatch], int], ProduceExchange]:
        """Function that makes the exchange of a produce request. Imported when the first one is made."""
        from odradek.io.kafka.produce_exchange import ProduceContext, ProduceExchange

        settings = self._settings
        context = ProduceContext(
            self.broker.address,
            self.connection,
            int(settings.request_timeout_s * 1000),
            settings.max_message_bytes,
            self._now_ms,
            self._topic_ids,
            self._on_leader,
        )
        return partial(ProduceExchange, context)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    # ---- fetch ----------------------------------------------------------------------------------------------

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        """Fetch partitions (see `BrokerClient.fetch`).

        Cancellation: safe; a request that was not sent is withdrawn, a long poll closes the connection, the rest of any
        other response is read and dropped. Earlier bytes stay fed, also when a decoder is reset while its fetch is in
        flight.
        """
        fetches = await self._topics.without_recreated(self.versions, fetches)
        parts = await exclude_truncated(self.connection, self.versions, self._parts(fetches))
        if not parts:
            return
        exchange = FetchExchange(parts, self.broker.address)
        uses_session = bool(max_wait) and not self._in_session
        self._in_session |= uses_session
        try:
            session = self._session if uses_session else FetchSession(enabled=False)
            await self._fetch(exchange, session, max_wait, min_bytes)
            self._topics.answered(self.versions, fetches)
        finally:
            exchange.end()
            self._in_session &= not uses_session

    @property
    def polls(self) -> KafkaBrokerClient:
        """The client itself (see `BrokerClient.polls`)."""
        return self

    @property
    def in_session(self) -> bool:
        """True if a session is open (see `SessionPolls`)."""
        return not self._session.is_full

    async def poll(
        self, fetches: Sequence[PartitionFetch], *, max_wait: float, max_bytes: int, last: object = None
    ) -> object:
        """Poll partitions (see `SessionPolls.poll`). Cancellation: as `fetch`."""
        current = await self._topics.without_recreated(self.versions, fetches)
        polled = await self._polled(current, last if isinstance(last, _Polled) else None)
        exchange = polled.exchange
        exchange.max_bytes = max_bytes
        try:
            if exchange.parts:
                await self._fetch(exchange, self._session, max_wait, 1)
                self._topics.answered(self.versions, current)
            exchange.end_answered()
        except BaseException:
            exchange.end()
            raise
        return polled

    async def _polled(self, fetches: Sequence[PartitionFetch], last: _Polled | None) -> _Polled:
        """Return the last poll if this one is of the same fetches, and otherwise one with those of its parts that are
        polled again."""
        table = self._routing()
        made: Mapping[PartitionFetch, PartitionExchange] = {}
        if last is not None and last.table is table:
            made = {part.fetch: part for part in last.exchange.parts}
            if list(made) == fetches:
                return last
        parts = await exclude_truncated(self.connection, self.versions, self._parts(fetches, made))
        return _Polled(FetchExchange(parts, self.broker.address), table)

    async def _fetch(self, exchange: FetchExchange, session: FetchSession, max_wait: float, min_bytes: int) -> None:
        """Make one round trip, or a few if the broker does not know the session."""
        try:
            for _ in range(FETCH_ATTEMPTS):
                response = await self._fetch_once(exchange, session, max_wait, min_bytes)
                if session.answered(response):
                    exchange.apply(response, self._on_leader, self._routing)
                    self._epochs.forget_starts(exchange.out_of_range)
                    if self._settings.rack:
                        self._failed_replicas.add(exchange.failed_replicas, anyio.current_time())
                    return
            raise RemoteProtocolError(f"{self.broker.address}: no fetch session after {FETCH_ATTEMPTS} requests")
        except BaseException as error:
            session.connection_lost()
            if self._settings.rack and isinstance(error, OdradekError):
                self._failed_replicas.add(exchange.replicas, anyio.current_time())
            raise

    async def _fetch_once(
        self, exchange: FetchExchange, session: FetchSession, max_wait: float, min_bytes: int
    ) -> FetchResponse:
        rack = self._settings.rack
        if rack and self._failed_replicas.are_among(exchange.partitions, anyio.current_time()):
            rack = ""  # then the leader sends the records itself

        def build(versions: BrokerVersions) -> FetchRequest:
            if exchange.max_bytes < MAX_RESPONSE_BYTES and not versions.has_fetch_sessions:
                raise RemoteProtocolError(f"{self.broker.address} is of an older release now, without fetch sessions")
            positions = exchange.positions(versions)
            settings = FetchRequestSettings(
                max_wait_ms=int(max_wait * 1000),
                min_bytes=min_bytes,
                max_bytes=exchange.max_bytes,
                read_committed=exchange.read_committed,
                rack=rack,
                by_id=exchange.by_id,
            )
            used = session if versions.has_fetch_sessions else FetchSession(enabled=False)
            return used.request(positions, settings)

        def new_decoder(version: int, correlation_id: int) -> FetchResponseDecoder:
            return FetchResponseDecoder(version, correlation_id, exchange.open_sink, MAX_RESPONSE_BYTES)

        request: InFlightRequest[FetchResponse] = self.connection.submit_decoded(
            FetchRequest,
            build,
            new_decoder,
            timeout_s=self._settings.request_timeout_s + max_wait,
            limits=VersionLimits(topic_ids=exchange.topic_ids),
        )
        try:
            return await request
        except BaseException:
            if not request.withdraw() and not request.done and max_wait:
                request.observation = None  # it was cancelled, which is no error
                self.connection.connection.close()  # the broker answers what follows after the long poll only
            raise

    def _parts(
        self, fetches: Sequence[PartitionFetch], made: Mapping[PartitionFetch, PartitionExchange] = MappingProxyType({})
    ) -> Sequence[PartitionExchange]:
        """Return the parts of a request, with what the routing table has of each partition, and those that are made."""
        table = self._routing()
        parts = []
        for fetch in fetches:
            if (part := made.get(fetch)) is not None:
                parts.append(part)
            elif (known := table.partition(fetch.decoder.partition)) is None:
                parts.append(PartitionExchange(fetch))
            else:
                part = PartitionExchange(fetch, known.leader_epoch, known.leader == self.broker.id)
                if part.decoder.topic_id == ZERO_UUID:  # brokers had no ids when it began: they were upgraded since
                    part.decoder.topic_id = table.topic_id(part.partition.topic)
                parts.append(part)
        return parts

    def _topic_ids(self, topics: set[str]) -> Mapping[str, bytes]:
        """Return the ids of topics; all zero for those whose id is not known."""
        table = self._routing().topics
        return {name: table[name].topic_id if name in table else ZERO_UUID for name in topics}

    def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> LogDecoder:
        """Return a decoder for `fetch` that begins at `position`."""
        table = self._routing()
        known = table.partition(partition)
        epoch = -1 if known is None else known.leader_epoch
        epochs = self._epochs.of_committed(partition, position, epoch), self._epochs.of_end(partition, position, epoch)
        topic_id = table.topic_id(partition.topic)
        decoder = KafkaLogDecoder(partition, position, options, self._epochs, *epochs, topic_id)
        decoder.unanswered_since = anyio.current_time()  # the table may name a topic that was made again since
        return decoder

    # ---- positions ------------------------------------------------------------------------------------------

    async def positions(
        self, partition: TopicPartition, at: PositionSpec | AtTime, count: int = 1
    ) -> Sequence[Position]:
        """Return positions at or before `at` (see `BrokerClient.positions`). From 0.10.1 on a broker names one; the
        beginning of the log is another. Cancellation: safe.

        Raises:
            BrokerError: The partition's error.
        """
        if count < 1:
            raise ConfigError(f"count must be at least 1, not {count}")
        positions = list(await self._positions(partition, at, count))
        if count > 1 and at is not EARLIEST and len(positions) < 2:
            positions += await self._positions(partition, EARLIEST, 1)
        return sorted(set(positions), reverse=True)[:count]

    async def _positions(self, partition: TopicPartition, at: PositionSpec | AtTime, count: int) -> Sequence[Position]:
        return _result((await self._list_offsets({partition: at}, count))[partition] or ())

    async def resolve_position(
        self, partition: TopicPartition, at: PositionSpec | AtTime, *, read_committed: bool = False
    ) -> Position:
        """Resolve one position (see `BrokerClient.resolve_position`). Cancellation: safe."""
        return _result((await self.resolve_positions({partition: at}, read_committed=read_committed))[partition])

    async def resolve_positions(
        self, wanted: Mapping[TopicPartition, PositionSpec | AtTime], *, read_committed: bool = False
    ) -> Mapping[TopicPartition, Position | OdradekError]:
        """Resolve positions: of a time, the first record of that time or a later one, or else the end. Before 0.10.1,
        and of a topic in a format from before that, it is the newest file that is not younger, or else the beginning.
        One request, two or three. Cancellation: safe.
        """
        listed = await self._list_offsets(wanted, 1, read_committed=read_committed)
        by_file = {p for p, outcome in listed.items() if outcome is None} if self.versions.has_file_times else set()
        if by_file:
            listed |= await self._list_offsets({p: wanted[p] for p in by_file}, 1, limits=VersionLimits(exact=0))
        elif not self.versions.has_time_index:
            by_file = set(wanted)
        if none := {p: EARLIEST if p in by_file else LATEST for p, outcome in listed.items() if not outcome}:
            listed |= await self._list_offsets(none, 1, read_committed=read_committed)
        return {p: self._first(p, outcome) for p, outcome in listed.items()}

    def _first(self, partition: TopicPartition, listed: Outcome) -> Position | OdradekError:
        if isinstance(listed, OdradekError):
            return listed
        if listed:
            return listed[0]
        return RemoteProtocolError(f"{partition}: broker {self.broker.id} returned no position")

    async def _list_offsets(
        self,
        wanted: Mapping[TopicPartition, PositionSpec | AtTime],
        count: int,
        *,
        read_committed: bool = False,
        limits: VersionLimits = NO_LIMITS,
    ) -> dict[TopicPartition, Outcome]:
        table = self._routing()

        def leader_epoch(partition: TopicPartition) -> int:
            known = table.partition(partition)
            return -1 if known is None else known.leader_epoch

        def build(versions: BrokerVersions) -> ListOffsetsRequest:
            maximum = 1 if versions.has_time_index else count
            committed = read_committed and versions.has_read_committed
            return list_offsets_request(wanted, maximum, leader_epoch=leader_epoch, read_committed=committed)

        response = await self.connection.submit_built(ListOffsetsRequest, build, limits=limits)
        for end in read_ends(response, wanted):
            self._epochs.record_end(*end)
        return read_list_offsets(response, wanted, self.broker.address)


def _result(outcome: T | OdradekError) -> T:
    if isinstance(outcome, OdradekError):
        raise outcome
    return outcome
