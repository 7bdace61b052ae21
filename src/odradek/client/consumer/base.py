"""Base class of readers and consumers: positions, lag, pause and seek."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.positions import resolve_positions
from odradek.client.consumer.streams import Stream
from odradek.client.options import partition as partition_rule
from odradek.client.options import start_position as start_position_rule
from odradek.core.fetch.read_range import ExactPosition
from odradek.core.interfaces import ProtocolDriver
from odradek.errors import CorruptMessage, UsageError
from odradek.types import LATEST, Position, StartPosition, TopicPartition, Watermarks

__all__ = ["PartitionReaderBase"]

_PARTITION, _START_POSITION = partition_rule(), start_position_rule()


class PartitionReaderBase:
    """Base class of Reader and Consumer."""

    def __init__(self, driver: ProtocolDriver, fetcher: Fetcher, streams: list[Stream[Any]]) -> None:
        self._driver, self._fetcher, self._all_streams = driver, fetcher, streams
        self._entered = False

    def _enter_once(self) -> None:
        """Raise UsageError if the block was entered before."""
        if self._entered:
            name = type(self).__name__.lower()
            raise UsageError(f"this {name} was entered before: make another {name} for another block")
        self._entered = True

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return sorted(self._fetcher.cursors)

    @property
    def reports(self) -> deque[CorruptMessage]:
        """Messages that `corrupt="skip"` left out: the latest 1000, newest last."""
        return self._fetcher.reports

    def _exact_positions(self) -> dict[TopicPartition, ExactPosition | None]:
        """Return exactly where each partition continues after what was handed out; None: its start is not known yet."""
        exact = {partition: cursor.exact_position for partition, cursor in self._fetcher.cursors.items()}
        for stream in self._all_streams:
            if (current := stream.exact_position()) is None or current[0] not in exact:
                continue
            partition, at = current
            if at.topic_id == self._fetcher.topic_id(partition):  # else it is read in another topic of this name now
                exact[partition] = at
        return exact

    def positions(self) -> dict[TopicPartition, Position]:
        """Return where each partition continues after what was handed out, as far as known. If that is inside a
        compressed message, the position is where the compressed message starts."""
        return {partition: exact.position for partition, exact in self._exact_positions().items() if exact is not None}

    def watermarks(self) -> dict[TopicPartition, Watermarks]:
        """Return the ends of each partition's log and how far it is from there, as its latest fetch had them: without
        a request, and as old as that fetch. While a partition is paused, or its read-ahead is full, there is none.

        A partition that was not fetched yet is left out, and so is every one in Kafka 0.7, whose responses have nothing
        of it: see `lag`.
        """
        positions, committed = self.positions(), self._fetcher.settings.decoder.read_committed
        known = {p: cursor.watermarks for p, cursor in self._fetcher.cursors.items() if cursor.watermarks is not None}
        return {p: _with_lag(ends, positions.get(p), committed) for p, ends in known.items()}

    async def lag(self) -> dict[TopicPartition, int]:
        """Return how far each partition of `positions` is from the end of what may be read now: bytes in 0.7, records
        in later protocols.

        A partition whose position is not known yet, or that no live broker serves, is left out. Raises the error of a
        request that failed. Cancellation: safe.
        """
        positions = self.positions()
        wanted, committed = dict.fromkeys(positions, LATEST), self._fetcher.settings.decoder.read_committed
        ends, errors = await resolve_positions(self._driver, wanted, read_committed=committed)
        for error in errors.values():
            raise error
        return {partition: max(0, ends[partition] - positions[partition]) for partition in ends}

    def _counters(self) -> dict[str, Any]:
        """Return the fields of `ReaderStatistics`."""
        fetcher, cursors = self._fetcher, self._fetcher.cursors
        return {
            "partitions": len(cursors),
            "delivered": fetcher.delivered,
            "fetches": fetcher.fetches,
            "fetched_bytes": fetcher.fetched_bytes,
            "buffered": sum(cursor.queue.rows for cursor in cursors.values()),
            "buffered_bytes": sum(cursor.queue.memory for cursor in cursors.values()),
            "read_ahead_bytes": fetcher.settings.limits.read_ahead_bytes,
            "lag": {p: ends.lag for p, ends in self.watermarks().items() if ends.lag is not None},
        }

    def pause(self, *partitions: TopicPartition) -> None:
        """Neither fetch nor deliver these partitions until `resume`; without arguments: all current ones.

        Raises ConfigError for a partition that is not assigned to this reader or consumer.
        """
        chosen = self._chosen(partitions)
        self._take_back(*chosen)
        self._fetcher.pause("user", chosen)

    def resume(self, *partitions: TopicPartition) -> None:
        """Continue with these partitions; without arguments: with all. Raises ConfigError like `pause`."""
        self._fetcher.resume("user", self._chosen(partitions))

    def _chosen(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions an argument names, or all."""
        if not partitions:
            return list(self._fetcher.cursors)
        return [self._fetcher.cursor(_PARTITION("partitions", partition)).partition for partition in partitions]

    def seek(self, partition: TopicPartition, start: StartPosition) -> None:
        """Continue from `start`. Records read ahead are dropped, and so is an error the partition stopped with.

        Raises:
            TypeError, ConfigError: `start` is not a position, or the partition is not assigned.
        """
        self._fetcher.cursor(_PARTITION("partition", partition))
        self._continue_at(partition, _START_POSITION("start", start))

    def _continue_at(self, partition: TopicPartition, start: StartPosition, inside: int = 0) -> None:
        """Drop what was read ahead and continue from `start`, after `inside` messages of the wrapper there."""
        self._take_back(partition)
        for stream in self._all_streams:
            stream.forget_last(partition)
        self._fetcher.seek(partition, start, inside)

    def _take_back(self, *partitions: TopicPartition) -> None:
        for stream in self._all_streams:
            stream.take_back(partitions)


def _with_lag(ends: Watermarks, position: Position | None, read_committed: bool) -> Watermarks:
    stable = ends.last_stable_offset
    end = stable if read_committed and stable is not None else ends.high_watermark
    return ends._replace(lag=None if position is None else max(0, end - position))
