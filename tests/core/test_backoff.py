from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.backoff import Backoff
from odradek.errors import ConfigError


def test_doubles_up_to_the_maximum() -> None:
    backoff = Backoff(first_s=1, factor=2, max_s=5)
    assert [backoff.delay(attempt, math.nextafter(1, 0)) for attempt in range(5)] == pytest.approx([1, 2, 4, 5, 5])


def test_jitter_spreads_between_half_and_all() -> None:
    backoff = Backoff(first_s=2, factor=2, max_s=100)
    assert backoff.delay(1, 0.0) == 2
    assert backoff.delay(1, 0.5) == 3


def test_a_factor_of_one_is_a_constant_wait() -> None:
    backoff = Backoff(first_s=3, factor=1, max_s=3)
    assert {backoff.delay(attempt, 0.0) for attempt in range(10)} == {1.5}


def test_ten_thousand_failures_do_not_overflow() -> None:
    assert Backoff(0.05, 2.0, 5.0).delay(10_000, 0.0) == 2.5


@given(st.floats(0, 10), st.floats(1, 10), st.floats(10, 100), st.integers(0, 5000), st.floats(0, 1, exclude_max=True))
def test_stays_within_its_bounds(first: float, factor: float, most: float, attempt: int, jitter: float) -> None:
    assert first / 2 <= Backoff(first, factor, most).delay(attempt, jitter) <= most


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ((-1, 2, 5), r"Backoff\.first_s=-1: must be"),
        ((2, 2, 1), r"Backoff\.first_s=2: must be at most max_s, which is 1"),
        ((1, 0.5, 5), r"Backoff\.factor=0\.5: must be"),
        ((1, float("nan"), 5), r"Backoff\.factor=nan: must be"),
        ((1, 2, float("inf")), r"Backoff\.max_s=inf: must be"),
    ],
)
def test_impossible_options_are_refused(wrong: tuple[float, float, float], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Backoff(*wrong)
