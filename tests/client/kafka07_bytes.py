"""A test double that serves real bytes: logs of Kafka 0.7 behind the interfaces of a driver, and a group.

For tests about bytes alone, which the in-memory cluster of `odradek.testing` does not have: messages that end within a
fetch or are damaged, byte positions, compressed messages and the threads that decompress them. The message sets are
those of 0.7, decoded by its decoder; positions count bytes; a broker answers at once also when it has nothing; the
rebalances of the group are commands of the test. Everything else is tested with `MemoryCluster`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

import anyio
import anyio.lowlevel

from odradek.core.admin import ClusterAdmin
from odradek.core.interfaces import (
    NO_METADATA,
    Assignment,
    ClusterStatistics,
    DecoderOptions,
    LogDecoder,
    PartitionBatch,
    PartitionFetch,
    PartitionResult,
    PendingResult,
    ProducerRecord,
    RawRequest,
    RebalanceListener,
    RefusalPolicy,
    ShareSubscription,
    Subscription,
)
from odradek.core.kafka07.routing import BrokersChanged, Kafka07RoutingTable, TopicChanged
from odradek.core.produce.partitioners import Partitioner
from odradek.errors import ConnectionLost, OdradekError, SessionExpired, Unreachable
from odradek.io.gather import gather_outcomes
from odradek.io.kafka07.log_access import Kafka07LogAccess
from odradek.io.notifier import Notifier
from odradek.types import EARLIEST, AtTime, Broker, CommittedPosition, Position, PositionSpec, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set
from odradek.wire.kafka07.responses import broker_error

CHUNK_BYTES = 4096

BACKOFF_S = 0.001
"""What a connection waits before it tries again."""


BROKER = Broker(1, "b1", 9092)


def tp(number: int = 0, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number, BROKER.id)


class Kafka07LogMetadata:
    """A routing table the test edits."""

    reports_changes, read_at = True, math.inf

    def __init__(self) -> None:
        self.table = Kafka07RoutingTable()
        self._changed = anyio.Event()

    def apply(self, event: BrokersChanged | TopicChanged) -> None:
        self.table = self.table.apply(event)

        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def table_for_topic(self, name: str, *, create: bool = False, named: bool = False) -> Kafka07RoutingTable:
        await anyio.lowlevel.checkpoint()
        return self.table

    async def all_topics(self) -> frozenset[str]:
        return self.table.topics

    async def wait_for_newer(
        self, version: int, needed: Callable[[], Collection[str]] = frozenset
    ) -> Kafka07RoutingTable:
        while self.table.version <= version:
            await self._changed.wait()
        return self.table

    async def refresh(self) -> Kafka07RoutingTable:
        return self.table


class Kafka07LogBroker:
    """Serves the logs. Faults: `down`; `cut_after` some bytes of the next answer; `gate` holds answers back."""

    polls = None

    def __init__(self, broker: Broker, driver: Kafka07LogDriver) -> None:
        self.broker, self._driver = broker, driver
        self.down = False
        self.cut_after: int | None = None
        self.gate = anyio.Event()
        self.gate.set()
        self.fetches: list[dict[TopicPartition, int]] = []
        """Bytes asked for, by fetch and partition."""
        self.incarnation = 0
        self.available_at = -math.inf

    def encode(self, batch: PartitionBatch, max_message_bytes: int) -> None:
        raise NotImplementedError

    def produce(self, batches: Sequence[PartitionBatch], *, acks: int) -> PendingResult[Sequence[PartitionResult]]:
        raise NotImplementedError

    def produce_plain(self, batches: Sequence[PartitionBatch], *, acks: int, max_message_bytes: int) -> None:
        raise NotImplementedError

    async def respond(self) -> None:
        """Fail if the test says so; like a connection, not before a back-off."""
        if self.down:
            await anyio.sleep(BACKOFF_S)
            raise Unreachable("tcp", self.broker.address, "Connection refused")

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        self.fetches.append({fetch.decoder.partition: fetch.max_bytes for fetch in fetches})
        await anyio.lowlevel.checkpoint()
        await self.gate.wait()
        await self.respond()
        for fetch in fetches:
            await self._fill(fetch)

    async def _fill(self, fetch: PartitionFetch) -> None:
        partition = fetch.decoder.partition
        at, log = fetch.start(), self._driver.stored[partition]
        if not 0 <= at <= len(log):
            fetch.error = broker_error(1)
            return
        data = bytes(log[at : at + fetch.max_bytes])
        for n in range(0, len(data), CHUNK_BYTES):
            chunk = data[n : n + CHUNK_BYTES]
            if self.cut_after is not None:
                chunk, self.cut_after = chunk[: self.cut_after], self.cut_after - len(chunk)
            fetch.feed(memoryview(chunk))
            await anyio.lowlevel.checkpoint()
            if self.cut_after is not None and self.cut_after <= 0:
                self.cut_after = None
                raise ConnectionLost(self.broker.address, "reset", True)
        fetch.received = len(data)

    async def positions(
        self, partition: TopicPartition, at: PositionSpec | AtTime, count: int = 1
    ) -> Sequence[Position]:
        await anyio.lowlevel.checkpoint()
        await self.respond()
        if isinstance(at, PositionSpec):
            return [Position(0 if at is PositionSpec.EARLIEST else len(self._driver.stored[partition]))]
        segments = [Position(p) for time, p in self._driver.segments.get(partition, []) if time <= at.seconds]
        return segments[-1:]

    async def resolve_position(
        self, partition: TopicPartition, at: PositionSpec | AtTime, *, read_committed: bool = False
    ) -> Position:
        return (await self.positions(partition, at) or await self.positions(partition, EARLIEST))[0]

    async def resolve_positions(
        self, wanted: Mapping[TopicPartition, PositionSpec | AtTime], *, read_committed: bool = False
    ) -> Mapping[TopicPartition, Position | OdradekError]:
        async def resolve(asked: tuple[TopicPartition, PositionSpec | AtTime]) -> Position:
            return await self.resolve_position(*asked, read_committed=read_committed)

        return dict(zip(wanted, await gather_outcomes(resolve, wanted.items()), strict=True))

    def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> LogDecoder:
        return MessageSetDecoder(partition, position, options)


class Offsets:
    """Positions of a group."""

    def __init__(self) -> None:
        self.stored: dict[TopicPartition, Position] = {}

    async def fetch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        return {p: self.stored.get(p) for p in partitions}

    async def fetch_with_metadata(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedPosition | None]:
        return {p: None if (at := self.stored.get(p)) is None else CommittedPosition(at) for p in partitions}

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> None:
        await anyio.lowlevel.checkpoint()
        self.stored.update(positions)


class Member:
    """A membership that does what the test says. It refuses to commit what it does not own."""

    consumer_id = "g_me"

    def __init__(self, offsets: Offsets, initial: Mapping[TopicPartition, int]) -> None:
        self._offsets, self._initial = offsets, initial
        self._commands: deque[Callable[[RebalanceListener], Awaitable[None]]] = deque()
        self._changed = Notifier()
        self._listener: RebalanceListener
        self.owned: set[TopicPartition] = set()
        self.generation = 0
        self.problem = ""

    async def run(self, listener: RebalanceListener) -> None:
        self._listener = listener
        await self._assign(listener, self._initial)
        while True:
            version = self._changed.version
            while self._commands:
                await self._commands.popleft()(listener)
            await self._changed.wait(version)

    async def _assign(self, listener: RebalanceListener, partitions: Mapping[TopicPartition, int]) -> None:
        self.generation += 1
        committed = await self.committed(list(partitions))
        self.owned |= partitions.keys()
        await listener.assign(Assignment(self.generation, partitions, committed))

    async def do(self, command: Callable[[RebalanceListener], Awaitable[None]]) -> None:
        """Run `command` in the member's task, and wait for it."""
        done = anyio.Event()

        async def step(listener: RebalanceListener) -> None:
            await command(listener)
            done.set()

        self._commands.append(step)
        self._changed.notify()
        await done.wait()

    async def revoke(self, *partitions: TopicPartition) -> None:
        """Take these partitions away, or all."""

        async def command(listener: RebalanceListener) -> None:
            chosen = partitions or tuple(self.owned)
            await listener.revoke(chosen)
            self.owned -= set(chosen)

        await self.do(command)

    async def assign(self, *partitions: TopicPartition) -> None:
        await self.do(lambda listener: self._assign(listener, dict.fromkeys(partitions, 0)))

    async def expire(self) -> None:
        """End the session: at once, as the membership's second task does, also while its first one revokes."""
        lost, self.owned = frozenset(self.owned), set()
        self._listener.lost(lost)

    async def commit(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> None:
        if not positions.keys() <= self.owned:
            raise SessionExpired("not owned any more")
        await self._offsets.commit(positions)

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position | None]:
        return await self._offsets.fetch(partitions)

    async def leave(self) -> None:
        self.owned = set()


