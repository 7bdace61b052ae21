"""A driver: connections to brokers, and what else producer, consumer, reader and command line need of a protocol."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from odradek.core.admin import ClusterAdmin
    from odradek.core.observer_calls import ObserverCalls
    from odradek.core.produce.partitioners import Partitioner
    from odradek.errors import OdradekError
    from odradek.types import AtTime, Broker, Position, PositionSpec, TopicPartition

    from .fetch import DecoderOptions, LogDecoder, PartitionFetch
    from .groups import Membership, OffsetStore, Subscription
    from .logs import LogAccess
    from .metadata import ClusterMetadata
    from .produce import PartitionBatch, PartitionResult, ProducerRecord, ProducerSequences, RefusalPolicy
    from .raw import RawRequest, RawResponse
    from .share import ShareGroup, ShareSubscription
    from .transactions import ProducerTransactions

__all__ = ["NOT_OPEN", "BrokerClient", "ClusterStatistics", "PendingResult", "ProtocolDriver", "SessionPolls"]

T_co = TypeVar("T_co", covariant=True)

NOT_OPEN = "the cluster is not open: use it, and what is made from it, inside `async with odradek.connect(...) as k`"
"""The text of the Closed that a driver raises for every use outside its block."""


class ClusterStatistics(NamedTuple):
    """Counters of the connections of one cluster to its brokers, those that have ended included.

    `brokers` are connected now, over `connections`. `connects` counts connections that were made, and `losses` those
    that ended before they were closed. `requests` counts requests that were submitted, handshakes included;
    `sent_bytes` and `received_bytes` are those of requests and responses, without TLS, and the former without
    handshakes. `throttled_seconds` is what brokers have asked this client to wait, or have waited themselves, because a
    quota was exceeded.

    A connection to ZooKeeper counts in none of them. `odradek.testing.MemoryCluster` has no bytes and no quotas.
    """

    brokers: int = 0
    connections: int = 0
    connects: int = 0
    losses: int = 0
    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    throttled_seconds: float = 0.0


class PendingResult(Protocol[T_co]):
    """The result of one request. It exists from the call on; awaiting it is optional.

    Await it any number of times, from any task (cancelling the wait does not cancel the request), or add a callback.
    """

    @property
    def done(self) -> bool:
        """True once the result is available."""
        ...

    def result(self) -> T_co:
        """Return the value, or raise the error, as awaiting it does. Only once `done`."""
        ...

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the same step in which the result arrives; at once if it is available.

        Results of one connection that arrive together are called back in the order of their requests. The callback
        may call anything of the same client. It must not raise: that is a bug, which closes the connection and is
        raised to its owner. One callback per result.
        """
        ...

    def withdraw(self) -> bool:
        """Take the request back if none of its bytes has been handed to the network.

        Returns:
            True: it will never be sent, and there will be no result. False: it has been sent, or is done.
        """
        ...

    def __await__(self) -> Generator[Any, Any, T_co]: ...


class SessionPolls(Protocol):
    """Long polls in a fetch session (KIP-227), one at a time. The broker remembers the partitions, so that a poll of
    thousands costs next to nothing while they are the same and have nothing new."""

    @property
    def in_session(self) -> bool:
        """True if the last long poll, this one or a fetch, has left a session open."""
        ...

    async def poll(
        self, fetches: Sequence[PartitionFetch], *, max_wait: float, max_bytes: int, last: object = None
    ) -> object:
        """Wait until one of these partitions has something. Set the results of those that have one: the response names
        them (`PartitionFetch.answered`), or they have an error. The others may be passed to the next poll as they are.

        Cancellation, and what is raised: as `BrokerClient.fetch`. Then none of the fetches may be passed on.

        Args:
            fetches: At most one for each partition.
            max_wait: How long the broker may wait (s).
            max_bytes: Maximum log bytes of the whole response; the first batch may be larger (bytes).
            last: What the last poll has returned, so that this one costs less.

        Returns:
            What to pass to the next poll; it refers to the fetches.
        """
        ...


