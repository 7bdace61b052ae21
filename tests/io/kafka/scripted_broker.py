"""Enough of a broker to speak real bytes in every version, with answers a test can replace and replies it can cut."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import ByteStream, TaskGroup
from tests.conformance.kafka.apis import encode_response
from tests.frames import FrameReader
from tests.memory_pair import memory_pair

from odradek.core.backoff import Backoff
from odradek.core.kafka.fetch_results import FailedReplicas
from odradek.core.kafka.leader_epochs import LeaderEpochs
from odradek.core.kafka.produce import OnLeader
from odradek.core.kafka.routing import BrokerEndpoint, KafkaRoutingTable, Partition, Topic
from odradek.core.kafka.routing_snapshot import RoutingSnapshot
from odradek.core.kafka.versions import BrokerVersions, VersionRange
from odradek.io.connection import ConnectionOptions
from odradek.io.kafka.broker_client import BrokerClientSettings, KafkaBrokerClient
from odradek.io.kafka.connection import KafkaConnection
from odradek.io.kafka.handshake import Session
from odradek.io.kafka.topic_check import TopicCheck
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.decode import decode, decoder
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.headers import RequestHeader, header_version
from odradek.wire.kafka.messages.data import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchPartitionData,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from odradek.wire.kafka.schema import ZERO_UUID, Request, Response

APIS: dict[int, type[Request[Any]]] = {
    api.SPEC.key: api for api in (ProduceRequest, FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest)
}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TOPIC_ID = bytes(range(16))


def versions(produce: int, fetch: int, offsets: int = 0, epochs: int = 4) -> BrokerVersions:
    """What a broker with these highest versions can do."""
    return BrokerVersions(
        {key: VersionRange(0, last) for key, last in enumerate((produce, fetch, offsets))}
        | {23: VersionRange(0, epochs)}
    )


class Log:
    """The entries of one partition: batches, or messages, each from an offset on."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.end = 0

    def append(self, data: bytes) -> int:
        """Give offsets to what a producer sent, as brokers do. Returns the first one."""
        first = self.end
        while data:
            size = 12 + int.from_bytes(data[8:12], "big")
            entry, data = data[:size], data[size:]
            count = int.from_bytes(entry[57:61], "big") if entry[16] == 2 else 1
            self.add(self.end, entry, count)
        return first

    def add(self, offset: int, entry: bytes, count: int = 1) -> None:
        """Append an entry of `count` offsets from `offset` on."""
        stored = offset if entry[16] == 2 else offset + count - 1
        self.entries.append((offset, stored.to_bytes(8, "big", signed=True) + entry[8:]))
        self.end = offset + count

    def read(self, offset: int, max_bytes: int, whole: bool) -> bytes:
        """Return bytes from the entry with `offset` on; the last entry may be cut."""
        first = max((i for i, (start, _) in enumerate(self.entries) if start <= offset), default=0)
        entries = [data for _, data in self.entries[first:]] if offset < self.end else []
        size = max(max_bytes, len(entries[0])) if entries and whole else max_bytes
        return b"".join(entries)[:size]


