"""Positions on the source as offsets on the target, where the index alone does not say: it reads the source."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from odradek.core.interfaces import RECORDS
from odradek.errors import OffsetOutOfRange
from odradek.io.gather import gather
from odradek.mirror.bookmarks import bookmark_of
from odradek.mirror.clusters import Clusters
from odradek.mirror.config import MirrorConfig
from odradek.mirror.stored import SourcePosition
from odradek.mirror.translation import Deleted, Exact, NotMirrored, PartitionIndex, Uncounted
from odradek.types import EARLIEST, Position, TopicPartition

__all__ = ["Logs", "Match", "TargetPosition", "Translator"]

Match = Literal["exact", "not mirrored", "lost", "unknown"]
Logs = Mapping[TopicPartition, tuple[Position, Position]]
"""Partition -> begin and end of its log; without those that no broker serves."""

NOT_MIRRORED = "the group has had records that are not copied yet"
NOT_COPIED = "the source deleted records behind the position before they were copied"
NOT_COUNTED = (
    "the source deleted the records around the position, which are copied: which of them comes next is not known"
)
CHANGED = "the topic was made again on the source after records had been copied, or its log was cut"
NOT_KEPT = "the target deleted records behind the position after they were copied"


class TargetPosition(NamedTuple):
    """A position on the target.

    Args:
        offset: It; None: there is none.
        match: See `odradek.mirror.groups.GroupPosition`.
        why: The reason for anything but an exact one.
    """

    offset: Position | None
    match: Match
    why: str = ""


@dataclass(frozen=True, slots=True)
class Translator:
    """Translates positions, with what was known of the clusters at one moment.

    Args:
        config: The file.
        clusters: Both clusters, open.
        source: The logs of the source.
        target: The logs of the target.
        destinations: Source partition -> where it is copied to.
        indexes: The index of each of these, where the target serves it.
        changed: Source partitions whose log is not the one that was copied.
    """

    config: MirrorConfig
    clusters: Clusters
    source: Logs
    target: Logs
    destinations: Mapping[TopicPartition, TopicPartition]
    indexes: Mapping[TopicPartition, PartitionIndex]
    changed: Collection[TopicPartition]

    async def translate(
        self, positions: Mapping[TopicPartition, Collection[Position]]
    ) -> dict[tuple[TopicPartition, Position], TargetPosition]:
        """Return where positions of the source are on the target.

        Raises:
            OdradekError: The source could not be read.

        Cancellation: safe.
        """

        async def of_partition(partition: TopicPartition) -> list[tuple[Position, TargetPosition]]:
            # In order: what is counted up to one position need not be read again for the next.
            return [(at, await self._translate(partition, at)) for at in sorted(set(positions[partition]))]

        done = await gather(of_partition, positions)
        return {(partition, at): each for partition, rows in zip(positions, done, strict=True) for at, each in rows}

    async def _translate(self, partition: TopicPartition, position: Position) -> TargetPosition:
        if partition not in self.destinations:
            return TargetPosition(None, "not mirrored", "the partition is not copied yet")
        if partition not in self.source or partition not in self.indexes:
            return TargetPosition(None, "unknown", "no broker serves the partition now, on the source or the target")
        if partition in self.changed:
            return TargetPosition(None, "unknown", CHANGED)
        index = self.indexes[partition]
        if not index.runs and self.config.topics.append:
            return TargetPosition(None, "unknown", "nothing was copied yet to a topic that may have records of others")
        offsets = self.clusters.source.unit is RECORDS
        translation = index.translate(position, earliest=self.source[partition][0], offsets=offsets)
        match translation:
            case Exact(offset):
                return self._exact(partition, offset)
            case Uncounted():
                return await self._count(partition, position, translation)
            case NotMirrored(since, offset):
                if await self._has_more(partition, since, position):
                    return TargetPosition(Position(offset), "not mirrored", NOT_MIRRORED)
                return self._exact(partition, offset)
            case Deleted(offset):
                return self._lost(partition, offset, NOT_COPIED)

    def _exact(self, partition: TopicPartition, offset: int) -> TargetPosition:
        """Return an exact position, if the target still has the records from there on."""
        index, begin = self.indexes[partition], self._begin(partition)
        if index.records_from(offset) > index.records_from(begin):
            return self._lost(partition, begin, NOT_KEPT)
        return TargetPosition(Position(max(begin, offset)), "exact")

    def _lost(self, partition: TopicPartition, first: int, why: str) -> TargetPosition:
        """Return what the file says of a position that is nowhere on the target."""
        match self.config.groups.lost:
            case "fail":
                return TargetPosition(None, "lost", f"{why} ([groups] lost says what to do)")
            case "earliest":
                return TargetPosition(Position(max(self._begin(partition), first)), "lost", why)
            case "latest":
                return TargetPosition(Position(self.indexes[partition].end), "lost", why)

    def _begin(self, partition: TopicPartition) -> int:
        return self.target[self.destinations[partition]][0]

    async def _count(self, partition: TopicPartition, position: Position, within: Uncounted) -> TargetPosition:
        """Count the records of a run that are before a position; without those, the records behind it."""
        run, at = within.run, SourcePosition(position)
        try:
            records = await self._read(partition, SourcePosition(run.position, run.inner), at)
        except OffsetOutOfRange:
            try:
                records = run.records - await self._read(partition, at, within.end)
            except OffsetOutOfRange:
                return self._lost(partition, run.offset, NOT_COUNTED)
        return self._exact(partition, self.indexes[partition].counted(run, position, records).offset)

    async def _has_more(self, partition: TopicPartition, since: SourcePosition | None, position: Position) -> bool:
        """Return True unless nothing is between what is copied and a position: the ends of transactions alone."""
        committed = self.config.topics.read_committed
        extents = await self.clusters.source.extents([partition], read_committed=committed)
        if partition not in extents or extents[partition].latest < position:
            return True  # a reader would wait
        try:
            start = SourcePosition(extents[partition].earliest) if since is None else since
            return bool(await self._read(partition, start, SourcePosition(position), enough=1))
        except OffsetOutOfRange:
            return True

    async def _read(
        self, partition: TopicPartition, start: SourcePosition, end: SourcePosition, enough: float = math.inf
    ) -> int:
        """Return how many records are between two positions, once there are enough. Raises OffsetOutOfRange: the source
        does not have them any more."""
        topics, records = self.config.topics, 0
        async with self.clusters.source_cluster.reader(
            {partition: EARLIEST},
            start=bookmark_of({partition: start}),
            until=bookmark_of({partition: end}),
            isolation=topics.isolation,
            reset="fail",
            max_message_bytes=self.config.run.max_message_bytes,
        ) as reader:
            async for batch in reader.batches():
                records += len(batch)
                if records >= enough:
                    break
        return records
