"""Interfaces between the client and the protocol drivers: what producer, consumer, reader and command line need.

The driver for Kafka 0.7 implements them over ZooKeeper and raw byte logs (in `io`); the driver for 0.8 and later
implements them over Metadata, Produce, Fetch and group requests. Only `wire` and the two driver packages know which one
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from odradek.core.admin import ClusterAdmin
from odradek.core.fetch.progress import DeliveredSpan
from odradek.core.produce.partitioners import Partitioner
from odradek.errors import CorruptMessage, OdradekError
from odradek.types import AtTime, Broker, Columns, Position, PositionSpec, TopicPartition

__all__ = [
    "NOT_OPEN",
    "AnsweringBrokerPolicy",
    "Assignment",
    "BrokerClient",
    "ClusterMetadata",
    "ConsumerPositions",
    "DecoderOptions",
    "DeliveredBatch",
    "LogDecoder",
    "Membership",
    "OffsetStore",
    "PartitionBatch",
    "PartitionFetch",
    "PartitionResult",
    "PendingResult",
    "ProducerRecord",
    "ProducerSequences",
    "ProducerTransactions",
    "ProtocolDriver",
    "RebalanceListener",
    "RefusalPolicy",
    "RoutingTable",
    "Subscription",
]

T_co = TypeVar("T_co", covariant=True)

NOT_OPEN = "the cluster is not open: use it, and what is made from it, inside `async with odradek.connect(...) as k`"
"""The text of the Closed that a driver raises for every use outside its block."""


# ---- values -------------------------------------------------------------------------------------------------


class ProducerRecord(NamedTuple):
    """One record to be written.

    Args:
        value: Its payload; None (a tombstone) where the protocol has null values, which 0.7 has not.
        key: Chooses the partition; 0.7 does not store it.
        headers: Names and values; from Kafka 0.11 on.
        timestamp: Milliseconds since the epoch; from Kafka 0.10 on.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int | None = None


@dataclass(eq=False, slots=True)
class PartitionBatch:
    """The records that go to one partition in one request.

    Args:
        partition: Where they go.
        records: Any sequence, also an `engine.PackedBytes`; an item of type `bytes` is a record that is only this
            value. It does not change once the batch has been encoded.
        compression: Name of the compression, or `none`.
        encoded: What `BrokerClient.encode` made of the records: bytes that every attempt sends unchanged.
        isolate_with: The most batches that may share a request with it, itself included, while nothing else is in
            flight to that broker; 0: no restriction. Set by a `RefusalPolicy`, as is `refusals`.
        refusals: How often the broker closed the connection on this batch when it was alone.
        stamp: What `ProducerSequences` identifies the batch with; None: nothing does.
        may_be_written: An earlier attempt may have been applied. From then on the batch is neither moved nor divided,
            and keeps its stamp.
    """

    partition: TopicPartition
    records: Sequence[bytes | ProducerRecord]
    compression: str = "none"
    encoded: bytes | None = None
    isolate_with: int = 0
    refusals: int = 0
    stamp: object | None = None
    may_be_written: bool = False


class PartitionResult(NamedTuple):
    """Result of one batch of a produce request.

    Args:
        partition: The partition of the batch.
        error: Why it was not appended, or None. Its attributes `retriable`, `refresh_metadata`, `fatal` and `fence`
            say what to do; `sent` says that it may have been appended nevertheless.
        position: Where its first record was appended, if the broker says so (0.7 does not).
        timestamp: The time the broker gave its records (ms since the epoch), if it did.
        log_start: The first position of the log, if the broker says so.
        record_errors: Row -> what is wrong with that record, if the broker refused the batch because of these alone.
    """

    partition: TopicPartition
    error: OdradekError | None = None
    position: Position | None = None
    timestamp: int | None = None
    log_start: Position | None = None
    record_errors: Mapping[int, str] = {}


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """Options for decoding fetched bytes.

    Args:
        max_message_bytes: A message (its whole entry) larger than this raises MessageTooLarge.
        max_decompressed_bytes: What one compressed wrapper may grow to, all nesting levels together.
        corrupt: `fail` ends the partition with CorruptMessage; `skip` leaves the message out and reports it;
            `raw` hands the undecoded entry over as a record named in `Columns.corrupt`.
        defer_decompression: Leave compressed messages to `LogDecoder.decompress_deferred`.
        read_committed: Leave out records of transactions that were aborted; of no effect where there are none.
    """

    max_message_bytes: int = 4 << 20
    max_decompressed_bytes: int = 64 << 20
    corrupt: str = "fail"
    defer_decompression: bool = False
    read_committed: bool = False


