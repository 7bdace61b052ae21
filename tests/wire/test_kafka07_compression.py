"""gzip and snappy: what is emitted, what is accepted (specification 2.2, App. H8; corpus section 7), and the bounds."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.wire.compression import CompressionError, CompressionType, DecompressedTooLarge
from odradek.wire.kafka07.compression import COMPRESSIONS, compress, decompress

MAGIC = b"\x82SNAPPY\x00"
HEADER = MAGIC + b"\0\0\0\1\0\0\0\1"
COMPRESSED = [CompressionType.GZIP, CompressionType.SNAPPY]


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def block(data: bytes) -> bytes:
    packed = raw_snappy(data)
    return len(packed).to_bytes(4, "big") + packed


def member(data: bytes, *, flags: int = 0, extra: bytes = b"", trailer: bytes | None = None, level: int = -1) -> bytes:
    """A gzip member, written field by field (RFC 1952)."""
    packer = zlib.compressobj(level, wbits=-15)
    body = packer.compress(data) + packer.flush()
    if trailer is None:
        trailer = struct.pack("<II", zlib.crc32(data), len(data))
    return b"\x1f\x8b\x08" + bytes([flags]) + b"\0\0\0\0\0\xff" + extra + body + trailer


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(data=st.binary(max_size=300))
@example(data=b"")
@example(data=b"a" * 100_000)
def test_round_trip(compression: CompressionType, data: bytes) -> None:
    packed = compress(compression, data)
    assert decompress(compression, packed, len(data)) == data
    assert decompress(compression, memoryview(packed), len(data)) == data


@pytest.mark.parametrize("compression", [CompressionType.LZ4, CompressionType.ZSTD])
def test_types_of_later_brokers_are_refused(compression: CompressionType) -> None:
    with pytest.raises(ConfigError, match=f"0.7 has no {compression.name.lower()} compression: choose none"):
        compress(compression, b"x")
    with pytest.raises(CompressionError, match=f"0.7 has no {compression.name.lower()} compression"):
        decompress(compression, b"x", 100)


def test_gzip_is_emitted_without_name_or_time() -> None:
    packed = compress(CompressionType.GZIP, b"abc")
    assert packed[:8] == b"\x1f\x8b\x08\0\0\0\0\0"
    assert gzip.decompress(packed) == b"abc"


def test_snappy_is_emitted_in_xerial_framing_with_32_kib_blocks() -> None:
    packed = compress(CompressionType.SNAPPY, b"a" * 40000)
    assert packed[:16] == HEADER
    assert packed[20:23] == bytes.fromhex("808002")  # 32768; specification App. C
    assert compress(CompressionType.SNAPPY, b"") == HEADER


def test_case_36_xerial_and_raw_snappy_both_decode() -> None:
    data = b"a" * 40000
    framed = compress(CompressionType.SNAPPY, data)
    assert framed.count(b"\x80\x80\x02") == 1  # the first block declares 32768 bytes, the second the rest
    assert decompress(CompressionType.SNAPPY, framed, 40000) == data
    assert decompress(CompressionType.SNAPPY, raw_snappy(data), 40000) == data


# ---- gzip, as GZIPInputStream reads it ----------------------------------------------------------------------

FULL = 2 | 4 | 8 | 16


def full_header(data: bytes, *, crc_off_by: int = 0) -> bytes:
    """A member with every optional field."""
    fields = b"\3\0xyz" + b"name\0" + b"comment\0"
    crc = (zlib.crc32(b"\x1f\x8b\x08" + bytes([FULL]) + b"\0\0\0\0\0\xff" + fields) + crc_off_by) & 0xFFFF
    return member(data, flags=FULL, extra=fields + struct.pack("<H", crc))


ACCEPTED_GZIP: dict[str, tuple[bytes, bytes]] = {
    "two members": (member(b"one") + member(b"two"), b"onetwo"),
    "an empty member in between": (member(b"one") + member(b"") + member(b"two"), b"onetwo"),
    "reserved flags": (member(b"one", flags=0xE0), b"one"),
    "text flag": (member(b"one", flags=1), b"one"),
    "every optional field": (full_header(b"one"), b"one"),
    "a full header in the second member": (member(b"one") + full_header(b"two"), b"onetwo"),
    "trailing garbage": (member(b"one") + b"garbage" * 9, b"one"),
    "trailing zeros": (member(b"one") + bytes(100), b"one"),
    "a trailing magic alone": (member(b"one") + b"\x1f\x8b" * 20, b"one"),
    "a second header that is cut": (member(b"one") + b"\x1f\x8b\x08\x08" + b"x" * 40, b"one"),
    "a second header with a bad CRC": (member(b"one") + full_header(b"two", crc_off_by=1), b"one"),
    "18 bytes behind the trailer are not looked at": (
        member(b"one") + b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + bytes(8),
        b"one",
    ),
}
REFUSED_GZIP: dict[str, bytes] = {
    "nothing": b"",
    "not gzip": b"plain text, and a lot of it",
    "another method": b"\x1f\x8b\x07" + member(b"one")[3:],
    "a cut header": b"\x1f\x8b\x08\0\0\0\0\0\0",
    "no deflate data": member(b"")[:10],
    "a cut extra field": b"\x1f\x8b\x08\4\0\0\0\0\0\xff\x09\0abc",
    "an extra field without its length": b"\x1f\x8b\x08\4\0\0\0\0\0\xff\x09",
    "a name without its end": member(b"one", flags=8).replace(b"\0", b"\1")[:3] + b"\x08\1\1\1\1\1\1abc",
    "a cut header CRC": b"\x1f\x8b\x08\2\0\0\0\0\0\xff\0",
    "a bad header CRC": full_header(b"one", crc_off_by=1),
    "a bad CRC": member(b"one", trailer=struct.pack("<II", 0, 3)),
    "a bad length": member(b"one", trailer=struct.pack("<II", zlib.crc32(b"one"), 4)),
    "no trailer": member(b"one", trailer=b""),
    "a cut trailer": member(b"one")[:-1],
    "a cut body": member(bytes(range(200)))[:60],
    "a bad block type": b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x07" + bytes(9),
    "a second member with a bad CRC": member(b"one") + member(b"two", trailer=bytes(8)),
    "a second member without deflate data": member(b"one") + member(b"", flags=1, trailer=b"x" * 20),
}


@pytest.mark.parametrize("name", ACCEPTED_GZIP)
def test_gzip_the_broker_accepts(name: str) -> None:
    packed, data = ACCEPTED_GZIP[name]
    assert decompress(CompressionType.GZIP, packed, 100) == data


@pytest.mark.parametrize("name", REFUSED_GZIP)
def test_gzip_the_broker_refuses(name: str) -> None:
    with pytest.raises(CompressionError) as caught:
        decompress(CompressionType.GZIP, REFUSED_GZIP[name], 100)
    assert not isinstance(caught.value, DecompressedTooLarge)


@pytest.mark.parametrize(("left", "behind"), [(26, b""), (27, b"two")])
def test_a_further_member_is_seen_only_with_more_than_26_bytes_of_the_fill_left(left: int, behind: bytes) -> None:
    """GZIPInputStream fills 512 bytes at a time and asks available(), which is always 0 in the broker."""
    plain = b"a" * (512 - left - 5)  # one stored block: 5 bytes of header
    first = member(plain, level=0)
    assert len(first) == 10 + 512 - left + 8
    assert decompress(CompressionType.GZIP, first + member(b"two"), 1000) == plain + behind


def test_a_member_whose_header_lies_beyond_the_fill_goes_on_behind_it() -> None:
    plain = b"a" * (512 - 30 - 5)
    second = member(b"two", flags=8, extra=b"n" * 700 + b"\0")
    assert decompress(CompressionType.GZIP, member(plain, level=0) + second, 1000) == plain + b"two"


def fill_by_fill(data: bytes) -> bytes | None:
    """GZIPInputStream in its own words: 512 bytes at a time, available() always 0. None where it throws.

    Headers have no optional fields but names here.
    """
    out, pos, filled = b"", 0, 0
    while True:
        head = data[pos : pos + 10]
        if head[:3] != b"\x1f\x8b\x08" or len(head) < 10 or (head[3] and 0 not in data[pos + 10 :]):
            return out if pos else None
        pos = data.index(0, pos + 10) + 1 if head[3] else pos + 10
        filled = max(filled, pos)
        inflate, plain = zlib.decompressobj(-15), bytearray()
        while not inflate.eof:
            if pos == filled:
                filled = min(pos + 512, len(data))
            if pos == filled:
                return None
            plain += inflate.decompress(data[pos:filled])
            pos = filled - len(inflate.unused_data)
        if data[pos : pos + 8] != struct.pack("<II", zlib.crc32(plain), len(plain)):
            return None
        out, pos = out + plain, pos + 8
        if filled - pos <= 18:
            return out


@given(
    members=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 40), st.integers(380, 520), st.integers(0, 3000), st.integers(30_000, 40_000)),
            st.sampled_from([0, 0, 3, 20, 480, 1500]),
        ),
        min_size=1,
        max_size=6,
    ),
    tail=st.binary(max_size=40),
    cut=st.integers(0, 30),
)
def test_members_are_found_as_fills_find_them(members: list[tuple[int, int]], tail: bytes, cut: int) -> None:
    packed = b""
    for size, name in members:
        field = b"n" * (name - 1) + b"\0" if name else b""
        packed += member(bytes(i % 251 for i in range(size)), flags=8 if name else 0, extra=field, level=0)
    for data in (packed, packed + tail, packed[: len(packed) - cut]):
        expected = fill_by_fill(data)
        if expected is None:
            with pytest.raises(CompressionError):
                decompress(CompressionType.GZIP, data, 1 << 20)
        else:
            assert decompress(CompressionType.GZIP, data, 1 << 20) == expected


@pytest.mark.parametrize("plain", [bytes(2_500_000), random.Random(3).randbytes(600_000)], ids=["small", "large"])
def test_long_members_come_out_whole(plain: bytes) -> None:
    """Longer than what zlib gives, or is given, at a time; the next one is seen or not, depending on where they end."""
    came_out = set()
    for name in range(1, 512, 17):
        second = member(plain, flags=8, extra=b"n" * name + b"\0")
        packed = member(b"one") + second + member(b"three", flags=8, extra=b"n" * 300 + b"\0")
        expected = fill_by_fill(packed)
        assert expected is not None
        assert decompress(CompressionType.GZIP, packed, 3_000_000) == expected
        came_out.add(len(expected) - len(plain))
    assert came_out == {3, 8}


# ---- snappy, as SnappyInputStream reads it ------------------------------------------------------------------

ACCEPTED_SNAPPY: dict[str, tuple[bytes, bytes]] = {
    "two blocks": (HEADER + block(b"one") + block(b"two"), b"onetwo"),
    "a bare header": (HEADER, b""),
    "other version numbers": (MAGIC + b"\0\0\0\2\0\0\0\7" + block(b"one"), b"one"),
    "version 0": (MAGIC + bytes(8) + block(b"one"), b"one"),
    "a block of nothing": (HEADER + block(b"") + block(b"one"), b"one"),
    "up to 3 stray bytes": (HEADER + block(b"one") + b"\0\0\1", b"one"),
    "another stream behind the first": (compress(CompressionType.SNAPPY, b"one") + HEADER + block(b"two"), b"onetwo"),
    "headers without blocks": (HEADER + HEADER + HEADER, b""),
    "what only starts like another header": (HEADER + block(b"one") + MAGIC[:4] + b"junk" * 3 + block(b"two"), b"one"),
    "raw": (raw_snappy(b"one and two"), b"one and two"),
    "raw, long": (raw_snappy(b"one and two " * 9), b"one and two " * 9),
    "raw nothing": (b"\0", b""),
    "a length in more bytes than it needs": (b"\x83\x80\x80\x80\x00\x08one", b"one"),
}
REFUSED_SNAPPY: dict[str, bytes] = {
    "nothing": b"",
    "a cut header": HEADER[:15],
    "a block of length 0": HEADER + block(b"one") + bytes(4),
    "a negative length": HEADER + block(b"one") + b"\xff\xff\xff\xfbabcde",
    "a cut block": HEADER + block(b"one")[:-1],
    "4 stray bytes": HEADER + block(b"one") + b"abcd",
    "another header that is cut": HEADER + block(b"one") + HEADER[:15],
    "another header of version 0": HEADER + block(b"one") + MAGIC + bytes(8),
    "a damaged block": HEADER + block(b"one").replace(b"\x08one", b"\xf9one"),
    "another magic": MAGIC.replace(b"Y", b"X") + HEADER[8:] + block(b"one"),
    "raw with trailing bytes": raw_snappy(b"one") + b"\0",
    "raw that declares too much": b"\x04\x08one",
    "raw that declares too little": b"\x02\x08one",
    "raw that declares far too much": b"\xff\xff\xff\xff\x07\x08one",
    "a length beyond an array": b"\xff\xff\xff\xff\x08\x08one",
    "a length that does not end": b"\x80\x80\x80\x80\x80\x00",
    "a length that is cut": b"\x80",
    "a copy from before the start": b"\x04\x0d\x05",
}


@pytest.mark.parametrize("name", ACCEPTED_SNAPPY)
def test_snappy_the_broker_accepts(name: str) -> None:
    packed, data = ACCEPTED_SNAPPY[name]
    assert decompress(CompressionType.SNAPPY, packed, 200) == data


@pytest.mark.parametrize("name", REFUSED_SNAPPY)
def test_snappy_the_broker_refuses(name: str) -> None:
    with pytest.raises(CompressionError) as caught:
        decompress(CompressionType.SNAPPY, REFUSED_SNAPPY[name], 200)
    assert not isinstance(caught.value, DecompressedTooLarge)


# ---- bounds -------------------------------------------------------------------------------------------------

# Members of 512 bytes with 20 bytes of name: each ends with enough of its fill left for the next one to be seen.
MEMBER_512 = member(bytes(469), flags=8, extra=b"n" * 19 + b"\0", level=0)

BOMBS: dict[str, tuple[CompressionType, Callable[[], bytes]]] = {
    "gzip": (CompressionType.GZIP, lambda: compress(CompressionType.GZIP, bytes(50 << 20))),
    "gzip members": (CompressionType.GZIP, lambda: MEMBER_512 * 1000),
    "snappy": (CompressionType.SNAPPY, lambda: compress(CompressionType.SNAPPY, bytes(50 << 20))),
    "raw snappy": (CompressionType.SNAPPY, lambda: raw_snappy(bytes(50 << 20))),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_stopped_at_the_limit(name: str) -> None:
    compression, make = BOMBS[name]
    bomb = make()
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge, match="more than 100000 bytes"):
            decompress(compression, bomb, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 400_000 + len(bomb)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", COMPRESSED)
def test_the_limit_itself_is_allowed(compression: CompressionType) -> None:
    packed = compress(compression, b"x" * 70_000)
    assert len(decompress(compression, packed, 70_000)) == 70_000
    with pytest.raises(DecompressedTooLarge):
        decompress(compression, packed, 69_999)


def test_many_small_members_take_linear_time() -> None:
    """A million bytes of members with names: quadratic work would take minutes."""
    assert len(MEMBER_512) == 512
    assert decompress(CompressionType.GZIP, MEMBER_512 * 2000, 1_000_000) == bytes(469 * 2000)