class Kafka07LogDriver:
    """One broker with topic `t`, two partitions, unless the test says otherwise."""

    name = "logs"
    long_poll = False

    def __init__(self, **counts: int) -> None:
        self.metadata = Kafka07LogMetadata()
        self.logs = Kafka07LogAccess(self)
        self.stored: dict[TopicPartition, bytearray] = {}
        self.segments: dict[TopicPartition, list[tuple[float, int]]] = {}
        self.brokers: dict[Broker, Kafka07LogBroker] = {}
        self.store = Offsets()
        self.initial: Mapping[TopicPartition, int] = {}
        self.members: list[Member] = []
        self.metadata.apply(BrokersChanged({BROKER.id: BROKER}))
        for topic, count in (counts or {"t": 2}).items():
            self.publish(topic, count)

    def publish(self, topic: str, count: int) -> None:
        for n in range(count):
            self.stored.setdefault(tp(n, topic), bytearray())
        self.metadata.apply(TopicChanged(topic, {BROKER.id: count}))

    def write(
        self, partition: TopicPartition, values: Iterable[bytes], compression: CompressionType = CompressionType.NONE
    ) -> int:
        """Append; returns the end of the log."""
        log = self.stored[partition]
        log += encode_set(list(values), compression)
        return len(log)

    @property
    def b1(self) -> Kafka07LogBroker:
        return self.broker(BROKER, purpose="fetch")

    @property
    def member(self) -> Member:
        return self.members[-1]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def broker(self, broker: Broker, *, purpose: str) -> Kafka07LogBroker:
        return self.brokers.setdefault(broker, Kafka07LogBroker(broker, self))

    compressions = frozenset({"none"})
    batch_bytes = compressed_batch_bytes = 1000
    refuses_batches = has_headers = False
    observer = None

    def statistics(self) -> ClusterStatistics:
        raise NotImplementedError

    def refusal_policy(self) -> RefusalPolicy:
        raise NotImplementedError

    def producer_sequences(self) -> None:
        raise NotImplementedError

    async def request(self, request: RawRequest) -> NoReturn:
        raise NotImplementedError

    def share_group(self, subscription: ShareSubscription) -> NoReturn:
        raise NotImplementedError

    def producer_transactions(self, transactional_id: str, timeout_s: float) -> NoReturn:
        raise NotImplementedError

    def default_partitioner(self) -> Partitioner:
        raise NotImplementedError

    def validate_record(self, topic: str, record: ProducerRecord, max_message_bytes: int) -> None:
        raise NotImplementedError

    def record_size(self, record: ProducerRecord) -> int:
        raise NotImplementedError

    def membership(self, subscription: Subscription) -> Any:
        self.members.append(Member(self.store, self.initial))
        return self.member

    def offsets(self, group: str) -> Offsets:
        return self.store

    def admin(self) -> ClusterAdmin:
        return ClusterAdmin("a real cluster")

    async def groups(self) -> list[str]:
        raise NotImplementedError
