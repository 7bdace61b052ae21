"""Columns of byte strings and of headers, packed: a few buffers for any number of rows."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias, overload

from odradek import engine  # whose engines make objects of these classes: it is complete when they are used

__all__ = ["HeaderColumns", "Headers", "PackedBytes"]

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""The headers of one record, in order: names, which may repeat, and nullable values."""


class PackedBytes(Sequence[bytes | None]):
    """Nullable byte strings, concatenated in one buffer: row i is `data[offsets[i]:offsets[i + 1]]`, or None.

    The layout is that of an Arrow `binary` array (offsets of 4 bytes, format 'i') or `large_binary` array (8 bytes,
    'q'), so that either can be made of the other without copying. Slices share the buffers.

    Args:
        offsets: One more than there are rows, ascending.
        data: The bytes.
        validity: One byte (format 'B') per row: 0 for a null, 1 for a value. None means that no row is null. (Arrow has
            one bit per row. Converting costs 0.7 ns a row; reading bits costs plain Python four times what reading
            bytes does.)
    """

    __slots__ = ("data", "offsets", "validity")

    def __init__(self, offsets: memoryview, data: memoryview, validity: memoryview | None = None) -> None:
        if validity is not None and len(validity) != max(0, len(offsets) - 1):
            raise ValueError(f"validity has {len(validity)} rows, offsets have {max(0, len(offsets) - 1)}")
        self.offsets, self.data, self.validity = offsets, data, validity

    @property
    def payload_bytes(self) -> int:
        """Bytes of all strings together."""
        return int(self.offsets[-1]) - int(self.offsets[0])

    @property
    def null_count(self) -> int:
        """Number of rows that are None."""
        return 0 if self.validity is None else bytes(self.validity).count(0)

    def tolist(self) -> list[bytes | None]:
        """Return each row as a `bytes` of its own, or None."""
        if self.validity is None:
            return engine.active.unpack(self.offsets, self.data)
        return engine.active.unpack(self.offsets, self.data, self.validity)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> PackedBytes: ...
    def __getitem__(self, index: int | slice) -> bytes | PackedBytes | None:
        if isinstance(index, slice):
            rows = _rows(index, len(self))
            validity = None if self.validity is None else self.validity[rows]
            return PackedBytes(self.offsets[rows.start : rows.stop + 1], self.data, validity)
        row = _row(index, len(self))
        if self.validity is not None and not self.validity[row]:
            return None
        return bytes(self.data[self.offsets[row] : self.offsets[row + 1]])

    def __iter__(self) -> Iterator[bytes | None]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedBytes):
            return self.tolist() == other.tolist()
        return self.tolist() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle no more than the rows' own strings, also for a slice."""
        offsets, (first, last) = _rebased(self.offsets)
        validity = None if self.validity is None else bytes(self.validity)
        return _unpickle_bytes, (offsets, bytes(self.data[first:last]), validity)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} strings, {self.payload_bytes} bytes>"


class HeaderColumns(Sequence[Headers]):
    """Headers of many records in columns: those of row i are numbers `offsets[i]` to `offsets[i + 1]`.

    The layout is that of an Arrow `list<struct<key: string, value: binary>>` array. Slices share the columns.

    Args:
        offsets: One more than there are rows, ascending, format 'i'.
        names: UTF-8, none of them null.
        values: As many, nullable.
    """

    __slots__ = ("names", "offsets", "values")

    def __init__(self, offsets: memoryview, names: PackedBytes, values: PackedBytes) -> None:
        self.offsets, self.names, self.values = offsets, names, values

    @property
    def payload_bytes(self) -> int:
        """Bytes of all names and values of these rows together."""
        headers = slice(self.offsets[0], self.offsets[-1])
        return self.names[headers].payload_bytes + self.values[headers].payload_bytes

    @property
    def pairs(self) -> int:
        """The number of headers that these rows have together."""
        return self.offsets[-1] - self.offsets[0]

    def tolist(self) -> list[Headers]:
        """Return the headers of each row."""
        first = self.offsets[0]
        pairs = self._pairs(first, self.offsets[-1])
        return [pairs[start - first : stop - first] for start, stop in pairwise(self.offsets)]

    def _pairs(self, start: int, stop: int) -> Headers:
        names = (bytes(name or b"").decode() for name in self.names[start:stop])
        return tuple(zip(names, self.values[start:stop], strict=True))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Headers: ...
    @overload
    def __getitem__(self, index: slice) -> HeaderColumns: ...
    def __getitem__(self, index: int | slice) -> Headers | HeaderColumns:
        if isinstance(index, slice):
            rows = _rows(index, len(self))
            return HeaderColumns(self.offsets[rows.start : rows.stop + 1], self.names, self.values)
        row = _row(index, len(self))
        return self._pairs(self.offsets[row], self.offsets[row + 1])

    def __iter__(self) -> Iterator[Headers]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, HeaderColumns):
            return self.tolist() == other.tolist()
        return self.tolist() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle no more than the rows' own headers, also for a slice."""
        offsets, (first, last) = _rebased(self.offsets)
        return _unpickle_headers, (offsets, self.names[first:last], self.values[first:last])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} rows, {self.offsets[-1] - self.offsets[0]} headers>"


def _rows(index: slice, count: int) -> slice:
    """Return the slice with its bounds within the rows. Raises ValueError for one with a step."""
    start, stop, step = index.indices(count)
    if step != 1:
        raise ValueError("slices with a step are not supported; use tolist()")
    return slice(start, max(start, stop))


def _row(index: int, count: int) -> int:
    """Return the index of a row counted from the front. Raises IndexError."""
    row = index + count if index < 0 else index
    if not 0 <= row < count:
        raise IndexError(f"row {index} of {count}")
    return row


def _rebased(offsets: memoryview) -> tuple[array[int], tuple[int, int]]:
    """Return the offsets counted from the first of them, and what the first and the last one were."""
    first = offsets[0]
    rebased = array(offsets.format, [end - first for end in offsets] if first else offsets)
    return rebased, (first, offsets[-1])


def _unpickle_bytes(offsets: array[int], data: bytes, validity: bytes | None) -> PackedBytes:
    return PackedBytes(memoryview(offsets), memoryview(data), None if validity is None else memoryview(validity))


def _unpickle_headers(offsets: array[int], names: PackedBytes, values: PackedBytes) -> HeaderColumns:
    return HeaderColumns(memoryview(offsets), names, values)
