"""Leaving compressed messages to `open`: nothing about the outcome depends on when it is called."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import allocation_of

from odradek.core.interfaces import DecoderOptions, LogDecoder
from odradek.errors import CorruptMessage
from odradek.types import Position, TopicPartition
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set

if TYPE_CHECKING:
    from tests.wire.conftest import Decode

    MakeEntry = Callable[..., bytes]
    MakeWrapper = Callable[[CompressionType, bytes], bytes]
    Shape = Callable[[int, str], tuple[object, ...]]

pytestmark = pytest.mark.usefixtures("engine")

PACKED = encode_set([b"one", b"two"], CompressionType.GZIP)


def decoder(corrupt: str = "fail", start: int = 0, limit: int = 1 << 20) -> MessageSetDecoder:
    options = DecoderOptions(
        max_message_bytes=limit, max_decompressed_bytes=9000, corrupt=corrupt, defer_decompression=True
    )
    return MessageSetDecoder(TopicPartition("t", 0, 1), Position(start), options)


def test_bytes_are_kept_from_the_first_compressed_message_on() -> None:
    d = decoder(start=100)
    _: LogDecoder = d  # the shape holds
    d.feed(memoryview(encode_set([b"plain"]) + PACKED + encode_set([b"behind"])))
    size = len(PACKED) + 16
    assert d.deferred_bytes == size
    assert (d.position, d.fetch_position, d.pending_bytes) == (100, 115 + size, 15 + size)
    assert list(d.take().values) == [b"plain"]
    assert (d.position, d.fetch_position, d.pending_bytes) == (115, 115 + size, size)
    d.feed(memoryview(PACKED)[:9])
    assert d.deferred_bytes == size + 9
    d.decompress_deferred()
    assert (d.deferred_bytes, d.position, d.fetch_position) == (0, 115, 115 + size + 9)
    columns = d.take()
    assert list(columns.values) == [b"one", b"two", b"behind"]
    assert list(columns.positions) == [115, 115, 115 + len(PACKED)]
    assert (d.position, d.pending_bytes) == (115 + size, 9)
    d.feed(memoryview(PACKED)[9:])
    assert d.deferred_bytes == len(PACKED)
    d.decompress_deferred()
    assert list(d.take().values) == [b"one", b"two"]


def test_a_compressed_message_counts_as_unopened_once_it_is_whole() -> None:
    d = decoder()
    for i in range(len(PACKED) - 1):
        d.feed(memoryview(PACKED)[i : i + 1])
        assert (d.deferred_bytes, d.pending_bytes, d.fetch_position) == (0, i + 1, i + 1)
        d.decompress_deferred()  # which changes nothing
    d.feed(memoryview(PACKED)[-1:])
    assert d.deferred_bytes == d.pending_bytes == d.fetch_position == len(PACKED)


def test_without_deferring_nothing_is_ever_unopened() -> None:
    d = MessageSetDecoder(TopicPartition("t", 0, 1), Position(0), DecoderOptions())
    d.feed(memoryview(PACKED))
    assert d.deferred_bytes == 0
    d.decompress_deferred()
    assert list(d.take().values) == [b"one", b"two"]


def test_a_reset_forgets_what_is_unopened() -> None:
    d = decoder()
    d.feed(memoryview(PACKED * 2))
    d.reset(Position(7))
    assert (d.deferred_bytes, d.pending_bytes, d.position, d.fetch_position) == (0, 0, 7, 7)
    d.decompress_deferred()
    assert list(d.take().values) == []
    d.feed(memoryview(PACKED))
    d.decompress_deferred()
    assert list(d.take().positions) == [7, 7]


def test_another_thread_may_decompress() -> None:
    d = decoder()
    d.feed(memoryview(encode_set([b"plain"]) + PACKED * 3))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(d.decompress_deferred).result()
    assert list(d.take().values) == [b"plain", *[b"one", b"two"] * 3]


def test_damage_is_found_when_it_is_opened(entry: MakeEntry, corrupt_message: Shape) -> None:
    d = decoder()
    d.feed(memoryview(PACKED + entry(b"junk", attributes=1) + PACKED))
    assert d.error is None
    d.decompress_deferred()
    assert list(d.take().values) == [b"one", b"two"]
    assert isinstance(d.error, CorruptMessage)
    assert (type(d.error), *d.error.args) == corrupt_message(len(PACKED), "not in gzip format")
    assert (d.deferred_bytes, d.pending_bytes, d.fetch_position) == (0, 0, len(PACKED))
    d.feed(memoryview(PACKED))
    d.decompress_deferred()
    assert list(d.take().values) == []


@pytest.mark.parametrize("corrupt", ["fail", "skip", "raw"])
@given(data=st.data())
def test_rows_positions_and_errors_are_those_without_deferring(
    corrupt: str, data: st.DataObject, any_log: st.SearchStrategy[bytes], decode: Decode
) -> None:
    stream = data.draw(any_log)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    opens = data.draw(st.lists(st.booleans(), min_size=len(cuts) + 1, max_size=len(cuts) + 1))
    options = DecoderOptions(max_message_bytes=300, max_decompressed_bytes=9000, corrupt=corrupt)
    expected = decode(stream, options=options, start=1000)
    d = decoder(corrupt, 1000, limit=300)
    rows: list[tuple[object, ...]] = []
    broken: dict[int, tuple[object, ...]] = {}

    def take() -> None:
        columns = d.take()
        broken.update((len(rows) + row, (type(error), *error.args)) for row, error in columns.corrupt.items())
        inner = columns.inner_indexes or [0] * len(columns.values)
        rows.extend(zip(columns.values, columns.positions, columns.next_positions, inner, strict=True))

    for (a, b), opening in zip(pairwise([0, *cuts, len(stream)]), opens, strict=True):
        d.feed(memoryview(stream)[a:b])
        assert d.error or d.fetch_position == 1000 + b
        assert d.deferred_bytes <= d.pending_bytes
        if opening:
            d.decompress_deferred()
            assert d.deferred_bytes == 0
            take()
    d.decompress_deferred()
    take()
    c = expected.columns
    inner = c.inner_indexes or [0] * len(c.values)
    assert rows == list(zip(c.values, c.positions, c.next_positions, inner, strict=True))
    assert broken == expected.corrupt
    assert (() if d.error is None else (type(d.error), *d.error.args)) == expected.error
    assert [(type(report), *report.args) for report in d.take_reports()] == expected.reports
    assert (d.position, d.fetch_position) == (expected.position, expected.fetch_position)


def test_what_is_kept_takes_the_memory_it_counts(wrapper: MakeWrapper) -> None:
    """However small the pieces."""
    noise = b"".join(crc32(bytes([i % 251, i // 251])).to_bytes(4, "big") for i in range(25_000))
    log = memoryview(PACKED + wrapper(CompressionType.SNAPPY, encode_set([noise])))

    def feed_bytes(log: memoryview) -> None:
        d = decoder()
        for i in range(len(log)):
            d.feed(log[i : i + 1])
        assert d.deferred_bytes == len(log)

    assert allocation_of(feed_bytes, log) < 1.5 * len(log) + 10_000
