"""Errors of the data source. Positional arguments are the whole state, because Spark pickles errors."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.errors import OdradekError
from odradek.spark.gaps import PositionGap
from odradek.types import TopicPartition

__all__ = ["BoundaryMismatch", "DataLoss", "check_range_end"]


class BoundaryMismatch(OdradekError):
    """A range of a log was read to its end, and its end is not where a message ends.

    Nothing of the range may be kept: a neighbouring range would have the same bytes again, or begin inside a message.

    Args:
        partition: `topic/partition` as text.
        start: Where the range begins.
        end: Where it should have ended.
        landed: Where the last whole message in it ended.
    """

    hint = (
        "the log changed under the query, a damaged message is in the way, or the offset was never a message boundary: "
        "read from the start of its segment"
    )

    def __init__(self, partition: str, start: int, end: int, landed: int) -> None:
        super().__init__(partition, start, end, landed)
        self.partition, self.start, self.end, self.landed = partition, start, end, landed

    def message(self) -> str:
        return (
            f"{self.partition}: the messages from {self.start} on end at {self.landed}, "
            f"not at {self.end} where the range ends"
        )


def check_range_end(partition: TopicPartition, start: int, end: int, landed: int) -> None:
    """Compare where reading the range [start, end) ended with where it should. Raises BoundaryMismatch."""
    if landed != end:
        raise BoundaryMismatch(str(partition), start, end, landed)


class DataLoss(OdradekError):
    """Data that a query has to read is no longer in the logs, and `failOnDataLoss` is true.

    Args:
        gaps: The missing ranges, partition by partition.
    """

    hint = "failOnDataLoss=false goes on behind what is missing and records it"

    def __init__(self, gaps: Sequence[PositionGap]) -> None:
        super().__init__(tuple(gaps))
        self.gaps = tuple(gaps)

    def message(self) -> str:
        shown = "; ".join(str(gap) for gap in self.gaps[:SHOWN])
        more = f"; and {len(self.gaps) - SHOWN} more partitions" if len(self.gaps) > SHOWN else ""
        return f"data was lost: {shown}{more}"


SHOWN = 10
"""Gaps spelled out in a message; all of them are in `gaps`."""
