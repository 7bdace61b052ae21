"""Frames of Zstandard, decompressed into one buffer: their headers bound what they hold (RFC 8878, section 3.1.1).

A header may declare the size of the content, but writers that stream, such as Kafka's own, leave it out. Blocks bound
it as well: each holds at most 128 KiB, or a window if that is smaller.
"""

from __future__ import annotations

import struct

from odradek.wire.decompressed import CompressionError, filled, too_large

__all__ = ["compress", "decompress"]

_UINT = struct.Struct("<I")
_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2A5
_LEVEL = 3
"""The default of zstd and of Kafka."""
_BLOCK = 1 << 17
_RLE, _COMPRESSED = 1, 2
_WINDOWS = [(1 << 10 + (code >> 3)) // 8 * (8 + (code & 7)) for code in range(256)]
"""Size of the window for each value of its descriptor (bytes)."""


def compress(data: bytes, level: int = _LEVEL) -> bytes:
    """Return one frame."""
    import cramjam

    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(data: memoryview, max_bytes: int) -> bytes:
    """Return the content of all frames.

    Raises:
        CompressionError: A frame is damaged.
        DecompressedTooLarge: They hold more than `max_bytes`.
    """
    import cramjam

    bound = _bound(data)

    def fill(buffer: memoryview) -> int:
        try:
            return int(cramjam.zstd.decompress_into(data, buffer))
        except cramjam.DecompressionError as error:
            if bound > max_bytes and "failed to write whole buffer" in str(error):
                raise too_large(max_bytes) from None
            raise CompressionError(f"damaged data: {error}") from None

    return filled(min(bound, max_bytes), fill)


def _bound(data: memoryview) -> int:
    """Return the most bytes that all frames may hold; what is no frame, or is cut, holds nothing."""
    at = bound = 0
    while len(data) - at >= 8:
        (magic,) = _UINT.unpack_from(data, at)
        if magic >> 4 == _SKIPPABLE:
            at += 8 + int(_UINT.unpack_from(data, at + 4)[0])
        elif magic == _MAGIC:
            flags = data[at + 4]
            at, window, declared = _header(data, at + 5, flags)
            at, maximum = _blocks(data, at, min(window, _BLOCK))
            at += 4 * (flags >> 2 & 1)  # the checksum
            bound += maximum if declared is None else min(maximum, declared)
        else:
            break
    return bound


def _header(data: memoryview, at: int, flags: int) -> tuple[int, int, int | None]:
    """Return the index after a frame's header, the size of its window, and that of its content if it declares one."""
    is_single, size_flag = flags >> 5 & 1, flags >> 6
    window = 0
    if not is_single:
        window = _WINDOWS[data[at]]
        at += 1
    at += (0, 1, 2, 4)[flags & 3]  # the dictionary's id
    size_bytes = (is_single, 2, 4, 8)[size_flag]
    if not size_bytes:
        return at, window, None
    content = int.from_bytes(data[at : at + size_bytes], "little") + (256 if size_flag == 1 else 0)
    return at + size_bytes, content if is_single else window, content


def _blocks(data: memoryview, at: int, largest: int) -> tuple[int, int]:
    """Return the index after the last block of a frame, and the most bytes that all of them hold."""
    bound, is_last = 0, 0
    while not is_last and len(data) - at >= 3:
        head = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        is_last, kind, size = head & 1, head >> 1 & 3, head >> 3
        bound += largest if kind == _COMPRESSED else min(size, _BLOCK)
        at += 3 + (1 if kind == _RLE else size)
    return at, bound
