"""The interface of an engine. It defines the meaning of every method once; `pure` and `rust/` implement it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["NO_LIMIT", "Buffer", "ColumnBuilder", "Engine", "PayloadBuilder"]

Buffer = bytes | bytearray | memoryview
"""Contiguous bytes. A view with gaps, or of items other than bytes (formats 'B' and 'c'), raises BufferError."""

NO_LIMIT = 4 + 0x7FFFFFFF
"""The size of the largest entry that a length field can express (bytes)."""


class PayloadBuilder(Protocol):
    """Payloads without positions: the decompressed contents of a wrapper."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads together."""
        ...

    def __len__(self) -> int: ...

    def decode_run(self, data: Buffer, start: int, stop: int) -> int:
        """Append a run of payloads, like `ColumnBuilder.decode_run` without limit and positions."""
        ...

    def append(self, value: Buffer) -> None: ...

    def tolist(self) -> list[bytes]: ...


class ColumnBuilder(Protocol):
    """Columns under construction. Positions are integers of 8 bytes, inner indexes of 4."""

    def __len__(self) -> int: ...

    def decode_run(self, data: Buffer, start: int, stop: int, base: int = 0, max_entry: int = NO_LIMIT) -> int:
        """Append the run of plain, whole, valid messages at the start of `data[start:stop]`; copy each payload once.

        The run ends before the first entry that is anything else - incomplete, compressed, damaged, larger than
        `max_entry` bytes - which is left to the caller; also, in the last 10 bytes, before a valid entry of magic 0
        with an empty payload. `base` is the position of `data[0]`.

        Returns:
            The index after the last message appended; `start` if there was none.

        Raises:
            ValueError: `start:stop` does not lie within the data.
            OverflowError: `base + stop` does not fit into 8 bytes.
        """
        ...

    def append(self, value: Buffer, position: int, next_position: int, inner_index: int = 0) -> None: ...

    def add_wrapper(self, values: PayloadBuilder, position: int, next_position: int) -> None:
        """Append the messages of one entry. They share its position, and their inner indexes count up from 0; all but
        the last resume at `position` too, the last one at `next_position`."""
        ...

    def take(self) -> tuple[Sequence[bytes | None], Sequence[int], Sequence[int], Sequence[int] | None]:
        """Return and remove all rows: values, positions, next positions, inner indexes (None: all are 0).

        They are lists, or `PackedBytes` and memoryviews of integers of 8 bytes ('q'; inner indexes of 4, 'i').
        """
        ...


class Engine(Protocol):
    """One implementation of the loops. They keep no state, wait for nothing and know no socket.

    Buffers must not change during a call: large ones are processed without the interpreter's lock.
    """

    NAME: str
    """`compiled` or `pure`."""

    def ColumnBuilder(self) -> ColumnBuilder: ...

    def PayloadBuilder(self) -> PayloadBuilder: ...

    def check_run(self, data: Buffer, start: int, stop: int, max_entry: int = NO_LIMIT) -> tuple[int, int]:
        """Validate a run like `ColumnBuilder.decode_run`. Return the index after it, and its number of messages."""
        ...

    def crc32(self, data: Buffer, before: int = 0, /) -> int:
        """Return the CRC-32 of `data`, continued from `before`, the CRC-32 of the bytes before it."""
        ...

    def encode_run(self, values: Sequence[bytes | None], attributes: int = 0) -> bytes:
        """Return magic-1 entries of these payloads (a list or `PackedBytes`), concatenated.

        Raises:
            OverflowError: A payload's length, or `attributes`, does not fit into its field.
            TypeError: A payload is None: a 0.7 entry cannot say so.
        """
        ...

    def fit(
        self,
        values: Sequence[object],
        start: int,
        stop: int,
        max_bytes: int,
        row_bytes: int,
        max_row: int,
        nullable: bool = False,
    ) -> tuple[int, int]:
        """Count how many of `values[start:stop]` (a list or `PackedBytes`) fit into `max_bytes`.

        Each counts its length and `row_bytes`. Stops before a value that is longer than `max_row`, or that is not
        exactly of type `bytes`. A null stops it, too, unless `nullable` is set: then its length is 0.

        Returns:
            The index after the last value that fits, and the sum of the lengths.

        Raises:
            ValueError: `start:stop` does not lie within the values.
        """
        ...

    def unpack(self, offsets: Buffer, data: Buffer, validity: Buffer | None = None) -> list[bytes | None]:
        """Return `data[offsets[i]:offsets[i + 1]]` for each i; None where `validity[i]` is 0.

        Args:
            offsets: A memoryview of 'i' or 'q'.
            data: The bytes.
            validity: A byte per row; None: no row is null.

        Raises:
            BufferError: A buffer of another format.
            ValueError: Offsets that do not ascend within the data, or a `validity` of another length.
        """
        ...
