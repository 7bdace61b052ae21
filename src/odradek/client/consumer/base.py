"""What reader and consumer have in common: where they are, how far behind, and holding partitions back."""

from __future__ import annotations

from collections import deque
from typing import Any

from odradek.client.consumer.cursor import ExactPosition
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.positions import ask_positions
from odradek.client.consumer.streams import Stream
from odradek.core.interfaces import ProtocolDriver
from odradek.errors import CorruptMessage
from odradek.types import LATEST, Position, StartPosition, TopicPartition

__all__ = ["PartitionReaderBase"]


class PartitionReaderBase:
    """Base of Reader and Consumer; not for use of its own."""

    def __init__(self, driver: ProtocolDriver, fetcher: Fetcher, streams: list[Stream[Any]]) -> None:
        self._driver, self._fetcher, self._streams_all = driver, fetcher, streams

    @property
    def partitions(self) -> list[TopicPartition]:
        """What is read now."""
        return sorted(self._fetcher.cursors)

    @property
    def reports(self) -> deque[CorruptMessage]:
        """What `corrupt="skip"` left out: the latest 1000, newest last."""
        return self._fetcher.reports

    def _places(self) -> dict[TopicPartition, ExactPosition | None]:
        """Exactly where each partition goes on after what was handed out; None: its start is not known yet."""
        places = {partition: cursor.place for partition, cursor in self._fetcher.cursors.items()}
        for stream in self._streams_all:
            if (inside := stream.place()) is not None and inside[0] in places:
                places[inside[0]] = inside[1]
        return places

    def positions(self) -> dict[TopicPartition, Position]:
        """Where each partition goes on after what was handed out, as far as known. Of a compressed wrapper handed out
        in part, the wrapper's start."""
        return {partition: place.position for partition, place in self._places().items() if place is not None}

    async def lag(self) -> dict[TopicPartition, int]:
        """How far behind the end of each partition `positions` is now: bytes in 0.7, records later.

        A partition whose position is not known yet, or that no live broker serves, is left out. Raises what a broker's
        answer failed with.
        """
        positions = self.positions()
        ends, errors = await ask_positions(self._driver, dict.fromkeys(positions, LATEST))
        for error in errors.values():
            raise error
        return {partition: max(0, ends[partition] - positions[partition]) for partition in ends}

    def pause(self, *partitions: TopicPartition) -> None:
        """Neither fetch nor deliver them until `resume`; without arguments: all there are now."""
        chosen = partitions or tuple(self._fetcher.cursors)
        self._recall(*chosen)
        self._fetcher.hold("user", chosen)

    def resume(self, *partitions: TopicPartition) -> None:
        """Go on with them; without arguments: with all."""
        self._fetcher.release("user", partitions or tuple(self._fetcher.cursors))

    def seek(self, partition: TopicPartition, start: StartPosition) -> None:
        """Go on from `start`. What was read ahead is forgotten, and an error the partition stopped with as well.

        Raises ConfigError for a partition that is not read here.
        """
        self._fetcher.cursor(partition)
        self._recall(partition)
        self._fetcher.seek(partition, start)

    def _recall(self, *partitions: TopicPartition) -> None:
        for stream in self._streams_all:
            stream.recall(partitions)
