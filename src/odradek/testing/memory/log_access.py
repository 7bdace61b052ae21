"""The logs of an in-memory cluster as wholes (`core.interfaces.LogAccess`)."""

from __future__ import annotations

from odradek.core.interfaces import RECORDS, BrokerClient, SplitPoint
from odradek.io.log_access import LeaderLogAccess

__all__ = ["MemoryLogAccess"]


class MemoryLogAccess(LeaderLogAccess):
    """Logs of records, which are numbered by topic."""

    unit = RECORDS
    names_brokers = False
    values_only = False

    def _has_time_index(self, api: BrokerClient) -> bool:
        return True

    async def boundary(self, cut: SplitPoint, max_entry_bytes: int) -> int:
        """Return the cut: every offset is a boundary."""
        return cut.position