class LogDecoder(Protocol):
    """Bytes of one partition's log -> columns, incrementally. One per partition; survives from fetch to fetch."""

    partition: TopicPartition

    source: object
    """A mark of the broker client that fed it last, None before: what it keeps of a message that is not complete may be
    continued from there alone."""

    @property
    def position(self) -> Position:
        """Position of the next message not yet taken: a reset, a bookmark or a new connection resumes from here."""
        ...

    @property
    def fetch_position(self) -> Position:
        """Position where the next fetch starts: after all bytes fed, the partial tail included."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Memory held (bytes): decoded and not yet taken, plus what is deferred, plus the partial tail."""
        ...

    @property
    def deferred_bytes(self) -> int:
        """Bytes that wait for `decompress_deferred`: from the first whole compressed message on. 0 unless
        `DecoderOptions.defer_decompression`."""
        ...

    @property
    def error(self) -> OdradekError | None:
        """Set once decoding cannot continue (CorruptMessage, MessageTooLarge). Take what came before it first."""
        ...

    def feed(self, data: memoryview) -> None:
        """Decode the next bytes, as they come from the socket. Bad bytes do not raise; see `error`."""
        ...

    def decompress_deferred(self) -> None:
        """Decode what was deferred: the same rows, positions and errors as without `defer_decompression`.

        Bad bytes do not raise; see `error`. Pure: may run in a thread, as long as no other task uses the decoder.
        """
        ...

    def take(self) -> Columns:
        """Return everything decoded since the last take, and forget it. May be empty."""
        ...

    @property
    def skipped(self) -> int:
        """Messages left out so far (`corrupt="skip"`)."""
        ...

    def take_reports(self) -> list[CorruptMessage]:
        """Return the latest 1000 reports of messages skipped since the last call, and forget them."""
        ...

    def reset(self, position: Position) -> None:
        """Forget everything not taken, and the error, and continue from `position` (seek, new connection)."""
        ...


class PartitionFetch:
    """One partition's part of one fetch: the request on its way out, its result on its way back.

    A broker client calls `start` for the position to ask for, passes the log bytes of the response to `feed` as they
    arrive, and sets the result. Fields a protocol does not have stay None.

    Args:
        decoder: The partition's decoder; fed from its `fetch_position`. No other fetch may use it meanwhile.
        max_bytes: Maximum log bytes to return (bytes).
    """

    __slots__ = (
        "_expected",
        "decoder",
        "error",
        "high_watermark",
        "last_stable",
        "leader_epoch",
        "log_start",
        "max_bytes",
        "preferred_replica",
        "received",
    )

    def __init__(self, decoder: LogDecoder, max_bytes: int) -> None:
        self.decoder, self.max_bytes = decoder, max_bytes
        self._expected = -1  # where the next bytes start; -1: they are not wanted
        self.received = 0
        """Log bytes the response had for it."""
        self.error: OdradekError | None = None
        """The partition's error, from the broker or from its decoder; its attributes say what to do about it."""
        self.high_watermark: Position | None = None
        """The end of what consumers may read."""
        self.log_start: Position | None = None
        """The first position of the log."""
        self.last_stable: Position | None = None
        """The end of what `read_committed` consumers may read."""
        self.leader_epoch: int | None = None
        self.preferred_replica: int | None = None
        """Id of the broker to fetch from instead."""

    def __repr__(self) -> str:
        state = self.error or f"{self.received} bytes received"
        return f"<{type(self).__name__} {self.decoder.partition} up to {self.max_bytes} bytes: {state}>"

    def start(self) -> Position:
        """Return the position to fetch from, and accept the bytes from there on."""
        self._expected = position = self.decoder.fetch_position
        return position

    def feed(self, data: memoryview) -> None:
        """Pass log bytes on to the decoder; ignore them once it was reset, or after `cancel`. Never raises: a bug of
        the decoder becomes the partition's `error`."""
        decoder = self.decoder
        if self._expected != decoder.fetch_position:
            self._expected = -1
            return
        try:
            decoder.feed(data)
            self._expected = decoder.fetch_position
        except Exception as error:
            self._decoder_failed(error)

    def decompress(self) -> None:
        """Decode what the decoder has deferred. Never raises, like `feed`. May run in a thread."""
        try:
            self.decoder.decompress_deferred()
        except Exception as error:
            self._decoder_failed(error)

    def cancel(self) -> None:
        """Ignore what is still to come."""
        self._expected = -1

    def _decoder_failed(self, cause: Exception) -> None:
        self._expected = -1
        reason = f"cannot be decoded: {type(cause).__name__}: {cause}"
        self.error = CorruptMessage(str(self.decoder.partition), self.decoder.position, reason)
        self.error.__cause__ = cause


