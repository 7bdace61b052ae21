"""Commits of a group consumer: one at a time, always the latest positions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

import anyio

from odradek.core.fetch.progress import PartitionProgress
from odradek.errors import OdradekError
from odradek.types import Position, TopicPartition

__all__ = ["Committer"]

log = logging.getLogger("odradek.consumer")


class Committer:
    """Stores the positions up to which records are done.

    Args:
        group: Name of the group, for log lines.
        progress: Progress of the partitions that are assigned now; the caller changes it.
        store: Stores positions, fenced by the session that owns the partitions.
        mark_current: Called before positions are collected: marks what counts as done by now.
    """

    def __init__(
        self,
        group: str,
        progress: Mapping[TopicPartition, PartitionProgress],
        store: Callable[[Mapping[TopicPartition, Position]], Awaitable[None]],
        mark_current: Callable[[], None],
    ) -> None:
        self._group, self._progress, self._store, self._mark_current = group, progress, store, mark_current
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
                await self._store(due)
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

    def abort(self) -> None:
        """End the commit in progress: its session has expired."""
        if self._scope is not None:
            self._scope.cancel()
