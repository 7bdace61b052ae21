"""One broker of an in-memory cluster, as one client sees it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from itertools import islice
from typing import Any

import anyio
import anyio.lowlevel

from odradek.client.options import Tuning
from odradek.core.interfaces import (
    DecoderOptions,
    PartitionBatch,
    PartitionFetch,
    PartitionResult,
    ProducerRecord,
)
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.list_offsets import time_ms
from odradek.core.kafka.produce import batch_error
from odradek.core.produce.batch import as_record
from odradek.errors import BrokerError, ConnectionLost, MessageTooLarge, OdradekError, Unreachable
from odradek.io.gather import gather_outcomes
from odradek.io.notifier import Notifier
from odradek.io.observation import ConnectionObservation, RequestObservation
from odradek.testing.memory.faults import MemoryBatch, MemoryRequest, Operation
from odradek.testing.memory.log import MemoryDecoder, MemoryLog, compressed_bytes, record_bytes
from odradek.testing.memory.state import ClusterState
from odradek.types import AtTime, Broker, Position, PositionSpec, TimestampType, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode

__all__ = ["MemoryBrokerClient", "MemoryProduce"]

JITTER = 0.5
"""Instead of chance: the back-off of an in-memory cluster is always the same."""


class MemoryProduce:
    """The result of one produce request. Implements `core.interfaces.PendingResult`."""

    def __init__(self, client: MemoryBrokerClient, batches: Sequence[PartitionBatch], acks: int) -> None:
        self.batches, self.acks = tuple(batches), acks
        self.done = self.sent = False
        self._client = client
        self._results: Sequence[PartitionResult] = ()
        self._error: OdradekError | None = None
        self._callback: Callable[[], None] | None = None
        self.observation: RequestObservation | None = None
        self._resolved = Notifier()

    def resolve(self, results: Sequence[PartitionResult], error: OdradekError | None = None) -> None:
        """Set the result."""
        self.done, self._results, self._error = True, results, error
        if self.observation is not None:
            self.observation.finished(error)
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
        """Take the request back, unless it has been sent."""
        return self._client.withdraw(self)

    def __await__(self) -> Generator[Any, Any, Sequence[PartitionResult]]:
        while not self.done:
            yield from self._resolved.wait(self._resolved.version).__await__()
        return self.result()


class MemoryBrokerClient:
    """A connection to one broker. Implements `core.interfaces.BrokerClient`.

    It connects when it is first needed, and again after a back-off when it was lost. Run `run` as a task: it serves
    produce requests, one after the other.

    Args:
        broker: The broker.
        state: The cluster.
        tuning: How long one request, and connecting, may take, and the wait between attempts to connect.
        topic_id: Returns the id of a topic as the client knows it, which its fetches have; by default they have none.
    """

    polls = None

    def __init__(
        self,
        broker: Broker,
        state: ClusterState,
        tuning: Tuning,
        topic_id: Callable[[str], bytes | None] = lambda topic: None,
    ) -> None:
        self.broker, self._topic_id = broker, topic_id
        self.incarnation = 0
        self.available_at = -math.inf
        """See `BrokerClient.available_at`."""
        self._state, self._tuning = state, tuning
        self._start = 0  # the start of the broker in which the connection was made; 0: none was
        self._failures = 0
        self._lost: OdradekError = ConnectionLost(broker.address, "the broker was stopped", True)
        self._connecting = anyio.Lock()
        self._requests: deque[MemoryProduce] = deque()
        self._work = Notifier()
        self.connects = self.losses = self.requests = 0
        self.observation: ConnectionObservation | None = None

    # ---- the connection ---------------------------------------------------------------------------------------

    async def _request(self, operation: Operation, partitions: Collection[TopicPartition], begun: int = -1) -> int:
        """Wait until the broker serves a request; return the incarnation of the connection. Raises the error of the
        request as a whole; the connection is lost with it.

        Args:
            operation: The kind of request.
            partitions: The partitions it is about.
            begun: The incarnation of the connection it was sent over, if it has waited at the broker since then.
        """
        self.requests += begun < 0
        incarnation = begun if begun >= 0 else await self._connected()
        try:
            await self._state.serve(
                operation,
                self._tuning.request_timeout,
                what=f"{operation} request to {self.broker.address}",
                partitions=partitions,
                broker=self.broker.id,
                ended=lambda: not self._is_connected(incarnation),
                has_waited=begun >= 0,
            )
            self._check_connection(incarnation)
        except OdradekError as error:
            self._disconnect(incarnation, error)
            raise
        self._failures = 0
        return incarnation

    async def _connected(self) -> int:
        """Connect, unless that is done; return the incarnation of the connection. Raises why it cannot be made."""
        incarnation = self.incarnation
        if self._is_connected(incarnation):
            return incarnation
        async with self._connecting:
            self._check_incarnation(incarnation)  # all who wait fail with the attempt
            try:
                await self._connect()
            except OdradekError as error:
                self._disconnect(incarnation, error)
                raise
        return incarnation

    async def _connect(self) -> None:
        if self._is_connected(self.incarnation):
            return
        if any(request.sent for request in self._requests):  # the broker was stopped in this very step
            raise ConnectionLost(self.broker.address, "the broker was stopped", True)
        self._start = 0
        await anyio.lowlevel.checkpoint()
        await anyio.sleep_until(self.available_at)
        if self.observation is not None:
            self.observation.connecting()
        timeout, what = self._tuning.connect_timeout, f"connecting to {self.broker.address}"
        await self._state.serve("connect", timeout, what=what, broker=self.broker.id)
        self._start = self._state.start_of(self.broker)
        if not self._start:
            raise Unreachable("tcp", self.broker.address, "the broker is stopped")
        self.connects += 1
        if self.observation is not None:
            self.observation.opened()
        for request in self._requests:
            self._send(request)

    @property
    def is_connected(self) -> bool:
        """True while there is a connection."""
        return self._is_connected(self.incarnation)

    def _is_connected(self, incarnation: int) -> bool:
        return 0 < self._start == self._state.start_of(self.broker) and incarnation == self.incarnation

    def _check_connection(self, incarnation: int) -> None:
        self._check_incarnation(incarnation)
        if not self._is_connected(incarnation):
            raise ConnectionLost(self.broker.address, "the broker was stopped", True)

    def _check_incarnation(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            raise copy(self._lost)

    def cut(self, error: OdradekError, applied: int) -> None:
        """Lose the connection, if there is one, after carrying out this many of its produce requests."""
        if self._is_connected(self.incarnation):
            for request in islice(self._requests, applied):
                self._apply(request)
            self._disconnect(self.incarnation, error)

    def _disconnect(self, incarnation: int, error: OdradekError) -> None:
        """Lose a connection, unless that has happened: everything outstanding on it fails."""
        if incarnation != self.incarnation:
            return
        self.incarnation += 1
        self.losses += self._start > 0
        self._start, self._lost = 0, error
        self.available_at = anyio.current_time() + self._tuning.backoff.delay(self._failures, JITTER)
        self._failures += 1
        if self.observation is not None:
            self.observation.ended(str(error))
        outstanding, self._requests = self._requests, deque()
        for request in outstanding:
            request.resolve((), copy(error))

    # ---- produce ----------------------------------------------------------------------------------------------

    def encode(self, batch: PartitionBatch, max_message_bytes: int) -> None:
        """Check sizes, those of the records or that of a compressed batch: see `BrokerClient.encode`. A cluster in
        memory stores records, not bytes."""
        records = [as_record(record) for record in batch.records]
        sizes = map(record_bytes, records) if batch.compression == "none" else [compressed_bytes(records)]
        for size in sizes:
            if size > max_message_bytes:
                raise MessageTooLarge(str(batch.partition), -1, size, max_message_bytes, "max_message_bytes")
        batch.encoded = b""

    def produce(self, batches: Sequence[PartitionBatch], *, acks: int) -> MemoryProduce:
        """Queue a produce request: see `BrokerClient.produce`."""
        request = MemoryProduce(self, batches, acks)
        request.observation = None if self.observation is None else self.observation.of("Produce")
        self._requests.append(request)
        if self._is_connected(self.incarnation):
            self._send(request)
        self._work.notify()
        return request

    def _send(self, request: MemoryProduce) -> None:
        """Hand a request to the broker, which serves one after the other."""
        request.sent = True
        if request.batches:  # with copies of their records: a batch that was written begins again with the same list
            batches = tuple(MemoryBatch(each.partition, each.records[:], each.compression) for each in request.batches)
            counts = {batch.partition: len(batch.records) for batch in batches}
            self._state.receive(MemoryRequest("produce", self.broker.id, counts, batches, request.acks))

    def produce_plain(self, batches: Sequence[PartitionBatch], *, acks: int, max_message_bytes: int) -> None:
        """Return None: nothing is encoded."""

    def withdraw(self, request: MemoryProduce) -> bool:
        """Take a request back, unless it has been sent."""
        if request.sent or request not in self._requests:
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
        try:
            await self._connected()
            if not self._requests:  # all were withdrawn before there was a connection
                return
            first = self._requests[0]
            partitions = [batch.partition for batch in first.batches]
            incarnation = await self._request("produce", partitions)
        except OdradekError:
            return  # `_disconnect` passed it on
        try:
            results = self._apply(first)
            lost = self._state.faults.request_error("produce", partitions, self.broker.id, applied=True)
            if lost is not None:
                raise lost
        except OdradekError as error:
            self._disconnect(incarnation, error)
            return
        self._requests.popleft()
        first.resolve(results if first.acks else [PartitionResult(batch.partition) for batch in first.batches])

    def _apply(self, request: MemoryProduce) -> list[PartitionResult]:
        """Carry out a request."""
        results = [self._append(batch) for batch in request.batches]
        self._state.changed.notify()
        return results

    def _append(self, batch: PartitionBatch) -> PartitionResult:
        partition = batch.partition
        if (error := self._state.error_of("produce", partition, self.broker.id)) is not None:
            return PartitionResult(partition, error)
        records = list(map(as_record, batch.records))
        if (refused := self._refusal(batch, records)) is not None:
            return refused
        log, stamp = self._state.logs[partition], batch.stamp
        if stamp is not None:
            try:
                if stamp.producer.transactional_id is not None:
                    self._state.transactions.add_partition(stamp)
                if (position := log.stored_before(stamp)) is not None:
                    return PartitionResult(partition, None, position)
            except BrokerError as error:
                return PartitionResult(partition, error)
        now_ms, times = self._state.now_ms(), self._state.timestamp_type(partition.topic)
        stored = log.append(records, now_ms, stamp, times)
        stored_at = now_ms if times is TimestampType.LOG_APPEND_TIME else None
        return PartitionResult(partition, None, Position(stored[0].offset) if stored else None, stored_at)

    def _refusal(self, batch: PartitionBatch, records: Sequence[ProducerRecord]) -> PartitionResult | None:
        """Return why the configuration of its topic does not allow a batch, or None."""
        partition = batch.partition
        if self._state.needs_keys(partition.topic):
            where = f"{partition.topic}-{partition.partition}"
            why = f"Compacted topic cannot accept message without key in topic partition {where}."
            missing = {row: why for row, record in enumerate(records) if record.key is None}
            if missing:
                error = broker_error(ErrorCode.INVALID_RECORD, f"produce to {partition}")
                return PartitionResult(partition, error, record_errors=missing)
        if late := self._timestamp_errors(partition.topic, records):
            error = broker_error(ErrorCode.INVALID_TIMESTAMP, f"produce to {partition}")
            return PartitionResult(partition, error, record_errors=late)
        limit, size = self._state.largest_batch(partition.topic), sum(map(record_bytes, records))
        if size > limit and batch.compression != "none":
            size = compressed_bytes(records)
        if size <= limit:
            return None
        too_large = batch_error(batch, ErrorCode.MESSAGE_TOO_LARGE, f"produce to {partition}", size)
        return PartitionResult(partition, too_large)

    def _timestamp_errors(self, topic: str, records: Sequence[ProducerRecord]) -> dict[int, str]:
        """Return why the timestamps of records are refused, by row."""
        if self._state.timestamp_type(topic) is TimestampType.LOG_APPEND_TIME:
            return {}
        limits = self._state.timestamp_limits(topic)
        return {
            row: f"Timestamp {record.timestamp} is out of range: [{limits[0]}, {limits[-1]}]"
            for row, record in enumerate(records)
            if record.timestamp is not None and record.timestamp not in limits
        }

    # ---- fetch ------------------------------------------------------------------------------------------------

    async def fetch(self, fetches: Sequence[PartitionFetch], *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        """Fetch partitions: see `BrokerClient.fetch`. Cancellation: safe."""
        with nullcontext() if self.observation is None else self.observation.request("Fetch"):
            await self._fetch(fetches, max_wait, min_bytes)

    async def _fetch(self, fetches: Sequence[PartitionFetch], max_wait: float, min_bytes: int) -> None:
        partitions = {fetch.decoder.partition: fetch.max_bytes for fetch in fetches}
        incarnation = await self._request("fetch", partitions)
        if max_wait and min_bytes:
            await self._wait_for_records(fetches, max_wait, incarnation)
            await self._request("fetch", partitions, incarnation)
        records_left = math.inf
        if (cut := self._state.faults.cut_of_fetch(partitions, self.broker.id)) is not None:
            records_left = cut[0]
        for fetch in fetches:
            records_left -= self._read(fetch, records_left)
        if cut is not None:
            self._disconnect(incarnation, cut[1])
            raise cut[1]

    async def _wait_for_records(self, fetches: Sequence[PartitionFetch], max_wait: float, incarnation: int) -> None:
        """Wait until there is something to answer, the time is over, or a test wants the request to wait or to fail."""
        changed, faults = self._state.changed, self._state.faults
        deadline = anyio.current_time() + max_wait
        partitions = [fetch.decoder.partition for fetch in fetches]
        while not any(self._has_answer(fetch) for fetch in fetches):
            left = deadline - anyio.current_time()
            if left <= 0 or not self._is_connected(incarnation) or faults.stops("fetch", partitions, self.broker.id):
                return
            await changed.wait(changed.version, left)

    def _has_answer(self, fetch: PartitionFetch) -> bool:
        """Return True if a fetch of this partition brings records or an error."""
        partition = fetch.decoder.partition
        decoder, log = _decoder_of(fetch), self._state.logs.get(partition)
        server = self._state.replica_of(partition)
        if server is None and (leader := self._state.table.leader(partition)) is not None:
            server = leader.id
        if log is None or server != self.broker.id or self._state.is_other_topic(partition.topic, decoder.topic_id):
            return True
        position, end = decoder.fetch_position, log.last_stable if decoder.read_committed else log.end
        return position < end or log.error_at(position, decoder.leader_epoch) is not None

    def _read(self, fetch: PartitionFetch, max_records: float) -> int:
        """Answer for one partition. Return how many records that took, at most `max_records`."""
        decoder, partition = _decoder_of(fetch), fetch.decoder.partition
        position = fetch.start()
        if (error := self._state.error_of("fetch", partition, self.broker.id, decoder.topic_id)) is not None:
            fetch.error = error
            return 0
        if (replica := self._state.replica_of(partition)) not in (None, self.broker.id):
            fetch.preferred_replica = replica
            return 0
        log = self._state.logs[partition]
        fetch.high_watermark, fetch.last_stable, fetch.log_start = log.end, log.last_stable, log.start
        if (error := log.error_at(position, decoder.leader_epoch)) is not None:
            fetch.error = error
            return 0
        records, until = log.read(position, fetch.max_bytes, read_committed=decoder.read_committed)
        if len(records) > max_records:
            until = Position(records[int(max_records)].offset)
            del records[int(max_records) :]
        decoder.accept(records, until, log.corrupt, len(log.truncations))
        # What is left out here has bytes at a real broker, by which a client sees that there was an answer.
        fetch.received = sum(record_bytes(stored.record) for stored in records) or until - position
        return len(records)

    # ---- positions --------------------------------------------------------------------------------------------

    async def resolve_position(
        self, partition: TopicPartition, at: PositionSpec | AtTime, *, read_committed: bool = False
    ) -> Position:
        """Return the position of `at`; of a time, that of the first record at or after it, or the end."""
        position = (await self.positions(partition, at))[0]
        return min(position, self._state.logs[partition].last_stable) if read_committed else position

    async def resolve_positions(
        self, wanted: Mapping[TopicPartition, PositionSpec | AtTime], *, read_committed: bool = False
    ) -> Mapping[TopicPartition, Position | OdradekError]:
        """Resolve positions, one by one (see `BrokerClient.resolve_positions`). Cancellation: safe."""

        async def resolve(asked: tuple[TopicPartition, PositionSpec | AtTime]) -> Position:
            return await self.resolve_position(*asked, read_committed=read_committed)

        return dict(zip(wanted, await gather_outcomes(resolve, wanted.items()), strict=True))

    async def positions(
        self, partition: TopicPartition, at: PositionSpec | AtTime, count: int = 1
    ) -> Sequence[Position]:
        """Return positions at or before `at`, newest first: see `BrokerClient.positions`. Cancellation: safe."""
        with nullcontext() if self.observation is None else self.observation.request("ListOffsets"):
            await self._request("positions", [partition])
        if (error := self._state.error_of("positions", partition, self.broker.id)) is not None:
            raise error
        log = self._state.logs[partition]
        return log.newest_before(_position_of(log, at), count)

    def decoder(self, partition: TopicPartition, position: Position, options: DecoderOptions) -> MemoryDecoder:
        """Return a decoder of this partition's records."""
        return MemoryDecoder(partition, position, options, self._topic_id(partition.topic))


def _decoder_of(fetch: PartitionFetch) -> MemoryDecoder:
    decoder = fetch.decoder
    assert isinstance(decoder, MemoryDecoder)
    return decoder


def _position_of(log: MemoryLog, at: PositionSpec | AtTime) -> Position:
    if isinstance(at, AtTime):
        return log.at_time(time_ms(at))
    return log.start if at is PositionSpec.EARLIEST else log.end
