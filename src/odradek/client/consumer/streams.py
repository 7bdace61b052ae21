"""From the read-ahead to the user's `async for`: by batch and by record.

Cancellation moves nothing: rows leave the read-ahead in the same step in which they are returned, with no `await` in
between. For the same reason these are classes and not generators: a cancelled generator is a finished generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import anyio.lowlevel

from odradek.batch import Batch
from odradek.client.consumer.cursor import ExactPosition
from odradek.client.consumer.fetcher import Fetcher
from odradek.core.states import CursorState
from odradek.types import Columns, Record, TopicPartition

__all__ = ["Batches", "Stream"]

B = TypeVar("B", bound=Batch)

PAUSE_ROWS = 256
"""After so many rows whoever takes them lets others run, and can be cancelled. A checkpoint takes 2.5 us, and a turn of
the loop as much again: more than everything else about a small batch."""


class Stream(Generic[B]):
    """Records of some partitions, one by one (`async for`) or in batches. Several tasks may take batches from it, each
    goes to one of them; record by record is for one task at a time.

    Args:
        fetcher: Where they come from.
        make: Makes a batch of a partition's columns, in the same step in which they leave the read-ahead.
        number: Only partitions of this stream, or None for all.
        endless: Wait for more when every partition is read to its end.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        make: Callable[[TopicPartition, Columns], B],
        *,
        number: int | None = None,
        endless: bool = True,
    ) -> None:
        self._fetcher, self._make, self._number, self._endless = fetcher, make, number, endless
        self._rows: Iterator[Record] = iter(())
        self._guard = anyio.ResourceGuard("iterating over")
        self._taken_rows = 0  # since others could run
        self.batch: B | None = None
        """The batch whose records are being handed out one by one."""
        self.last: Record | None = None
        """The record the user has in hand."""

    async def next_batch(self, max_records: int | None = None, max_wait: float = 0.0) -> B | None:
        """The next batch, None at the end. Raises what a partition or a background task died of.

        Cancellation: safe, nothing is taken.
        """
        while True:
            await self._pause()
            count = self._fetcher.news.count
            taken = self._fetcher.take(self._number, max_records, max_wait)
            if not isinstance(taken, float):
                return self._made(*taken)
            if not self._endless and self._fetcher.over():
                return None
            await self._fetcher.news.wait(count, taken)

    async def _pause(self) -> None:
        """Let others run, now and then."""
        if self._taken_rows >= PAUSE_ROWS:
            self._taken_rows = 0
            await anyio.lowlevel.checkpoint()

    def _made(self, partition: TopicPartition, columns: Columns) -> B:
        self._taken_rows += len(columns.values)
        return self._make(partition, columns)

    async def next_batches(self, max_bytes: int) -> list[B]:
        """As `next_batch`, of several partitions together: payloads of at most `max_bytes`, but one row at least.
        Empty at the end.

        Cancellation: safe, nothing is taken.
        """
        while True:
            await self._pause()
            count = self._fetcher.news.count
            if taken := self._fetcher.take_some(self._number, max_bytes):
                return [self._made(partition, columns) for partition, columns in taken]
            if not self._endless and self._fetcher.over():
                return []
            await self._fetcher.news.wait(count)

    async def filled(self, max_bytes: int, max_wait: float) -> None:
        """Return once about so many bytes can be taken, or no more come for now; at most `max_wait` behind the first.

        Raises what a background task died of. Cancellation: safe, nothing is taken.
        """
        while True:
            count = self._fetcher.news.count
            self._fetcher.check()
            mine = [c for c in self._fetcher.cursors.values() if self._number in (None, c.stream)]
            ready = [c for c in mine if c.deliverable]
            wait = min((c.since for c in ready), default=math.inf) + max_wait - anyio.current_time()
            full = sum(c.holding.held for c in ready) >= max_bytes or any(c.starved for c in ready)
            last = not self._endless and all(c.state in (CursorState.BROKEN, CursorState.ENDED) for c in mine)
            if wait <= 0 or full or last:
                return
            await self._fetcher.news.wait(count, wait)

    def put_back(self, batches: Sequence[B]) -> None:
        """Take batches back that nobody has seen, to be delivered next."""
        for batch in reversed(batches):
            self._fetcher.put_back(batch.partition, batch.columns, len(batch))

    @property
    def raw(self) -> bool:
        """Entries that cannot be decoded are handed over as they are."""
        return self._fetcher.settings.decoder.corrupt == "raw"

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> Batches[B]:
        """Iterate by batch, each of one partition.

        Args:
            max_records: Most records of a batch; None: as many as came together.
            max_wait: With `max_records`: how long a batch may wait for more records after its first (s).
        """
        return Batches(self, max_records, max_wait)

    def __aiter__(self) -> Stream[B]:
        return self

    async def __anext__(self) -> Record:
        record = next(self._rows, None)
        if record is None:
            record = await self._next_row()
        self.last = record
        return record

    async def _next_row(self) -> Record:
        with self._guard:
            self.came_back()
            batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        self.batch, self._rows = batch, iter(batch)
        return next(self._rows)

    def came_back(self) -> None:
        """The user has asked for more: every record of the batch was handed out and processed."""
        self.batch = self.last = None

    def recall(self, partitions: Iterable[TopicPartition]) -> None:
        """Put the records not handed out yet back, if they are of one of `partitions`."""
        if self.batch is not None and self.batch.partition in partitions:
            rest = sum(1 for _ in self._rows)
            self._rows = iter(())
            self._fetcher.put_back(self.batch.partition, self.batch.columns, rest)

    def place(self) -> tuple[TopicPartition, ExactPosition] | None:
        """Where the partition of the record in hand goes on behind it, when it is being read record by record."""
        if self.last is None:
            return None
        r = self.last
        inside = r.next_position <= r.position
        return r.partition, ExactPosition(r.next_position, r.inner_index + 1 if inside else 0)


class Batches(Generic[B]):
    """`async for` over batches."""

    def __init__(self, stream: Stream[B], max_records: int | None, max_wait: float) -> None:
        self._stream, self._max_records, self._max_wait = stream, max_records, max_wait

    def __aiter__(self) -> Batches[B]:
        return self

    async def __anext__(self) -> B:
        batch = await self._stream.next_batch(self._max_records, self._max_wait)
        if batch is None:
            raise StopAsyncIteration
        return batch
