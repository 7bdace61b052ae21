"""Partitioners: golden values that must never change, and what none of them may do."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.kafka.partitioners import Murmur2
from odradek.core.produce.partitioners import (
    JavaHash,
    KeyHash,
    Partitioner,
    RandomPartitioner,
    RoundRobin,
    java_string_hash,
)
from odradek.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "count", "index"),
    [
        (b"", 7, 0),
        (b"one", 7, 0x7A6C86F1 % 7),  # CRC-32 samples of specification appendix C
        (b"two", 5, 0x11CA8A66 % 5),
        (b"hello", 1000, 0x3610A686 % 1000),
        (b"a", 4, 3),
        (b"\xff\x00\xfe", 11, 7),
    ],
)
def test_key_hash_is_crc32_for_ever(key: bytes, count: int, index: int) -> None:
    assert KeyHash()("t", key, count) == index


def test_key_hash_is_the_same_in_another_process() -> None:
    code = (
        "from odradek.core.produce.partitioners import KeyHash; "
        "print([KeyHash()('t', str(n).encode(), 13) for n in range(50)])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert runs == {f"{[KeyHash()('t', str(n).encode(), 13) for n in range(50)]}\n"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 97 * 31 + 98),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),  # the well-known string whose hash is Integer.MIN_VALUE
        ("\u00e4", 228),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),  # two UTF-16 units
        ("\ud800", 0xD800),  # a lone surrogate is a char like any other
    ],
)
def test_java_string_hash(text: str, value: int) -> None:
    assert java_string_hash(text) == value


@pytest.mark.parametrize(
    ("key", "count", "index"),
    [
        (b"hello", 10, 2),
        (b"polygenelubricants", 8, 0),  # Int.MinValue: the JVM agrees where count divides 2^31
        (b"polygenelubricants", 7, 2**31 % 7),  # and refuses the record elsewhere
        (b"Aa", 4, ord("A") * 31 + ord("a") & 3),
        (b"BB", 4, ord("A") * 31 + ord("a") & 3),  # "Aa" and "BB" collide
        ("zz\u00fc\U0001f600".encode(), 1000, abs(java_string_hash("zz\u00fc\U0001f600")) % 1000),
    ],
)
def test_java_hash_is_that_of_the_scala_partitioner(key: bytes, count: int, index: int) -> None:
    assert JavaHash()("t", key, count) == index


def test_keys_that_are_not_utf8_have_a_java_partition_too() -> None:
    assert JavaHash()("t", b"\xff", 5) == 0xFFFD % 5


@pytest.mark.parametrize("partitioner", [KeyHash(), JavaHash(), Murmur2()])
def test_no_key_is_no_preference(partitioner: Partitioner) -> None:
    assert partitioner("t", None, 5) is None


@given(key=st.none() | st.binary(max_size=30), count=st.integers(1, 1000), seed=st.integers(0, 9))
def test_an_index_is_always_one_of_the_partitions(key: bytes | None, count: int, seed: int) -> None:
    for partitioner in (KeyHash(), JavaHash(), RandomPartitioner(random.Random(seed).randrange), RoundRobin()):
        index = partitioner("t", key, count)
        assert index is None or 0 <= index < count


def test_random_is_uniform_whatever_the_key() -> None:
    partitioner = RandomPartitioner(random.Random(7).randrange)
    counts = [0, 0, 0]
    for _ in range(3000):
        index = partitioner("t", b"always the same", 3)
        assert index is not None
        counts[index] += 1
    assert all(900 < count < 1100 for count in counts)


def test_round_robin_goes_round_for_each_topic_by_itself() -> None:
    partitioner = RoundRobin()
    assert [partitioner("t", None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert [partitioner("u", b"k", 2) for _ in range(3)] == [0, 1, 0]
    assert partitioner("t", None, 2) == 0  # the fifth, of two partitions now


@pytest.mark.parametrize(
    "partitioner", [KeyHash(), JavaHash(), Murmur2(), RandomPartitioner(random.Random(7).randrange), RoundRobin()]
)
def test_without_partitions_the_error_names_the_count(partitioner: Partitioner) -> None:
    with pytest.raises(ConfigError, match="count=0"):
        partitioner("t", b"key", 0)


@pytest.mark.parametrize("partitioner", [KeyHash(), JavaHash(), Murmur2()])
def test_a_key_that_is_not_bytes_is_named_in_the_error(partitioner: Partitioner) -> None:
    key: Any = 7
    with pytest.raises(TypeError, match="key"):
        partitioner("t", key, 3)


def test_an_error_of_the_randomness_itself_is_raised_as_it_is() -> None:
    def broken(count: int) -> int:
        raise RuntimeError("no entropy")

    with pytest.raises(RuntimeError, match="no entropy"):
        RandomPartitioner(broken)("t", b"key", 3)
