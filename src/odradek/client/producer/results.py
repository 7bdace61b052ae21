"""What became of records: acks, failures, and those who wait for them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from odradek.core.interfaces import ProducerRecord
from odradek.core.produce.batch import TopicQueues
from odradek.errors import DeliveryError, NotWritten, OdradekError, OutcomeUnknown, Rejected, Undelivered
from odradek.io.requests import wake
from odradek.types import Position, TopicPartition

__all__ = [
    "KEPT_FAILURES",
    "Ack",
    "Acks",
    "BufferWaiter",
    "BufferWaiters",
    "Failed",
    "Failures",
    "PendingSend",
    "undelivered",
]

KEPT_FAILURES = 10_000
"""So many failed records are kept for the user; more are only counted. Full buffers can fail all at once, again and
again, while nobody looks."""


class Ack(NamedTuple):
    """Records that were written together.

    Args:
        partition: Where they are.
        position: Where the batch they travelled in starts, where the cluster says so (0.7 does not).
        records: How many.
        confirmed: The broker has appended them. Not yet: flushed to disk, or visible to consumers. False: they were
            handed to the network (`confirm=False`).
        repeated: An earlier attempt may have been applied as well, so they may be there twice.
    """

    partition: TopicPartition
    position: Position | None
    records: int
    confirmed: bool
    repeated: bool


class Failed(NamedTuple):
    """A record that was not (surely) written.

    Args:
        record: As it was to be sent.
        topic: Its topic.
        partition: Its partition, if it had one by then.
        error: Rejected, NotWritten or Unknown (or Unsupported), which says what is known. Records of one batch
            share it.
    """

    record: ProducerRecord
    topic: str
    partition: TopicPartition | None
    error: OdradekError


@dataclass(frozen=True, slots=True, repr=False)
class Acks:
    """What became of one `send_many`.

    Args:
        acks: One for each run of records written together, in the order they were written.
        failed: Each record that was not, with its error. Look at it, or call `check`.
    """

    acks: Sequence[Ack]
    failed: Sequence[Failed]

    @property
    def written(self) -> int:
        """How many records were written."""
        return sum(ack.records for ack in self.acks)

    @property
    def counts(self) -> Mapping[TopicPartition, int]:
        """How many records were written to each partition."""
        counts: Counter[TopicPartition] = Counter()
        for ack in self.acks:
            counts[ack.partition] += ack.records
        return counts

    def check(self) -> Acks:
        """Itself, if everything was written. Raises DeliveryError with the failed records otherwise."""
        if self.failed:
            raise DeliveryError(self.failed, _reasons(self.failed))
        return self

    def __repr__(self) -> str:
        places = len(self.counts)
        return f"<{type(self).__name__} {self.written} written to {places} partitions, {len(self.failed)} failed>"


class Failures:
    """Outcomes nobody waited for: failed records of `put` and `try_put`, and of cancelled `send`s.

    Iterating looks at them; `take` hands them over. What is still here when the producer exits is part of its
    Undelivered. The first 10,000 are kept; `more` counts the rest.
    """

    def __init__(self) -> None:
        self._kept: list[Failed] = []
        self.more = 0

    def add(self, failed: Failed) -> None:
        if len(self._kept) < KEPT_FAILURES:
            self._kept.append(failed)
        else:
            self.more += 1

    def take(self) -> list[Failed]:
        """Give them up, oldest first, and start counting anew."""
        taken, self._kept, self.more = self._kept, [], 0
        return taken

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[Failed]:
        return iter(self._kept)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} kept, {self.more} more>"


class PendingSend:
    """One `send` or `send_many`: the tag on its records. Its caller waits for all of them.

    Args:
        loop: Asyncio's, if that is what runs: waiting takes 3 us less with it.
    """

    __slots__ = ("_loop", "_tell", "acks", "failed", "left", "live")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.acks: list[Ack] = []
        self.failed: list[Failed] = []
        self.left = 0
        self.live = True
        self._loop = loop
        self._tell: Callable[[], None] | None = None

    def written(self, ack: Ack) -> None:
        self.acks.append(ack)
        self._over(ack.records)

    def lost(self, failed: Failed) -> None:
        self.failed.append(failed)
        self._over(1)

    async def wait(self) -> None:
        """Until every record has an outcome. No more records may come."""
        if not self.left:
            await checkpoint()
        elif self._loop is not None:
            waiter = self._loop.create_future()
            self._tell = partial(wake, waiter)
            await waiter
        else:
            event = anyio.Event()
            self._tell = event.set
            await event.wait()

    def abandon(self, failures: Failures) -> None:
        """Nobody waits any more: failures, past and to come, go where those of `put` go."""
        self.live = False
        for failed in self.failed:
            failures.add(failed)
        self.failed = []

    def _over(self, records: int) -> None:
        self.left -= records
        if not self.left and self._tell is not None:
            self._tell()


@dataclass(slots=True, eq=False)
class BufferWaiter:
    """A record in front of a full buffer. Whoever makes room takes it in, so that no room is ever given to a caller
    who has gone meanwhile."""

    topic: TopicQueues
    size: int
    record: bytes | ProducerRecord
    partition: TopicPartition | None
    call: PendingSend | None
    taken: bool = False
    error: Exception | None = None
    event: anyio.Event = field(default_factory=anyio.Event)


class BufferWaiters(OrderedDict[BufferWaiter, None]):
    """Who waits for room, first come, first served. Every step takes the same time for any number of waiters."""

    def first(self) -> BufferWaiter | None:
        return next(iter(self), None)

    def join(self, waiter: BufferWaiter) -> None:
        self[waiter] = None

    def leave(self, waiter: BufferWaiter) -> None:
        self.pop(waiter, None)


def undelivered(failures: Failures) -> Undelivered:
    """The error of an exit that leaves these behind."""
    why = _reasons(list(failures))
    return Undelivered(list(failures), f"{why}; and {failures.more} more" if failures.more else why)


def _reasons(failed: Sequence[Failed]) -> str:
    """`3 not written, 1 unknown; first: no broker ...`"""
    words: dict[type[OdradekError], str] = {Rejected: "rejected", NotWritten: "not written", OutcomeUnknown: "unknown"}
    counts = Counter(words.get(type(each.error), type(each.error).__name__) for each in failed)
    first = failed[0].error
    why = first.why if isinstance(first, DeliveryError) else str(first)
    return f"{', '.join(f'{count} {word}' for word, count in counts.items())}; first: {why}"
