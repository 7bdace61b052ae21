"""Compression of message sets and record batches: gzip, snappy, lz4 and zstd, with a bound on what comes out.

Snappy and zstd are decompressed by cramjam into buffers whose size is known before, lz4 by the engine; gzip goes
through zlib. The libraries are imported with the first data that is compressed.
Readers are as tolerant as the Java classes of Kafka's own clients, because whatever those write and accept is in logs.
Source: specification.md 2.2 (0.7), kafka-specification.md 3.4 (0.8 and later).
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from functools import cache, partial
from io import BytesIO
from itertools import islice
from typing import NamedTuple

from odradek import engine as engines
from odradek.engine import Buffer
from odradek.errors import ConfigError
from odradek.wire import lz4, zstd
from odradek.wire.decompressed import CompressionError, DecompressedTooLarge, extend, filled, too_large

__all__ = [
    "LEVELS",
    "Compression",
    "CompressionError",
    "CompressionType",
    "DecompressedTooLarge",
    "compress",
    "decompress",
    "gzip_header",
    "inflate",
    "parse_compression",
]


class CompressionType(IntEnum):
    """The compression of a wrapper or batch: the low bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> CompressionType:
        """Return the type with this name, in lower case. Raises ConfigError for an unknown one."""
        try:
            return _NAMED[name]
        except KeyError:
            raise ConfigError(f"unknown compression {name!r}: choose one of {', '.join(_NAMED)}") from None


_NAMED = {compression.name.lower(): compression for compression in CompressionType}


LEVELS: Mapping[CompressionType, range] = {
    CompressionType.GZIP: range(1, 10),
    CompressionType.LZ4: range(1, 18),
    CompressionType.ZSTD: range(-131072, 23),
}
"""Compression levels that Kafka's own producer takes (KIP-390)."""


class Compression(NamedTuple):
    """A compression as users name it. Level None stands for what a library does by default."""

    type: CompressionType
    level: int | None = None


@cache
def parse_compression(text: str) -> Compression:
    """Return what `zstd`, or `zstd:9` with a level, means.

    Raises:
        ConfigError: There is no such compression, or it does not have this level.
    """
    name, colon, number = text.partition(":")
    kind = CompressionType.named(name)
    if not colon:
        return Compression(kind)
    levels = LEVELS.get(kind)
    if levels is None:
        raise ConfigError(f"{name} has no levels; {' and '.join(map(_name, LEVELS))} have")
    if not re.fullmatch("-?[0-9]{1,6}", number) or int(number) not in levels:
        raise ConfigError(f"levels of {name} are {levels[0]} to {levels[-1]}, as in {name}:{levels[-1]}")
    return Compression(kind, int(number))


def _name(compression: CompressionType) -> str:
    return compression.name.lower()


def compress(compression: CompressionType, data: bytes, level: int | None = None) -> bytes:
    """Compress as Kafka's own clients do: gzip without name or time, snappy in xerial framing, lz4 as one frame.

    Args:
        level: One of `LEVELS`; None: 6 of gzip, 3 of zstd, 1 of lz4.
    """
    return _COMPRESS[compression](data) if level is None else _COMPRESS_AT_LEVEL[compression](data, level)


def decompress(compression: CompressionType, data: bytes | memoryview, max_bytes: int) -> Buffer:
    """Undo `compress`, and what other writers do that Kafka's readers accept.

    At most about twice `max_bytes` is held at any time; lengths that snappy data declares are checked before anything
    is allocated.

    Raises:
        CompressionError: The data is damaged.
        DecompressedTooLarge: It decompresses to more than `max_bytes`.
    """
    return _DECOMPRESS[compression](memoryview(data), max_bytes)


# ---- none ---------------------------------------------------------------------------------------------------


def _copy(data: bytes | memoryview, max_bytes: int | None = None) -> bytes:
    if max_bytes is not None and len(data) > max_bytes:
        raise too_large(max_bytes)
    return bytes(data)


# ---- gzip ---------------------------------------------------------------------------------------------------

_FHCRC, _FEXTRA, _FNAME, _FCOMMENT = 2, 4, 8, 16
_ZERO = re.compile(rb"\0")  # searches views, which have no find()

