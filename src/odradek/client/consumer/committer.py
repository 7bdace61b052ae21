"""Commits of a group consumer: one at a time, always the latest positions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import anyio

from odradek.client.consumer import committed
from odradek.client.consumer.observation import ReaderObservation
from odradek.core.fetch.progress import DeliveredSpan, PartitionProgress
from odradek.core.interfaces import NO_METADATA, Membership
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
        observation: Told of every commit.
    """

    def __init__(
        self,
        group: str,
        progress: Mapping[TopicPartition, PartitionProgress],
        membership: Membership,
        mark_current: Callable[[], None],
        changed: Notifier,
        observation: ReaderObservation | None = None,
    ) -> None:
        self._group, self._progress, self._mark_current = group, progress, mark_current
        self.membership, self._changed = membership, changed
        self._observation = observation
        self._one_at_a_time = anyio.Lock()
        self._outcomes_known = True  # of all commits so far
        self._stored_all_at = math.inf  # when all positions were stored, and not only those that had moved
        self._scope: anyio.CancelScope | None = None
        self.commits = self.failed_commits = 0

    async def commit(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, Position]:
        """Store and return the positions of some partitions, or of all; nothing if `abort` is called meanwhile.

        Cancellation: they may be stored or not; the next commit stores what is right then.
        """
        async with self._one_at_a_time:
            self._mark_current()
            chosen = self._progress
            if partitions is not None:
                chosen = {p: self._progress[p] for p in self._progress.keys() & set(partitions)}
            now = anyio.current_time()
            again = partitions is None and now - self._stored_all_at >= committed.STORED_AGAIN_S
            due: dict[TopicPartition, Position] = {}
            texts: dict[TopicPartition, str] = {}
            for partition, progress in chosen.items():
                if (position := progress.to_commit_again if again else progress.to_commit) is not None:
                    due[partition] = position
                    if progress.text is not None and progress.text[0] == position:
                        texts[partition] = progress.text[1]
            stored = await self._store(due, texts) if due else {}
            if again or self._stored_all_at == math.inf:
                self._stored_all_at = now
            return stored

    async def commit_at(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str]
    ) -> dict[TopicPartition, Position]:
        """Store and return these positions, with texts for some of them. What is before them counts as done.

        Raises:
            GroupError: A partition is not assigned, or its topic was deleted and made again. Nothing is stored.
            UsageError: Transactions store the positions of a partition. Nothing is stored.
        """
        async with self._one_at_a_time:
            self._mark_current()
            chosen = {p: self._owned(p) for p in positions}
            if not chosen:
                return {}
            stored = await self._store(positions, metadata)
            for partition, position in stored.items():
                chosen[partition].process_until(position)
            self._changed.notify()
            return stored

    async def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Position | None]:
        """Return the stored positions, while none are being stored."""
        async with self._one_at_a_time:
            return await self.membership.committed(partitions)

    def _owned(self, partition: TopicPartition) -> PartitionProgress:
        progress = self._progress.get(partition)
        if progress is None or not progress.counts:
            why = "not assigned to this member" if progress is None else "of a topic that was deleted and made again"
            raise GroupError(f"{self._group}: {partition} is {why}: not committed")
        if progress.stored_by_transactions:
            raise UsageError(f"{self._group}: {partition}: its position is stored by transactions: not committed")
        return progress

    async def _store(
        self, due: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str] = NO_METADATA
    ) -> dict[TopicPartition, Position]:
        chosen = {partition: self._progress[partition] for partition in due}
        # Until the response says so, nothing counts as stored: the commit may be cancelled, or have no response.
        for progress in chosen.values():
            progress.committed = None
        outcomes_known, self._outcomes_known = self._outcomes_known, False
        with anyio.CancelScope() as self._scope:
            await self._request(due, metadata)
        if self._scope.cancelled_caught:
            return {}
        self._outcomes_known = True
        for partition, position in due.items():
            text = metadata.get(partition)
            chosen[partition].text = None if text is None else (position, text)
        # One of unknown outcome may still be on its way on another connection, and replace this one: the next
        # commit stores these positions again.
        for partition in due if outcomes_known else ():
            chosen[partition].committed = due[partition]
        return {**due}

    async def _request(
        self, positions: Mapping[TopicPartition, Position], metadata: Mapping[TopicPartition, str]
    ) -> None:
        commit = self.membership.commit
        try:
            if self._observation is None:
                await commit(positions, metadata)
            else:
                await self._observation.commit(commit, positions, metadata)
        except OdradekError:
            self.failed_commits += 1
            raise
        self.commits += 1

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
                stored = await self.commit()
            except OdradekError as error:
                if works:
                    log.warning("%s: commits fail: %s; retrying", self._group, error)
                works = False
            else:
                if stored and not works:  # with nothing to store, as after the partitions were lost, it says nothing
                    log.warning("%s: commits are succeeding again", self._group)
                works = works or bool(stored)

    # ---- by transactions: core.interfaces.ConsumerPositions --------------------------------------------------

    async def after(self, spans: Collection[tuple[TopicPartition, DeliveredSpan]]) -> Mapping[TopicPartition, Position]:
        """Return the positions to store so that these spans are done (see `ConsumerPositions`)."""
        async with self._one_at_a_time:  # a commit that includes them may have begun before they were marked
            self._mark_current()
            positions = {}
            for partition in {partition for partition, _ in spans}:
                progress = self._progress.get(partition)
                own = {span for where, span in spans if where == partition}
                if progress is None or not all(span.counts for span in own):
                    why = "given to another member, moved by seek, or its topic was deleted and made again"
                    raise GroupError(f"{self._group}: {partition} was {why}")
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
