"""Micro-batches: bounded, fair, and always some way ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.interfaces import BYTES, RECORDS, Extent, SplitPoint
from odradek.ranges.planning import Range, clip_to_logs, end_of_micro_batch, end_offsets
from odradek.spark.readers import lag_metrics
from odradek.types import GiB, MiB, Position, TopicPartition

P, Q, R = (TopicPartition("t", number, 0) for number in range(3))
Offsets = dict[TopicPartition, Position]


def at(*positions: int) -> Offsets:
    return {partition: Position(position) for partition, position in zip((P, Q, R), positions, strict=False)}


def backlog(start: Offsets, end: Offsets, extents: dict[TopicPartition, Extent]) -> dict[TopicPartition, int]:
    return {part.partition: part.size for part in clip_to_logs(start, end, extents)[0]}


def logs(*extents: Extent) -> dict[TopicPartition, Extent]:
    return dict(zip((P, Q, R), extents, strict=False))


# ---- where all there is ends ---------------------------------------------------------------------------------


def test_the_target_is_the_end_of_every_log() -> None:
    assert end_offsets(at(5, 6), logs(Extent(0, 50), Extent(0, 60))) == at(50, 60)


def test_a_new_partition_enters_before_it_is_read() -> None:
    extents = logs(Extent(0, 50), Extent(40, 60), Extent(0, 70))
    first = end_offsets(at(5), extents)
    assert first == at(50, 40, 0)
    assert clip_to_logs(at(5), first, extents) == ([Range(P, 5, 50)], [])
    assert end_offsets(first, extents) == at(50, 60, 70)
    later = logs(Extent(0, 50), Extent(45, 60), Extent(0, 70))  # retention goes on between planning and reading again
    assert [gap.start for gap in clip_to_logs(first, at(50, 60, 70), later)[1]] == [40]


def test_a_partition_that_is_away_stays_where_it_is() -> None:
    assert end_offsets(at(5, 6), logs(Extent(0, 50))) == at(50, 6)


def test_a_recreated_log_is_read_to_its_new_end() -> None:
    assert end_offsets(at(500), logs(Extent(0, 50))) == at(50)
    assert backlog(at(500), at(50), logs(Extent(0, 50))) == {P: 50}


def test_backlog_is_what_logs_still_have() -> None:
    extents = logs(Extent(20, 50), Extent(0, 60))
    assert backlog(at(5, 60, 7), at(50, 60, 9), extents) == {P: 30}
    assert backlog(at(5), at(50, 60), extents) == {P: 30}
    assert backlog(at(5), at(10), extents) == {}


# ---- how much ------------------------------------------------------------------------------------------------


def test_without_a_limit_everything_is_read() -> None:
    assert end_of_micro_batch(at(0), at(9 * GiB), logs(Extent(0, 9 * GiB)), None) == (at(9 * GiB), [])
    assert end_of_micro_batch(at(0), at(50), logs(Extent(0, 50)), 50) == (at(50), [])


def test_shares_are_proportional_to_backlogs() -> None:
    extents = logs(Extent(0, 3 * GiB), Extent(0, 1 * GiB))
    _, cuts = end_of_micro_batch(at(0, 0), at(3 * GiB, 1 * GiB), extents, 1 * GiB)
    assert cuts == [SplitPoint(P, 768 * MiB, 0, 3 * GiB), SplitPoint(Q, 256 * MiB, 0, 1 * GiB)]


def test_a_known_boundary_in_the_second_half_of_a_share_ends_it() -> None:
    extents = logs(Extent(0, 4 * GiB, (0, 600 * MiB, 1200 * MiB)))
    assert end_of_micro_batch(at(0), at(4 * GiB), extents, 1 * GiB) == (at(600 * MiB), [])
    assert end_of_micro_batch(at(0), at(4 * GiB), extents, 600 * MiB) == (at(600 * MiB), [])
    _, cuts = end_of_micro_batch(at(0), at(4 * GiB), extents, 400 * MiB)
    assert cuts == [SplitPoint(P, 400 * MiB, 0, 600 * MiB)]
    _, cuts = end_of_micro_batch(at(700 * MiB), at(4 * GiB), extents, 1 * GiB)
    assert cuts == [SplitPoint(P, 1724 * MiB, 1200 * MiB, 4 * GiB)]


def test_a_small_limit_is_kept_to() -> None:
    admitted = end_of_micro_batch(
        at(0, 0), at(1 * GiB, 1 * GiB), logs(Extent(0, 1 * GiB), Extent(0, 1 * GiB)), 64 << 10
    )
    assert admitted == (at(1 * GiB, 0), [SplitPoint(P, 64 << 10, 0, 1 * GiB)])


def test_small_shares_together_are_no_more_than_the_limit() -> None:
    limit, size = 2 * BYTES.min_share, 3 * BYTES.min_share
    _, cuts = end_of_micro_batch(at(0, 0, 0), at(size, size, size), logs(*[Extent(0, size)] * 3), limit)
    assert [cut.partition for cut in cuts] == [P, Q]
    assert limit - 3 < sum(cut.position for cut in cuts) <= limit


def test_what_has_lost_its_beginning_counts_from_where_it_begins() -> None:
    _, cuts = end_of_micro_batch(at(0), at(4 * GiB), logs(Extent(3 * GiB, 4 * GiB)), 256 * MiB)
    assert cuts == [SplitPoint(P, 3 * GiB + 256 * MiB, 3 * GiB, 4 * GiB)]


def test_until_a_boundary_is_proved_a_cut_ends_at_the_next_one_that_is_known() -> None:
    extents = logs(Extent(0, 4 * GiB, (0, 3 * GiB)), Extent(0, 4 * GiB), Extent(0, 7))
    ends, cuts = end_of_micro_batch(at(0, 0, 7), at(4 * GiB, 4 * GiB, 7), extents, 1 * GiB)
    assert ends == at(3 * GiB, 4 * GiB, 7)
    assert list(ends) == [P, Q, R]
    assert [(cut.partition, cut.ceiling) for cut in cuts] == [(P, 3 * GiB), (Q, 4 * GiB)]


SMALL = st.integers(1, 3 * BYTES.min_share)


@given(st.lists(SMALL, min_size=1, max_size=20), st.integers(1, 5 * BYTES.min_share), st.integers(0, 1 << 30))
def test_a_backlog_is_worked_off_within_the_limit_and_nobody_is_left_behind(
    sizes: list[int], limit: int, overshoot: int
) -> None:
    partitions = [TopicPartition("t", n, n % 3) for n in range(len(sizes))]
    extents = {p: Extent(0, size) for p, size in zip(partitions, sizes, strict=True)}
    start = dict.fromkeys(partitions, Position(0))
    end = {p: Position(log.latest) for p, log in extents.items()}
    if limit < 1 * MiB:
        limit += 1 * MiB
    for _ in range(4 * (sum(sizes) // limit + len(sizes)) + 4):
        if start == end:
            break
        following, cuts = end_of_micro_batch(start, end, extents, limit)
        following |= {cut.partition: Position(min(cut.position + overshoot % 1000, cut.ceiling)) for cut in cuts}
        taken = sum(following[p] - start[p] for p in partitions)
        assert 0 < taken <= limit + 1000 * len(cuts)
        assert all(start[p] <= following[p] <= end[p] for p in partitions)
        start = following
    assert start == end


def test_partitions_take_turns_while_logs_grow() -> None:
    partitions = [TopicPartition("t", n, 0) for n in range(10)]
    start = dict.fromkeys(partitions, Position(0))
    latest = 100 * BYTES.min_share
    for _ in range(20):
        extents = {p: Extent(0, latest) for p in partitions}
        end = {p: Position(latest) for p in partitions}
        start, cuts = end_of_micro_batch(start, end, extents, 3 * BYTES.min_share)
        start |= {cut.partition: Position(cut.position + 77) for cut in cuts}
        latest += 50 * BYTES.min_share
    assert all(position >= 5 * BYTES.min_share for position in start.values())


# ---- lag -----------------------------------------------------------------------------------------------------


def test_the_lag_is_counted_per_log_and_in_total() -> None:
    current = logs(Extent(0, 100), Extent(10, 50))
    assert lag_metrics(at(), {}, [], 0.0, BYTES) == {}
    assert lag_metrics(at(70), current, [], 0.0, RECORDS) == {
        "minOffsetsBehindLatest": 30,
        "maxOffsetsBehindLatest": 40,  # a log that is not read yet is behind by all it has
        "avgOffsetsBehindLatest": 35.0,
        "totalOffsetsBehindLatest": 70,
    }
    assert lag_metrics(at(100, 50), current, [], 0.0, BYTES)["totalBytesBehindLatest"] == 0


def test_the_lag_in_time_is_the_age_of_the_ends_that_are_reached() -> None:
    observed = [(10.0, 100), (20.0, 200), (30.0, 300)]
    seconds = {
        reached: lag_metrics(at(reached), logs(Extent(0, 300)), observed, 40.0, RECORDS).get("secondsBehindLatest")
        for reached in (99, 100, 250, 300)
    }
    assert seconds == {99: None, 100: 30.0, 250: 20.0, 300: 0.0}
