"""The values of the accumulator: batches, requests in flight, effects. Its rules are in `core.produce.accumulator`."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.core.interfaces import PartitionBatch, PartitionResult, PendingResult, ProducerRecord
from odradek.core.produce.batch_states import BATCH, BatchEvent, BatchState
from odradek.core.produce.packed_records import EncodedRecords
from odradek.errors import DeliveryError, OdradekError

if TYPE_CHECKING:
    from collections import deque

    from odradek.core.produce.partition_queue import PartitionQueue

__all__ = [
    "PACKED_OVERHEAD_BYTES",
    "RECORD_OVERHEAD_BYTES",
    "AccumulatorLimits",
    "BrokerProduceRequest",
    "Effects",
    "FlushWaiter",
    "ProduceBatch",
    "are_small",
    "as_record",
    "as_records",
]

RECORD_OVERHEAD_BYTES = 120
"""Memory of a queued record beyond its bytes on the wire: its tuple, its bytes object, a list slot.
Without it a buffer full of tiny records would take ten times its limit."""

PACKED_OVERHEAD_BYTES = 8
"""The same for a record in columns: its offset. What further columns have is less than what its bytes on the wire have
beside value, key and headers."""

FEW_RECORDS = 64
"""Batches of at most this many records, on average, are encoded together: for larger ones, what a batch costs is little
beside what its records cost, and joining their bytes would be one more copy of each."""


def as_record(record: bytes | ProducerRecord) -> ProducerRecord:
    """Return the record that a plain value, or a tuple of the fields of a record, stands for."""
    if isinstance(record, ProducerRecord):
        return record
    return ProducerRecord(record) if isinstance(record, bytes) else ProducerRecord(*record)


def as_records(records: Iterable[bytes | ProducerRecord]) -> list[ProducerRecord]:
    """Return records as users see them. Those of an encoded batch that cannot be decoded are empty."""
    if isinstance(records, EncodedRecords) and records.damage() is not None:
        return [ProducerRecord(None)] * len(records)
    return list(map(as_record, records))


def are_small(batches: Sequence[PartitionBatch]) -> bool:
    """Return True if it pays to encode batches together (`BrokerClient.produce_plain`), also a single one: they have
    few records, and none is encoded already or to be compressed."""
    records = 0
    for batch in batches:
        if batch.encoded is not None or batch.compression != "none":
            return False
        records += len(batch.records)
    return 0 < records <= FEW_RECORDS * len(batches)


@dataclass(frozen=True, slots=True)
class AccumulatorLimits:
    """The numbers the accumulator decides by. Sizes in bytes, times in seconds.

    `compressed_batch_bytes` is the size, before that, of a batch that is to be compressed, where it is less than
    `batch_bytes`. `partition_in_flight` is the most batches of one partition in flight: 1 where a broker can refuse one
    of them and accept the next.
    """

    buffer_bytes: int
    batch_bytes: int
    request_bytes: int
    in_flight: int
    latency: float
    deliver_within: float
    reorder: bool = False
    partition_in_flight: int = sys.maxsize
    compressed_batch_bytes: int = sys.maxsize


class _Transitions(dict[tuple[BatchState, BatchEvent], BatchState]):
    """The table BATCH, looked up without a Python call, because small batches are many."""

    def __missing__(self, pair: tuple[BatchState, BatchEvent]) -> BatchState:
        return BATCH.after(*pair)  # raises


_next_state = _Transitions(BATCH.transitions)
_FINISHED, _QUEUED = BatchState.FINISHED, BatchState.QUEUED
_ANSWER, _FINISH, _PART, _QUEUE = BatchEvent.ANSWER, BatchEvent.FINISH, BatchEvent.PART, BatchEvent.QUEUE
_REPLACE, _RETURN, _REUSE, _SEND = BatchEvent.REPLACE, BatchEvent.RETURN, BatchEvent.REUSE, BatchEvent.SEND


class ProduceBatch(PartitionBatch):
    """The records of one partition that travel together: a list in which a record that is only a value is that value,
    and any other a `ProducerRecord` or a tuple of its fields; or a `PackedBytes`, `PackedRecords` or `EncodedRecords`,
    to which nothing is added. One that was written may begin again (see `LiveBatches.reuse`).

    Its methods alone write what it goes through, by the table BATCH (`batch_states`).

    Args:
        queue: The queue of its partition.
        sequence: Its age: parts of a batch that was split share it.
        created_at: When its first record was appended (s).
        explicit_partition: Its records were sent to this very partition, so they never move to another.

    Other attributes:
        waiter_runs: `[start, stop, waiter]` in order: which rows have a caller waiting for them. A list once one has.
        size: Bytes on the wire, uncompressed.
        state: See `BatchState`.
        waiting_queue: Queue of its broker in which it waits to be sent, if it is the next of its partition.
        in_former_queue: It has been withdrawn from such a queue, which may still have it, or waits in two of them.
        taken_back: It was taken out of a request that was not sent, for which a thread may still be encoding it.
        request: The request it is in flight with, also after it was finished meanwhile.
        attempts: How often it was sent.
        overdue: Reason why the outcome of the request it is in flight with is final: its time ran out, or it was given
            up, meanwhile.
        last_error: How the last attempt failed.
        result: The broker's answer, if it was written and there is one.
        error: Why it was not, or may not be.
    """

    __slots__ = (
        "attempts",
        "created_at",
        "error",
        "in_former_queue",
        "last_error",
        "overdue",
        "queue",
        "request",
        "result",
        "sequence",
        "state",
        "taken_back",
        "waiter_runs",
        "waiting_queue",
    )

    def __init__(self, queue: PartitionQueue, sequence: int, created_at: float, explicit_partition: bool) -> None:
        self.queue, self.sequence, self.created_at = queue, sequence, created_at
        self.explicit_partition = explicit_partition
        topic = queue.topic
        self.partition, self.compression, self.max_size = queue.partition, topic.compression, topic.batch_bytes
        self.attempts = self.isolate_with = self.refusals = self.size = 0
        self.encoded = self.stamp = self.encoded_stamp = None
        self.state = BatchState.QUEUED
        self.in_former_queue = self.may_be_written = self.taken_back = False
        self.overdue = ""
        self.error: DeliveryError | None = None
        self.last_error: OdradekError | None = None
        self.records: Any = []  # list[bytes | ProducerRecord] | PackedBytes | PackedRecords | EncodedRecords
        self.request: BrokerProduceRequest | None = None
        self.result: PartitionResult | None = None
        self.waiter_runs: list[list[Any]] | tuple[()] = ()
        self.waiting_queue: deque[ProduceBatch] | None = None

    def begin_again(self, queue: PartitionQueue, sequence: int, created_at: float, explicit_partition: bool) -> None:
        """Make a batch that may be used again (`LiveBatches.reuse`) equal to a new one."""
        self.queue, self.sequence, self.created_at = queue, sequence, created_at
        self.explicit_partition = explicit_partition
        topic = queue.topic
        self.partition, self.compression, self.max_size = queue.partition, topic.compression, topic.batch_bytes
        self.attempts = self.size = 0
        self.encoded = self.stamp = self.encoded_stamp = self.result = None
        self.state = _next_state[self.state, _REUSE]

    # ---- its state -----------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """True if it has an outcome."""
        return self.state is _FINISHED

    def begin_as_part(self, whole: ProduceBatch) -> None:
        """Make a new batch one for records of another, which is about to be replaced."""
        self.state = _next_state[self.state, _PART]
        self.attempts, self.last_error = whole.attempts, whole.last_error

    def wait_in(self, waiting: deque[ProduceBatch]) -> None:
        """Note in which queue of its broker it waits. One it was in before still has it, and drops it at the front."""
        self.in_former_queue = self.in_former_queue or self.waiting_queue is not None
        self.waiting_queue = waiting

    def withdraw(self) -> None:
        """Note that it waits in no queue of a broker any more, although that queue still has it."""
        self.waiting_queue, self.in_former_queue = None, True

    def send(self, request: BrokerProduceRequest) -> None:
        """Note the request that takes it."""
        self.state = _next_state[self.state, _SEND]
        self.request, self.waiting_queue = request, None
        self.attempts += 1

    def answer(self) -> None:
        """Note that its request has a result. Nothing changes if it was finished while it was in flight."""
        self.state = _next_state[self.state, _ANSWER]
        self.request = None

    def forget_attempt(self) -> None:
        """Count the last attempt as none: it was not sent."""
        self.attempts -= 1
        self.taken_back = True

    def note_failure(self, error: OdradekError) -> None:
        """Note how an attempt failed. A batch that may be written remains so, whatever becomes of later attempts."""
        self.last_error = error
        self.may_be_written = self.may_be_written or error.sent

    def note_overdue(self, why: str) -> None:
        """Note why it is not sent again: its time ran out, or it was given up, while it is in flight."""
        self.overdue = why

    def take_back(self) -> None:
        """Note that it is to be sent again."""
        self.state = _next_state[self.state, _RETURN]

    def queue_again(self) -> None:
        """Note that it is in the queue of its partition again."""
        self.state = _next_state[self.state, _QUEUE]

    def finish(self, result: PartitionResult | None = None) -> bool:
        """Note that it has an outcome; return True if it was in the queue of its partition."""
        before = self.state
        self.state, self.result = _next_state[before, _FINISH], result
        return before is _QUEUED

    def replace(self) -> bool:
        """Note that its records are in other batches; return True if it was in the queue of its partition."""
        before = self.state
        self.state = _next_state[before, _REPLACE]
        return before is _QUEUED

    # ---- its records ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.records)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the buffer it takes."""
        records = self.records
        if type(records) is list:
            return self.size + RECORD_OVERHEAD_BYTES * len(records)
        if type(records) is EncodedRecords:
            return self.size + RECORD_OVERHEAD_BYTES
        return self.size + PACKED_OVERHEAD_BYTES * len(records)

    def add(self, records: Sequence[Any], start: int, stop: int) -> None:
        """Append `records[start:stop]`. What is not a list only if the batch is empty, and nothing after it."""
        if isinstance(records, list):
            self.records += records[start:stop]
        else:
            self.records = records[start:stop]

    def as_records(self) -> list[ProducerRecord]:
        """Return its records as users see them."""
        return as_records(self.records)

    def add_waiter(self, start: int, stop: int, waiter: object) -> None:
        """Note who waits for these rows, which follow all rows noted before."""
        runs = self.waiter_runs
        if not runs:
            self.waiter_runs = [[start, stop, waiter]]
        elif runs[-1][2] is waiter and runs[-1][1] == start:
            runs[-1][1] = stop
        else:
            runs.append([start, stop, waiter])

    def waiters(self) -> list[Any]:
        """Return the waiter of every record, None where there is none."""
        waiters: list[Any] = [None] * len(self.records)
        for start, stop, waiter in self.waiter_runs:
            waiters[start:stop] = [waiter] * (stop - start)
        return waiters

    def fail(self, kind: type[DeliveryError], why: str, cause: BaseException | None, hint: str = "") -> None:
        """Set its `error`."""
        self.error = kind(self.as_records(), why)
        self.error.hint, self.error.__cause__ = hint, cause

    def __repr__(self) -> str:
        state = "open" if self.queue.open is self else self.state.name.lower().replace("_", " ")
        return f"<{type(self).__name__} {self.partition} {len(self)} records {self.size} bytes {state}>"


