"""Batches and tables of a group consumer, whose processing can be marked as done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from odradek.batch import Batch
from odradek.client.consumer.streams import ArrowTables, Stream
from odradek.core.fetch.progress import DeliveredSpan
from odradek.core.interfaces import ConsumerPositions
from odradek.io.notifier import Notifier
from odradek.types import Columns, MiB, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["GroupBatch", "GroupStream", "GroupTable"]


class GroupBatch(Batch):
    """A batch whose processing can be marked as done."""

    __slots__ = ("_changed", "_positions", "span")

    def __init__(
        self,
        partition: TopicPartition,
        columns: Columns,
        span: DeliveredSpan,
        changed: Notifier,
        positions: ConsumerPositions,
    ) -> None:
        super().__init__(partition, columns)
        self.span, self._changed, self._positions = span, changed, positions

    def done(self) -> bool:
        """Mark all its records as processed; they are committed soon, once everything before them is done as well.

        Returns False if that no longer counts because the partition was revoked, lost or moved by `seek` meanwhile:
        the records are delivered again, perhaps to another consumer.
        """
        counts = self.span.done()
        self._changed.notify()
        return counts

    def transaction_spans(self) -> Sequence[tuple[ConsumerPositions, TopicPartition, DeliveredSpan]]:
        """Return what a transaction marks as done (see `Transaction.done`)."""
        return [(self._positions, self.partition, self.span)]


class GroupTable:
    """An Arrow table (`table`) of any number of partitions, whose processing can be marked as done."""

    __slots__ = ("_batches", "table")

    def __init__(self, table: pa.Table, batches: Sequence[GroupBatch]) -> None:
        self.table, self._batches = table, batches

    def done(self) -> bool:
        """Mark all its rows as processed, as `GroupBatch.done` does.

        Returns False if that no longer counts for some of them because their partition was revoked, lost or moved by
        `seek` meanwhile: those are delivered again, perhaps to another consumer.
        """
        counts = [batch.done() for batch in self._batches]
        return all(counts)

    def transaction_spans(self) -> Sequence[tuple[ConsumerPositions, TopicPartition, DeliveredSpan]]:
        """Return what a transaction marks as done (see `Transaction.done`)."""
        return [span for batch in self._batches for span in batch.transaction_spans()]

    def __repr__(self) -> str:
        partitions = {batch.partition for batch in self._batches}
        return f"<{type(self).__name__} {self.table.num_rows} rows of {len(partitions)} partitions>"


class GroupStream(Stream[GroupBatch]):
    """Records of one stream's partitions. A record counts as done when the next one is asked for."""

    def arrow(self, *, max_bytes: int = 16 * MiB, max_wait: float = 0.0) -> ArrowTables[GroupTable]:
        """Iterate by Arrow table: see `Consumer.arrow`."""
        return ArrowTables(self, GroupTable, max_bytes=max_bytes, max_wait=max_wait)

    def put_back(self, batches: Sequence[GroupBatch]) -> None:
        for batch in batches:
            batch.span.cut(batch.position)  # the user got none of it: no mark is waited for
            batch.done()
        super().put_back(batches)

    def finish_current(self) -> None:
        if self.batch is not None:
            self.batch.done()
        super().finish_current()

    def record_progress(self) -> None:
        """Record how far iterating by record has got into its batch."""
        if self.batch is not None and self.last is not None:
            self.batch.span.reach(self.last.position)

    def take_back(self, partitions: Iterable[TopicPartition]) -> None:
        if self.batch is not None and self.batch.partition in partitions:
            self.batch.span.cut(self.batch.position if self.last is None else self.last.next_position)
        super().take_back(partitions)
