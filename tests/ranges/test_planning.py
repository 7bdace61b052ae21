"""Plans: everything is read once, nothing twice, and what logs do not have is said in numbers."""

from __future__ import annotations

import pickle
import time
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.interfaces import BYTES, RECORDS, Extent, SplitPoint
from odradek.errors import ConfigError
from odradek.ranges.offsets import resolve_per_partition
from odradek.ranges.planning import (
    SPLIT_TOLERANCE,
    DataLoss,
    Loss,
    PositionGap,
    Range,
    clip_to_logs,
    pack,
    propose_splits,
    split,
    within,
)
from odradek.ranges.request import ReadRequest, Topics
from odradek.types import EARLIEST, AtTime, MiB, Position, TopicPartition

P, Q = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)
SPLIT_BYTES = 100
LEADER = attrgetter("broker")
"""As in 0.7: partitions name their brokers."""

OPTIONS = ReadRequest((), Topics(), EARLIEST)


def at(position: int) -> dict[TopicPartition, Position]:
    return {P: Position(position)}


# ---- from options to positions -------------------------------------------------------------------------------


def test_one_place_holds_for_all_partitions() -> None:
    assert resolve_per_partition([P, Q], EARLIEST, "option startingOffsets") == {P: EARLIEST, Q: EARLIEST}
    assert resolve_per_partition([P], AtTime(7.0), "option startingTimestamp") == {P: AtTime(7.0)}


def test_places_one_by_one_are_for_exactly_the_partitions_there_are() -> None:
    assert resolve_per_partition([P], at(5), "option startingOffsets") == {P: 5}
    with pytest.raises(ConfigError, match="option startingOffsets says nothing about t/1-0"):
        resolve_per_partition([P, Q], at(5), "option startingOffsets")
    with pytest.raises(
        ConfigError, match="option startingOffsets names partitions that are not part of this query: t/0-0"
    ):
        resolve_per_partition([], at(5), "option startingOffsets")
    many = [TopicPartition("t", number, 0) for number in range(12)]
    with pytest.raises(ConfigError, match="t/0-9 and 2 more"):
        resolve_per_partition(many, {}, "option startingOffsets")


def test_a_run_ends_where_logs_ended_when_it_began() -> None:
    now = {P: Extent(10, 90), Q: Extent(20, 30)}
    assert within(now, {P: 50}) == {P: Extent(10, 50)}
    assert within(now, {P: 100, Q: 5}) == {
        P: Extent(10, 90),
        Q: Extent(20, 20),
    }  # created again; retention went past its end


# ---- data loss -----------------------------------------------------------------------------------------------

MATRIX = [
    # start, end, log -> what is read, and what is missing
    (10, 90, Extent(0, 100), [(10, 90)], []),
    (10, 90, Extent(10, 90), [(10, 90)], []),
    (10, 10, None, [], []),
    (10, 10, Extent(20, 30), [], []),
    (10, 90, None, [], [(Loss.GONE, 10, 90, 90)]),
    (10, 90, Extent(40, 100), [(40, 90)], [(Loss.EXPIRED, 10, 40, 40)]),
    (10, 90, Extent(95, 100), [], [(Loss.EXPIRED, 10, 90, 90)]),
    (10, 90, Extent(0, 50), [(10, 50)], [(Loss.TRUNCATED, 50, 90, 90)]),
    (60, 90, Extent(0, 50), [], [(Loss.TRUNCATED, 60, 90, 90)]),
    (10, 90, Extent(20, 50), [(20, 50)], [(Loss.EXPIRED, 10, 20, 20), (Loss.TRUNCATED, 50, 90, 90)]),
    (90, 50, Extent(0, 50), [(0, 50)], [(Loss.TRUNCATED, 90, 50, 0)]),
    (90, 50, Extent(0, 70), [(0, 50)], [(Loss.TRUNCATED, 90, 50, 0)]),
    (90, 50, Extent(20, 40), [(20, 40)], [(Loss.TRUNCATED, 90, 50, 20), (Loss.TRUNCATED, 40, 50, 50)]),
    (90, 50, None, [], [(Loss.GONE, 90, 50, 50)]),
]


