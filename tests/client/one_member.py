"""A group with one member on an in-memory topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from odradek.client.consumer.consumer import Consumer
from odradek.core.states import OwnershipState
from odradek.testing import MemoryCluster
from odradek.types import TopicPartition

__all__ = ["consuming", "make_cluster", "numbered", "revoking", "tp", "until"]


def tp(number: int = 0) -> TopicPartition:
    return TopicPartition("t", number)


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Return so many different values of the same length, in order."""
    return [b"%06d" % n for n in range(first, first + count)]


def make_cluster(*counts: int) -> MemoryCluster:
    """Return a cluster with a topic `t`: so many records in each partition, numbered through; by default one of 10."""
    counts = counts or (10,)
    cluster = MemoryCluster(topics={"t": len(counts)})
    first = 0
    for number, count in enumerate(counts):
        cluster.append("t", numbered(count, first), partition=number)
        first += count
    return cluster


@asynccontextmanager
async def consuming(cluster: MemoryCluster, **options: Any) -> AsyncIterator[Consumer]:
    """The only member of the group, without commits in the background unless asked for."""
    settings: dict[str, Any] = {"group": "g", "commit_every": None, **options}
    async with cluster.connect() as k, k.consumer("t", **settings) as consumer:
        yield consumer


def revoking(consumer: Consumer) -> bool:
    return any(progress.state is OwnershipState.REVOKING for progress in consumer._progress.values())


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until it is true."""
    with anyio.fail_after(60):
        while not condition():
            await anyio.lowlevel.checkpoint()
