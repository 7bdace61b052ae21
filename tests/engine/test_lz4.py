"""Blocks of LZ4 frames: what they hold, and within which limits. cramjam has compressed them."""

from __future__ import annotations

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek import engine as engines
from odradek.engine import Engine

BLOCK = 1 << 16
contents = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 3000)).map(lambda pair: (pair[0] * pair[1])[:BLOCK]),
)


def packed(content: bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(content, store_size=False))


@settings(deadline=None)
@given(parts=st.lists(st.tuples(contents, st.booleans()), max_size=5))
def test_blocks_are_joined_whether_compressed_or_not(parts: list[tuple[bytes, bool]]) -> None:
    whole = b"".join(content for content, _ in parts)
    blocks = [
        (memoryview(content if is_stored else packed(content)), is_stored, len(content) if is_stored else BLOCK)
        for content, is_stored in parts
    ]
    for name in engines.ENGINES:
        engine = engines.engine(name)
        got = engine.lz4_content(blocks, len(whole))
        assert memoryview(got).readonly
        assert got == whole
        if whole:
            with pytest.raises(OverflowError):
                engine.lz4_content(blocks, len(whole) - 1)


@settings(deadline=None)
@given(content=contents.filter(len), changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4))
def test_any_bytes_hold_something_within_the_limit_or_are_refused(
    content: bytes, changes: list[tuple[int, int]]
) -> None:
    damaged = bytearray(packed(content))
    for at, byte in changes:
        damaged[at % len(damaged)] = byte
    for name in engines.ENGINES:
        try:
            got = engines.engine(name).lz4_content([(damaged, False, 500)], BLOCK)
        except ValueError:
            continue
        assert len(got) <= 500


def test_a_block_may_not_hold_more_than_its_own_limit(engine: Engine) -> None:
    for bad in ((packed(b"a" * 100), False, 99), (b"ab", True, 1), (b"\xff", False, 100), (b"", False, 10)):
        with pytest.raises(ValueError, match="bad data"):
            engine.lz4_content([(b"good", True, 4), bad], BLOCK)


def test_the_first_bytes_of_a_block_are_never_taken_for_a_length(engine: Engine) -> None:
    literals = b"\x57\0\0\x57\0\x62\x57\0\x62"  # all but the first three are a block, too
    assert engine.lz4_content([(b"\x90" + literals, False, BLOCK)], BLOCK) == literals


def test_an_offset_of_zero_is_refused_by_the_compiled_engine_and_read_as_zeros_by_liblz4() -> None:
    block = (b"\x10a\0\0" + b"\x50after", False, 100)
    with pytest.raises(ValueError, match="bad data"):
        engines.engine("compiled").lz4_content([block], BLOCK)
    assert engines.engine("pure").lz4_content([block], BLOCK) == b"a\0\0\0\0after"


def test_memory_of_what_was_dropped_is_used_again() -> None:
    engine = engines.engine("compiled")
    blocks = [(packed(bytes(BLOCK)), False, BLOCK)] * 4
    got = engine.lz4_content(blocks, 1 << 20)
    kept = bytes(got)
    del got
    other = engine.lz4_content([(packed(b"\1" * BLOCK), False, BLOCK)] * 4, 1 << 20)
    assert (bytes(other), kept) == (b"\1" * 4 * BLOCK, bytes(4 * BLOCK))