# ---- routing ------------------------------------------------------------------------------------------------


class RoutingTable(Protocol):
    """An immutable snapshot of who serves what. Replaced whole, never edited."""

    @property
    def version(self) -> int:
        """Grows with every change."""
        ...

    @property
    def brokers(self) -> Mapping[int, Broker]:
        """Live brokers by id."""
        ...

    @property
    def topics(self) -> frozenset[str]:
        """Topics known to have partitions."""
        ...

    def partitions(self, topic: str) -> Sequence[TopicPartition]:
        """Return the partitions that records of `topic` may be sent to now, in the order of a partitioner's indexes.
        Empty when no broker is live. In 0.7 an unknown topic has partition 0 of every live broker."""
        ...

    def registered(self, topic: str) -> Sequence[TopicPartition]:
        """The partitions known to exist: what can be read. A subset of `partitions`."""
        ...

    def leader(self, partition: TopicPartition) -> Broker | None:
        """Return the broker that serves a partition now, or None."""
        ...

    def topic_id(self, topic: str) -> bytes | None:
        """Return what tells a topic from another one of the same name: it changes when the topic is deleted and made
        again. None: the topic is not known, or the brokers have no ids (before 2.8)."""
        ...


class ClusterMetadata(Protocol):
    """Brokers, topics and leaders of a cluster, kept up to date in the background.

    An asynchronous context manager: inside it, `table` is current as far as the cluster has reported. A background
    failure is raised from `wait_for_newer`, `table_for_topic` and at exit, never only logged.
    """

    @property
    def table(self) -> RoutingTable: ...

    async def table_for_topic(self, name: str, *, create: bool = False) -> RoutingTable:
        """A table that knows `name`: reads and watches it the first time, returns at once later.

        Args:
            create: Have the topic created if it does not exist, where asking for it makes brokers do so.
        """
        ...

    async def all_topics(self) -> frozenset[str]:
        """Every topic the cluster publishes, and keep watching for more (wildcards, listings)."""
        ...

    async def wait_for_newer(self, version: int) -> RoutingTable:
        """Wait until `table.version > version`. Cancellation: safe."""
        ...

    async def refresh(self) -> RoutingTable:
        """Read everything again now: the table was found wrong."""
        ...


# ---- one broker ---------------------------------------------------------------------------------------------


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
            None: These batches must be encoded one by one, and then sent with `produce`; nothing was queued.

        Raises:
            LocalProtocolError, Closed: Nothing was queued.
        """
        ...

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        """Fetch many partitions in one round trip, and set the result of each `PartitionFetch`.

        Cancellation: the response is read and dropped; a decoder may have been fed part of it, which is consistent
        (its positions moved with it).

        Args:
            fetches: At most one for each partition.
            max_wait: How long the broker may wait until it has `min_bytes` (s). It delays later requests of the same
                connection. Ignored where `ProtocolDriver.long_poll` is False.
            min_bytes: What the broker waits for, all partitions together (bytes).

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
            partition: Which.
            at: What to look for.
            read_committed: LATEST is the end of what consumers of this isolation may read, where there are
                transactions: `PartitionFetch.last_stable`.
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

    refuses_batches: bool
    """True if a broker can refuse one batch and accept the next one of the partition; False: it closes the connection
    (0.7), so that order is kept anyway."""

    @property
    def compressions(self) -> frozenset[str]:
        """Names of the compressions this cluster can store, `none` among them."""
        ...

    @property
    def numbers_by_broker(self) -> bool:
        """True if a partition number counts on one broker only (0.7), so that a plain number names no partition."""
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

    def offsets(self, group: str) -> OffsetStore: ...

    async def groups(self) -> Sequence[str]:
        """The groups there are, sorted. Raises Unsupported when the cluster has nothing to keep them in."""
        ...

    def admin(self) -> ClusterAdmin:
        """Return the administration of this cluster. What the cluster has no request for raises Unsupported."""
        ...


class RefusalPolicy(Protocol):
    """Conclusions from a lost request about its batches if brokers refuse a produce by closing the connection (0.7)."""

    def request_failed(
        self, batches: Sequence[PartitionBatch], error: OdradekError, *, answered: bool
    ) -> Sequence[PartitionBatch]:
        """Set `isolate_with` of the batches that have to be sent apart from others from now on.

        Args:
            batches: Those of one request, which is to be sent again.
            error: How it failed.
            answered: The batches were isolated, and the broker had answered on that connection right before them.

        Returns:
            The batches that are given up.
        """
        ...

    def describe(self, batch: PartitionBatch) -> tuple[str, str]:
        """Return why a batch is given up, and a hint on what to do."""
        ...


