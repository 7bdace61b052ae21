"""Values that every ring shares: partitions, positions, records and columns.

**The batch is the unit.** The engine fills parallel columns (`Columns`); a `Batch` (`odradek.batch`) is those columns
plus the partition they came from; a `Record` exists only while the caller looks at it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, NamedTuple, NewType

from odradek.engine import HeaderColumns, Headers, PackedBytes
from odradek.errors import CorruptMessage

__all__ = [
    "EARLIEST",
    "LATEST",
    "NO_TIMESTAMP",
    "AtTime",
    "Broker",
    "Columns",
    "GiB",
    "Headers",
    "KiB",
    "MiB",
    "Position",
    "PositionSpec",
    "Record",
    "StartPosition",
    "TimestampType",
    "TopicPartition",
    "by_broker",
]

ROW_BYTES = 120
"""Memory that CPython adds to a payload: a bytes object (33), two ints (2 x 28..32) and three pointers in lists."""

COLUMN_BYTES = 48
"""Memory that each further column adds to a row of lists: an object and a pointer to it."""

PACKED_ROW_BYTES = 24
"""Memory that packed columns add to a payload: an offset, two positions and an inner index."""

PACKED_COLUMN_BYTES = 9
"""Memory that each further column adds to a packed row: an offset or integer, and a byte for its validity or type."""

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30

Position = NewType("Position", int)
"""A point in a partition's log. Opaque and ordered: a byte position in 0.7, a record offset later. Compare positions,
store them, resume from them; never do arithmetic with them."""


class PositionSpec(Enum):
    """A position named by its meaning."""

    EARLIEST = -2
    LATEST = -1

    def __repr__(self) -> str:
        return self.name


EARLIEST, LATEST = PositionSpec.EARLIEST, PositionSpec.LATEST


class AtTime(NamedTuple):
    """The newest position known to be not after a point in time; in 0.7 this is a segment boundary.

    Args:
        seconds: Seconds since the epoch, as `time.time()` gives them.
    """

    seconds: float


StartPosition = Position | int | PositionSpec | AtTime
"""A position to start or stop reading at."""


class Broker(NamedTuple):
    """A broker and the address it listens on."""

    id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class TopicPartition(NamedTuple):
    """One partition of a topic: `TopicPartition("orders", 3)`.

    0.7 numbers partitions on each broker separately, so the broker id is part of the identity. From 0.8 on `broker` is
    -1, and only the routing table says which broker leads the partition. Sorts by topic, partition, broker, all
    numerically; `by_broker` is the sort key of 0.7's own order.
    """

    topic: str
    partition: int
    broker: int = -1

    @property
    def name(self) -> str:
        """The name within the topic, as ZooKeeper and tools write it: `broker-partition` (0.7) or `partition`."""
        return str(self.partition) if self.broker < 0 else f"{self.broker}-{self.partition}"

    def __str__(self) -> str:
        return f"{self.topic}/{self.name}"


def by_broker(partition: TopicPartition) -> tuple[str, int, int]:
    """Return the sort key of 0.7's order: topic, broker, partition."""
    return partition.topic, partition.broker, partition.partition


class TimestampType(IntEnum):
    """The meaning of a record's timestamp. Numbers as in record batches and in Spark's `timestampType`."""

    CREATE_TIME = 0
    """The producer set it."""
    LOG_APPEND_TIME = 1
    """The broker set it when it wrote the record."""


class Record(NamedTuple):
    """One message, as consumed.

    Attributes:
        value: The payload; None is a tombstone, which deletes its key from a compacted topic (0.8 and later).
        key: Used by the producer's partitioner and by log compaction, or None (0.8 and later).
        headers: Names and values, in the producer's order (0.11 and later).
        timestamp: Milliseconds since the epoch; None: it has none (0.10 and later).
        timestamp_type: What the timestamp means; None: the message format has no timestamps.
        position: Where its log entry starts.
        next_position: Where to resume after it. Messages of one compressed 0.7 wrapper share the wrapper's `position`,
            and all but the last of them resume there, because 0.7 has no positions inside a wrapper (specification
            2.3).
        inner_index: Counts the messages of a 0.7 wrapper; 0 elsewhere.
        partition: Where it comes from.
    """

    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int | None
    timestamp_type: TimestampType | None
    position: Position
    next_position: Position
    inner_index: int
    partition: TopicPartition

    @property
    def topic(self) -> str:
        return self.partition.topic


NO_TIMESTAMP = -1
"""The number for no timestamp in `Columns.timestamps`, and for a message format without any in `timestamp_types`."""


