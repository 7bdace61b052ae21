"""The logs of a 0.7 cluster as wholes (`core.interfaces.LogAccess`): positions are bytes, and a cut needs a proof."""

from __future__ import annotations

import logging

import anyio.to_thread

from odradek.core.interfaces import BYTES, SplitPoint
from odradek.errors import BrokerError
from odradek.io.kafka07.raw_fetch import read_raw
from odradek.io.log_access import LeaderLogAccess
from odradek.wire.kafka07.boundary import BoundarySearch

__all__ = ["Kafka07LogAccess"]

log = logging.getLogger(__name__)


class Kafka07LogAccess(LeaderLogAccess):
    """Logs of bytes, which are numbered on each broker."""

    unit = BYTES
    names_brokers = True
    values_only = True

    async def boundary(self, cut: SplitPoint, max_entry_bytes: int) -> int | None:
        """Search the bytes around a cut for a boundary (see `LogAccess.boundary`)."""
        search = BoundarySearch(cut.position, floor=cut.floor, ceiling=cut.ceiling, most=max_entry_bytes)
        try:
            while search.wanted is not None:
                data = await self._read(cut, *search.wanted)
                await anyio.to_thread.run_sync(search.feed, data)  # up to 0.2 s
        except BrokerError as error:
            if error.retriable:
                raise
            log.warning("%s: no boundary at %d: %s", cut.partition, cut.position, error)
            return None
        if search.proved is None:
            log.info("%s: no boundary at %d: %s", cut.partition, cut.position, search.reason)
        return search.proved

    async def _read(self, cut: SplitPoint, start: int, stop: int) -> bytes:
        broker = self._driver.metadata.table.leader(cut.partition)
        if broker is None:
            raise BrokerError(5, "LEADER_NOT_AVAILABLE", f"{cut.partition}")
        return await read_raw(self._driver.broker(broker, purpose="fetch"), cut.partition, start, stop)
