"""Seeds that follow each other leave out nothing together."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.samples import left_out, releases_of

from odradek.testing.kafka.releases import MATRIX, NEWEST, OTHERS


class Case:
    """What a sample looks at in a test."""

    def __init__(self, nodeid: str, *markers: pytest.Mark, **params: str) -> None:
        self.nodeid, self._markers = nodeid, markers
        self.callspec = SimpleNamespace(params=params)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((each for each in self._markers if each.name == name), None)


def test_two_seeds_have_the_releases_of_the_matrix_and_each_has_the_oldest_and_the_newest() -> None:
    runs = [set(releases_of("matrix", seed)) for seed in range(4)]
    assert runs[0] | runs[1] == set(MATRIX) > runs[0] > runs[0] & runs[1] == {MATRIX[0], MATRIX[-1]}
    assert runs[2:] == runs[:2] and set(releases_of("matrix", None)) == set(MATRIX)


def test_releases_that_are_named_are_not_left_out() -> None:
    assert set(releases_of("all", 0)) == set(releases_of("all", 1)) == {*MATRIX, *OTHERS}
    assert [pair[0] for pair in releases_of(f"0.10.1.1,{NEWEST}", 0)] == ["0.10.1.1", NEWEST]


@pytest.mark.parametrize("count", [2, 3])
def test_seeds_that_follow_each_other_have_every_case_of_a_sampled_test(count: int) -> None:
    sampled = [Case(f"test_a.py::test_one[{n}]", pytest.mark.sampled(count).mark) for n in "abcde"]
    sampled += [Case(f"test_b.py::test_one[{n}]", pytest.mark.sampled(count).mark) for n in "ab"]
    assert not left_out(sampled, None)  # type: ignore[arg-type]
    cases: list[Any] = [*sampled, Case("test_a.py::test_two[a]"), Case("test_a.py::test_two[b]")]
    runs = []
    for seed in range(count):
        random.shuffle(cases)
        runs.append({each.nodeid for each in cases} - {each.nodeid for each in left_out(cases, seed)})
    assert set[str]().union(*runs) == {each.nodeid for each in cases}
    for case in sampled:
        assert sum(case.nodeid in run for run in runs) == 1
    assert all({"test_a.py::test_two[a]", "test_a.py::test_two[b]"} <= run for run in runs)


def test_with_a_parameter_that_is_named_each_run_has_each_value_of_the_others() -> None:
    mark = pytest.mark.sampled(2, "engine").mark
    cases: list[Any] = [Case(f"a.py::t[{e}-{n}]", mark, engine=e) for e in ("pure", "compiled") for n in range(40)]
    runs = [{case.nodeid for case in cases} - {case.nodeid for case in left_out(cases, seed)} for seed in range(2)]
    assert runs[0] | runs[1] == {case.nodeid for case in cases} and not runs[0] & runs[1]
    for run in runs:
        assert {name.partition("-")[2] for name in run} == {f"{n}]" for n in range(40)}
        assert {name.partition("-")[0] for name in run} == {"a.py::t[pure", "a.py::t[compiled"}
