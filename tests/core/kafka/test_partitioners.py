"""Partitioners: hashes that must never change, and even spread without a key."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.kafka.partitioners import Murmur2, StickyChoice, UniformChoice, murmur2, positive
from odradek.errors import ConfigError


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


def test_sticky_stays_until_the_batch_is_complete() -> None:
    choice = StickyChoice(random.Random(1).randrange)
    first = choice.current("t", [0, 1, 2])
    assert {choice.current("t", [0, 1, 2]) for _ in range(20)} == {first}
    choice.batch_complete("t", first, [0, 1, 2])
    assert choice.current("t", [0, 1, 2]) != first


def test_a_batch_of_another_partition_does_not_move_sticky() -> None:
    choice = StickyChoice(random.Random(1).randrange)
    first = choice.current("t", [0, 1, 2])
    choice.batch_complete("t", first + 1, [0, 1, 2])
    assert choice.current("t", [0, 1, 2]) == first


def test_sticky_leaves_a_partition_without_a_leader() -> None:
    choice = StickyChoice(random.Random(1).randrange)
    first = choice.current("t", [0, 1])
    assert choice.current("t", [1 - first]) == 1 - first


def test_sticky_stays_where_there_is_only_one_partition() -> None:
    choice = StickyChoice(random.Random(1).randrange)
    assert choice.current("t", [5]) == 5
    choice.batch_complete("t", 5, [5])
    assert choice.current("t", [5]) == 5


def test_uniform_moves_on_after_so_many_bytes() -> None:
    picks = iter([0, 1, 0])
    choice = UniformChoice(100, lambda _: next(picks))
    assert choice.current("t", [7, 8]) == 7
    choice.appended("t", 99, [7, 8])
    assert choice.current("t", [7, 8]) == 7
    choice.appended("t", 1, [7, 8])
    assert choice.current("t", [7, 8]) == 8


def test_uniform_draws_partitions_with_long_queues_less_often() -> None:
    choice = UniformChoice(1, random.Random(7).randrange)
    choice.update_queues("t", {0: 3, 1: 0})
    drawn: Counter[int] = Counter()
    for _ in range(1000):
        drawn[choice.current("t", [0, 1])] += 1
        choice.appended("t", 1, [0, 1])
    assert 120 < drawn[0] < 280  # weights 1 and 4


def test_queues_of_other_partitions_do_not_count() -> None:
    choice = UniformChoice(1, lambda n: n - 1)
    choice.update_queues("t", {0: 3, 1: 0, 2: 0})
    assert choice.current("t", [0, 1]) == 1
    assert choice.current("t", [0]) == 0  # partition 1 lost its leader


@pytest.mark.parametrize("choice", [StickyChoice(lambda n: 0), UniformChoice(1, lambda n: 0)])
def test_a_topic_without_a_leader_is_refused_in_words(choice: StickyChoice | UniformChoice) -> None:
    with pytest.raises(ConfigError, match="no partition has a leader"):
        choice.current("t", [])
