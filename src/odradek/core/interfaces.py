"""Where the eras meet: what producer, consumer, reader and command line need, and nothing else.

Kafka 0.7 implements these over ZooKeeper and raw byte logs (`io.kafka07`); the 0.8+ era implements them over
Metadata, Produce, Fetch and group requests. Nobody outside `wire` and the two era packages knows which one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from odradek.errors import BrokerError, CorruptMessage, OdradekError
from odradek.types import AtTime, Broker, Columns, Position, PositionSpec, TopicPartition

__all__ = [
    "Assignment",
    "BrokerClient",
    "ClusterMetadata",
    "DecoderOptions",
    "FetchResult",
    "LogDecoder",
    "Membership",
    "OffsetStore",
    "PartitionBatch",
    "PendingResult",
    "ProduceResult",
    "ProducerRecord",
    "ProtocolDriver",
    "RebalanceListener",
    "RoutingTable",
    "Subscription",
]

T_co = TypeVar("T_co", covariant=True)


# ---- values -------------------------------------------------------------------------------------------------


class ProducerRecord(NamedTuple):
    """One record on its way out, already assigned to a partition."""

    value: bytes
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    time: float | None = None


class PartitionBatch(NamedTuple):
    """What goes to one partition in one request.

    `records` may be any sequence, also an `engine.PackedBytes`; `bytes` in it are a record that is only this value.
    An era that ships only payloads reads only values. `encoded` is what `ProtocolDriver.encode` made of them:
    `BrokerClient.produce` sends it as it is and encodes only batches that come without it.
    """

    partition: TopicPartition
    records: Sequence[bytes | ProducerRecord]
    compression: str = "none"
    encoded: bytes | None = None


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """How fetched bytes are decoded.

    Args:
        max_message_bytes: A message (its whole entry) larger than this raises MessageTooLarge.
        max_decompressed_bytes: What one compressed wrapper may grow to, all nesting levels together.
        corrupt: `fail` ends the partition with CorruptMessage; `skip` leaves the message out and reports it;
            `raw` hands the undecoded entry over as a record named in `Columns.corrupt`.
        defer: Leave compressed messages to `LogDecoder.open`.
    """

    max_message_bytes: int = 4 << 20
    max_decompressed_bytes: int = 64 << 20
    corrupt: str = "fail"
    defer: bool = False


class LogDecoder(Protocol):
    """Bytes of one partition's log -> columns, incrementally. One per partition; survives from fetch to fetch."""

    partition: TopicPartition

    @property
    def position(self) -> Position:
        """Where the next undelivered message starts: what a reset, a bookmark or a new connection resumes from."""
        ...

    @property
    def fetch_position(self) -> Position:
        """Where the next fetch should start: behind all that was fed, the partial tail included."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Memory held: decoded and not yet taken, plus what is unopened, plus the tail."""
        ...

    @property
    def unopened_bytes(self) -> int:
        """With `DecoderOptions.defer`: what waits for `open`, from the first whole compressed message on."""
        ...

    @property
    def error(self) -> OdradekError | None:
        """Set once decoding cannot go on (CorruptMessage, MessageTooLarge). Take what came before it first."""
        ...

    def feed(self, data: memoryview) -> None:
        """Take the next bytes, as they come from the socket. Never raises; see `error`."""
        ...

    def open(self) -> None:
        """Decode what is unopened, to be taken with the rest: the same rows, positions and errors as without `defer`.

        Never raises; see `error`. Pure: it may run in a thread, while nobody else touches the decoder.
        """
        ...

    def take(self) -> Columns:
        """Give up everything decoded since the last take. May be empty."""
        ...

    def take_reports(self) -> list[CorruptMessage]:
        """Give up the reports of skipped messages since the last call."""
        ...

    def reset(self, position: Position) -> None:
        """Forget tail, error, unopened and undelivered messages, and go on from `position` (seek, new connection)."""
        ...


class FetchResult(NamedTuple):
    """What one partition's part of a fetch came to. The bytes went to `decoder` as they arrived."""

    decoder: LogDecoder
    received: int
    error: BrokerError | None
    """OffsetOutOfRange (`name == "OffsetOutOfRange"`), WrongPartition, Unknown..."""


class ProduceResult(NamedTuple):
    """What is known after a produce: per part, in order, the position it was appended at (None: the era does not
    say) - and whether the broker confirmed it."""

    positions: Sequence[Position | None]
    confirmed: bool


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
        """Where records of `topic` may be sent now, in canonical order (a partitioner's index counts in it).
        Empty when no broker is live. In 0.7 an unknown topic has partition 0 of every live broker."""
        ...

    def published(self, topic: str) -> Sequence[TopicPartition]:
        """The partitions known to exist: what can be read. A subset of `partitions`."""
        ...

    def leader(self, partition: TopicPartition) -> Broker | None:
        """Who serves it now, or None."""
        ...


