"""The consumer of a share group: several members read the same partitions, and acknowledge record by record.

    async with k.share_consumer("jobs", group="workers") as c:
        async for record in c:
            await handle(record)            # accepted when the next one is asked for

A record that is not accepted is delivered again, to any member, until it was delivered as often as the group allows
(group.share.delivery.count.limit, 5 by default). There is no order, and there are no positions to commit (KIP-932).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from types import TracebackType
from typing import Self, Unpack

import anyio

from odradek import arguments
from odradek.batch import Batch
from odradek.client.consumer.observation import ReaderObservation
from odradek.client.options import DRIVER, ShareConsumerOptions, Tuning
from odradek.client.tasks import ShieldedTaskGroup
from odradek.core.interfaces import AckType, AcquiredBatch, ProtocolDriver, ShareGroup, ShareSubscription
from odradek.errors import DeadlineError, GroupError, OdradekError, UsageError
from odradek.types import Position, Record, TopicPartition

__all__ = ["ShareBatch", "ShareBatches", "ShareConsumer", "ShareRecord"]

log = logging.getLogger("odradek.consumer")

DEFAULT_RECORDS = 500
"""About how many records a request acquires, unless `max_records` says so exactly."""


class ShareRecord(Record):
    """A record that this member has acquired. The lock on it lasts for group.share.record.lock.duration.ms, 30 s by
    default.

    The acknowledgements return False if they have no effect: the lock has expired, its broker was lost, or an
    acknowledgement was sent before. Such a record is delivered again.

    Attributes:
        delivery_count: How often it was delivered to any member, this time included.
    """

    delivery_count: int
    _batch: ShareBatch

    @property
    def is_acknowledged(self) -> bool:
        """True once it was accepted, released or rejected."""
        return self._batch.is_acknowledged(self.position)

    def accept(self) -> bool:
        """Acknowledge it as processed."""
        return self._batch.acknowledge(self.position, AckType.ACCEPT)

    def release(self) -> bool:
        """Give it back, to be delivered again, unless that was tried as often as the group allows."""
        return self._batch.acknowledge(self.position, AckType.RELEASE)

    def reject(self) -> bool:
        """Acknowledge it as impossible to process: it is never delivered again."""
        return self._batch.acknowledge(self.position, AckType.REJECT)

    def renew(self) -> bool:
        """Renew its lock, which lasts as long again from now on. Raises Unsupported before Kafka 4.2."""
        return self._batch.acknowledge(self.position, AckType.RENEW)


class ShareBatch(Batch):
    """Records of one partition that were acquired together. Iterate it for `ShareRecord`.

    Attributes:
        delivery_counts: How often each record was delivered, this time included.
    """

    __slots__ = ("_acknowledge", "_open", "delivery_counts")

    def __init__(self, acquired: AcquiredBatch) -> None:
        super().__init__(acquired.partition, acquired.columns)
        self.delivery_counts, self._acknowledge = acquired.delivery_counts, acquired.acknowledge
        self._open = set(acquired.columns.positions)

    def __iter__(self) -> Iterator[ShareRecord]:
        for row, count in zip(super().__iter__(), self.delivery_counts, strict=True):
            record: ShareRecord = tuple.__new__(ShareRecord, row)
            record.delivery_count, record._batch = count, self
            yield record

    def accept(self) -> bool:
        """Acknowledge every record that has no acknowledgement as processed. Returns False if that has no effect on
        some: they are delivered again."""
        return self._acknowledge_open(AckType.ACCEPT)

    def release(self) -> bool:
        """Give back every record that has no acknowledgement. Returns False like `accept`."""
        return self._acknowledge_open(AckType.RELEASE)

    def renew(self) -> bool:
        """Renew the lock of every record that has no acknowledgement. Returns False like `accept`. Raises
        Unsupported before Kafka 4.2."""
        return self._acknowledge_open(AckType.RENEW)

    def is_acknowledged(self, position: Position) -> bool:
        """Return True once a record was accepted, released or rejected."""
        return position not in self._open

    def acknowledge(self, position: Position, kind: AckType) -> bool:
        """Acknowledge one record."""
        if kind is not AckType.RENEW:
            self._open.discard(position)
        return self._acknowledge(position, kind)

    def _acknowledge_open(self, kind: AckType) -> bool:
        counts = [self.acknowledge(Position(position), kind) for position in sorted(self._open)]
        return all(counts)


class ShareConsumer:
    """A member of a share group. Made by `Cluster.share_consumer`; used as `async with`, once.

    Entering joins the group. Iterate it for records, or `batches()` for batches. With `acknowledge="implicit"` a record
    (a batch) without an acknowledgement is accepted when the next one is asked for, and when the block ends without an
    exception. With "explicit" nothing is: what is not acknowledged is delivered again once its lock has expired.

    Acknowledgements are sent in the background, with the next request to the broker; `commit` waits for their answers.
    Leaving the block sends them, releases everything else at once, and leaves the group, within `exit_within`.

    Records are acquired only while a caller waits for them. Cancelling a wait never loses records.

    Args:
        driver: The cluster.
        topics: Topic names.
    """

    @arguments.with_options(ShareConsumerOptions)
    def __init__(
        self, driver: ProtocolDriver, topics: str | Iterable[str], **options: Unpack[ShareConsumerOptions]
    ) -> None:
        chosen: ShareConsumerOptions = arguments.resolve(ShareConsumerOptions, options)
        DRIVER("driver", driver)
        tuning, limit = chosen["tuning"] or Tuning(), chosen["max_records"]
        self._subscription = ShareSubscription(
            chosen["group"],
            _topics(topics),
            DEFAULT_RECORDS if limit is None else limit,
            limit is not None,
            tuning.fetch_bytes,
            chosen["max_message_bytes"],
        )
        self._implicit = chosen["acknowledge"] == "implicit"
        self._join_within, self._exit_within = chosen["join_within"], chosen["exit_within"]
        self._group: ShareGroup = driver.share_group(self._subscription)
        self._background = ShieldedTaskGroup(failed=lambda error: None)  # the calls of the group raise it
        self._observation: ReaderObservation | None = None
        if driver.observer is not None:
            self._observation = ReaderObservation(driver.observer, chosen["group"], 0, read_committed=False)
        self._entered = False
        self._records: Iterator[ShareRecord] = iter(())
        self._current: ShareRecord | ShareBatch | None = None  # what was delivered last

    def __repr__(self) -> str:
        return f"<ShareConsumer of {self._subscription.group}, {len(self.assignment)} partitions>"

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member reads now; others may read them, too."""
        return self._group.assignment

    @property
    def member_id(self) -> str:
        """The name of this member in its group."""
        return self._group.member_id

    # ---- iterating ----

    def __aiter__(self) -> Self:
        """Iterate by record."""
        return self

    async def __anext__(self) -> ShareRecord:
        """Wait for the next record. Cancellation: safe.

        Raises:
            CorruptMessage, MessageTooLarge: A record cannot be read. It was released; after as many deliveries as the
                group allows it is not delivered again.
            BrokerError: A partition cannot be read, for example for want of rights.
            Unsupported, TransportError: The member has ended.
        """
        self._accept_current()
        while (record := next(self._records, None)) is None:
            self._records = iter(await self._next_batch())
        self._current = record
        return record

    def batches(self) -> ShareBatches:
        """Iterate by batch, each of one partition. Raises like the iteration by record."""
        return ShareBatches(self._next_current_batch)

    async def _next_current_batch(self) -> ShareBatch:
        self._accept_current()
        self._current = batch = await self._next_batch()
        return batch

    async def _next_batch(self) -> ShareBatch:
        if not self._entered:
            raise UsageError(f"{self!r} is used outside of its `async with` block")
        acquired = await self._group.next_batch()
        if self._observation is not None:
            self._observation.delivered(acquired.partition, acquired.columns)
        return ShareBatch(acquired)

    def _accept_current(self) -> None:
        """Accept the record or batch that was delivered last, as far as it has no acknowledgement."""
        current, self._current = self._current, None
        if not self._implicit or current is None:
            return
        if isinstance(current, ShareBatch) or not current.is_acknowledged:
            current.accept()

    async def commit(self) -> None:
        """Send all acknowledgements made so far, and wait for the answers of the brokers. Cancellation: safe; they are
        sent all the same.

        Raises:
            GroupError: Some have no effect, since the last call: those records are delivered again. Says how many, of
                which partitions.
        """
        await self._group.flush()

    # ---- entering and leaving ----

    async def __aenter__(self) -> Self:
        """Join the group. Cancellation: safe.

        Raises:
            Unsupported: The cluster has no share groups.
            GroupError, DeadlineError: The member has not joined within `join_within`.
            UsageError: This consumer was entered before.
        """
        if self._entered:
            raise UsageError("this share consumer was entered before: make another one for another block")
        self._entered = True
        await self._background.start()
        self._background.spawn(self._group.run)
        try:
            await self._wait_until_joined()
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def _wait_until_joined(self) -> None:
        with anyio.move_on_after(self._join_within):
            await self._group.wait_until_joined()
        if not self._group.has_joined:
            group, problem = self._subscription.group, self._group.problem
            if problem:
                raise GroupError(f"share group {group}: not joined within {self._join_within:g} s: {problem}")
            raise DeadlineError(f"joining share group {group}", self._join_within)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send the acknowledgements, release everything else, and leave the group, within `exit_within`, also when the
        block was cancelled.

        Cancellation while it runs: not by anyio's scopes and trio; a native `Task.cancel` is raised once it has left.
        Another one ends that, too, and the group keeps the member until its session has timed out.

        Raises:
            GroupError: Acknowledgements that have no effect, unless the block raises an exception itself.
            DeadlineError: Leaving took too long; what was acquired is delivered again when its locks have expired.
        """
        if kind is None:
            self._accept_current()
        deadline = anyio.current_time() + self._exit_within
        try:
            with anyio.CancelScope(shield=True):
                leaving = await self._leave(deadline)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._leave(deadline)
            raise
        finally:
            await self._background.stop()
        if leaving is not None and kind is None:
            raise leaving
        if leaving is not None and leaving is not error:
            log.warning("share group %s: while leaving: %s", self._subscription.group, leaving)

    async def _leave(self, deadline: float) -> OdradekError | None:
        """Leave within the time limit; return what went wrong."""
        try:
            with anyio.fail_after(deadline - anyio.current_time()):
                await self._group.leave()
                await self._group.flush()
        except TimeoutError:
            return DeadlineError(f"leaving share group {self._subscription.group}", self._exit_within)
        except OdradekError as error:
            return error
        return None


class ShareBatches:
    """The batches of a share consumer, as an asynchronous iterator. Cancelling a wait loses nothing."""

    def __init__(self, next_batch: Callable[[], Awaitable[ShareBatch]]) -> None:
        self._next_batch = next_batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ShareBatch:
        return await self._next_batch()


_TOPIC = arguments.text("a topic name")


def _topics(topics: object) -> frozenset[str]:
    """Return topic names. Raises TypeError or ConfigError for anything else."""
    if isinstance(topics, str):
        return frozenset((_TOPIC("topics", topics),))
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        arguments.wrong_type("topics", topics, "a topic name, or several")
    names = frozenset(_TOPIC("topics", name) for name in topics)
    if not names:
        arguments.wrong_value("topics", topics, "a topic name, or several")
    return names
