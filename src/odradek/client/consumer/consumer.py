"""The group consumer.

    async with k.consumer("orders", group="billing") as c:
        async for batch in c.batches(max_records=500, max_wait=0.2):
            for record in batch: ...
            batch.done()                    # only what is marked done is ever committed

The end of the contiguous run of done records is committed, never what was merely delivered: every record is delivered
at least once. Positions are stored in the background, one commit at a time, always the latest ones.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, Unpack, cast

import anyio

from odradek import arguments
from odradek.client.consumer.base import PartitionReaderBase
from odradek.client.consumer.callbacks import RebalanceCallbacks
from odradek.client.consumer.committed import check_partitions, split_positions
from odradek.client.consumer.committer import Committer
from odradek.client.consumer.each import HANDLER, HandlerPool
from odradek.client.consumer.fetch_settings import fetch_settings
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.group_batches import GroupBatch, GroupStream, GroupTable
from odradek.client.consumer.owned_partitions import OwnedPartitions
from odradek.client.consumer.statistics import ConsumerStatistics
from odradek.client.consumer.streams import ArrowTables, Batches
from odradek.client.options import DRIVER, ConsumerOptions, HandlerArguments, Tuning
from odradek.core.interfaces import Membership, ProtocolDriver, Subscription
from odradek.core.states import ConsumerEvent, ConsumerState, OwnershipEvent
from odradek.errors import ConfigError, DeadlineError, GroupError, OdradekError
from odradek.io.notifier import Notifier
from odradek.types import Columns, CommittedPosition, MiB, Position, Record, StartPosition, TopicPartition

__all__ = ["Consumer"]

log = logging.getLogger("odradek.consumer")

UNCOMMITTED_WARNING = 1000
"""Batches of one partition after one that is still not done, before a line in the log says so."""


class Consumer(PartitionReaderBase):
    """A member of a consumer group. Made by `Cluster.consumer`; used as `async with`, once.

    Entering joins the group and returns with the first assignment (which may be empty). Iterate it for records, or
    `batches()` for batches, `arrow()` for Arrow tables, or let `each` call a handler. By record, the current record
    counts as done when the next one is asked for, and when the block ends without an exception. By batch and by table,
    when `done()` is called.

    A rebalance interrupts only the partitions that move to another member: it stops delivering them, waits for their
    records that are being processed, commits, and then releases them. Calling `done()` on their batches afterwards has
    no effect. After an expired session nothing is committed: everything since the last commit is delivered again.

    Leaving the block stops fetching, commits, and leaves the group, within `exit_within`; an error is raised unless the
    block raises one itself. Partitions that could not be released in time are released in the background while the
    cluster is open. An error that ends a background task is raised from the iteration.

    Cancellation: cancelling a wait never loses records and never advances a position.

    Args:
        driver: The cluster.
        topics: Topic names, or topic -> number of streams.
    """

    @arguments.with_options(ConsumerOptions)
    def __init__(
        self,
        driver: ProtocolDriver,
        topics: str | Iterable[str] | Mapping[str, int] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        chosen: ConsumerOptions = arguments.resolve(ConsumerOptions, options)
        DRIVER("driver", driver)
        start, reset, streams = chosen["start"], chosen["reset"], chosen["streams"]
        settings = fetch_settings(
            chosen["tuning"] or Tuning(),
            read_ahead_bytes=chosen["read_ahead_bytes"],
            corrupt=chosen["corrupt"],
            max_message_bytes=chosen["max_message_bytes"],
            reset=start if reset == "start" else reset,
            isolation=chosen["isolation"],
            long_poll=driver.long_poll,
        )
        counts = _streams_by_topic(topics, streams)
        self._subscription = Subscription(
            chosen["group"],
            counts,
            chosen["include"],
            chosen["exclude"],
            streams,
            chosen["consumer_id"],
            chosen["assignors"],
            chosen["group_protocol"],
            chosen["commit_metadata"],
            chosen["revoke_within"] + _callback_time(chosen),
            chosen["max_blocked"],
        )
        self._start, self._commit_every = start, chosen["commit_every"]
        self._dead_letter_producer = chosen["dead_letter_producer"]
        self._revoke_within, self._join_within = chosen["revoke_within"], chosen["join_within"]
        self._exit_within, self._read_ahead_bytes = chosen["exit_within"], chosen["read_ahead_bytes"]
        self._membership_ended = Notifier()
        self._membership_scope: anyio.CancelScope
        self._membership: Membership = driver.membership(self._subscription)
        self._owned = owned = OwnedPartitions(driver, chosen["group"], start, self._revoke_within)
        self._progress = owned.progress
        fetcher = owned.fetcher = Fetcher(
            driver,
            settings,
            group=chosen["group"],
            on_table=lambda _: owned.compare_topics(),
            on_resolved=owned.on_position_resolved,
            on_out_of_range=owned.on_out_of_range,
            on_truncated=owned.on_truncated,
        )
        owned.callbacks = self._callbacks = RebalanceCallbacks(
            chosen["group"],
            on_assigned=chosen["on_assigned"],
            on_revoked=chosen["on_revoked"],
            on_lost=chosen["on_lost"],
            within=chosen["callback_within"],
            spawn=fetcher.spawn,
            failed=fetcher.fail,
        )
        self._committer = owned.committer = Committer(
            self._subscription.group,
            self._progress,
            self._membership,
            self._record_progress,
            owned.progress_changed,
            fetcher.observation,
        )
        self._stream = GroupStream(fetcher, self._deliver)
        self.streams = tuple(
            GroupStream(fetcher, self._deliver, number=n) for n in range(max((counts or {"": streams}).values()))
        )
        """The streams: each iterates over its own share of the partitions (`async for`, `batches`), for one task each.
        Iterating over the consumer itself takes from all of them."""
        owned.streams = (self._stream, *self.streams)
        super().__init__(driver, fetcher, [*owned.streams])

    # ---- iterating ------------------------------------------------------------------------------------------

    def __aiter__(self) -> GroupStream:
        """Iterate by record."""
        return self._stream

    async def __anext__(self) -> Record:
        return await self._stream.__anext__()

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> Batches[GroupBatch]:
        """Iterate by batch, each of one partition; call `done()` on each.

        Args:
            max_records: Maximum records per batch; None: as many as were decoded together.
            max_wait: With `max_records`: how long a batch may wait to be filled after its first record (s).
        """
        return self._stream.batches(max_records=max_records, max_wait=max_wait)

    def arrow(self, *, max_bytes: int = 16 * MiB, max_wait: float = 0.0) -> ArrowTables[GroupTable]:
        """Iterate by Arrow table, each of any number of partitions, in order within each; call `done()` on each.

            async for batch in c.arrow():
                write(batch.table)
                batch.done()

        `odradek.arrow` describes the columns. Needs pyarrow (`odradek[arrow]`).

        Args:
            max_bytes: Maximum payload of a table (bytes); a larger message makes a table of its own.
            max_wait: How long a table may wait to be filled after its first row (s); 0: not at all.

        Raises:
            ConfigError: pyarrow is not installed, or `max_bytes` is not positive.
        """
        return self._stream.arrow(max_bytes=max_bytes, max_wait=max_wait)

    @arguments.with_options(HandlerArguments)
    async def each(self, handle: Callable[[Record], Awaitable[object]], **options: Unpack[HandlerArguments]) -> None:
        """Call `handle` for every record, many at a time, until cancelled. Commits stay contiguous.

        A rebalance drops waiting records of the partitions it takes away, waits for their running handlers, and cancels
        those that take too long.

        When it ends, by an error or a cancellation, each partition continues at its first record that was not
        processed: a second `each()`, `batches()` or iteration in the same block gets it next. With `order="partition"`
        nothing is delivered twice by this.

        Args:
            handle: A coroutine function. It may be cancelled, and called again for the same record.

        Raises:
            Unsupported: `order="key"` and the records have no keys; or `retry_topics` and the cluster has no headers.
            ConfigError: A topic of `retry_topics` is not consumed.
            CorruptMessage: A record that cannot be decoded, and no `dead_letter` (or not `corrupt="raw"`).
            Exception: The error of `handle`. Its record and those after it count as not processed. A CancelledError
                that the handler raised although nothing cancelled it is raised as OdradekError.
        """
        chosen: HandlerArguments = arguments.resolve(HandlerArguments, options)
        for topic in chosen["retry_topics"]:
            if not self._subscription.selects(topic):
                raise ConfigError(f"retry_topics: {topic!r} is not consumed: name it among the consumer's topics")
        pool = HandlerPool(
            _HANDLER("handle", handle),
            chosen,
            self._fetcher,
            self._progress.__getitem__,
            self._owned.progress_changed,
            self._read_ahead_bytes,
            self._revoke_within,
        )
        self._owned.pools.append(pool)
        try:
            await pool.run(self._dead_letter_producer)
        finally:
            self._owned.pools.remove(pool)
            self._deliver_again(pool.unfinished())

    def _deliver(self, partition: TopicPartition, columns: Columns) -> GroupBatch:
        progress = self._progress[partition]
        span = progress.deliver(Position(columns.next_positions[-1]))
        if progress.outstanding == UNCOMMITTED_WARNING:
            log.warning(
                "%s: %d batches were delivered after one that is not done(): nothing is committed since",
                partition,
                UNCOMMITTED_WARNING,
            )
        return GroupBatch(partition, columns, span, self._owned.progress_changed, self._committer)

    def _deliver_again(self, records: Iterable[Record]) -> None:
        """Continue these partitions at their first record that is not processed: `records` were not."""
        self._owned.compare_topics()
        for record in records:
            if record.partition not in self._fetcher.cursors:
                continue  # revoked or lost
            progress = self._progress[record.partition]
            if progress.log_gone:
                continue  # its position is one in another log than the one that is read next
            position = record.position if progress.position is None else progress.position
            inside = record.inner_index if position == record.position else 0
            self._continue_at(record.partition, position, inside)
            self._owned.restart(record.partition, position)

    # ---- state ----------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> Mapping[TopicPartition, int]:
        """The partitions that this member owns now, each with its stream's number."""
        return self._owned.assignment

    @property
    def state(self) -> ConsumerState:
        return self._owned.state

    @property
    def consumer_id(self) -> str:
        """The name of this member in its group."""
        return self._membership.consumer_id

    def statistics(self) -> ConsumerStatistics:
        """Return `ConsumerStatistics`. It takes some microseconds for each partition; no request is sent."""
        return ConsumerStatistics(
            **self._counters(),
            assigned=self._owned.assigned,
            revoked=self._owned.revoked,
            lost=self._owned.losses,
            commits=self._committer.commits,
            failed_commits=self._committer.failed_commits,
        )

    def __repr__(self) -> str:
        return f"<Consumer of {self._subscription.group} {self.state.name} {len(self.assignment)} partitions>"

    def pause(self, *partitions: TopicPartition) -> None:
        """Neither fetch nor deliver these partitions until `resume`; without arguments: all of `assignment`. In
        `on_assigned`, its partitions begin paused. A partition that is given up forgets that it was paused.

        Raises ConfigError for a partition that is not assigned to this member.
        """
        fetched, others = self._fetched(partitions)
        self._owned.begin_paused |= others
        if fetched:
            super().pause(*fetched)

    def resume(self, *partitions: TopicPartition) -> None:
        """Continue with these partitions; without arguments: with all. Raises ConfigError like `pause`."""
        fetched, others = self._fetched(partitions)
        self._owned.begin_paused -= others
        if fetched:
            super().resume(*fetched)

    def _fetched(self, partitions: Sequence[TopicPartition]) -> tuple[list[TopicPartition], set[TopicPartition]]:
        """Return which of these, or of all, are fetched, and which are not: they are being assigned or revoked."""
        chosen = check_partitions(partitions) or list(self.assignment)
        others = {each for each in chosen if each in self.assignment and each not in self._fetcher.cursors}
        return [each for each in chosen if each not in others], others

    def seek(self, partition: TopicPartition, start: StartPosition) -> None:
        """Continue at `start`, for the whole group: the next commit stores it. Calling `done()` on batches delivered
        before has no effect.

        Raises ConfigError for a partition that is not assigned to this member, or that is being assigned:
        `on_assigned` returns where it begins.
        """
        if self._fetched([partition])[1]:
            raise ConfigError(f"{partition} is being assigned or revoked: on_assigned returns where a partition begins")
        super().seek(partition, start)
        self._owned.restart(partition, Position(start) if isinstance(start, int) else None)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, Position]:
        """Continue where the group's committed positions are, or at `start` where there are none; without arguments:
        with all partitions. What was delivered since is delivered again; `done()` on it has no effect.

        Returns:
            The committed positions. A partition that is revoked meanwhile is left out.

        Raises:
            ZooKeeperError, BrokerError, DeadlineError, TransportError: They could not be read, and nothing has changed.
            ConfigError: A partition is not assigned to this member.

        Cancellation: nothing has changed.
        """
        self._fetcher.check()
        committed = await self._committer.committed(self._chosen(partitions))
        known: dict[TopicPartition, Position] = {}
        for partition, position in committed.items():
            if partition in self._fetcher.cursors:
                self.seek(partition, self._start if position is None else position)
                known |= {} if position is None else {partition: position}
        return known

    # ---- commits --------------------------------------------------------------------------------------------

    async def commit(
        self, positions: Mapping[TopicPartition, Position | int | tuple[Position | int, str]] | None = None
    ) -> dict[TopicPartition, Position]:
        """Store the positions of everything done, now, and return them. The current record (iterating by record) is
        not done yet.

        Nothing is stored for partitions whose session expired meanwhile. After an error the positions are stored by
        the next commit.

        Args:
            positions: Store these instead: partition -> the position to continue at (`Record.next_position`,
                `Batch.next_position`), or that and a text to be stored with it, as `committed` returns. Everything
                before it counts as done from then on, whether it was delivered or not. Later commits never go back
                behind it; a position before what is done already is stored until the next one.

        Raises:
            ZooKeeperError, BrokerError, DeadlineError, TransportError: Positions that were not stored, and why.
            GroupError: The group gave the partitions to other members; or one of `positions` is not assigned.
            UsageError: Transactions store the position of one of `positions`.
            Unsupported: A text where only positions are stored (Kafka 0.7).
            TypeError, ConfigError: `positions` is no such mapping.

        Cancellation: positions being stored may be stored or not; either is safe.
        """
        if self._owned.state is not ConsumerState.LEAVING:  # `on_revoked` may commit then
            self._fetcher.check()
        if positions is None:
            return await self._committer.commit()
        chosen, metadata = split_positions(positions)
        self._owned.compare_topics()
        return await self._committer.commit_at(chosen, metadata)

    async def committed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedPosition | None]:
        """Return what the group has committed, with the texts stored with it; None where nothing ever was.

        Args:
            partitions: Any partitions; None: those that are assigned to this member.

        Raises:
            ZooKeeperError, BrokerError, DeadlineError, TransportError: They could not be read.
            TypeError, ConfigError: `partitions` has something else.

        Cancellation: safe.
        """
        chosen = check_partitions(self.assignment if partitions is None else partitions)
        return {**await self._driver.offsets(self._subscription.group).fetch_with_metadata(chosen)}

    def _record_progress(self) -> None:
        self._owned.compare_topics()
        for stream in self._owned.streams:
            stream.record_progress()
        self._owned.pass_over(self._progress)

    # ---- entering and leaving -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Join the group.

        Raises:
            GroupError: Partitions still belong to others after `join_within`; says whose.
            DeadlineError: There is no assignment after `join_within`.
            UsageError: This consumer was entered before.
        """
        self._enter_once()
        self._membership_scope = anyio.CancelScope()
        self._owned.transition(ConsumerEvent.ENTER)
        await self._fetcher.__aenter__()
        self._fetcher.spawn(self._run_membership)
        if self._commit_every is not None:
            self._fetcher.spawn(self._committer.run, self._commit_every)
        try:
            await self._wait_until_joined()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def _wait_until_joined(self) -> None:
        deadline = anyio.current_time() + self._join_within
        while self._owned.state is not ConsumerState.RUNNING:
            version = self._fetcher.available.version
            self._fetcher.check()
            left = deadline - anyio.current_time()
            if left <= 0:
                raise self._not_joined()
            await self._fetcher.available.wait(version, left)

    def _not_joined(self) -> OdradekError:
        group, problem = self._subscription.group, self._membership.problem
        if problem:
            return GroupError(f"group {group}: no partitions within {self._join_within:g} s: {problem}")
        return DeadlineError(f"joining group {group}", self._join_within)

    async def _run_membership(self) -> None:
        try:
            with self._membership_scope:
                observation = self._fetcher.observation
                listener = self._owned if observation is None else observation.listener(self._owned, self._membership)
                await self._membership.run(listener)
        except Exception:
            self._owned.transition(ConsumerEvent.DIE)
            raise
        finally:
            self._membership_ended.notify()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop fetching, commit, leave. Bounded by `exit_within`, also when the block was cancelled.

        Cancellation while it runs: not by anyio's scopes and trio; a native `Task.cancel` ends the step it interrupts
        and is raised after the others. Partitions that are not released then are released in the background.
        """
        if self._owned.state in (ConsumerState.LEAVING, ConsumerState.CLOSED):  # left already, by a call of this method
            await self._fetcher.__aexit__(kind, error, trace)
            return
        errors: list[Exception] = []
        begun = anyio.current_time()
        try:
            self._fetcher.close()
            self._owned.stop_delivery(tuple(self._progress))
            if kind is None:  # the block ended in order: its current record is done
                for stream in self._owned.streams:
                    stream.finish_current()
            self._owned.transition(ConsumerEvent.EXIT)
            await self._leave(errors)
        finally:
            try:
                await self._fetcher.__aexit__(kind, error, trace)
            finally:
                self._owned.stop_delivery(tuple(self._progress))  # also of what was assigned during the exit
                self._owned.clear(tuple(self._progress), OwnershipEvent.RELEASE)
                self._owned.transition(ConsumerEvent.LEFT)
                if (observation := self._fetcher.observation) is not None:
                    observation.left(begun)
        if self._fetcher.failure is not None and not self._fetcher.failure_seen:
            errors.insert(0, self._fetcher.failure)
        if errors and kind is None:
            raise errors[0]
        for late in errors:
            log.warning("%s: while leaving: %s", self._subscription.group, late)

    async def _leave(self, errors: list[Exception]) -> None:
        """Commit and release, within one budget. Every step is made, even if its time is over: then it only begins,
        and the membership releases the rest in the background."""
        deadline = anyio.current_time() + self._exit_within
        self._callbacks.close()
        async with AsyncExitStack() as stack:  # every step, also when a native cancellation ends one of them
            stack.push_async_callback(self._step, errors, deadline, self._membership.leave)
            stack.push_async_callback(self._step, errors, deadline, self._committer.commit)
            stack.push_async_callback(self._step, errors, deadline, self._callbacks.revoked)
            stack.push_async_callback(self._step, errors, deadline, self._await_membership)
            stack.callback(self._membership_scope.cancel)
            await self._step(errors, deadline, self._callbacks.drain)  # which the membership may be waiting for
        if anyio.current_time() >= deadline:
            errors.insert(
                0, DeadlineError(f"leaving group {self._subscription.group}{self._left()}", self._exit_within)
            )

    async def _step(self, errors: list[Exception], deadline: float, step: Callable[[], Awaitable[object]]) -> None:
        with anyio.CancelScope(shield=True), anyio.CancelScope(deadline=deadline):
            try:
                await step()
            except OdradekError as error:
                errors.append(error)

    def _left(self) -> str:
        """Return in words what is left to be done."""
        uncommitted = [p for p, progress in self._progress.items() if progress.to_commit is not None]
        parts = [f"positions of {len(uncommitted)} partitions not stored"] if uncommitted else []
        if self._membership.problem:
            parts.append(self._membership.problem)
        return f" ({'; '.join(parts)})" if parts else ""

    async def _await_membership(self) -> None:
        while not self._membership_ended.version:
            await self._membership_ended.wait(0)


def _callback_time(chosen: ConsumerOptions) -> float:
    """Return how much longer a rebalance may take because of the user's functions (s): the call that is being made when
    it begins, and the one for the partitions that are given up."""
    functions = [chosen["on_assigned"], chosen["on_revoked"] or chosen["on_lost"]]
    return chosen["callback_within"] * sum(function is not None for function in functions)


_TOPIC = arguments.text("a topic name")
_STREAMS = arguments.mapping(_TOPIC, arguments.count(at_most=10_000), "a mapping of topics to numbers of streams")
_HANDLER = arguments.function(HANDLER)


def _streams_by_topic(topics: object, streams: int) -> Mapping[str, int] | None:
    """Return the number of streams of each topic. Raises TypeError or ConfigError for anything else."""
    if topics is None:
        return None
    if isinstance(topics, Mapping):
        return cast(dict[str, int], _STREAMS("topics", topics))
    if isinstance(topics, str):
        topics = (topics,)
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        arguments.wrong_type("topics", topics, "a topic name, several, or a mapping of topics to numbers of streams")
    return {_TOPIC("topics", name): streams for name in topics}
