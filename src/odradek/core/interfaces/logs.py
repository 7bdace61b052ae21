"""Logs as wholes: where they begin and end, what their positions count, and where they may be cut into ranges."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from odradek.types import AtTime, MiB, Position, TopicPartition

__all__ = ["BYTES", "RECORDS", "Extent", "Extents", "LogAccess", "PositionUnit", "SplitPoint"]


class PositionUnit(NamedTuple):
    """A unit of positions. If it is exact, a message begins at each valid position. Otherwise every position is a
    boundary, and some have no message."""

    name: str
    min_split: int  # ranges are not divided into smaller pieces
    min_share: int  # a partition is not given less of a micro-batch, if it has more
    task_size: int  # default maximum
    exact: bool


BYTES = PositionUnit("bytes", 4 * MiB, 16 * MiB, 128 * MiB, exact=True)
"""0.7. Proving a cut takes one or two of the four MiB, finding where a share ends 1 to 3 MiB (`boundary`)."""

RECORDS = PositionUnit("records", 1, 1, 1_000_000, exact=False)
"""0.8 and later: offsets."""


class Extent(NamedTuple):
    """The extent of a log: positions of its first message and of the next one to be written."""

    earliest: int
    latest: int
    boundaries: tuple[int, ...] = ()  # known message boundaries, ascending: in 0.7 the segment starts
    broker: int = -1  # that serves it; -1: unknown
    topic_id: str = ""  # of its topic, where brokers have ids (2.8); another one if the topic was made again


Extents = Mapping[TopicPartition, Extent]

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""The topics that brokers create for themselves: what is about all topics leaves them out, unless it is named so."""


class SplitPoint(NamedTuple):
    """A place where a message boundary is wanted: one at or after `position` will do."""

    partition: TopicPartition
    position: int
    floor: int  # the nearest known boundary before it
    ceiling: int  # the nearest known boundary behind it


class LogAccess(Protocol):
    """The logs of a cluster as wholes, as its brokers describe them. The driver of the cluster is open for all calls,
    which raise TransportError, DeadlineError, BrokerError or RemoteProtocolError. Cancellation: safe.
    """

    @property
    def unit(self) -> PositionUnit:
        """The unit of positions."""
        ...

    @property
    def names_brokers(self) -> bool:
        """True if a partition number counts on one broker only (0.7), so that a plain number names no partition. The
        log is then only on this broker, and there is none while the broker is away."""
        ...

    @property
    def values_only(self) -> bool:
        """True if a record is a value and nothing else (0.7): no headers are stored, and no value is null. (A key
        chooses the partition there.)"""
        ...

    async def extents(
        self, partitions: Collection[TopicPartition], *, read_committed: bool = False
    ) -> dict[TopicPartition, Extent]:
        """Return the extents of logs; those that no live broker serves are left out.

        Args:
            partitions: The partitions.
            read_committed: A log ends where what consumers of this isolation may read ends.
        """
        ...

    async def positions_at(
        self, times: Mapping[TopicPartition, AtTime], *, read_committed: bool = False, ending: bool = False
    ) -> dict[TopicPartition, Position]:
        """Return the positions of times; those of logs that no live broker serves are left out.

        From 0.10.1 on it is that of the first record of the time or a later one. Before, only the time is known when
        each segment was last written to: it is the start of the newest segment not written to since.

        Args:
            times: The time for each log.
            read_committed: See `BrokerClient.resolve_position`.
            ending: Where only times of segments are known, return the start of the segment after that one, since all of
                it is older.
        """
        ...

    async def boundary(self, cut: SplitPoint, max_entry_bytes: int) -> int | None:
        """Return the first position at or after a cut that is proved to be where a message begins; None where that
        cannot be proved.

        Args:
            cut: Where a boundary is wanted.
            max_entry_bytes: Size of the largest entry that the log may contain (bytes).
        """
        ...
