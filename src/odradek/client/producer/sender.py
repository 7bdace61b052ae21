"""The way of batches to one broker: requests out in order, their results back to the accumulator.

There is no queue between tasks. The caller that makes something due calls `drain`, which takes the request, encodes it
and hands it to the connection in that very step; a result is applied in the step in which it arrives. A task only keeps
the time (latency, back-off), and threads compress what is large.

After a lost connection the back-off is that of the connection (`BrokerClient.available_at`); until it is over, batches
stay in the accumulator, where more records may join them. After an answer that says "later" it is counted here, for
that partition alone. With `acks=0` a broker only closes the connection on what it refuses: the routing table is read
before anything else is sent (see `Sender._may_be_refused`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import random
from typing import Protocol

import anyio
import anyio.to_thread

from odradek.client.producer.observation import ProducerObservation
from odradek.core.backoff import Backoff
from odradek.core.interfaces import BrokerClient, PartitionResult, PendingResult, ProtocolDriver
from odradek.core.produce.accumulator import Accumulator
from odradek.core.produce.batch import BrokerProduceRequest, Effects, ProduceBatch
from odradek.core.produce.partition_queue import PartitionQueue
from odradek.errors import ConfigError, LocalProtocolError, MessageTooLarge, OdradekError
from odradek.io.notifier import Notifier
from odradek.types import Broker, KiB

__all__ = ["Sender", "SenderHost", "SenderOptions", "Senders"]

THREAD_BYTES = 64 * KiB
"""This much is compressed in a thread: the thread switch costs about 40 us (measured), what gzip takes for 2 KiB, and
the loop must not be blocked for longer. Uncompressed batches are encoded in place: 64 KiB take less than the switch."""

READ_TABLE_S = 1.0
"""Maximum time for which records without an answer wait for the routing table to be read (s): the broker may be there
while what knows the table is away, such as ZooKeeper."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """Options of senders, from their producer.

    Args:
        acks: See `BrokerClient.produce`.
        max_message_bytes: See `BrokerClient.encode`.
        backoff: Wait between attempts after a failure.
    """

    acks: int
    max_message_bytes: int
    backoff: Backoff


class SenderHost(Protocol):
    """Interface of the object that owns a sender."""

    threads: anyio.CapacityLimiter
    """Limits the threads used for compression."""
    observation: ProducerObservation | None
    """Told of requests, if the cluster has an observer."""

    def apply(self, effects: Effects) -> None:
        """Do what the accumulator returned."""
        ...

    def spawn(self, task: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a task; what it raises comes to `fail`."""
        ...

    async def read_table(self) -> None:
        """Read the routing table, and apply it; return without it if that fails. Cancellation: safe."""
        ...

    def fail(self, error: Exception) -> None:
        """End the producer: a bug, or the end of the cluster."""
        ...


