"""Epochs of what was read."""

from __future__ import annotations

import pytest

from odradek.core.kafka.leader_epochs import MAX_EPOCHS, LeaderEpochs
from odradek.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([], {0: -1, 5: -1}),
        ([(0, 3)], {0: -1, 1: 3, 100: 3}),
        ([(0, 3), (10, 3), (20, 5)], {15: 3, 20: 3, 21: 5}),
        ([(100, 5), (0, 3)], {50: 3, 101: 5}),
        ([(100, 5), (60, 5), (0, 3)], {60: 3, 61: 5}),
        ([(0, 3), (10, 5), (4, 3)], {10: 3, 11: 5}),
        ([(100, 5), (0, 6)], {50: 6, 200: 6}),  # another log
        ([(0, 5), (100, 2)], {50: -1, 101: 2}),  # another log
    ],
)
def test_a_position_has_the_epoch_of_the_record_before_it(
    reads: list[tuple[int, int]], expected: dict[int, int]
) -> None:
    epochs = LeaderEpochs()
    for position, epoch in reads:
        epochs.record(A, position, epoch)
    assert {position: epochs.before(A, position) for position in expected} == expected
    assert epochs.before(B, 1) == -1


def test_only_the_last_epochs_are_remembered() -> None:
    epochs = LeaderEpochs()
    for epoch in range(2 * MAX_EPOCHS):
        epochs.record(A, 10 * epoch, epoch)
    assert epochs.before(A, 10 * MAX_EPOCHS) == -1
    assert epochs.before(A, 20 * MAX_EPOCHS) == 2 * MAX_EPOCHS - 1


def test_a_committed_position_has_its_epoch_if_the_leader_can_compare_it() -> None:
    epochs = LeaderEpochs()
    assert epochs.of_committed(A, 5, 4) == -1
    epochs.record_committed(A, 5, 4)
    assert [epochs.of_committed(A, 5, leader) for leader in (-1, 3, 4, 7)] == [-1, -1, 4, 4]
    assert epochs.of_committed(A, 6, 4) == epochs.of_committed(B, 5, 4) == -1
    epochs.forget_committed(A)
    assert epochs.of_committed(A, 5, 4) == -1
