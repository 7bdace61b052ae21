"""What the embedded broker takes for a valid message set; the rest is in the recorded corpus."""

from __future__ import annotations

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.testing.kafka07 import validate
from odradek.testing.kafka07.validate import InvalidSet, PayloadTooLarge, ValidSet, check_set
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.compression import compress
from odradek.wire.kafka07.message_set import encode_set


def entry(payload: bytes, *, magic: int = 1, attributes: int = 0, crc: int | None = None) -> bytes:
    head = bytes([magic, attributes]) if magic else b"\0"
    body = head + struct.pack(">I", crc32(payload) if crc is None else crc) + payload
    return struct.pack(">i", len(body)) + body


def wrapped(inner: bytes, compression: CompressionType, depth: int = 1) -> bytes:
    for _ in range(depth):
        inner = entry(compress(compression, inner), attributes=compression)
    return inner


GOOD, LARGE, BAD = entry(b"good"), entry(b"x" * 11), entry(b"bad", crc=0)
LIMIT = 10


def test_whichever_is_wrong_first_decides() -> None:
    with pytest.raises(PayloadTooLarge):
        check_set(GOOD + LARGE + BAD, LIMIT)
    with pytest.raises(InvalidSet):
        check_set(GOOD + BAD + LARGE, LIMIT)


@pytest.mark.parametrize("magic", [0, 1])
def test_the_limit_is_of_the_payload_whatever_the_magic(magic: int) -> None:
    data = entry(b"x" * LIMIT, magic=magic)
    assert check_set(data * 2, LIMIT) == ValidSet(2 * len(data), 2)
    with pytest.raises(PayloadTooLarge):
        check_set(data + entry(b"x" * (LIMIT + 1), magic=magic), LIMIT)


@pytest.mark.parametrize("compression", [CompressionType.GZIP, CompressionType.SNAPPY])
def test_messages_inside_wrappers_count_and_may_be_of_any_size(compression: CompressionType) -> None:
    inner = GOOD + entry(b"y" * 5000, magic=0) + wrapped(GOOD, compression)
    data = wrapped(inner, compression, depth=3) + GOOD
    assert check_set(data, 200) == ValidSet(len(data), 4)


@pytest.mark.parametrize("inner", [BAD, entry(b"", attributes=3), b"\xff\xff\xff\xff", GOOD[:-1]])
def test_what_is_wrong_inside_a_wrapper_closes(inner: bytes) -> None:
    with pytest.raises(InvalidSet):
        check_set(GOOD + wrapped(inner, CompressionType.GZIP), LIMIT * 100)


def test_a_bomb_ends_at_the_bound_of_the_whole_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "MAX_DECOMPRESSED", 100_000)
    one = wrapped(entry(bytes(60_000)), CompressionType.GZIP)
    assert check_set(one, 10_000).messages == 1
    with pytest.raises(InvalidSet, match="decompress"):
        check_set(one + one, 10_000)


def test_nesting_is_not_limited_by_the_interpreter() -> None:
    assert check_set(wrapped(GOOD, CompressionType.GZIP, depth=1500), 1 << 20).messages == 1


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 8), st.binary(max_size=3))
def test_a_cut_tail_is_left_out(values: list[bytes], cut: int, stray: bytes) -> None:
    whole = encode_set(values)
    last = encode_set([b"12345678"])[: -cut - 1]
    assert check_set(whole + stray, 1000) == ValidSet(len(whole), len(values))
    if values:
        assert check_set(whole + last, 1000) == ValidSet(len(whole), len(values))


@given(st.binary(max_size=60))
def test_hostile_bytes_are_judged_not_crashed_on(data: bytes) -> None:
    try:
        valid = check_set(GOOD + data, 1000)
    except InvalidSet:
        return
    assert len(GOOD) <= valid.valid_bytes <= len(GOOD + data)
