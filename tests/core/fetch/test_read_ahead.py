"""Shares of the read-ahead: bounded, fair, and never stuck."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.backoff import Backoff
from odradek.core.fetch.read_ahead import (
    ReadAheadBudget,
    ReadAheadLimits,
    bytes_to_request,
    expected_expansion,
)
from odradek.core.fetch.scheduler import FetchPolicy, FetchScheduler, SchedulerCallbacks
from odradek.core.fetch.stream_quota import StreamQuota

LIMITS = ReadAheadLimits(read_ahead_bytes=1000, fetch_bytes=100, response_bytes=400, min_bytes=10)
USUAL = 100


def budget(partitions: int, limits: ReadAheadLimits = LIMITS) -> ReadAheadBudget:
    made = ReadAheadBudget(limits)
    made.partitions = partitions
    return made


def quota(partitions: int, of: ReadAheadBudget, held: int = 0, reserved: int = 0, deliverable: int = 0) -> StreamQuota:
    policy = FetchPolicy(Backoff(first_s=1), Backoff(first_s=1))
    made = StreamQuota(of, FetchScheduler(of, policy, SchedulerCallbacks(*[lambda: None] * 4)))
    for _ in range(partitions):
        made.activated()
    for _ in range(deliverable):
        made.recounted(0, True)
    made.recounted(held, False)
    made.reserve(reserved)
    made.refresh()
    return made


# ---- one partition ------------------------------------------------------------------------------------------


def test_an_empty_partition_requests_a_whole_fetch() -> None:
    assert bytes_to_request(0, 1.0, 1000, LIMITS, USUAL) == 100


def test_a_full_partition_requests_nothing() -> None:
    assert bytes_to_request(500, 1.0, 500, LIMITS, USUAL) == 0


def test_a_nearly_full_partition_waits_until_half_a_request_fits() -> None:
    assert bytes_to_request(460, 1.0, 500, LIMITS, USUAL) == 0
    assert bytes_to_request(440, 1.0, 500, LIMITS, USUAL) == 60


def test_requests_shrink_by_the_expansion_to_expect() -> None:
    assert bytes_to_request(0, 20.0, 1000, LIMITS, USUAL) == 50


def test_the_first_request_is_small() -> None:
    assert bytes_to_request(0, None, 1000, LIMITS, USUAL) == 40


def test_an_empty_partition_requests_the_minimum_however_small_its_share() -> None:
    assert bytes_to_request(0, 1.0, 1, LIMITS, USUAL) == 10
    assert bytes_to_request(0, 1e9, 1000, LIMITS, USUAL) == 10


# ---- many ---------------------------------------------------------------------------------------------------


def test_shares_are_even_until_they_are_smaller_than_a_useful_request() -> None:
    assert budget(0).share == budget(1).share == 1000
    assert budget(3).share == 333
    assert budget(100).share == LIMITS.min_share_bytes == 250


def test_a_quota_gets_what_its_partitions_would_get() -> None:
    assert budget(100).allowance(50) == 500
    assert budget(100).allowance(1) == LIMITS.min_share_bytes


def test_a_full_quota_waits_until_a_useful_request_fits() -> None:
    crowd = quota(100, of=budget(100), held=900, reserved=60, deliverable=9)
    assert crowd.grant(100, 1.0) == 0 and crowd.full
    crowd.recounted(-100, False)
    assert crowd.full and not crowd.try_unblock()
    crowd.recounted(-200, False)
    assert not crowd.full and crowd.grant(100, 1.0) == 100 and not crowd.full


def test_the_rest_of_a_quota_is_granted_if_it_is_half_of_the_request() -> None:
    assert quota(100, of=budget(100), held=940).grant(100, 1.0) == 60
    assert quota(100, of=budget(100), held=960, deliverable=1).grant(100, 1.0) == 0


def test_the_expansion_of_neighbours_is_forgotten_slowly() -> None:
    shared = quota(2, of=budget(2))
    shared.observe_expansion(9.0)
    shared.observe_expansion(1.0)
    assert shared.expansion == 8.0
    shared.observe_expansion(20.0)
    assert shared.expansion == 20.0


def test_the_minimum_is_granted_when_nothing_else_could_make_space() -> None:
    """Paused partitions hold all of it: the others continue."""
    stuck = quota(100, of=budget(100), held=1000)
    assert stuck.try_unblock() and stuck.grant(100, 1.0) == 10
    stuck.reserve(10)
    assert stuck.grant(100, 1.0) == 0, "one at a time"
    stuck.released(10)
    stuck.recounted(0, True)
    assert stuck.grant(100, 1.0) == 0, "something can be delivered first"


numbers = st.integers(0, 5000)


@given(
    st.lists(st.tuples(numbers, st.none() | st.floats(0.1, 50)), max_size=20),
    numbers,
    st.builds(
        ReadAheadLimits,
        read_ahead_bytes=st.integers(1, 1 << 20),
        fetch_bytes=st.integers(1, 4096),
        response_bytes=st.integers(1, 1 << 16),
        min_bytes=st.integers(1, 256),
    ),
)
def test_no_more_is_requested_than_the_budget_has(
    held: list[tuple[int, float | None]], elsewhere: int, limits: ReadAheadLimits
) -> None:
    whole = budget(len(held) + elsewhere, limits)
    before = sum(memory for memory, _ in held)
    shared = quota(len(held), whole, held=before)
    for memory, observed in held:
        size = bytes_to_request(memory, observed, whole.share, limits, limits.usual_fetch_bytes)
        expansion = expected_expansion(observed)
        assert 0 <= size <= max(limits.fetch_bytes, limits.min_bytes)
        assert size == 0 or size >= limits.min_bytes or limits.fetch_bytes < limits.min_bytes
        assert size > 0 or memory > 0
        assert size <= limits.min_bytes or memory + size * expansion <= whole.share + 1
        granted = shared.grant(size, expansion) if size else 0
        assert granted <= size
        alone = not shared.reserved
        shared.reserve(int(granted * expansion))
        fits = before + shared.reserved <= whole.allowance(len(held)) + 1
        assert fits or not granted or (alone and granted <= limits.min_bytes)
