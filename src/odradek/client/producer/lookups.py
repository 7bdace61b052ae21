"""Background tasks of a producer that ask its cluster: for partitions, for routing tables, for its identity, and
whether partitions exist that its routing table does not have.

Records wait meanwhile, as long as they may; what is learned is applied to the accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial

import anyio

from odradek.client.producer.sender import SenderHost
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ClusterMetadata, ProducerSequences, RoutingTable
from odradek.core.missing_partitions import BETWEEN_READS_S
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.partition_queue import PartitionQueue, TopicQueues
from odradek.errors import Closed, OdradekError
from odradek.io.retry import retry

__all__ = ["ClusterLookups"]


class ClusterLookups:
    """Looks up what the accumulator needs to know.

    Args:
        metadata: The metadata of the cluster.
        accumulator: The accumulator of the producer.
        backoff: Wait between attempts after a failure.
        host: The producer.
        needed: Returns the topics that are looked for although they do not exist.
        on_identified: Called when the producer has an identity.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        accumulator: Accumulator,
        backoff: Backoff,
        host: SenderHost,
        needed: Callable[[], Collection[str]],
        on_identified: Callable[[], None],
    ) -> None:
        self._metadata, self._accumulator, self._backoff = metadata, accumulator, backoff
        self._host, self._needed, self._on_identified = host, needed, on_identified
        self._refreshing = self._identifying = self._checking = False

    def start(self) -> None:
        """Apply the routing table, and every newer one from now on."""
        self._host.apply(self._accumulator.route(self._metadata.table))
        self._host.spawn(self._follow_table)

    def load_topic(self, topic: TopicQueues) -> None:
        """Look up the partitions of a topic until there is an answer, and have brokers create it if it has none."""
        topic.known = False
        self._host.spawn(self._load_topic, topic)

    def refresh(self) -> None:
        """Read the routing table again, unless a read is under way."""
        if not self._refreshing:
            self._refreshing = True
            self._host.spawn(self._refresh)

    async def read_table(self) -> None:
        """Read the routing table (see `SenderHost`)."""
        with suppress(OdradekError):  # the next stale answer asks again
            self._update_table(await self._metadata.refresh())

    def identify(self, sequences: ProducerSequences) -> None:
        """Ask for an identity until there is one, unless that is under way."""
        if not self._identifying:
            self._identifying = True
            self._host.spawn(self._identify, sequences)

    def check_missing(self) -> None:
        """Find out whether the partitions that are missing in the table exist, and reject the records for those that do
        not. While that is under way for some, others wait."""
        if not self._checking:
            self._checking = True
            self._host.spawn(self._check_missing)

    async def _load_topic(self, topic: TopicQueues) -> None:
        def passes(error: OdradekError) -> bool:
            topic.why = str(error)  # for the records whose time is over meanwhile
            return _passes(error)

        read = partial(self._metadata.table_for_topic, topic.name, create=True)
        table = await retry(read, self._backoff, passes=passes)
        self._update_table(table)
        topic.registered = bool(table.registered(topic.name))
        self._host.apply(self._accumulator.learned(topic))

    async def _follow_table(self) -> None:
        while True:
            self._update_table(await self._metadata.wait_for_newer(self._accumulator.table.version, self._needed))

    async def _refresh(self) -> None:
        try:
            await self.read_table()
        finally:
            self._refreshing = False

    def _update_table(self, table: RoutingTable) -> None:
        if table.version > self._accumulator.table.version:
            self._host.apply(self._accumulator.route(table))

    async def _identify(self, sequences: ProducerSequences) -> None:
        async def attempt() -> None:
            while not sequences.ready:
                await sequences.identify()

        try:
            await retry(attempt, self._backoff)
        except OdradekError as error:
            self._host.fail(error)
            return
        self._identifying = False
        self._on_identified()

    async def _check_missing(self) -> None:
        try:
            while self._accumulator.missing:
                await self._refuse_missing(self._accumulator.take_missing())
        finally:
            self._checking = False

    async def _refuse_missing(self, queues: Mapping[PartitionQueue, int]) -> None:
        """Read the metadata twice, and refuse the records of partitions that are in neither answer."""
        queues = await self._read_for(queues)
        if queues:
            await anyio.sleep(BETWEEN_READS_S)
            self._host.apply(self._accumulator.refuse_missing(await self._read_for(queues)))

    async def _read_for(self, queues: Mapping[PartitionQueue, int]) -> Mapping[PartitionQueue, int]:
        """Read the metadata until there is an answer, or nothing is left to refuse; return what is still missing."""

        async def attempt() -> Mapping[PartitionQueue, int]:
            nonlocal queues
            if queues := self._accumulator.still_missing(queues):
                self._update_table(await self._metadata.refresh())
                queues = self._accumulator.still_missing(queues)
            return queues

        return await retry(attempt, self._backoff, passes=_passes)


def _passes(error: OdradekError) -> bool:
    """Return True unless the cluster is closed: whatever else is wrong with metadata may be right the next time."""
    return not isinstance(error, Closed)
