"""The logs of a cluster of 0.8 or later as wholes (`core.interfaces.LogAccess`): positions are offsets."""

from __future__ import annotations

from typing import cast

from odradek.core.interfaces import RECORDS, BrokerClient, SplitPoint
from odradek.io.kafka.broker_client import KafkaBrokerClient
from odradek.io.log_access import LeaderLogAccess

__all__ = ["KafkaLogAccess"]


class KafkaLogAccess(LeaderLogAccess):
    """Logs of records, which are numbered by topic."""

    unit = RECORDS
    names_brokers = False

    def _has_time_index(self, api: BrokerClient) -> bool:
        return cast(KafkaBrokerClient, api).versions.has_time_index

    async def boundary(self, cut: SplitPoint, max_entry_bytes: int) -> int:
        """Return the cut: every offset is a boundary."""
        return cut.position
