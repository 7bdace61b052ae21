"""LZ4 frames as Kafka's own classes write and read them, bugs included (kafka-specification.md 3.4).

A frame is: the magic number, flags, a block descriptor, a header checksum, blocks, an end mark. Kafka refuses linked
blocks, skips a content size and all checksums behind the header, and ignores what follows the end mark. Its writers for
magic 0 hashed the magic number, too, so that the header checksum of their frames is wrong; readers ignore it there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from itertools import islice

from odradek import engine as engines
from odradek.engine import Buffer
from odradek.wire.decompressed import CompressionError, too_large

__all__ = ["compress", "decompress"]

_MAGIC = 0x184D2204
_UINT = struct.Struct("<I")
_MAGIC_BYTES = _UINT.pack(_MAGIC)
_DESCRIPTOR = b"\x60\x40"  # version 1, independent blocks, no checksums, no content size; 64 KiB
_BLOCK = 1 << 16
_STORED = 1 << 31
_AT_A_TIME = 1024  # blocks inspected before they are decompressed: 64 MiB of those that are written
_INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM = 0x20, 0x10, 0x08, 0x04

_Block = tuple[memoryview, bool, int]
"""Content, True if it is not compressed, and the most bytes that it stands for."""


def compress(data: bytes, level: int | None = None, *, hash_magic: bool = False) -> bytes:
    """Return one frame.

    Args:
        data: Its content.
        level: From 1, the fastest, on; None: that, in blocks without checksums.
        hash_magic: Make the wrong header checksum that 0.8 and 0.9 ask for.
    """
    if level is not None:
        return _compress_at(level, data, hash_magic)
    import cramjam

    parts: list[bytes | memoryview] = [_OLD_HEADER if hash_magic else _HEADER]
    view = memoryview(data)
    for start in range(0, len(data), _BLOCK):
        plain = view[start : start + _BLOCK]
        packed = memoryview(cramjam.lz4.compress_block(plain, store_size=False))
        if len(packed) < len(plain):
            parts += len(packed).to_bytes(4, "little"), packed
        else:
            parts += (len(plain) | _STORED).to_bytes(4, "little"), plain
    return b"".join([*parts, bytes(4)])


def _compress_at(level: int, data: bytes, hash_magic: bool) -> bytes:
    """Return a frame of cramjam's, whose functions for single blocks have no levels. Its blocks have checksums."""
    import cramjam

    packer = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    packer.compress(data)
    frame = bytes(packer.finish())
    return frame[:6] + _checksum(frame[:6]) + frame[7:] if hash_magic else frame


def decompress(data: memoryview, max_bytes: int, *, check_header: bool = True) -> Buffer:
    """Return the content of a frame.

    Args:
        data: The frame.
        max_bytes: The limit of its content.
        check_header: Refuse a wrong header checksum.

    Raises:
        CompressionError: It is damaged, or of a kind that Kafka refuses.
        DecompressedTooLarge: It holds more than `max_bytes`.
    """
    at, flags, largest = _header(data, check_header)
    blocks, out = _blocks(data, at, flags, largest), BytesIO()
    content: Buffer = b""
    try:
        while some := list(islice(blocks, _AT_A_TIME)):
            out.write(content)
            content = engines.active.lz4_content(some, max_bytes - out.tell())
    except OverflowError:
        raise too_large(max_bytes) from None
    except ValueError as error:
        raise CompressionError(f"in an lz4 block: {error}") from None
    if not out.tell():
        return content  # of few blocks, as nearly all frames have them
    out.write(content)
    return out.getvalue()


def _blocks(data: memoryview, at: int, flags: int, largest: int) -> Iterator[_Block]:
    """Return the blocks of a frame whose header ends at `at`. Each byte of one stands for 255 at most, so that little
    input never asks for a large buffer."""
    while size := _number(data, at):
        length = size & ~_STORED
        content = data[at + 4 : at + 4 + length]
        if length > largest or len(content) < length:
            raise CompressionError(f"an lz4 block of {length} bytes in {len(data) - at - 4}")
        is_stored = bool(size & _STORED)
        yield content, is_stored, length if is_stored else min(largest, 255 * length + 64)
        at += 4 + length + (4 if flags & _BLOCK_CHECKSUM else 0)
    _check_end(data, at + 4, flags)


def _header(data: memoryview, check: bool) -> tuple[int, int, int]:
    """Return the index behind the header, its flags, and the most bytes that a block may have."""
    if data[:7] == _HEADER:  # as nearly all writers make it
        return 7, _INDEPENDENT, _BLOCK
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
    try:
        number: int = _UINT.unpack_from(data, at)[0]
    except struct.error:
        raise CompressionError("the lz4 frame is cut") from None
    return number


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


_HEADER = _MAGIC_BYTES + _DESCRIPTOR + _checksum(_DESCRIPTOR)
_OLD_HEADER = _MAGIC_BYTES + _DESCRIPTOR + _checksum(_MAGIC_BYTES + _DESCRIPTOR)
