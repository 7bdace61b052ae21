"""The way of batches to one broker: requests out in order, and what became of them.

There is no queue between tasks here. Whoever has made something due calls `pump`, which takes it, encodes it and hands
it to the connection in that very step; an outcome settles its batches in the step in which it arrives. A task only
keeps the time (latency, back-off), and threads compress what is large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Protocol

import anyio.to_thread

from odradek.client.tasks import Signal
from odradek.core.backoff import Backoff
from odradek.core.interfaces import BrokerClient, PartitionBatch, PendingResult, ProduceResult, ProtocolDriver
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.batch import ProduceBatch, ProduceRequest
from odradek.errors import (
    ConfigError,
    ConnectionLost,
    DeliveryError,
    LocalProtocolError,
    MessageTooLarge,
    NotWritten,
    OdradekError,
    OutcomeUnknown,
    Rejected,
)
from odradek.types import KiB, Position

__all__ = ["Sender", "SenderHost", "SenderOptions"]

THREAD_BYTES = 64 * KiB
"""So much is compressed in a thread: going there and back costs about 40 us (measured), what gzip takes for 2 KiB, and
the loop must not stand still for longer. Without a codec nothing is: encoding 64 KiB takes less than going there."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """What senders need to know of their producer."""

    confirm: bool
    max_message_bytes: int
    backoff: Backoff


class SenderHost(Protocol):
    """Whose sender it is."""

    threads: anyio.CapacityLimiter
    """For compression."""

    def settle(
        self,
        batch: ProduceBatch,
        error: DeliveryError | None,
        position: Position | None = None,
        confirmed: bool = False,
    ) -> None:
        """Called once per batch with its outcome."""
        ...

    def spawn(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task; what it raises comes to `die`."""
        ...

    def die(self, error: Exception) -> None:
        """A mistake of ours, or the end of the era: nothing can be sent any more."""
        ...


@dataclass(slots=True, eq=False)
class _EncodeJob:
    """A request being encoded: for each batch the part, or why there is none; `left` are still in threads."""

    request: ProduceRequest
    batches: Sequence[ProduceBatch]
    encoded: list[PartitionBatch | OdradekError | None]
    left: int


@dataclass(slots=True, eq=False)
class _InFlightProduce:
    """A request on its way. `probe` went right before it, on the same connection, if it is exclusive."""

    request: ProduceRequest
    batches: Sequence[ProduceBatch]
    receipt: PendingResult[ProduceResult]
    probe: PendingResult[ProduceResult] | None