FIRST_STEP, NEXT_STEP = 256 << 10, 8 << 10
"""Input that zlib gets at a time: of the first member, and at first of a later one. zlib copies the input after a
member's end, so the steps for a series of small members are small."""

_OUTPUT_STEP = 1 << 20  # output that zlib may return at a time, because it is copied, too


def _gzip(data: bytes, level: int = zlib.Z_DEFAULT_COMPRESSION) -> bytes:
    packer = zlib.compressobj(level, wbits=31)  # 31: a gzip header, with time 0
    return packer.compress(data) + packer.flush()


def _gunzip(data: memoryview, max_bytes: int) -> bytes:
    """Decompress all members of a gzip stream. Bytes after the last one that are no member are ignored."""
    out = BytesIO()  # gives up what was written without another copy
    pos, step = gzip_header(data, 0), FIRST_STEP
    while True:
        pos = inflate(data, pos, step, out, max_bytes)
        try:
            pos, step = gzip_header(data, pos), NEXT_STEP
        except CompressionError:
            return out.getvalue()


def inflate(data: memoryview, pos: int, step: int, out: BytesIO, max_bytes: int) -> int:
    """Decompress the member whose header ends at `pos` into `out`, and check its trailer.

    Args:
        data: The gzip stream.
        pos: Index in it.
        step: How much input to take at first (bytes).
        out: May hold at most `max_bytes` afterwards, from earlier members too.
        max_bytes: The limit.

    Returns:
        The index after the trailer.
    """
    inflater, crc, before = zlib.decompressobj(-15), 0, out.tell()
    while not inflater.eof:
        chunk: Buffer = inflater.unconsumed_tail
        if not chunk:
            chunk = data[pos : pos + step]
            pos, step = pos + len(chunk), min(2 * step, FIRST_STEP)
        left = max_bytes - out.tell()
        try:
            plain = inflater.decompress(chunk, min(left + 1, _OUTPUT_STEP))
        except zlib.error as error:
            raise CompressionError(f"bad gzip data: {error}") from None
        if not (chunk or plain or inflater.eof):
            raise CompressionError("the gzip stream is cut")
        if len(plain) > left:
            raise too_large(max_bytes)
        crc = engines.active.crc32(plain, crc)
        out.write(plain)
    pos -= len(inflater.unused_data)
    if data[pos : pos + 8] != struct.pack("<II", crc, (out.tell() - before) & 0xFFFFFFFF):
        raise CompressionError("the gzip trailer does not match")
    return pos + 8


def gzip_header(data: memoryview, start: int) -> int:
    """Return where the header of the member at `start` ends. Reserved flags are ignored, as in Java."""
    if bytes(data[start : start + 3]) != b"\x1f\x8b\x08" or len(data) < start + 10:
        raise CompressionError("not in gzip format")
    flags, pos = data[start + 3], start + 10
    if flags & _FEXTRA:
        pos += 2 + int.from_bytes(data[pos : pos + 2], "little")
    for flag in (_FNAME, _FCOMMENT):
        if flags & flag:
            zero = _ZERO.search(data, pos)
            pos = zero.end() if zero else len(data) + 1
    if flags & _FHCRC:
        if data[pos : pos + 2] != struct.pack("<H", zlib.crc32(data[start:pos]) & 0xFFFF):
            raise CompressionError("the gzip header's CRC does not match")
        pos += 2
    if pos > len(data):
        raise CompressionError("the gzip header is cut")
    return pos


# ---- snappy -------------------------------------------------------------------------------------------------

_MAGIC = b"\x82SNAPPY\x00"
_HEADER = _MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"  # version 1, readable by version 1 (specification.md App. C)
_MAGIC_SIZE = int.from_bytes(_MAGIC[:4], "big", signed=True)  # the magic, read where a block's size could be
_BLOCK = 32768  # SnappyOutputStream cuts its input here (specification.md 2.2)
_AT_A_TIME = 64  # blocks inspected before they are decompressed: 2 MiB of those that are written


def _xerial(data: bytes) -> bytes:
    import snappy

    view, parts = memoryview(data), [_HEADER]
    for start in range(0, len(data), _BLOCK):
        block = snappy.compress(view[start : start + _BLOCK])
        parts += len(block).to_bytes(4, "big"), block
    return b"".join(parts)


