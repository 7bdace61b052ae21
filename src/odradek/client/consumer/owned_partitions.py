"""The partitions that a consumer owns: what its group gives it, takes from it, and how far they are processed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio

from odradek import arguments
from odradek.client.consumer.callbacks import RebalanceCallbacks
from odradek.client.consumer.positions import resolve_positions
from odradek.core.fetch.cursor import Cursor
from odradek.core.fetch.progress import PartitionProgress
from odradek.core.interfaces import Assignment, ProtocolDriver, RoutingTable
from odradek.core.states import CONSUMER, ConsumerEvent, ConsumerState, OwnershipEvent, OwnershipState
from odradek.io.notifier import Notifier
from odradek.types import AtTime, Position, PositionSpec, StartPosition, TopicPartition

if TYPE_CHECKING:
    from odradek.client.consumer.committer import Committer
    from odradek.client.consumer.each import HandlerPool
    from odradek.client.consumer.fetcher import Fetcher
    from odradek.client.consumer.group_batches import GroupStream

__all__ = ["OwnedPartitions"]

log = logging.getLogger("odradek.consumer")


class OwnedPartitions:
    """The partitions that a consumer owns now, and the state of the consumer. Its membership calls it: implements
    `core.interfaces.RebalanceListener`.

    Args:
        driver: The cluster.
        group: Name of the group, for log lines.
        start: Where a partition begins without a committed position.
        revoke_within: How long a rebalance waits for records that are being processed (s).
    """

    fetcher: Fetcher
    streams: Sequence[GroupStream]
    committer: Committer
    callbacks: RebalanceCallbacks

    def __init__(self, driver: ProtocolDriver, group: str, start: PositionSpec | AtTime, revoke_within: float) -> None:
        self._driver, self._group, self._start, self._revoke_within = driver, group, start, revoke_within
        self.state = CONSUMER.start
        self.assignment: Mapping[TopicPartition, int] = {}
        """Each with the number of its stream."""
        self.begin_paused: set[TopicPartition] = set()
        """Those that the user pauses before they are fetched."""
        self.progress: dict[TopicPartition, PartitionProgress] = {}
        self.progress_changed = Notifier()
        self.pools: list[HandlerPool] = []
        """Of the calls of `each` that run now."""
        self.assigned = self.revoked = self.losses = 0
        """How often the group has given partitions, taken some in a rebalance, and removed this member."""
        self._compared: RoutingTable | None = None

    def transition(self, event: ConsumerEvent) -> None:
        """Change the state of the consumer."""
        self.state = CONSUMER.after(self.state, event)

    # ---- positions -------------------------------------------------------------------------------------------

    def is_delivered(self, partition: TopicPartition) -> bool:
        """Return True if a partition is owned, and is not being revoked."""
        progress = self.progress.get(partition)
        return progress is not None and progress.state is OwnershipState.OWNED

    def restart(self, partition: TopicPartition, position: Position | None) -> None:
        """Count what is done of a partition from another position on, in the topic that there is now."""
        topic_id = self._driver.metadata.table.topic_id(partition.topic)
        self.progress[partition] = self.progress[partition].restart(position, topic_id)

    async def on_position_resolved(self, partition: TopicPartition, position: Position) -> None:
        """Continue the group at the position that the broker named (EARLIEST or LATEST, or out of range)."""
        if self.is_delivered(partition):
            self.restart(partition, position)
            await self.committer.commit_or_log("of a new position", [partition])

    def on_out_of_range(self, partition: TopicPartition) -> None:
        """Commit nothing of what was delivered before the new position is known."""
        if (progress := self.progress.get(partition)) is not None:
            progress.log_gone = True

    def on_truncated(self, partition: TopicPartition, end: Position) -> None:
        """Commit nothing behind the end of a truncated log before what is written there next is processed."""
        if (progress := self.progress.get(partition)) is not None:
            progress.truncate(end)

    def compare_topics(self) -> None:
        """Use the topics that there are now: nothing is committed of one that was deleted and made again."""
        table = self._driver.metadata.table
        if table is not self._compared:
            self._compared = table
            for partition, progress in self.progress.items():
                progress.compare_topic(table.topic_id(partition.topic))

    def pass_over(self, partitions: Iterable[TopicPartition]) -> None:
        """Let the positions of these go past what is not delivered, such as the ends of transactions."""
        cursors = self.fetcher.cursors
        for partition in partitions:
            cursor, progress = cursors.get(partition), self.progress.get(partition)
            if cursor is not None and progress is not None and (position := cursor.nothing_before) is not None:
                progress.pass_over(position)

    # ---- the group: core.interfaces.RebalanceListener --------------------------------------------------------

    async def assign(self, assignment: Assignment) -> None:
        """Begin to deliver partitions, in addition to those that are delivered already."""
        if self.state is ConsumerState.LEAVING or self.fetcher.failure is not None:
            return  # decided before the membership was told to end, which releases them
        self.assigned += bool(assignment.partitions)
        committed = assignment.committed
        topic_id = self._driver.metadata.table.topic_id
        added = {
            p: PartitionProgress(committed.get(p), committed.get(p), topic_id(p.topic)) for p in assignment.partitions
        }
        self.progress.update(added)
        self.assignment = {**self.assignment, **assignment.partitions}
        chosen = await self.callbacks.assigned(added)
        if chosen is None:
            return
        self.callbacks.lost([p for p in added if p not in self.progress])  # meanwhile
        starts = self._begin_at({p: chosen.get(p) for p in added if self.is_delivered(p)})
        await self._resolve({p: at for p, at in starts.items() if not isinstance(at, int)})
        self.transition(ConsumerEvent.ASSIGN)
        delivered = {p: self.progress[p] for p in starts if self.is_delivered(p)}  # not lost meanwhile
        self.fetcher.add(
            Cursor(
                p,
                starts[p] if progress.position is None else progress.position,
                stream=assignment.partitions[p],
                topic_id=progress.topic_id,
            )
            for p, progress in delivered.items()
        )
        self.fetcher.pause("user", self.begin_paused & delivered.keys())  # no request is made before the next step
        self.begin_paused -= delivered.keys()

    def _begin_at(self, chosen: Mapping[TopicPartition, StartPosition | None]) -> dict[TopicPartition, StartPosition]:
        """Return where partitions begin: as the user chose, at the committed position, or where such ones begin that
        have none."""
        starts: dict[TopicPartition, StartPosition] = {}
        for partition, start in chosen.items():
            if start is not None:
                self.restart(partition, Position(start) if isinstance(start, int) else None)
            position = self.progress[partition].position
            starts[partition] = (self._start if start is None else start) if position is None else position
        return starts

    async def _resolve(self, unknown: Mapping[TopicPartition, StartPosition]) -> None:
        """Resolve where partitions begin, as far as brokers answer: the fetcher asks again for the others."""
        committed = self.fetcher.settings.decoder.read_committed
        resolved, _ = await resolve_positions(self._driver, unknown, read_committed=committed)  # type: ignore[arg-type]
        for partition, position in resolved.items():
            if self.is_delivered(partition):
                progress = self.progress[partition]
                progress = self.progress[partition] = progress.restart(position, progress.topic_id)
                progress.compare_topic(self._driver.metadata.table.topic_id(partition.topic))

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Stop delivering these, wait for their records being processed, commit. Others are delivered without a pause.

        Bounded by `revoke_within`, the user's callback and one commit.
        """
        self.revoked += bool(partitions)
        self.stop_delivery(partitions)
        within = self._revoke_within
        if self.callbacks.before_release:
            # Handlers of `each` end by themselves, and the callback comes after that. Batches in hand may be what the
            # user is about to finish.
            began = anyio.current_time()
            await self._finish(partitions, self._is_handled, within)
            within = max(0.0, began + within - anyio.current_time())
            await self.callbacks.revoked(partitions)
        await self._finish(partitions, self._is_idle, within)
        await self.committer.commit_or_log("before release", partitions)
        self.clear(partitions, OwnershipEvent.RELEASE)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Stop at once: the session expired, others own these partitions, and nothing may be committed."""
        self.losses += bool(partitions)
        self.transition(ConsumerEvent.EXPIRE)
        self.stop_delivery(partitions)
        for pool in self.pools:
            pool.cancel(partitions)
        self.committer.abort()
        self.clear(partitions, OwnershipEvent.LOSE)
        self.progress_changed.notify()
        self.callbacks.lost(partitions)

    # ---- giving up ------------------------------------------------------------------------------------------

    def stop_delivery(self, partitions: Collection[TopicPartition]) -> None:
        """Deliver nothing more of these, and hand nothing more of them to handlers."""
        for partition in partitions:
            if (progress := self.progress.get(partition)) is not None:
                progress.apply(OwnershipEvent.REVOKE)
        for stream in self.streams:
            stream.take_back(partitions)
        self.pass_over(partitions)
        self.fetcher.remove(partitions)
        for pool in self.pools:
            pool.drop(partitions)

    def clear(self, partitions: Collection[TopicPartition], event: OwnershipEvent) -> None:
        """Forget partitions: marks no longer count."""
        for partition in partitions:
            if (progress := self.progress.pop(partition, None)) is not None:
                progress.apply(event)
        self.begin_paused &= self.progress.keys()
        self.assignment = {p: stream for p, stream in self.assignment.items() if p in self.progress}

    async def _finish(
        self,
        partitions: Collection[TopicPartition],
        is_finished: Callable[[Collection[TopicPartition]], bool],
        within: float,
    ) -> None:
        """Wait until that is so of these partitions. Cancel their handlers when most of the time (s) is over."""
        if await self._wait_until(partitions, is_finished, 0.8 * within):
            return
        log.warning(
            "%s: slow: consumer %s still processes records of %s: the rebalance waits %.3g s more, then other "
            "members get them, too",
            self._group,
            self.committer.membership.consumer_id,
            self._processed_now(partitions),
            0.2 * within,
        )
        for pool in self.pools:
            pool.cancel(partitions)
        if not await self._wait_until(partitions, is_finished, 0.2 * within):
            log.warning("%s: rebalance continues without %s", self._group, self._processed_now(partitions))

    async def _wait_until(
        self,
        partitions: Collection[TopicPartition],
        is_finished: Callable[[Collection[TopicPartition]], bool],
        seconds: float,
    ) -> bool:
        """Wait until that is so of these. Returns False if that takes longer than `seconds`."""
        deadline = anyio.current_time() + seconds
        while True:
            version = self.progress_changed.version
            if is_finished([p for p in partitions if p in self.progress]):
                return True
            left = deadline - anyio.current_time()
            if left <= 0:
                return False
            await self.progress_changed.wait(version, left)

    def _is_handled(self, partitions: Collection[TopicPartition]) -> bool:
        return not any(pool.busy(partitions) for pool in self.pools)

    def _is_idle(self, partitions: Collection[TopicPartition]) -> bool:
        """Return True if no record of these is being processed."""
        return self._is_handled(partitions) and not any(self.progress[p].in_hand for p in partitions)

    def _processed_now(self, partitions: Collection[TopicPartition]) -> str:
        """Return which of these have records that are being processed, in words."""
        return arguments.listed([p for p in partitions if p in self.progress and self.progress[p].in_hand])
