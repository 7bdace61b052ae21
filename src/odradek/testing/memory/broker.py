"""One broker of an in-memory cluster, as one client sees it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from copy import copy
from typing import Any

import anyio
import anyio.lowlevel

from odradek.core.backoff import Backoff
from odradek.core.interfaces import (
    DecoderOptions,
    PartitionBatch,
    PartitionFetch,
    PartitionResult,
)
from odradek.core.produce.batch import as_record
from odradek.errors import ConnectionLost, MessageTooLarge, OdradekError, OffsetOutOfRange, Unreachable
from odradek.io.notifier import Notifier
from odradek.testing.memory.faults import Operation
from odradek.testing.memory.log import MemoryDecoder, MemoryLog, record_bytes
from odradek.testing.memory.state import ClusterState
from odradek.types import AtTime, Broker, Position, PositionSpec, TopicPartition

__all__ = ["MemoryBrokerClient", "MemoryProduce"]

JITTER = 0.5
"""Instead of chance: the back-off of an in-memory cluster is always the same."""


class MemoryProduce:
    """The result of one produce request. Implements `core.interfaces.PendingResult`."""

    def __init__(self, client: MemoryBrokerClient, batches: Sequence[PartitionBatch], acks: int) -> None:
        self.batches, self.acks = tuple(batches), acks
        self.done = False
        self._client = client
        self._results: Sequence[PartitionResult] = ()
        self._error: OdradekError | None = None
        self._callback: Callable[[], None] | None = None
        self._resolved = Notifier()

    def resolve(self, results: Sequence[PartitionResult], error: OdradekError | None = None) -> None:
        """Set the result."""
        self.done, self._results, self._error = True, results, error
        self._resolved.notify()
        if self._callback is not None:
            self._callback()

    def result(self) -> Sequence[PartitionResult]:
        """Return one result per batch, or raise the error of the request as a whole."""
        if self._error is not None:
            raise self._error
        return self._results

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the result is available; at once if it is."""
        self._callback = callback
        if self.done:
            callback()

    def withdraw(self) -> bool:
        """Take the request back, if there was no connection yet to send it over."""
        return not self.done and self._client.withdraw(self)

    def __await__(self) -> Generator[Any, Any, Sequence[PartitionResult]]:
        while not self.done:
            yield from self._resolved.wait(self._resolved.version).__await__()
        return self.result()


