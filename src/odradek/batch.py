"""A run of messages of one partition, as readers and consumers deliver it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from odradek.errors import CorruptMessage
from odradek.types import NO_TIMESTAMP, Columns, Position, Record, TimestampType, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Batch"]


class Batch:
    """A run of messages of one partition, in order. Iterating creates the records; nothing else does."""

    __slots__ = ("_values", "columns", "partition")

    def __init__(self, partition: TopicPartition, columns: Columns) -> None:
        if not isinstance(columns, Columns):
            raise TypeError(f"columns must be Columns, not {type(columns).__name__}")
        self.partition = partition
        self.columns = columns
        self._values: list[bytes | None] | None = None

    @property
    def topic(self) -> str:
        return self.partition.topic

    @property
    def values(self) -> list[bytes | None]:
        """The payloads alone: the cheapest way through a batch. A tombstone (0.8 and later) is None."""
        if self._values is None:
            self._values = self.columns.value_list()
        return self._values

    @property
    def position(self) -> Position:
        """The position of the first message."""
        return Position(self.columns.positions[0])

    @property
    def next_position(self) -> Position:
        """The position to resume at after the last message."""
        return Position(self.columns.next_positions[-1])

    @property
    def corrupt(self) -> Mapping[int, CorruptMessage]:
        """Row number -> error, for messages handed over raw."""
        return self.columns.corrupt

    def to_arrow(self) -> pa.RecordBatch:
        """Return the batch as Arrow, sharing the compiled engine's memory; `odradek.arrow` describes the fields.

        The field `error` is added if a message of this batch was handed over raw.

        Raises:
            ConfigError: pyarrow is not installed (`odradek[arrow]`).
        """
        from odradek.arrow import record_batch

        return record_batch(self.partition, self.columns, errors=bool(self.corrupt))

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Record]:
        c = self.columns
        rows: Iterator[tuple[Any, ...]] = zip(
            self.values,
            repeat(None) if c.keys is None else c.keys,
            repeat(()) if c.headers is None else c.headers,
            repeat(None) if c.timestamps is None else _timestamps(c.timestamps),
            repeat(None) if c.timestamp_types is None else _timestamp_types(c.timestamp_types),
            *_positions(c),
            repeat(0) if c.inner_indexes is None else _as_list(c.inner_indexes),
            repeat(self.partition),
        )
        return map(tuple.__new__, repeat(Record), rows)  # _make without its Python frame

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self.partition, self.columns)  # what a subclass adds is not pickled: it belongs to its consumer

    def __repr__(self) -> str:
        if not len(self):
            return f"<{type(self).__name__} {self.partition} empty>"
        return f"<{type(self).__name__} {self.partition} {len(self)} records [{self.position}..{self.next_position})>"


_TIMESTAMP_TYPES: dict[int, TimestampType | None] = {NO_TIMESTAMP: None, **{int(kind): kind for kind in TimestampType}}


def _timestamps(times: Sequence[int]) -> Iterable[int | None]:
    listed = _as_list(times)
    return [None if time == NO_TIMESTAMP else time for time in listed] if NO_TIMESTAMP in listed else listed


def _timestamp_types(types: Sequence[int]) -> Iterable[TimestampType | None]:
    if isinstance(types, memoryview) and (kinds := types.tobytes()).count(kinds[:1]) == len(kinds):
        return repeat(_TIMESTAMP_TYPES[types[0]])  # as in nearly every batch
    return map(_TIMESTAMP_TYPES.__getitem__, types)


def _as_list(numbers: Sequence[int]) -> Sequence[int]:
    return numbers.tolist() if isinstance(numbers, memoryview) else numbers


def _positions(columns: Columns) -> tuple[Sequence[int], Sequence[int]]:
    """Return positions and next positions as lists, which share their integers where messages are adjacent: creating an
    integer costs a tenth of creating a record."""
    positions, nexts = columns.positions, columns.next_positions
    first = _as_list(positions)
    if isinstance(positions, memoryview) and isinstance(nexts, memoryview) and positions[1:] == nexts[:-1]:
        return first, [*first[1:], *nexts[-1:]]
    return first, _as_list(nexts)