class BrokerClient(Protocol):
    """The data requests of one broker, over connections it opens when first needed and reopens with back-off.

    Calls may overlap: they are pipelined in call order. Every call has a deadline of its own (the request
    time-out it was made with) and raises TransportError, DeadlineError or RemoteProtocolError; for those
    `ConnectionLost.sent` says whether the broker may have seen it.
    """

    @property
    def broker(self) -> Broker: ...

    @property
    def incarnation(self) -> int:
        """Number of the current connection: it grows at the moment everything outstanding has failed.

        Requests of one incarnation go over one connection, in order, or over none. A later request may be sent before
        the callbacks of their failure run, but not before this number has changed.
        """
        ...

    @property
    def available_at(self) -> float:
        """The time of the event loop from which on a request is not delayed by the back-off after a lost connection or
        a failed attempt to connect. In the past unless there is a back-off.

        The one back-off per loss: callers that wait for it need none of their own.
        """
        ...

    @property
    def polls(self) -> SessionPolls | None:
        """The long polls of this client in a fetch session; None: the protocol has no sessions."""
        ...

    def encode(self, batch: PartitionBatch, max_message_bytes: int) -> None:
        """Set `batch.encoded` to the bytes this broker takes, unless it is set already. Pure: may run in a thread.

        Raises:
            MessageTooLarge: A payload - compressed: the batch as a whole - is larger than the limit: split the batch.
            ConfigError, LocalProtocolError: The records cannot be written in any way.
        """
        ...

    def produce(
        self, batches: Sequence[PartitionBatch], *, acks: int
    ) -> PendingResult[Sequence[PartitionResult] | None]:
        """Queue one produce request now, in call order. Its result has one entry per batch, in order; None: all batches
        were appended, and the broker says no more about them (0.7), or with `acks=0` nothing at all.

        Not a coroutine function: the order is decided when it is called, not when it is awaited. Dropping the result or
        cancelling a wait for it does not take the request back; `withdraw` does. Errors of the request as a whole (a
        lost connection, a time-out) are raised by the result. No batches: any result proves that the broker answers.

        Args:
            batches: Encoded by `encode`; those that are not are encoded now.
            acks: -1: all replicas in sync have the records; 1: the leader has; 0: they are handed to the network.
                0.7 has one copy: -1 and 1 mean the same.

        Raises:
            LocalProtocolError, Closed: Nothing was queued.
        """
        ...

    def produce_plain(
        self, batches: Sequence[PartitionBatch], *, acks: int, max_message_bytes: int
    ) -> PendingResult[Sequence[PartitionResult] | None] | None:
        """Queue a produce request of small batches that are not encoded and need no compression (see `produce`).

        All of them are encoded at once, which costs a fraction of encoding each. `encoded` is set unless the same
        records always give the same bytes (0.7): then they are encoded again if they are sent again.

        Args:
            batches: At most one for each partition.
            acks: As `produce`.
            max_message_bytes: As `encode`.

        Returns:
            None if these batches must be encoded one by one, and then sent with `produce`; nothing was queued.

        Raises:
            LocalProtocolError, Closed: Nothing was queued.
        """
        ...

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        """Fetch many partitions in one round trip, and set the result of each `PartitionFetch`.

        Cancellation: a request that was not sent is withdrawn, a long poll closes the connection, and the response to
        anything else is read and dropped; a decoder may have been fed part of it, which is consistent (its positions
        moved with it).

        Args:
            fetches: At most one for each partition.
            max_wait: How long the broker may wait until it has `min_bytes` (s). It delays later requests of the same
                connection. Ignored where `ProtocolDriver.long_poll` is False.
            min_bytes: The bytes that the broker waits for, all partitions together.

        Raises:
            TransportError, DeadlineError, RemoteProtocolError: No response; what the decoders were fed stays.
        """
        ...

    async def resolve_position(
        self, partition: TopicPartition, at: PositionSpec | AtTime, *, read_committed: bool = False
    ) -> Position:
        """Return the position of `at`. Where a time has no position, the protocol decides: 0.7, which finds the newest
        segment not after it, begins at EARLIEST.

        Args:
            partition: The partition.
            at: The time, or EARLIEST or LATEST.
            read_committed: LATEST is the end of what consumers of this isolation may read, where there are
                transactions: `PartitionFetch.last_stable`.
        """
        ...

    async def resolve_positions(
        self, wanted: Mapping[TopicPartition, PositionSpec | AtTime], *, read_committed: bool = False
    ) -> Mapping[TopicPartition, Position | OdradekError]:
        """Resolve positions of several partitions (see `resolve_position`), in one request if the protocol can. Return
        the position or the error of each. Cancellation: safe.

        Raises:
            OdradekError: There was no response for any of them.
        """
        ...

    async def positions(
        self, partition: TopicPartition, at: PositionSpec | AtTime, count: int = 1
    ) -> Sequence[Position]:
        """Return positions at or before `at`, newest first, at most `count`: where the log may be cut into parts."""
        ...

    def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> LogDecoder: ...


