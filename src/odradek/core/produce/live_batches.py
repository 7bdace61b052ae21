"""All batches without an outcome: the memory they take, how they are divided and end, and when their time is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from odradek.core.interfaces import PartitionResult, ProducerRecord, ProducerSequences
from odradek.core.produce.batch import AccumulatorLimits, FlushWaiter, ProduceBatch, as_record
from odradek.core.produce.batch_states import BatchState
from odradek.core.produce.packed_records import EncodedRecords, PackedRecords, WireSizes
from odradek.core.produce.partition_queue import PartitionQueue
from odradek.engine import BufferBase
from odradek.errors import CorruptMessage, NotWritten, OutcomeUnknown

__all__ = ["LiveBatches"]

MAX_REUSABLE = 4096
"""Batches kept for reuse: 1.5 MB. With keys over a thousand partitions some two thousand are alive."""


class LiveBatches(BufferBase):
    """Batches from their first record to their outcome.

    Args:
        limits: The limits of the accumulator.
        record_size: Bytes of a record on the wire.
        sequences: Identifies batches, if the producer is idempotent.

    Attributes:
        batches: Oldest first, but for parts of divided batches.
        buffered_bytes: Bytes of the buffer they take.
        finished: Batches that have an outcome since the accumulator took the last ones.
        sequence: Number of the newest batch.
        reusable: Empty batches that may begin again.
        late: Why a batch is given up whose time is over.
        sizes: What records in columns take on the wire.
    """

    def __init__(
        self,
        limits: AccumulatorLimits,
        record_size: Callable[[ProducerRecord], int],
        sequences: ProducerSequences | None,
    ) -> None:
        self.batches: dict[ProduceBatch, None] = {}
        self.buffered_bytes = self.sequence = 0
        self.finished: list[ProduceBatch] = []
        self.sizes = WireSizes.of(record_size)
        self.late = f"not delivered within {limits.deliver_within:g} s"
        self._deliver_within, self._record_size, self._sequences = limits.deliver_within, record_size, sequences
        self._flushes: list[FlushWaiter] = []
        self.reusable: list[ProduceBatch] = []

    def __iter__(self) -> Iterator[ProduceBatch]:
        return iter(self.batches)

    def __contains__(self, batch: object) -> bool:
        return batch in self.batches

    def __len__(self) -> int:
        return len(self.batches)

    # ---- beginning again -----------------------------------------------------------------------------------

    def reuse(self, batches: Iterable[ProduceBatch]) -> None:
        """Forget these batches, which have been reported.

        With keys over many partitions a batch has a few records. The garbage collector visits every new object several
        times, which costs half of what a batch does; those it knows already cost it nothing. Only batches to which
        nothing can refer any more are used again: those that were written at the first attempt, in time, and that
        neither a queue of a broker may still have (`in_former_queue`) nor a thread (`taken_back`)."""
        reusable = self.reusable
        for batch in batches:
            if (
                batch.attempts == 1
                and batch.error is None
                and not (batch.in_former_queue or batch.taken_back or batch.overdue or batch.waiter_runs)
                and type(batch.records) is list
            ):
                batch.records.clear()
                reusable.append(batch)
        del reusable[MAX_REUSABLE:]

    # ---- dividing ------------------------------------------------------------------------------------------

    def part(self, whole: ProduceBatch, queue: PartitionQueue, rows: Sequence[int]) -> ProduceBatch:
        """Return some rows of a batch, in their order, as a batch of its age. Forget the whole afterwards."""
        part = ProduceBatch(queue, whole.sequence, whole.created_at, whole.explicit_partition)
        waiters = whole.waiters()
        part.begin_as_part(whole)
        if rows[-1] - rows[0] + 1 == len(rows):
            part.add(whole.records, rows[0], rows[-1] + 1)
        else:
            part.records = [whole.records[row] for row in rows]
        for row, waiter in enumerate([waiters[row] for row in rows]):
            if waiter is not None:
                part.add_waiter(row, row + 1, waiter)
        part.size = self._size_of_all(part.records)
        self.batches[part] = None
        self.buffered_bytes += part.buffered_bytes
        for flush in self._flushes:
            flush.left += part.sequence <= flush.last
        return part

    def decode(self, batch: ProduceBatch) -> CorruptMessage | None:
        """Decode the records of a batch that was passed on as it is, because it has to be divided. Return why that
        cannot be; nothing has changed then."""
        encoded = batch.records
        if not isinstance(encoded, EncodedRecords):
            return None
        if (damage := encoded.damage()) is not None:
            return damage
        records = encoded.decoded()
        self.buffered_bytes -= batch.buffered_bytes
        batch.records, batch.size = records, self._size_of_all(records)
        self.buffered_bytes += batch.buffered_bytes
        return None

    def replace(self, batch: ProduceBatch, parts: Iterable[Sequence[int]]) -> list[ProduceBatch]:
        """Replace a batch that was not written by batches of these rows of it, and return them."""
        made = [self.part(batch, batch.queue, rows) for rows in parts if rows]
        if self._sequences is not None:
            self._sequences.divide(batch, made)
        self.forget(batch)
        return made

    def _size_of_all(self, records: Sequence[bytes | ProducerRecord]) -> int:
        if type(records) is PackedRecords:
            return self.sizes.payload(records, 0, len(records)) + self.sizes.record * len(records)
        return sum(map(self._size_of, records))

    def _size_of(self, record: bytes | ProducerRecord) -> int:
        return self.sizes.record + len(record) if isinstance(record, bytes) else self._record_size(as_record(record))

    # ---- ending --------------------------------------------------------------------------------------------

    def finish(self, batch: ProduceBatch, result: PartitionResult | None = None) -> None:
        """End a batch that has an outcome - an `error`, or a result, if the broker says more than that it was written:
        its buffer space is free."""
        was_queued = batch.finish(result)
        self.finished.append(batch)
        self._forget(batch, was_queued)

    def finish_all(self, batches: Iterable[ProduceBatch]) -> None:
        """End the batches of a request that were written, as `finish` does one: many small ones are most of the work
        of a producer with many partitions."""
        live, finished, freed = self.batches, self.finished, 0
        for batch in batches:
            if batch.state is BatchState.FINISHED:
                continue
            if batch.stamp is not None or self._flushes:
                self.finish(batch)
                continue
            batch.finish()
            finished.append(batch)
            del live[batch]
            freed += batch.buffered_bytes
        self.buffered_bytes -= freed

    def forget(self, batch: ProduceBatch) -> None:
        """Remove a batch whose records are in others now."""
        self._forget(batch, batch.replace())

    def _forget(self, batch: ProduceBatch, was_queued: bool) -> None:
        del self.batches[batch]
        self.buffered_bytes -= batch.buffered_bytes
        if batch.stamp is not None and self._sequences is not None:
            self._sequences.release(batch, may_be_written=batch.may_be_written or batch.request is not None)
        if was_queued:
            batch.queue.remove(batch)
        if self._flushes:
            for flush in self._flushes:
                flush.left -= batch.sequence <= flush.last
            self._flushes = [flush for flush in self._flushes if flush.left]

    def flush(self) -> FlushWaiter:
        """Close what is open, so that it is due; the result tells when all of it has an outcome."""
        for batch in self.batches:
            if batch.queue.open is batch:
                batch.queue.close()
        flush = FlushWaiter(self.sequence, len(self.batches))
        if flush.left:
            self._flushes.append(flush)
        return flush

    # ---- time ----------------------------------------------------------------------------------------------

    def expired(self, now: float) -> list[ProduceBatch]:
        """Return the batches older than `deliver_within` that are not `overdue` yet."""
        latest = now - self._deliver_within
        return [batch for batch in self.batches if batch.created_at <= latest and not batch.overdue]

    def next_expiry(self, now: float) -> float:
        """Return the time before which no batch expires (s)."""
        created = (batch.created_at for batch in self.batches if not batch.overdue)
        return min(created, default=now) + self._deliver_within

    def time_out(self, batch: ProduceBatch, why: str = "", cause: Exception | None = None) -> None:
        """Finish a batch whose time is over, or that is given up, saying what is known about it.

        Args:
            batch: The batch.
            why: The reason; empty: its time is over.
            cause: The cause of its error; None: how the last attempt failed.
        """
        why = why or self.late
        topic = batch.queue.topic
        where = str(batch.partition) if batch.queue is not topic.unassigned else topic.name
        if not topic.available_queues:
            where += f": {topic.why}"
        elif batch.queue.orphaned and batch.queue is not topic.unassigned:
            where += ": no live broker has it"
        tries = f"{batch.attempts} attempt{'' if batch.attempts == 1 else 's'}"
        last = f", the last failed: {batch.last_error}" if batch.last_error is not None else ""
        kind = OutcomeUnknown if batch.may_be_written or batch.request is not None else NotWritten
        batch.fail(kind, f"{why} ({where}; {tries}{last})", cause or batch.last_error)
        self.finish(batch)
