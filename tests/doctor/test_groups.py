"""Groups and transactions as they were seen for some seconds in, findings out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from odradek.core.admin import GroupDescription, MemberDescription, PartitionLag
from odradek.doctor.groups import GroupFacts, StableOffset, group_findings, transaction_findings
from odradek.types import Position, TopicPartition


def partition(number: int, topic: str = "orders") -> TopicPartition:
    return TopicPartition(topic, number)


def lag(committed: int | None, end: int) -> PartitionLag:
    position = None if committed is None else Position(committed)
    return PartitionLag(position, Position(end), max(0, end - (committed or 0)), "m1")


def seen(
    owned: Mapping[str, Sequence[int]], state: str = "Stable", epoch: int | None = None, kind: str = "classic"
) -> GroupDescription:
    members = tuple(
        MemberDescription(name, None, "client", "/h", tuple(map(partition, numbers))) for name, numbers in owned.items()
    )
    return GroupDescription("billing", state, kind, "consumer", "range", members, None, epoch)


def causes(
    observations: Sequence[GroupDescription],
    first: Mapping[int, PartitionLag],
    last: Mapping[int, PartitionLag] | None = None,
    **more: Any,
) -> list[str]:
    before = {partition(number): each for number, each in first.items()}
    after = before if last is None else {partition(number): each for number, each in last.items()}
    facts = GroupFacts("billing", 10.0, observations, before, after, **more)
    return [finding.cause for finding in group_findings(facts)]


ONE = [seen({"m1": [0, 1]})] * 4


@pytest.mark.parametrize(
    ("observations", "first", "last", "expected"),
    [
        pytest.param(ONE, {0: lag(10, 10)}, {0: lag(20, 20)}, [], id="keeps up"),
        pytest.param(ONE, {0: lag(10, 10)}, {0: lag(10, 10)}, [], id="nothing to do"),
        pytest.param(ONE, {0: lag(9, 10)}, {0: lag(9, 10)}, [], id="the marker of a transaction"),
        pytest.param(ONE, {0: lag(10, 100)}, {0: lag(60, 110)}, [], id="catches up"),
        pytest.param(ONE, {0: lag(0, 10)}, {0: lag(8, 20)}, [], id="commits in intervals"),
        pytest.param(ONE, {0: lag(None, 10)}, {0: lag(None, 20)}, [], id="no position yet"),
        pytest.param([], {0: lag(10, 10)}, {0: lag(20, 20)}, [], id="groups cannot be described"),
        pytest.param(ONE, {0: lag(0, 10)}, {0: lag(0, 10)}, ["partition-stuck"], id="hangs"),
        pytest.param([], {0: lag(0, 10)}, {0: lag(0, 10)}, ["partition-stuck"], id="hangs, and is not described"),
        pytest.param(ONE, {0: lag(0, 0)}, {0: lag(0, 90)}, [], id="written at the last moment"),
        pytest.param(ONE, {0: lag(0, 10)}, {0: lag(10, 90)}, ["consumer-too-slow"], id="too slow"),
        pytest.param(
            ONE, {0: lag(0, 10), 1: lag(0, 10)}, {0: lag(10, 90), 1: lag(10, 90)}, ["consumer-too-slow"], id="both slow"
        ),
        pytest.param(
            ONE, {0: lag(0, 10), 1: lag(10, 10)}, {0: lag(10, 90), 1: lag(20, 20)}, ["hot-partition"], id="one is hot"
        ),
        pytest.param(
            ONE,
            {0: lag(0, 10), 1: lag(10, 10)},
            {0: lag(9, 90), 1: lag(10, 10)},
            ["consumer-too-slow"],
            id="one in use",
        ),
        pytest.param(
            ONE,
            {0: lag(0, 10), 1: lag(0, 10)},
            {0: lag(0, 10), 1: lag(10, 90)},
            ["partition-stuck", "consumer-too-slow"],
            id="one hangs, and the other is slow",
        ),
        pytest.param([seen({}, "Empty")], {0: lag(3, 10)}, None, ["group-has-no-members"], id="nobody works"),
        pytest.param([seen({}, "Empty")], {0: lag(10, 10)}, None, [], id="nobody has to work"),
        pytest.param([seen({}, "Dead")], {}, None, ["group-missing"], id="no such group"),
        pytest.param([], {}, None, ["group-missing"], id="no positions, and it is not described"),
        pytest.param([seen({"m1": []})], {}, None, [], id="nothing committed yet"),
        pytest.param(ONE, {0: lag(20, 10)}, None, ["position-beyond-log"], id="beyond the log"),
        pytest.param([seen({"m1": [0], "m2": []})] * 4, {0: lag(1, 1)}, None, ["idle-members"], id="idle"),
        pytest.param([seen({"m1": [0], "m2": []}, kind="share")] * 4, {0: lag(1, 1)}, None, [], id="share groups"),
        pytest.param([seen({"m1": [], "m2": []})] * 4, {}, None, [], id="no partitions at all"),
        pytest.param(
            [seen({"m1": [0]}), seen({"m1": [0], "m2": []}, "PreparingRebalance"), *[seen({"m1": [0], "m2": [1]})] * 2],
            {0: lag(1, 1)},
            None,
            [],
            id="one member comes",
        ),
        pytest.param(
            [seen({"m1": [0]}), seen({"m1": [0], "m2": [1]}), seen({"m1": [0]})],
            {0: lag(0, 10)},
            None,
            ["group-keeps-rebalancing"],
            id="members come and go",
        ),
        pytest.param(
            [seen({"m1": [0]}, "PreparingRebalance")] * 3 + [seen({"m1": [0]})],
            {0: lag(0, 10)},
            None,
            ["group-keeps-rebalancing"],
            id="never stable",
        ),
        pytest.param(
            [seen({"m1": [0]}, epoch=number) for number in (1, 2, 3)],
            {0: lag(1, 1)},
            None,
            ["group-keeps-rebalancing"],
            id="epochs",
        ),
    ],
)
def test_groups(
    observations: Sequence[GroupDescription],
    first: Mapping[int, PartitionLag],
    last: Mapping[int, PartitionLag] | None,
    expected: list[str],
) -> None:
    assert causes(observations, first, last) == expected


def test_records_that_were_deleted_before_they_were_read() -> None:
    begins = {partition(0): Position(5)}
    assert causes(ONE, {0: lag(3, 5)}, begins=begins) == ["records-deleted-unread", "partition-stuck"]
    assert causes(ONE, {0: lag(5, 5)}, begins=begins) == []


def test_positions_of_an_earlier_subscription_are_no_findings() -> None:
    old = {TopicPartition("old", 0): lag(0, 10)}
    facts = GroupFacts("billing", 10.0, ONE, old, old, {TopicPartition("old", 0): Position(5)})
    assert list(group_findings(facts)) == []


def test_a_partition_that_a_transaction_holds_back_is_not_stuck() -> None:
    assert causes(ONE, {0: lag(0, 10)}, held=[partition(0)]) == []


def test_evidence_of_a_group_has_its_numbers() -> None:
    facts = GroupFacts("biling", 10.0, [seen({}, "Dead")], {}, {}, names=["billing", "audit"])
    assert [each.evidence for each in group_findings(facts)] == [
        "biling has no members and no positions; similar: billing"
    ]
    before, after = {partition(0): lag(0, 10)}, {partition(0): lag(0, 20)}
    (finding,) = group_findings(GroupFacts("billing", 10.0, ONE, before, after))
    assert finding.evidence == "in 10 s: orders/0: lag 10 -> 20, 10 written, 0 committed, position 0, member m1"
    moving = [seen({"m1": [0]}), seen({"m2": [0]}, "CompletingRebalance"), seen({"m3": [0]})]
    (finding,) = group_findings(GroupFacts("billing", 10.0, moving, {}, {}))
    assert finding.evidence == (
        "billing in 10 s: its members changed 2 times, 3 different ones were seen,"
        " and it was not stable in 1 of 3 observations"
    )


@pytest.mark.parametrize(
    ("first", "last", "end", "held"), [(5, 5, 9, True), (5, 6, 9, False), (5, 5, 5, False), (5, 9, 9, False)]
)
def test_a_transaction_is_open_if_nothing_moves(first: int, last: int, end: int, held: bool) -> None:
    offset = StableOffset(Position(first), Position(last), Position(end), "; of producer 7")
    findings = list(transaction_findings({partition(0): offset}, 12.0))
    evidence = "orders/0: for 12 s what is committed has ended at 5; the log ends at 9; of producer 7"
    assert [(each.cause, each.evidence) for each in findings] == [("transaction-open", evidence)] * held
