"""One task of a mirror: copies its partitions, a transaction after the other.

A transaction on the target has the records of some batches, where they are (index) and what comes next (progress). A
task that begins, or begins again after an error, takes its transactional id, which ends what another process with this
id was doing, and then continues where the last progress that was committed says.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import anyio

from odradek.batch import Batch
from odradek.client.consumer.reader import Reader
from odradek.client.consumer.streams import Batches
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Acks
from odradek.core.backoff import Backoff
from odradek.core.interfaces import ProducerRecord
from odradek.errors import CommitOutcomeUnknown, OdradekError
from odradek.io.gather import gather
from odradek.io.retry import retry
from odradek.mirror.bookmarks import bookmark_of, positions_of
from odradek.mirror.clusters import Clusters, read_progress
from odradek.mirror.config import MirrorConfig
from odradek.mirror.index import runs_of
from odradek.mirror.stored import (
    CopiedTopic,
    IndexEntry,
    PartitionProgress,
    Progress,
    SourcePosition,
    Stored,
    stored_records,
)
from odradek.types import EARLIEST, Columns, Position, StartPosition, TopicPartition

__all__ = ["CopiedRecords", "MirrorTask"]

log = logging.getLogger(__name__)

PAUSES = Backoff(first_s=0.1, max_s=10.0)


@dataclass(frozen=True, slots=True)
class CopiedRecords:
    """Records of one partition that were committed together.

    Args:
        partition: The source partition.
        records: How many.
        bytes: Bytes of their values, keys and headers.
    """

    partition: TopicPartition
    records: int
    bytes: int


@dataclass(slots=True)
class _Gathered:
    """The records of one transaction, by source partition."""

    parts: dict[TopicPartition, list[Columns]] = field(default_factory=dict)
    bytes: int = 0

    def add(self, batch: Batch) -> None:
        self.parts.setdefault(batch.partition, []).append(batch.columns)
        self.bytes += batch.columns.payload_bytes

    def copied(self) -> list[CopiedRecords]:
        """Return how much it is."""
        return [
            CopiedRecords(partition, sum(map(len, parts)), sum(part.payload_bytes for part in parts))
            for partition, parts in self.parts.items()
        ]


class MirrorTask:
    """Copies the partitions of one task.

    Args:
        config: The file.
        clusters: Both clusters, open.
        number: The number of the task.
        topics: Where partitions go.
        ends: Source partition -> where copying ends; None: never.
        exactly_once: The target has transactions.
        committed: Called with what was committed, after each transaction.
    """

    def __init__(
        self,
        config: MirrorConfig,
        clusters: Clusters,
        number: int,
        topics: Iterable[CopiedTopic],
        ends: Mapping[TopicPartition, Position] | None,
        *,
        exactly_once: bool,
        committed: Callable[[Sequence[CopiedRecords]], object],
    ) -> None:
        self._config, self._clusters, self._number = config, clusters, number
        self._exactly_once, self._committed = exactly_once, committed
        self._destinations = {
            source: TopicPartition(topic.target, to.partition)
            for topic in topics
            for source, to in topic.partitions.items()
            if to.task == number
        }
        self._ends = None if ends is None else {p: at for p, at in ends.items() if p in self._destinations}
        self._offsets = clusters.source.driver.logs.unit.name == "records"
        self._progress: dict[TopicPartition, PartitionProgress] = {}

    async def run(self) -> None:
        """Copy until all partitions are at their ends; without ends, until cancelled.

        Raises:
            Fenced: Another process copies with this task's transactional id.
            OdradekError: An error that does not pass, such as a corrupt message, or records that the source deleted.

        Cancellation: safe; the next run knows what was committed.
        """
        if self._destinations:
            await retry(self._attempt, PAUSES, passes=self._passes)

    def _passes(self, error: OdradekError) -> bool:
        """Return True if the task can begin again after an error: what counts is what was committed."""
        passes = error.retriable or isinstance(error, CommitOutcomeUnknown)
        if passes:
            log.warning("mirror %s: task %d begins again: %s", self._config.name, self._number, error)
        return passes

    async def _attempt(self) -> None:
        """Take the transactional id, and copy from where the last transaction ended."""
        run = self._config.run
        options: Any = {}
        if self._exactly_once:
            options["transactional_id"] = self._config.transactional_id(self._number)
        async with self._clusters.target.producer(
            compression=run.compression, max_message_bytes=run.max_message_bytes, **options
        ) as producer:
            state = await read_progress(self._config, self._clusters.target, self._number)
            stored = state.progress.get(self._number)
            self._progress = {} if stored is None else dict(stored.partitions)
            async with self._reader() as reader:
                await self._copy(reader, producer)

    def _reader(self) -> Reader:
        topics = self._config.topics
        starts: dict[TopicPartition, StartPosition] = dict.fromkeys(self._destinations, EARLIEST)
        return self._clusters.source.reader(
            starts,
            start=bookmark_of({p: at.next for p, at in self._progress.items() if p in starts}),
            until=self._ends,
            isolation=topics.isolation,
            reset="fail" if topics.lost == "fail" else EARLIEST,
            max_message_bytes=self._config.run.max_message_bytes,
        )

    async def _copy(self, reader: Reader, producer: Producer) -> None:
        batches = reader.batches()
        ended = False
        while not ended:
            gathered = _Gathered()
            ended = await self._gather(batches, gathered)
            following = self._following(reader, gathered, ended=ended)
            if gathered.parts or following != self._progress:
                await self._commit(producer, gathered, following)

    async def _gather(self, batches: Batches[Batch], gathered: _Gathered) -> bool:
        """Take the batches of one transaction; return True if no more will come."""
        until = math.inf  # the first one may take any time
        while gathered.bytes < self._config.run.transaction_bytes:
            batch = None
            with anyio.CancelScope(deadline=until) as waiting:
                try:
                    batch = await anext(batches)
                except StopAsyncIteration:
                    return True
            if batch is None and waiting.cancelled_caught:
                return False
            assert batch is not None
            gathered.add(batch)
            until = min(until, anyio.current_time() + self._config.run.transaction_seconds)
        return False

    def _following(
        self, reader: Reader, gathered: _Gathered, *, ended: bool
    ) -> dict[TopicPartition, PartitionProgress]:
        """Return how far all partitions are once the records are committed."""
        following = dict(self._progress)
        for partition, at in positions_of(reader.bookmark()).items():
            known = following.get(partition, PartitionProgress(at))
            records = sum(map(len, gathered.parts.get(partition, ())))
            if records or partition not in following:
                following[partition] = known._replace(next=at, records=known.records + records)
        if ended and self._ends is not None:
            for partition, end in self._ends.items():
                known = following.get(partition, PartitionProgress(SourcePosition(end)))
                if known.next.position < end:  # what comes after the last record are the ends of transactions
                    following[partition] = known._replace(next=known.next._replace(position=end, inner=0))
        return following

    async def _commit(
        self, producer: Producer, gathered: _Gathered, following: dict[TopicPartition, PartitionProgress]
    ) -> None:
        """Write records, index and progress, together."""
        transaction: AbstractAsyncContextManager[Any] = producer.transaction() if self._exactly_once else nullcontext()
        async with transaction:
            entries: list[Stored] = []
            for partition, acks in zip(
                gathered.parts, await gather(self._write(producer), gathered.parts.items()), strict=True
            ):
                runs = runs_of(gathered.parts[partition], acks.acks, offsets=self._offsets)
                entries.append(IndexEntry(partition, runs))
                following[partition] = following[partition]._replace(target_next=runs[-1].offset + runs[-1].records)
            entries.append(Progress(round(time.time() * 1000), following))
            rows = [ProducerRecord(value, key) for key, value in stored_records(entries)]
            _check(await producer.send_many(self._config.topic, rows, partition=self._number))
        self._progress = following
        self._committed(gathered.copied())

    def _write(self, producer: Producer) -> Callable[[tuple[TopicPartition, list[Columns]]], Any]:
        async def write(item: tuple[TopicPartition, list[Columns]]) -> Acks:
            partition, parts = item
            target = self._destinations[partition]
            rows = chain.from_iterable(map(_rows, parts))
            return _check(await producer.send_many(target.topic, rows, partition=target.partition))

        return write


def _check(acks: Acks) -> Acks:
    """Return acks of records that were all written. Raises the error of the first that was not."""
    for failed in acks.failed:
        raise failed.error
    return acks


def _rows(columns: Columns) -> Iterable[Any]:
    """Return rows for `Producer.send_many`: values, where there is nothing else."""
    if columns.keys is None and columns.headers is None and columns.timestamps is None:
        return columns.values
    rows = len(columns)
    return map(
        ProducerRecord,
        columns.values,
        [None] * rows if columns.keys is None else columns.keys,
        [()] * rows if columns.headers is None else columns.headers,
        [None] * rows if columns.timestamps is None else [None if t < 0 else t for t in columns.timestamps],
    )
