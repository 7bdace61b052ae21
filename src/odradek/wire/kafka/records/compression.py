"""Compression of records, with what depends on the message format (kafka-specification.md 3.4)."""

from __future__ import annotations

from odradek.engine import Buffer
from odradek.wire import compression, lz4
from odradek.wire.compression import CompressionError, CompressionType

__all__ = ["compress", "decompress"]


def compress(kind: CompressionType, data: bytes, level: int | None = None, *, magic: int) -> bytes:
    """Compress the body of a batch, or the entries inside a wrapper. See `odradek.wire.compression.compress`."""
    if kind is CompressionType.LZ4 and magic == 0:
        return lz4.compress(data, level, hash_magic=True)
    return compression.compress(kind, data, level)


def decompress(kind: int, data: memoryview, max_bytes: int, *, magic: int) -> Buffer:
    """Undo `compress`, and what other writers do that Kafka's readers accept.

    Raises:
        CompressionError: The data is damaged, or its format is not one for this magic.
        DecompressedTooLarge: It decompresses to more than `max_bytes`.
    """
    if kind == CompressionType.LZ4 and magic == 0:
        return lz4.decompress(data, max_bytes, check_header=False)
    if kind > CompressionType.ZSTD or (kind == CompressionType.ZSTD and magic < 2):
        raise CompressionError(f"compression {kind} in magic {magic}, which does not have it")
    return compression.decompress(CompressionType(kind), data, max_bytes)
