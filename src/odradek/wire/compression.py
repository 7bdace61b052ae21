"""The codecs of 0.7: gzip and snappy, accepting what the 0.7.2 broker accepts and emitting what its producer emits.

The broker reads gzip through java.util.zip.GZIPInputStream (JDK 17 when it was recorded) and snappy through snappy-java
1.1.8's SnappyInputStream; their oddities are part of the protocol, because the broker stores, and serves for ever,
whatever they let pass. Source: specification 2.2 and App. H8; corpus, section 7.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from io import BytesIO
from itertools import islice

import cramjam

from odradek import engine as engines
from odradek.engine import Buffer
from odradek.errors import ConfigError

__all__ = ["CompressionError", "CompressionType", "DecompressedTooLarge", "compress", "decompress"]


class CompressionType(IntEnum):
    """How a message's payload is compressed: attribute bits 0-1 (specification 2.1)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2

    @classmethod
    def named(cls, name: str) -> CompressionType:
        """The codec called `none`, `gzip` or `snappy`. Raises ConfigError for any other name."""
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(compression.name.lower() for compression in cls)
            raise ConfigError(f"no codec is called {name!r}; there are {known}") from None


class CompressionError(Exception):
    """Bytes that the codec cannot make sense of. Whoever catches it knows where they stood, and names the place."""


class DecompressedTooLarge(CompressionError):
    """Compressed bytes that would grow beyond the limit."""


def compress(compression: CompressionType, data: bytes) -> bytes:
    """Compress as the stock producer does: gzip without name or time, snappy in xerial framing."""
    if compression is CompressionType.GZIP:
        return _gzip(data)
    if compression is CompressionType.SNAPPY:
        return _xerial(data)
    return data


def decompress(compression: CompressionType, data: bytes | memoryview, max_bytes: int) -> bytes:
    """Undo `compress`, and what other writers do that the broker accepts.

    Never holds much more than `max_bytes` of output; for snappy, the declared lengths are checked before anything is
    allocated.

    Raises:
        CompressionError: The broker would refuse these bytes.
        Bomb: More than `max_bytes` would come out.
    """
    if compression is CompressionType.NONE:
        return bytes(data)
    return (_gunzip if compression is CompressionType.GZIP else _unsnap)(memoryview(data), max_bytes)


# ---- gzip ---------------------------------------------------------------------------------------------------

_FHCRC, _FEXTRA, _FNAME, _FCOMMENT = 2, 4, 8, 16
_ZERO = re.compile(rb"\0")  # searches views, which have no find()
_FILL = 512  # GZIPInputStream's buffer


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)  # 31: a gzip header, with time 0
    return packer.compress(data) + packer.flush()


_STEP, _NEXT_STEP = 256 << 10, 8 << 10
"""Input that zlib gets at a time, of the first member and at first of a further one: what lies behind a member's end is
copied, so that many small members must be cut small."""

_PIECE = 1 << 20  # output that zlib may give at a time, because it is copied, too


