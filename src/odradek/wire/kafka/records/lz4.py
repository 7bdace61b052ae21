"""LZ4 frames as Kafka's own classes write and read them, bugs included (specification 3.4).

A frame is: the magic number, flags, a block descriptor, a header checksum, blocks, an end mark. Kafka refuses linked
blocks, skips a content size and all checksums behind the header, and ignores what follows the end mark. Its writers for
magic 0 hashed the magic number, too, so that the header checksum of their frames is wrong; readers ignore it there.
"""

from __future__ import annotations

import struct
from io import BytesIO

import cramjam

from odradek.wire.compression import CompressionError, DecompressedTooLarge

__all__ = ["compress", "decompress"]

_MAGIC = 0x184D2204
_DESCRIPTOR = b"\x60\x40"  # version 1, independent blocks, no checksums, no content size; 64 KiB
_BLOCK = 1 << 16
_STORED = 1 << 31
_INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM = 0x20, 0x10, 0x08, 0x04


def compress(data: bytes, *, hash_magic: bool = False) -> bytes:
    """Return one frame. `hash_magic` makes the wrong header checksum that 0.8 and 0.9 ask for."""
    head = struct.pack("<I", _MAGIC) + _DESCRIPTOR
    parts = [head, _checksum(head if hash_magic else _DESCRIPTOR)]
    view = memoryview(data)
    for start in range(0, len(data), _BLOCK):
        plain = view[start : start + _BLOCK]
        packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(packed) < len(plain):
            parts += len(packed).to_bytes(4, "little"), packed
        else:
            parts += (len(plain) | _STORED).to_bytes(4, "little"), bytes(plain)
    return b"".join([*parts, bytes(4)])


def decompress(data: memoryview, max_bytes: int, *, check_header: bool = True) -> bytes:
    """Return what a frame holds.

    Args:
        data: The frame.
        max_bytes: The limit of what it may hold.
        check_header: Refuse a wrong header checksum.

    Raises:
        CompressionError: It is damaged, or of a kind that Kafka refuses.
        DecompressedTooLarge: It holds more than `max_bytes`.
    """
    at, flags, largest = _header(data, check_header)
    out = BytesIO()
    while True:
        size = _number(data, at)
        at += 4
        if not size:
            _check_end(data, at, flags)
            return out.getvalue()
        length = size & ~_STORED
        block = data[at : at + length]
        if length > largest or len(block) < length:
            raise CompressionError(f"an lz4 block of {length} bytes in {len(data) - at}")
        out.write(block if size & _STORED else _plain(block, min(largest, max_bytes - out.tell()), largest, max_bytes))
        if out.tell() > max_bytes:
            raise _too_large(max_bytes)
        at += length + (4 if flags & _BLOCK_CHECKSUM else 0)


def _plain(block: memoryview, free_bytes: int, largest: int, max_bytes: int) -> memoryview:
    # Each byte of a block stands for 255 at most, so that little input never makes a large buffer.
    buffer = bytearray(min(free_bytes, 255 * len(block) + 64))
    try:
        return memoryview(buffer)[: cramjam.lz4.decompress_block_into(block, buffer)]
    except cramjam.DecompressionError as error:
        if free_bytes < largest and free_bytes < 255 * len(block) + 64:
            raise _too_large(max_bytes) from None
        raise CompressionError(f"bad lz4 data: {error}") from None


def _too_large(max_bytes: int) -> DecompressedTooLarge:
    return DecompressedTooLarge(f"decompresses to more than {max_bytes} bytes")


def _header(data: memoryview, check: bool) -> tuple[int, int, int]:
    """Return the index behind the header, its flags, and the most bytes that a block may have."""
    if _number(data, 0) != _MAGIC or len(data) < 7:
        raise CompressionError("not in lz4 format")
    flags, blocks = data[4], data[5]
    if flags >> 6 != 1 or flags & 0x03 or blocks & 0x8F or blocks >> 4 < 4:
        raise CompressionError(f"an lz4 frame with flags {flags:#04x} and {blocks:#04x}, which mean nothing")
    if not flags & _INDEPENDENT:
        raise CompressionError("an lz4 frame with linked blocks, which Kafka refuses")
    end = 14 if flags & _CONTENT_SIZE else 6
    if len(data) <= end or (check and data[end] != _checksum(data[4:end])[0]):
        raise CompressionError("the lz4 header's checksum does not match")
    return end + 1, flags, 1 << 2 * (blocks >> 4) + 8


def _check_end(data: memoryview, at: int, flags: int) -> None:
    if flags & _CONTENT_CHECKSUM and len(data) < at + 4:
        raise CompressionError("the lz4 frame is cut")


def _number(data: memoryview, at: int) -> int:
    if len(data) < at + 4:
        raise CompressionError("the lz4 frame is cut")
    return int.from_bytes(data[at : at + 4], "little")


# ---- xxHash of 32 bits, of less than 16 bytes -------------------------------------------------------------------

_PRIMES = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_MASK = 0xFFFFFFFF


def _checksum(data: bytes | memoryview) -> bytes:
    """Return the second byte of the hash, which is what a frame's header has."""
    hashed = _PRIMES[4] + len(data)
    words = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:words]):
        hashed = _rotated(hashed + word * _PRIMES[2], 17) * _PRIMES[3]
    for byte in bytes(data[words:]):
        hashed = _rotated(hashed + byte * _PRIMES[4], 11) * _PRIMES[0]
    hashed = _mixed(_mixed(hashed & _MASK, 15, _PRIMES[1]), 13, _PRIMES[2])
    return bytes(((hashed ^ hashed >> 16) >> 8 & 0xFF,))


def _rotated(number: int, bits: int) -> int:
    number &= _MASK
    return (number << bits | number >> 32 - bits) & _MASK


def _mixed(hashed: int, bits: int, prime: int) -> int:
    return (hashed ^ hashed >> bits) * prime & _MASK
