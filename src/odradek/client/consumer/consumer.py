"""The group consumer.

    async with k.consumer("orders", group="billing") as c:
        async for batch in c.batches(max_records=500, max_wait=0.2):
            for record in batch: ...
            batch.done()                    # only what is marked done is ever committed

What is committed is the end of the contiguous run of records that were done, never what was merely delivered: every
record is delivered at least once. The marks are stored in the background, the latest one, one commit in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, Self

import anyio

from odradek.client.consumer.base import PartitionReaderBase
from odradek.client.consumer.each import HandlerOptions, HandlerPool
from odradek.client.consumer.fetch_settings import fetch_settings
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.group_batches import GroupBatch, GroupStream, GroupTable
from odradek.client.consumer.positions import resolve_positions
from odradek.client.consumer.streams import ArrowTables, Batches
from odradek.client.options import Tuning
from odradek.core.backoff import Backoff
from odradek.core.fetch.cursor import Cursor
from odradek.core.fetch.progress import PartitionProgress
from odradek.core.interfaces import Assignment, Membership, OffsetStore, ProtocolDriver, Subscription
from odradek.core.states import CONSUMER, ConsumerEvent, ConsumerState
from odradek.errors import ConfigError, DeadlineError, OdradekError
from odradek.io.notifier import Notifier
from odradek.types import EARLIEST, Columns, MiB, Position, PositionSpec, Record, StartPosition, TopicPartition

__all__ = ["Consumer"]

log = logging.getLogger("odradek.consumer")

MANY = 1000
"""So many batches of one partition without a commit in between are worth a line in the log."""


class Consumer(PartitionReaderBase):
    """A member of a consumer group. Made by `Cluster.consumer`; used as `async with`.

    Entering joins the group and returns with the first assignment (which may be empty). Iterate it for records, or
    `batches()` for batches, `arrow()` for Arrow tables, or let `each` call a handler. By record, the record in hand
    counts as done when the next one is asked for, and when the block ends without an exception. By batch and by table,
    when `done()` is called.

    A rebalance stops delivery first, then waits for what is in hand, commits, and only then releases partitions.
    Afterwards marks for what was in hand count for nothing. After an expired session nothing is committed: everything
    since the last commit is delivered again.

    Leaving the block stops fetching, commits, and leaves the group, within `exit_within`; what fails then is raised
    unless the block raises something itself. Whatever kills a background task is raised from the iteration.

    Cancelling a wait moves nothing: a record is lost by no cancellation.

    Args:
        era: The cluster.
        topics: Topic names, or how many streams for each.
        include: Instead of topics: a regular expression (Java's and Python's common ground) of topics.
        exclude: Instead of topics: all topics but those.
        group: Name of the group.
        start: Where a partition begins for which the group has no position (auto.offset.reset). That place is stored
            like a position, so that the next owner begins there too.
        reset: Where a partition goes on whose position the log no longer has: `start` (as above), a place, or
            `fail`, which raises BrokerError OffsetOutOfRange. The new position is stored at once.
        streams: How many streams for each topic; see `streams`.
        read_ahead_bytes: Bytes of memory for what is read before it is asked for. One fetch in flight and the batches
            in hand come on top.
        commit_every: How often marks are stored (s); None: only by `commit`, at rebalances and at the end.
        revoke_within: How long a rebalance waits for what is in hand (s). Other members give up claiming partitions
            after 8 s by Scala's defaults (4 attempts, 2 s apart: specification 6.2).
        join_within: How long entering waits for the first assignment (s).
        exit_within: How long leaving may take (s).
        consumer_id: A fixed name for this member; None makes a unique one.
        corrupt: As for the reader: `fail`, `skip` or `raw`.
        max_message_bytes: A message larger than this raises MessageTooLarge (bytes).
        dead_letter_producer: Makes the producer for `each(dead_letter=...)`.
        tuning: For experts.
    """

    def __init__(
        self,
        driver: ProtocolDriver,
        topics: str | Iterable[str] | Mapping[str, int] | None = None,
        *,
        group: str,
        include: str | None = None,
        exclude: str | None = None,
        start: PositionSpec = EARLIEST,
        reset: PositionSpec | Literal["start", "fail"] = "start",
        streams: int = 1,
        read_ahead_bytes: int = 64 * MiB,
        commit_every: float | None = 1.0,
        revoke_within: float = 3.0,
        join_within: float = 60.0,
        exit_within: float = 10.0,
        consumer_id: str | None = None,
        corrupt: str = "fail",
        max_message_bytes: int = 4 * MiB,
        dead_letter_producer: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        if streams < 1:
            raise ConfigError(f"a consumer needs at least one stream, not {streams}")
        settings = fetch_settings(
            tuning or Tuning(),
            read_ahead_bytes=read_ahead_bytes,
            corrupt=corrupt,
            max_message_bytes=max_message_bytes,
            reset=start if reset == "start" else reset,
            long_poll=driver.long_poll,
        )
        counts = _streams_by_topic(topics, streams)
        self._subscription = Subscription(group, counts, include, exclude, streams, consumer_id)
        self._start, self._commit_every, self._dead_letter_producer = start, commit_every, dead_letter_producer
        self._revoke_within, self._join_within, self._exit_within = revoke_within, join_within, exit_within
        self._ahead = read_ahead_bytes
        self._state = CONSUMER.start
        self._assignment = Assignment(0, {}, {})
        self._progress: dict[TopicPartition, PartitionProgress] = {}
        self._marks = Notifier()
        self._commit_scope: anyio.CancelScope | None = None
        self._ended = Notifier()
        self._handlers: list[HandlerPool] = []
        self._life: anyio.CancelScope
        self._committing: anyio.Lock
        self._membership: Membership
        self._offsets: OffsetStore
        fetcher = Fetcher(driver, settings, on_resolved=self._found)
        self._stream = GroupStream(fetcher, self._hand_out)
        self.streams = tuple(
            GroupStream(fetcher, self._hand_out, number=n) for n in range(max((counts or {"": streams}).values()))
        )
        """The streams: each iterates over its own share of the partitions (`async for`, `batches`), for a task of its
        own. Iterating over the consumer itself takes from all of them."""
        super().__init__(driver, fetcher, [self._stream, *self.streams])

    # ---- iterating ------------------------------------------------------------------------------------------

    def __aiter__(self) -> GroupStream:
        """Records, one by one."""
        return self._stream

    async def __anext__(self) -> Record:
        return await self._stream.__anext__()

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> Batches[GroupBatch]:
        """Iterate by batch, each of one partition; call `done()` on each.

        Args:
            max_records: Most records of a batch; None: as many as came together.
            max_wait: With `max_records`: how long a batch may wait to be filled after its first record (s).
        """
        return self._stream.batches(max_records=max_records, max_wait=max_wait)

    def arrow(self, *, max_bytes: int = 16 * MiB, max_wait: float = 0.0) -> ArrowTables[GroupTable]:
        """Iterate by Arrow table, each of any number of partitions, in order within each; call `done()` on each.

            async for batch in c.arrow():
                write(batch.table)
                batch.done()

        `odradek.arrow` says what is in a table. Needs pyarrow (`odradek[arrow]`).

        Args:
            max_bytes: Most payload of a table (bytes); a single message that is larger makes a table of its own.
            max_wait: How long a table may wait to be filled after its first row (s); 0: what is there makes a table.

        Raises:
            ConfigError: There is no pyarrow, or `max_bytes` is no room.
        """
        return self._stream.arrow(max_bytes=max_bytes, max_wait=max_wait)

    async def each(
        self,
        handle: Callable[[Record], Awaitable[object]],
        *,
        parallel: int = 100,
        order: Literal["key", "partition", "none"] = "partition",
        key: Callable[[Record], object] | None = None,
        retries: int = 0,
        backoff: Backoff | None = None,
        dead_letter: str | None = None,
    ) -> None:
        """Call `handle` for every record, many at a time, until cancelled. Commits stay contiguous.

        A rebalance drops what was not begun, waits for handlers that run, and cancels those that take too long.

        Args:
            handle: A coroutine function. It may be cancelled, and called again for the same record.
            parallel: How many run at a time.
            order: What is kept in order: records of one `key`, of one `partition`, or nothing.
            key: What the key of a record is; None: its own. Kafka 0.7 has none, so there `order="key"` needs this.
            retries: How often a handler that raised is called again.
            backoff: Between these calls.
            dead_letter: Topic for records whose handler still raised; None: each() ends and raises that error.

        Raises:
            Unsupported: `order="key"` and the records have no keys.
            Exception: What `handle` raised. Its record and those after it count as not processed.
        """
        options = HandlerOptions(parallel, order, key, retries, backoff or Backoff(), dead_letter)
        work = HandlerPool(
            handle, options, self._fetcher, self._progress_of, self._marks, self._ahead, self._revoke_within
        )
        self._handlers.append(work)
        try:
            await work.run(self._dead_letter_producer)
        finally:
            self._handlers.remove(work)

    def _hand_out(self, partition: TopicPartition, columns: Columns) -> GroupBatch:
        progress = self._progress[partition]
        span = progress.hand_out(Position(columns.next_positions[-1]))
        if progress.outstanding == MANY:
            log.warning("%s: %d batches and the first is still not done(): nothing is committed", partition, MANY)
        return GroupBatch(partition, columns, span, self._marks)

    def _progress_of(self, partition: TopicPartition) -> PartitionProgress:
        return self._progress[partition]

    # ---- what it is and has ---------------------------------------------------------------------------------

    @property
    def assignment(self) -> Mapping[TopicPartition, int]:
        """The partitions of this member now, each with its stream's number."""
        return self._assignment.partitions

    @property
    def state(self) -> ConsumerState:
        return self._state

    @property
    def consumer_id(self) -> str:
        """Its name in the group. Known inside the block."""
        return self._membership.consumer_id

    def __repr__(self) -> str:
        return f"<Consumer of {self._subscription.group} {self._state.name} {len(self.assignment)} partitions>"

    def seek(self, partition: TopicPartition, start: StartPosition) -> None:
        """Go on from `start`, for the whole group: the next commit stores it. Marks for what was handed out before
        count for nothing any more.

        Raises ConfigError for a partition that is not assigned to this member.
        """
        super().seek(partition, start)
        progress = self._progress[partition]
        self._progress[partition] = progress.restart(Position(start) if isinstance(start, int) else None)

    # ---- commits --------------------------------------------------------------------------------------------

    async def commit(self) -> dict[TopicPartition, Position]:
        """Store what is done, now. Returns what was stored; raises what ZooKeeper said, and then it is tried again with
        the next commit. A record in hand (iterating by record) is not done yet.

        Cancellation: what was on its way may be stored or not, which is safe either way.
        """
        self._fetcher.check()
        return await self._commit()

    async def _commit(self) -> dict[TopicPartition, Position]:
        async with self._committing:
            for stream in (self._stream, *self.streams):
                stream.reach()
            due = {p: at for p, progress in self._progress.items() if (at := progress.to_commit) is not None}
            if not due:
                return {}
            with anyio.CancelScope() as self._commit_scope:
                await self._offsets.commit(due)
            if self._commit_scope.cancelled_caught:  # lost() in between
                return {}
            for partition in due.keys() & self._progress.keys():
                self._progress[partition].committed = due[partition]
            return due

    async def _commit_quietly(self, when: str) -> bool:
        try:
            await self._commit()
        except OdradekError as error:
            log.warning("%s: commit %s failed: %s", self._subscription.group, when, error)
            return False
        return True

    async def _commit_marks(self, every: float) -> None:
        """The latest marks, now and then. One line in the log when it begins to fail, and one when it works again."""
        works = True
        while True:
            await anyio.sleep(every)
            try:
                await self._commit()
            except OdradekError as error:
                if works:
                    log.warning("%s: commits fail: %s; trying again", self._subscription.group, error)
                works = False
            else:
                if not works:
                    log.warning("%s: commits work again", self._subscription.group)
                works = True

    async def _found(self, partition: TopicPartition, position: Position) -> None:
        """The broker named a position (start by meaning, or out of range): the group goes on from there."""
        if (progress := self._progress.get(partition)) is not None:
            self._progress[partition] = progress.restart(position)
            await self._commit_quietly("of a new position")

    # ---- the group: core.interfaces.Listener ----------------------------------------------------------------

    async def assign(self, assignment: Assignment) -> None:
        wanted = {p: self._start for p in assignment.partitions if assignment.committed.get(p) is None}
        found, _ = await resolve_positions(self._driver, wanted)  # those that fail are asked for again by the fetcher
        positions = {p: found.get(p, assignment.committed.get(p)) for p in assignment.partitions}
        self._assignment = assignment
        self._progress = {p: PartitionProgress(at, assignment.committed.get(p)) for p, at in positions.items()}
        self._on(ConsumerEvent.ASSIGN)
        self._fetcher.add(
            Cursor(p, self._start if at is None else at, stream=assignment.partitions[p]) for p, at in positions.items()
        )

    async def revoke(self) -> None:
        """Stop delivering, wait for what is in hand, commit. Bounded by `revoke_within` and one commit."""
        self._on(ConsumerEvent.REVOKE)
        self._stop_delivery()
        if not await self._hands_free(0.8 * self._revoke_within):
            for work in self._handlers:
                work.cancel()
            if not await self._hands_free(0.2 * self._revoke_within):
                held = [str(p) for p, progress in self._progress.items() if progress.in_hand]
                log.warning("%s: rebalance goes on without %s", self._subscription.group, ", ".join(held))
        await self._commit_quietly("before release")
        self._disown()
        self._on(ConsumerEvent.RELEASE)

    def lost(self) -> None:
        """The session expired: the partitions are somebody else's, and nothing may be committed."""
        self._on(ConsumerEvent.EXPIRE)
        self._stop_delivery()
        for work in self._handlers:
            work.cancel()
        if self._commit_scope is not None:
            self._commit_scope.cancel()
        self._disown()

    def _stop_delivery(self) -> None:
        for stream in (self._stream, *self.streams):
            stream.take_back(tuple(self._progress))
        self._fetcher.clear()
        for work in self._handlers:
            work.drop()

    async def _hands_free(self, seconds: float) -> bool:
        """Wait until nobody works on anything of ours."""
        deadline = anyio.current_time() + seconds
        while any(p.in_hand for p in self._progress.values()) or any(work.busy for work in self._handlers):
            left = deadline - anyio.current_time()
            if left <= 0:
                return False
            await self._marks.wait(self._marks.count, left)
        return True

    def _disown(self) -> None:
        for progress in self._progress.values():
            progress.live = False
        self._progress = {}
        self._assignment = Assignment(self._assignment.generation, {}, {})

    def _on(self, event: ConsumerEvent) -> None:
        self._state = CONSUMER.after(self._state, event)

    # ---- coming and going -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Join the group. Raises Unsupported when the cluster has no groups, GroupError when the partitions cannot be
        had, DeadlineError after `join_within`."""
        self._membership = self._driver.membership(self._subscription)
        self._offsets = self._driver.offsets(self._subscription.group)
        self._life, self._committing = anyio.CancelScope(), anyio.Lock()
        self._on(ConsumerEvent.ENTER)
        await self._fetcher.__aenter__()
        self._fetcher.spawn(self._be_a_member)
        if self._commit_every is not None:
            self._fetcher.spawn(self._commit_marks, self._commit_every)
        try:
            await self._joined()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def _joined(self) -> None:
        deadline = anyio.current_time() + self._join_within
        while self._assignment.generation == 0:
            version = self._fetcher.available.version
            self._fetcher.check()
            if anyio.current_time() >= deadline:
                raise DeadlineError(f"joining group {self._subscription.group}", self._join_within)
            await self._fetcher.available.wait(version, deadline - anyio.current_time())

    async def _be_a_member(self) -> None:
        try:
            with self._life:
                await self._membership.run(self)
        except Exception:
            self._on(ConsumerEvent.DIE)
            raise
        finally:
            self._ended.ring()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop fetching, commit, leave. Cancellation: none, bounded by `exit_within`."""
        self._fetcher.close()
        self._stop_delivery()
        if kind is None:  # control came back: the record in hand is done
            for stream in (self._stream, *self.streams):
                stream.finish_current()
        errors: list[Exception] = []
        self._on(ConsumerEvent.EXIT)
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self._exit_within) as budget:
                await self._leave(errors)
        await self._fetcher.__aexit__(kind, error, trace)
        self._disown()
        self._on(ConsumerEvent.LEFT)
        if budget.cancelled_caught:
            errors.append(DeadlineError(f"leaving group {self._subscription.group}", self._exit_within))
        if self._fetcher.failure is not None and not self._fetcher.failure_seen:
            errors.insert(0, self._fetcher.failure)
        if errors and kind is None:
            raise errors[0]
        for late in errors:
            log.warning("%s: while leaving: %s", self._subscription.group, late)

    async def _leave(self, errors: list[Exception]) -> None:
        self._life.cancel()
        if not self._ended.count:
            await self._ended.wait(0)
        for step in (self._commit, self._membership.leave):
            try:
                await step()
            except OdradekError as error:
                errors.append(error)


def _streams_by_topic(topics: str | Iterable[str] | Mapping[str, int] | None, streams: int) -> Mapping[str, int] | None:
    if topics is None or isinstance(topics, Mapping):
        return None if topics is None else dict(topics)
    return dict.fromkeys((topics,) if isinstance(topics, str) else topics, streams)
