"""Outcomes of records: acks, failures, and the callers that wait for them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from odradek.core.interfaces import ProducerRecord
from odradek.core.produce.batch import RECORD_OVERHEAD_BYTES, as_records
from odradek.core.produce.packed_records import EncodedRecords
from odradek.core.produce.partition_queue import TopicQueues
from odradek.errors import DeliveryError, NotWritten, OdradekError, OutcomeUnknown, Rejected, Undelivered
from odradek.types import Position, TopicPartition

__all__ = [
    "MAX_KEPT_FAILURES",
    "Ack",
    "Acks",
    "BufferWaiter",
    "BufferWaiters",
    "Failed",
    "Failures",
    "PendingSend",
    "Purged",
    "undelivered",
]

MAX_KEPT_FAILURES = 10_000
"""Maximum failed records kept; further ones are only counted. A full buffer can fail repeatedly while the user is not
looking."""


class Ack(NamedTuple):
    """Records that were written together.

    Args:
        partition: Where they are.
        position: Where the first of them is, if the cluster says so; the others are at the positions behind it, one
            each. They are None from 0.7, whose brokers do not say where a record is (and count bytes); with `acks=0`;
            and where a broker only says that it had the records from an earlier attempt.
        records: How many.
        confirmed: The broker has acknowledged them; in 0.7: it has appended what it accepts, which is neither flushed
            to disk nor visible to consumers yet. False: they were handed to the network (`acks=0`).
        repeated: An earlier attempt may have been applied as well, so they may be in the log twice. Never so where the
            producer is idempotent.
        timestamp: The time the broker gave them (ms since the epoch), if it did.
    """

    partition: TopicPartition
    position: Position | None
    records: int
    confirmed: bool
    repeated: bool
    timestamp: int | None = None


class Failed(NamedTuple):
    """A record that was not written, or not for certain.

    Args:
        record: As it was to be sent.
        topic: Its topic.
        partition: Its partition, if it had one by then.
        error: Rejected, NotWritten or OutcomeUnknown (or Unsupported), which says what is known. Records of one batch
            share it.
    """

    record: ProducerRecord
    topic: str
    partition: TopicPartition | None
    error: OdradekError


class Purged(NamedTuple):
    """Result of `Producer.purge`, in numbers of records.

    Args:
        not_written: They failed with NotWritten.
        unknown: They failed with OutcomeUnknown: an attempt may have been written.
        in_flight: They are on their way, and will have their outcome by the end of that request.
    """

    not_written: int
    unknown: int
    in_flight: int


@dataclass(frozen=True, slots=True, repr=False)
class Acks:
    """The outcome of one `send_many`.

    Args:
        acks: One for each run of records written together, in the order they were written.
        failed: Each record that was not written, with its error. Look at it, or call `check`.
    """

    acks: Sequence[Ack]
    failed: Sequence[Failed]

    @property
    def written(self) -> int:
        """Number of records written."""
        return sum(ack.records for ack in self.acks)

    @property
    def counts(self) -> Mapping[TopicPartition, int]:
        """Number of records written to each partition."""
        counts: Counter[TopicPartition] = Counter()
        for ack in self.acks:
            counts[ack.partition] += ack.records
        return counts

    def check(self) -> Acks:
        """Return itself if everything was written. Raise DeliveryError with the failed records otherwise."""
        if self.failed:
            raise DeliveryError(self.failed, _reasons(self.failed))
        return self

    def __repr__(self) -> str:
        partitions = len(self.counts)
        return f"<{type(self).__name__} {self.written} written to {partitions} partitions, {len(self.failed)} failed>"


class Failures:
    """Failed records without a waiting caller: those of `put` and `try_put`, and of cancelled `send`s.

    Iterating looks at them; `take` hands them over. Records that are still here when the producer exits are part of its
    Undelivered. The first 10,000 are kept, as long as they fit into `max_bytes`; `more` counts the rest.

    Args:
        max_bytes: The most memory that the records may take (bytes).
    """

    def __init__(self, max_bytes: int) -> None:
        self._kept: list[Failed] = []
        self._max_bytes, self._bytes = max_bytes, 0
        self.more = 0

    def add(self, failed: Failed) -> None:
        size = _memory_of(failed.record)
        if len(self._kept) < MAX_KEPT_FAILURES and self._bytes + size <= self._max_bytes and not self.more:
            self._kept.append(failed)
            self._bytes += size
        else:
            self.more += 1

    def take(self) -> list[Failed]:
        """Return and forget them, oldest first, and start counting again."""
        taken, self._kept, self._bytes, self.more = self._kept, [], 0, 0
        return taken

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[Failed]:
        return iter(self._kept)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} kept, {self.more} more>"


class PendingSend:
    """One `send` or `send_many`: the waiter of its records. Its caller waits for all of them.

    Args:
        loop: Asyncio's, if that is what runs: waiting takes 3 us less with it.
    """

    __slots__ = ("_event", "_loop", "_waiter", "abandoned", "acks", "failed", "remaining")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.acks: list[Ack] = []
        self.failed: list[Failed] = []
        self.remaining = 0
        self.abandoned = False
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._event: anyio.Event | None = None

    def add_ack(self, ack: Ack) -> None:
        self.acks.append(ack)
        self._complete(ack.records)

    def add_failure(self, failed: Failed) -> None:
        self.failed.append(failed)
        self._complete(1)

    def wait(self) -> Awaitable[None]:
        """Return what to await at once, until every record has an outcome. No more records may come."""
        if not self.remaining:
            return checkpoint()
        if self._loop is not None:
            self._waiter = self._loop.create_future()
            return self._waiter
        self._event = anyio.Event()
        return self._event.wait()

    def abandon(self, failures: Failures) -> None:
        """Note that the caller has gone: failures, past and to come, go where those of `put` go."""
        self.abandoned = True
        for failed in self.failed:
            failures.add(failed)
        self.failed = []

    def _complete(self, records: int) -> None:
        self.remaining -= records
        if self.remaining:
            return
        if self._event is not None:
            self._event.set()
        elif self._waiter is not None and not self._waiter.done():  # else it was cancelled
            self._waiter.set_result(None)


@dataclass(slots=True, eq=False)
class BufferWaiter:
    """A record, or the records of an encoded batch, that wait for space in the buffer. The step that frees the space
    appends them, so that no space is given to a caller that has gone meanwhile."""

    topic: TopicQueues
    size: int
    record: bytes | ProducerRecord | EncodedRecords
    partition: TopicPartition | None
    send: PendingSend | None
    appended: bool = False
    error: Exception | None = None
    event: anyio.Event = field(default_factory=anyio.Event)

    def records(self) -> list[ProducerRecord]:
        """Return the records as users see them."""
        return as_records(self.record if isinstance(self.record, EncodedRecords) else [self.record])


class BufferWaiters(OrderedDict[BufferWaiter, None]):
    """Records that wait for space, first come, first served. Every step takes the same time for any number."""

    def first(self) -> BufferWaiter | None:
        return next(iter(self), None)

    def add(self, waiter: BufferWaiter) -> None:
        self[waiter] = None

    def remove(self, waiter: BufferWaiter) -> None:
        self.pop(waiter, None)

    def drop(self, why: str = "") -> int:
        """Wake all callers, whose records are not appended any more. With a reason, these fail with NotWritten; return
        how many they are."""
        waiters, count = tuple(self), 0
        self.clear()
        for waiter in waiters:
            records = waiter.records() if why else ()
            waiter.error = NotWritten(records, why) if why else None
            waiter.event.set()
            count += len(records)
        return count


def undelivered(failures: Failures) -> Undelivered:
    """Return the error of an exit that leaves these behind."""
    why = _reasons(list(failures))
    return Undelivered(list(failures), f"{why}; and {failures.more} more" if failures.more else why)


def _reasons(failed: Sequence[Failed]) -> str:
    """Return a summary: `3 not written, 1 unknown; first: no broker ...`."""
    names: dict[type[OdradekError], str] = {Rejected: "rejected", NotWritten: "not written", OutcomeUnknown: "unknown"}
    counts = Counter(names.get(type(each.error), type(each.error).__name__) for each in failed)
    first = failed[0].error
    why = first.why if isinstance(first, DeliveryError) else str(first)
    return f"{', '.join(f'{count} {name}' for name, count in counts.items())}; first: {why}"


def _memory_of(record: ProducerRecord) -> int:
    return len(record.value or b"") + len(record.key or b"") + RECORD_OVERHEAD_BYTES
