"""Epochs of what was read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.kafka.leader_epochs import MAX_SPANS, LeaderEpochs
from odradek.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([], {0: -1, 5: -1}),
        ([(0, 10, 3)], {0: -1, 1: 3, 10: 3, 11: -1, 100: -1}),
        ([(0, 10, 3), (10, 20, 3), (20, 30, 5)], {15: 3, 20: 3, 21: 5, 30: 5, 31: -1}),
        ([(0, 10, 3), (20, 30, 3)], {10: 3, 11: -1, 20: -1, 21: 3}),  # not read in between: perhaps of another epoch
        ([(20, 30, 5), (0, 10, 3)], {10: 3, 15: -1, 21: 5}),
        ([(20, 30, 5), (10, 20, 5), (0, 10, 3)], {10: 3, 11: 5}),
        ([(0, 10, 3), (20, 30, 3), (5, 25, 3)], {1: 3, 15: 3, 30: 3}),
        ([(10, 20, 5), (5, 12, 5)], {5: -1, 6: 5, 20: 5}),
        ([(100, 110, 5), (0, 10, 6)], {5: 6, 105: -1}),  # another log
        ([(0, 10, 5), (100, 110, 2)], {5: -1, 105: 2}),  # another log
        ([(0, 100, 3), (80, 90, 4)], {50: -1, 81: 4, 90: 4, 95: -1}),  # truncated at 80 or before
    ],
)
def test_a_position_has_the_epoch_of_the_record_right_before_it_or_none(
    reads: list[tuple[int, int, int]], expected: dict[int, int]
) -> None:
    epochs = LeaderEpochs()
    for first, behind, epoch in reads:
        epochs.record(A, first, behind, epoch)
    assert {position: epochs.before(A, position) for position in expected} == expected
    assert epochs.before(B, 1) == -1


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=20),
)
def test_whatever_is_read_of_a_log_no_position_gets_another_epoch_than_that_of_the_record_before_it(
    lengths: list[int], reads: list[tuple[int, int]]
) -> None:
    log = [epoch for epoch, length in enumerate(lengths) for _ in range(length)]
    epochs, read = LeaderEpochs(), set()
    for first, count in reads:
        for offset in range(first, min(first + count, len(log))):
            epochs.record(A, offset, offset + 1, log[offset])
            read.add(offset)
    for position in range(len(log) + 2):
        assert epochs.before(A, position) == (log[position - 1] if position - 1 in read else -1)


def test_only_the_last_parts_of_a_log_are_remembered() -> None:
    epochs = LeaderEpochs()
    for epoch in range(2 * MAX_SPANS):
        epochs.record(A, 10 * epoch, 10 * epoch + 10, epoch)
    assert epochs.before(A, 10 * MAX_SPANS) == -1
    assert epochs.before(A, 20 * MAX_SPANS) == 2 * MAX_SPANS - 1


def test_epochs_of_a_topic_that_was_made_again_are_forgotten_and_no_others() -> None:
    epochs, other = LeaderEpochs(), TopicPartition("u", 0)
    for partition in (A, B, other):
        epochs.record(partition, 0, 10, 5)
        epochs.record_committed(partition, 10, 5)
        epochs.record_end(partition, 10, 5)
    epochs.forget_topics({"t", "v"})
    assert [epochs.before(partition, 10) for partition in (A, B, other)] == [-1, -1, 5]
    assert [epochs.of_committed(partition, 10, 9) for partition in (A, B, other)] == [-1, -1, 5]
    assert [epochs.of_end(partition, 10, 9) for partition in (A, B, other)] == [-1, -1, 5]


def test_each_group_has_the_epoch_of_its_own_committed_position() -> None:
    """Consumers of several groups share the epochs of a cluster, and so do calls that only look at positions."""
    epochs = LeaderEpochs()
    epochs.record_committed(A, 50, 3)
    epochs.record_committed(A, 60, 4)
    assert [epochs.of_committed(A, position, 9) for position in (50, 60)] == [3, 4]
    assert [epochs.to_commit(A, position) for position in (50, 60)] == [3, 4]
    epochs.forget_starts([A])
    assert [epochs.of_committed(A, position, 9) for position in (50, 60)] == [-1, -1]
    for position in range(2 * MAX_SPANS):
        epochs.record_committed(A, position, 3)
    assert sum(epochs.of_committed(A, position, 9) == 3 for position in range(2 * MAX_SPANS)) == MAX_SPANS


def test_a_committed_position_has_its_epoch_if_the_leader_can_compare_it() -> None:
    epochs = LeaderEpochs()
    assert epochs.of_committed(A, 5, 4) == -1
    epochs.record_committed(A, 5, 4)
    assert [epochs.of_committed(A, 5, leader) for leader in (-1, 3, 4, 7)] == [-1, -1, 4, 4]
    assert epochs.of_committed(A, 6, 4) == epochs.of_committed(B, 5, 4) == -1
    epochs.forget_starts([A])
    assert epochs.of_committed(A, 5, 4) == -1


def test_the_end_of_a_log_has_the_epoch_of_the_leader_that_named_it() -> None:
    epochs = LeaderEpochs()
    epochs.record_end(A, 5, 4)
    epochs.record_end(B, 0, 4)
    assert [epochs.of_end(A, 5, leader) for leader in (-1, 3, 4, 7)] == [-1, -1, 4, 4]
    assert epochs.of_end(A, 6, 4) == epochs.of_committed(A, 5, 4) == -1
    assert epochs.of_end(B, 0, 4) == -1  # nothing before it can be lost
    epochs.forget_starts([A])
    assert epochs.of_end(A, 5, 4) == -1


def test_a_position_that_nothing_was_read_before_is_stored_with_the_epoch_that_it_came_with() -> None:
    epochs = LeaderEpochs()
    epochs.record_end(A, 5, 4)
    assert [epochs.to_commit(A, position) for position in (4, 5, 6)] == [-1, 4, -1]
    epochs.record_committed(A, 5, -1)
    assert epochs.to_commit(A, 5) == 4
    epochs.record_committed(A, 5, 3)
    assert [epochs.to_commit(A, 5), epochs.to_commit(B, 5)] == [3, -1]
    epochs.record(A, 0, 5, 2)
    assert [epochs.to_commit(A, position) for position in (4, 5)] == [2, 2]
    epochs.record(A, 5, 6, 4)
    assert [epochs.to_commit(A, position) for position in (5, 6)] == [2, 4]
