"""Frames of LZ4: Kafka's rules for reading them (specification 3.4)."""

from __future__ import annotations

import random
import tracemalloc

import cramjam
import pytest

from odradek.wire.compression import CompressionError, DecompressedTooLarge
from odradek.wire.lz4 import compress, decompress

MIB = 1 << 20
TEXT = b"What is written here is written here again. " * 9


@pytest.mark.parametrize("data", [b"", b"x", TEXT, TEXT * 900, random.Random(5).randbytes(200_000)])
def test_frames_hold_what_was_compressed(data: bytes) -> None:
    frame = compress(data)
    assert decompress(memoryview(frame), len(data)) == data
    assert bytes(cramjam.lz4.decompress(frame)) == data
    if data:
        with pytest.raises(DecompressedTooLarge):
            decompress(memoryview(frame), len(data) - 1)


def test_the_old_header_checksum_is_read_only_where_it_is_not_checked() -> None:
    frame = compress(TEXT, hash_magic=True)
    assert decompress(memoryview(frame), MIB, check_header=False) == TEXT
    with pytest.raises(CompressionError, match="header's checksum does not match"):
        decompress(memoryview(frame), MIB)


def changed(at: int, value: int) -> bytes:
    frame = bytearray(compress(TEXT))
    frame[at] = value
    return bytes(frame)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "frame is cut"),
        (compress(TEXT)[:5], "not in lz4 format"),
        (changed(0, 5), "not in lz4 format"),
        (changed(4, 0x40), "linked blocks"),
        (changed(4, 0xA0), "which mean nothing"),
        (changed(5, 0xC0), "which mean nothing"),
        (changed(6, 0), "header's checksum"),
        (changed(9, 9), "an lz4 block of"),
        (changed(11, 0xFF), "in an lz4 block"),
        (compress(TEXT)[:-4], "frame is cut"),
    ],
)
def test_frames_that_kafka_refuses_are_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(CompressionError, match=reason):
        decompress(memoryview(frame), MIB)


def test_content_size_and_checksums_are_skipped_and_what_follows_the_end_is_ignored() -> None:
    plain = compress(TEXT)
    block = plain[7:-4]
    sized = b"\x04\x22\x4d\x18\x6c\x40" + len(TEXT).to_bytes(8, "little") + b"\0" + block + bytes(4) + b"abcd" + b"more"
    assert decompress(memoryview(sized), MIB, check_header=False) == TEXT
    checked = b"\x04\x22\x4d\x18\x70\x40\0" + block + b"abcd" + bytes(4)
    assert decompress(memoryview(checked), MIB, check_header=False) == TEXT
    with pytest.raises(CompressionError, match="is cut"):
        decompress(memoryview(sized[:-6]), MIB, check_header=False)


def test_a_little_block_never_makes_a_large_buffer() -> None:
    frame = b"\x04\x22\x4d\x18\x60\x70\0" + (1).to_bytes(4, "little") + b"\0" + bytes(4)
    assert decompress(memoryview(frame), MIB, check_header=False) == b""


@pytest.mark.parametrize("block", [b"\x01\0\0\x80a", b"\x01\0\0\0\0"])  # a byte that is stored, and nothing
def test_many_little_blocks_take_no_more_memory_than_their_frame(block: bytes) -> None:
    count = 100_000
    frame = compress(TEXT)[:-4] + block * count + compress(TEXT)[7:]
    content = TEXT + b"a" * (count if block.endswith(b"a") else 0) + TEXT
    decompress(memoryview(compress(TEXT)), MIB)  # imports what it needs
    tracemalloc.start()
    try:
        assert decompress(memoryview(frame), MIB) == content
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    with pytest.raises(DecompressedTooLarge):
        decompress(memoryview(frame), len(content) - 1)
    with pytest.raises(CompressionError, match="frame is cut"):
        decompress(memoryview(frame[:-1]), MIB)
