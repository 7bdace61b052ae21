"""A producer on an in-memory cluster whose topic `t` has two partitions on each of two brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from odradek.client.options import Tuning
from odradek.client.producer.producer import Producer
from odradek.testing import MemoryCluster
from odradek.types import TopicPartition

__all__ = ["P0", "P1", "P2", "P3", "ProducerClock", "add_partitions", "make_cluster", "producing", "stored", "values"]

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))
"""The first and third are led by broker 1, the others by broker 2."""


def make_cluster() -> MemoryCluster:
    return MemoryCluster(topics={"t": 4}, brokers=2)


@asynccontextmanager
async def producing(cluster: MemoryCluster, *, tuning: Tuning | None = None, **options: Any) -> AsyncIterator[Producer]:
    """An open producer of a client of its own; `tuning` is that of both."""
    async with cluster.connect(tuning=tuning) as k, k.producer(**options) as out:
        yield out


def stored(cluster: MemoryCluster, partition: TopicPartition) -> list[bytes | None]:
    """Return what is in a partition, in its order."""
    return [record.value for record in cluster.log(partition)]


def values(cluster: MemoryCluster, topic: str = "t") -> list[bytes]:
    """Return everything written to a topic, sorted: partition after partition would be chance."""
    return sorted(record.value or b"" for record in cluster.records(topic))


class ProducerClock:
    """The clock by which the records of a producer grow old. It stands still unless a test moves it, so that nothing is
    late on a slow machine."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def add_partitions(cluster: MemoryCluster, topic: str, partitions: int) -> None:
    """Add partitions of which clients hear only when they read the metadata."""
    state = cluster._state
    announced = state.announced
    cluster.add_partitions(topic, partitions)
    state.announced = announced
