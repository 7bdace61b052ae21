"""A reader of the logs that a pipeline's tables were made from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from odradek.client.cluster import Cluster
from odradek.client.connect import connect
from odradek.io.gather import gather
from odradek.pipeline.config import SourceConfig
from odradek.pipeline.sources import location_options
from odradek.spark import options as spark_options
from odradek.spark.brokers import extent_of, tuning
from odradek.spark.directories import read_files
from odradek.spark.logs import find_logs
from odradek.spark.options import SourceOptions, parse_source
from odradek.spark.planning import Extent, Range
from odradek.spark.range_reader import ColumnsChunk, RangeReader
from odradek.types import Columns, TopicPartition

__all__ = ["LogReader", "cluster_url", "open_logs"]

Take = Callable[[TopicPartition, Columns], None]


def source_options(source: SourceConfig, partitions: Iterable[TopicPartition]) -> SourceOptions:
    """Return the options to read these partitions, corrupt messages as raw bytes. Raises ConfigError."""
    options = parse_source({**location_options(source), "subscribePattern": ".*"}, streaming=False)
    topics = spark_options.Topics(partitions=tuple(sorted(partitions)))
    return replace(options, topics=topics, corrupt="raw", fetch_ahead=source.fetchers_per_broker)


def cluster_url(source: SourceConfig) -> str | None:
    """Return the cluster's URL for `odradek.connect`; None if the source is log directories."""
    where = source_options(source, ()).where
    return where.url if isinstance(where, spark_options.ClusterOptions) else None


class LogReader:
    """A reader of some partitions of the source, made by `open_logs`.

    Args:
        options: The options to read with.
        cluster: The open cluster; None for log directories.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster | None) -> None:
        self._options, self._cluster = options, cluster
        self._paths: Mapping[TopicPartition, str] = {}

    async def extents(self) -> dict[TopicPartition, Extent]:
        """Return the extent of each partition; those that do not exist or whose broker is unreachable are left out."""
        if self._cluster is None:
            return await anyio.to_thread.run_sync(self._on_disk)
        driver = self._cluster.driver
        for topic in sorted({partition.topic for partition in self._options.topics.partitions}):
            await driver.metadata.table_for_topic(topic)
        served = {p: broker for p in self._options.topics.partitions if (broker := driver.metadata.table.leader(p))}
        limiter = anyio.CapacityLimiter(64)

        async def ask(partition: TopicPartition) -> Extent:
            async with limiter:
                api = driver.broker(served[partition], purpose="control")
                return await extent_of(api, partition, read_committed=self._options.read_committed)

        return dict(zip(served, await gather(ask, served), strict=True))

    def _on_disk(self) -> dict[TopicPartition, Extent]:
        logs = find_logs(self._options)
        extents = logs.extents()
        self._paths = logs.paths(extents)
        return {
            partition: extent for partition, extent in extents.items() if partition in self._options.topics.partitions
        }

    async def read(self, ranges: Sequence[Range], take: Take) -> None:
        """Call `take` with the messages of these ranges, in order within each range.

        Call `extents` first. At most `fetchers_per_broker` ranges of one broker are read at the same time.

        Raises:
            BoundaryMismatch: A range does not begin or end where a message does.
            DataLoss, TransportError, DeadlineError, OSError: A range cannot be read.
        """
        if self._cluster is None:
            for part in ranges:
                for columns in read_files(part, self._paths[part.partition], self._options):
                    take(part.partition, columns)
                    await checkpoint()
            return
        async with anyio.create_task_group() as tasks:
            for broker in {part.partition.broker for part in ranges}:
                mine = [part for part in ranges if part.partition.broker == broker]
                tasks.start_soon(self._read_broker, mine, take)

    async def _read_broker(self, ranges: Sequence[Range], take: Take) -> None:
        assert self._cluster is not None
        async with RangeReader(self._cluster.driver, ranges, self._options) as reader:
            while chunks := await reader.take():
                for chunk in chunks:
                    if isinstance(chunk, ColumnsChunk):
                        take(chunk.partition, chunk.rows)
                        await checkpoint()


@asynccontextmanager
async def open_logs(source: SourceConfig, partitions: Iterable[TopicPartition]) -> AsyncIterator[LogReader]:
    """Open the logs of these partitions.

    Raises:
        ConfigError: The keys of the source are wrong.
        Unreachable, ZooKeeperError: The cluster does not answer.
    """
    options = source_options(source, partitions)
    if not isinstance(options.where, spark_options.ClusterOptions):
        yield LogReader(options, None)
        return
    async with connect(options.where.url, tuning=tuning(options), **options.where.arguments) as cluster:
        yield LogReader(options, cluster)
