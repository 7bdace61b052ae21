"""The schedule of the chaos driver and its checks: each kind of mistake is found in logs and journals made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import pytest

from .chaos.checks import Journals, StoredRecord, check_group, check_outputs, check_produced
from .chaos.journal import CONFIRMED, NOT_WRITTEN, REPEATED, UNKNOWN, Journal
from .chaos.produce import record_value
from .chaos.schedule import TRACKS, faults
from .chaos.workers import Worker

Write = Callable[..., Journals]


@pytest.fixture
def journals(tmp_path: Path) -> Write:
    """A function: the lines of each worker by its name, as journals."""

    def write(**workers: Sequence[str]) -> Journals:
        for name, lines in workers.items():
            with Journal(tmp_path / name) as journal:
                for line in lines:
                    journal.write(*line.split())
        return {name: tmp_path / name for name in workers}

    return write


def log(*numbers: int, partition: int = 0) -> list[StoredRecord]:
    """A log with these records of sender 7."""
    return [(partition, position, record_value(7, number)) for position, number in enumerate(numbers)]


def test_the_same_seed_makes_the_same_faults_and_another_one_does_not() -> None:
    def first(seed: int, track: str) -> list[object]:
        return list(islice(faults(seed, track), 50))

    for track, (weights, wait_s, lasting_s) in TRACKS.items():
        assert first(3, track) == first(3, track) != first(4, track)
        for fault in islice(faults(3, track), 500):
            assert wait_s[0] <= fault.wait_s <= wait_s[1]
            assert lasting_s[0] <= fault.lasting_s <= lasting_s[1]
        assert {fault.kind for fault in islice(faults(3, track), 500)} == set(weights)


@pytest.mark.parametrize(
    ("outcomes", "stored", "idempotent", "expected"),
    [
        ([f"0 3 {CONFIRMED}"], (0, 1, 2), True, {}),
        ([f"0 3 {CONFIRMED}"], (0, 2), True, {"lost": 1}),
        ([f"0 3 {CONFIRMED}"], (0, 1, 1, 2), True, {"doubled": 1}),
        ([f"0 3 {REPEATED}"], (0, 1, 1, 2), True, {"doubled": 1}),
        ([f"0 3 {REPEATED}"], (0, 1, 1, 2), False, {"allowed_copies": 1}),
        ([f"0 3 {CONFIRMED}"], (0, 1, 1, 2), False, {"doubled": 1}),
        ([f"0 3 {UNKNOWN}"], (0, 0, 2), False, {"allowed_copies": 1}),
        ([f"0 3 {UNKNOWN}"], (0, 0, 2), True, {"doubled": 1}),
        ([], (0, 2), True, {}),
        ([f"0 3 {CONFIRMED}"], (1, 0, 2), True, {"out_of_order": 1}),
        ([f"0 3 {CONFIRMED}"], (1, 0, 2), False, {"out_of_order": 1}),
        ([f"0 1 {UNKNOWN}", f"1 2 {CONFIRMED}"], (1, 0, 2), False, {}),
        ([f"0 1 {UNKNOWN}", f"1 2 {CONFIRMED}"], (1, 0, 2), True, {"out_of_order": 1}),
        ([f"0 3 {REPEATED}"], (0, 1, 2, 1, 2), False, {"allowed_copies": 2}),
        ([f"0 2 {CONFIRMED}", f"2 1 {NOT_WRITTEN}"], (0, 1), True, {}),
        ([f"0 2 {CONFIRMED}", f"2 1 {NOT_WRITTEN}"], (0, 1, 2), True, {"written_all_the_same": 1}),
    ],
)
def test_records_lost_doubled_or_out_of_order_are_found(
    journals: Write, outcomes: list[str], stored: tuple[int, ...], idempotent: bool, expected: dict[str, int]
) -> None:
    written = journals(producer=[f"sent 7 {outcome}" for outcome in outcomes])
    result = check_produced(written, log(*stored), idempotent=idempotent)
    kinds = ("lost", "doubled", "out_of_order", "written_all_the_same", "allowed_copies")
    assert {kind: count for kind in kinds if (count := getattr(result, kind))} == expected
    assert len(result.problems) == len(expected.keys() - {"allowed_copies"})
    assert result.in_log == len(stored)


def test_what_no_member_was_given_is_found_and_members_beside_it_are_named(journals: Write) -> None:
    one, two = ["delivered 0 0 4", "delivered 1 0 9"], ["delivered 0 4 5", "delivered 0 8 9"]
    result = check_group(journals(one=one, two=two), {0: 10, 1: 10})
    assert (result.delivered, result.delivered_again, result.skipped) == (19, 1, 2)
    assert result.problems == ["skipped: 0@6..7: before it ['two'], after it ['two']"]


@pytest.mark.parametrize(
    ("one", "two", "moved_back"),
    [
        (["1.0 1.1 0 50"], ["2.0 2.1 0 60"], 0),
        (["1.0 1.1 0 50"], ["2.0 2.1 0 40"], 1),
        (["1.0 1.1 0 50"], ["1.0 1.2 0 40"], 0),  # requested before the other one was confirmed
        (["1.0 1.1 0 50", "3.0 3.1 0 45"], ["2.0 2.1 0 40"], 1),  # from 40 on it is no step back
        (["1.0 1.1 0 50"], ["2.0 2.1 1 40"], 0),
    ],
)
def test_a_group_that_moves_back_behind_a_confirmed_commit_is_found(
    journals: Write, one: list[str], two: list[str], moved_back: int
) -> None:
    lines = {name: [f"stored {line}" for line in lines] for name, lines in (("one", one), ("two", two))}
    result = check_group(journals(**lines), {})
    assert result.moved_back == moved_back == len(result.problems)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ((0, 1, 2), {}),
        ((0, 2), {"missing": 1}),
        ((0, 1, 1, 2), {"doubled": 1}),
        ((0, 2, 1), {"out_of_order": 1}),
    ],
)
def test_outputs_that_are_missing_doubled_or_out_of_order_are_found(
    journals: Write, outputs: tuple[int, ...], expected: dict[str, int]
) -> None:
    written = journals(service=["committed 2", "committed 1", "aborted why", "ended NotWritten()"])
    stored = [(0, position, b"0|%d" % number) for position, number in enumerate(outputs)]
    result = check_outputs(written, stored, {0: 3})
    kinds = ("missing", "doubled", "out_of_order")
    assert {kind: count for kind in kinds if (count := getattr(result, kind))} == expected
    assert len(result.problems) == len(expected)
    assert (result.committed, result.aborted, result.ended) == (2, 1, {"NotWritten()": 1})


def test_a_worker_that_is_told_to_leave_before_it_has_begun_ends_in_order(tmp_path: Path) -> None:
    options = {"topic": "t", "way": "batches", "options": {"group": "g"}}
    worker = Worker("member", "odradek", tmp_path, bootstrap="127.0.0.1:1", **options)
    try:
        worker.start()
        assert worker.leave() == ""
    finally:
        worker.kill()
