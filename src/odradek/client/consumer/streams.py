"""Streams for the user's `async for` over the read-ahead: by record, by batch, and by Arrow table.

Cancellation never loses records: rows leave the read-ahead in the same step in which they are returned, with no `await`
in between. For the same reason these are classes and not generators: a cancelled generator is a finished generator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
import anyio.lowlevel

from odradek.batch import Batch
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.options import BATCHES, TABLES
from odradek.core.fetch.read_range import ExactPosition
from odradek.types import Columns, Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowTables", "Batches", "Stream"]

B = TypeVar("B", bound=Batch)
D = TypeVar("D")
T = TypeVar("T")

YIELD_EVERY_ROWS = 8192
"""A task that takes this many rows lets others run, and can be cancelled. A step of the event loop receives up to some
2,000 records of 100 bytes: if the task took fewer in its own, the read-ahead would be full all the time, and every row
would come out of memory that is not in the processor's cache. It is as many rows as one partition gives at a time."""

BATCH_AS_ROWS = 64
"""Cost of taking a batch, in rows: many small batches are not to hold up other tasks for longer."""


class Stream(Generic[B]):
    """Records of some partitions, one by one (`async for`) or in batches. Several tasks may take batches from it, each
    goes to one of them; record by record is for one task at a time.

    Args:
        fetcher: Where they come from.
        make: Makes a batch of a partition's columns, in the same step in which they leave the read-ahead.
        number: Only partitions of this stream, or None for all.
        endless: Wait for more when every partition is read to its end.
        observed: Tell the observer of each batch that is taken.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        make: Callable[[TopicPartition, Columns], B],
        *,
        number: int | None = None,
        endless: bool = True,
        observed: bool = True,
    ) -> None:
        self._fetcher, self._make, self._number, self._endless = fetcher, make, number, endless
        self._observation = fetcher.observation if observed else None
        self._rows: Iterator[Record] = iter(())
        self._guard = anyio.ResourceGuard("iterating over")
        self._decoding_guard = anyio.ResourceGuard("iterating over")
        self._rows_since_yield = 0
        self.batch: B | None = None
        """The batch whose records are being handed out one by one."""
        self._topic_id: bytes | None = None  # of the topic that it is of
        self.last: Record | None = None
        """The record handed out last."""
        self._undecoded: Record | None = None  # the next one, while it is decoded

    async def next_batch(self, max_records: int | None = None, max_wait: float = 0.0) -> B | None:
        """Return the next batch, None at the end. Raises the error of a partition or of a background task.

        Cancellation: safe, nothing is taken.
        """
        fetcher = self._fetcher
        while True:
            if self._rows_since_yield >= YIELD_EVERY_ROWS:
                await self._yield()
            version = fetcher.available.version
            fetcher.check()
            now = anyio.current_time() if max_wait > 0 else 0.0  # nothing else needs it, and it costs a microsecond
            taken = fetcher.take(self._number, max_records, max_wait, now)
            if not isinstance(taken, float):
                return self._make_batch(*taken)
            if not self._endless and fetcher.finished:
                return None
            await fetcher.available.wait(version, taken)

    async def _yield(self) -> None:
        """Let other tasks run."""
        self._rows_since_yield = 0
        await anyio.lowlevel.checkpoint()

    def _make_batch(self, partition: TopicPartition, columns: Columns) -> B:
        rows = len(columns)
        self._fetcher.delivered += rows
        self._rows_since_yield += rows + BATCH_AS_ROWS
        if self._observation is not None:
            self._observation.delivered(partition, columns, self._fetcher.cursors[partition].queue)
        return self._make(partition, columns)

    async def next_batches(self, max_bytes: int) -> list[B]:
        """Return batches of several partitions: payloads of at most `max_bytes` together, but at least one row. Empty
        at the end. Raises like `next_batch`.

        Cancellation: safe, nothing is taken.
        """
        fetcher = self._fetcher
        while True:
            if self._rows_since_yield >= YIELD_EVERY_ROWS:
                await self._yield()
            version = fetcher.available.version
            fetcher.check()
            if taken := fetcher.take_some(self._number, max_bytes, anyio.current_time()):
                return [self._make_batch(partition, columns) for partition, columns in taken]
            if not self._endless and fetcher.finished:
                return []
            await fetcher.available.wait(version)

    async def wait_filled(self, max_bytes: int, max_wait: float) -> None:
        """Return once about `max_bytes` can be taken, or no more will come for now; at most `max_wait` after the first
        row. Raises the error of a background task.

        Cancellation: safe, nothing is taken.
        """
        fetcher = self._fetcher
        while True:
            version = fetcher.available.version
            fetcher.check()
            now = anyio.current_time()
            wait = fetcher.seconds_until_filled(self._number, max_bytes, max_wait, now, endless=self._endless)
            if wait <= 0:
                return
            await fetcher.available.wait(version, wait)

    def put_back(self, batches: Sequence[B]) -> None:
        """Take batches back that were not handed out, to be delivered next."""
        for batch in reversed(batches):
            self._put_back(batch, len(batch))

    def _put_back(self, batch: B, rows: int) -> None:
        self._fetcher.put_back(batch.partition, batch.columns, rows)
        if self._observation is not None and (cursor := self._fetcher.cursors.get(batch.partition)) is not None:
            cursor.queue.reported += rows

    @property
    def raw(self) -> bool:
        """Entries that cannot be decoded are handed over as they are."""
        return self._fetcher.settings.decoder.corrupt == "raw"

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> Batches[B]:
        """Iterate by batch, each of one partition.

        Args:
            max_records: Most records of a batch; None: as many as came together, 1 MiB at a time of more than 4 MiB.
            max_wait: With `max_records`: how long a batch may wait for more records after its first (s).

        Raises:
            TypeError, ConfigError: An argument that cannot work.
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
            self.finish_current()
            batch = await self.next_batch()
        if batch is None:
            raise StopAsyncIteration
        self.batch, self._rows = batch, iter(batch)
        self._topic_id = self._fetcher.topic_id(batch.partition)
        return next(self._rows)

    async def next_decoded(self, decode: Callable[[Record], Awaitable[D]]) -> D:
        """Return the next record as `decode` returns it; the record leaves the stream in the same step. If it was taken
        back meanwhile, go on with the record that is next now.

        Raises the error of `decode` in the record's place. If it is retriable, the record is the next one again.
        Cancellation: safe, nothing is taken.
        """
        with self._decoding_guard:
            while True:
                record = next(self._rows, None)
                self._undecoded = record = await self._next_row() if record is None else record
                error = None
                try:
                    decoded = await decode(record)
                except Exception as failed:
                    error = failed
                except BaseException:
                    self._keep_undecoded()
                    raise
                if self._undecoded is not record:
                    continue
                if error is None:
                    self._undecoded, self.last = None, record
                    return decoded
                if getattr(error, "retriable", False):
                    self._keep_undecoded()
                else:
                    self._undecoded, self.last = None, record
                raise error

    def _keep_undecoded(self) -> None:
        """Make the record that could not be decoded the next one again."""
        if self._undecoded is not None:
            self._rows = iter([self._undecoded, *self._rows])  # a chain would grow with each attempt
            self._undecoded = None

    def finish_current(self) -> None:
        """The user has asked for more: every record of the current batch was handed out and processed."""
        self.batch = self.last = None

    def take_back(self, partitions: Iterable[TopicPartition]) -> None:
        """Put records that were not handed out yet back, if they are of one of `partitions`."""
        if self.batch is not None and self.batch.partition in partitions:
            has_asked = self._undecoded is not None or self.last is None  # for more: what was handed out is processed
            rest = (self._undecoded is not None) + sum(1 for _ in self._rows)
            self._rows, self._undecoded = iter(()), None
            self._put_back(self.batch, rest)
            if has_asked:
                self.finish_current()

    def forget_last(self, partition: TopicPartition) -> None:
        """The partition continues elsewhere than after the record that was handed out last."""
        if self.last is not None and self.last.partition == partition:
            self.batch = self.last = None

    def exact_position(self) -> tuple[TopicPartition, ExactPosition] | None:
        """Return where the partition of the last record continues after it, if it is read record by record."""
        if self.batch is None:
            return None
        r = self.last
        if r is None:  # its first record is still to be decoded
            first = self.batch.columns.inner_indexes[0] if self.batch.columns.inner_indexes is not None else 0
            return self.batch.partition, ExactPosition(self.batch.position, first, self._topic_id)
        inside = r.next_position <= r.position
        return r.partition, ExactPosition(r.next_position, r.inner_index + 1 if inside else 0, self._topic_id)


