"""The codecs of 0.7: gzip and snappy, accepting what the 0.7.2 broker accepts and emitting what its producer emits.

The broker reads gzip through java.util.zip.GZIPInputStream (JDK 17 when it was recorded) and snappy through snappy-java
1.1.8's SnappyInputStream; their oddities are part of the protocol, because the broker stores, and serves for ever,
whatever they let pass. Source: specification 2.2 and App. H8; corpus, section 7.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from io import BytesIO

import cramjam

from odradek.errors import ConfigError

__all__ = ["BadCompression", "Bomb", "Codec", "compress", "decompress"]


class Codec(IntEnum):
    """How a message's payload is compressed: attribute bits 0-1 (specification 2.1)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2

    @classmethod
    def named(cls, name: str) -> Codec:
        """The codec called `none`, `gzip` or `snappy`. Raises ConfigError for any other name."""
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(codec.name.lower() for codec in cls)
            raise ConfigError(f"no codec is called {name!r}; there are {known}") from None


class BadCompression(Exception):
    """Bytes that the codec cannot make sense of. Whoever catches it knows where they stood, and names the place."""


class Bomb(BadCompression):
    """Compressed bytes that would grow beyond the limit."""


def compress(codec: Codec, data: bytes) -> bytes:
    """Compress as the stock producer does: gzip without name or time, snappy in xerial framing."""
    if codec is Codec.GZIP:
        return _gzip(data)
    if codec is Codec.SNAPPY:
        return _xerial(data)
    return data


def decompress(codec: Codec, data: bytes | memoryview, max_bytes: int) -> bytes:
    """Undo `compress`, and what other writers do that the broker accepts.

    Never holds more than `max_bytes` of output (nor, for snappy, allocates it before the declared length was checked).

    Raises:
        BadCompression: The broker would refuse these bytes.
        Bomb: More than `max_bytes` would come out.
    """
    if codec is Codec.NONE:
        return bytes(data)
    out = BytesIO()  # gives up what was written without another copy
    out.writelines((_gunzip if codec is Codec.GZIP else _unsnap)(bytes(data), max_bytes))
    return out.getvalue()


# ---- gzip ---------------------------------------------------------------------------------------------------

_FHCRC, _FEXTRA, _FNAME, _FCOMMENT = 2, 4, 8, 16
_FILL = 512  # GZIPInputStream's buffer


def _gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)  # 31: a gzip header, with time 0
    return packer.compress(data) + packer.flush()


def _gunzip(data: bytes, max_bytes: int) -> Iterator[bytes]:
    """The members of a gzip stream, decompressed, piece by piece.

    Follows GZIPInputStream of JDK 17 over a stream whose available() is always 0, which is what the broker gives it:
    behind the first header input is taken in fills of 512 bytes, and a further member is looked for only if more than
    26 bytes are left of the fill in which the last one ended. Whatever does not start like a member then is ignored.
    """
    pos = filled = _gzip_header(data, 0)
    room = max_bytes
    while True:
        inflate, crc, produced = zlib.decompressobj(-15), 0, 0
        while not inflate.eof:
            if pos == filled:
                filled = min(pos + _FILL, len(data))
            piece = _inflate(inflate, data[pos:filled], room + 1)
            pos = filled - len(inflate.unused_data)
            crc, produced, room = zlib.crc32(piece, crc), produced + len(piece), room - len(piece)
            if room < 0:
                raise Bomb(f"decompresses to more than {max_bytes} bytes")
            yield piece
        if data[pos : pos + 8] != struct.pack("<II", crc, produced & 0xFFFFFFFF):
            raise BadCompression("the gzip trailer does not match")
        if filled - pos <= 26:
            return
        try:
            pos = _gzip_header(data, pos + 8)
        except BadCompression:
            return
        filled = max(filled, pos)


def _inflate(inflate: zlib._Decompress, data: bytes, max_length: int) -> bytes:
    if not data:
        raise BadCompression("the gzip stream is cut")
    try:
        return inflate.decompress(data, max_length)
    except zlib.error as error:
        raise BadCompression(f"bad gzip data: {error}") from None


