"""Compares one partition of a mirror with its source.

Of a chunk each side is hashed as it is read; where the hashes differ, the chunk is read again, record by record, to
find the first difference.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import anyio

from odradek.batch import Batch
from odradek.core.interfaces import RECORDS, Extent, Extents
from odradek.errors import OdradekError, OffsetOutOfRange, TransportError
from odradek.io.retry import retry
from odradek.mirror.clusters import PAUSES, Clusters
from odradek.mirror.comparing import (
    Chunk,
    ChunkHash,
    MessagePosition,
    chunks_of,
    differing,
    kind_of_difference,
    offset_on_target,
    remaining,
    rows_before,
    split_by_runs,
    without_origin,
)
from odradek.mirror.config import MirrorConfig
from odradek.mirror.sources import ClusterSource, ReaderBatches, SourceBatches
from odradek.mirror.stored import IndexEntry, SourcePosition
from odradek.types import Columns, MiB, Position, Record, TopicPartition

__all__ = ["Difference", "PartitionComparison", "Rows", "VerifiedPartition", "served"]

log = logging.getLogger(__name__)

CHUNK_RECORDS = 50_000
"""A chunk ends with the transaction with which it has so many records."""

READ_AHEAD_BYTES = 8 * MiB
"""Memory that records of one side of one partition take before they are compared."""

WAIT_SECONDS = 10.0
"""Time for which a log may end before what was copied (s): after the election of a leader it does for a moment."""

LOOKED_AT = 100
"""Records after a difference that are looked at to see whether some are missing, or are too many."""

SHOWN = 120
"""Characters of a value that a difference shows."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a partition.

    Args:
        kind: `missing` (the target lacks a record), `extra` (it has one more), `order` (two are swapped), or what
            of the record differs: `value`, `key`, `headers`, `timestamp`, or several of these.
        index: Number of the record within its chunk.
        position, inner: Where it is on the source; see `SourcePosition`. None: the source has no record there.
        offset: Where it is on the target; None: the target has no record there.
        source, target: The records, shortened.
    """

    kind: str
    index: int
    position: int | None = None
    inner: int = 0
    offset: int | None = None
    source: str = ""
    target: str = ""


@dataclass(slots=True)
class VerifiedPartition:
    """The comparison of one partition, as far as it is.

    Args:
        source, target: The partition on both sides.
        end: Where the comparison ends on the source: how far the mirror was.
        copied: How many records the mirror had copied.
        at: Where the next chunk starts on the source; None: at the beginning.
        compared: How many of the copied records were compared.
        not_compared: How many could not be, because one side has deleted them.
        source_records, target_records: How many records there were.
        compacted: How many records one side had removed, because the topic is compacted there, and the other had not.
        others: How many records of other producers there were between them on the target.
        bytes: Bytes of the values, keys and headers on the source.
        seconds: How long it took.
        hash: Of the source's records in chunks without differences (SHA-256 of the hashes of chunks), hexadecimal.
        difference: The first difference; None: there is none.
        error: Why it could not be compared further; "": it could.
        done: The comparison has ended.
    """

    source: TopicPartition
    target: TopicPartition
    end: SourcePosition
    copied: int
    at: MessagePosition | None = None
    compared: int = 0
    not_compared: int = 0
    source_records: int = 0
    target_records: int = 0
    compacted: int = 0
    others: int = 0
    bytes: int = 0
    seconds: float = 0.0
    hash: str = ""
    difference: Difference | None = None
    error: str = ""
    done: bool = False

    @property
    def equal(self) -> bool:
        """True if all that could be compared is the same."""
        return self.done and self.difference is None and not self.error


Noted = Callable[[VerifiedPartition], object]


class PartitionComparison:
    """Compares one partition.

    Args:
        config: The file.
        clusters: Both clusters, open.
        result: What is known of it, which is completed.
        entries: What is to be compared, in order.
        noted: Called after each chunk.
    """

    def __init__(
        self,
        config: MirrorConfig,
        clusters: Clusters,
        result: VerifiedPartition,
        entries: list[IndexEntry],
        noted: Noted,
    ) -> None:
        self._config, self._clusters, self._result, self._noted = config, clusters, result, noted
        self._entries = entries
        self._offsets = clusters.source.unit is RECORDS
        self._earliest: tuple[int, int] | None = None
        self._out_of_range: OffsetOutOfRange | None = None

    async def run(self) -> None:
        """Compare until the end, or the first difference. Raises OdradekError: a log cannot be read."""
        await retry(self._attempt, PAUSES, passes=self._passes)

    def _passes(self, error: OdradekError) -> bool:
        if error is self._out_of_range:
            return False
        self._out_of_range = error if isinstance(error, OffsetOutOfRange) else None
        passes = error.retriable or self._out_of_range is not None
        if passes:
            log.warning("mirror %s: comparing %s begins again: %s", self._config.name, self._result.source, error)
        return passes

    async def _attempt(self) -> None:
        """Compare from where the comparison is."""
        if self._result.at == self._result.end[:2]:
            return
        extents = await self._extents()
        earliest = extents.source.earliest, extents.target.earliest
        if self._out_of_range is not None and self._earliest == earliest:
            raise self._out_of_range  # it is not that one side deletes records meanwhile
        self._earliest = earliest
        chunks = self._chunks(extents)
        async with self._opened(chunks, extents) as sides:
            for chunk in chunks:
                started = time.monotonic()
                self._result.difference = await self._compare(chunk, sides, extents)
                self._result.seconds += time.monotonic() - started
                if self._result.difference is not None:
                    return
                self._result.at = chunk.end
                self._noted(self._result)

    # ---- where to compare ----

    async def _extents(self) -> _Extents:
        """Return where the logs begin and end, once both have what was copied, or will not have it."""
        until = time.monotonic() + WAIT_SECONDS
        committed = self._config.topics.read_committed
        copied = max((run.offset + run.records for run in self._entries[-1].runs), default=0) if self._entries else 0
        while True:
            source = await self._clusters.source.extents([self._result.source], read_committed=committed)
            target = await self._clusters.target.driver.logs.extents([self._result.target])
            extents = _Extents(served(source, self._result.source), served(target, self._result.target))
            complete = extents.source.latest >= self._result.end.position and extents.target.latest >= copied
            if complete or time.monotonic() >= until:
                return extents
            await anyio.sleep(0.2)

    def _chunks(self, extents: _Extents) -> list[Chunk]:
        """Return what is left to be compared, and note what cannot be."""
        result, end = self._result, MessagePosition(*self._result.end[:2])
        left = [entry for entry in self._entries if result.at is None or entry.runs[0][:2] >= result.at]
        cut = (
            remaining(entry, extents.source.earliest, extents.target.earliest, offsets=self._offsets) for entry in left
        )
        present = [entry for entry in cut if entry is not None]
        result.not_compared = max(0, result.copied - result.compared - _records(present))
        start = MessagePosition(*present[0].runs[0][:2]) if present else end
        if _records(present) == _records(left):  # none was deleted
            if result.at is not None:
                start = result.at
            elif not result.not_compared:  # nothing that came before the first record may be missing
                start = MessagePosition(extents.source.earliest)
        return chunks_of(present, min(start, end), end, CHUNK_RECORDS)

    # ---- reading ----

    @asynccontextmanager
    async def _opened(self, chunks: Sequence[Chunk], extents: _Extents) -> AsyncIterator[_Sides]:
        """Read both sides of chunks."""
        config, result, (source, target) = self._config, self._result, extents
        first, last = chunks[0], chunks[-1]
        options: Any = {
            "read_ahead_bytes": READ_AHEAD_BYTES, "max_message_bytes": config.run.max_message_bytes
        }  # fmt: skip
        offset = Position(max(first.offset, target.earliest))
        until = Position(max(offset, min(last.until, target.latest)))
        async with (
            self._clusters.source.open(
                {result.source: SourcePosition(*first.start, result.end.topic_id)},
                {result.source: Position(source.latest)},
                read_committed=config.topics.read_committed,
                **options,
            ) as of_source,
            self._clusters.target.reader(
                {result.target: offset}, until={result.target: until}, isolation="read_committed", **options
            ) as of_target,
        ):
            yield _Sides(Rows(of_source), Rows(ReaderBatches(of_target)))

    def _copied(self, columns: Columns, chunk: Chunk) -> Iterator[tuple[bool, Columns]]:
        """Yield rows of the target as they were on the source (True), and those of other producers (False)."""
        for copied, rows in split_by_runs(columns, chunk.runs):
            yield copied, without_origin(rows) if copied and self._config.topics.origin_headers else rows

    # ---- comparing ----

    async def _compare(self, chunk: Chunk, sides: _Sides, extents: _Extents) -> Difference | None:
        """Compare a chunk; return the first difference."""
        source, target, others = ChunkHash(), ChunkHash(), _Others()
        while (columns := await sides.source.before(chunk.end)) is not None:
            source.add(columns)
        while (columns := await sides.target.before(MessagePosition(chunk.until))) is not None:
            for copied, rows in self._copied(columns, chunk):
                if copied:
                    target.add(rows)
                else:
                    others.add(rows, target.records)
        difference, compacted = (None, 0) if source.same(target) else await self._first_difference(chunk, extents)
        if difference is None and others.first is not None and not self._config.topics.append:
            difference = others.first
        self._count(chunk, source, target, others, same=difference is None)
        self._result.compacted += compacted
        return difference

    def _count(self, chunk: Chunk, source: ChunkHash, target: ChunkHash, others: _Others, *, same: bool) -> None:
        result = self._result
        result.compared += chunk.records
        result.source_records += source.records
        result.target_records += target.records
        result.others += others.records
        result.bytes += source.bytes
        if same:
            result.hash = source.following(result.hash)

    async def _first_difference(self, chunk: Chunk, extents: _Extents) -> tuple[Difference | None, int]:
        """Read a chunk again, and compare it record by record; return also how many were removed from one side."""
        async with self._opened([chunk], extents) as sides:
            source = _Records(sides.source, chunk.end, lambda columns: [columns])
            target = _Records(
                sides.target,
                MessagePosition(chunk.until),
                lambda columns: (rows for copied, rows in self._copied(columns, chunk) if copied),
            )
            pairs = _Pairs(source, target, chunk, await self._compacted_sides())
            index = 0
            left, right = await pairs.next()
            while left is not None and right is not None and not differing(left, right):
                left, right, index = *await pairs.next(), index + 1
            if left is None and right is None:
                return None, pairs.removed
            return _difference(index, await _some(left, source), await _some(right, target)), pairs.removed

    async def _compacted_sides(self) -> _CompactedSides:
        """Return which sides may have removed records from the middle of their logs, where the index says which."""
        if not self._offsets:
            return _CompactedSides(source=False, target=False)
        on_target = ClusterSource(self._clusters.target, self._config.target.url)
        target = _is_compacted(await on_target.topic_configs(self._result.target.topic))
        source = _is_compacted(await self._clusters.source.topic_configs(self._result.source.topic))
        return _CompactedSides(source=bool(target) if source is None else source, target=bool(target))


def _difference(index: int, source: Sequence[Record], target: Sequence[Record]) -> Difference:
    kind = kind_of_difference(source, target)
    left = source[0] if source and kind != "extra" else None
    right = target[0] if target and kind != "missing" else None
    return Difference(
        kind,
        index,
        None if left is None else left.position,
        0 if left is None else left.inner_index,
        None if right is None else right.position,
        _shown(left),
        _shown(right),
    )


def _shown(record: Record | None) -> str:
    """Return a record for people, shortened."""
    if record is None:
        return ""
    fields = {name: getattr(record, name) for name in ("value", "key", "headers", "timestamp")}
    return ", ".join(
        f"{name} {_short(value)}" for name, value in fields.items() if value not in (None, ()) or name == "value"
    )


def _short(value: object) -> str:
    text = repr(value[:SHOWN] if isinstance(value, bytes) else value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


async def _some(first: Record | None, records: _Records) -> list[Record]:
    """Return a record and some of those after it, as far as there are any."""
    some: list[Record] = []
    size = 0
    while first is not None and len(some) < LOOKED_AT and size < MiB:
        some.append(first)
        size += len(first.value or b"")
        first = await records.next()
    return some


def _records(entries: Iterable[IndexEntry]) -> int:
    """Return how many records were copied."""
    return sum(run.records for entry in entries for run in entry.runs)


def _is_compacted(configs: Mapping[str, str]) -> bool | None:
    """Return True if a topic is compacted; None: its configuration does not say so (before 0.11)."""
    return "compact" in configs["cleanup.policy"] if "cleanup.policy" in configs else None


def served(extents: Extents, partition: TopicPartition) -> Extent:
    """Return where a log begins and ends. Raises TransportError: its broker is away."""
    if partition not in extents:
        raise TransportError(f"{partition}: no live broker serves it")
    return extents[partition]


class _Extents(NamedTuple):
    """Where the logs of both sides begin and end."""

    source: Extent
    target: Extent


class Rows:
    """The rows of one partition, up to one position after the other."""

    def __init__(self, batches: SourceBatches) -> None:
        self._batches = batches
        self._rest: Columns | None = None

    async def before(self, end: MessagePosition) -> Columns | None:
        """Return some of the next rows that start before a position; None: there are no more. Cancellation: safe."""
        if self._rest is None or not len(self._rest):
            if (batch := await self._batches.next_batch()) is None:
                return None
            self._rest = batch.columns
        row = rows_before(self._rest, end)
        columns, self._rest = self._rest.slice(0, row), self._rest.slice(row, len(self._rest))
        return columns if row else None


class _Sides(NamedTuple):
    """Both sides of a partition, being read."""

    source: Rows
    target: Rows


class _Records:
    """Records of a side before a position, one by one.

    Args:
        rows: The side.
        end: Where they end.
        picked: Returns those of the rows that are wanted.
    """

    def __init__(self, rows: Rows, end: MessagePosition, picked: Callable[[Columns], Iterable[Columns]]) -> None:
        self._rows, self._end, self._picked = rows, end, picked
        self._records: Iterator[Record] = iter(())

    async def next(self) -> Record | None:
        """Return the next record; None: there are no more."""
        while (record := next(self._records, None)) is None:
            columns = await self._rows.before(self._end)
            if columns is None:
                return None
            self._records = chain.from_iterable(Batch(_ANY, rows) for rows in self._picked(columns))
        return record


_ANY = TopicPartition("", 0)


class _CompactedSides(NamedTuple):
    """Which sides are compacted."""

    source: bool
    target: bool


class _Pairs:
    """Records of both sides that belong together. On sides that are compacted the index says which are gone.

    Attributes:
        removed: How many were left out, because the other side has removed them.
    """

    def __init__(self, source: _Records, target: _Records, chunk: Chunk, compacted: _CompactedSides) -> None:
        self._source, self._target, self._runs, self._compacted = source, target, chunk.runs, compacted
        self.removed = 0

    async def next(self) -> tuple[Record | None, Record | None]:
        """Return the next pair; None: that side has no more."""
        left, right = await self._source.next(), await self._target.next()
        while True:
            if self._compacted.target and self._is_gone_from_target(left, right):
                left = await self._source.next()
            elif self._compacted.source and self._is_gone_from_source(left, right):
                right = await self._target.next()
            else:
                return left, right
            self.removed += 1

    def _is_gone_from_target(self, left: Record | None, right: Record | None) -> bool:
        offset = None if left is None else offset_on_target(self._runs, left.position)
        return offset is not None and (right is None or offset < right.position)

    def _is_gone_from_source(self, left: Record | None, right: Record | None) -> bool:
        if left is None or right is None:
            return right is not None
        offset = offset_on_target(self._runs, left.position)
        return offset is not None and offset > right.position


@dataclass(slots=True)
class _Others:
    """Records of other producers within a chunk."""

    records: int = 0
    first: Difference | None = None

    def add(self, rows: Columns, index: int) -> None:
        """Count rows that come before the record of this number."""
        self.records += len(rows)
        if self.first is None:
            record = next(iter(Batch(_ANY, rows.slice(0, 1))))
            self.first = Difference("extra", index, offset=record.position, target=_shown(record))