class Batches(Generic[B]):
    """`async for` over batches."""

    def __init__(self, stream: Stream[B], max_records: int | None, max_wait: float) -> None:
        self._stream = stream
        self._max_records: int | None = BATCHES["max_records"].rule("max_records", max_records)
        self._max_wait: float = BATCHES["max_wait"].rule("max_wait", max_wait)

    def __aiter__(self) -> Batches[B]:
        return self

    async def __anext__(self) -> B:
        batch = await self._stream.next_batch(self._max_records, self._max_wait)
        if batch is None:
            raise StopAsyncIteration
        return batch


class ArrowTables(Generic[T]):
    """`async for` over Arrow tables: many batches, of several partitions, in one.

    Args:
        stream: Where the rows come from.
        make: Makes what is handed out of a table and the batches that are in it.
        max_bytes: Maximum payload of a table, at least one row (bytes).
        max_wait: How long a table may wait for more rows after its first (s).

    Raises:
        TypeError, ConfigError: An argument that cannot work, or pyarrow is not installed.
    """

    def __init__(
        self, stream: Stream[B], make: Callable[[pa.Table, Sequence[B]], T], *, max_bytes: int, max_wait: float
    ) -> None:
        self._max_bytes: int = TABLES["max_bytes"].rule("max_bytes", max_bytes)
        self._max_wait: float = TABLES["max_wait"].rule("max_wait", max_wait)
        from odradek.arrow import table  # pyarrow is optional

        self._table = table
        self._stream: Stream[Any] = stream
        self._make: Callable[[pa.Table, Sequence[Any]], T] = make

    def __aiter__(self) -> ArrowTables[T]:
        return self

    async def __anext__(self) -> T:
        if self._max_wait > 0:
            await self._stream.wait_filled(self._max_bytes, self._max_wait)
        batches = await self._stream.next_batches(self._max_bytes)
        if not batches:
            raise StopAsyncIteration
        try:
            table = self._table([(batch.partition, batch.columns) for batch in batches], errors=self._stream.raw)
        except BaseException:  # such as MemoryError: the next call returns the same rows
            self._stream.put_back(batches)
            raise
        return self._make(table, batches)
