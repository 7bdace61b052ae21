"""A run of messages of one partition, as readers and consumers hand it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from odradek.engine import PackedBytes
from odradek.errors import CorruptMessage
from odradek.types import Columns, Position, Record, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Batch"]


class Batch:
    """A run of messages of one partition, in order. Records are made when looked at."""

    __slots__ = ("_values", "columns", "partition")

    def __init__(self, partition: TopicPartition, columns: Columns) -> None:
        self.partition = partition
        self.columns = columns
        self._values: list[bytes] | None = columns.values if isinstance(columns.values, list) else None

    @property
    def topic(self) -> str:
        return self.partition.topic

    @property
    def values(self) -> list[bytes]:
        """The payloads alone: the cheapest way through a batch."""
        if self._values is None:
            values = self.columns.values
            self._values = values.tolist() if isinstance(values, PackedBytes) else list(values)
        return self._values

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

    def to_arrow(self) -> pa.RecordBatch:
        """The batch as Arrow, sharing its memory where the compiled engine made it: see `odradek.arrow` for the fields.

        The field `error` is there when a message of this batch was handed over raw.

        Raises:
            ConfigError: There is no pyarrow (`odradek[arrow]`).
        """
        from odradek.arrow import record_batch

        return record_batch(self.partition, self.columns, errors=bool(self.corrupt))

    def __len__(self) -> int:
        return len(self.columns.values)

    def __iter__(self) -> Iterator[Record]:
        c = self.columns
        rows: Iterator[tuple[Any, ...]] = zip(
            self.values,
            repeat(None) if c.keys is None else c.keys,
            repeat(()) if c.headers is None else c.headers,
            repeat(None) if c.times is None else c.times,
            *_places(c),
            repeat(0) if c.inner_indexes is None else _listed(c.inner_indexes),
            repeat(self.partition),
        )
        return map(tuple.__new__, repeat(Record), rows)  # _make without its Python frame

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self.partition, self.columns)  # whatever a subclass adds belongs to where it was made

    def __repr__(self) -> str:
        if not len(self):
            return f"<{type(self).__name__} {self.partition} empty>"
        return f"<{type(self).__name__} {self.partition} {len(self)} records [{self.position}..{self.next_position})>"


def _listed(numbers: Sequence[int]) -> Sequence[int]:
    return numbers.tolist() if isinstance(numbers, memoryview) else numbers


def _places(columns: Columns) -> tuple[Sequence[int], Sequence[int]]:
    """Positions and next positions to iterate over: lists, which share their integers where messages follow one another
    (making an integer costs a tenth of making a record)."""
    positions, nexts = columns.positions, columns.next_positions
    first = _listed(positions)
    if isinstance(positions, memoryview) and isinstance(nexts, memoryview) and positions[1:] == nexts[:-1]:
        return first, [*first[1:], *nexts[-1:]]
    return first, _listed(nexts)