class ClusterMetadata(Protocol):
    """Who serves what, kept up to date in the background.

    An asynchronous context manager: inside it, `table` is current as far as the coordinator told us. A background
    failure is raised from `changed`, `topic` and at exit, never only logged.
    """

    @property
    def table(self) -> RoutingTable: ...

    async def topic(self, name: str) -> RoutingTable:
        """A table that knows `name`: reads and watches it the first time, returns at once later."""
        ...

    async def all_topics(self) -> frozenset[str]:
        """Every topic the cluster publishes, and keep watching for more (wildcards, listings)."""
        ...

    async def changed(self, version: int) -> RoutingTable:
        """Wait until `table.version > version`. Cancellation: safe."""
        ...

    async def refresh(self) -> RoutingTable:
        """Read everything again now: the table was found wrong."""
        ...


# ---- one broker ---------------------------------------------------------------------------------------------


class PendingResult(Protocol[T_co]):
    """What becomes of one request. It exists from the call on; nobody has to await it.

    Await it any number of times, from any task (cancelling the wait takes nothing back), or ask to be called.
    """

    @property
    def done(self) -> bool:
        """It is there: `result` gives it."""
        ...

    def result(self) -> T_co:
        """Its value. Raises its error, as awaiting it does. Only once it is there."""
        ...

    def then(self, callback: Callable[[], None]) -> None:
        """Have `callback` called in the very step in which the outcome comes; at once if it is there.

        Outcomes of one connection that come together are called back in the order of their requests. The callback
        may call anything of the same api. It must not raise: that would be a mistake of ours, which costs the
        connection and reaches its owner. At most one callback an outcome.
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
    def epoch(self) -> int:
        """Grows at the moment everything outstanding has failed. Requests of one epoch went over one connection, in
        order, or over none; a later one may overtake the news of their failure, but not the change of this number."""
        ...

    def produce(self, parts: Sequence[PartitionBatch], *, confirm: bool) -> PendingResult[ProduceResult]:
        """Encode and queue one produce request now, in call order.

        Not a coroutine function: ordering is decided when it is called, not when it is awaited. Dropping the outcome
        or cancelling who awaits it does not take the request back. Raises nothing itself but ConfigError,
        LocalProtocolError, MessageTooLarge (parts that come without `encoded`) and Closed: nothing is queued then.
        """
        ...

    async def fetch(self, wants: Sequence[tuple[LogDecoder, int]]) -> Sequence[FetchResult]:
        """One round trip for many partitions: each decoder is fed from its `fetch_position` with at most so many
        bytes. Cancellation: the reply is read and dropped; a decoder may have been fed part of it, which is
        consistent (its positions moved with it)."""
        ...

    async def positions(
        self, partition: TopicPartition, at: PositionSpec | AtTime, count: int = 1
    ) -> Sequence[Position]:
        """Positions at or before `at`, newest first, at most `count`."""
        ...

    def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> LogDecoder: ...


class ProtocolDriver(Protocol):
    """One cluster's protocol: pure rules and the way to its brokers. An asynchronous context manager, which opens
    and closes `metadata` and every connection."""

    name: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    @property
    def metadata(self) -> ClusterMetadata: ...

    def broker(self, broker: Broker, *, purpose: str) -> BrokerClient:
        """The api of one broker; `purpose` (`produce`, `fetch`, `control`) keeps sockets apart, so that a long
        fetch never delays a confirm. The same arguments give the same object while the address is the same."""
        ...

    def check(self, topic: str, record: ProducerRecord, max_message_bytes: int) -> None:
        """Raise what makes this record impossible: Rejected (bad topic name, MessageTooLarge as cause) or
        Unsupported (headers, time on an era without them)."""
        ...

    def record_bytes(self, record: ProducerRecord) -> int:
        """Bytes this record takes on the wire, uncompressed. For one that is only a value, a constant and its
        length."""
        ...

    def encode(self, part: PartitionBatch, max_message_bytes: int) -> PartitionBatch:
        """The same part with `encoded` filled in. Pure, so it may run in a thread (compression). Raises
        MessageTooLarge when a payload - with a codec: the wrapper's - is over the limit, which 0.7 drops silently
        (specification 3.1): the caller splits the part."""
        ...

    def membership(self, subscription: Subscription) -> Membership:
        """Join a group. Raises Unsupported when the cluster has nothing to coordinate with."""
        ...

    def offsets(self, group: str) -> OffsetStore: ...

    async def groups(self) -> Sequence[str]:
        """The groups there are, sorted. Raises Unsupported when the cluster has nothing to keep them in."""
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
    """

    group: str
    topics: Mapping[str, int] | None = None
    include: str | None = None
    exclude: str | None = None
    streams: int = 1
    consumer_id: str | None = None


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

    consumer_id: str

    @property
    def problem(self) -> str:
        """Why the member has no share, or not all of it, in words; empty while nothing is wrong."""
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