@pytest.mark.parametrize(("start", "end", "log", "read", "missing"), MATRIX)
def test_what_logs_do_not_have_is_a_gap(
    start: int,
    end: int,
    log: Extent | None,
    read: list[tuple[int, int]],
    missing: list[tuple[Loss, int, int, int]],
) -> None:
    logs = {} if log is None else {P: log}
    ranges, gaps = clip_to_logs(at(start), at(end), logs)
    assert ranges == [Range(P, a, b) for a, b in read]
    earliest, latest = (-1, -1) if log is None else (log.earliest, log.latest)
    assert gaps == [
        PositionGap(P, loss, begin, stop, earliest, latest, resumed) for loss, begin, stop, resumed in missing
    ]
    replace(OPTIONS, fail_on_data_loss=False).check_loss(gaps)
    if missing:
        with pytest.raises(DataLoss) as caught:
            OPTIONS.check_loss(gaps)
        assert caught.value.gaps == tuple(gaps)
    else:
        OPTIONS.check_loss(gaps)


@given(*[st.integers(0, 50)] * 4)
def test_ranges_and_gaps_together_are_what_was_asked_for(start: int, size: int, earliest: int, length: int) -> None:
    log = Extent(earliest, earliest + length)
    ranges, gaps = clip_to_logs(at(start), at(start + size), {P: log})
    parts = [(r.start, r.end) for r in ranges] + [(gap.start, gap.end) for gap in gaps]
    covered = [position for part in parts for position in range(*part)]
    assert sorted(covered) == list(range(start, start + size))
    assert all(log.earliest <= r.start < r.end <= log.latest for r in ranges)


def test_data_loss_is_told_in_numbers_and_survives_pickling() -> None:
    with pytest.raises(DataLoss) as caught:
        OPTIONS.check_loss(clip_to_logs(at(10), at(90), {P: Extent(40, 100)})[1])
    text = str(caught.value)
    assert text.startswith("data was lost: t/0-0: deleted by retention: wanted [10, 40), the log now has [40, 100)")
    assert "fail_on_data_loss=False" in text
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.gaps) == (text, caught.value.gaps)


def test_many_gaps_are_not_all_spelled_out() -> None:
    partitions = [TopicPartition("t", number, 0) for number in range(12)]
    end = dict.fromkeys(partitions, Position(9))
    start = dict.fromkeys(partitions, Position(0))
    with pytest.raises(DataLoss, match=r"t/0-9: no broker has this partition: wanted \[0, 9\); and 2 more partitions"):
        OPTIONS.check_loss(clip_to_logs(start, end, {})[1])


def test_nothing_is_read_of_a_partition_that_the_start_does_not_name() -> None:
    assert clip_to_logs({}, at(50), {P: Extent(10, 60)}) == ([], [])


# ---- dividing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "work"),
    [
        (0, (1, BYTES.min_split)),
        (1, (1, BYTES.min_split)),
        (128 * MiB, (1, 128 * MiB)),
        (128 * MiB + 1, (2, 64 * MiB + 1)),
        (1280 * MiB, (8, 160 * MiB)),
    ],
)
def test_tasks_are_as_few_as_their_size_allows_but_no_more_than_may_be(total: int, work: tuple[int, int]) -> None:
    assert replace(OPTIONS, max_tasks=8).size_tasks(total, BYTES) == work


def test_there_are_at_least_so_many_tasks_if_there_is_something_to_divide() -> None:
    options = replace(OPTIONS, min_tasks=4, max_tasks=8)
    assert options.size_tasks(64 * MiB, BYTES) == (4, 16 * MiB)
    assert options.size_tasks(1 * MiB, BYTES) == (4, BYTES.min_split)
    assert replace(options, max_tasks=None, min_tasks=10_000).size_tasks(1 * MiB, BYTES) == (10_000, BYTES.min_split)