@dataclass(slots=True, eq=False)
class BrokerProduceRequest:
    """Batches that go to one broker in one request.

    Args:
        broker: Its id.
        batches: At most one per partition, oldest first.
        isolated: Nothing else may be in flight to that broker.
        compressed: A batch of it is not encoded yet and has to be compressed, which may take long.
        encoding: Number of its batches that threads are still encoding.
        pending: Its result, once it has been handed to a connection.
        probe: The result of an empty request right before it, if it is isolated.
        unencodable: Batches that cannot be written as they are, and why.
    """

    broker: int
    batches: list[ProduceBatch]
    isolated: bool
    compressed: bool = False
    encoding: int = 0
    pending: PendingResult[Sequence[PartitionResult] | None] | None = None
    probe: PendingResult[Sequence[PartitionResult] | None] | None = None
    unencodable: list[tuple[ProduceBatch, OdradekError]] = field(default_factory=list)


class Effects(NamedTuple):
    """Effects for the caller to carry out after the state of the accumulator has changed.

    Args:
        finished: Batches with an outcome, each returned once: report it to their callers.
        due: Brokers for which `next_request` may have something now.
        refresh_metadata: A broker said that the routing table is stale.
        back_off: Partitions of which the broker answered that a batch has to be sent again later (see
            `BrokerQueue.back_off`), and how often it was sent already.
        fatal: The producer cannot continue, or another one has taken its place.
    """

    finished: Sequence[ProduceBatch] = ()
    due: Collection[int] = ()
    refresh_metadata: bool = False
    back_off: Mapping[PartitionQueue, int] = MappingProxyType({})
    fatal: OdradekError | None = None


@dataclass(slots=True, eq=False)
class FlushWaiter:
    """Everything appended up to `last`; over when `left` is 0."""

    last: int
    left: int