class MemoryBrokerClient:
    """A connection to one broker. Implements `core.interfaces.BrokerClient`.

    It connects when it is first needed, and again after a back-off when it was lost. Run `run` as a task: it serves
    produce requests, one after the other.

    Args:
        broker: Which.
        state: The cluster.
        timeout: How long one request may take (s).
        backoff: Wait between attempts to connect.
    """

    def __init__(self, broker: Broker, state: ClusterState, timeout: float, backoff: Backoff) -> None:
        self.broker = broker
        self.incarnation = 0
        self.available_at = -math.inf
        """See `BrokerClient.available_at`."""
        self._state, self._timeout, self._backoff = state, timeout, backoff
        self._start = 0  # the start of the broker in which the connection was made; 0: none was
        self._failures = 0
        self._requests: deque[MemoryProduce] = deque()
        self._work = Notifier()

    # ---- the connection ---------------------------------------------------------------------------------------

    async def _request(self, operation: Operation, partitions: Sequence[TopicPartition]) -> int:
        """Wait until the broker serves a request; return the incarnation of the connection. Raises the error of the
        request as a whole; the connection is lost with it."""
        incarnation = self.incarnation
        try:
            await self._connect()
            incarnation, broker = self.incarnation, self.broker.id
            await self._state.serve(
                operation,
                self._timeout,
                what=f"{operation} request to {self.broker.address}",
                partitions=partitions,
                broker=broker,
                ended=lambda: not self._is_connected(incarnation),
            )
            self._check_connection(incarnation)
        except OdradekError as error:
            self._disconnect(incarnation, error)
            raise
        self._failures = 0
        return incarnation

    async def _connect(self) -> None:
        if self._is_connected(self.incarnation):
            return
        self._start = 0
        await anyio.lowlevel.checkpoint()
        await anyio.sleep_until(self.available_at)
        self._start = self._state.start_of(self.broker.id)
        if not self._start:
            raise Unreachable("tcp", self.broker.address, "the broker is stopped")

    def _is_connected(self, incarnation: int) -> bool:
        return 0 < self._start == self._state.start_of(self.broker.id) and incarnation == self.incarnation

    def _check_connection(self, incarnation: int) -> None:
        if not self._is_connected(incarnation):
            raise ConnectionLost(self.broker.address, "the broker was stopped", True)

    def _disconnect(self, incarnation: int, error: OdradekError) -> None:
        """Lose a connection, unless that has happened: everything outstanding on it fails."""
        if incarnation != self.incarnation:
            return
        self.incarnation += 1
        self._start = 0
        self.available_at = anyio.current_time() + self._backoff.delay(self._failures, JITTER)
        self._failures += 1
        outstanding, self._requests = self._requests, deque()
        for request in outstanding:
            request.resolve((), copy(error))

    # ---- produce ----------------------------------------------------------------------------------------------

    def encode(self, batch: PartitionBatch, max_message_bytes: int) -> None:
        """Check the sizes of the records: an in-memory cluster stores records, not bytes."""
        for record in map(as_record, batch.records):
            if (size := record_bytes(record)) > max_message_bytes:
                raise MessageTooLarge(str(batch.partition), -1, size, max_message_bytes, "max_message_bytes")
        batch.encoded = b""

    def produce(self, batches: Sequence[PartitionBatch], *, acks: int) -> MemoryProduce:
        """Queue a produce request: see `BrokerClient.produce`."""
        request = MemoryProduce(self, batches, acks)
        self._requests.append(request)
        self._work.notify()
        return request

    def withdraw(self, request: MemoryProduce) -> bool:
        """Take a request back, if there was no connection yet to send it over."""
        if self._is_connected(self.incarnation) or request not in self._requests:
            return False
        self._requests.remove(request)
        return True

    async def run(self) -> None:
        """Serve produce requests, until cancelled."""
        while True:
            version = self._work.version
            while self._requests:
                await self._serve_produce()
            await self._work.wait(version)

    async def _serve_produce(self) -> None:
        first = self._requests[0]
        partitions = [batch.partition for batch in first.batches]
        try:
            incarnation = await self._request("produce", partitions)
        except OdradekError:
            return  # `_disconnect` passed it on
        if self._requests and self._requests[0] is first:  # not withdrawn before it was sent
            results = [self._append(batch) for batch in first.batches]
            self._state.changed.notify()
            lost = self._state.faults.request_error("produce", partitions, self.broker.id, applied=True)
            if lost is not None:
                self._disconnect(incarnation, lost)
                return
            self._requests.popleft()
            first.resolve(results if first.acks else [PartitionResult(batch.partition) for batch in first.batches])

    def _append(self, batch: PartitionBatch) -> PartitionResult:
        partition = batch.partition
        if (error := self._state.error_of("produce", partition, self.broker.id)) is not None:
            return PartitionResult(partition, error)
        stored = self._state.logs[partition].append(list(map(as_record, batch.records)), self._state.now_ms())
        return PartitionResult(partition, None, Position(stored[0].offset) if stored else None)

    # ---- fetch ------------------------------------------------------------------------------------------------

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        """Fetch partitions: see `BrokerClient.fetch`. Cancellation: safe."""
        partitions = [fetch.decoder.partition for fetch in fetches]
        incarnation = await self._request("fetch", partitions)
        if max_wait and min_bytes:
            await self._wait_for_records(fetches, max_wait, incarnation)
        for fetch in fetches:
            self._read(fetch)

    async def _wait_for_records(self, fetches: Sequence[PartitionFetch], max_wait: float, incarnation: int) -> None:
        changed = self._state.changed
        deadline = anyio.current_time() + max_wait
        while not any(self._has_answer(fetch) for fetch in fetches):
            if (left := deadline - anyio.current_time()) <= 0:
                return
            await changed.wait(changed.version, left)
            if not self._is_connected(incarnation):
                error = ConnectionLost(self.broker.address, "the broker was stopped", True)
                self._disconnect(incarnation, error)
                raise error

    def _has_answer(self, fetch: PartitionFetch) -> bool:
        """Return True if a fetch of this partition brings records or an error."""
        partition = fetch.decoder.partition
        log, leader = self._state.logs.get(partition), self._state.table.leader(partition)
        return log is None or leader != self.broker or fetch.decoder.fetch_position != log.end

    def _read(self, fetch: PartitionFetch) -> None:
        decoder, partition = fetch.decoder, fetch.decoder.partition
        position = fetch.start()
        if (error := self._state.error_of("fetch", partition, self.broker.id)) is not None:
            fetch.error = error
            return
        log = self._state.logs[partition]
        fetch.high_watermark = fetch.last_stable = log.end
        fetch.log_start = log.start
        if not log.start <= position <= log.end:
            context = f"{partition} at {position} (the log has {log.start} to {log.end})"
            fetch.error = OffsetOutOfRange(1, "OFFSET_OUT_OF_RANGE", context)
            return
        assert isinstance(decoder, MemoryDecoder)
        records = log.read(position, fetch.max_bytes)
        decoder.accept(records)
        fetch.received = sum(record_bytes(stored.record) for stored in records)

    # ---- positions --------------------------------------------------------------------------------------------

    async def resolve_position(
        self, partition: TopicPartition, at: PositionSpec | AtTime, *, read_committed: bool = False
    ) -> Position:
        """Return the position of `at`; of a time, that of the first record at or after it, or the end."""
        return (await self.positions(partition, at))[0]

    async def positions(
        self, partition: TopicPartition, at: PositionSpec | AtTime, count: int = 1
    ) -> Sequence[Position]:
        """Return positions at or before `at`, newest first: see `BrokerClient.positions`. Cancellation: safe."""
        await self._request("positions", [partition])
        if (error := self._state.error_of("positions", partition, self.broker.id)) is not None:
            raise error
        log = self._state.logs[partition]
        return log.newest_before(_position_of(log, at), count)

    def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> MemoryDecoder:
        """Return a decoder of this partition's records."""
        return MemoryDecoder(partition, position, options)


def _position_of(log: MemoryLog, at: PositionSpec | AtTime) -> Position:
    if isinstance(at, AtTime):
        return log.at_time(int(at.seconds * 1000))
    return log.start if at is PositionSpec.EARLIEST else log.end
