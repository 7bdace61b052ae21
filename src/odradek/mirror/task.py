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
from typing import Any, NamedTuple, cast

import anyio

from odradek.batch import Batch
from odradek.client.options import CompressionName
from odradek.client.producer.producer import Producer
from odradek.client.producer.results import Ack
from odradek.core.interfaces import RECORDS, Extent, ProducerRecord
from odradek.errors import (
    DeadlineError,
    DeliveryError,
    OdradekError,
    OffsetOutOfRange,
    TransactionAborted,
)
from odradek.io.gather import gather
from odradek.io.retry import retry
from odradek.mirror.clusters import PAUSES, Clusters, existing_topics, read_progress
from odradek.mirror.config import MirrorConfig
from odradek.mirror.dividing import Divided, Division
from odradek.mirror.errors import (
    LostRecords,
    ProgressLost,
    SourceChanged,
    TargetChanged,
    another_run,
    is_fenced,
    passes,
)
from odradek.mirror.index import UnknownOffset, runs_of
from odradek.mirror.limits import RateLimit
from odradek.mirror.planning import MirrorRefused, finished_text
from odradek.mirror.rows import Origin, refused_record
from odradek.mirror.sources import SourceBatches
from odradek.mirror.stored import (
    CopiedTopic,
    CopyProgress,
    IndexEntry,
    Progress,
    SourcePosition,
    Stored,
    TaskBegan,
    stored_records,
)
from odradek.ranges.catalog import SHOWN_WITHIN_S
from odradek.types import Columns, Position, TopicPartition

__all__ = ["CopiedRecords", "LostRange", "MirrorTask", "TaskSettings"]

log = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_S = 60.0
"""A broker aborts a transaction that is open for longer, and fences its producer (s)."""

LATE_S = TRANSACTION_TIMEOUT_S / 3
"""A transaction that fails after this time is too large for the target, as for one with a quota (s). Producers give up
records a little later (`deliver_within`)."""