class ProtocolDriver(Protocol):
    """One cluster's protocol: pure rules and the way to its brokers. An asynchronous context manager, which opens
    and closes `metadata` and every connection."""

    name: str
    long_poll: bool
    """True if brokers can hold a fetch back until they have something (`BrokerClient.fetch(max_wait=...)`)."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    @property
    def metadata(self) -> ClusterMetadata:
        """Brokers, topics and leaders. Raises Closed, with NOT_OPEN, before the block of the driver is entered."""
        ...

    def broker(self, broker: Broker, *, purpose: str) -> BrokerClient:
        """The api of one broker; `purpose` (`produce`, `fetch`, `control`) keeps sockets apart, so that a long
        fetch never delays a confirm. The same arguments give the same object while the address is the same."""
        ...

    def statistics(self) -> ClusterStatistics:
        """Return the counters of the connections; also after the block."""
        ...

    @property
    def observer(self) -> ObserverCalls | None:
        """The observer of this client; None if it has none."""
        ...

    @property
    def has_headers(self) -> bool:
        """True if records can have headers."""
        ...

    refuses_batches: bool
    """True if a broker can refuse one batch and accept the next one of the partition; False: it closes the connection
    (0.7), so that order is kept anyway."""

    @property
    def batch_bytes(self) -> int:
        """Size at which a batch is full unless its producer says otherwise (bytes)."""
        ...

    @property
    def compressed_batch_bytes(self) -> int:
        """The same for a batch that is to be compressed, of its size before that."""
        ...

    @property
    def compressions(self) -> frozenset[str]:
        """Names of the compressions this cluster can store, `none` among them."""
        ...

    @property
    def logs(self) -> LogAccess:
        """The logs of the cluster as wholes. Its methods without `await` work on a closed driver, too."""
        ...

    def refusal_policy(self) -> RefusalPolicy:
        """Return what decides about batches of lost requests. One for each producer."""
        ...

    def producer_sequences(self) -> ProducerSequences | None:
        """Return what makes one producer idempotent; None if its brokers would not notice that a batch is repeated."""
        ...

    def producer_transactions(self, transactional_id: str, timeout_s: float) -> ProducerTransactions:
        """Return what makes the records of one producer parts of transactions.

        Args:
            transactional_id: The name by which the cluster knows the producer, across restarts.
            timeout_s: The cluster aborts a transaction that is open for longer (s).

        Raises:
            Unsupported: The cluster has no transactions.
        """
        ...

    def default_partitioner(self) -> Partitioner:
        """Return the partitioner of a producer that names none: that of the cluster's own clients."""
        ...

    def validate_record(self, topic: str, record: ProducerRecord, max_message_bytes: int) -> None:
        """Raise what makes this record impossible: Rejected (illegal topic name, MessageTooLarge as cause) or
        Unsupported (headers or timestamps where the protocol has none)."""
        ...

    def record_size(self, record: ProducerRecord) -> int:
        """Return the bytes this record takes on the wire, uncompressed. For a record that is only a value, a constant
        and its length."""
        ...

    def membership(self, subscription: Subscription) -> Membership:
        """Join a group. Raises Unsupported when the cluster has nothing to coordinate with."""
        ...

    def share_group(self, subscription: ShareSubscription) -> ShareGroup:
        """Return a member of a share group, which has yet to join. Raises Unsupported where the protocol has none."""
        ...

    def offsets(self, group: str) -> OffsetStore: ...

    async def groups(self) -> Sequence[str]:
        """The groups there are, sorted. Raises Unsupported when the cluster has nothing to keep them in."""
        ...

    async def request(self, request: RawRequest) -> RawResponse:
        """Send a request as it is. Raises Unsupported where the protocol has no messages that are declared.
        Cancellation: safe."""
        ...

    def admin(self) -> ClusterAdmin:
        """Return the administration of this cluster. Its methods raise Unsupported where the cluster has no request for
        them."""
        ...
