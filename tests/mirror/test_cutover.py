"""What is missing before consumers and producers use the target alone."""

from __future__ import annotations

from typing import Any

import pytest

from odradek.mirror.cutover import CutoverFacts, checklist
from odradek.mirror.groups import GroupPosition
from odradek.types import Position, TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def position(**changes: Any) -> GroupPosition:
    values = {
        "group": "billing", "source": P0, "committed": Position(5), "source_lag": 0, "target": P0,
        "before": Position(5), "offset": Position(5), "target_lag": 0, "match": "exact", "decision": "keep", "why": "",
    }  # fmt: skip
    return GroupPosition(**{**values, **changes})


def facts(**changes: Any) -> CutoverFacts:
    values = {
        "lags": {P0: 0, P1: 0}, "unit": "records", "written": [], "watched_s": 5.0, "members": {"billing": 0},
        "positions": [position()], "silent": [],
    }  # fmt: skip
    return CutoverFacts(**{**values, **changes})


def test_nothing_is_missing_and_each_step_has_its_evidence() -> None:
    checks = checklist("consumers", facts())
    assert all(check.ok for check in checks)
    assert [check.evidence for check in checks] == [
        "1 groups have no members",
        "1 positions of 1 groups",
        "2 partitions have not grown for 5 s",
        "the lag of all 2 partitions is 0",
    ]
    assert [*checks[2:], *checks[:2]] == [*checklist("producers", facts())]


@pytest.mark.parametrize(
    ("changes", "step", "says"),
    [
        ({"members": {"billing": 2, "audit": 0}}, "consumer", "these groups have members: billing (2): stop"),
        ({"silent": ["audit"]}, "positions", "have committed nothing on the source: audit"),
        ({"positions": [position(decision="refuse", why="it has members")]}, "positions", "orders/0: it has members"),
        (
            {"positions": [position(match="not mirrored", decision="write", why="it is ahead")]},
            "positions",
            "billing in orders/0: it is ahead",
        ),
        ({"positions": [position(decision="write")]}, "positions", "odradek mirror groups --apply"),
        ({"written": [P0, P1]}, "producer", "written to just now: orders/0, orders/1: stop the producers"),
        ({"open": [P1]}, "producer", "transactions are open in orders/1: let their producers end them"),
        ({"new": [P1]}, "copied", "orders/1 were not copied yet: let the mirror run"),
        ({"lags": {}}, "copied", "nothing was copied yet"),
        ({"lags": {P0: 0, P1: None}}, "copied", "no broker for orders/1 now"),
        ({"lags": {P0: 2, P1: 3}, "unit": "bytes"}, "copied", "5 bytes are not, in orders/0, orders/1"),
    ],
)
@pytest.mark.parametrize("first", ["consumers", "producers"])
def test_one_thing_is_missing(changes: dict[str, Any], step: str, says: str, first: Any) -> None:
    [missing] = [check for check in checklist(first, facts(**changes)) if not check.ok]
    assert step in missing.step and says in missing.evidence


def test_members_that_the_source_does_not_know_are_left_to_the_reader() -> None:
    [check] = [c for c in checklist("consumers", facts(members={"billing": None, "audit": 0})) if "consumer" in c.step]
    assert check.ok and check.evidence == "brokers do not know the members of these: billing: look yourself"


def test_many_are_counted() -> None:
    partitions = [TopicPartition("orders", number) for number in range(8)]
    [missing] = [check for check in checklist("producers", facts(written=partitions)) if not check.ok]
    assert "orders/4 and 3 more" in missing.evidence