class Sender:
    """Sends what the accumulator has for one broker, pipelined. Run `run` as a task.

    Args:
        broker: Its id.
        accumulator: Where requests come from.
        driver: How to reach brokers.
        options: See `SenderOptions`.
        host: See `SenderHost`.
        clock: Seconds; the accumulator's.
    """

    def __init__(
        self,
        broker: int,
        accumulator: Accumulator,
        driver: ProtocolDriver,
        options: SenderOptions,
        host: SenderHost,
        clock: Callable[[], float],
    ) -> None:
        self._broker, self._accumulator, self._driver = broker, accumulator, driver
        self._options, self._host, self._clock = options, host, clock
        self._queue = accumulator.broker_queue(broker)
        self._work = Notifier()
        self._woken = False
        self._wakes_at: float | None = None  # when `run` wakes up on its own
        self._draining = False
        self._encoding: deque[BrokerProduceRequest] = deque()
        self._outstanding = 0
        self._connection: tuple[BrokerClient, int] | None = None  # what the outstanding requests were sent over
        self._unanswered: tuple[BrokerClient, int] | None = None  # the same of those that were sent without an answer
        self._reading_table = False  # nothing is sent meanwhile
        self.requests = self.retries = 0

    def wake(self) -> None:
        """Drain soon, together with what else comes in this step of the loop."""
        if not self._woken:
            self._woken = True
            self._work.notify()

    async def run(self) -> None:
        """Drain whenever something becomes due, until cancelled."""
        while True:
            self._woken, version = False, self._work.version
            self.drain()
            at = self._wakes_at = self._next_wake_up()
            await self._work.wait(version, inf if at is None else max(0.0, at - self._clock()))

    def drain(self, now: float | None = None) -> None:
        """Send what is due now. Never raises: see `SenderHost.fail`.

        Args:
            now: The time (s), if the caller has just asked for it.
        """
        if self._draining:  # by the result of a request that it just submitted: the outer call continues
            return
        self._draining, at, queue = True, None, self._queue
        try:
            while queue.waiting or queue.closed or queue.isolated or queue.backing_off:
                now, broker = now or self._clock(), self._accumulator.table.brokers.get(self._broker)
                if broker is None or (self._outstanding and self._connection_changed(broker)):
                    at = self._next_wake_up()
                    break
                client = self._driver.broker(broker, purpose="produce")
                if self._unanswered is not None and self._may_be_refused(client):
                    self._reading_table = True
                    self._host.spawn(self._read_table)
                if self._reading_table:
                    break
                if now < client.available_at or (request := queue.next_request(now)) is None:
                    at = self._next_wake_up()
                    break
                if request.compressed or self._encoding:
                    self._encode_in_order(client, request)
                else:
                    self._send(client, request)
                now = None
        except Exception as error:
            self._host.fail(error)
        finally:
            self._draining = False
        # `run` sleeps until `_wakes_at`. A record appended meanwhile, or a back-off that began, may be due before.
        if at is not None and (self._wakes_at is None or at < self._wakes_at):
            self.wake()

    def withdraw(self, request: BrokerProduceRequest) -> bool:
        """Take a request back, and all after it, if none of its bytes has been handed to the network.

        Returns:
            True: its batches wait in the accumulator again. False: its result will tell.
        """
        if request in self._encoding:
            self._requeue_unsent()
            return True
        if request.pending is None or not request.pending.withdraw():
            return False
        # The connection sends in order: what follows has not been sent either, and must not overtake this request.
        requests = self._queue.in_flight
        for later in requests[requests.index(request) :]:
            if later.pending is not None:
                self._outstanding -= 1
                later.pending.withdraw()
                self._host.apply(self._accumulator.requeue(later))
        self._requeue_unsent()
        return True

    def _next_wake_up(self) -> float | None:
        """Return when something is due that only the time keeps from being sent (s)."""
        broker = self._accumulator.table.brokers.get(self._broker)
        if broker is None or self._reading_table or self._connection_changed(broker):
            return None
        if (due := self._queue.next_due()) is None:
            return None
        return max(due, self._driver.broker(broker, purpose="produce").available_at)

    def _connection_changed(self, broker: Broker) -> bool:
        """Return True if the outstanding requests have failed, or are about to, and their callbacks have yet to run.
        A request sent now would go over a new connection and overtake them."""
        if not self._outstanding or self._connection is None:
            return False
        client, incarnation = self._connection
        return client.incarnation != incarnation or client.broker != broker

    def _may_be_refused(self, client: BrokerClient) -> bool:
        """Return True, once, if the connection was lost over which the latest request without an answer was sent.

        With `acks=0` a broker that refuses a batch, mostly because it no longer leads the partition, can say so only by
        closing the connection. What follows would be lost as well, until the routing table is read again.
        """
        sent_over = self._unanswered
        if sent_over == (client, client.incarnation):
            return False
        self._unanswered = None
        return True

    async def _read_table(self) -> None:
        """Read the routing table: another broker may lead by now."""
        try:
            with anyio.move_on_after(READ_TABLE_S):
                await self._host.read_table()
        finally:
            self._reading_table = False
            self.wake()

    # ---- encoding ------------------------------------------------------------------------------------------

    def _encode_in_order(self, client: BrokerClient, request: BrokerProduceRequest) -> None:
        """Send a request after those before it that are still being compressed, and after its own batches are: here
        or, if that takes long, in several threads."""
        slow: list[ProduceBatch] = []
        size = 0
        for batch in request.batches:
            if batch.encoded is None and batch.compression != "none":
                slow.append(batch)
                size += batch.size
            if size >= THREAD_BYTES:
                request.encoding += 1
                self._host.spawn(self._encode_in_thread, client, request, slow)
                slow, size = [], 0
        self._encode(client, request, slow)
        self._encoding.append(request)
        self._send_encoded()

    async def _encode_in_thread(
        self, client: BrokerClient, request: BrokerProduceRequest, batches: Sequence[ProduceBatch]
    ) -> None:
        await anyio.to_thread.run_sync(self._encode, client, request, batches, limiter=self._host.threads)
        request.encoding -= 1
        self._send_encoded()
        self.drain()

    def _encode(self, client: BrokerClient, request: BrokerProduceRequest, batches: Sequence[ProduceBatch]) -> None:
        for batch in batches:
            try:
                client.encode(batch, self._options.max_message_bytes)
            except OdradekError as error:
                request.unencodable.append((batch, error))

    def _send_encoded(self) -> None:
        """Send what is encoded, in the order it was taken. While a thread compressed the records, the producer may have
        ended and the broker may have left the cluster."""
        while self._encoding and not self._encoding[0].encoding:
            request = self._encoding.popleft()
            broker = self._accumulator.table.brokers.get(self._broker)
            if broker is None or self._connection_changed(broker) or request.batches[0].finished:
                self._host.apply(self._accumulator.requeue(request))
                self._requeue_unsent()
            else:
                self._send(self._driver.broker(broker, purpose="produce"), request)

    def _requeue_unsent(self) -> None:
        """Requeue what is being encoded: it must not overtake what just came back."""
        while self._encoding:
            self._host.apply(self._accumulator.requeue(self._encoding.popleft()))

    def _remove_unencodable(self, request: BrokerProduceRequest) -> None:
        """Send a batch that is too large in halves; reject any other."""
        unencodable, request.unencodable = request.unencodable, []
        for batch, error in unencodable:
            if batch.finished:
                continue
            if isinstance(error, MessageTooLarge) and len(batch) > 1:
                self._requeue_unsent()
                self._accumulator.split(request, batch)
            else:
                self._accumulator.reject(request, batch, error)

    # ---- requests and results ------------------------------------------------------------------------------

    def _send(self, client: BrokerClient, request: BrokerProduceRequest) -> None:
        """Submit a request. Small batches that need no compression are encoded all at once, by the client."""
        pending, options = None, self._options
        if not request.isolated:
            try:
                pending = client.produce_plain(
                    request.batches, acks=options.acks, max_message_bytes=options.max_message_bytes
                )
            except (ConfigError, LocalProtocolError):
                pending = None  # encoded one by one, it is known which batch it is about
        if pending is None:
            pending = self._produce_each(client, request)
        if pending is None:
            self._host.apply(self._accumulator.complete(request, None))
            return
        request.pending = pending
        self.requests += 1
        self.retries += request.batches[0].attempts > 1
        self._connection = client, client.incarnation
        self._outstanding += 1
        if self._host.observation is not None:
            self._host.observation.sent(request, client.broker, self._clock())
        pending.add_done_callback(partial(self._on_result, request))

    def _produce_each(
        self, client: BrokerClient, request: BrokerProduceRequest
    ) -> PendingResult[Sequence[PartitionResult] | None] | None:
        """Submit batches, after encoding one by one those that are not yet. Return None if there is nothing to send."""
        plain = [batch for batch in request.batches if batch.encoded is None and batch.compression == "none"]
        self._encode(client, request, plain)
        if request.unencodable:
            self._remove_unencodable(request)
        if not request.batches:
            return None
        try:
            if request.isolated:
                request.probe = client.produce((), acks=-1)
            return client.produce(request.batches, acks=self._options.acks)
        except (ConfigError, LocalProtocolError) as error:  # nothing was queued, and never will be
            for batch in tuple(request.batches):
                self._accumulator.reject(request, batch, error)
            return None

    def _on_result(self, request: BrokerProduceRequest) -> None:
        """Apply the result. Never raises, as `drain`."""
        self._outstanding -= 1
        assert request.pending is not None
        try:
            try:
                results = request.pending.result()
                self._unanswered = None if self._options.acks else self._connection
            except OdradekError as error:
                self._unanswered = None
                self._host.apply(self._accumulator.retry(request, error, answered=_answered(request.probe)))
                self._requeue_unsent()
                self.wake()  # soon, and not now: requests that failed with it have yet to be called back
                return
            effects = self._accumulator.complete(request, results)
            if effects.back_off:  # the connection counts no back-off after an answer
                self._back_off(effects.back_off)
            self._host.apply(effects)
        except Exception as error:
            self._host.fail(error)
            return
        queue = self._queue
        if queue.waiting or queue.closed or queue.isolated:
            self._continue()

    def _back_off(self, attempts: Mapping[PartitionQueue, int]) -> None:
        """Send nothing of these partitions for a while, by the number of attempts."""
        now, jitter = self._clock(), random()
        for queue, count in attempts.items():
            self._queue.back_off(queue, now + self._options.backoff.delay(count - 1, jitter))
        self.wake()

    def _continue(self) -> None:
        """Send what waits for the broker, now that a request has its result."""
        broker = self._accumulator.table.brokers.get(self._broker)
        if self._connection is not None and self._connection[0].broker != broker:
            self.wake()  # a new connection begins in a task, and this may be a callback of the loop
        else:
            self.drain()


class Senders(dict[int, Sender]):
    """The sender of each broker, made when it is first needed.

    Args:
        make: Makes the sender of a broker.
    """

    def __init__(self, make: Callable[[int], Sender]) -> None:
        self._make = make

    def __missing__(self, broker: int) -> Sender:
        sender = self[broker] = self._make(broker)
        return sender


def _answered(probe: PendingResult[Sequence[PartitionResult] | None] | None) -> bool:
    """Return True if the broker had just answered on the connection."""
    if probe is None or not probe.done:
        return False
    try:
        probe.result()
    except OdradekError:
        return False
    return True
