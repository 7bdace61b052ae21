"""Compression as the 0.7.2 broker has it: gzip and snappy only, and gzip streams as the broker reads them.

The broker stores, and serves forever, whatever its reader accepts, so that reader's oddities are part of the protocol:
java.util.zip.GZIPInputStream (JDK 17 when it was recorded) and snappy-java 1.1.8's SnappyInputStream. Source:
specification.md 2.2 and App. H 8; the recorded corpus (conformance.md).
"""

from __future__ import annotations

from io import BytesIO

from odradek.engine import Buffer
from odradek.errors import ConfigError
from odradek.wire.compression import (
    FIRST_STEP,
    NEXT_STEP,
    CompressionError,
    CompressionType,
    gzip_header,
    inflate,
)
from odradek.wire.compression import compress as compress_any
from odradek.wire.compression import decompress as decompress_any

__all__ = ["COMPRESSIONS", "compress", "decompress"]

COMPRESSIONS = (CompressionType.NONE, CompressionType.GZIP, CompressionType.SNAPPY)
"""The types that 0.7 can store."""

_FILL = 512  # GZIPInputStream's buffer


def compress(compression: CompressionType, data: bytes, level: int | None = None) -> bytes:
    """Compress as the stock producer does. Raises ConfigError for a type that 0.7 does not have."""
    if compression not in COMPRESSIONS:
        raise ConfigError(f"0.7 has no {compression.name.lower()} compression: choose none, gzip or snappy")
    return compress_any(compression, data, level)


def decompress(compression: CompressionType, data: bytes | memoryview, max_bytes: int) -> Buffer:
    """Undo `compress`, and what other writers do that the broker accepts.

    Raises:
        CompressionError: The broker would refuse these bytes.
        DecompressedTooLarge: They decompress to more than `max_bytes`.
    """
    if compression is CompressionType.GZIP:
        return _gunzip(memoryview(data), max_bytes)
    if compression not in COMPRESSIONS:
        raise CompressionError(f"0.7 has no {compression.name.lower()} compression")
    return decompress_any(compression, data, max_bytes)


def _gunzip(data: memoryview, max_bytes: int) -> bytes:
    """Decompress the members of a gzip stream that GZIPInputStream sees.

    The broker gives it a stream whose available() is always 0: after the first header, input is taken in fills of 512
    bytes, and a further member is looked for only if more than 26 bytes are left of the fill in which the last one
    ended (18 after its trailer). Bytes that do not start like a member are ignored then.
    """
    out = BytesIO()
    pos = filled = gzip_header(data, 0)
    step = FIRST_STEP
    while True:
        pos = inflate(data, pos, step, out, max_bytes)
        fills = -(-(pos - 8 - filled) // _FILL)
        filled = min(filled + _FILL * max(fills, 0), len(data))
        if filled - pos <= 18:
            return out.getvalue()
        try:
            pos = gzip_header(data, pos)
        except CompressionError:
            return out.getvalue()
        filled, step = max(filled, pos), NEXT_STEP
