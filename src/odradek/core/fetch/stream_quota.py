"""The memory of the partitions of one broker that one stream delivers: who holds it, and who waits for it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from odradek.core.fetch.read_ahead import ReadAheadBudget, decaying_maximum, expected_expansion

if TYPE_CHECKING:
    from odradek.core.fetch.cursor import Cursor, CursorFetch
    from odradek.core.fetch.quota_share import QuotaShare
    from odradek.core.fetch.scheduler import FetchScheduler

__all__ = ["StreamQuota"]


class StreamQuota:
    """Quota of the partitions of one broker that one stream delivers, with the queue of those waiting to be fetched.

    `held` and `reserved` are bytes of memory: what is buffered, and what requests in flight are expected to become.
    `deliverable` partitions are queued for delivery, and `active` ones may still get something. The last response of
    `partitions_with_more` was full. `pending_decompress` groups of responses wait for space to be decompressed. `full`
    means that the last partition that wanted to request found no space. Nobody but the quota writes these; each event
    changes:

        joined, left            +, - active, deliverable, partitions_with_more, held: what the share counts for
        activated, ended        +, - active
        dequeued                - deliverable
        has_more, has_no_more   +, - partitions_with_more
        recounted               + held, and deliverable if it was queued; it may end `full` (`freed`)
        reserve, released       +, - reserved, for each fetch once, whoever waits for its result
        decompress_waits, _ends +, - pending_decompress
        grant, grant_poll       `full` begins or ends
        block                   `full` begins
        try_unblock             `full` ends
    """

    def __init__(self, budget: ReadAheadBudget, scheduler: FetchScheduler) -> None:
        self.budget, self.scheduler = budget, scheduler
        self.ready: OrderedDict[Cursor, None] = OrderedDict()
        """Cursors that wait to be fetched. One that is not READY any more, or counts elsewhere, is ignored."""
        self.polled: dict[CursorFetch, None] = {}
        """The fetches of its quiet partitions that are part of every long poll in a session, until they have a result.
        They reserve nothing each: `for_polls` is for what one poll brings."""
        self.for_polls = 0
        """Memory that nothing else may use while there are quiet partitions (bytes)."""
        self.allowance = 0
        """The memory they may hold together, as of `refresh` (bytes)."""
        self.active = self.deliverable = self.partitions_with_more = 0
        self.held = self.reserved = self.pending_decompress = 0
        self.full = False
        self.expansion: float | None = None
        """The expansion to expect of a partition of which nothing was fetched yet."""

    # ---- what happens to its partitions ----

    def joined(self, share: QuotaShare) -> None:
        """Count a partition from now on."""
        self._count_share(share, 1)

    def left(self, share: QuotaShare) -> None:
        """Count a partition no more. The memory that its fetch has reserved stays reserved until `released`."""
        self._count_share(share, -1)

    def _count_share(self, share: QuotaShare, sign: int) -> None:
        self.held += sign * share.counted_memory
        self.deliverable += sign * share.is_queued
        self.partitions_with_more += sign * share.has_more
        self.active += sign * share.is_active

    def activated(self) -> None:
        """Note that something may come of one more partition."""
        self.active += 1

    def ended(self) -> None:
        """Note that nothing more will come of a partition."""
        self.active -= 1

    def dequeued(self) -> None:
        """Note that a partition was removed from the queue for delivery."""
        self.deliverable -= 1

    def has_more(self) -> None:
        """Note that the last response of a partition was full, and that of before was not."""
        self.partitions_with_more += 1

    def has_no_more(self) -> None:
        """Note that the last response of a partition was not full, and that of before was."""
        self.partitions_with_more -= 1

    def recounted(self, change: int, queued: bool) -> None:
        """Note by how many bytes what a partition holds has changed, and whether it was queued for delivery just now.
        Wake those who wait for memory."""
        self.held += change
        self.deliverable += queued
        if self.full or self.pending_decompress:
            self.freed()

    def observe_expansion(self, expansion: float) -> None:
        """Remember what one byte of a partition became."""
        if expansion != self.expansion:
            self.expansion = decaying_maximum(self.expansion, expansion)

    # ---- fetches ----

    @property
    def free(self) -> int:
        return self.allowance - self.held - self.reserved - (self.for_polls if self.polled else 0)

    def refresh(self) -> None:
        """Update the allowance to the number of partitions there are now."""
        self.allowance = self.budget.allowance(self.active)

    def grant(self, size: int, expansion: float) -> int:
        """Return how many of `size` bytes may be requested now; 0: the quota is full."""
        fits = int(self.free / expansion)
        if fits >= size:
            return size
        min_bytes = self.budget.limits.min_bytes
        if fits >= max(min_bytes, size // 2):
            return fits
        self.full = bool(self.deliverable or self.reserved)
        return 0 if self.full else min(size, min_bytes)

    def grant_poll(self) -> int:
        """Return how many bytes a long poll of its quiet partitions may bring now; 0: the quota is full. At most a
        quarter of the memory is for polls, since it is for them all the time."""
        self.refresh()
        limits, expansion = self.budget.limits, expected_expansion(self.expansion)
        size = max(min(limits.usual_fetch_bytes, int(self.allowance / 4 / expansion)), limits.min_bytes)
        self.for_polls = int(size * expansion)
        if self.free >= 0:
            return size
        self.full = bool(self.deliverable or self.reserved)
        return 0 if self.full else limits.min_bytes

    def reserve(self, memory: int) -> None:
        """Keep memory free for the result of a fetch (bytes)."""
        self.reserved += memory

    def released(self, memory: int) -> None:
        """End what `reserve` began: the result is there, or will never be. The count that follows wakes the tasks that
        wait for memory (`recounted`, `freed`)."""
        self.reserved -= memory

    def block(self) -> None:
        """Fetch no more for it until there is space."""
        self.full = True

    def try_unblock(self) -> bool:
        """Return True if it is not full, or not any more: a useful request fits, or nothing is left that could make
        space."""
        if self.full:
            useful = min(self.budget.limits.response_bytes, self.allowance // 4)
            self.full = self.free < useful and bool(self.deliverable or self.reserved)
        return not self.full

    # ---- decompression in threads ----

    @property
    def can_decompress(self) -> bool:
        """True if earlier decompressed records have left space, or no delivery will make any."""
        return self.free >= 0 or not self.deliverable

    def decompress_waits(self) -> None:
        """Note that a group of responses waits for space: `freed` wakes it."""
        self.pending_decompress += 1

    def decompress_ends(self) -> None:
        """Note that a group of responses is decompressed, or nobody wants it any more."""
        self.pending_decompress -= 1

    def freed(self) -> None:
        """Memory was released: wake those who wait for it."""
        if self.full and self.try_unblock():
            self.scheduler.callbacks.work()
        if self.pending_decompress and self.can_decompress:
            self.scheduler.callbacks.space()
