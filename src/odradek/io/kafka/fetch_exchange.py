"""One request to Fetch and its response: positions out, record bytes to the decoders, a result for each partition.

The response is decoded as it arrives. Its data of partitions that were not requested are skipped; bad data of one
partition can only end that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.core.interfaces import PartitionFetch
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.fetch_results import FetchStep, fetch_step
from odradek.core.kafka.fetch_session import FetchPosition
from odradek.core.kafka.routing import KafkaRoutingTable
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import BrokerError, LogTruncated, OdradekError, OffsetOutOfRange
from odradek.io.kafka.log_decoder import decoder_of
from odradek.types import Position, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.data import FetchableTopicResponse, FetchPartitionData, FetchRequest, FetchResponse

if TYPE_CHECKING:
    from odradek.core.kafka.produce import OnLeader

__all__ = ["MAX_RESPONSE_BYTES", "FetchExchange", "PartitionExchange"]

Routing = Callable[[], KafkaRoutingTable]

MAX_RESPONSE_BYTES = (1 << 31) - 1
"""Maximum size of a response to Fetch (bytes). The part of it that is kept is bounded per partition."""

_READ = frozenset({FetchStep.READ, FetchStep.READ_FROM_REPLICA})
_RETRY = frozenset({FetchStep.RETRY, FetchStep.REFRESH, FetchStep.BACK_TO_LEADER})


class PartitionExchange:
    """A partition's part of a request and of its response; also the sink of its record bytes.

    The id of its topic is that of its decoder, in whose log its position is one: with the id of a topic that was made
    again, or by name while the topic is deleted, a fetch would reach the new log.

    Args:
        fetch: The fetch it is for.
        leader_epoch: The epoch of the partition's leader; -1: not known.
        is_leader: The broker that is asked leads the partition.
    """

    __slots__ = (
        "_left",
        "_position",
        "_versions",
        "answered",
        "decoder",
        "fetch",
        "is_leader",
        "leader_epoch",
        "offset",
        "partition",
        "received",
        "replica_failed",
    )

    def __init__(self, fetch: PartitionFetch, leader_epoch: int = -1, is_leader: bool = True) -> None:
        self.fetch, self.decoder = fetch, decoder_of(fetch)
        self.partition = self.decoder.partition
        self.leader_epoch, self.is_leader = leader_epoch, is_leader
        self.offset = self.received = 0
        self._left = fetch.max_bytes + self.decoder.max_message_bytes
        self.answered = self.replica_failed = False
        self._position: FetchPosition | None = None
        self._versions: BrokerVersions | None = None  # that the position is for

    def start(self) -> None:
        """Ask for what follows everything fed so far."""
        self.offset = self.fetch.start()

    def position(self, versions: BrokerVersions) -> FetchPosition:
        """Return what to ask a broker for. It is always the same: a fetch ends when its decoder moves."""
        if self._position is not None and versions is self._versions:
            return self._position
        size = self.fetch.max_bytes
        if not versions.has_whole_first_message:
            size = max(size, self.decoder.needed_bytes)
        decoder = self.decoder
        is_checked = decoder.checked_epoch == self.leader_epoch >= 0  # the log of a leader only grows
        compares = versions.has_truncation_detection and not is_checked
        self._versions = versions
        self._position = position = FetchPosition(
            offset=self.offset,
            max_bytes=size,
            leader_epoch=self.leader_epoch,
            last_fetched_epoch=decoder.leader_epoch if compares else -1,
            topic_id=decoder.topic_id,
        )
        return position

    def begin(self, data: FetchPartitionData) -> PartitionExchange | None:
        """Begin with the records of a response; return None if they are of no use any more."""
        if self.answered or fetch_step(data) not in _READ:
            return None  # named twice, or with an error
        if self.decoder.fetch_position != self.offset:
            return None  # it was reset while the request was in flight
        self.answered = True
        self.decoder.begin_response(data.aborted_transactions)
        return self

    def feed(self, data: memoryview) -> None:
        """Pass record bytes on, up to what was asked for and one more message: no broker may fill the memory."""
        self.received += len(data)
        part = data[: self._left]
        self._left -= len(part)
        if part:
            self.fetch.feed(part)

    def end(self) -> None:
        """End with the records, whether the response was complete or not."""
        # A seek while the request was in flight may have reset the decoder to before `offset`: then it has nothing of
        # this response.
        if self.answered and self.decoder.fetch_position >= self.offset:
            self.decoder.end_response()
            self.fetch.next_entry_bytes = self.decoder.needed_bytes
        self.fetch.cancel()

    def apply(self, data: FetchPartitionData, address: str, routing: Routing, *, has_records: bool) -> None:
        """Set the result of the fetch. `routing` returns the routing table. `has_records`: The response has records, of
        whichever partition."""
        fetch = self.fetch
        fetch.received = self.received
        fetch.high_watermark = _position(data.high_watermark)
        fetch.last_stable = _position(data.last_stable_offset)
        fetch.log_start = _position(data.log_start_offset)
        step = fetch_step(data, position=self.offset, from_replica=not self.is_leader)
        # The leader that named the end of its log, of which consumers in Java commit the epoch, too, may have written
        # nothing: then the next one does not have that epoch, but an earlier one up to the position or further. One
        # whose log has no epochs (formats before 0.11) has nothing to compare: it answers that the offset is out of
        # range.
        earlier = data.diverging_epoch
        has_all = step is FetchStep.TRUNCATED and earlier.end_offset >= self.offset
        if has_all and self.decoder.forget_start_epoch(earlier.epoch):
            return
        if step is FetchStep.OUT_OF_RANGE and self.decoder.forget_start_epoch():
            return
        if step is FetchStep.READ_FROM_REPLICA and data.preferred_read_replica in routing().brokers:
            fetch.preferred_replica = data.preferred_read_replica
        elif step is not FetchStep.READ:
            self.replica_failed = step is FetchStep.READ_FROM_REPLICA or not self.is_leader
            fetch.error = self._error(step, data, f"{address}: fetch {self.partition} from {self.offset}")
        elif has_records and not self.received:  # all are of other partitions
            fetch.left_out = self._has_more(data)

    def _has_more(self, data: FetchPartitionData) -> bool:
        """Return whether the log has more than was asked for so far. Nothing of it may have come all the same: from
        0.10.1 on only the first partition with records gets a batch that is larger than what was asked for (KIP-74)."""
        stable = data.last_stable_offset if self.decoder.read_committed else -1
        return self.offset < (data.high_watermark if stable < 0 else stable)

    def _error(self, step: FetchStep, data: FetchPartitionData, context: str) -> OdradekError:
        if step is FetchStep.TRUNCATED:
            diverging = data.diverging_epoch
            end = min(diverging.end_offset, self.offset)  # no position moves forward
            return LogTruncated(str(self.partition), self.offset, end, diverging.epoch)
        if step is FetchStep.READ_FROM_REPLICA:
            # It has started since the metadata was read. Until it is asked there are no records, and no long polls.
            unknown = f"{context}: its leader prefers broker {data.preferred_read_replica}, which is not known"
            return broker_error(ErrorCode.REPLICA_NOT_AVAILABLE, unknown)
        error = broker_error(data.error_code or ErrorCode.OFFSET_OUT_OF_RANGE, context)  # of a replica that is behind
        if step is FetchStep.OUT_OF_RANGE:
            return OffsetOutOfRange(error.code, error.name, context)
        return _with_step(error, step)


def _with_step(error: BrokerError, step: FetchStep) -> BrokerError:
    error.retriable = step in _RETRY
    error.refresh_metadata |= step in (FetchStep.REFRESH, FetchStep.BACK_TO_LEADER)
    return error


def _position(offset: int) -> Position | None:
    return None if offset < 0 else Position(offset)


class FetchExchange:
    """One request to Fetch and its response; or several in a session, as long as no part has a result.

    Args:
        parts: At most one for each partition.
        address: The broker's address, for errors.
    """

    def __init__(self, parts: Sequence[PartitionExchange], address: str) -> None:
        self._address = address
        for part in parts:
            part.start()
        self.parts = parts
        self.max_bytes = MAX_RESPONSE_BYTES
        """Limit of the response (bytes). Partitions that follow after so many bytes are skipped: they are left out."""
        self._parts = {part.partition: part for part in parts}
        self._names = {part.decoder.topic_id: part.partition.topic for part in parts}
        self._positions: Mapping[TopicPartition, FetchPosition] = {}
        self._versions: BrokerVersions | None = None  # that the positions are for
        self._sink: PartitionExchange | None = None
        self._received = 0  # bytes of records, without those of the sink
        self._answered: dict[PartitionExchange, None] = {}
        self.by_id = False
        """The version of the request, and so its response, names topics by id."""
        self.read_committed = any(part.decoder.read_committed for part in parts)
        """The isolation of the request: that of its decoders."""

    @property
    def topic_ids(self) -> Collection[bytes]:
        """The ids of all topics; all zero for those whose id is not known."""
        return self._names.keys()

    def positions(self, versions: BrokerVersions) -> Mapping[TopicPartition, FetchPosition]:
        """Return what to ask a broker with these versions for, by partition: the same mapping as long as they are the
        same. The response is from that broker, too."""
        self.by_id = versions.names_topics_by_id(FetchRequest, self.topic_ids)
        if versions is not self._versions:
            self._positions = {where: part.position(versions) for where, part in self._parts.items()}
            self._versions = versions
        return self._positions

    def open_sink(self, topic: FetchableTopicResponse, data: FetchPartitionData) -> PartitionExchange | None:
        """Return the receiver of a partition's record bytes (`wire.kafka.fetch_response.OpenSink`)."""
        if self._sink is not None:
            self._received += self._sink.received
        part = self._part(topic, data) if self._received < self.max_bytes else None
        self._sink = None if part is None else part.begin(data)
        return self._sink

    def apply(self, response: FetchResponse, on_leader: OnLeader, routing: Routing) -> None:
        """Set the result of every fetch that the response is about. An error of the whole response is that of the
        fetches it says nothing else about. `routing` returns the routing table."""
        # A response in a session leaves out partitions that have nothing new (KIP-227): their fetches have no error and
        # no bytes, which is an empty response.
        has_records = self._received > 0 or (self._sink is not None and self._sink.received > 0)
        for topic in response.responses:
            for data in topic.partitions:
                if (part := self._part(topic, data)) is not None:
                    self._answered[part] = None
                    part.fetch.answered = True
                    part.apply(data, self._address, routing, has_records=has_records)
                    if data.error_code and (leader := data.current_leader).leader_id >= 0:
                        on_leader(part.partition, leader.leader_id, leader.leader_epoch, response.node_endpoints)
        if response.error_code:
            error = self._error(response.error_code)
            for part in self.parts:
                if part not in self._answered:
                    self._answered[part] = None
                    part.fetch.error = error

    def end_answered(self) -> None:
        """Accept no more bytes for the parts that have a result."""
        for part in self._answered:
            part.end()

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions that are asked for."""
        return self._parts.keys()

    @property
    def replicas(self) -> Collection[TopicPartition]:
        """The partitions that the broker does not lead: their leaders prefer it."""
        return [part.partition for part in self.parts if not part.is_leader]

    @property
    def failed_replicas(self) -> Collection[TopicPartition]:
        """The partitions that have got an error from the replica that their leader prefers, or whose leader prefers one
        that is not known."""
        return [part.partition for part in self._answered if part.replica_failed]

    @property
    def out_of_range(self) -> Collection[TopicPartition]:
        """The partitions whose logs do not have what was asked for."""
        return [part.partition for part in self._answered if isinstance(part.fetch.error, OffsetOutOfRange)]

    def end(self) -> None:
        """Accept no more bytes."""
        for part in self._parts.values():
            part.end()

    def _error(self, code: int) -> OdradekError:
        """Return the error for an error code of the whole response; what is retried for a partition is for all."""
        error = broker_error(code, f"{self._address}: fetch of {len(self._parts)} partitions")
        error.retriable |= fetch_step(FetchPartitionData(error_code=code)) in _RETRY
        return error

    def _part(self, topic: FetchableTopicResponse, data: FetchPartitionData) -> PartitionExchange | None:
        name = self._names.get(topic.topic_id, "") if self.by_id else topic.topic
        return self._parts.get(TopicPartition(name, data.partition_index))
