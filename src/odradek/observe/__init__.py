"""Observation: what a client does, as events for metrics, traces and logs::

    class Failures(Observer):
        def batch_finished(self, event: BatchFinished) -> None:
            if event.error is not None:
                print(event.topic, event.records, event.error)

    async with od.connect("kafka://localhost:9092", observer=Failures()) as k: ...

`odradek.observe.prometheus` and `odradek.observe.otel` are observers that are ready to use; `odradek.observe.push` is
that of `odradek.connect(..., push_metrics=True)`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from odradek.errors import BrokerError, DeliveryError, OdradekError
from odradek.types import Broker, Position, TopicPartition

__all__ = [
    "BatchDelivered",
    "BatchFinished",
    "BatchSent",
    "BufferLevel",
    "CommitFinished",
    "ConnectionEnded",
    "ConnectionFailed",
    "ConnectionOpened",
    "HeartbeatLate",
    "MirrorCommitted",
    "MirrorLag",
    "Observer",
    "PartFetched",
    "ReadAheadLevel",
    "Rebalanced",
    "RequestFinished",
    "Throttled",
    "error_name",
]


# ---- connections and requests -------------------------------------------------------------------------------


class ConnectionOpened(NamedTuple):
    """A connection is ready for requests.

    Attributes:
        broker: The broker; id -1: only its address is known, from the URL.
        purpose: The kind of work that it is for, such as `produce`, `fetch`, `poll`, `control` and `bootstrap`; that of
            a coordinator has the name of its group or transactional id as well.
        seconds: Time that look-up, connecting, TLS, versions and SASL have taken (s).
    """

    broker: Broker
    purpose: str
    seconds: float


class ConnectionFailed(NamedTuple):
    """An attempt to connect failed, or the connection was lost before it was ready.

    Attributes:
        broker, purpose: See `ConnectionOpened`.
        reason: Why, in words.
    """

    broker: Broker
    purpose: str
    reason: str


class ConnectionEnded(NamedTuple):
    """A connection that was ready has ended.

    Attributes:
        broker, purpose: See `ConnectionOpened`.
        reason: Why, in words.
        lost: False if this client closed it: it was not used any more, or the cluster is being closed.
    """

    broker: Broker
    purpose: str
    reason: str
    lost: bool


class Throttled(NamedTuple):
    """A broker applied a quota (KIP-13, KIP-219): nothing is sent over this connection for a time, or the broker has
    held a response back for so long.

    Attributes:
        broker, purpose: See `ConnectionOpened`.
        seconds: For how long (s).
    """

    broker: Broker
    purpose: str
    seconds: float


class RequestFinished(NamedTuple):
    """A request has its response or its error. Requests of the handshake are part of `ConnectionOpened`.

    Attributes:
        broker, purpose: See `ConnectionOpened`.
        api: Name of the request, such as `Produce` or `Fetch`.
        version: The version that was sent; -1: none was, or the protocol has no versions (0.7).
        sent_bytes: Size of the request (bytes); 0: it was not sent.
        received_bytes: What has arrived of the response (bytes).
        seconds: From the moment it was queued to its result (s). A long poll takes as long as its broker waits.
        error: Why the request failed as a whole. An error that the response has for one partition or group is not one.
    """

    broker: Broker
    purpose: str
    api: str
    version: int
    sent_bytes: int
    received_bytes: int
    seconds: float
    error: OdradekError | None


# ---- producers ----------------------------------------------------------------------------------------------


class BatchSent(NamedTuple):
    """A batch was handed to the connection of a broker.

    Attributes:
        producer: Number of the producer in this process.
        broker: The broker.
        partition: The partition.
        records: Number of records.
        bytes: Their size on the wire, uncompressed (bytes).
        attempt: 1 for the first attempt.
        seconds: Since the first record of the batch (s).
    """

    producer: int
    broker: Broker
    partition: TopicPartition
    records: int
    bytes: int
    attempt: int
    seconds: float


class BatchFinished(NamedTuple):
    """A batch has its outcome.

    Attributes:
        producer, records, bytes: See `BatchSent`.
        topic: The topic.
        partition: The partition; None: none was chosen yet.
        seconds: From the first record of the batch to its outcome (s).
        attempts: How often it was sent.
        error: Rejected, NotWritten, OutcomeUnknown or Fenced; None: it was written.
    """

    producer: int
    topic: str
    partition: TopicPartition | None
    records: int
    bytes: int
    seconds: float
    attempts: int
    error: OdradekError | None


class BufferLevel(NamedTuple):
    """The buffer of a producer, whenever a request is sent, when nothing is left in it, and when the producer ends.

    Attributes:
        producer: See `BatchSent`.
        bytes: Memory of the records without an outcome (bytes).
        limit: The option `buffer_bytes` (bytes); 0: the producer has ended.
        waiting: Calls that wait for space.
    """

    producer: int
    bytes: int
    limit: int
    waiting: int


# ---- readers and consumers ----------------------------------------------------------------------------------


class PartFetched(NamedTuple):
    """A response to a fetch had records of a partition, or an error for it.

    Attributes:
        reader: Number of the reader or consumer in this process.
        broker: The broker.
        partition: The partition.
        bytes: Bytes of its log in the response (bytes).
        end: The end of what may be read of the partition; None: the protocol does not say so (0.7).
        error: The error of the partition.
    """

    reader: int
    broker: Broker
    partition: TopicPartition
    bytes: int
    end: Position | None
    error: OdradekError | None


class BatchDelivered(NamedTuple):
    """Records of one partition were handed to the application, as a batch, as part of a table, or one by one.

    Attributes:
        reader: See `PartFetched`.
        group: The consumer's group; None: a reader.
        partition: The partition.
        records: Number of records.
        bytes: Size of keys, values and headers (bytes).
        lag: Records between the last of these and the end that the latest response named; None: the protocol does not
            name it (0.7), or the records are those of a share group, which have no order.
    """

    reader: int
    group: str | None
    partition: TopicPartition
    records: int
    bytes: int
    lag: int | None


class ReadAheadLevel(NamedTuple):
    """The read-ahead of a reader or consumer, after each response, and when the reader or consumer ends.

    Attributes:
        reader: See `PartFetched`.
        bytes: Memory of the records that are not delivered yet (bytes).
        limit: The option `read_ahead_bytes` (bytes); 0: the reader has ended.
    """

    reader: int
    bytes: int
    limit: int


class CommitFinished(NamedTuple):
    """A consumer has committed positions, or could not. Not for positions that a transaction commits.

    Attributes:
        group: The group.
        positions: What was to be committed.
        seconds: How long it took (s).
        error: Why it failed: positions may be stored or not.
    """

    group: str
    positions: Mapping[TopicPartition, Position]
    seconds: float
    error: OdradekError | None


class Rebalanced(NamedTuple):
    """Partitions were given to a member of a group, or taken from it.

    Attributes:
        group: The group.
        kind: `assigned`, `revoked` (after its records were processed and committed), `lost` (at once: the group had
            removed the member), or `left` (the consumer has left its block).
        partitions: Those that it is about; `assigned` may have none.
        reason: Why, in words.
        seconds: `assigned`: since the member began to join, or had to give up partitions for this, until its new ones
            are read (s). `revoked` and `left`: how long that took (s). `lost`: 0.
    """

    group: str
    kind: str
    partitions: Collection[TopicPartition]
    reason: str
    seconds: float


class HeartbeatLate(NamedTuple):
    """The event loop was blocked, so that it could send no heartbeat in time (0.9 and later; in 0.7 ZooKeeper's client
    sends them from a thread).

    Attributes:
        group: The group.
        seconds: How long the loop did nothing for the member (s).
    """

    group: str
    seconds: float


# ---- mirrors ------------------------------------------------------------------------------------------------


class MirrorCommitted(NamedTuple):
    """A mirror (`odradek.mirror`) has committed a transaction with records.

    Attributes:
        mirror: Its name.
        records: Source partition -> number of records.
        bytes: Source partition -> size of their keys, values and headers (bytes).
        seconds: How long the transaction took: writing, and the commit (s).
    """

    mirror: str
    records: Mapping[TopicPartition, int]
    bytes: Mapping[TopicPartition, int]
    seconds: float


class MirrorLag(NamedTuple):
    """The lag of a mirror in one partition: when its task begins, after each transaction that has moved it, and each
    `run.refresh_seconds`, when also the ends of logs are asked for.

    Attributes:
        mirror: Its name.
        partition: The partition on the source.
        lag: Distance from what is copied next to the end of the log, as far as that is known; in a run that ends, to
            where that run ends. In records, with what transactions and compaction leave out; in 0.7 in bytes.
        seconds: The age of the oldest record that is not copied is at most this (s): the time since the last moment at
            which the mirror was seen at the end of the log, or the age of the last record copied if that is less. 0 if
            the lag is 0; None if neither is known (0.7, until the first time that it is at the end).
    """

    mirror: str
    partition: TopicPartition
    lag: int
    seconds: float | None


class Observer:
    """Base class of observers: every method does nothing, so that a subclass has those that it needs.

    Pass an instance to `odradek.connect(..., observer=...)`. Methods are called once per connection, request, batch or
    partition of a response, never per record, in the event loop of the cluster and in the order in which things happen.
    They must return quickly, must not be coroutine functions, and must not call the client, which is in the middle of
    something. What a method raises is logged the first time, with its traceback, and goes no further.
    """

    def connection_opened(self, event: ConnectionOpened) -> None:
        """A connection is ready."""

    def connection_failed(self, event: ConnectionFailed) -> None:
        """An attempt to connect failed."""

    def connection_ended(self, event: ConnectionEnded) -> None:
        """A connection was lost or closed."""

    def throttled(self, event: Throttled) -> None:
        """A broker applied a quota."""

    def request_finished(self, event: RequestFinished) -> None:
        """A request has its response or its error."""

    def batch_sent(self, event: BatchSent) -> None:
        """A batch was handed to a connection."""

    def batch_finished(self, event: BatchFinished) -> None:
        """A batch was written, or failed."""

    def buffer_level(self, event: BufferLevel) -> None:
        """The level of a producer's buffer has changed."""

    def part_fetched(self, event: PartFetched) -> None:
        """Records of a partition have arrived, or an error of it."""

    def batch_delivered(self, event: BatchDelivered) -> None:
        """Records were handed to the application."""

    def read_ahead_level(self, event: ReadAheadLevel) -> None:
        """The level of a read-ahead may have changed."""

    def commit_finished(self, event: CommitFinished) -> None:
        """Positions were committed, or could not be."""

    def rebalanced(self, event: Rebalanced) -> None:
        """Partitions were given to a member of a group, or taken from it."""

    def heartbeat_late(self, event: HeartbeatLate) -> None:
        """The event loop was blocked for longer than a heartbeat interval."""

    def mirror_committed(self, event: MirrorCommitted) -> None:
        """A mirror has committed a transaction."""

    def mirror_lag(self, event: MirrorLag) -> None:
        """The lag of a mirror in a partition may have changed."""


def error_name(error: OdradekError | None) -> str:
    """Return a name for the kind of an error, for labels: that of a broker's error code, or of the class. A delivery
    that failed is named for its cause, if it has one. Empty without an error."""
    if error is None:
        return ""
    if isinstance(error, DeliveryError) and isinstance(error.__cause__, OdradekError):
        return error_name(error.__cause__)
    return error.name if isinstance(error, BrokerError) else type(error).__name__
