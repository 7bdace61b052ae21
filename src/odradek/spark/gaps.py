"""Bytes that a query had to read and that are not there any more, as values."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from odradek.types import TopicPartition

__all__ = ["Loss", "PositionGap"]


class Loss(Enum):
    """The way in which a log lost the data to be read."""

    EXPIRED = "deleted by retention"
    TRUNCATED = "cut off at the end, or the log was made anew"
    GONE = "no broker has this partition"


class PositionGap(NamedTuple):
    """The missing range of one partition.

    Args:
        partition: The log.
        loss: The kind of loss.
        start: First position to be read.
        end: End of the range to be read.
        earliest: First position of the log now; -1 if the log is gone.
        latest: End of the log now; -1 if the log is gone.
        resumed: Position where reading continues in this range, or its end if nothing of the range is left.
    """

    partition: TopicPartition
    loss: Loss
    start: int
    end: int
    earliest: int
    latest: int
    resumed: int

    def __str__(self) -> str:
        has = "" if self.loss is Loss.GONE else f", the log now has [{self.earliest}, {self.latest})"
        return f"{self.partition}: {self.loss.value}: wanted [{self.start}, {self.end}){has}"
