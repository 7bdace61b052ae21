"""A cluster in memory behind the interfaces of the drivers, with faults on command."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

import anyio
import pytest

from odradek.client.producer.dispatcher import Dispatcher
from odradek.core.admin import ClusterAdmin
from odradek.core.interfaces import (
    DecoderOptions,
    LogDecoder,
    Membership,
    OffsetStore,
    PartitionBatch,
    PartitionFetch,
    PartitionResult,
    ProducerRecord,
    RefusalPolicy,
    Subscription,
)
from odradek.core.kafka07.refusal import ClosingBrokerPolicy
from odradek.core.kafka07.routing import BrokersChanged, Kafka07RoutingTable, TopicChanged
from odradek.core.produce.batch import as_record
from odradek.core.produce.partitioners import KeyHash
from odradek.errors import (
    Closed,
    ConnectionLost,
    MessageTooLarge,
    OdradekError,
    Rejected,
    Unsupported,
)
from odradek.types import EARLIEST, AtTime, Broker, Position, PositionSpec, TopicPartition

Log = dict[TopicPartition, list[bytes]]


class FakeMetadata:
    """A routing table the test edits."""

    def __init__(self) -> None:
        self.table = Kafka07RoutingTable()
        self.unpublished: dict[str, Mapping[int, int]] = {}
        """What `table_for_topic` finds, before anything is known about it."""
        self.topic_errors: list[OdradekError] = []
        self.failure: Exception | None = None
        self.asked: list[str] = []
        self.refreshed = 0
        self._changed = anyio.Event()

    def brokers(self, *ids: int) -> None:
        """These are live now, and no others."""
        self._apply(BrokersChanged({n: Broker(n, f"b{n}", 9092) for n in ids}))

    def publish(self, topic: str, **counts: int) -> None:
        """`publish("t", b1=3)`: broker 1 has three partitions. Known topics change, others will be found so."""
        read = {int(name[1:]): count for name, count in counts.items()}
        self.unpublished[topic] = read
        if self.table.has_looked_up(topic):
            self._apply(TopicChanged(topic, read))

    def fail(self, error: Exception) -> None:
        """The background of the coordination died."""
        self.failure = error
        self._wake()

    async def table_for_topic(self, name: str, *, create: bool = False) -> Kafka07RoutingTable:
        self.asked.append(name)
        await anyio.lowlevel.checkpoint()
        if self.topic_errors:
            raise self.topic_errors.pop(0)
        if not self.table.has_looked_up(name):
            self._apply(TopicChanged(name, self.unpublished.get(name, {})))
        return self.table

    async def all_topics(self) -> frozenset[str]:
        for name in self.unpublished:
            await self.table_for_topic(name)
        return self.table.topics

    async def wait_for_newer(self, version: int) -> Kafka07RoutingTable:
        while self.table.version <= version:
            if self.failure is not None:
                raise self.failure
            await self._changed.wait()
        return self.table

    async def refresh(self) -> Kafka07RoutingTable:
        self.refreshed += 1
        return self.table

    def _apply(self, event: Any) -> None:
        self.table = self.table.apply(event)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


@dataclass(eq=False)
class FakeRequest:
    """A produce request on its way. `applied` says whether it is in the log."""

    parts: Sequence[PartitionBatch]
    acks: int
    broker: FakeBroker
    applied: bool = False
    error: OdradekError | None = None
    results: Sequence[PartitionResult] = ()
    done: bool = False
    callback: Callable[[], None] | None = None

    @property
    def values(self) -> list[list[bytes]]:
        return [values(part) for part in self.parts]

    def end(self) -> None:
        self.done = True
        if self.callback is not None:
            self.callback()

    def result(self) -> Sequence[PartitionResult]:
        if self.error is not None:
            raise self.error
        return self.results or [PartitionResult(part.partition) for part in self.parts]

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        if self.done:
            callback()

    def withdraw(self) -> bool:
        if self.done or self not in self.broker.unsent:
            return False
        self.broker.unsent.remove(self)
        if self.parts:
            self.broker.requests.remove(self)
        return True

    def __await__(self) -> Generator[Any, Any, Sequence[PartitionResult]]:
        raise NotImplementedError


def values(part: PartitionBatch) -> list[bytes]:
    """What the records of a part are, as far as 0.7 can store it."""
    return [record.value or b"" for record in map(as_record, part.records)]


BACKOFF_S = 0.002
"""Of every broker after every loss, unless the test says otherwise."""


class FakeBroker:
    """One broker: appends at once and answers at once, unless told otherwise."""

    def __init__(self, broker: Broker, log: Log, driver: FakeDriver) -> None:
        self.broker, self.log, self.driver = broker, log, driver
        self.requests: list[FakeRequest] = []
        """Everything it was ever sent, but for probes, which have no parts."""
        self.pending: list[FakeRequest] = []
        self.unsent: list[FakeRequest] = []
        """While `connecting`: requests of which no byte has left."""
        self._arrived = anyio.Event()
        self.incarnation = 0
        self.available_at = -math.inf
        """Like a connection, it has a back-off after a loss."""
        self.holding = self.connecting = False
        self.down: OdradekError | None = None
        """Every request fails with this at once."""
        self.refuses: Callable[[PartitionBatch], bool] = lambda part: False
        """The broker closes the connection on such a part."""
        self.answers: Callable[[PartitionBatch], OdradekError | None] = lambda part: None
        """The broker answers this error for such a part, and does not append it."""
        self.listed_positions: dict[tuple[TopicPartition, PositionSpec | AtTime], list[Position]] = {}

    def encode(self, batch: PartitionBatch, max_message_bytes: int) -> None:
        if batch.encoded is None:
            batch.encoded = self.driver.encode(batch, max_message_bytes)

    def produce(self, parts: Sequence[PartitionBatch], *, acks: int) -> FakeRequest:
        assert all(part.partition.broker == self.broker.id and part.encoded is not None for part in parts)
        request = FakeRequest(tuple(parts), acks, self)
        if parts:
            self.requests.append(request)
            self._arrived.set()
        (self.unsent if self.connecting else self.pending).append(request)
        if self.down is not None:
            self.lose(self.down)
        elif not self.holding and not self.connecting:
            self.answer()
        return request

    def connect(self) -> None:
        """The connection is there: what waited for it is sent and, unless held, answered."""
        self.connecting = False
        self.pending += self.unsent
        self.unsent = []
        if not self.holding:
            self.answer()

    async def sent(self, count: int) -> None:
        """Wait until it was sent this many requests in all."""
        while len(self.requests) < count:
            self._arrived = anyio.Event()
            await self._arrived.wait()

    def answer(self, count: int | None = None) -> None:
        """Serve what is pending, in order; a refused part ends the connection and everything on it."""
        left = len(self.pending) if count is None else count
        while left and self.pending:  # a callback may send something at once, which is answered here
            request = self.pending[0]
            errors = list(map(self.answers, request.parts))
            for part, error in zip(request.parts, errors, strict=True):
                if self.refuses(part):
                    self.cut()
                    return
                if error is None:
                    self.log[part.partition] += values(part)
            request.applied = True
            request.results = [PartitionResult(p.partition, e) for p, e in zip(request.parts, errors, strict=True)]
            left -= 1
            self.pending.pop(0).end()

    def release(self) -> None:
        """Serve what is held, and from now on everything at once."""
        self.holding = False
        self.answer()

    def cut(self, applied: int = 0, sent: bool = True) -> None:
        """The connection dies. This many of the pending requests had been appended already."""
        for request in self.pending[:applied]:
            request.applied = True
            for part in request.parts:
                self.log[part.partition] += values(part)
        self.lose(ConnectionLost(self.broker.address, "reset", sent))

    def lose(self, error: OdradekError) -> None:
        pending, self.pending = self.pending, []
        self.incarnation += 1
        self.available_at = self.driver.clock() + self.driver.backoff_s
        for request in pending:
            request.error = error
            request.end()

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        raise NotImplementedError

    async def resolve_position(
        self, partition: TopicPartition, at: PositionSpec | AtTime, *, read_committed: bool = False
    ) -> Position:
        return (await self.positions(partition, at) or await self.positions(partition, EARLIEST))[0]

    async def positions(
        self, partition: TopicPartition, at: PositionSpec | AtTime, count: int = 1
    ) -> Sequence[Position]:
        await anyio.lowlevel.checkpoint()
        if self.down is not None:
            raise self.down
        return self.listed_positions.get((partition, at), [])[:count]

    def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> LogDecoder:
        raise NotImplementedError


class FakeDriver:
    """Two brokers, 1 and 2, and topic `t` with two partitions on each."""

    name = "fake"
    long_poll = False
    compressions = frozenset({"none", "gzip"})
    numbers_by_broker = True
    refuses_batches = False

    def __init__(self) -> None:
        self.metadata = FakeMetadata()
        self.metadata.brokers(1, 2)
        self.metadata.publish("t", b1=2, b2=2)
        self.log: Log = defaultdict(list)
        self._brokers: dict[int, FakeBroker] = {}
        self.opened = self.closed = 0
        self.clock: Callable[[], float] = anyio.current_time
        self.backoff_s = BACKOFF_S

    async def __aenter__(self) -> Self:
        self.opened += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed += 1
        self.metadata.fail(Closed("the driver was closed"))

    def broker(self, broker: Broker, *, purpose: str) -> FakeBroker:
        return self[broker.id]

    def __getitem__(self, number: int) -> FakeBroker:
        broker = Broker(number, f"b{number}", 9092)
        return self._brokers.setdefault(number, FakeBroker(broker, self.log, self))

    def hold(self) -> None:
        for number in (1, 2):
            self[number].holding = True

    def values(self, topic: str = "t") -> list[bytes]:
        """Everything written to a topic, sorted: partition after partition would be chance."""
        return sorted(value for partition, values in self.log.items() if partition.topic == topic for value in values)

    def refusal_policy(self) -> RefusalPolicy:
        return ClosingBrokerPolicy()

    def producer_sequences(self) -> None:
        return None

    def producer_transactions(self, transactional_id: str, timeout_s: float) -> NoReturn:
        raise Unsupported("a transaction (transactional_id)", "Kafka 0.11")

    def default_partitioner(self) -> KeyHash:
        return KeyHash()

    def validate_record(self, topic: str, record: ProducerRecord, max_message_bytes: int) -> None:
        if not topic or "/" in topic:
            raise Rejected([record], f"{topic!r} is no topic name")
        if len(record.value or b"") > max_message_bytes:
            too_large = MessageTooLarge(topic, -1, len(record.value or b""), max_message_bytes, "max_message_bytes")
            raise Rejected([record], str(too_large)) from too_large
        if record.headers or record.timestamp is not None or record.value is None:
            raise Unsupported("a header, a timestamp or a null value", "Kafka 0.11")

    def record_size(self, record: ProducerRecord) -> int:
        return 10 + len(record.value or b"")

    def encode(self, part: PartitionBatch, max_message_bytes: int) -> bytes:
        payloads = values(part)
        data = b"".join(bytes(10) + value for value in payloads)
        if part.compression == "gzip":
            payloads = [data := zlib.compress(data)]
        for payload in payloads:
            if len(payload) > max_message_bytes:
                raise MessageTooLarge(str(part.partition), -1, len(payload), max_message_bytes, "max_message_bytes")
        return data

    def membership(self, subscription: Subscription) -> Membership:
        raise NotImplementedError

    def offsets(self, group: str) -> OffsetStore:
        raise NotImplementedError

    def admin(self) -> ClusterAdmin:
        return ClusterAdmin("a real cluster")

    async def groups(self) -> list[str]:
        raise NotImplementedError


@pytest.fixture
def driver() -> FakeDriver:
    """A cluster in memory."""
    return FakeDriver()


@pytest.fixture(scope="session")
def make_driver() -> type[FakeDriver]:
    """For who needs many."""
    return FakeDriver


class Clock:
    """A producer's. It stands still unless the test moves it, so that nothing is late on a slow machine."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = driver.clock = Clock()
    started = Dispatcher.start

    async def start(dispatcher: Dispatcher) -> None:
        await started(dispatcher)
        dispatcher.clock = clock

    monkeypatch.setattr(Dispatcher, "start", start)
    return clock
