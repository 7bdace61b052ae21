"""Records between the producer's front door and its brokers: room, batches, senders, outcomes."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import anyio

from odradek.client.producer.results import Ack, BufferWaiter, BufferWaiters, Failed, Failures, PendingSend
from odradek.client.producer.sender import Sender, SenderOptions
from odradek.client.tasks import ShieldedTaskGroup
from odradek.core.interfaces import ProducerRecord, ProtocolDriver, RoutingTable
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.batch import AccumulatorLimits, FlushWaiter, ProduceBatch, TopicQueues, as_record
from odradek.core.produce.partitioners import Partitioner
from odradek.errors import Closed, DeliveryError, NotWritten, OdradekError, OutcomeUnknown
from odradek.io.transport import on_asyncio
from odradek.types import Position, TopicPartition

__all__ = ["Dispatcher"]

UNUSED = Closed("the producer is used as `async with`, and not outside of it")


class Dispatcher:
    """What a producer is made of, behind its methods. `start`, then anything else, then `stop`, in one task.

    Args:
        era: The cluster.
        limits: For the accumulator.
        options: For the senders.
        partitioner: Index or None for a record.
    """

    def __init__(
        self, driver: ProtocolDriver, limits: AccumulatorLimits, options: SenderOptions, partitioner: Partitioner
    ) -> None:
        self.failures = Failures()
        self.accepted = self.written = self.failed = 0
        self.refusal: Exception | None = UNUSED
        self.dead: Exception | None = None
        self.room = BufferWaiters()
        self.accumulator = Accumulator(
            limits, partitioner, random.Random().randrange, driver.record_bytes, driver.metadata.table, self._stir
        )
        self.senders: dict[int, Sender] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.threads: anyio.CapacityLimiter
        """For compression: as many as there are cores."""
        self._stirred: dict[Sender, None] | None = None  # who is to be pumped at once, instead of soon
        self._driver, self._limits, self._options = driver, limits, options
        self._clock = time.monotonic
        self._flushes: dict[FlushWaiter, anyio.Event] = {}
        self._background = ShieldedTaskGroup(self.die)

    async def start(self) -> None:
        if self.refusal is not UNUSED:
            raise Closed("a producer is used once: make another")
        self.loop = asyncio.get_running_loop() if on_asyncio() else None
        self.threads = anyio.CapacityLimiter(os.cpu_count() or 1)
        await self._background.start()
        self.accumulator.route(self._driver.metadata.table)
        self.spawn(self._follow_table)
        self.spawn(self._expire)
        self.refusal = None

    async def stop(self, within: float) -> None:
        """Flush for so many seconds, out of reach of scopes around it; what is left then is given up."""
        self._refuse(Closed("the producer has exited"))
        try:
            with anyio.move_on_after(within, shield=True):
                await self.flush()
        finally:
            self._give_up(f"not delivered within the {within:g} s of exit_within")
            await self._background.stop()

    def check_open(self) -> None:
        """Raise why no records are taken, if so."""
        if self.refusal is not None:
            raise Closed(str(self.refusal)) from self.refusal.__cause__

    # ---- records in ----------------------------------------------------------------------------------------

    def topic(self, name: str, compression: str) -> TopicQueues:
        """A topic seen for the first time. Its records wait here until its partitions are known."""
        topic = self.accumulator.topic(name, compression)
        self.spawn(self._learn, topic)
        return topic

    def offer(
        self,
        topic: TopicQueues,
        size: int,
        record: bytes | ProducerRecord,
        partition: TopicPartition | None,
        call: PendingSend | None,
    ) -> bool:
        """Take a record in, if there is room and nobody waits for it."""
        if self.room or not self.accumulator.fits(size):
            return False
        self._append(topic, size, record, partition, call)
        return True

    def offer_now(
        self,
        topic: TopicQueues,
        size: int,
        record: bytes | ProducerRecord,
        partition: TopicPartition | None,
        call: PendingSend,
    ) -> bool:
        """As `offer`, and an idle broker is sent it in this very step: a caller who waits for its outcome is saved a
        turn of the loop. What comes in before the answer travels together."""
        self._stirred = {}
        try:
            return self.offer(topic, size, record, partition, call)
        finally:
            self._pump()

    def offer_run(
        self,
        topic: TopicQueues,
        values: Sequence[object],
        start: int,
        max_row: int,
        partition: TopicPartition | None,
        call: PendingSend,
    ) -> int:
        """Take in what there is room for, and send what is due: see `Accumulator.extend`."""
        if self.room:
            return start
        self._stirred = {}
        try:
            end = self.accumulator.extend(topic, values, start, max_row, self._clock(), partition, call)
            self.accepted += end - start
            call.left += end - start
        finally:
            self._pump()
        return end

    def _pump(self) -> None:
        stirred, self._stirred = self._stirred, None
        for sender in stirred or ():
            sender.pump()

    async def wait_for_room(self, waiter: BufferWaiter) -> None:
        """Until the record is taken in, in turn. Cancellation: either it was, or nothing happened."""
        self.room.join(waiter)
        try:
            with anyio.move_on_after(self._limits.deliver_within):
                await waiter.event.wait()
        finally:
            self.room.leave(waiter)
            self._grant()  # whoever came next may fit where this one did not
        if waiter.error is not None:
            raise waiter.error
        if not waiter.taken:
            self.check_open()
            raise NotWritten(
                [as_record(waiter.record)], f"no room in the buffer within {self._limits.deliver_within:g} s"
            )

    def _append(
        self,
        topic: TopicQueues,
        size: int,
        record: bytes | ProducerRecord,
        partition: TopicPartition | None,
        call: PendingSend | None,
    ) -> None:
        self.accumulator.append(topic, record, size, self._clock(), partition, call)
        self.accepted += 1
        if call is not None:
            call.left += 1

    def _grant(self) -> None:
        """Take in those who wait for room, in their order, as many as fit."""
        while (waiter := self.room.first()) is not None and self.accumulator.fits(waiter.size):
            self.room.leave(waiter)
            try:
                self._append(waiter.topic, waiter.size, waiter.record, waiter.partition, waiter.call)
                waiter.taken = True
            except Exception as error:  # the partitioner is the user's
                waiter.error = error
            waiter.event.set()

    def _refuse(self, why: Exception) -> None:
        self.refusal = why
        while (waiter := self.room.first()) is not None:
            self.room.leave(waiter)
            waiter.event.set()

    # ---- records out ---------------------------------------------------------------------------------------

    def _stir(self, broker: int) -> None:
        sender = self.senders.get(broker)
        if sender is None:
            sender = Sender(broker, self.accumulator, self._driver, self._options, self, self._clock)
            self.senders[broker] = sender
            self.spawn(sender.run)
        if self._stirred is None:
            sender.wake()
        else:
            self._stirred[sender] = None

    def spawn(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """See `sender.Owner`."""
        self._background.spawn(task, *args)

    def settle(
        self,
        batch: ProduceBatch,
        error: DeliveryError | None,
        position: Position | None = None,
        confirmed: bool = False,
    ) -> None:
        """See `sender.Owner`."""
        self.accumulator.settle(batch)
        partition = batch.lane.partition
        if error is not None:
            self._lose(batch, error)
        elif partition is not None:
            self._count(batch, partition, position, confirmed)
        if self.room:
            self._grant()
        if self._flushes:
            for flush in [flush for flush in self._flushes if not flush.left]:
                self._flushes.pop(flush).set()

    def _count(
        self, batch: ProduceBatch, partition: TopicPartition, position: Position | None, confirmed: bool
    ) -> None:
        self.written += len(batch)
        for start, stop, call in batch.tags:
            call.written(Ack(partition, position, stop - start, confirmed, batch.maybe))
        if batch.lane.topic.unpublished:
            batch.lane.topic.unpublished = False
            self.spawn(self._look_again)

    def _lose(self, batch: ProduceBatch, error: DeliveryError) -> None:
        self.failed += len(batch)
        for record, call in zip(batch.as_records(), batch.owners(), strict=True):
            failed = Failed(record, batch.lane.topic.name, batch.lane.partition, error)
            if call is not None and call.live:
                call.lost(failed)
            else:
                self.failures.add(failed)

    async def flush(self) -> None:
        """Until all that was taken in so far is settled; it is due at once."""
        flush = self.accumulator.flush()
        if not flush.left:
            return
        done = self._flushes[flush] = anyio.Event()
        for sender in self.senders.values():
            sender.wake()
        try:
            await done.wait()
        finally:
            self._flushes.pop(flush, None)

    def _give_up(self, why: str) -> None:
        """Settle everything that is left."""
        for batch in tuple(self.accumulator.live):
            self.settle(batch, _overdue(batch, why))

    # ---- in the background ---------------------------------------------------------------------------------

    async def _learn(self, topic: TopicQueues) -> None:
        """Ask for a topic's partitions until there is an answer; its records wait, as long as they may."""
        failures = 0
        while True:
            try:
                table = await self._driver.metadata.topic(topic.name)
                break
            except Closed:
                raise
            except OdradekError as error:
                topic.why = str(error)
            await anyio.sleep(self._options.backoff.delay(failures, random.random()))
            failures += 1
        self._adopt(table)
        topic.unpublished = not table.published(topic.name)
        self.accumulator.learned(topic)

    async def _look_again(self) -> None:
        """The first record of a new topic has made it: a list of brokers, unlike ZooKeeper, only tells when asked."""
        with suppress(OdradekError):  # it is a matter of spreading sooner
            self._adopt(await self._driver.metadata.refresh())

    async def _follow_table(self) -> None:
        while True:
            self._adopt(await self._driver.metadata.changed(self.accumulator.table.version))

    def _adopt(self, table: RoutingTable) -> None:
        if table.version > self.accumulator.table.version:
            self.accumulator.route(table)

    async def _expire(self) -> None:
        """Looks at every batch, and so at most a hundred times while one lives."""
        while True:
            now = self._clock()
            for batch in self.accumulator.expired(now):
                self.settle(batch, _overdue(batch, f"not delivered within {self._limits.deliver_within:g} s"))
            await anyio.sleep(max(self.accumulator.next_expiry(now) - now, self._limits.deliver_within / 100))

    def die(self, error: Exception) -> None:
        """A task of ours has failed: tell everybody, and every record's owner."""
        self.dead = self.dead or error
        stopped = Closed(f"the producer stopped: {type(error).__name__}: {error}")
        stopped.__cause__ = error
        self._refuse(stopped)
        self._give_up(f"the producer stopped: {error}")


def _overdue(batch: ProduceBatch, why: str) -> DeliveryError:
    """What is known of a batch that was given up."""
    place = batch.lane.partition or f"{batch.lane.topic.name}: {batch.lane.topic.why}"
    tries = f"{batch.attempts} attempt{'' if batch.attempts == 1 else 's'}"
    last = f", the last failed: {batch.error}" if batch.error is not None else ""
    kind = OutcomeUnknown if batch.maybe or batch.flying else NotWritten
    error = kind(batch.as_records(), f"{why} ({place}; {tries}{last})")
    error.__cause__ = batch.error
    return error
