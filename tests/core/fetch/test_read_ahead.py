"""Shares of the read-ahead: bounded, fair, and never stuck."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.fetch.read_ahead import Buffered, ReadAheadBudget, ReadAheadLimits, ReadAheadQuota, ask, reckoned

EMPTY = Buffered(0, 1.0)
LIMITS = ReadAheadLimits(read_ahead_bytes=1000, part=100, response=400, least=10)


def budget(partitions: int, limits: ReadAheadLimits = LIMITS) -> ReadAheadBudget:
    found = ReadAheadBudget(limits)
    found.partitions = partitions
    return found


def account(partitions: int, of: int, **numbers: int) -> ReadAheadQuota:
    found = ReadAheadQuota(budget(of))
    found.partitions = partitions
    for name, number in numbers.items():
        setattr(found, name, number)
    found.refresh()
    return found


# ---- one partition ------------------------------------------------------------------------------------------


def test_an_empty_partition_asks_for_a_whole_part() -> None:
    assert ask(EMPTY, 1000, LIMITS) == 100


def test_a_full_partition_does_not_ask() -> None:
    assert ask(Buffered(500, 1.0), 500, LIMITS) == 0


def test_a_nearly_full_partition_waits_until_half_a_request_fits() -> None:
    assert ask(Buffered(460, 1.0), 500, LIMITS) == 0
    assert ask(Buffered(440, 1.0), 500, LIMITS) == 60


def test_what_a_fetched_byte_grows_to_is_reckoned_with() -> None:
    assert ask(Buffered(0, 20.0), 1000, LIMITS) == 50


def test_the_first_request_is_small() -> None:
    assert ask(Buffered(0, None), 1000, LIMITS) == 40


def test_a_partition_with_nothing_asks_for_the_least_however_small_its_share() -> None:
    assert ask(EMPTY, 1, LIMITS) == 10
    assert ask(Buffered(0, 1e9), 1000, LIMITS) == 10


# ---- many ---------------------------------------------------------------------------------------------------


def test_shares_are_even_as_long_as_they_are_worth_a_request() -> None:
    assert budget(0).share == budget(1).share == 1000
    assert budget(3).share == 333
    assert budget(100).share == LIMITS.worth == 250


def test_accounts_get_what_their_partitions_would_get() -> None:
    assert budget(100).allowance(50) == 500
    assert budget(100).allowance(1) == LIMITS.worth


def test_what_does_not_fit_into_the_account_waits_for_a_decent_request() -> None:
    crowd = account(100, of=100, held=900, reserved=60, listed=9)
    assert crowd.grant(100, 1.0) == 0 and crowd.full
    crowd.held -= 100
    assert not crowd.relieve()
    crowd.held -= 200
    assert crowd.relieve() and crowd.grant(100, 1.0) == 100 and not crowd.full


def test_the_last_one_that_fits_gets_what_is_left_if_that_is_half_of_it() -> None:
    assert account(100, of=100, held=940).grant(100, 1.0) == 60
    assert account(100, of=100, held=960, listed=1).grant(100, 1.0) == 0


def test_what_is_known_of_neighbours_is_forgotten_slowly() -> None:
    shared = account(2, of=2)
    shared.learn(9.0)
    shared.learn(1.0)
    assert shared.growth == 8.0
    shared.learn(20.0)
    assert shared.growth == 20.0


def test_when_nothing_can_be_delivered_and_nothing_comes_the_least_is_granted_whatever_is_held() -> None:
    """All of it is held by partitions that are held back: the others live on."""
    stuck = account(100, of=100, held=1000)
    assert stuck.relieve() and stuck.grant(100, 1.0) == 10
    stuck.reserved = 10
    assert stuck.grant(100, 1.0) == 0, "one at a time"
    stuck.reserved, stuck.listed = 0, 1
    assert stuck.grant(100, 1.0) == 0, "there is something to deliver first"


numbers = st.integers(0, 5000)


@given(
    st.lists(st.tuples(numbers, st.none() | st.floats(0.1, 50)), max_size=20),
    numbers,
    st.builds(
        ReadAheadLimits,
        read_ahead_bytes=st.integers(1, 1 << 20),
        part=st.integers(1, 4096),
        response=st.integers(1, 1 << 16),
        least=st.integers(1, 256),
    ),
)
def test_no_more_is_asked_for_than_the_budget_has(
    held: list[tuple[int, float | None]], elsewhere: int, limits: ReadAheadLimits
) -> None:
    holdings = [Buffered(*pair) for pair in held]
    whole = budget(len(holdings) + elsewhere, limits)
    shared = ReadAheadQuota(whole)
    shared.partitions = len(holdings)
    shared.refresh()
    shared.held = before = sum(holding.held for holding in holdings)
    for holding in holdings:
        size = ask(holding, whole.share, limits)
        growth = reckoned(holding.growth)
        assert 0 <= size <= max(limits.part, limits.least)
        assert size == 0 or size >= limits.least or limits.part < limits.least
        assert size > 0 or holding.held > 0
        assert size <= limits.least or holding.held + size * growth <= whole.share + 1
        granted = shared.grant(size, growth) if size else 0
        assert granted <= size
        alone = not shared.reserved
        shared.reserved += int(granted * growth)
        fits = before + shared.reserved <= whole.allowance(len(holdings)) + 1
        assert fits or not granted or (alone and granted <= limits.least)
