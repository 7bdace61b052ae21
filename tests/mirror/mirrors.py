"""Mirrors between clusters in memory, and what tests ask of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from odradek.core.interfaces import ProducerRecord
from odradek.mirror.clusters import Clusters
from odradek.mirror.config import MirrorConfig
from odradek.mirror.sources import ClusterSource
from odradek.testing import MemoryCluster
from odradek.types import TopicPartition

__all__ = ["config_of", "copied", "opened", "partition", "records", "same", "topic_id_of", "url_of"]


def config_of(
    *include: str, topics: dict[str, Any] | None = None, run: dict[str, Any] | None = None, **keys: Any
) -> MirrorConfig:
    """Return a configuration; what it says about clusters counts only where tests do not open them."""
    body = {
        "name": "m",
        "source": {"url": "kafka://source:1"},
        "target": {"url": "kafka://target:1"},
        "topics": {**({"include": list(include)} if include else {}), **(topics or {})},
        "run": {"transaction_seconds": 0.02, "refresh_seconds": 0.02, **(run or {})},
        **keys,
    }
    return MirrorConfig.model_validate(body)


@asynccontextmanager
async def opened(source: MemoryCluster, target: MemoryCluster) -> AsyncIterator[Clusters]:
    """Connect to both."""
    async with source.connect() as old, target.connect() as new:
        yield Clusters(ClusterSource(old, "kafka://source"), new)


async def url_of(source: ClusterSource) -> str:
    """Return the URL of a source: its identity, where a test writes what a mirror has stored."""
    return source._url


def topic_id_of(cluster: MemoryCluster, topic: str) -> str | None:
    """Return the id of a topic, as its description has it."""
    known = cluster._state.table.topic_id(topic)
    return None if known is None else known.hex()


def records(cluster: MemoryCluster, topic: str) -> dict[int, list[ProducerRecord]]:
    """Return what readers of committed records get, by partition."""
    rows: dict[int, list[ProducerRecord]] = {}
    for stored in cluster.records(topic, read_committed=True):
        rows.setdefault(stored.partition.partition, []).append(stored.record._replace(timestamp=stored.timestamp))
    return rows


def same(source: MemoryCluster, target: MemoryCluster, topic: str, target_topic: str | None = None) -> bool:
    """Return True if the target has exactly the records of the source, in order, in each partition."""
    return records(source, topic) == records(target, target_topic or topic)


def copied(result: Any) -> int:
    """Return how many records a run has committed."""
    return sum(result.records.values())


def partition(topic: str, number: int = 0) -> TopicPartition:
    return TopicPartition(topic, number)
