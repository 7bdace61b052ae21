"""Partitioners: hashes that must never change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.kafka.partitioners import Murmur2, murmur2, positive


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # The values that Kafka's own tests hold on to.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_murmur2_is_javas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_key_always_goes_to_the_same_existing_partition(key: bytes, count: int) -> None:
    chosen = Murmur2()("t", key, count)
    assert chosen == Murmur2()("other", key, count)
    assert chosen is not None and 0 <= chosen < count


def test_a_negative_hash_loses_its_sign_bit_instead_of_its_sign() -> None:
    assert positive(-1) == 0x7FFFFFFF
    assert positive(-(2**31)) == 0


def test_a_record_without_a_key_has_no_preference() -> None:
    assert Murmur2()("t", None, 3) is None