def test_a_size_that_is_given_is_kept_to_however_few_cores_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert OPTIONS.size_tasks(100 * RECORDS.task_size, RECORDS) == (8, 12_500_000)
    options = replace(OPTIONS, task_size=1000)
    assert options.size_tasks(100_000, RECORDS) == (100, 1000)
    assert replace(options, max_tasks=8).size_tasks(100_000, RECORDS) == (8, 12_500)


def test_small_ranges_are_not_cut() -> None:
    logs = {P: Extent(0, 1000, (0, 50, 90))}
    assert propose_splits([Range(P, 0, 125)], logs, SPLIT_BYTES) == []


def test_cuts_at_known_boundaries_come_first() -> None:
    logs = {P: Extent(0, 1000, (0, 90, 180, 270, 400))}
    assert propose_splits([Range(P, 0, 360)], logs, SPLIT_BYTES) == [
        SplitPoint(P, 90, 90, 90),
        SplitPoint(P, 180, 180, 180),
        SplitPoint(P, 270, 270, 270),
    ]


def test_small_segments_stay_together() -> None:
    logs = {P: Extent(0, 300, tuple(range(0, 300, 30)))}
    assert [cut.position for cut in propose_splits([Range(P, 0, 300)], logs, SPLIT_BYTES)] == [120, 240]


def test_between_known_boundaries_cuts_are_proposed_with_both_beside_them() -> None:
    logs = {P: Extent(0, 1000, (0, 300))}
    assert propose_splits([Range(P, 0, 380)], logs, SPLIT_BYTES) == [
        SplitPoint(P, 100, 0, 300),
        SplitPoint(P, 200, 0, 300),
        SplitPoint(P, 300, 300, 300),
    ]


@given(st.sets(st.integers(0, 3000), max_size=12), st.integers(0, 3000), st.integers(0, 3000), st.integers(10, 500))
def test_cuts_are_between_what_is_known_and_make_pieces_of_the_size(
    known: set[int], start: int, size: int, limit: int
) -> None:
    part = Range(P, start, start + size)
    logs = {P: Extent(0, 6000, tuple(sorted(known)))}
    cuts = propose_splits([part], logs, limit)
    for cut in cuts:
        assert part.start < cut.position < part.end
        assert cut.floor <= cut.position <= cut.ceiling
        assert {cut.floor, cut.ceiling} <= known | {part.start, part.end}
        assert cut.floor == cut.position or not any(cut.floor < position < cut.ceiling for position in known)
    parts = split([part], [(cut.partition, cut.position) for cut in cuts])
    assert all(r.size <= limit * SPLIT_TOLERANCE + 1 for r in parts)
    assert len(cuts) <= size // (limit // 2) + 1  # most pieces are no smaller than half of it


def test_dividing_takes_what_was_found_wherever_it_is() -> None:
    ranges = [Range(P, 0, 100), Range(Q, 50, 90)]
    cuts = [(P, 60), (P, 60), (P, 0), (P, 100), (P, 700), (Q, 49), (Q, 51)]
    assert split(ranges, cuts) == [Range(P, 0, 60), Range(P, 60, 100), Range(Q, 50, 51), Range(Q, 51, 90)]
    assert split(ranges, []) == ranges


# ---- packing -------------------------------------------------------------------------------------------------


def size(task: tuple[Range, ...]) -> int:
    return sum(part.size for part in task)


RANGES = st.lists(
    st.builds(Range, st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3)),
              st.just(0), st.integers(0, 1000)),
    unique_by=lambda r: r.partition,
)  # fmt: skip