class AnsweringBrokerPolicy(RefusalPolicy):
    """The policy for brokers that never refuse by closing the connection (0.8 and later)."""

    def request_failed(
        self, batches: Sequence[PartitionBatch], error: OdradekError, *, answered: bool
    ) -> Sequence[PartitionBatch]:
        """Give up no batch."""
        return ()

    def describe(self, batch: PartitionBatch) -> tuple[str, str]:
        """Return no reason: none is ever needed."""
        return "", ""


class ProducerSequences(Protocol):
    """The identity of one producer, and the numbers by which brokers recognise a batch that is sent again.

    The numbers of a partition have no gap. A batch that may have been written keeps its stamp until it has an outcome.
    """

    max_in_flight: int
    """The most batches of one partition that brokers remember."""

    @property
    def ready(self) -> bool:
        """True if the producer has an identity; without one nothing can be sent."""
        ...

    async def identify(self) -> None:
        """Get an identity from the cluster. Cancellation: safe.

        Raises:
            OdradekError: `retriable` tells whether trying again may help.
        """
        ...

    def may_send(self, batch: PartitionBatch) -> bool:
        """Return True if a batch may be sent now, as far as other batches of its partition are concerned."""
        ...

    def assign(self, batch: PartitionBatch) -> None:
        """Set the `stamp` of a batch that is about to be sent and has none. Only if it `may_send`."""
        ...

    def resolve(self, batch: PartitionBatch, result: PartitionResult) -> PartitionResult:
        """Return what a result means for a batch with a stamp: whether it counts as written, or what to do instead."""
        ...

    def resolve_refusals(self, partition: TopicPartition) -> Sequence[PartitionBatch]:
        """Decide, while no batch of a partition is in flight, about those whose numbers the broker refuses.

        Returns the batches that cannot be sent again: they may be written, or are before one that may be. The others
        lose their stamp, and get another one when they are sent again."""
        ...

    def divide(self, batch: PartitionBatch, parts: Sequence[PartitionBatch]) -> None:
        """Move the numbers of a batch that was refused, and so not written, to parts of it, which are sent instead."""
        ...

    def release(self, batch: PartitionBatch, *, may_be_written: bool) -> None:
        """End a batch that will not be sent again. Does nothing if its result was resolved to an outcome."""
        ...


