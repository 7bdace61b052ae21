"""The values everybody shares: partitions, positions, records and batches. No behaviour beyond reading them.

One thing is worth knowing before reading on: **the batch is the unit**. The codec fills parallel columns
(`Columns`), a `Batch` is those columns plus the partition they came from, and a `Record` exists only while
somebody looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import repeat
from typing import Any, NamedTuple, NewType

from odradek.errors import CorruptMessage

__all__ = [
    "EARLIEST",
    "LATEST",
    "Anchor",
    "AtTime",
    "Batch",
    "Broker",
    "Columns",
    "GiB",
    "KiB",
    "MiB",
    "Position",
    "Record",
    "Start",
    "TopicPartition",
]

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30

Position = NewType("Position", int)
"""A place in a partition. Opaque and ordered: a byte position in 0.7, a record offset later. Compare positions,
store them, resume from them; never do arithmetic with them."""


class Anchor(Enum):
    """A place named by meaning."""

    EARLIEST = -2
    LATEST = -1

    def __repr__(self) -> str:
        return self.name


EARLIEST, LATEST = Anchor.EARLIEST, Anchor.LATEST


class AtTime(NamedTuple):
    """The newest place known to be not after a moment; in 0.7 this is a segment boundary.

    Args:
        seconds: Seconds since the epoch, as `time.time()` gives them.
    """

    seconds: float


Start = Position | int | Anchor | AtTime
"""Where to begin or end."""


class Broker(NamedTuple):
    """A broker and where it listens."""

    id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class TopicPartition(NamedTuple):
    """One log. In 0.7 a partition number counts on one broker only, so the broker id is part of the name;
    from 0.8 on `broker` is -1. Sorts by topic, broker, partition, all numerically."""

    topic: str
    broker: int
    partition: int

    @property
    def name(self) -> str:
        """`broker-partition` (0.7) or `partition`: the name inside its topic, as ZooKeeper and tools write it."""
        return str(self.partition) if self.broker < 0 else f"{self.broker}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


class Record(NamedTuple):
    """One message, as consumed.

    `position` is where its log entry starts and `next_position` where to resume after it. Messages of one
    compressed wrapper share the wrapper's `position`; `inner_index` counts them (0 elsewhere), and all but the last
    resume at the wrapper's start, because 0.7 has no positions inside a wrapper (specification 2.3).
    """

    value: bytes
    key: bytes | None
    headers: Sequence[tuple[str, bytes]]
    time: float | None
    position: Position
    next_position: Position
    inner_index: int
    partition: TopicPartition

    @property
    def topic(self) -> str:
        return self.partition.topic


class Columns(NamedTuple):
    """What a codec makes of bytes: parallel lists, one element a message. `None` stands for a column that the
    era or this run of messages does not have (no keys; every inner index 0)."""

    values: list[bytes]
    positions: list[int]
    next_positions: list[int]
    inner_indexes: list[int] | None = None
    keys: list[bytes | None] | None = None
    headers: list[Sequence[tuple[str, bytes]]] | None = None
    times: list[float | None] | None = None
    corrupt: Mapping[int, CorruptMessage] = {}
    """Row number -> what is wrong, for rows handed over raw (`corrupt="raw"`): their value is the whole entry."""


class Batch:
    """A run of messages of one partition, in order. Records are made when looked at."""

    __slots__ = ("columns", "partition")

    def __init__(self, partition: TopicPartition, columns: Columns) -> None:
        self.partition = partition
        self.columns = columns

    @property
    def topic(self) -> str:
        return self.partition.topic

    @property
    def values(self) -> list[bytes]:
        """The payloads alone: the cheapest way through a batch."""
        return self.columns.values

    @property
    def position(self) -> Position:
        """Where the first message starts."""
        return Position(self.columns.positions[0])

    @property
    def next_position(self) -> Position:
        """Where to resume after the last message."""
        return Position(self.columns.next_positions[-1])

    @property
    def corrupt(self) -> Mapping[int, CorruptMessage]:
        """Row number -> error, for messages handed over raw."""
        return self.columns.corrupt

    def __len__(self) -> int:
        return len(self.columns.values)

    def __iter__(self) -> Iterator[Record]:
        c = self.columns
        rows: Iterator[tuple[Any, ...]] = zip(
            c.values,
            repeat(None) if c.keys is None else c.keys,
            repeat(()) if c.headers is None else c.headers,
            repeat(None) if c.times is None else c.times,
            c.positions,
            c.next_positions,
            repeat(0) if c.inner_indexes is None else c.inner_indexes,
            repeat(self.partition),
        )
        return map(tuple.__new__, repeat(Record), rows)  # _make without its Python frame

    def __repr__(self) -> str:
        if not len(self):
            return f"<{type(self).__name__} {self.partition} empty>"
        return f"<{type(self).__name__} {self.partition} {len(self)} records [{self.position}..{self.next_position})>"
