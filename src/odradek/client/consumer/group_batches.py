"""What a consumer of a group hands out: batches and tables whose processing can be marked as done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from odradek.batch import Batch
from odradek.client.consumer.streams import ArrowTables, Stream
from odradek.core.fetch.progress import DeliveredSpan
from odradek.io.notifier import Notifier
from odradek.types import Columns, MiB, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["GroupBatch", "GroupStream", "GroupTable"]


class GroupBatch(Batch):
    """A batch whose processing can be marked as done."""

    __slots__ = ("_bell", "span")

    def __init__(self, partition: TopicPartition, columns: Columns, span: DeliveredSpan, bell: Notifier) -> None:
        super().__init__(partition, columns)
        self.span, self._bell = span, bell

    def done(self) -> bool:
        """Mark all its records as processed; they are committed soon, once everything before them is done as well.

        Returns False when that counts no more, because the partition was revoked or lost, or sought elsewhere,
        meanwhile: the records are delivered again, perhaps to another consumer.
        """
        counts = self.span.done()
        self._bell.ring()
        return counts


class GroupTable:
    """An Arrow table (`table`) of any number of partitions, whose processing can be marked as done."""

    __slots__ = ("_batches", "table")

    def __init__(self, table: pa.Table, batches: Sequence[GroupBatch]) -> None:
        self.table, self._batches = table, batches

    def done(self) -> bool:
        """Mark all its rows as processed, as `GroupBatch.done` does.

        Returns False when that counts no more for some of them, because their partition was revoked or lost, or sought
        elsewhere, meanwhile: those are delivered again, perhaps to another consumer.
        """
        counts = [batch.done() for batch in self._batches]
        return all(counts)

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
            batch.span.cut(batch.position)  # nothing of it was handed out: no mark is waited for
            batch.done()
        super().put_back(batches)

    def finish_current(self) -> None:
        if self.batch is not None:
            self.batch.done()
        super().finish_current()

    def reach(self) -> None:
        """Tell the accounts how far into its batch iterating by record has come."""
        if self.batch is not None and self.last is not None:
            self.batch.span.reach(self.last.position)

    def take_back(self, partitions: Iterable[TopicPartition]) -> None:
        if self.batch is not None and self.last is not None and self.batch.partition in partitions:
            self.batch.span.cut(self.last.next_position)
        super().take_back(partitions)
