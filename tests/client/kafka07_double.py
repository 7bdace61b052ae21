"""A double of a Kafka 0.7 cluster, for the few tests of producers that are about what only such a cluster does:

- Partitions are numbered on each broker, and a partition is gone while its broker is: see `Kafka07DoubleMetadata`.
- A broker refuses a batch by closing the connection. Since it never refuses one and accepts the next, several batches
  of one partition are in flight.
- Records have values only.

All the rest, such as holding requests and cutting connections, is what `MemoryCluster` does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio.lowlevel

from odradek.client.cluster import Cluster
from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.core.backoff import Backoff
from odradek.core.interfaces import PartitionBatch, PartitionResult, ProducerRecord
from odradek.core.kafka07.refusal import ClosingBrokerPolicy
from odradek.core.kafka07.routing import BrokersChanged, Kafka07RoutingTable, TopicChanged
from odradek.core.produce.batch import as_record
from odradek.core.produce.partitioners import KeyHash
from odradek.errors import Closed, ConnectionLost, Unsupported
from odradek.io.kafka07.log_access import Kafka07LogAccess
from odradek.testing import MemoryCluster
from odradek.testing.memory.broker import MemoryBrokerClient
from odradek.testing.memory.driver import MemoryDriver
from odradek.testing.memory.metadata import MemoryMetadata
from odradek.testing.memory.state import ClusterState
from odradek.types import Broker, TopicPartition

__all__ = ["Kafka07Double"]

QUICK = Tuning(backoff=Backoff(0.001, 2, 0.005))


class Kafka07Double:
    """Two live brokers, 1 and 2, of ten, and a topic `t` with two partitions on each."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster(brokers=10)
        """Holds, cuts and shows requests."""
        self.state: ClusterState = self.cluster._state
        self.metadata = Kafka07DoubleMetadata(self.state)
        self.metadata.brokers(1, 2)
        self.metadata.publish("t", b1=2, b2=2)
        self.log: dict[TopicPartition, list[bytes]] = defaultdict(list)
        self.refuses: Callable[[PartitionBatch], bool] = lambda batch: False
        """A broker closes the connection on such a batch, after it has stored those before it in the request."""

    def driver(self, tuning: Tuning = QUICK) -> Kafka07DoubleDriver:
        return Kafka07DoubleDriver(self, tuning)

    @asynccontextmanager
    async def producing(self, *, tuning: Tuning = QUICK, **options: Any) -> AsyncIterator[Producer]:
        """An open producer; `tuning` is also that of its connections."""
        async with Cluster(self.driver(tuning), tuning) as k, k.producer(**options) as out:
            yield out

    def values(self, topic: str = "t") -> list[bytes]:
        """Return everything written to a topic, sorted: partition after partition would be chance."""
        return sorted(value for partition, values in self.log.items() if partition.topic == topic for value in values)


class Kafka07DoubleMetadata:
    """Brokers and topics as a test has registered them."""

    reports_changes, read_at = True, math.inf

    def __init__(self, state: ClusterState) -> None:
        self.table = Kafka07RoutingTable()
        self.is_open = True
        self.refreshed = 0
        self._state = state
        self._unpublished: dict[str, dict[int, int]] = {}  # what `table_for_topic` finds

    def brokers(self, *ids: int) -> None:
        """These are live now, and no others."""
        live = {number: broker for number, broker in self._state.brokers.items() if number in ids}
        self._apply(BrokersChanged(live))

    def publish(self, topic: str, **counts: int) -> None:
        """`publish("t", b1=3)`: broker 1 has three partitions. Known topics change, others will be found so."""
        read = {int(name[1:]): count for name, count in counts.items()}
        self._unpublished[topic] = read
        if self.table.has_looked_up(topic):
            self._apply(TopicChanged(topic, read))

    async def table_for_topic(self, name: str, *, create: bool = False, named: bool = False) -> Kafka07RoutingTable:
        await anyio.lowlevel.checkpoint()
        if not self.table.has_looked_up(name):
            self._apply(TopicChanged(name, self._unpublished.get(name, {})))
        return self.table

    async def all_topics(self) -> frozenset[str]:
        raise NotImplementedError

    async def wait_for_newer(
        self, version: int, needed: Callable[[], Collection[str]] = frozenset
    ) -> Kafka07RoutingTable:
        changed = self._state.changed
        while self.table.version <= version:
            if not self.is_open:
                raise Closed("the block of the cluster has ended")
            await changed.wait(changed.version)
        return self.table

    async def refresh(self) -> Kafka07RoutingTable:
        self.refreshed += 1
        return self.table

    def _apply(self, event: BrokersChanged | TopicChanged) -> None:
        self.table = self.table.apply(event)
        self._state.changed.notify()


class Kafka07DoubleDriver(MemoryDriver):
    """One client of it."""

    compressions = frozenset({"none", "gzip"})
    batch_bytes = compressed_batch_bytes = 256 << 10
    refuses_batches = has_headers = False

    def __init__(self, double: Kafka07Double, tuning: Tuning) -> None:
        super().__init__(double.state, tuning)
        self._metadata = cast("MemoryMetadata", double.metadata)
        self._double = double
        self.logs = Kafka07LogAccess(self)  # type: ignore[assignment]

    def client_of(self, broker: Broker) -> MemoryBrokerClient:
        return Kafka07DoubleClient(broker, self._double, self._tuning)

    def default_partitioner(self) -> KeyHash:  # type: ignore[override]
        return KeyHash()

    def refusal_policy(self) -> ClosingBrokerPolicy:  # type: ignore[override]
        return ClosingBrokerPolicy()

    def producer_sequences(self) -> None:  # type: ignore[override]
        return None

    def validate_record(self, topic: str, record: ProducerRecord, max_message_bytes: int) -> None:
        if record.headers or record.timestamp is not None or record.value is None:
            raise Unsupported("a header, a timestamp or a null value", "Kafka 0.11")
        super().validate_record(topic, record, max_message_bytes)

    def record_size(self, record: ProducerRecord) -> int:
        return super().record_size(ProducerRecord(record.value))


class Kafka07DoubleClient(MemoryBrokerClient):
    """A connection to one of its brokers."""

    def __init__(self, broker: Broker, double: Kafka07Double, tuning: Tuning) -> None:
        super().__init__(broker, double.state, tuning)
        self._double = double

    def _append(self, batch: PartitionBatch) -> PartitionResult:
        assert batch.partition.broker == self.broker.id
        if self._double.refuses(batch):
            raise ConnectionLost(self.broker.address, "closed", True)
        self._double.log[batch.partition] += [record.value or b"" for record in map(as_record, batch.records)]
        return PartitionResult(batch.partition)
