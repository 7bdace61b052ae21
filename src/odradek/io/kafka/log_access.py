"""The logs of a cluster of 0.8 or later as wholes (`core.interfaces.LogAccess`): positions are offsets."""

from __future__ import annotations

from typing import cast

from odradek.core.interfaces import RECORDS, BrokerClient, Extent, SplitPoint
from odradek.io.kafka.broker_client import KafkaBrokerClient
from odradek.io.log_access import LeaderLogAccess
from odradek.types import EARLIEST, LATEST, TopicPartition

__all__ = ["KafkaLogAccess"]


class KafkaLogAccess(LeaderLogAccess):
    """Logs of records, which are numbered by topic."""

    unit = RECORDS
    names_brokers = False
    values_only = False

    def _has_time_index(self, api: BrokerClient) -> bool:
        return cast(KafkaBrokerClient, api).versions.has_time_index

    async def _extent(self, api: BrokerClient, partition: TopicPartition, read_committed: bool) -> Extent:
        """Return the extent of a log. Brokers from 0.10.1 on name no starts of segments: two requests say all."""
        if not self._has_time_index(api):
            return await super()._extent(api, partition, read_committed)
        earliest = await api.resolve_position(partition, EARLIEST)
        latest = max(earliest, await api.resolve_position(partition, LATEST, read_committed=read_committed))
        return Extent(earliest, latest, tuple(sorted({earliest, latest})), api.broker.id)

    async def boundary(self, cut: SplitPoint, max_entry_bytes: int) -> int:
        """Return the cut: every offset is a boundary."""
        return cut.position
