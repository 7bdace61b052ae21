"""How many bytes are requested of a broker at a time: as far as more of them cost little more time."""

from __future__ import annotations

import pytest

from odradek.core.fetch.fetch_size import FetchSize
from odradek.core.fetch.read_ahead import ReadAheadLimits

MIB = 1 << 20
LIMITS = ReadAheadLimits(read_ahead_bytes=64 * MIB, fetch_bytes=16 * MIB)


def sizes(size: FetchSize, seconds_of: dict[int, float], responses: int, *, full: bool = True) -> list[int]:
    """Request what it says, again and again. Returns the sizes (MiB), each as often as it was requested."""
    requested = []
    for _ in range(responses):
        requested.append(size.bytes // MIB)
        size.responded(size.bytes, seconds_of[size.bytes // MIB], full=full, waiting=True)
    return requested


def link(round_trip_s: float, bytes_per_s: float) -> dict[int, float]:
    """How long a response of so many MiB takes."""
    return {size: round_trip_s + size * MIB / bytes_per_s for size in range(1, 65)}


@pytest.mark.parametrize(
    ("round_trip_s", "bytes_per_s", "reached"),
    [
        (0.0003, 400e6, 1),  # near
        (0.004, 2000e6, 1),  # not distant
        (0.02, 400e6, 16),
        (0.1, 400e6, 16),
        (0.02, 100e6, 8),
        (0.02, 20e6, 2),
        (0.02, 1e6, 1),  # a slow line: more bytes take as much more time
        (0.2, 10e6, 8),
    ],
)
def test_the_size_grows_with_rate_times_delay(round_trip_s: float, bytes_per_s: float, reached: int) -> None:
    size = FetchSize(LIMITS)
    requested = sizes(size, link(round_trip_s, bytes_per_s), 40)
    assert requested[:4] == [1] * 4, "the first responses decide nothing"
    assert set(requested[25:]) == {reached}, "and it stays there"


def test_nothing_is_requested_beyond_the_limit_of_the_user() -> None:
    size = FetchSize(ReadAheadLimits(read_ahead_bytes=64 * MIB, fetch_bytes=3 * MIB))
    assert sizes(size, link(0.1, 400e6), 8) == [1, 1, 1, 1, 2, 3, 3, 3]
    small = FetchSize(ReadAheadLimits(read_ahead_bytes=MIB, fetch_bytes=1000))
    for _ in range(10):
        small.responded(small.bytes, 0.1, full=True, waiting=True)
    assert small.bytes == 1000


def test_one_quick_response_says_that_a_broker_is_near() -> None:
    size, distant = FetchSize(LIMITS), link(0.02, 400e6)
    assert sizes(size, distant, 6)[-1] == 4
    size.responded(100, 0.004, full=False, waiting=False)
    assert sizes(size, distant, 6) == [1] * 6


def test_a_client_that_is_busy_at_times_takes_no_near_broker_for_a_distant_one() -> None:
    size = FetchSize(LIMITS)
    near = link(0.006, 100e6)  # as far as such a client can see
    busy = {mib: 5 * seconds for mib, seconds in near.items()}
    for number in range(60):
        sizes(size, near if number % 3 == 2 else busy, 1)
    assert size.bytes == 2 * MIB


def test_a_size_is_not_given_up_for_a_few_slow_responses() -> None:
    size, quick = FetchSize(LIMITS), link(0.02, 400e6)
    sizes(size, quick, 5)
    assert size.bytes == 4 * MIB
    slow = dict.fromkeys(quick, 1.0)
    assert sizes(size, slow, 3) == [4] * 3
    assert sizes(size, quick, 2) == [4, 8], "one as quick as expected is enough"
    assert sizes(size, slow, 4) == [16] * 4
    assert sizes(size, quick, 2) == [8, 8], "four slow ones, and no other, end it"


@pytest.mark.parametrize(("full", "waiting"), [(False, True), (False, False), (True, False)])
def test_it_does_not_grow_while_partitions_have_less_or_the_user_is_slower(full: bool, waiting: bool) -> None:
    size = FetchSize(LIMITS)
    for _ in range(20):
        size.responded(MIB, 0.02, full=full, waiting=waiting)
    assert size.bytes == MIB


def test_smaller_requests_that_were_sent_before_do_not_count_against_it() -> None:
    size, seconds_of = FetchSize(LIMITS), link(0.02, 400e6)
    sizes(size, seconds_of, 6)
    before = size.bytes
    for smaller in (1, 2, 4):
        size.responded(smaller * MIB, seconds_of[smaller], full=True, waiting=True)
    assert size.bytes == before