class Sender:
    """Sends what the accumulator has for one broker, pipelined, and settles it. Run `run` as a task.

    Args:
        broker: Its id.
        accumulator: Where requests come from.
        era: How to reach brokers.
        options: See `SenderOptions`.
        owner: See `SenderHost`.
        clock: Seconds; the accumulator's.
    """

    def __init__(
        self,
        broker: int,
        accumulator: Accumulator,
        driver: ProtocolDriver,
        options: SenderOptions,
        owner: SenderHost,
        clock: Callable[[], float],
    ) -> None:
        self._broker, self._accumulator, self._driver = broker, accumulator, driver
        self._options, self._owner, self._clock = options, owner, clock
        self._work = Signal()
        self._look_at: float | None = None  # when `run` wakes up by itself
        self._pumping = False
        self._jobs: deque[_EncodeJob] = deque()
        self._outstanding = 0
        self._line: tuple[BrokerClient, int] | None = None  # what the outstanding exchanges went over
        self._failures, self._resume_at = 0, clock()
        self.requests = self.retries = 0

    def wake(self) -> None:
        """Something may be due: `pump` soon, together with what else comes in this turn of the loop."""
        self._work.set()

    async def run(self) -> None:
        """Pump whenever it is time to, until cancelled."""
        while True:
            self.pump()
            at = self._look_at = self._next_look()
            await self._work.wait(None if at is None else max(0.0, at - self._clock()))

    def pump(self) -> None:
        """Send what is due now. Never raises: see `SenderHost.die`."""
        if self._pumping:  # whoever pumps goes on until nothing is due
            return
        self._pumping, at = True, None
        try:
            while not self._accumulator.idle(self._broker):
                request = self._take()
                if request is None:
                    at = self._next_look()
                    break
                self._start(request)
        except Exception as error:
            self._owner.die(error)
        finally:
            self._pumping = False
        if at is not None and (self._look_at is None or at < self._look_at):
            self.wake()

    def _take(self) -> ProduceRequest | None:
        now = self._clock()
        if now < self._resume_at or self._broken():
            return None
        return self._accumulator.take(self._broker, now)

    def _next_look(self) -> float | None:
        due = None if self._broken() else self._accumulator.next_due(self._broker)
        return None if due is None else max(due, self._resume_at)

    def _broken(self) -> bool:
        """The outstanding exchanges have failed, or are about to, and we have not been told yet. Whatever is sent
        now would go over a new connection and overtake them."""
        if not self._outstanding or self._line is None:
            return False
        api, epoch = self._line
        return api.epoch != epoch or self._moved(api)

    def _moved(self, api: BrokerClient) -> bool:
        """The broker has another address than this."""
        return self._accumulator.table.brokers.get(self._broker, api.broker) != api.broker

    # ---- encoding ------------------------------------------------------------------------------------------

    def _start(self, request: ProduceRequest) -> None:
        """Encode a request here or, what is slow, in threads: several at a time, also of one partition."""
        batches = tuple(request.batches)
        if len(batches) == 1 and not self._jobs and batches[0].lane.topic.compression == "none":
            self._dispatch(request, batches, [self._encode(_part(batches[0]))])
            return
        job = _EncodeJob(request, batches, [None] * len(batches), 0)
        slow: list[tuple[int, PartitionBatch]] = []
        size = 0
        for row, batch in enumerate(batches):
            part = _part(batch)
            if part.compression == "none":
                job.encoded[row] = self._encode(part)
                continue
            slow.append((row, part))
            size += batch.size
            if size >= THREAD_BYTES:
                job.left += 1
                self._owner.spawn(self._compress, job, slow)
                slow, size = [], 0
        for row, part in slow:
            job.encoded[row] = self._encode(part)
        self._jobs.append(job)
        self._release()

    async def _compress(self, job: _EncodeJob, parts: Sequence[tuple[int, PartitionBatch]]) -> None:
        def encode() -> list[PartitionBatch | OdradekError]:
            return [self._encode(part) for _, part in parts]

        encoded = await anyio.to_thread.run_sync(encode, limiter=self._owner.threads)
        for (row, _), part in zip(parts, encoded, strict=True):
            job.encoded[row] = part
        job.left -= 1
        self._release()
        self.pump()

    def _encode(self, part: PartitionBatch) -> PartitionBatch | OdradekError:
        """The part as the broker takes it, or why that cannot be. Pure."""
        try:
            return self._driver.encode(part, self._options.max_message_bytes)
        except OdradekError as error:
            return error

    def _release(self) -> None:
        """Send what is encoded, in the order it was taken."""
        while self._jobs and not self._jobs[0].left:
            job = self._jobs.popleft()
            self._dispatch(job.request, job.batches, job.encoded)

    def _recall(self) -> None:
        """What is being encoded must not overtake what just came back: it queues again, too."""
        while self._jobs:
            self._accumulator.undo(self._jobs.popleft().request)

    def _dispatch(
        self,
        request: ProduceRequest,
        batches: Sequence[ProduceBatch],
        encoded: Sequence[PartitionBatch | OdradekError | None],
    ) -> None:
        # While a thread compressed, time went on: batches may have been settled, and their broker may have gone.
        parts: dict[ProduceBatch, PartitionBatch] = {}
        for batch, part in zip(batches, encoded, strict=True):
            if batch.settled:
                continue
            if isinstance(part, PartitionBatch):
                parts[batch] = part
            elif isinstance(part, OdradekError):
                self._refuse(request, batch, part)
        broker = self._accumulator.table.brokers.get(self._broker)
        if not parts:
            self._accumulator.done(request)
        elif broker is None or self._broken():
            self._accumulator.undo(request)
            self._recall()
        else:
            self._produce(request, parts, self._driver.broker(broker, purpose="produce"))

    def _refuse(self, request: ProduceRequest, batch: ProduceBatch, error: OdradekError) -> None:
        """A batch that cannot be encoded: in halves, perhaps, or not at all."""
        if isinstance(error, MessageTooLarge) and len(batch) > 1:
            self._recall()
            self._accumulator.split(request, batch)
        else:
            self._owner.settle(batch, _because(Rejected(batch.as_records(), str(error)), error))

    # ---- exchanges -----------------------------------------------------------------------------------------

    def _produce(self, request: ProduceRequest, parts: dict[ProduceBatch, PartitionBatch], api: BrokerClient) -> None:
        probe = api.produce((), confirm=True) if request.exclusive else None
        try:
            receipt = api.produce(list(parts.values()), confirm=self._options.confirm)
        except (ConfigError, LocalProtocolError) as error:  # nothing was queued, and never will be
            for batch in self._accumulator.done(request):
                self._owner.settle(batch, _because(Rejected(batch.as_records(), str(error)), error))
            return
        self.requests += 1
        self.retries += any(batch.attempts > 1 for batch in parts)
        self._line = api, api.epoch
        self._outstanding += 1
        receipt.then(partial(self._over, _InFlightProduce(request, tuple(parts), receipt, probe)))

    def _over(self, exchange: _InFlightProduce) -> None:
        """The outcome is there. Never raises, as `pump`."""
        self._outstanding -= 1
        try:
            self._settle(exchange)
        except Exception as error:
            self._owner.die(error)

    def _settle(self, exchange: _InFlightProduce) -> None:
        try:
            receipt = exchange.receipt.result()
        except OdradekError as error:
            self._failed(exchange, error)
            self.wake()  # soon, and not now: those that failed with it are not all here yet
        else:
            self._written(exchange, receipt)
            if self._line is not None and self._moved(self._line[0]):
                self.wake()  # a new connection begins in a task, and this may be a callback of the loop
            else:
                self.pump()

    def _written(self, exchange: _InFlightProduce, receipt: ProduceResult) -> None:
        self._failures = 0
        self._accumulator.done(exchange.request)
        for batch, position in zip(exchange.batches, receipt.positions, strict=True):
            if not batch.settled:
                self._owner.settle(batch, None, position, receipt.confirmed)

    def _failed(self, exchange: _InFlightProduce, error: OdradekError) -> None:
        """Send it again later, unless that cannot help."""
        if error.retriable or error.fatal_to_connection:
            self._pause()
            struck = error.sent and isinstance(error, ConnectionLost) and _answered(exchange.probe)
            for batch in self._accumulator.back(exchange.request, error, struck=struck):
                self._owner.settle(batch, _closed_upon(batch, error))
            self._recall()
        else:
            kind = OutcomeUnknown if error.sent else NotWritten
            for batch in self._accumulator.done(exchange.request):
                self._owner.settle(batch, _because(kind(batch.as_records(), str(error)), error))

    def _pause(self) -> None:
        """Back off, once for all that failed together."""
        now = self._clock()
        if now >= self._resume_at:
            self._resume_at = now + self._options.backoff.delay(self._failures, random())
            self._failures += 1


def _part(batch: ProduceBatch) -> PartitionBatch:
    lane = batch.lane
    assert lane.partition is not None  # lanes without one have no broker
    return PartitionBatch(lane.partition, batch.records, lane.topic.compression)


def _answered(probe: PendingResult[ProduceResult] | None) -> bool:
    """The broker had just answered something else on the connection."""
    try:
        return probe is not None and probe.done and bool(probe.result())
    except OdradekError:
        return False


def _closed_upon(batch: ProduceBatch, error: OdradekError) -> DeliveryError:
    why = f"the broker answered and then closed the connection on this batch, {batch.strikes} times"
    unknown = _because(OutcomeUnknown(batch.as_records(), why), error)
    unknown.hint = f"a 0.7 broker refuses a produce that way: does it have {batch.lane.partition}, and know the codec?"
    return unknown


def _because(error: DeliveryError, cause: BaseException) -> DeliveryError:
    error.__cause__ = cause
    return error