class Columns(NamedTuple):
    """Decoded messages: parallel sequences with one element per message.

    None stands for a column that the protocol or this run of messages does not have (no keys; every inner index 0). The
    pure engine makes lists; the compiled engine makes `PackedBytes`, `HeaderColumns` and memoryviews of integers, which
    become Arrow arrays without another copy. Read any of them as a sequence.
    """

    values: Sequence[bytes | None]
    positions: Sequence[int]
    next_positions: Sequence[int]
    inner_indexes: Sequence[int] | None = None
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers] | None = None
    timestamps: Sequence[int] | None = None
    """Milliseconds since the epoch, or `NO_TIMESTAMP`."""
    timestamp_types: Sequence[int] | None = None
    """`TimestampType`, or `NO_TIMESTAMP`; there exactly when `timestamps` is."""
    corrupt: Mapping[int, CorruptMessage] = {}
    """Row number -> error, for rows handed over raw (`corrupt="raw"`): their value is the whole entry."""

    @classmethod
    def concat(cls, parts: Sequence[Columns]) -> Columns:
        """Return the rows of all parts, in order, as lists; a single part is returned as it is.

        A column that only some parts have holds, for the rows of the others, what its absence means: no key, no
        headers, inner index 0, no timestamp.
        """
        if len(parts) == 1:
            return parts[0]
        corrupt: dict[int, CorruptMessage] = {}
        rows = 0
        for part in parts:
            corrupt |= {rows + row: error for row, error in part.corrupt.items()}
            rows += len(part.values)
        return cls._make([*(_concat(parts, column) for column in range(len(_ABSENT))), corrupt])

    def slice(self, start: int, stop: int) -> Columns:
        """Return rows `start` to `stop`, sharing memory where the columns do; the same object if that is all rows."""
        if start <= 0 and stop >= len(self.values):
            return self
        start, stop, _ = slice(max(start, 0), max(stop, 0)).indices(len(self.values))
        damaged = self.corrupt  # of which there may be many, as of the slices
        rows = range(start, stop) if stop - start < len(damaged) else damaged
        corrupt = {row - start: damaged[row] for row in rows if start <= row < stop and row in damaged}
        return self._map(itemgetter(slice(start, stop)), corrupt)

    def pick(self, rows: Sequence[int]) -> Columns:
        """Return these rows, in this order, as lists."""
        corrupt = {new: self.corrupt[row] for new, row in enumerate(rows) if row in self.corrupt}
        return self._map(lambda column: list(map(column.__getitem__, rows)), corrupt)

    def _map(self, change: Callable[[Sequence[Any]], Sequence[Any]], corrupt: Mapping[int, CorruptMessage]) -> Columns:
        return Columns._make([*(column and change(column) for column in self._columns()), corrupt])

    def _columns(self) -> tuple[Any, ...]:
        """Return the columns that have an element per row."""
        return tuple(self)[: len(_ABSENT)]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all values, keys and headers."""
        size = _bytes_of(self.values)
        if self.keys is not None:
            size += _bytes_of(self.keys)
        return size if self.headers is None else size + _header_bytes(self.headers)

    @property
    def row_bytes(self) -> int:
        """Memory of a row beyond its payload (bytes)."""
        optional = (self.keys is not None) + (self.headers is not None) + (self.timestamps is not None)
        if isinstance(self.values, PackedBytes):
            return PACKED_ROW_BYTES + optional * PACKED_COLUMN_BYTES
        return ROW_BYTES + optional * COLUMN_BYTES

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, tuple(_array(column) if isinstance(column, memoryview) else column for column in self)


_ABSENT = (None, 0, 0, 0, None, (), NO_TIMESTAMP, NO_TIMESTAMP)
"""Value of each column of `Columns` in a row of a part that does not have the column."""


def _concat(parts: Sequence[Columns], column: int) -> list[Any] | None:
    """Return one column of all parts; None if no part has it."""
    columns = [part[column] for part in parts]
    if parts and all(each is None for each in columns):
        return None
    absent = _ABSENT[column]
    sizes = [len(part.values) for part in parts]
    filled = (repeat(absent, rows) if each is None else each for each, rows in zip(columns, sizes, strict=True))
    return list(chain.from_iterable(filled))


def _bytes_of(strings: Sequence[bytes | None]) -> int:
    return strings.payload_bytes if isinstance(strings, PackedBytes) else sum(map(len, filter(None, strings)))


def _header_bytes(headers: Sequence[Headers]) -> int:
    if isinstance(headers, HeaderColumns):
        return headers.payload_bytes
    return sum(len(name.encode()) + len(value or b"") for row in headers for name, value in row)


def _array(numbers: memoryview) -> array[int]:
    made = array(numbers.format)
    made.frombytes(numbers.tobytes())
    return made


def _unpickle(*columns: Any) -> Columns:
    return Columns._make(memoryview(column) if isinstance(column, array) else column for column in columns)
