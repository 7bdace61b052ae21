"""The share of one partition in the read-ahead: what it counts for, and how many bytes it may request."""

from __future__ import annotations

from odradek.core.fetch.fetch_size import EntrySizes
from odradek.core.fetch.read_ahead import ReadAheadBudget, bytes_to_request, expected_expansion
from odradek.core.fetch.stream_quota import StreamQuota

__all__ = ["QuotaShare"]

MIN_OBSERVED_BYTES = 1024
"""A few bytes say nothing about what the next megabyte will expand to."""


class QuotaShare:
    """A partition as its quota and the read-ahead of all partitions count it, and what was learned of its fetches."""

    __slots__ = (
        "_budget",
        "_entries",
        "_max_wanted",
        "_own_expansion",
        "counted_memory",
        "has_more",
        "is_active",
        "is_queued",
        "quota",
        "was_left_out",
    )

    def __init__(self) -> None:
        self.quota: StreamQuota | None = None
        """The quota that its memory counts against; None until a broker that serves it is known."""
        self.is_queued = False
        """It is queued for delivery."""
        self.is_active = False
        """Something may still come of it, so it has a share of the read-ahead."""
        self.has_more = False
        """Its last response was as long as it could be."""
        self.counted_memory = 0
        """The memory it held when it was counted last (bytes)."""
        self.was_left_out = False
        """Its last response had no space for what the log has of it."""
        self._budget: ReadAheadBudget | None = None
        self._own_expansion: float | None = None
        self._max_wanted: int | None = None
        self._entries = EntrySizes()

    def assign(self, budget: ReadAheadBudget) -> None:
        """Take a share of this read-ahead while it is active."""
        self._budget = budget

    def join(self, quota: StreamQuota | None) -> None:
        """Count against another quota from now on."""
        if self.quota is not None:
            self.quota.left(self)
        self.quota = quota
        if quota is not None:
            quota.joined(self)

    def forget_fetches(self) -> None:
        """Forget what was learned of it: it is read from elsewhere."""
        self._own_expansion = self._max_wanted = None
        self._entries.forget()
        self.was_left_out = False
        if self.has_more:
            self._set_has_more(False)

    # ---- what it counts for ----

    def dequeued(self) -> None:
        """Note that it was removed from the queue for delivery."""
        self.is_queued = False
        if self.quota is not None:
            self.quota.dequeued()

    def recount(self, active: bool, memory: int, queued: bool) -> bool:
        """Count it as active or not, what it holds (bytes), and whether it was queued for delivery just now. Return
        whether it became active, or is not any more.

        Called once for each thing that happens, at its end. A response that ends a partition changes its rows, its tail
        and its state one after the other: to count each by itself would wake loops for memory that the next step takes
        again.
        """
        changed = active is not self.is_active
        if changed:
            self._set_active(active)
        if queued:
            self.is_queued = True
        if (quota := self.quota) is not None:
            quota.recounted(memory - self.counted_memory, queued)
        self.counted_memory = memory
        return changed

    def _set_active(self, active: bool) -> None:
        self.is_active = active
        if self._budget is not None:
            self._budget.partitions += 1 if active else -1
        if self.quota is not None:
            if active:
                self.quota.activated()
            else:
                self.quota.ended()

    def _set_has_more(self, value: bool) -> None:
        self.has_more = value
        if self.quota is not None:
            if value:
                self.quota.has_more()
            else:
                self.quota.has_no_more()

    # ---- what it requests ----

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

    def wanted_bytes(self, held: int) -> int:
        """Return how many bytes it may request, as far as its own share goes, while it holds `held` bytes of memory."""
        budget, quota = self._budget, self.quota
        assert budget is not None
        limits = budget.limits
        usual = limits.usual_fetch_bytes if quota is None else quota.scheduler.fetch_size.bytes
        if largest := self._entries.largest:  # rather one entry more than one less
            usual = min(usual + largest, limits.fetch_bytes)
        size = bytes_to_request(held, self._observed_expansion(), budget.share, limits, usual)
        if self._own_expansion is None and not self.was_left_out:
            return min(size, limits.first_fetch_bytes)
        if self._max_wanted is not None:
            size = min(size, max(self._max_wanted, limits.min_bytes))
        return self._entries.whole(size)

    def received(self, size: int, requested: int, next_entry: int = 0, *, left_out: bool = False) -> None:
        """Learn from the length of a response (bytes): a partition that had less than was asked for wants little more
        next time, and one that had nothing the least. One that was left out has more, however little it requested. And
        from `next_entry`, the size of an entry of which a part came (bytes; 0: none)."""
        self._entries.observe(next_entry)
        self.was_left_out = left_out
        is_full = left_out or size >= requested
        self._max_wanted = None if is_full else 2 * size
        if is_full is not self.has_more:
            self._set_has_more(is_full)

    def observe_expansion(self, memory: int, used: int) -> None:
        """Remember how much memory a number of bytes of the log became."""
        if memory and used > 0:
            self._own_expansion = expansion = memory / (used if used > MIN_OBSERVED_BYTES else MIN_OBSERVED_BYTES)
            if self.quota is not None:
                self.quota.observe_expansion(expansion)
