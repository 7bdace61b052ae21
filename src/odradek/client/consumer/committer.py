"""Commits of a group consumer: one at a time, always the latest positions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

import anyio

from odradek.core.fetch.progress import DeliveredSpan, PartitionProgress
from odradek.core.interfaces import Membership
from odradek.errors import GroupError, OdradekError, UsageError
from odradek.io.notifier import Notifier
from odradek.types import Position, TopicPartition

__all__ = ["Committer"]

log = logging.getLogger("odradek.consumer")


class Committer:
    """Stores the positions up to which records are done, or says which ones a transaction is to store.

    Args:
        group: Name of the group, for log lines.
        progress: Progress of the partitions that are assigned now; the caller changes it.
        membership: Stores positions, fenced by the session that owns the partitions.
        mark_current: Called before positions are collected: marks what counts as done by now.
        changed: Notified when a transaction has marked records as done.
    """

    def __init__(
        self,
        group: str,
        progress: Mapping[TopicPartition, PartitionProgress],
        membership: Membership,
        mark_current: Callable[[], None],
        changed: Notifier,
    ) -> None:
        self._group, self._progress, self._mark_current = group, progress, mark_current
        self.membership, self._changed = membership, changed
        self._one_at_a_time = anyio.Lock()
        self._scope: anyio.CancelScope | None = None

    async def commit(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, Position]:
        """Store and return the positions of some partitions, or of all; nothing if `abort` is called meanwhile."""
        async with self._one_at_a_time:
            self._mark_current()
            chosen = self._progress.keys() if partitions is None else self._progress.keys() & set(partitions)
            due = {p: at for p in chosen if (at := self._progress[p].to_commit) is not None}
            if not due:
                return {}
            with anyio.CancelScope() as self._scope:
                await self.membership.commit(due)
            if self._scope.cancelled_caught:
                return {}
            for partition in due.keys() & self._progress.keys():
                self._progress[partition].committed = due[partition]
            return due

    async def commit_or_log(self, when: str, partitions: Collection[TopicPartition]) -> None:
        """Store positions; an error is only logged, with `when` it happened."""
        try:
            await self.commit(partitions)
        except OdradekError as error:
            log.warning("%s: commit %s failed: %s", self._group, when, error)

    async def run(self, every: float) -> None:
        """Store all positions every so often (s). Logs when that begins to fail, and when it succeeds again."""
        works = True
        while True:
            await anyio.sleep(every)
            try:
                await self.commit()
            except OdradekError as error:
                if works:
                    log.warning("%s: commits fail: %s; retrying", self._group, error)
                works = False
            else:
                if not works:
                    log.warning("%s: commits are succeeding again", self._group)
                works = True

    # ---- by transactions: core.interfaces.ConsumerPositions --------------------------------------------------

    async def after(self, spans: Collection[tuple[TopicPartition, DeliveredSpan]]) -> Mapping[TopicPartition, Position]:
        """Return the positions to store so that these spans are done (see `ConsumerPositions`)."""
        async with self._one_at_a_time:  # a commit that includes them may have begun before they were marked
            positions = {}
            for partition in {partition for partition, _ in spans}:
                progress = self._progress.get(partition)
                own = {span for where, span in spans if where == partition}
                if progress is None or not all(span.counts for span in own):
                    raise GroupError(f"{self._group}: {partition} was given to another member, or moved by seek")
                position = progress.position_after(own)
                if position is None:
                    raise UsageError(
                        f"{self._group}: {partition}: an earlier batch is not done: a transaction has to include it"
                    )
                positions[partition] = position
            return positions

    def stored(
        self, spans: Collection[tuple[TopicPartition, DeliveredSpan]], positions: Mapping[TopicPartition, Position]
    ) -> None:
        """Mark spans as done whose positions are stored (see `ConsumerPositions`)."""
        for partition, span in spans:
            if span.counts:
                self._progress[partition].committed = positions[partition]
                span.done()
        self._changed.notify()

    def abort(self) -> None:
        """End the commit in progress: its session has expired."""
        if self._scope is not None:
            self._scope.cancel()