class CopiedRecords(NamedTuple):
    """Records of one partition that were committed together.

    Args:
        partition: The source partition.
        records: How many; 0: only positions without records, such as ends of transactions, were passed.
        bytes: Bytes of their values, keys and headers; of record batches that were not decoded, their size.
        position: What is copied next.
        end: Where copying ends; in a run that goes on, where the log ended. None: that is not known.
        timestamp: Of the last record (ms since the epoch); None: it has none.
        seconds: How long the transaction took (s).
    """

    partition: TopicPartition
    records: int
    bytes: int
    position: int
    end: int | None
    timestamp: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class LostRange:
    """Positions whose records the source deleted before they were copied.

    Args:
        partition: The source partition.
        start: What was to be copied next.
        stop: The oldest position that there is.
    """

    partition: TopicPartition
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.partition}: {self.start} to {self.stop}"


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Settings that all tasks of a run share.

    Args:
        config: The file.
        clusters: Both clusters, open.
        exactly_once: The target has transactions.
        source: Id of the source, for headers.
        ends: Source partition -> where copying ends; None: never.
        begun: Called when a task begins, and when it begins again, with what is copied next of its partitions, and
            where that ends: see `CopiedRecords`.
        committed: Called with what was committed, after each transaction.
        lost: Called with what cannot be copied any more, as often as a task comes across it.
        reading, writing: The limits of a run.
    """

    config: MirrorConfig
    clusters: Clusters
    exactly_once: bool
    source: str
    ends: Mapping[TopicPartition, Position] | None = None
    begun: Callable[[Mapping[TopicPartition, tuple[int, int]]], object] = lambda _: None
    committed: Callable[[Sequence[CopiedRecords]], object] = lambda _: None
    lost: Callable[[Sequence[LostRange]], object] = lambda _: None
    reading: RateLimit = field(default_factory=lambda: RateLimit(None))
    writing: RateLimit = field(default_factory=lambda: RateLimit(None))


@dataclass(slots=True)
class _Gathered:
    """The records of one transaction, by source partition, and the error that came after them."""

    parts: dict[TopicPartition, list[Columns]] = field(default_factory=dict)
    bytes: int = 0
    error: OdradekError | None = None

    def add(self, batch: Batch) -> None:
        self.parts.setdefault(batch.partition, []).append(batch.columns)
        self.bytes += batch.columns.payload_bytes

    def copied(self, partition: TopicPartition, position: int, lag: int | None, seconds: float) -> CopiedRecords:
        """Return how much of a partition it is."""
        parts = self.parts.get(partition, ())
        return CopiedRecords(
            partition,
            sum(map(len, parts)),
            sum(part.payload_bytes for part in parts),
            position,
            None if lag is None else position + lag,
            _last_timestamp(parts[-1]) if parts else None,
            seconds,
        )


def _last_timestamp(columns: Columns) -> int | None:
    last = columns.parts[-1]
    if last.encoded is not None:
        return last.encoded.last_timestamp
    return None if last.timestamps is None or last.timestamps[-1] < 0 else last.timestamps[-1]


class MirrorTask:
    """Copies the partitions of one task.

    Args:
        settings: What all tasks share.
        number: The number of the task.
        topics: Where partitions go.
    """

    def __init__(self, settings: TaskSettings, number: int, topics: Iterable[CopiedTopic]) -> None:
        self._settings, self._config, self._clusters = settings, settings.config, settings.clusters
        self._number = number
        self._partitioner = self._clusters.target.driver.default_partitioner()
        self._destinations: dict[TopicPartition, Division] = {}
        self._has_new = False
        self._waiting: anyio.CancelScope | None = None
        self.add(topics)
        ends = settings.ends
        self._ends = None if ends is None else {p: at for p, at in ends.items() if p in self._destinations}
        self._offsets = self._clusters.source.unit is RECORDS
        self._progress: dict[TopicPartition, CopyProgress] = {}
        self._written: dict[TopicPartition, int] = {}  # target partition -> offset after what was committed there
        self._open_since: float | None = None
        self._bytes = self._config.run.transaction_bytes  # of a transaction, less for a slow target

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._number} of {self._config.name}: {len(self._destinations)} partitions>"

    def add(self, topics: Iterable[CopiedTopic]) -> None:
        """Copy more partitions, from their beginning. The transaction that is being filled is committed first."""
        for topic in topics:
            for source, to in topic.partitions.items():
                if to.task == self._number and source not in self._destinations:
                    self._destinations[source] = Division.of(topic, source, self._partitioner)
                    self._has_new = True
        if self._has_new and self._waiting is not None:
            self._waiting.cancel()

    async def run(self) -> None:
        """Copy until all partitions are at their ends; without ends, until cancelled.

        Raises:
            Fenced: Another process copies with this task's transactional id.
            MirrorRefused: The mirror is finished.
            LostRecords: The source deleted records before they were copied.
            SourceChanged: A topic of the source was made again, or its log was cut.
            TargetChanged: A topic of the target lacks what was copied to it.
            ProgressLost: The mirror's own topic has lost what it had.
            RecordRefused: The target does not take a record.
            OdradekError: Another error that does not pass, such as a corrupt message.

        Cancellation: safe; the next run knows what was committed.
        """
        if self._destinations:
            await retry(self._attempt, PAUSES, passes=self._passes)

    def _passes(self, error: OdradekError) -> bool:
        """Return True if the task can begin again after an error."""
        if again := passes(error):
            log.warning("mirror %s: task %d begins again: %s", self._config.name, self._number, error)
        return again

    async def _attempt(self) -> None:
        """Take the transactional id, and copy from where the last transaction ended."""
        self._open_since = None
        try:
            await self._copy_from_progress()
        except OdradekError as error:
            if self._is_open_for(LATE_S):
                self._bytes = max(1, self._bytes // 2)
            cause = error.__cause__
            if isinstance(error, DeliveryError) and isinstance(cause, anyio.get_cancelled_exc_class()):
                raise cause from None  # what was not delivered is copied by the next run
            fenced = is_fenced(error)
            if self._is_timed_out() and (fenced or not error.retriable):
                transactional_id = self._config.transactional_id(self._number)
                raise TransactionAborted(transactional_id, f"it was open for {TRANSACTION_TIMEOUT_S:.0f} s") from error
            if fenced:
                raise another_run(self._config.name, self._number) from error
            raise

    def _is_timed_out(self) -> bool:
        return self._settings.exactly_once and self._is_open_for(TRANSACTION_TIMEOUT_S)

    def _is_open_for(self, seconds: float) -> bool:
        """Return True if the transaction that is being written was begun so long ago."""
        return self._open_since is not None and anyio.current_time() - self._open_since >= seconds

    async def _copy_from_progress(self) -> None:
        run = self._config.run
        options: Any = {}
        if self._settings.exactly_once:
            options["transactional_id"] = self._config.transactional_id(self._number)
            options["transaction_timeout"] = TRANSACTION_TIMEOUT_S
        async with self._clusters.target.producer(
            compression=run.compression, max_message_bytes=run.max_message_bytes, **options
        ) as producer:
            await self._read_progress(least=1 + await self._note_beginning(producer))
            await self._check_target()
            await self._skip_deleted()
            log.info(
                "mirror %s: task %d copies %d partitions", self._config.name, self._number, len(self._destinations)
            )
            while not await self._read_and_copy(producer):
                log.info("mirror %s: task %d reads from other places now", self._config.name, self._number)
            log.info("mirror %s: task %d is at the end of its partitions", self._config.name, self._number)

    async def _note_beginning(self, producer: Producer) -> int:
        """Write that this task begins; return the offset of that record.

        A broker that has just become the leader may show less than is committed, and a task that took that for the
        newest progress would copy records twice. The log that this record is in has all of it.
        """
        async with self._transaction(producer):
            [ack] = await self._store(producer, [TaskBegan(round(time.time() * 1000))])
        if ack.position is None:
            raise UnknownOffset
        return ack.position

    async def _read_progress(self, least: int) -> None:
        state = await read_progress(self._config, self._clusters.target, self._number, least=least)
        if state.finished is not None:
            raise MirrorRefused(finished_text(self._config))
        newest = dict(state.progress_of(self._number))
        for partition, known in self._progress.items():
            if partition not in newest or newest[partition].records < known.records:
                raise ProgressLost(self._config.topic, partition, known.records)
        self._progress = newest

    async def _check_target(self) -> None:
        """Raise TargetChanged if a log of the target still ends before what was copied to it, or if there is none: a
        producer makes a topic that was deleted again, where brokers do that, and would write the rest to it."""
        target, name = self._clusters.target, self._config.name
        for partition, known in self._progress.items():
            if known.target_next is not None:
                self._add_written(self._destinations[partition].target, known.target_next)

        async def check() -> None:
            topics = {partition.topic for partition in self._written}
            if gone := topics - await existing_topics(target, topics):
                raise TargetChanged(name, f"topic {min(gone)!r} was deleted")
            extents = await target.driver.logs.extents(self._written.keys())
            for partition, extent in extents.items():
                if extent.latest < self._written[partition]:
                    raise self._target_changed(partition, extent.latest)

        await retry(
            check,
            PAUSES,
            passes=lambda error: error.retriable or isinstance(error, TargetChanged),
            limit_s=SHOWN_WITHIN_S,
            late=DeadlineError("the ends of what was copied", SHOWN_WITHIN_S),
        )

    def _add_written(self, partition: TopicPartition, end: int) -> None:
        self._written[partition] = max(end, self._written.get(partition, 0))

    def _target_changed(self, partition: TopicPartition, end: int) -> TargetChanged:
        why = f"{partition} ended at {end}, and had records up to {self._written[partition]}"
        return TargetChanged(self._config.name, f"{why}: the topic was made again, or its log was cut")

    async def _skip_deleted(self) -> bool:
        """Continue at the oldest records that there are, where the next ones were deleted; return True if any were.

        Raises:
            LostRecords: The file does not allow it.
            SourceChanged: A log ends before what was copied of it.
        """
        committed = self._config.topics.read_committed
        extents = await self._clusters.source.extents(self._destinations.keys(), read_committed=committed)
        lost, shorter = [], []
        for partition, known in self._progress.items():
            extent = extents.get(partition)
            if extent is None or known.next.topic_id not in (None, extent.topic_id):
                continue
            if known.next.position > extent.latest:
                shorter.append(partition)
            if known.next.position < extent.earliest:
                lost.append(LostRange(partition, known.next.position, extent.earliest))
                following = known.next._replace(position=extent.earliest, inner=0)
                self._progress[partition] = known._replace(next=following)
        if shorter:
            await self._check_ends(shorter)
        if lost and self._config.topics.lost == "fail":
            raise LostRecords(lost)
        for each in lost:
            log.warning("mirror %s: the source deleted before it was copied: %s", self._config.name, each)
        self._settings.lost(lost)
        self._settings.begun({partition: self._range(partition, extent) for partition, extent in extents.items()})
        return bool(lost)

    async def _check_ends(self, partitions: Sequence[TopicPartition]) -> None:
        """Raise SourceChanged if one of these logs still ends before what was copied of it, open transactions included:
        a run that ends there would take it for copied."""

        async def check() -> None:
            extents = await self._clusters.source.extents(partitions, read_committed=False)
            for partition, (earliest, latest, *_) in extents.items():
                if (at := self._progress[partition].next.position) > latest:
                    context = f"{partition} at {at}: the log is from {earliest} to {latest}"
                    raise OffsetOutOfRange(1, "OFFSET_OUT_OF_RANGE", context)

        late = DeadlineError(f"the end of {partitions[0]}", SHOWN_WITHIN_S)
        try:
            await retry(
                check,
                PAUSES,
                passes=lambda error: error.retriable or isinstance(error, OffsetOutOfRange),
                limit_s=SHOWN_WITHIN_S,
                late=late,
            )
        except OffsetOutOfRange as error:
            raise SourceChanged(self._config.name, error) from error

    def _range(self, partition: TopicPartition, extent: Extent) -> tuple[int, int]:
        """Return what is copied next, and where copying ends, or the log ends now."""
        known, ends = self._progress.get(partition), self._ends or {}
        start = extent.earliest if known is None else known.next.position
        return start, ends.get(partition, Position(extent.latest))

    # ---- reading -------------------------------------------------------------------------------------------

    async def _read_and_copy(self, producer: Producer) -> bool:
        """Copy with one reader; return True if all ends are reached, False if another reader has to be made."""
        self._has_new = False
        try:
            async with self._open() as batches:
                return await self._copy(batches, producer)
        except OffsetOutOfRange as error:
            begun = self._destinations.keys() <= self._progress.keys()
            if type(error) is OffsetOutOfRange and (await self._skip_deleted() or not begun):
                return False
            raise SourceChanged(self._config.name, error) from error

    def _open(self) -> AbstractAsyncContextManager[SourceBatches]:
        return self._clusters.source.open(
            {p: self._progress[p].next if p in self._progress else None for p in self._destinations},
            self._ends,
            read_committed=self._config.topics.read_committed,
            max_message_bytes=self._config.run.max_message_bytes,
            keep_encoded=self._passed_compression(),
        )

    def _passed_compression(self) -> CompressionName | None:
        """Return the compression that the target is to have; record batches that have it already are passed on. None:
        records are needed one by one, or have to be compressed with a certain level."""
        topics, compression = self._config.topics, self._config.run.compression
        passes = self._settings.exactly_once and topics.by_source and not topics.origin_headers
        return cast("CompressionName", compression) if passes and ":" not in compression else None

    async def _copy(self, batches: SourceBatches, producer: Producer) -> bool:
        ended = False
        while not (ended or self._has_new):
            gathered = _Gathered()
            ended = await self._gather(batches, gathered)
            following = self._following(batches, gathered, ended=ended)
            if gathered.parts or (ended and following != self._progress):
                await self._commit(producer, gathered, following, batches.lags())
            if gathered.error is not None:
                raise gathered.error
        return ended

    async def _gather(self, batches: SourceBatches, gathered: _Gathered) -> bool:
        """Take the batches of one transaction; return True if no more will come."""
        until = math.inf  # the first one may take any time
        while gathered.bytes < self._bytes and not self._has_new:
            batch = None
            try:
                with anyio.CancelScope(deadline=until) as self._waiting:
                    batch = await batches.next_batch()
                    if batch is None:
                        return True
            except OdradekError as error:
                gathered.error = error
                return False
            finally:
                self._waiting = None
            if batch is None:  # it is late, or there are new partitions
                return False
            gathered.add(batch)
            until = min(until, anyio.current_time() + self._config.run.transaction_seconds)
            await _keep_to(self._settings.reading, batch.columns.payload_bytes)
        return False

    def _following(
        self, batches: SourceBatches, gathered: _Gathered, *, ended: bool
    ) -> dict[TopicPartition, CopyProgress]:
        """Return how far all partitions are once the records are committed."""
        following = dict(self._progress)
        for partition, at in batches.positions().items():
            known = following.get(partition, CopyProgress(at))
            records = sum(map(len, gathered.parts.get(partition, ())))
            following[partition] = known._replace(next=at, records=known.records + records)
        if ended and self._ends is not None:
            for partition, end in self._ends.items():
                known = following.get(partition, CopyProgress(SourcePosition(end)))
                if known.next.position < end:  # what comes after the last record are the ends of transactions
                    following[partition] = known._replace(next=known.next._replace(position=end, inner=0))
        return following

    # ---- writing -------------------------------------------------------------------------------------------

    async def _commit(
        self,
        producer: Producer,
        gathered: _Gathered,
        following: dict[TopicPartition, CopyProgress],
        lags: Mapping[TopicPartition, int],
    ) -> None:
        """Write records, index and progress, together."""
        await _keep_to(self._settings.writing, gathered.bytes)
        self._open_since = begun_at = anyio.current_time()
        async with self._transaction(producer):
            entries: list[Stored] = []
            written = await gather(self._write(producer), gathered.parts.items())
            for partition, acks in zip(gathered.parts, written, strict=True):
                self._check_written(acks)
                if self._destinations[partition].rule is not None:
                    continue  # its records are not adjacent on the target
                runs = runs_of(gathered.parts[partition], acks, offsets=self._offsets)
                entries.append(IndexEntry(partition, runs))
                following[partition] = following[partition]._replace(target_next=runs[-1].offset + runs[-1].records)
            entries.append(Progress(round(time.time() * 1000), following))
            await self._store(producer, entries)
        self._open_since = None
        for ack in chain.from_iterable(written):
            self._add_written(ack.partition, (ack.position or 0) + ack.records)
        before, self._progress = self._progress, following
        seconds = anyio.current_time() - begun_at
        if seconds < LATE_S / 4:
            self._bytes = min(self._config.run.transaction_bytes, 2 * self._bytes)
        moved = [p for p, known in following.items() if known != before.get(p)]
        self._settings.committed(
            [gathered.copied(p, following[p].next.position, self._lag(p, lags), seconds) for p in moved]
        )

    def _check_written(self, acks: Iterable[Ack]) -> None:
        """Raise TargetChanged if records were written before the end of those that were committed earlier."""
        for ack in acks:
            if ack.position is not None and ack.position < self._written.get(ack.partition, 0):
                raise self._target_changed(ack.partition, ack.position)

    def _transaction(self, producer: Producer) -> AbstractAsyncContextManager[Any]:
        return producer.transaction() if self._settings.exactly_once else nullcontext()

    async def _store(self, producer: Producer, entries: Iterable[Stored]) -> Sequence[Ack]:
        """Write to the task's partition of the mirror's topic."""
        rows = [ProducerRecord(value, key) for key, value in stored_records(entries)]
        acks = await producer.send_many(self._config.topic, rows, partition=self._number)
        for failed in acks.failed:
            raise failed.error
        return acks.acks

    def _lag(self, partition: TopicPartition, lags: Mapping[TopicPartition, int]) -> int | None:
        """Return how far a partition is from its end, as far as that is known."""
        if self._ends is None:
            return lags.get(partition)
        end = self._ends.get(partition)
        return None if end is None else max(0, end - self._progress[partition].next.position)

    def _write(self, producer: Producer) -> Callable[[tuple[TopicPartition, list[Columns]]], Any]:
        headers = self._config.topics.origin_headers

        async def write(item: tuple[TopicPartition, list[Columns]]) -> Sequence[Ack]:
            source, parts = item
            origin = Origin(self._settings.source, source) if headers else None

            async def send(divided: Divided) -> Sequence[Ack]:
                target, columns = divided
                if origin is not None:
                    columns = origin.added(columns)
                acks = await producer.send_many(target.topic, Batch(source, columns), partition=target.partition)
                for failed in acks.failed:
                    raise refused_record(source, columns, failed)
                return acks.acks

            written = await gather(send, self._destinations[source].divide(Columns.concat(parts)))
            return [ack for acks in written for ack in acks]

        return write


async def _keep_to(limit: RateLimit, amount: int) -> None:
    await anyio.sleep(limit.take(amount, anyio.current_time()))
