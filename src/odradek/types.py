"""The values everybody shares: partitions, positions, records and columns. No behaviour beyond reading them.

One thing is worth knowing before reading on: **the batch is the unit**. The codec fills parallel columns
(`Columns`), a `Batch` (`odradek.batch`) is those columns plus the partition they came from, and a `Record` exists only
while somebody looks at it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, NewType

from odradek.engine import PackedBytes
from odradek.errors import CorruptMessage

__all__ = [
    "EARLIEST",
    "LATEST",
    "AtTime",
    "Broker",
    "Columns",
    "GiB",
    "KiB",
    "MiB",
    "Position",
    "PositionSpec",
    "Record",
    "StartPosition",
    "TopicPartition",
    "by_broker",
]

ROW_BYTES = 120
"""What CPython adds to a payload: a bytes object (33), two ints (2 x 28..32) and a pointer in each of three lists."""

PACKED_ROW_BYTES = 24
"""An offset, two positions and an inner index."""

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30

Position = NewType("Position", int)
"""A place in a partition. Opaque and ordered: a byte position in 0.7, a record offset later. Compare positions,
store them, resume from them; never do arithmetic with them."""


class PositionSpec(Enum):
    """A place named by meaning."""

    EARLIEST = -2
    LATEST = -1

    def __repr__(self) -> str:
        return self.name


EARLIEST, LATEST = PositionSpec.EARLIEST, PositionSpec.LATEST


class AtTime(NamedTuple):
    """The newest place known to be not after a moment; in 0.7 this is a segment boundary.

    Args:
        seconds: Seconds since the epoch, as `time.time()` gives them.
    """

    seconds: float


StartPosition = Position | int | PositionSpec | AtTime
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
    """One partition of a topic: `TopicPartition("orders", 3)`.

    In 0.7 a partition number counts on one broker only, so the broker id is part of the identity; from 0.8 on
    `broker` is -1, and which broker leads the partition stands only in the routing table. Sorts by topic, partition,
    broker, all numerically; `by_broker` is the sort key of 0.7's own order.
    """

    topic: str
    partition: int
    broker: int = -1

    @property
    def name(self) -> str:
        """`broker-partition` (0.7) or `partition`: the name inside its topic, as ZooKeeper and tools write it."""
        return str(self.partition) if self.broker < 0 else f"{self.broker}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


def by_broker(partition: TopicPartition) -> tuple[str, int, int]:
    """Return the sort key of 0.7's order: topic, broker, partition."""
    return partition.topic, partition.broker, partition.partition


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
    """What a codec makes of bytes: parallel sequences, one element a message. `None` stands for a column that the
    era or this run of messages does not have (no keys; every inner index 0).

    The pure engine gives lists; the compiled one `PackedBytes` values and memoryviews of integers, which an Arrow
    array can be made of without another copy. Everybody reads them as sequences.
    """

    values: Sequence[bytes]
    positions: Sequence[int]
    next_positions: Sequence[int]
    inner_indexes: Sequence[int] | None = None
    keys: list[bytes | None] | None = None
    headers: list[Sequence[tuple[str, bytes]]] | None = None
    times: list[float | None] | None = None
    corrupt: Mapping[int, CorruptMessage] = {}
    """Row number -> what is wrong, for rows handed over raw (`corrupt="raw"`): their value is the whole entry."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all values."""
        return self.values.payload_bytes if isinstance(self.values, PackedBytes) else sum(map(len, self.values))

    @property
    def row_bytes(self) -> int:
        """What a row takes in memory beyond its payload."""
        return PACKED_ROW_BYTES if isinstance(self.values, PackedBytes) else ROW_BYTES

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, tuple(array(c.format, c) if isinstance(c, memoryview) else c for c in self)


def _unpickled(*columns: Any) -> Columns:
    return Columns._make(memoryview(c) if isinstance(c, array) else c for c in columns)
