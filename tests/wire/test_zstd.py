"""Frames of Zstandard: what bounds their content, and what other writers make."""

from __future__ import annotations

import cramjam
import pytest

from odradek.wire.compression import CompressionError, DecompressedTooLarge
from odradek.wire.zstd import compress, decompress

MIB = 1 << 20
TEXT = b"What is written here is written here again. " * 9


def streamed(data: bytes) -> bytes:
    """Return a frame without a content size, as writers make it that do not know the end."""
    compressor = cramjam.zstd.Compressor()
    for start in range(0, len(data), 1000):
        compressor.compress(data[start : start + 1000])
    return bytes(compressor.finish())


@pytest.mark.parametrize("data", [b"", b"x", TEXT, TEXT * 2000, bytes(5 * MIB)])
def test_frames_hold_what_was_compressed_whether_they_declare_its_size_or_not(data: bytes) -> None:
    for frame in (compress(data), streamed(data)):
        assert decompress(memoryview(frame), len(data)) == data
        assert decompress(memoryview(frame), 100 * MIB) == data
        if data:
            with pytest.raises(DecompressedTooLarge):
                decompress(memoryview(frame), len(data) - 1)


def test_frames_to_skip_hold_nothing() -> None:
    skipped = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"hello"
    data = compress(b"one") + skipped + streamed(b"two")
    assert decompress(memoryview(data), MIB) == b"onetwo"


def test_a_declared_size_counts_only_below_what_the_blocks_can_hold() -> None:
    frame = bytearray(compress(TEXT))
    assert frame[4] >> 6 == 1, "a size of two bytes"
    frame[5:7] = b"\xff\xff"
    with pytest.raises(CompressionError):
        decompress(memoryview(frame), MIB)


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 6, 8, 9, 12])
def test_cut_frames_are_refused(cut: int) -> None:
    with pytest.raises(CompressionError):
        decompress(memoryview(compress(TEXT)[:cut]), MIB)


def test_bytes_that_are_no_frame_are_refused() -> None:
    for data in (b"no frame at all", bytes(100)):
        with pytest.raises(CompressionError, match="damaged data"):
            decompress(memoryview(data), MIB)