def _gunzip(data: memoryview, max_bytes: int) -> bytes:
    """The members of a gzip stream, decompressed.

    Follows GZIPInputStream of JDK 17 over a stream whose available() is always 0, which is what the broker gives it:
    behind the first header input is taken in fills of 512 bytes, and a further member is looked for only if more than
    26 bytes are left of the fill in which the last one ended. Whatever does not start like a member then is ignored.
    """
    out = BytesIO()  # gives up what was written without another copy
    pos = filled = _gzip_header(data, 0)
    step = _STEP
    while True:
        pos, trailer = _inflate(data, pos, step, out, max_bytes)
        if data[pos : pos + 8] != trailer:
            raise CompressionError("the gzip trailer does not match")
        fills = -(-(pos - filled) // _FILL)
        filled = min(filled + _FILL * max(fills, 0), len(data))
        if filled - pos <= 26:
            return out.getvalue()
        try:
            pos = _gzip_header(data, pos + 8)
        except CompressionError:
            return out.getvalue()
        filled, step = max(filled, pos), _NEXT_STEP


def _inflate(data: memoryview, pos: int, step: int, out: BytesIO, max_bytes: int) -> tuple[int, bytes]:
    """Decompress the member whose header ends at `pos`. Gives where it ends, and the trailer that has to be there."""
    inflate, crc, before = zlib.decompressobj(-15), 0, out.tell()
    while not inflate.eof:
        given: Buffer = inflate.unconsumed_tail
        if not given:
            given = data[pos : pos + step]
            pos, step = pos + len(given), min(2 * step, _STEP)
        room = max_bytes - out.tell()
        try:
            piece = inflate.decompress(given, min(room + 1, _PIECE))
        except zlib.error as error:
            raise CompressionError(f"bad gzip data: {error}") from None
        if not (given or piece or inflate.eof):
            raise CompressionError("the gzip stream is cut")
        if len(piece) > room:
            raise DecompressedTooLarge(f"decompresses to more than {max_bytes} bytes")
        crc = engines.active.crc32(piece, crc)
        out.write(piece)
    return pos - len(inflate.unused_data), struct.pack("<II", crc, (out.tell() - before) & 0xFFFFFFFF)


def _gzip_header(data: memoryview, start: int) -> int:
    """Where the header of the member at `start` ends. Reserved flags are ignored, as Java does."""
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
_HEADER = _MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"  # version 1, readable by version 1 (specification App. C)
_MAGIC_SIZE = int.from_bytes(_MAGIC[:4], "big", signed=True)  # what it looks like where a block's size could stand
_AT_A_TIME = 64  # blocks that are looked at before they are decompressed: 2 MiB of those that are written
_BLOCK = 32768  # SnappyOutputStream cuts its input here (specification 2.2)


def _xerial(data: bytes) -> bytes:
    view, parts = memoryview(data), [_HEADER]
    for start in range(0, len(data), _BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _BLOCK]))
        parts += len(block).to_bytes(4, "big"), block
    return b"".join(parts)


def _unsnap(data: memoryview, max_bytes: int) -> bytes:
    """The blocks of a snappy stream, decompressed one behind the other into one buffer."""
    out, blocks = BytesIO(), _blocks(data)
    while some := list(islice(blocks, _AT_A_TIME)):
        start = out.tell()
        end = start + sum(size for _, size in some)
        if end > max_bytes:
            raise DecompressedTooLarge(f"decompresses to more than {max_bytes} bytes")
        _grow(out, end)
        with out.getbuffer() as room:
            for block, size in some:
                _unsnap_block(block, room[start : start + size])
                start += size
    return out.getvalue()


def _grow(out: BytesIO, size: int) -> None:
    """Fill up with zeros."""
    if size > out.tell():
        out.seek(size - 1)
        out.write(b"\0")


def _unsnap_block(block: memoryview, into: memoryview) -> None:
    try:
        cramjam.snappy.decompress_raw_into(block, into)
    except cramjam.DecompressionError as error:
        raise CompressionError(f"bad snappy data: {error}") from None


def _blocks(data: memoryview) -> Iterator[tuple[memoryview, int]]:
    """The raw blocks of a snappy stream, and the size that each declares.

    Follows SnappyInputStream of snappy-java 1.1.8: the first header's version is not looked at, another header may
    stand where a block could, fewer than 4 bytes behind the last block are ignored, and what does not start with the
    magic, or is shorter than the header, is one raw block.
    """
    if len(data) < len(_HEADER) or data[: len(_MAGIC)] != _MAGIC:
        yield data, _declared(data)
        return
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
        yield block, _declared(block)
        pos += 4 + size


def _is_header(header: memoryview) -> bool:
    """Whether what starts like a further header is one. Unlike the first, it must be whole and of version 1 or more."""
    version = int.from_bytes(header[8:12], "big", signed=True)
    magic = header[: len(_MAGIC)] == _MAGIC
    if len(header) < len(_HEADER) or (magic and version < 1):
        raise CompressionError("a snappy stream goes on with a header that is cut or of version 0")
    return magic


def _declared(block: memoryview) -> int:
    """The varint a raw block starts with: at most five bytes and 2^31-1, as snappy and a Java array have it."""
    size = 0
    for shift, byte in enumerate(block[:5].tolist()):
        size |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            # A copy of 64 bytes takes 3: more than 21.4-fold growth cannot be.
            if size > min(22 * len(block), 0x7FFFFFFF):
                raise CompressionError(f"a snappy block of {len(block)} bytes cannot hold the {size} it declares")
            return size
    raise CompressionError("a snappy block without a valid length")
