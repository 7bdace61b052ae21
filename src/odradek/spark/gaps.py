"""Bytes that a query had to read and that are not there any more, as values."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from odradek.types import TopicPartition

__all__ = ["Loss", "PositionGap"]


class Loss(Enum):
    """How a log lost what was to be read."""

    EXPIRED = "deleted by retention"
    TRUNCATED = "cut off at the end, or the log was made anew"
    GONE = "no broker has this partition"


class PositionGap(NamedTuple):
    """What one partition lacks.

    Args:
        partition: The log.
        loss: What happened to it.
        start: Where reading was to begin.
        end: Where it was to end.
        earliest: Where the log begins now; -1 when it is gone.
        latest: Where it ends now; -1 when it is gone.
        resumed: Where reading goes on in this range, or after it when nothing of it is left.
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
