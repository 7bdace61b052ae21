"""Micro-batches: bounded, fair, and always some way ahead."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from odradek.spark.admission import (
    MicroBatchEnd,
    backlog,
    end_of_micro_batch,
    end_offsets,
    has_new_partitions,
    should_read,
)
from odradek.spark.options import ReadLimits
from odradek.spark.planning import BYTES, Extent, Range, SplitPoint, clip_to_logs
from odradek.types import GiB, MiB, Position, TopicPartition

P, Q, R = (TopicPartition("t", number, 0) for number in range(3))
Offsets = dict[TopicPartition, Position]


def at(*positions: int) -> Offsets:
    return {partition: Position(position) for partition, position in zip((P, Q, R), positions, strict=False)}


def logs(*extents: Extent) -> dict[TopicPartition, Extent]:
    return dict(zip((P, Q, R), extents, strict=False))


# ---- where all there is ends ---------------------------------------------------------------------------------


def test_the_target_is_the_end_of_every_log() -> None:
    assert end_offsets(at(5, 6), logs(Extent(0, 50), Extent(0, 60))) == at(50, 60)


def test_a_new_partition_enters_before_it_is_read() -> None:
    extents = logs(Extent(0, 50), Extent(40, 60), Extent(0, 70))
    first = end_offsets(at(5), extents)
    assert first == at(50, 40, 0)
    assert clip_to_logs(at(5), first, extents, fail_on_data_loss=True).ranges == (Range(P, 5, 50),)
    assert end_offsets(first, extents) == at(50, 60, 70)
    later = logs(Extent(0, 50), Extent(45, 60), Extent(0, 70))  # retention goes on between planning and reading again
    assert [gap.start for gap in clip_to_logs(first, at(50, 60, 70), later, fail_on_data_loss=False).gaps] == [40]


def test_a_new_partition_enters_when_it_has_something() -> None:
    assert has_new_partitions(at(5), logs(Extent(0, 50), Extent(40, 60)))
    assert not has_new_partitions(at(5), logs(Extent(0, 50), Extent(40, 40)))
    assert not has_new_partitions(at(5, 6), logs(Extent(0, 50), Extent(0, 60)))


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


# ---- whether it is time --------------------------------------------------------------------------------------


def test_a_batch_is_due_when_enough_waits_or_long_enough() -> None:
    limits = ReadLimits(None, 100, 60.0)
    assert should_read(100, limits, now=0.0, last=0.0)
    assert not should_read(99, limits, now=59.9, last=0.0)
    assert should_read(1, limits, now=60.0, last=0.0)
    assert not should_read(0, limits, now=1e9, last=0.0)
    assert should_read(1, ReadLimits(), now=0.0, last=0.0)


# ---- how much ------------------------------------------------------------------------------------------------


def test_without_a_limit_everything_is_read() -> None:
    assert end_of_micro_batch(at(0), at(9 * GiB), logs(Extent(0, 9 * GiB)), None) == MicroBatchEnd(at(9 * GiB), ())
    assert end_of_micro_batch(at(0), at(50), logs(Extent(0, 50)), 50) == MicroBatchEnd(at(50), ())


def test_shares_are_proportional_to_backlogs() -> None:
    extents = logs(Extent(0, 3 * GiB), Extent(0, 1 * GiB))
    admitted = end_of_micro_batch(at(0, 0), at(3 * GiB, 1 * GiB), extents, 1 * GiB)
    assert admitted.ends == {}
    assert admitted.cuts == (SplitPoint(P, 768 * MiB, 0, 3 * GiB), SplitPoint(Q, 256 * MiB, 0, 1 * GiB))
    assert pickle.loads(pickle.dumps(admitted)) == admitted


def test_a_known_boundary_in_the_second_half_of_a_share_ends_it() -> None:
    extents = logs(Extent(0, 4 * GiB, (0, 600 * MiB, 1200 * MiB)))
    assert end_of_micro_batch(at(0), at(4 * GiB), extents, 1 * GiB) == MicroBatchEnd(at(600 * MiB), ())
    assert end_of_micro_batch(at(0), at(4 * GiB), extents, 600 * MiB) == MicroBatchEnd(at(600 * MiB), ())
    assert end_of_micro_batch(at(0), at(4 * GiB), extents, 400 * MiB).cuts == (SplitPoint(P, 400 * MiB, 0, 600 * MiB),)
    from_within = end_of_micro_batch(at(700 * MiB), at(4 * GiB), extents, 1 * GiB)
    assert from_within.cuts == (SplitPoint(P, 1724 * MiB, 1200 * MiB, 4 * GiB),)


def test_a_small_limit_is_kept_to() -> None:
    admitted = end_of_micro_batch(
        at(0, 0), at(1 * GiB, 1 * GiB), logs(Extent(0, 1 * GiB), Extent(0, 1 * GiB)), 64 << 10
    )
    assert admitted == MicroBatchEnd({Q: Position(0)}, (SplitPoint(P, 64 << 10, 0, 1 * GiB),))


def test_what_has_lost_its_beginning_counts_from_where_it_begins() -> None:
    admitted = end_of_micro_batch(at(0), at(4 * GiB), logs(Extent(3 * GiB, 4 * GiB)), 256 * MiB)
    assert admitted.cuts == (SplitPoint(P, 3 * GiB + 256 * MiB, 3 * GiB, 4 * GiB),)


def test_cuts_end_where_boundaries_were_found_or_are_known() -> None:
    cut, other = SplitPoint(P, 100, 0, 500), SplitPoint(Q, 100, 0, 500)
    admitted = MicroBatchEnd({R: Position(7)}, (other, cut))
    ends = admitted.with_boundaries({cut: 120, other: None})
    assert ends == at(120, 500, 7)
    assert list(ends) == [P, Q, R]


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
        admitted = end_of_micro_batch(start, end, extents, limit)
        boundaries = {cut: min(cut.position + overshoot % 1000, cut.ceiling) for cut in admitted.cuts}
        following = admitted.with_boundaries(boundaries)
        taken = sum(following[p] - start[p] for p in partitions)
        assert 0 < taken <= limit + 1000 * len(boundaries)
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
        admitted = end_of_micro_batch(start, end, extents, 3 * BYTES.min_share)
        start = admitted.with_boundaries({cut: cut.position + 77 for cut in admitted.cuts})
        latest += 50 * BYTES.min_share
    assert all(position >= 5 * BYTES.min_share for position in start.values())