def _unxerial(data: memoryview, max_bytes: int) -> bytes:
    """Decompress a snappy stream; data that does not start with the magic and a whole header is one raw block."""
    if len(data) < len(_HEADER) or data[: len(_MAGIC)] != _MAGIC:
        return _unsnap(data, max_bytes)
    if int.from_bytes(data[len(_HEADER) : len(_HEADER) + 4], "big") == len(data) - len(_HEADER) - 4 > 0:
        return _unsnap(data[len(_HEADER) + 4 :], max_bytes)  # one block, as of any batch of up to 32 KiB
    out, blocks = BytesIO(), _blocks(data)
    while some := list(islice(blocks, _AT_A_TIME)):
        start = out.tell()
        end = start + sum(size for _, size in some)
        if end > max_bytes:
            raise too_large(max_bytes)
        extend(out, end)
        with out.getbuffer() as buffer:
            for block, size in some:
                _unsnap_into(block, buffer[start : start + size])
                start += size
    return out.getvalue()


def _unsnap(block: memoryview, max_bytes: int) -> bytes:
    size = _declared_size(block)
    if size > max_bytes:
        raise too_large(max_bytes)
    return filled(size, partial(_unsnap_into, block))


def _unsnap_into(block: memoryview, buffer: memoryview) -> int:
    import cramjam

    try:
        return int(cramjam.snappy.decompress_raw_into(block, buffer))
    except cramjam.DecompressionError as error:
        raise CompressionError(f"bad snappy data: {error}") from None


def _blocks(data: memoryview) -> Iterator[tuple[memoryview, int]]:
    """Return the raw blocks of a snappy stream, and the size that each declares.

    Follows SnappyInputStream of snappy-java 1.1.8: the first header's version is ignored, another header may be where a
    block could be, and fewer than 4 bytes after the last block are ignored.
    """
    pos = len(_HEADER)
    while len(data) - pos >= 4:
        size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
        if size == _MAGIC_SIZE:
            if not _is_header(data[pos : pos + len(_HEADER)]):
                return
            pos += len(_HEADER)
            continue
        block = data[pos + 4 : pos + 4 + max(size, 0)]
        if size <= 0 or len(block) < size:
            raise CompressionError(f"a snappy block of {size} bytes in {len(data) - pos - 4}")
        yield block, _declared_size(block)
        pos += 4 + size


def _is_header(header: memoryview) -> bool:
    """Return True for a further header. Unlike the first, it must be whole and of version 1 or later."""
    version = int.from_bytes(header[8:12], "big", signed=True)
    magic = header[: len(_MAGIC)] == _MAGIC
    if len(header) < len(_HEADER) or (magic and version < 1):
        raise CompressionError("a snappy stream continues with a header that is cut or of version 0")
    return magic


def _declared_size(block: memoryview) -> int:
    """Return the varint that a raw block starts with: at most five bytes and 2^31-1, as in snappy and a Java array."""
    size = 0
    for shift, byte in enumerate(block[:5].tolist()):
        size |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            # A copy of 64 bytes takes 3, so data cannot grow more than 21.4-fold.
            if size > min(22 * len(block), 0x7FFFFFFF):
                raise CompressionError(f"a snappy block of {len(block)} bytes cannot hold the {size} it declares")
            return size
    raise CompressionError("a snappy block without a valid length")


_COMPRESS: dict[CompressionType, Callable[[bytes], bytes]] = {
    CompressionType.NONE: _copy,
    CompressionType.GZIP: _gzip,
    CompressionType.SNAPPY: _xerial,
    CompressionType.LZ4: lz4.compress,
    CompressionType.ZSTD: zstd.compress,
}
_COMPRESS_AT_LEVEL: dict[CompressionType, Callable[[bytes, int], bytes]] = {
    CompressionType.GZIP: _gzip,
    CompressionType.LZ4: lz4.compress,
    CompressionType.ZSTD: zstd.compress,
}
_DECOMPRESS: dict[CompressionType, Callable[[memoryview, int], Buffer]] = {
    CompressionType.NONE: _copy,
    CompressionType.GZIP: _gunzip,
    CompressionType.SNAPPY: _unxerial,
    CompressionType.LZ4: lz4.decompress,
    CompressionType.ZSTD: zstd.decompress,
}
