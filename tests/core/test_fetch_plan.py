"""Shares of the read-ahead: bounded, fair, and never stuck."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.fetch_plan import FetchLimits, Holding, plan

EMPTY = Holding(0, 1.0)
LIMITS = FetchLimits(ahead=1000, part=100, response=400, least=10)


def test_an_empty_partition_asks_for_a_whole_part() -> None:
    assert plan([EMPTY], 1, LIMITS) == [100]


def test_many_partitions_share_one_response() -> None:
    assert plan([EMPTY] * 8, 8, LIMITS) == [50] * 8


def test_many_partitions_share_the_budget() -> None:
    assert plan([EMPTY] * 2, 50, LIMITS) == [20, 20]


def test_a_full_partition_does_not_ask_and_the_others_do() -> None:
    assert plan([Holding(500, 1.0), EMPTY], 2, LIMITS) == [0, 100]


def test_a_nearly_full_partition_waits_until_half_a_request_fits() -> None:
    assert plan([Holding(460, 1.0)], 2, LIMITS) == [0]
    assert plan([Holding(440, 1.0)], 2, LIMITS) == [60]


def test_what_a_fetched_byte_grows_to_is_reckoned_with() -> None:
    assert plan([Holding(0, 20.0)], 1, LIMITS) == [50]


def test_the_first_request_is_small() -> None:
    assert plan([Holding(0, None)], 1, LIMITS) == [40]


def test_a_partition_with_nothing_is_never_starved() -> None:
    assert plan([EMPTY], 10_000, LIMITS) == [10]
    assert plan([Holding(0, 1e9)], 1, LIMITS) == [10]


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.none() | st.floats(0.1, 50)), max_size=20),
    st.integers(0, 30),
    st.integers(1, 1 << 20),
    st.integers(1, 4096),
    st.integers(1, 1 << 16),
    st.integers(1, 256),
)
def test_the_plan_never_promises_more_than_the_budget(
    held: list[tuple[int, float | None]], elsewhere: int, ahead: int, part: int, response: int, least: int
) -> None:
    limits = FetchLimits(ahead, part, response, least)
    holdings = [Holding(*pair) for pair in held]
    partitions = len(holdings) + elsewhere
    asks = plan(holdings, partitions, limits)
    share = ahead // max(1, partitions)
    assert len(asks) == len(holdings)
    for ask, holding in zip(asks, holdings, strict=True):
        assert 0 <= ask <= max(part, least)
        assert ask == 0 or ask >= least
        if holding.held == 0:
            assert ask > 0
        if ask > least:
            assert holding.held + ask * max(1.0, holding.growth or 1.0) <= share + 1
