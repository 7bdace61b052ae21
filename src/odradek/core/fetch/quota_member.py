"""The share of one partition in the read-ahead: its memory, its expansion, and whether it waits to be delivered."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from odradek.core.fetch.read_ahead import ReadAheadBudget, bytes_to_request, expected_expansion
from odradek.core.fetch.row_queue import RowQueue

if TYPE_CHECKING:
    from odradek.core.fetch.scheduler import StreamQuota

__all__ = ["QuotaMember"]

MIN_OBSERVED_BYTES = 1024
"""A few bytes say nothing about what the next megabyte will expand to."""


class QuotaMember(RowQueue):
    """The rows of a partition, as its quota and the read-ahead of all partitions count them.

    Counts are brought up to date by `recount`, once for each thing that happens, and not by every step of it.
    """

    __slots__ = (
        "_budget",
        "_counted_memory",
        "_delivery",
        "_max_wanted",
        "_own_expansion",
        "_tail",
        "active",
        "has_more",
        "in_ready_queue",
        "quota",
    )

    def __init__(self) -> None:
        super().__init__()
        self.quota: StreamQuota | None = None
        """What its memory counts against; None until a broker that serves it is known."""
        self.in_ready_queue = False
        """It is queued for delivery."""
        self.active = False
        """Something may still come of it, so it has a share of the read-ahead."""
        self.has_more = False
        """Its last response was as long as it could be."""
        self._budget: ReadAheadBudget | None = None
        self._delivery: deque[Any] | None = None  # where it is queued, with others of its class
        self._counted_memory = 0  # by its quota
        self._forget_fetches()

    def _forget_fetches(self) -> None:
        self.drop_rows()
        self._tail = 0  # bytes of a partial message in the decoder
        self._own_expansion: float | None = None
        self._max_wanted: int | None = None
        self._set_has_more(False)

    @property
    def held_bytes(self) -> int:
        """The memory it holds. A partial message alone counts as nothing, so that its rest may always be fetched."""
        return self.memory + int(self._tail * self.expansion) + 1 if self.rows else 0

    @property
    def expansion(self) -> float:
        """Memory that one fetched byte is expected to become (bytes)."""
        return expected_expansion(self._observed_expansion())

    @property
    def expansion_known(self) -> bool:
        return self._observed_expansion() is not None

    def _observed_expansion(self) -> float | None:
        """Return its own, or before anything was fetched, that of the partitions it shares its quota with."""
        own, quota = self._own_expansion, self.quota
        return own if own is not None or quota is None else quota.expansion

    def join(self, quota: StreamQuota | None) -> None:
        """Count against another quota from now on."""
        for each, sign in ((self.quota, -1), (quota, 1)):
            if each is not None:
                each.held += sign * self._counted_memory
                each.deliverable += sign * self.in_ready_queue
                each.with_more += sign * self.has_more
                each.active += sign * self.active
        self.quota = quota

    def wanted_bytes(self) -> int:
        """Return how many bytes it may request, as far as its own share goes."""
        budget, quota = self._budget, self.quota
        assert budget is not None
        limits = budget.limits
        usual = limits.usual_fetch_bytes if quota is None else quota.fetch_bytes
        held = self.held_bytes if self.rows else 0
        size = bytes_to_request(held, self._observed_expansion(), budget.share, limits, usual)
        if self._own_expansion is None:
            return min(size, limits.first_fetch_bytes)
        return size if self._max_wanted is None else min(size, max(self._max_wanted, limits.min_bytes))

    def _recount(self, active: bool, deliver: bool) -> bool:
        """Bring the counts up to date, queue it for delivery if it is not queued, and wake those who wait for memory
        that it has released. Return whether it became active, or is not any more."""
        quota = self.quota
        changed = active is not self.active
        if changed:
            self._set_active(active)
        if deliver and not self.in_ready_queue:
            self._queue_for_delivery()
        if quota is not None:
            memory = self.memory + self._tail
            quota.held += memory - self._counted_memory
            self._counted_memory = memory
            if quota.full or quota.pending_decompress:
                quota.freed()
        return changed

    def _set_active(self, active: bool) -> None:
        self.active = active
        change = 1 if active else -1
        if self._budget is not None:
            self._budget.partitions += change
        if self.quota is not None:
            self.quota.active += change

    def _queue_for_delivery(self) -> None:
        assert self._delivery is not None
        self._delivery.append(self)
        self.in_ready_queue = True
        if self.quota is not None:
            self.quota.deliverable += 1

    def _set_has_more(self, value: bool) -> None:
        if value is not self.has_more:
            self.has_more = value
            if self.quota is not None:
                self.quota.with_more += 1 if value else -1

    def _observe_expansion(self, memory: int, used: int) -> None:
        """Remember that so many bytes of the log became so much memory."""
        if memory and used > 0:
            self._own_expansion = expansion = memory / (used if used > MIN_OBSERVED_BYTES else MIN_OBSERVED_BYTES)
            if self.quota is not None:
                self.quota.observe_expansion(expansion)
