"""The parts of `core.interfaces.LogAccess` that are the same for all protocols: questions to the leader of each log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from random import random
from typing import TypeVar

import anyio

from odradek.core.backoff import Backoff
from odradek.core.interfaces import BrokerClient, Extent, ProtocolDriver
from odradek.errors import BrokerError, OdradekError, RemoteProtocolError
from odradek.io.gather import gather
from odradek.types import EARLIEST, LATEST, AtTime, Broker, Position, TopicPartition

__all__ = ["BACKOFF", "REFUSALS", "LeaderLogAccess"]

T = TypeVar("T")

REFUSALS = 8
"""Times that a broker is asked again, with a back-off, while the cluster elects a leader."""

BACKOFF = Backoff()

MAX_SEGMENTS = 1 << 16
"""A number larger than that of a log's segments; the oldest ones beyond it are free cuts lost."""


class LeaderLogAccess:
    """Extents and positions by time. A protocol adds `unit`, `names_brokers`, `values_only` and `boundary`."""

    def __init__(self, driver: ProtocolDriver) -> None:
        self._driver = driver

    async def extents(
        self, partitions: Collection[TopicPartition], *, read_committed: bool = False
    ) -> dict[TopicPartition, Extent]:
        topic_id = self._driver.metadata.table.topic_id  # from before the requests

        async def extent(api: BrokerClient, partition: TopicPartition) -> Extent:
            known = topic_id(partition.topic) or b""
            return (await self._extent(api, partition, read_committed))._replace(topic_id=known.hex())

        return await self._of_each(partitions, extent)

    async def positions_at(
        self, times: Mapping[TopicPartition, AtTime], *, read_committed: bool = False, ending: bool = False
    ) -> dict[TopicPartition, Position]:
        async def resolve(api: BrokerClient, partition: TopicPartition) -> Position:
            at = times[partition]
            start = await api.resolve_position(partition, at, read_committed=read_committed)
            if not ending:
                return start
            has_time_index = self._has_time_index(api)
            if not await api.positions(partition, at):
                # No record is as new, or a topic in an older format has no times: then `start` is that of a file.
                # Where files alone have times, that which starts there was written to after this time.
                if not has_time_index:
                    return start
                return await api.resolve_position(partition, LATEST, read_committed=read_committed)
            if has_time_index:
                return start
            starts = await api.positions(partition, LATEST, MAX_SEGMENTS)
            return min((known for known in starts if known > start), default=start)

        return await self._of_each(times, resolve)

    async def _extent(self, api: BrokerClient, partition: TopicPartition, read_committed: bool) -> Extent:
        """Return the extent of a log, as the broker that serves it says. In 0.7, the positions up to the latest are the
        starts of all segments."""
        starts = await api.positions(partition, LATEST, MAX_SEGMENTS)
        if not starts:
            raise RemoteProtocolError(f"{partition}: the broker returned no position")
        earliest = starts[-1] if len(starts) < MAX_SEGMENTS else await api.resolve_position(partition, EARLIEST)
        latest = starts[0]
        if read_committed:
            latest = max(earliest, await api.resolve_position(partition, LATEST, read_committed=True))
        return Extent(earliest, latest, tuple(sorted({earliest, *starts})), api.broker.id)

    def _has_time_index(self, api: BrokerClient) -> bool:
        """Return True if a broker knows the times of records, and not only those of segments."""
        return False

    async def _of_each(
        self,
        partitions: Collection[TopicPartition],
        ask: Callable[[BrokerClient, TopicPartition], Awaitable[T]],
    ) -> dict[TopicPartition, T]:
        """Return the answers about those partitions whose broker is there. A broker that refuses because it no longer
        leads a partition, or not yet, is asked again for some seconds. If one does not answer, those that lead its
        partitions by now are asked."""
        for attempt in range(REFUSALS):
            leaders = self._leaders(partitions)
            try:
                return await self._of_each_once(partitions, ask)
            except OdradekError as error:
                if not error.retriable:
                    raise
                failure = error
            if refused := isinstance(failure, BrokerError):
                await anyio.sleep(BACKOFF.delay(attempt, random()))
            with suppress(OdradekError):  # the table may have changed all the same
                await self._driver.metadata.refresh()
            if not refused and self._leaders(partitions) == leaders:
                raise failure
        return await self._of_each_once(partitions, ask)

    def _leaders(self, partitions: Collection[TopicPartition]) -> list[Broker | None]:
        table = self._driver.metadata.table
        return [table.leader(partition) for partition in partitions]

    async def _of_each_once(
        self,
        partitions: Collection[TopicPartition],
        ask: Callable[[BrokerClient, TopicPartition], Awaitable[T]],
    ) -> dict[TopicPartition, T]:
        driver, table = self._driver, self._driver.metadata.table
        served = {partition: broker for partition in partitions if (broker := table.leader(partition)) is not None}

        async def one(partition: TopicPartition) -> T:
            return await ask(driver.broker(served[partition], purpose="control"), partition)

        return dict(zip(served, await gather(one, served), strict=True))
