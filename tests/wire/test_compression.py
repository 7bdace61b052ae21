"""Every compression type: round trips, what other writers make, damage, and the bounds."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import cramjam
import pytest
import snappy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.wire import lz4
from odradek.wire.compression import (
    LEVELS,
    Compression,
    CompressionError,
    CompressionType,
    DecompressedTooLarge,
    compress,
    decompress,
    parse_compression,
)

COMPRESSED = [compression for compression in CompressionType if compression]


@pytest.mark.parametrize("compression", CompressionType)
@given(data=st.binary(max_size=300))
@example(data=b"")
@example(data=b"a" * 100_000)
def test_round_trip(compression: CompressionType, data: bytes) -> None:
    packed = compress(compression, data)
    assert decompress(compression, packed, len(data)) == data
    assert decompress(compression, memoryview(packed), len(data) + 1) == data


def test_types_have_the_numbers_and_names_of_the_protocol() -> None:
    names = ["none", "gzip", "snappy", "lz4", "zstd"]
    assert [CompressionType.named(name) for name in names] == [0, 1, 2, 3, 4]
    for unknown in ("brotli", "GZIP", ""):
        with pytest.raises(ConfigError, match="choose one of none, gzip, snappy, lz4, zstd"):
            CompressionType.named(unknown)


@pytest.mark.parametrize(
    ("compression", "level"),
    [(kind, level) for kind, levels in LEVELS.items() for level in {*levels[:1], *levels[-20:]}],
)
@given(data=st.binary(max_size=200))
@example(data=b"some text, and again some text" * 5000)
@settings(max_examples=5)
def test_round_trip_at_each_level(compression: CompressionType, level: int, data: bytes) -> None:
    assert decompress(compression, compress(compression, data, level), len(data)) == data


@pytest.mark.parametrize("compression", LEVELS)
def test_the_highest_level_makes_less_of_it_than_the_lowest_and_none_is_the_usual_one(
    compression: CompressionType,
) -> None:
    data = b"".join(b"%d %d;" % (n * n % 1009, n * 7919 % 100_003) for n in range(20_000))
    highest, lowest = (compress(compression, data, LEVELS[compression][at]) for at in (-1, 0))
    assert len(highest) < len(lowest)
    usual = {
        CompressionType.GZIP: lambda: compress(compression, data, 6),
        CompressionType.ZSTD: lambda: compress(compression, data, 3),
        CompressionType.LZ4: lambda: lz4.compress(data),
    }[compression]()
    assert compress(compression, data) == compress(compression, data, None) == usual


def test_lz4_of_a_level_has_the_header_that_its_format_asks_for() -> None:
    """0.8 and 0.9 hash the magic number, too, and refuse frames without that mistake."""
    data = b"some text, and again some text" * 100
    right, wrong = (lz4.compress(data, 9, hash_magic=wrong) for wrong in (False, True))
    assert right[:6] + right[7:] == wrong[:6] + wrong[7:] and right[6] != wrong[6]
    assert lz4.decompress(memoryview(wrong), len(data), check_header=False) == data
    with pytest.raises(CompressionError, match="checksum"):
        lz4.decompress(memoryview(wrong), len(data))


def test_names_may_have_a_level() -> None:
    assert parse_compression("zstd") == Compression(CompressionType.ZSTD, None)
    assert parse_compression("zstd:-7") == Compression(CompressionType.ZSTD, -7)
    assert parse_compression("gzip:9") == Compression(CompressionType.GZIP, 9)
    assert parse_compression("none") == Compression(CompressionType.NONE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gzip:0", "levels of gzip are 1 to 9, as in gzip:9"),
        ("gzip:10", "levels of gzip are 1 to 9"),
        ("lz4:18", "levels of lz4 are 1 to 17"),
        ("zstd:23", "levels of zstd are -131072 to 22"),
        ("zstd:-131073", "levels of zstd"),
        ("zstd:9999999999", "levels of zstd"),
        ("zstd:", "levels of zstd"),
        ("zstd:+3", "levels of zstd"),
        ("zstd: 3", "levels of zstd"),
        ("zstd:\u0663", "levels of zstd"),
        ("snappy:1", "snappy has no levels; gzip and lz4 and zstd have"),
        ("none:1", "none has no levels"),
        ("brotli:1", "choose one of none, gzip, snappy, lz4, zstd"),
    ],
)
def test_a_level_that_there_is_not_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_compression(text)


@pytest.mark.parametrize(
    ("compression", "packed"),
    [
        (CompressionType.GZIP, gzip.compress(b"one") + gzip.compress(b"two")),
        (CompressionType.GZIP, gzip.compress(b"onetwo") + b"garbage"),
        (CompressionType.SNAPPY, snappy.compress(b"onetwo")),
        (CompressionType.SNAPPY, compress(CompressionType.SNAPPY, b"one") + compress(CompressionType.SNAPPY, b"two")),
        (CompressionType.ZSTD, bytes(cramjam.zstd.compress(b"one")) + bytes(cramjam.zstd.compress(b"two"))),
        (CompressionType.LZ4, bytes.fromhex("04224d18604082060000806f6e6574776f00000000")),
    ],
    ids=["gzip members", "bytes after gzip", "raw snappy", "snappy streams", "zstd frames", "lz4 stored block"],
)
def test_what_other_writers_make_is_read(compression: CompressionType, packed: bytes) -> None:
    assert decompress(compression, packed, 100) == b"onetwo"


def test_every_gzip_member_is_read_however_short() -> None:
    """Unlike a 0.7 broker, which sees only those that begin in the buffer of the one before."""
    packed = b"".join(gzip.compress(b"%d" % n, mtime=0) for n in range(1000))
    assert decompress(CompressionType.GZIP, packed, 10_000) == b"".join(b"%d" % n for n in range(1000))


@pytest.mark.parametrize("compression", COMPRESSED)
def test_damage_is_an_error_of_its_own_kind(compression: CompressionType) -> None:
    packed = compress(compression, bytes(range(256)) * 4)
    for damaged in (b"", packed[: len(packed) // 2], b"\xff" + packed[1:], b"no such format at all"):
        with pytest.raises(CompressionError) as caught:
            decompress(compression, damaged, 1 << 20)
        assert not isinstance(caught.value, DecompressedTooLarge)


@pytest.mark.parametrize("compression", COMPRESSED)
@given(data=st.binary(max_size=60), size=st.integers(0, 1000))
def test_hostile_bytes_raise_nothing_else(compression: CompressionType, data: bytes, size: int) -> None:
    for packed in (data, compress(compression, b"x" * size)[:-1] + data, compress(compression, data)[:7] + data):
        try:
            assert len(decompress(compression, packed, 500)) <= 500
        except CompressionError as error:
            assert str(error)


@pytest.mark.parametrize("compression", CompressionType)
def test_the_limit_itself_is_allowed(compression: CompressionType) -> None:
    packed = compress(compression, b"x" * 70_000)
    assert len(decompress(compression, packed, 70_000)) == 70_000
    for limit in (69_999, 1, 0):
        with pytest.raises(DecompressedTooLarge, match=f"more than {limit} bytes"):
            decompress(compression, packed, limit)


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_bomb_is_stopped_at_the_limit(compression: CompressionType) -> None:
    bomb = compress(compression, bytes(50 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge, match="more than 100000 bytes"):
            decompress(compression, bomb, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 400_000 + len(bomb)
    finally:
        tracemalloc.stop()


def test_gzip_has_neither_name_nor_time() -> None:
    packed = compress(CompressionType.GZIP, b"abc")
    assert packed[:8] == b"\x1f\x8b\x08\0\0\0\0\0" and zlib.decompress(packed, 31) == b"abc"
