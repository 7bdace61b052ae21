"""The way of batches to one broker: a task that sends requests and one that reads what became of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import random
from typing import Protocol

import anyio.to_thread

from odradek.client.background import Signal
from odradek.core.accumulator import Accumulator
from odradek.core.backoff import Backoff
from odradek.core.batches import OutBatch, Request
from odradek.core.interfaces import BrokerApi, Era, ProducePart, Receipt
from odradek.errors import (
    ConfigError,
    ConnectionLost,
    DeliveryError,
    LocalProtocolError,
    MessageTooLarge,
    NotWritten,
    OdradekError,
    Rejected,
    Unknown,
)
from odradek.types import KiB, Position

__all__ = ["Sender", "SenderOptions", "Settle"]

THREAD_BYTES = 64 * KiB
"""Batches are compressed in a thread from this size on: going there and back costs about 40 us
(measured), what gzip takes for 2 KiB, and the loop must not stand still for longer."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """What senders need to know of their producer."""

    confirm: bool
    max_message: int
    backoff: Backoff


class Settle(Protocol):
    """Called once per batch with its outcome."""

    def __call__(
        self, batch: OutBatch, error: DeliveryError | None, position: Position | None = None, confirmed: bool = False
    ) -> None: ...


@dataclass(slots=True, eq=False)
class _Exchange:
    """A request on its way. `probe` went right before it, on the same connection, if it is exclusive."""

    request: Request
    batches: Sequence[OutBatch]
    receipt: Awaitable[Receipt]
    probe: Awaitable[Receipt] | None


class Sender:
    """Sends what the accumulator has for one broker, pipelined, and settles it. Run `write` and `read` as tasks.

    Args:
        broker: Its id.
        accumulator: Where requests come from.
        era: How to reach brokers.
        options: See `SenderOptions`.
        settle: Takes outcomes.
        clock: Seconds; the accumulator's.
    """

    def __init__(
        self,
        broker: int,
        accumulator: Accumulator,
        era: Era,
        options: SenderOptions,
        settle: Settle,
        clock: Callable[[], float],
    ) -> None:
        self._broker, self._accumulator, self._era = broker, accumulator, era
        self._options, self._settle, self._clock = options, settle, clock
        self._work, self._sent = Signal(), Signal()
        self._exchanges: deque[_Exchange] = deque()
        self._outstanding = self._setbacks = 0
        self._line: tuple[BrokerApi, int] | None = None  # what the outstanding exchanges went over
        self._failures, self._resume_at = 0, clock()
        self.requests = self.retries = 0

    def wake(self) -> None:
        """Something may be due."""
        self._work.set()

    async def write(self) -> None:
        """Send what is due, until cancelled. Raises only what is a mistake of ours, or the end of the era."""
        while True:
            now = self._clock()
            if self._broken():
                await self._work.wait(None)
            elif now < self._resume_at:
                await self._work.wait(self._resume_at - now)
            elif (request := self._accumulator.take(self._broker, now)) is not None:
                await self._send(request)
            else:
                due = self._accumulator.next_due(self._broker)
                await self._work.wait(None if due is None else max(0.0, due - now))

    async def _send(self, request: Request) -> None:
        setbacks = self._setbacks
        encoded = [(batch, await self._encode(request, batch)) for batch in tuple(request.batches)]
        # While a thread compressed, time went on: batches may have been settled, their broker may have gone, and what
        # was sent before them may have come back, which must not be overtaken.
        parts = {batch: part for batch, part in encoded if part is not None and not batch.settled}
        broker = self._accumulator.table.brokers.get(self._broker)
        if not parts:
            self._accumulator.done(request)
        elif broker is None or setbacks != self._setbacks or self._broken():
            self._accumulator.undo(request)
        else:
            self._produce(request, parts, self._era.broker(broker, purpose="produce"))

    def _broken(self) -> bool:
        """The outstanding exchanges have failed, or are about to, and `read` has not said so yet. Whatever is sent
        now would go over a new connection and overtake them."""
        if not self._outstanding or self._line is None:
            return False
        api, epoch = self._line
        broker = self._accumulator.table.brokers.get(self._broker, api.broker)
        return api.epoch != epoch or broker != api.broker

    def _produce(self, request: Request, parts: dict[OutBatch, ProducePart], api: BrokerApi) -> None:
        probe = api.produce((), confirm=True) if request.exclusive else None
        try:
            receipt = api.produce(list(parts.values()), confirm=self._options.confirm)
        except (ConfigError, LocalProtocolError) as error:  # nothing was queued, and never will be
            for batch in self._accumulator.done(request):
                self._settle(batch, _because(Rejected(batch.records, str(error)), error))
            return
        self.requests += 1
        self.retries += any(batch.attempts > 1 for batch in parts)
        self._line = api, api.epoch
        self._outstanding += 1
        self._exchanges.append(_Exchange(request, list(parts), receipt, probe))
        self._sent.set()

    async def _encode(self, request: Request, batch: OutBatch) -> ProducePart | None:
        """The batch as the broker takes it, or None: it was split, or settled because it cannot be."""
        lane = batch.lane
        assert lane.partition is not None  # lanes without one have no broker
        part = ProducePart(lane.partition, batch.records, lane.topic.codec)
        try:
            if part.codec == "none" or batch.size < THREAD_BYTES:
                return self._era.encode(part, self._options.max_message)
            return await anyio.to_thread.run_sync(self._era.encode, part, self._options.max_message)
        except MessageTooLarge as error:
            if len(batch) > 1 and not batch.settled:
                self._accumulator.split(request, batch)
                return None
            cause: OdradekError = error
        except OdradekError as error:
            cause = error
        if not batch.settled:
            self._settle(batch, _because(Rejected(batch.records, str(cause)), cause))
        return None

    async def read(self) -> None:
        """Settle what was sent, in order, until cancelled. Raises as `write`."""
        while True:
            while not self._exchanges:
                await self._sent.wait(None)
            exchange = self._exchanges.popleft()
            alive = exchange.probe is not None and await self._answered(exchange.probe)
            try:
                self._written(exchange, await exchange.receipt)
            except OdradekError as error:
                self._failed(exchange.request, error, alive)
            self._outstanding -= 1
            self.wake()

    @staticmethod
    async def _answered(probe: Awaitable[Receipt]) -> bool:
        try:
            await probe
        except OdradekError:
            return False
        return True

    def _written(self, exchange: _Exchange, receipt: Receipt) -> None:
        self._failures = 0
        self._accumulator.done(exchange.request)
        for batch, position in zip(exchange.batches, receipt.positions, strict=True):
            if not batch.settled:
                self._settle(batch, None, position, receipt.confirmed)

    def _failed(self, request: Request, error: OdradekError, alive: bool = False) -> None:
        """Send it again later, unless that cannot help. `alive`: the broker had just answered a probe."""
        if error.retriable or error.fatal_to_connection:
            self._pause()
            self._setbacks += 1
            struck = alive and error.sent and isinstance(error, ConnectionLost)
            for batch in self._accumulator.back(request, error, struck=struck):
                self._settle(batch, _closed_upon(batch, error))
        else:
            kind = Unknown if error.sent else NotWritten
            for batch in self._accumulator.done(request):
                self._settle(batch, _because(kind(batch.records, str(error)), error))

    def _pause(self) -> None:
        """Back off, once for all that failed together."""
        now = self._clock()
        if now >= self._resume_at:
            self._resume_at = now + self._options.backoff.delay(self._failures, random())
            self._failures += 1


def _closed_upon(batch: OutBatch, error: OdradekError) -> DeliveryError:
    why = f"the broker answered and then closed the connection on this batch, {batch.strikes} times"
    unknown = _because(Unknown(batch.records, why), error)
    unknown.hint = f"a 0.7 broker refuses a produce that way: does it have {batch.lane.partition}, and know the codec?"
    return unknown


def _because(error: DeliveryError, cause: BaseException) -> DeliveryError:
    error.__cause__ = cause
    return error
