"""Errors of decompression, and buffers whose size is known before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

__all__ = ["CompressionError", "DecompressedTooLarge", "extend", "filled", "too_large"]


class CompressionError(Exception):
    """The bytes are not what the compression type says. The caller knows where they are from, and adds it."""


class DecompressedTooLarge(CompressionError):
    """The bytes would decompress to more than the limit."""


def too_large(max_bytes: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"decompresses to more than {max_bytes} bytes")


def filled(size: int, fill: Callable[[memoryview], int]) -> bytes:
    """Return what `fill` writes to the start of a buffer of `size` bytes; it returns how much that is (bytes)."""
    out = BytesIO()  # gives up what was written without another copy
    extend(out, size)
    with out.getbuffer() as buffer:
        used = fill(buffer)
    out.truncate(used)
    return out.getvalue()


def extend(out: BytesIO, size: int) -> None:
    """Extend a buffer to `size` bytes with zeros."""
    if size > out.tell():
        out.seek(size - 1)
        out.write(b"\0")
