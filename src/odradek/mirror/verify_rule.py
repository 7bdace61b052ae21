"""Compares a topic whose records a rule divides: what the target has in each partition, and what the rule says of the
source's records. Their order is not compared, because records of several source partitions are mixed on the target.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from odradek.errors import OdradekError
from odradek.io.retry import retry
from odradek.mirror.clusters import PAUSES, Clusters, read_progress
from odradek.mirror.comparing import MessagePosition, RecordSums, without_origin
from odradek.mirror.config import MirrorConfig
from odradek.mirror.dividing import Division
from odradek.mirror.stored import CopiedTopic, CopyProgress, SourcePosition
from odradek.mirror.verify_partition import Rows, served
from odradek.types import EARLIEST, LATEST, Columns, Position, TopicPartition

__all__ = ["DividedTopic", "TopicComparison"]

log = logging.getLogger(__name__)

Sums = Mapping[TopicPartition, RecordSums]


@dataclass(slots=True)
class DividedTopic:
    """The comparison of a topic whose records a rule divides.

    Args:
        source, target: Its name on both sides.
        copied: How many records the mirror had copied.
        source_records, target_records: How many there were.
        different: Numbers of the partitions of the target that have not exactly the records that the rule says, in any
            order.
        error: Why it could not be compared; "": it could.
        done: The comparison has ended.
    """

    source: str
    target: str
    copied: int = 0
    source_records: int = 0
    target_records: int = 0
    different: tuple[int, ...] = ()
    error: str = ""
    done: bool = False

    @property
    def equal(self) -> bool:
        """True if each partition of the target has the records that the rule says, whatever their order."""
        return self.done and not self.different and not self.error


class TopicComparison:
    """Compares one topic.

    Args:
        config: The file.
        clusters: Both clusters, open.
        topic: What the mirror has stored of it.
        result: Is completed.
    """

    def __init__(self, config: MirrorConfig, clusters: Clusters, topic: CopiedTopic, result: DividedTopic) -> None:
        self._config, self._clusters, self._topic, self._result = config, clusters, topic, result

    async def run(self) -> None:
        """Compare it. Raises OdradekError: a log cannot be read. Cancellation: safe."""
        await retry(self._attempt, PAUSES, passes=self._passes)

    def _passes(self, error: OdradekError) -> bool:
        if error.retriable:
            log.warning("mirror %s: comparing %s begins again: %s", self._config.name, self._topic.source, error)
        return error.retriable

    async def _attempt(self) -> None:
        progress, result = await self._progress(), self._result
        source, target = await self._source(progress), await self._target()
        result.copied = sum(each.records for each in progress.values())
        result.source_records, result.target_records = _records(source), _records(target)
        result.error = self._why_not(result, moved=await self._progress() != progress)
        if not result.error:
            empty = RecordSums()
            result.different = tuple(
                partition.partition
                for partition in sorted(source.keys() | target.keys())
                if not source.get(partition, empty).same(target.get(partition, empty))
            )

    def _why_not(self, result: DividedTopic, *, moved: bool) -> str:
        """Return why what was read cannot be compared."""
        if moved:
            return "records were copied while it was compared: stop the mirror meanwhile"
        if result.source_records < result.copied:
            gone = result.copied - result.source_records
            return f"the source has deleted {gone} of the records, and which ones the target has of these is not known"
        if self._config.topics.append and result.target_records > result.copied:
            return "the target has records of others (topics.append), and which ones is not known"
        return ""

    async def _progress(self) -> dict[TopicPartition, CopyProgress]:
        """Return how far the partitions are."""
        newest: dict[TopicPartition, CopyProgress] = {}
        for task in {to.task for to in self._topic.partitions.values()}:
            newest |= (await read_progress(self._config, self._clusters.target, task)).progress_of(task)
        return {partition: newest[partition] for partition in self._topic.partitions if partition in newest}

    # ---- reading ----

    async def _source(self, progress: Mapping[TopicPartition, CopyProgress]) -> Sums:
        """Add up what was copied, by the partition where it should be."""
        sums: dict[TopicPartition, RecordSums] = defaultdict(RecordSums)
        partitioner = self._clusters.target.driver.default_partitioner()
        for partition, copied in progress.items():
            division = Division.of(self._topic, partition, partitioner)
            async for rows in self._copied(partition, copied.next):
                for to, columns in division.divide(rows):
                    sums[to].add(columns)
        return sums

    async def _copied(self, partition: TopicPartition, end: SourcePosition) -> AsyncIterator[Columns]:
        """Yield what the source has before a position."""
        committed = self._config.topics.read_committed
        extents = await self._clusters.source.extents([partition], read_committed=committed)
        async with self._clusters.source.open(
            {partition: None},
            {partition: Position(served(extents, partition).latest)},
            read_committed=committed,
            max_message_bytes=self._config.run.max_message_bytes,
        ) as batches:
            rows = Rows(batches)
            while (columns := await rows.before(MessagePosition(end.position, end.inner))) is not None:
                yield columns

    async def _target(self) -> Sums:
        """Add up what there is, by partition."""
        sums: dict[TopicPartition, RecordSums] = defaultdict(RecordSums)
        async with self._clusters.target.reader(
            dict.fromkeys(await self._clusters.target.partitions(self._topic.target), EARLIEST),
            until=LATEST,
            isolation="read_committed",
            max_message_bytes=self._config.run.max_message_bytes,
        ) as reader:
            async for batch in reader.batches():
                headers = self._config.topics.origin_headers
                sums[batch.partition].add(without_origin(batch.columns) if headers else batch.columns)
        return sums


def _records(sums: Sums) -> int:
    return sum(each.records for each in sums.values())
