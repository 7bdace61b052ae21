"""Limits of bytes per second, with a clock of the test."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.mirror.limits import RateLimit


def test_without_a_limit_nothing_waits() -> None:
    assert RateLimit(None).take(10**12, 0.0) == 0.0


def test_what_is_more_than_a_second_of_the_rate_waits() -> None:
    limit = RateLimit(100)
    assert limit.take(100, 50.0) == 0.0  # a second that was not used
    assert limit.take(50, 50.0) == 0.5
    assert limit.take(50, 50.5) == 0.5
    assert limit.take(10, 60.0) == 0.0


@given(st.floats(1, 1e6), st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 5)), min_size=1, max_size=30))
def test_the_rate_is_kept(rate: float, amounts: list[tuple[float, float]]) -> None:
    limit, now, total = RateLimit(rate), 1000.0, 0.0
    for amount, idle in amounts:
        now += limit.take(amount, now)
        total += amount
        assert total / rate <= (now - 1000.0 + RateLimit.BURST_S) * (1 + 1e-9)
        now += idle


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_no_longer_than_the_rate_needs(amounts: list[float]) -> None:
    limit, now = RateLimit(1000.0), 0.0
    for amount in amounts:
        now += limit.take(amount, now)
    assert now <= sum(amounts) / 1000.0 * (1 + 1e-9)
