"""Positions that transactions have committed and the coordinator does not name yet, with a fake clock."""

from __future__ import annotations

import pytest

from odradek.core.kafka.transaction_positions import REMEMBERED_S, TransactionPositions
from odradek.types import Position, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("read", "after_s", "newest"),
    [
        (None, 0.0, 9),
        (3, 0.0, 9),
        (9, 0.0, 9),
        (12, 0.0, 12),
        (3, REMEMBERED_S, 9),
        (3, REMEMBERED_S + 1, 3),
        (None, REMEMBERED_S + 1, None),
    ],
)
def test_what_was_committed_counts_until_the_coordinator_names_it_or_a_later_position(
    read: int | None, after_s: float, newest: int | None
) -> None:
    positions = TransactionPositions()
    positions.begin()
    positions.end({T0: Position(9)}, 100.0)
    named = {T0: None if read is None else Position(read), T1: Position(3)}
    assert positions.newest(named, 100.0 + after_s) == {T0: newest, T1: 3}


def test_a_position_that_was_named_once_does_not_come_back() -> None:
    positions = TransactionPositions()
    positions.begin()
    positions.end({T0: Position(9)}, 0.0)
    assert positions.newest({T0: Position(12)}, 1.0) == {T0: 12}
    assert positions.newest({T0: Position(2)}, 2.0) == {T0: 2}


def test_what_the_member_stores_itself_counts_although_it_is_earlier() -> None:
    positions = TransactionPositions()
    positions.begin()
    positions.end({T0: Position(9), T1: Position(9)}, 0.0)
    positions.forget({T0: Position(4)})
    assert positions.newest({T0: Position(4), T1: Position(4)}, 1.0) == {T0: 4, T1: 9}


def test_an_aborted_transaction_commits_nothing() -> None:
    positions = TransactionPositions()
    positions.begin()
    positions.begin()
    positions.end({}, 0.0)
    assert positions.open == 1
    assert positions.newest({T0: Position(3)}, 0.0) == {T0: 3}
