"""The logs of a cluster, for the planning of a query."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import anyio
import anyio.to_thread

from odradek.client.cluster import Cluster
from odradek.client.options import Tuning
from odradek.core.interfaces import BrokerClient
from odradek.errors import BrokerError, RemoteProtocolError
from odradek.io.gather import gather
from odradek.io.kafka07.raw_fetch import read_raw
from odradek.spark import options as option_module
from odradek.spark.options import SourceOptions
from odradek.spark.planning import Extent, SplitPoint
from odradek.spark.runtime import connected, retry_until
from odradek.types import EARLIEST, LATEST, AtTime, Position, TopicPartition
from odradek.wire.kafka07.boundary import BoundarySearch, Proved, Unproved

__all__ = ["BrokerCatalog", "extent_of", "tuning"]

log = logging.getLogger("odradek.spark")

T = TypeVar("T")
R = TypeVar("R")

MANY = 1 << 16
"""A number larger than that of a log's segments; the oldest ones beyond it are free cuts lost."""

INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Topics of the brokers themselves: no pattern means them, as with Java's clients."""

ASKED, SEARCHED = 256, 4
"""So many positions are asked for at a time, and so many cuts searched, with a few of the largest messages in memory
for each."""


def tuning(options: SourceOptions) -> Tuning:
    """Return connection options under which no single wait exceeds the deadline of all of them together."""
    usual, where = Tuning(), options.where
    asked = where.request_timeout_s if isinstance(where, option_module.ClusterOptions) else None
    return Tuning(
        connect_timeout=min(usual.connect_timeout, options.deadline_s),
        request_timeout=min(asked or usual.request_timeout, options.deadline_s),
    )


class BrokerCatalog:
    """Implements `spark.logs.Logs` over the network. Each question is asked until the options' deadline.

    Args:
        where: The cluster.
        options: What to read, and how patiently.
    """

    def __init__(self, where: option_module.ClusterOptions, options: SourceOptions) -> None:
        self._where, self._options = where, options
        self._tuning = tuning(options)

    def extents(self) -> dict[TopicPartition, Extent]:
        return self._ask(self._extents, "looking at the logs")

    def at(self, times: Mapping[TopicPartition, AtTime]) -> dict[TopicPartition, Position]:
        async def ask(cluster: Cluster) -> dict[TopicPartition, Position]:
            await self._refresh(cluster)
            committed = self._options.read_committed
            return await _of_each(
                cluster,
                times,
                lambda api, partition: api.resolve_position(partition, times[partition], read_committed=committed),
            )

        return self._ask(ask, "asking for positions by time") if times else {}

    def boundaries(self, cuts: Sequence[SplitPoint]) -> dict[SplitPoint, int | None]:
        if not self._options.unit.exact:
            return {cut: cut.position for cut in cuts}

        async def search(cluster: Cluster) -> dict[SplitPoint, int | None]:
            limiter = anyio.CapacityLimiter(SEARCHED)

            async def one(cut: SplitPoint) -> int | None:
                async with limiter:
                    return await self._boundary(cluster, cut)

            return dict(zip(cuts, await gather(one, cuts), strict=True))

        return self._ask(search, "searching boundaries") if cuts else {}

    def paths(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        return {}

    def _ask(self, work: Callable[[Cluster], Awaitable[T]], what: str) -> T:
        options = self._options
        with connected(self._where, self._tuning, options.deadline_s) as handle:
            return handle.run(work, options.deadline_s, what)

    # ---- what there is ----

    async def _extents(self, cluster: Cluster) -> dict[TopicPartition, Extent]:
        committed = self._options.read_committed
        published = await self._published(cluster)
        extents = await _of_each(
            cluster, published, lambda api, partition: extent_of(api, partition, read_committed=committed)
        )
        if not self._options.unit.exact and (missing := sorted(set(published) - extents.keys())):
            raise BrokerError(5, "LEADER_NOT_AVAILABLE", f"{missing[0]}", retriable=True, refresh_metadata=True)
        return extents

    async def _refresh(self, cluster: Cluster) -> None:
        """Read the metadata again, where nothing reports changes."""
        if not self._where.has_watches:
            await cluster.driver.metadata.refresh()

    async def _published(self, cluster: Cluster) -> list[TopicPartition]:
        """What live brokers have of what is to be read."""
        topics = self._options.topics
        await self._refresh(cluster)
        if topics.pattern:
            names = sorted(filter(topics.has, await cluster.topics() - INTERNAL))
        else:
            names = sorted({*topics.names, *(partition.topic for partition in topics.partitions)})
        partitions = [partition for some in await gather(cluster.partitions, names) for partition in some]
        return [partition for partition in partitions if not topics.partitions or partition in topics.partitions]

    # ---- boundaries ----

    async def _boundary(self, cluster: Cluster, cut: SplitPoint) -> int | None:
        most = self._options.max_entry
        search = BoundarySearch(cut.position, floor=cut.floor, ceiling=cut.ceiling, most=most)

        async def read() -> bytes | None:
            assert search.wanted is not None
            broker = cluster.driver.metadata.table.leader(cut.partition)
            if broker is None:
                return None
            return await read_raw(cluster.driver.broker(broker, purpose="fetch"), cut.partition, *search.wanted)

        while search.wanted is not None:
            what = f"{cut.partition}: reading at {search.wanted[0]}"
            try:
                data = await retry_until(read, self._options.deadline_s, what)
            except BrokerError as error:
                log.warning("%s: no boundary at %d: %s", cut.partition, cut.position, error)
                return None
            if data is None:
                return None
            await anyio.to_thread.run_sync(search.feed, data)  # up to 0.2 s
        return _position(cut, search.result)


def _position(cut: SplitPoint, result: Proved | Unproved | None) -> int | None:
    if isinstance(result, Proved):
        return result.position
    log.info("%s: no boundary at %d: %s", cut.partition, cut.position, result.reason if result else "")
    return None


async def extent_of(api: BrokerClient, partition: TopicPartition, *, read_committed: bool = False) -> Extent:
    """Return the extent of a log. In 0.7, the positions up to the latest are the starts of all segments.

    Args:
        api: The broker that serves it.
        partition: The log.
        read_committed: Its end is that of committed transactions.
    """
    starts = await api.positions(partition, LATEST, MANY)
    if not starts:
        raise RemoteProtocolError(f"{partition}: the broker returned no position")
    earliest = starts[-1] if len(starts) < MANY else await api.resolve_position(partition, EARLIEST)
    latest = starts[0]
    if read_committed:
        latest = max(earliest, await api.resolve_position(partition, LATEST, read_committed=True))
    return Extent(earliest, latest, tuple(sorted({earliest, *starts})), api.broker.id)


async def _of_each(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    ask: Callable[[BrokerClient, TopicPartition], Awaitable[R]],
) -> dict[TopicPartition, R]:
    """The answers about those partitions whose broker is there."""
    limiter = anyio.CapacityLimiter(ASKED)
    table = cluster.driver.metadata.table
    served = {partition: broker for partition in partitions if (broker := table.leader(partition)) is not None}

    async def one(partition: TopicPartition) -> R:
        async with limiter:
            return await ask(cluster.driver.broker(served[partition], purpose="control"), partition)

    return dict(zip(served, await gather(one, served), strict=True))
