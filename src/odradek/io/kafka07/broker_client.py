"""The data requests of one 0.7 broker, over one connection: `core.interfaces.BrokerClient`.

A produce is not answered in 0.7. Its confirm is a MULTIFETCH of zero parts right after it, in the same write: the
broker serves a connection strictly in order and closes it on a bad produce (specification.md 1.1, 3.1), so the answer
proves the append. It does not prove that no message was larger than the broker's max.message.size: such a message set
is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from odradek.core.interfaces import (
    DecoderOptions,
    LogDecoder,
    PartitionBatch,
    PartitionFetch,
    PartitionResult,
    PendingResult,
)
from odradek.core.produce.batch import are_small
from odradek.core.produce.packed_records import PackedRecords
from odradek.errors import BrokerError, ConfigError, ConnectionLost, MessageTooLarge, OdradekError, RemoteProtocolError
from odradek.io.connection import Connection
from odradek.io.gather import gather_outcomes
from odradek.io.requests import InFlightRequest
from odradek.types import EARLIEST, AtTime, Broker, Position, PositionSpec, TopicPartition
from odradek.wire.compression import parse_compression
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set, entry_bytes
from odradek.wire.kafka07.requests import (
    Fetch,
    MultiFetch,
    MultiProduce,
    Offsets,
    Produce,
    encode_plain_sets,
    encode_request,
    produce_head,
)
from odradek.wire.kafka07.responses import (
    ConfirmReply,
    FetchReply,
    MultiFetchReply,
    OffsetsReply,
    PartResult,
    broker_error,
)

__all__ = ["BrokerClientOptions", "Kafka07BrokerClient"]

CONFIRM = encode_request(MultiFetch(()))
"""8 bytes out, 6 bytes back (specification.md 1.3)."""

CONFIRM_BYTES = b"".join(CONFIRM)

MAX_MESSAGE_BYTES = 1_000_000
"""max.message.size of a 0.7 broker that does not set it (specification.md 8)."""

ENTRY_OVERHEAD = entry_bytes(0)

LAST_TIME_MS = 2.0**62
"""Stands for any later time: the field is an i64."""


@dataclass(frozen=True, slots=True)
class BrokerClientOptions:
    """Options of a broker client.

    Args:
        request_timeout_s: Time limit from a call to its outcome (s).
        max_message_bytes: The brokers' max.message.size: larger messages are silently dropped (specification.md 3.1).
    """

    request_timeout_s: float = 30.0
    max_message_bytes: int = MAX_MESSAGE_BYTES


class _ProduceHeads(dict[TopicPartition, bytes]):
    """First bytes of the parts of produce requests, by partition; made when first asked for."""

    def __missing__(self, partition: TopicPartition) -> bytes:
        head = self[partition] = produce_head(partition.topic, partition.partition)
        return head


class Kafka07BrokerClient:
    """Implementation of `core.interfaces.BrokerClient` for 0.7. Its creator runs the `connection`.

    Args:
        broker: The broker it sends requests to.
        connection: Connection to that broker; not shared, so that responses arrive in the order of these requests.
        options: Time limit and message size.
    """

    polls = None

    def __init__(self, broker: Broker, connection: Connection, options: BrokerClientOptions | None = None) -> None:
        self.broker, self.connection, self.options = broker, connection, options or BrokerClientOptions()
        self._source = object()  # of what came over
        self._source_incarnation = connection.incarnation  # of the connection
        self._heads = _ProduceHeads()

    def __repr__(self) -> str:
        return f"<Kafka07BrokerClient broker {self.broker.id} {self.connection!r}>"

    @property
    def incarnation(self) -> int:
        """Incarnation of the connection: grows when it is replaced (see `BrokerClient`)."""
        return self.connection.incarnation

    @property
    def available_at(self) -> float:
        """End of the back-off of the connection (see `BrokerClient`)."""
        return self.connection.available_at

    def encode(self, batch: PartitionBatch, max_message_bytes: int) -> None:
        """Set `batch.encoded` to its message set, compressed to one wrapper message (see `BrokerClient.encode`). Every
        0.7 broker takes the same bytes.

        Raises:
            MessageTooLarge: The broker would drop the whole set silently: a payload is over the limit, and compressed,
                the payload is the wrapper's (specification.md 3.1).
        """
        if batch.encoded is not None:
            return
        values: Any = batch.records.values if type(batch.records) is PackedRecords else batch.records
        if values and type(values[0]) is not bytes:
            values = _payloads(values)
        compression, level = parse_compression(batch.compression)
        try:
            encoded = encode_set(values, compression, level=level)
        except TypeError:  # records with keys among them
            values = _payloads(values)
            encoded = encode_set(values, compression, level=level)
        if len(encoded) - ENTRY_OVERHEAD > max_message_bytes:  # else no payload can be over the limit
            size = len(encoded) - ENTRY_OVERHEAD if compression else max(map(len, values))
            if size > max_message_bytes:
                raise MessageTooLarge(str(batch.partition), -1, size, max_message_bytes, "max_message_bytes")
        batch.encoded = encoded

    def produce(
        self, batches: Sequence[PartitionBatch], *, acks: int
    ) -> PendingResult[Sequence[PartitionResult] | None]:
        """Send batches (see `BrokerClient.produce`): one as PRODUCE, several as MULTIPRODUCE. The result is None.

        The result fails with ConnectionLost, `sent` true, when the broker closes the connection instead of confirming:
        it refused this produce or one before it, or died. With `acks=0` the result is available once the bytes are
        written, and proves nothing.

        Raises:
            LocalProtocolError, Closed: Nothing was queued. MessageTooLarge, ConfigError: nor was it if a batch that is
                not encoded yet cannot be.
        """
        parts = []
        for batch in batches:
            if batch.encoded is None:
                self.encode(batch, self.options.max_message_bytes)
            topic, partition, _ = batch.partition
            parts.append(Produce(topic, partition, batch.encoded or b""))
        buffers = encode_request(parts[0] if len(parts) == 1 else MultiProduce(tuple(parts)))
        return self.connection.submit(
            buffers + CONFIRM if acks else buffers,
            ConfirmReply() if acks else None,
            deadline_s=self.options.request_timeout_s,
            observation=None if (own := self.connection.observation) is None else own.of("Produce"),
        )

    def produce_plain(
        self, batches: Sequence[PartitionBatch], *, acks: int, max_message_bytes: int
    ) -> PendingResult[Sequence[PartitionResult] | None] | None:
        """Send small batches, encoded all at once (see `BrokerClient.produce_plain`): the same bytes as `produce`."""
        if not are_small(batches):
            return None
        runs = [batch.records for batch in batches]
        heads = [self._heads[batch.partition] for batch in batches]
        # A message set that is not larger than the limit has no payload that is.
        frame = encode_plain_sets(heads, runs, CONFIRM_BYTES if acks else b"", max_message_bytes)
        if frame is None:
            return None
        return self.connection.submit(
            (frame,),
            ConfirmReply() if acks else None,
            deadline_s=self.options.request_timeout_s,
            observation=None if (own := self.connection.observation) is None else own.of("Produce"),
        )

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        """Fetch partitions (see `BrokerClient.fetch`): a single one with FETCH, several with MULTIFETCH. 0.7 responds
        at once, so `max_wait` and `min_bytes` are ignored.

        A partial tail a decoder kept from an earlier connection is dropped first: the broker may have been truncated
        in between. Cancellation: safe; a request that was not sent is withdrawn, the rest of a response is read and
        dropped, earlier bytes stay fed. The same holds when a decoder is reset while its fetch is in flight.
        """
        if not fetches:
            return
        if self._source_incarnation != self.incarnation:
            self._source_incarnation, self._source = self.incarnation, object()
        source, incarnation = self._source, self.incarnation
        parts = tuple([_part(fetch, source) for fetch in fetches])
        limit = sum([f.max_bytes for f in fetches])
        pending: InFlightRequest[list[PartResult]] = self.connection.submit(
            encode_request(parts[0] if len(parts) == 1 else MultiFetch(parts)),
            FetchReply(fetches, limit) if len(parts) == 1 else MultiFetchReply(fetches, limit),
            deadline_s=self.options.request_timeout_s,
            observation=None if (own := self.connection.observation) is None else own.of("Fetch"),
        )
        try:
            results = await pending
        except BaseException:
            pending.withdraw()  # cancelled before it was sent
            raise
        finally:
            if incarnation != self.incarnation:
                source = None
            for fetch in fetches:
                fetch.cancel()
                fetch.decoder.source = source
        for fetch, part, (code, received) in zip(fetches, parts, results, strict=True):
            fetch.received = received
            if code:
                fetch.error = self._error(code, part)

    def _error(self, code: int, part: Fetch) -> BrokerError:
        return broker_error(code, f"{self.broker.address}: fetch {part.topic}/{part.partition} from {part.offset}")

    async def positions(
        self, partition: TopicPartition, at: PositionSpec | AtTime, count: int = 1
    ) -> Sequence[Position]:
        """Return segment starts and, for LATEST, the end of the flushed log (specification.md 4.1).

        Cancellation: safe.

        Raises:
            ConnectionLost: Also when the broker does not have such a partition: it closes the connection instead of
                answering (specification.md 1.4).
        """
        if count < 1:  # a negative number closes the connection, and 0 asks for nothing
            raise ConfigError(f"count must be at least 1, not {count}")
        request = Offsets(partition.topic, partition.partition, _time_ms(at), count)
        reply = OffsetsReply(count)
        pending = self.connection.submit(
            encode_request(request),
            reply,
            deadline_s=self.options.request_timeout_s,
            observation=None if (own := self.connection.observation) is None else own.of("Offsets"),
        )
        try:
            return [Position(position) for position in await pending]
        except ConnectionLost as error:
            if error.sent:
                error = ConnectionLost(error.address, f"{error.why} (asked for offsets of {partition})", True)
                error.hint = "0.7 brokers close the connection on a topic or partition that cannot exist on them"
            raise error from None

    async def resolve_position(
        self, partition: TopicPartition, at: PositionSpec | AtTime, *, read_committed: bool = False
    ) -> Position:
        """Resolve a position (see `BrokerClient.resolve_position`). Cancellation: safe."""
        for each in (at, EARLIEST):  # no segment is as old as a time before the first one
            if positions := await self.positions(partition, each):
                return positions[0]
        raise RemoteProtocolError(f"{partition}: broker {self.broker.id} returned no earliest position")

    async def resolve_positions(
        self, wanted: Mapping[TopicPartition, PositionSpec | AtTime], *, read_committed: bool = False
    ) -> Mapping[TopicPartition, Position | OdradekError]:
        """Resolve positions, one by one (see `BrokerClient.resolve_positions`). Cancellation: safe."""

        async def resolve(asked: tuple[TopicPartition, PositionSpec | AtTime]) -> Position:
            return await self.resolve_position(*asked, read_committed=read_committed)

        return dict(zip(wanted, await gather_outcomes(resolve, wanted.items()), strict=True))

    def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> LogDecoder:
        """Return a decoder for `fetch` that begins at `position`."""
        return MessageSetDecoder(partition, position, options)


def _payloads(records: Any) -> list[bytes | None]:
    """Return what 0.7 stores of records: keys only choose the partition."""
    return [record if type(record) is bytes else record[0] for record in records]


def _part(fetch: PartitionFetch, source: object) -> Fetch:
    """Return the part of a request. Bytes behind the last message boundary that came from elsewhere are dropped."""
    decoder = fetch.decoder
    if decoder.source is not source and decoder.fetch_position != decoder.position:
        decoder.reset(decoder.position)
    topic, partition, _ = decoder.partition
    return _new_part(Fetch, (topic, partition, fetch.start(), fetch.max_bytes))


_new_part = tuple.__new__  # without a Python function that names the fields


def _time_ms(at: PositionSpec | AtTime) -> int:
    """Times before the epoch are all the same to a broker, and -1 and -2 would mean something else."""
    return at.value if isinstance(at, PositionSpec) else int(min(max(0.0, at.seconds * 1000), LAST_TIME_MS))