@given(RANGES, st.integers(1, 9), st.none() | st.integers(1, 3), st.integers(1, 400))
def test_every_byte_is_in_exactly_one_task(ranges: list[Range], tasks: int, fetchers: int | None, limit: int) -> None:
    logs = {r.partition: Extent(0, r.end) for r in ranges}
    parts = split(ranges, [(cut.partition, cut.position) for cut in propose_splits(ranges, logs, limit)])
    packed = pack(parts, tasks, fetchers=fetchers, leader=LEADER)
    assert len(packed) <= tasks
    assert all(packed)
    again = sorted(r for task in packed for r in task)
    by_partition: dict[TopicPartition, list[Range]] = {}
    for r in again:
        by_partition.setdefault(r.partition, []).append(r)
    for partition, parts in by_partition.items():
        assert parts[0].start == 0
        assert all(a.end == b.start for a, b in pairwise(parts))
        assert parts[-1].end == logs[partition].latest
    assert by_partition.keys() == {r.partition for r in ranges if r.size}
    if fetchers is not None:
        for broker in range(4):
            assert sum(any(r.partition.broker == broker for r in task) for task in packed) <= fetchers
    assert pickle.loads(pickle.dumps(packed)) == packed


@given(RANGES, st.integers(1, 9))
def test_tasks_have_about_the_same_size(ranges: list[Range], tasks: int) -> None:
    packed = pack(ranges, tasks, leader=LEADER)
    if packed:
        fair = max(sum(r.size for r in ranges) / tasks, max(r.size for r in ranges))
        assert max(map(size, packed)) <= 4 / 3 * fair + 1 or max(map(size, packed)) <= 2 * fair


def test_the_largest_go_first_each_to_the_emptiest_task() -> None:
    sizes = [7, 6, 5, 4, 3, 2]
    packed = pack([Range(TopicPartition("t", n, 0), 0, size) for n, size in enumerate(sizes)], 2, leader=LEADER)
    assert [size(task) for task in packed] == [14, 13]


def test_a_broker_is_spread_over_tasks_and_tasks_begin_with_different_brokers() -> None:
    ranges = [Range(TopicPartition("t", n, broker), 0, 100) for broker in range(4) for n in range(8)]
    packed = pack(ranges, 4, leader=LEADER)
    for task in packed:
        assert [r.partition.broker for r in task].count(0) == 2
    assert {task[0].partition.broker for task in packed} == {0, 1, 2, 3}


def test_neighbours_in_one_task_are_joined() -> None:
    assert pack([Range(P, 0, 10), Range(P, 10, 30), Range(P, 40, 50)], 1, leader=LEADER) == [
        (Range(P, 0, 30), Range(P, 40, 50))
    ]


def test_nothing_to_read_needs_no_task() -> None:
    assert pack([], 4, leader=LEADER) == []
    assert pack([Range(P, 5, 5)], 4, leader=LEADER) == []
    assert pack([], 4, fetchers=1, leader=LEADER) == []


def test_planning_takes_time_in_proportion_to_the_partitions() -> None:
    def seconds(count: int) -> float:
        partitions = [TopicPartition(f"topic{n % 100}", n // 4000, n // 100 % 40) for n in range(count)]
        logs = {p: Extent(0, 1000 + n * 997 % 50_000_000) for n, p in enumerate(partitions)}
        end = {p: Position(log.latest) for p, log in logs.items()}
        began = time.thread_time()
        ranges = clip_to_logs(dict.fromkeys(end, Position(0)), end, logs)[0]
        _, split_size = replace(OPTIONS, max_tasks=400).size_tasks(sum(r.size for r in ranges), BYTES)
        cuts = propose_splits(ranges, logs, split_size)
        packed = pack(split(ranges, [(cut.partition, cut.position) for cut in cuts]), 400, leader=LEADER)
        took = time.thread_time() - began
        assert len(packed) == 400
        largest = max(packed, key=size)
        assert size(largest) <= split_size * SPLIT_TOLERANCE
        assert len(pickle.dumps(largest)) < 32 * len(largest) + 500
        return took

    few, many = min(seconds(1_500) for _ in range(3)), seconds(30_000)
    assert many < 20 * few * 5  # quadratic would be 400 times
