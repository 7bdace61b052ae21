"""Values that every ring shares: partitions, positions, records and columns.

**The batch is the unit.** The engine fills parallel columns (`Columns`); a `Batch` (`odradek.batch`) is those columns
plus the partition they came from; a `Record` exists only while the caller looks at it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NewType

from odradek.engine import DecodedColumns, Headers
from odradek.engine.columns import COLUMN_NAMES, PlainColumns
from odradek.errors import CorruptMessage

__all__ = [
    "EARLIEST",
    "LATEST",
    "NO_METADATA",
    "NO_TIMESTAMP",
    "AtTime",
    "Broker",
    "Columns",
    "CommittedPosition",
    "EncodedBatch",
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
    "Watermarks",
    "by_broker",
]

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
    """A point in time, as a position: the first record of that time or later, or the end of the log if there is none.

    Brokers before 0.10.1 know only the times of their files: there it is the start of the newest segment that is
    certainly not after it, or the earliest position.

    Args:
        seconds: Seconds since the epoch, as `time.time()` gives them.
    """

    seconds: float


StartPosition = Position | int | PositionSpec | AtTime
"""A position to start or stop reading at."""


class CommittedPosition(NamedTuple):
    """A position that a group has committed, and the text that was stored with it."""

    position: Position
    metadata: str = ""


NO_METADATA: Mapping[TopicPartition, str] = MappingProxyType({})
"""No text for any of the positions."""


class Watermarks(NamedTuple):
    """The ends of a partition's log, as the response to its latest fetch had them.

    Attributes:
        log_start: The first position that the log still has (0.11 and later).
        high_watermark: The end of what consumers may read; a replica that is not the leader may know an earlier one.
        last_stable_offset: The end of what `read_committed` consumers may read: the first record of the oldest
            transaction that is open (0.11 and later).
        lag: Records from the next one that is delivered up to the end of what may be read: an upper bound, as offsets
            have holes.
    """

    log_start: Position | None
    high_watermark: Position
    last_stable_offset: Position | None
    lag: int | None


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
        timestamp_type: The meaning of the timestamp; None if the message format has no timestamps.
        position: Where its log entry starts.
        next_position: Where to resume after it. Messages of one compressed 0.7 wrapper share the wrapper's `position`,
            and all but the last of them resume there, because 0.7 has no positions inside a wrapper (specification.md
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


class EncodedBatch(NamedTuple):
    """A whole record batch as a broker stored it (magic 2), whose CRC is right, and which other brokers would take.

    Attributes:
        data: Its bytes.
        records: The number of its records, which are at adjacent offsets.
        first_offset: The offset of the first one.
        compression: How it is compressed: a number of `wire.compression.CompressionType`.
        last_timestamp: The latest timestamp of its records (ms since the epoch).
    """

    data: bytes
    records: int
    first_offset: int
    compression: int
    last_timestamp: int


_NOT_CORRUPT: Mapping[int, CorruptMessage] = {}


class Columns:
    """Decoded messages: parallel sequences with one element per message.

    A column that the protocol or this run of messages does not have is None (no keys; every inner index 0). The
    pure engine makes lists; the compiled engine makes `PackedBytes`, `HeaderColumns` and memoryviews of integers, which
    become Arrow arrays without another copy. Read any of them as a sequence. They never change, and each is made when
    it is first asked for: rows that wait to be delivered cost two objects, whatever columns they have.

    Attributes:
        values: Payloads.
        positions, next_positions, inner_indexes: See `Record`.
        keys, headers: See `Record`.
        timestamps: Milliseconds since the epoch, or `NO_TIMESTAMP`.
        timestamp_types: `TimestampType`, or `NO_TIMESTAMP`; there exactly when `timestamps` is.
        corrupt: Row number -> error, for rows handed over raw (`corrupt="raw"`): their value is the whole entry.
        is_wide: Packed values or keys have offsets of 8 bytes.
        memory_bytes: Memory that all rows take, as read-ahead counts it.
        payload_bytes: Bytes of all values, keys and headers; of batches that are not decoded, their size.
    """

    __slots__ = (*COLUMN_NAMES, "_decoded", "corrupt", "is_wide", "memory_bytes", "payload_bytes")

    values: Sequence[bytes | None]
    positions: Sequence[int]
    next_positions: Sequence[int]
    inner_indexes: Sequence[int] | None
    keys: Sequence[bytes | None] | None
    headers: Sequence[Headers] | None
    timestamps: Sequence[int] | None
    timestamp_types: Sequence[int] | None
    corrupt: Mapping[int, CorruptMessage]
    is_wide: bool
    memory_bytes: int
    payload_bytes: int
    _decoded: DecodedColumns

    def __init__(
        self,
        values: Sequence[bytes | None],
        positions: Sequence[int],
        next_positions: Sequence[int],
        inner_indexes: Sequence[int] | None = None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        timestamps: Sequence[int] | None = None,
        timestamp_types: Sequence[int] | None = None,
        corrupt: Mapping[int, CorruptMessage] = _NOT_CORRUPT,
    ) -> None:
        self._decoded = PlainColumns(
            values, positions, next_positions, inner_indexes, keys, headers, timestamps, timestamp_types
        )
        self.corrupt = corrupt

    @classmethod
    def of(cls, decoded: DecodedColumns, corrupt: Mapping[int, CorruptMessage] = _NOT_CORRUPT) -> Columns:
        """Return what an engine has decoded."""
        made = cls.__new__(cls)
        made._decoded, made.corrupt = decoded, corrupt
        made.payload_bytes, made.memory_bytes = decoded.payload_bytes, decoded.memory_bytes  # everybody asks for them
        return made

    @property
    def encoded(self) -> EncodedBatch | None:
        """The record batch that these rows are, if it is one that is not decoded yet (see `parts`)."""
        return getattr(self._decoded, "encoded", None)

    @property
    def parts(self) -> Sequence[Columns]:
        """The same rows in parts, in order, so that each record batch that is not decoded yet is a part of its own. It
        is decoded when an attribute is asked for that needs its records, which raises CorruptMessage if it is damaged
        inside. There are such batches only where a reader was told to leave them encoded."""
        parts: Sequence[DecodedColumns] | None = getattr(self._decoded, "parts", None)
        return (self,) if parts is None or len(parts) == 1 else tuple(map(Columns.of, parts))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Ask for an attribute for the first time."""
            if name not in Columns.__slots__ or name == "_decoded":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            value = getattr(self._decoded, name)
            setattr(self, name, value)
            return value

    @classmethod
    def concat(cls, parts: Sequence[Columns]) -> Columns:
        """Return the rows of all parts, in order; a single part is returned as it is.

        A column that only some parts have holds, for the rows of the others, what its absence means: no key, no
        headers, inner index 0, no timestamp.
        """
        if len(parts) == 1:
            return parts[0]
        corrupt: dict[int, CorruptMessage] = {}
        if any(part.corrupt for part in parts):
            rows = 0
            for part in parts:
                corrupt |= {rows + row: error for row, error in part.corrupt.items()}
                rows += len(part)
        decoded = [part._decoded for part in parts]
        kinds: set[type[Any]] = set(map(type, decoded))
        if len(kinds) == 1:
            kind = kinds.pop()
        else:
            kind = next((each for each in kinds if hasattr(each, "encoded")), PlainColumns)
        return cls.of(kind.concat(decoded), corrupt)

    def slice(self, start: int, stop: int) -> Columns:
        """Return rows `start` to `stop`, sharing memory where the columns do; the same object if that is all rows."""
        if start <= 0 and stop >= len(self):
            return self
        start, stop, _ = slice(max(start, 0), max(stop, 0)).indices(len(self))
        stop = max(start, stop)
        damaged = self.corrupt  # of which there may be many, as of the slices
        rows = range(start, stop) if stop - start < len(damaged) else damaged
        corrupt = {row - start: damaged[row] for row in rows if start <= row < stop and row in damaged}
        return Columns.of(self._decoded.slice(start, stop), corrupt)

    def value_list(self) -> list[bytes | None]:
        """Return the payloads as a list, which must not be changed."""
        return self._decoded.value_list()

    def pick(self, rows: Sequence[int]) -> Columns:
        """Return these rows, in this order, as lists."""
        corrupt = {new: self.corrupt[row] for new, row in enumerate(rows) if row in self.corrupt}
        picked: list[Any] = [None if column is None else [column[row] for row in rows] for column in self._columns()]
        return Columns.of(PlainColumns(*picked), corrupt)

    def replace(self, **changes: Any) -> Columns:
        """Return the same rows with other columns, by name."""
        return Columns(**{**dict(zip(COLUMN_NAMES, self._columns(), strict=True)), "corrupt": self.corrupt, **changes})

    def _columns(self) -> list[Any]:
        """Return the columns that have an element per row."""
        return [getattr(self, name) for name in COLUMN_NAMES]

    def __len__(self) -> int:
        return len(self._decoded)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns):
            return NotImplemented
        return self._columns() == other._columns() and self.corrupt == other.corrupt

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} rows, {self.payload_bytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        columns = [_array(column) if isinstance(column, memoryview) else column for column in self._columns()]
        return _unpickle, (*columns, self.corrupt)


def _array(numbers: memoryview) -> array[int]:
    made = array(numbers.format)
    made.frombytes(numbers.tobytes())
    return made


def _unpickle(*columns: Any) -> Columns:
    made: list[Any] = [memoryview(column) if isinstance(column, array) else column for column in columns]
    return Columns(*made)