class ProducerTransactions(ProducerSequences, Protocol):
    """The transactions of one producer, one at a time, by way of a coordinator of the cluster.

    What the calls begin is carried out by `run`; cancelling a call ends only the wait for it.
    """

    transactional_id: str

    @property
    def error(self) -> OdradekError | None:
        """The reason why the open transaction can only be aborted, or why the producer cannot continue."""
        ...

    @property
    def problem(self) -> OdradekError | None:
        """The error after which the current request is tried again; None while nothing is wrong."""
        ...

    async def run(self, added: Callable[[], None], failed: Callable[[OdradekError, bool], None]) -> None:
        """Exchange requests with coordinators until cancelled.

        Args:
            added: Called when more batches `may_send`.
            failed: Called with the error because of which the transaction can only be aborted; the second argument is
                True if the producer cannot continue.
        """
        ...

    async def initialize(self) -> None:
        """Register at the coordinator. It ends what an earlier producer with this id left open, and fences that one.

        Raises:
            OdradekError: The cluster refuses; trying again cannot change that.
        """
        ...

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def fail(self, error: OdradekError) -> None:
        """Let the open transaction only be aborted: a record of it was not written, or not for certain."""
        ...

    def stop(self, error: OdradekError) -> None:
        """Send nothing more: the producer has ended with this error."""
        ...

    async def add_positions(self, member: Membership, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions of a group with the transaction, fenced by the member that owns the partitions.

        Raises:
            OdradekError: The transaction can only be aborted.
        """
        ...

    async def commit(self) -> None:
        """Commit. Every batch must have been written.

        Raises:
            CommitOutcomeUnknown: The transaction is committed or will be aborted.
            OdradekError: It is not committed, and can only be aborted.
        """
        ...

    async def abort(self) -> None:
        """Abort. No batch may be in flight.

        Raises:
            OdradekError: The producer cannot continue. The cluster aborts the transaction once its time is over.
        """
        ...


# ---- groups -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that a consumer asks its group for. Exactly one of topics, include, exclude is set.

    Args:
        group: Group name.
        topics: Topic -> number of streams.
        include: Whitelist regular expression, `streams` streams in all.
        exclude: Blacklist regular expression.
        streams: Streams for include/exclude.
        consumer_id: A fixed id; None makes a unique one.
        assignors: Names of the assignors the member supports, the preferred one first; None: the driver's choice.
        group_protocol: Who assigns: `consumer`: the brokers, `classic`: a member; None: the brokers where they can.
        commit_metadata: Text to be stored with every committed position.
        revoke_within: Longest time that `RebalanceListener.revoke` takes, without its commit (s).
        max_blocked_s: How long the member stays in its group while its event loop is blocked (s); 0: as long as the
            group waits for a heartbeat.
    """

    group: str
    topics: Mapping[str, int] | None = None
    include: str | None = None
    exclude: str | None = None
    streams: int = 1
    consumer_id: str | None = None
    assignors: Sequence[str] | None = None
    group_protocol: str | None = None
    commit_metadata: str = ""
    revoke_within: float = 3.0
    max_blocked_s: float = 0.0


class Assignment(NamedTuple):
    """Partitions that a member owns from now on, in addition to those it has.

    `partitions` maps each to the number of its stream (0 when the consumer has one stream); `committed` has the
    stored position of each, or None. `generation` grows with every assignment of the member.
    """

    generation: int
    partitions: Mapping[TopicPartition, int]
    committed: Mapping[TopicPartition, Position | None]


class RebalanceListener(Protocol):
    """The consumer, as its membership sees it. Partitions that no call names stay and are delivered without a pause."""

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Stop delivering these partitions, wait (bounded) for records being processed, commit what is done.

        They are released after it returns. `lost` may be called meanwhile and ends it early.
        """
        ...

    async def assign(self, assignment: Assignment) -> None:
        """Deliver these partitions too. Called once per completed rebalance, so possibly with none."""
        ...

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """The session that owned these partitions ended: others may own them already, nothing may be committed."""
        ...


class Membership(Protocol):
    """A member of a group: which partitions it owns, and the positions of those."""

    @property
    def consumer_id(self) -> str:
        """The name of this member in its group; empty before it has one."""
        ...

    @property
    def problem(self) -> str:
        """The reason why the member has no share, or not all of it; empty while nothing is wrong."""
        ...

    async def run(self, listener: RebalanceListener) -> None:
        """Join, then turn every group event into calls of `listener`, until cancelled.

        Retries while others own its partitions, without an end: the caller bounds how long joining may take.
        """
        ...

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Store positions of owned partitions, fenced by the session that owns them.

        Raises SessionExpired when that session has ended: nothing is stored after it. Raises after trying all; a
        partial failure names partitions that were not stored.
        """
        ...

    async def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position | None]:
        """Return the stored positions; None where none was ever stored."""
        ...

    async def leave(self) -> None:
        """Release everything this member owns. Idempotent; call it after `run` has ended.

        Cancellation, or an error that it raises, leaves nothing behind either: the rest is released in the background
        as soon as the cluster answers, or ends with the member's session.
        """
        ...


class OffsetStore(Protocol):
    """Committed positions of a group, for those outside of it (lag, tools). Members commit through `Membership`."""

    async def fetch(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position | None]: ...

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Store them unfenced: a member that owns the partitions overwrites them with its next commit.

        Raises after trying all; a partial failure names partitions that were not stored.
        """
        ...


class ConsumerPositions(Protocol):
    """The positions of one consumer, for transactions that store them."""

    membership: Membership

    async def after(self, spans: Collection[tuple[TopicPartition, DeliveredSpan]]) -> Mapping[TopicPartition, Position]:
        """Return the positions to store so that these spans are done. The consumer itself stores none of these
        partitions from now on, and no store of them is under way.

        Raises:
            GroupError: A partition was given to another member.
            UsageError: A record before them is neither done nor among them.
        """
        ...

    def stored(
        self, spans: Collection[tuple[TopicPartition, DeliveredSpan]], positions: Mapping[TopicPartition, Position]
    ) -> None:
        """Take in that a transaction has stored these positions: the spans are done."""
        ...


class DeliveredBatch(Protocol):
    """Records of a consumer that a transaction can mark as done when it is committed."""

    def transaction_spans(self) -> Sequence[tuple[ConsumerPositions, TopicPartition, DeliveredSpan]]:
        """Return what it consists of."""
        ...
