"""The source of a mirror, as it needs one, and a cluster as a source; that of log directories is in `directories`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeAlias

from odradek.batch import Batch
from odradek.client.cluster import Cluster
from odradek.client.consumer.reader import Reader
from odradek.client.options import CompressionName
from odradek.core.admin import ConfigSource
from odradek.core.interfaces import Extents, PositionUnit
from odradek.errors import Unsupported
from odradek.mirror.bookmarks import bookmark_of, positions_of
from odradek.mirror.stored import SourcePosition
from odradek.types import EARLIEST, Position, StartPosition, TopicPartition

__all__ = ["LATEST_TIMESTAMP", "ClusterSource", "MirrorSource", "SourceBatches", "Starts", "servers_of"]

Starts: TypeAlias = Mapping[TopicPartition, SourcePosition | None]
"""Partition -> where reading begins; None: with the first record that there is."""

LATEST_TIMESTAMP = "message.timestamp.after.max.ms"
"""Configuration of topics from 3.6 on: how far in the future a timestamp may be."""


class SourceBatches(Protocol):
    """The records of some partitions, in order within each."""

    async def next_batch(self) -> Batch | None:
        """Return the next records, of one partition; None once all partitions are at their ends.

        Raises:
            CorruptMessage: A record cannot be decoded. Raised after those before it.
            OffsetOutOfRange: The log does not have what was to be read: the source deleted it, or its log was cut;
                `TopicRecreated`: the topic was made again.
            OdradekError: The source cannot be read.

        Cancellation: safe, nothing is taken.
        """

    def positions(self) -> Mapping[TopicPartition, SourcePosition]:
        """Return what comes after everything that `next_batch` has returned, exact to the record; partitions of which
        that is not known yet are left out."""

    def lags(self) -> Mapping[TopicPartition, int]:
        """Return how far that is from where the logs end, as far as it is known without a request."""


class MirrorSource(Protocol):
    """Logs that are copied. All methods raise OdradekError if the source does not answer; cancellation: safe."""

    @property
    def unit(self) -> PositionUnit:
        """The unit of positions: `RECORDS` where they are offsets (0.8 and later), `BYTES` in 0.7."""

    async def identity(self) -> str:
        """Return a text that is the same whenever the source is the same."""

    async def listed(self) -> Collection[str] | None:
        """Return the topics that there are now; None where that is not known (0.7 without ZooKeeper)."""

    async def partitions(self, topic: str) -> Sequence[TopicPartition]:
        """Return the partitions of a topic; none if there is no such topic."""

    async def extents(self, partitions: Collection[TopicPartition], *, read_committed: bool) -> Extents:
        """Return where each log begins and ends now, for readers of all records or of committed ones. Logs of brokers
        that are away are left out."""

    async def topic_configs(self, topic: str) -> Mapping[str, str]:
        """Return what was configured for a topic, as far as that is known; and `LATEST_TIMESTAMP`, if it has that."""

    def open(
        self,
        starts: Starts,
        ends: Mapping[TopicPartition, Position] | None,
        *,
        read_committed: bool,
        max_message_bytes: int,
        read_ahead_bytes: int | None = None,
        keep_encoded: CompressionName | None = None,
    ) -> AbstractAsyncContextManager[SourceBatches]:
        """Return the records of some partitions, to be used as `async with`.

        Args:
            starts: What is read.
            ends: Partition -> where reading ends, at the end of a log that has none here; None: never, in logs that
                still grow.
            read_committed: Leave out records of transactions that were not committed.
            max_message_bytes: Size of the largest message of a cluster.
            read_ahead_bytes: Memory that records of a cluster take before they are returned; None: as readers do.
            keep_encoded: As for readers.
        """


class ClusterSource:
    """A cluster.

    Args:
        cluster: Open.
        url: As `odradek.connect` took it.
    """

    def __init__(self, cluster: Cluster, url: str) -> None:
        self.cluster, self._url = cluster, url

    @property
    def unit(self) -> PositionUnit:
        return self.cluster.driver.logs.unit

    async def identity(self) -> str:
        """Return the id of the cluster; where brokers have none (before 0.10.1), its URL without a user."""
        described = (await self.cluster.admin.describe_cluster()).cluster_id
        return servers_of(self._url) if described is None else described

    async def listed(self) -> Collection[str] | None:
        try:
            return await self.cluster.topics()
        except Unsupported:
            await self.cluster.driver.metadata.refresh()
            return None

    async def partitions(self, topic: str) -> Sequence[TopicPartition]:
        return await self.cluster.partitions(topic)

    async def extents(self, partitions: Collection[TopicPartition], *, read_committed: bool) -> Extents:
        return await self.cluster.driver.logs.extents(partitions, read_committed=read_committed)

    async def topic_configs(self, topic: str) -> Mapping[str, str]:
        """Return what was configured for the topic itself, and `LATEST_TIMESTAMP`, if it has that; nothing before
        0.11."""
        try:
            entries = (await self.cluster.admin.describe_topic_configs(topic)).check()[topic]
        except Unsupported:
            return {}
        own = [e for e in entries.values() if e.source is ConfigSource.TOPIC or e.name == LATEST_TIMESTAMP]
        return {entry.name: entry.value for entry in own if entry.value is not None}

    @asynccontextmanager
    async def open(
        self,
        starts: Starts,
        ends: Mapping[TopicPartition, Position] | None,
        *,
        read_committed: bool,
        max_message_bytes: int,
        read_ahead_bytes: int | None = None,
        keep_encoded: CompressionName | None = None,
    ) -> AsyncIterator[SourceBatches]:
        options: Any = {} if read_ahead_bytes is None else {"read_ahead_bytes": read_ahead_bytes}
        first: dict[TopicPartition, StartPosition] = dict.fromkeys(starts, EARLIEST)
        async with self.cluster.reader(
            first,
            start=bookmark_of({p: at for p, at in starts.items() if at is not None}),
            until=None if ends is None else {p: ends[p] for p in starts if p in ends},
            isolation="read_committed" if read_committed else "read_uncommitted",
            reset="fail",
            max_message_bytes=max_message_bytes,
            keep_encoded=keep_encoded,
            **options,
        ) as reader:
            yield ReaderBatches(reader)


class ReaderBatches:
    """The batches of a reader."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._batches = reader, reader.batches()

    async def next_batch(self) -> Batch | None:
        try:
            return await anext(self._batches)
        except StopAsyncIteration:
            return None

    def positions(self) -> Mapping[TopicPartition, SourcePosition]:
        return positions_of(self._reader.bookmark())

    def lags(self) -> Mapping[TopicPartition, int]:
        return self._reader.statistics().lag


def servers_of(url: str) -> str:
    """Return a URL without a user, its servers in order."""
    scheme, _, rest = url.partition("://")
    servers, slash, chroot = rest.partition("/")
    if scheme == "kafka07+zk":
        servers = servers.rpartition("@")[2]
    return f"{scheme.partition('+')[0]}://{','.join(sorted(servers.split(',')))}{slash}{chroot}"
