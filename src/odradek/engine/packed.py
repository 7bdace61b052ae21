"""Byte strings in one buffer."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

__all__ = ["PackedBytes"]


class PackedBytes(Sequence[bytes]):
    """Byte strings one behind the other in one buffer: number i is `data[offsets[i]:offsets[i + 1]]`.

    It is laid out as an Arrow `binary` (offsets of 4 bytes, format 'i') or `large_binary` (8 bytes, 'q') array is, so
    that one can be made of it, or it of one, without copying. Slices share the buffers.
    """

    __slots__ = ("data", "offsets")

    def __init__(self, offsets: memoryview, data: memoryview) -> None:
        self.offsets, self.data = offsets, data

    @property
    def payload_bytes(self) -> int:
        """Bytes of all strings together."""
        return int(self.offsets[-1]) - int(self.offsets[0])

    def tolist(self) -> list[bytes]:
        """Each string as a `bytes` of its own."""
        from odradek import engine  # here, because the engines make objects of this class

        return engine.active.unpack(self.offsets, self.data)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> PackedBytes: ...
    def __getitem__(self, index: int | slice) -> bytes | PackedBytes:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a slice of packed strings cannot leave any out: take it from tolist()")
            return PackedBytes(self.offsets[start : max(start, stop) + 1], self.data)
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return bytes(self.data[self.offsets[index] : self.offsets[index + 1]])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedBytes):
            return self.tolist() == other.tolist()
        return self.tolist() == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, a slice takes along no more than its own strings."""
        first, last = self.offsets[0], self.offsets[-1]
        offsets = array(self.offsets.format, self.offsets if not first else [end - first for end in self.offsets])
        return _unpickled, (offsets, bytes(self.data[first:last]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} strings, {self.payload_bytes} bytes>"


def _unpickled(offsets: array[int], data: bytes) -> PackedBytes:
    return PackedBytes(memoryview(offsets), memoryview(data))