def _gzip_header(data: bytes, start: int) -> int:
    """Where the header of the member at `start` ends. Reserved flags are ignored, as Java does."""
    if data[start : start + 3] != b"\x1f\x8b\x08" or len(data) < start + 10:
        raise BadCompression("not in gzip format")
    flags, pos = data[start + 3], start + 10
    if flags & _FEXTRA:
        pos += 2 + int.from_bytes(data[pos : pos + 2], "little")
    for flag in (_FNAME, _FCOMMENT):
        if flags & flag:
            pos = data.find(0, pos) + 1 or len(data) + 1
    if flags & _FHCRC:
        if data[pos : pos + 2] != struct.pack("<H", zlib.crc32(data[start:pos]) & 0xFFFF):
            raise BadCompression("the gzip header's CRC does not match")
        pos += 2
    if pos > len(data):
        raise BadCompression("the gzip header is cut")
    return pos


# ---- snappy -------------------------------------------------------------------------------------------------

_MAGIC = b"\x82SNAPPY\x00"
_HEADER = _MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"  # version 1, readable by version 1 (specification App. C)
_BLOCK = 32768  # SnappyOutputStream cuts its input here (specification 2.2)


def _xerial(data: bytes) -> bytes:
    parts = [_HEADER]
    for start in range(0, len(data), _BLOCK):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _BLOCK]))
        parts += len(block).to_bytes(4, "big"), block
    return b"".join(parts)


def _unsnap(data: bytes, max_bytes: int) -> Iterator[bytes | cramjam.Buffer]:
    """The blocks of a snappy stream, decompressed.

    Follows SnappyInputStream of snappy-java 1.1.8: the first header's version is not looked at, another header may
    stand where a block could, fewer than 4 bytes behind the last block are ignored, and what does not start with the
    magic, or is shorter than the header, is one raw block.
    """
    if len(data) < len(_HEADER) or data[: len(_MAGIC)] != _MAGIC:
        yield _unsnap_block(data, max_bytes, max_bytes)
        return
    pos, room = len(_HEADER), max_bytes
    while len(data) - pos >= 4:
        if data.startswith(_MAGIC[:4], pos):
            if not _is_header(data[pos : pos + len(_HEADER)]):
                return
            pos += len(_HEADER)
            continue
        size = int.from_bytes(data[pos : pos + 4], "big", signed=True)
        block = data[pos + 4 : pos + 4 + max(size, 0)]
        if size <= 0 or len(block) < size:
            raise BadCompression(f"a snappy block of {size} bytes in {len(data) - pos - 4}")
        piece = _unsnap_block(block, room, max_bytes)
        pos, room = pos + 4 + size, room - len(piece)
        yield piece


def _is_header(header: bytes) -> bool:
    """Whether what starts like a further header is one. Unlike the first, it must be whole and of version 1 or more."""
    version = int.from_bytes(header[8:12], "big", signed=True)
    if len(header) < len(_HEADER) or (header.startswith(_MAGIC) and version < 1):
        raise BadCompression("a snappy stream goes on with a header that is cut or of version 0")
    return header.startswith(_MAGIC)


def _unsnap_block(block: bytes, room: int, max_bytes: int) -> cramjam.Buffer:
    size = _declared(block)
    if size > 22 * len(block):  # a copy of 64 bytes takes 3: more than 21.4-fold growth cannot be
        raise BadCompression(f"a snappy block of {len(block)} bytes cannot hold the {size} it declares")
    if size > room:
        raise Bomb(f"decompresses to more than {max_bytes} bytes")
    try:
        return cramjam.snappy.decompress_raw(block)
    except cramjam.DecompressionError as error:
        raise BadCompression(f"bad snappy data: {error}") from None


def _declared(block: bytes) -> int:
    """The varint a raw block starts with: at most five bytes and 2^31-1, as snappy and a Java array have it."""
    size = 0
    for shift, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            if size > 0x7FFFFFFF:
                break
            return size
    raise BadCompression("a snappy block without a valid length")