class ScriptedBroker:
    """One broker with logs.

    Attributes:
        requests: What it was sent: request and version.
        answers: Replaces its own answer to a kind of request; None: no answer, bytes: the frame's content.
        epoch_end: Where every leader epoch ends.
        named_epoch: The epoch that comes with every position that it names.
        cut: Bytes of the next reply that are sent before the connection is closed.
    """

    def __init__(self, can: BrokerVersions) -> None:
        self.can = can
        self.logs = {T0: Log(), T1: Log()}
        self.requests: list[tuple[Any, int]] = []
        self.answers: dict[type, Callable[[Any, int], Response | bytes | None]] = {}
        self.cut: int | None = None
        self.epoch_end = 0
        self.named_epoch = -1
        self.reply_sizes: list[int] = []
        self.group: TaskGroup | None = None
        self.changed = anyio.Event()

    async def dial(self, host: str, port: int, timeout: float) -> ByteStream:
        here, remote = memory_pair(1 << 20)
        assert self.group is not None
        self.group.start_soon(self.serve, remote)
        return here

    async def serve(self, stream: ByteStream) -> None:
        frames = FrameReader(100 << 20)
        async with stream:
            try:
                while True:
                    for body in frames.feed(await stream.receive(65536)):
                        await self.reply(stream, body)
            except (anyio.EndOfStream, anyio.BrokenResourceError, ConnectionAbortedError):
                return

    async def reply(self, stream: ByteStream, body: bytes) -> None:
        api, version = APIS[int.from_bytes(body[:2], "big")], int.from_bytes(body[2:4], "big")
        header, start = decoder(RequestHeader, header_version(api, version))(body, 0)
        request = decode(api, version, body, start)
        self.requests.append((request, version))
        answer = self.answers.get(api, self.answer)(request, version)
        if isinstance(answer, Response):
            data = encode_response(answer, version, header.correlation_id)
        elif answer is not None:
            content = header.correlation_id.to_bytes(4, "big") + answer
            data = len(content).to_bytes(4, "big") + content
        else:
            return
        self.reply_sizes.append(len(data))
        if self.cut is not None:
            data, self.cut = data[: self.cut], None
            await stream.send(data) if data else None
            raise ConnectionAbortedError
        await stream.send(data)

    def answer(self, request: Any, version: int) -> Response | None:
        match request:
            case ProduceRequest():
                answer = self.produce(request)
                return answer if request.acks else None
            case FetchRequest():
                return self.fetch(request, version)
            case ListOffsetsRequest():
                return self.list_offsets(request, version)
            case OffsetForLeaderEpochRequest():
                return self.epochs(request)
        raise AssertionError(request)

    def produce(self, request: ProduceRequest) -> ProduceResponse:
        return ProduceResponse(
            responses=tuple(
                TopicProduceResponse(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partition_responses=tuple(self.append(topic.name, part) for part in topic.partition_data),
                )
                for topic in request.topic_data
            )
        )

    def append(self, topic: str, part: PartitionProduceData) -> PartitionProduceResponse:
        log = self.logs.get(TopicPartition(topic or "t", part.index))
        if log is None:
            return PartitionProduceResponse(
                index=part.index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, base_offset=-1
            )
        assert part.records is not None
        return PartitionProduceResponse(index=part.index, base_offset=log.append(bytes(part.records)))

    def fetch(self, request: FetchRequest, version: int) -> FetchResponse:
        return FetchResponse(
            session_id=9 if request.session_epoch >= 0 else 0,
            responses=tuple(
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=tuple(self.read(topic.topic, part, version) for part in topic.partitions),
                )
                for topic in request.topics
            ),
        )

    def read(self, topic: str, part: FetchPartition, version: int) -> FetchPartitionData:
        log = self.logs.get(TopicPartition(topic or "t", part.partition))
        if log is None:
            return FetchPartitionData(partition_index=part.partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not 0 <= part.fetch_offset <= log.end:
            return FetchPartitionData(
                partition_index=part.partition, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1
            )
        data = log.read(part.fetch_offset, part.partition_max_bytes, version >= 3)
        return FetchPartitionData(
            partition_index=part.partition, high_watermark=log.end, last_stable_offset=log.end, records=data
        )

    def list_offsets(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        (topic,) = request.topics
        answers = [
            self.position(TopicPartition(topic.name, part.partition_index), part, version) for part in topic.partitions
        ]
        return ListOffsetsResponse(topics=(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(answers)),))

    def position(self, where: TopicPartition, part: ListOffsetsPartition, version: int) -> ListOffsetsPartitionResponse:
        if where not in self.logs:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return ListOffsetsPartitionResponse(partition_index=part.partition_index, error_code=code)
        end = self.logs[where].end
        offset = {-1: end, -2: 0}.get(part.timestamp, -1)
        if version:
            return ListOffsetsPartitionResponse(
                partition_index=part.partition_index, offset=offset, leader_epoch=self.named_epoch
            )
        offsets = (offset,) if offset >= 0 else ()
        return ListOffsetsPartitionResponse(partition_index=part.partition_index, old_style_offsets=offsets)

    def epochs(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        (topic,) = request.topics
        ends = tuple(
            EpochEndOffset(partition=p.partition, leader_epoch=p.leader_epoch, end_offset=self.epoch_end)
            for p in topic.partitions
        )
        return OffsetForLeaderEpochResponse(topics=(OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends),))


class ScriptedHandshake:
    """A handshake that knows what the broker can do, and sends nothing."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self.clock: Callable[[], float] = anyio.current_time

    def begin(self) -> Generator[Any, Any, Session]:
        return Session(self._broker.can)
        yield

    def forget_release(self) -> None:
        """Do nothing: nothing is remembered."""


def routing(topic_id: bytes, epoch: int) -> KafkaRoutingTable:
    """The routing table of two brokers, of which the first one leads everything."""
    partitions = {where.partition: Partition(1, epoch) for where in (T0, T1)}
    topics = {"t": Topic("t", topic_id, False, partitions)}
    return KafkaRoutingTable({1: BrokerEndpoint(1, "b", 9092), 2: BrokerEndpoint(2, "c", 9092)}, topics)


class SteadyMetadata:
    """Metadata that does not change.

    Args:
        table: What it says.
    """

    read_at = math.inf

    def __init__(self, table: RoutingSnapshot) -> None:
        self.table = table

    async def refresh(self) -> None:
        raise AssertionError("it was read just now")


@asynccontextmanager
async def running(
    broker: ScriptedBroker,
    *,
    topic_id: bytes = ZERO_UUID,
    epoch: int = -1,
    settings: BrokerClientSettings | None = None,
    on_leader: OnLeader = lambda *_: None,
    epochs: LeaderEpochs | None = None,
) -> AsyncIterator[KafkaBrokerClient]:
    """A client of the broker, over a connection in memory."""
    handshake: Any = ScriptedHandshake(broker)
    settings = settings or BrokerClientSettings(request_timeout_s=10.0)
    async with anyio.create_task_group() as broker.group:
        connection = KafkaConnection(
            "b",
            9092,
            connect=broker.dial,
            handshake=handshake,
            client_id="test",
            request_timeout_s=settings.request_timeout_s,
            options=ConnectionOptions(backoff=Backoff(0, 1, 5)),
        )
        async with connection.connection:
            table = routing(topic_id, epoch)
            yield KafkaBrokerClient(
                Broker(1, "b", 9092),
                connection,
                versions=lambda: broker.can,
                routing=lambda: table,
                on_leader=on_leader,
                epochs=epochs or LeaderEpochs(),
                topics=TopicCheck(SteadyMetadata(RoutingSnapshot(1, table))),
                failed_replicas=FailedReplicas(),
                settings=settings,
                clock=lambda: 1_700_000_000.0,
            )
        broker.group.cancel_scope.cancel()


def names(values: Sequence[bytes | None]) -> list[str | None]:
    return [None if value is None else value.decode() for value in values]
