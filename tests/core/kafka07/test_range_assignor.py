"""The range rule covers every partition once; the driver guide's example does not."""

from __future__ import annotations

import random

import pytest

from odradek.core.kafka07.range_assignor import assign_range
from odradek.types import TopicPartition


def partitions(count: int, broker: int = 1) -> list[TopicPartition]:
    return [TopicPartition("t", n, broker) for n in range(count)]


def cut(count: int, threads: int) -> list[list[int]]:
    """Partition ranks (indexes in string order) per thread."""
    names = [f"c{i:03}" for i in range(threads)]
    ranked = sorted(partitions(count), key=lambda p: p.name)
    runs = assign_range(partitions(count), names)
    return [[ranked.index(p) for p in runs[name]] for name in names]


def guide(count: int, threads: int) -> list[list[int]]:
    """The example of the driver guide, with the integer division it relies on."""
    per, extra = count // threads, count % threads
    runs = []
    for i in range(threads):
        start = i * per + (i if 1 <= i <= extra else 0)
        runs.append(list(range(start, min(start + per + (1 if i < extra else 0), count))))
    return runs


CASE_40 = [
    (4, 3, [[0, 1], [2], [3]]),
    (5, 4, [[0, 1], [2], [3], [4]]),
    (6, 4, [[0, 1], [2, 3], [4], [5]]),
    (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
    (11, 5, [[0, 1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]),
]


@pytest.mark.parametrize(("count", "threads", "expected"), CASE_40)
def test_case_40_assignment_equals_the_range_rule(count: int, threads: int, expected: list[list[int]]) -> None:
    assert cut(count, threads) == expected


def test_case_40_eleven_partitions_of_one_broker_sort_as_strings() -> None:
    (run,) = assign_range(partitions(11), ["c"]).values()
    assert [p.name for p in run] == ["1-0", "1-1", "1-10", *(f"1-{n}" for n in range(2, 10))]


def test_broker_ten_sorts_before_broker_two_and_thread_ten_before_thread_two() -> None:
    runs = assign_range(partitions(1, broker=2) + partitions(1, broker=10), ["c-2", "c-10"])
    assert {thread: [p.name for p in run] for thread, run in runs.items()} == {"c-10": ["10-0"], "c-2": ["2-0"]}


def test_every_partition_is_assigned_once_in_contiguous_ranges_of_even_size() -> None:
    for threads in range(1, 20):
        for count in range(60):
            runs = cut(count, threads)
            assert [p for run in runs for p in run] == list(range(count)), (count, threads)
            sizes = [len(run) for run in runs]
            assert max(sizes) - min(sizes) <= 1
            assert sizes == sorted(sizes, reverse=True)


def test_the_guides_example_loses_partitions_exactly_where_the_specification_says() -> None:
    for threads in range(1, 40):
        for count in range(120):
            q, r = divmod(count, threads)
            assigned = [p for run in guide(count, threads) for p in run]
            lost = sorted(set(range(count)) - set(assigned))
            wrong = threads >= 3 and count > threads and 1 <= r <= threads - 2
            assert (sorted(assigned) != list(range(count))) == wrong, (count, threads)
            assert lost == list(range(count - min(r, q * (threads - 1 - r)), count) if wrong else [])


@pytest.mark.parametrize(
    ("count", "threads", "expected"),
    [
        (4, 3, [[0, 1], [2], [2]]),
        (5, 4, [[0, 1], [2], [2], [3]]),
        (6, 4, [[0, 1], [2, 3], [4], [3]]),
    ],
)
def test_the_guides_example_divides_like_this(count: int, threads: int, expected: list[list[int]]) -> None:
    assert guide(count, threads) == expected
    assert cut(count, threads) != expected


def test_the_result_does_not_depend_on_the_order_of_the_input() -> None:
    ps, threads = partitions(23), [f"c-{n}" for n in range(7)]
    expected = assign_range(ps, threads)
    rng = random.Random(0)
    for _ in range(20):
        assert assign_range(rng.sample(ps, len(ps)), rng.sample(threads, len(threads))) == expected


def test_no_threads_and_no_partitions_are_fine() -> None:
    assert assign_range(partitions(3), []) == {}
    assert assign_range([], ["a", "b"]) == {"a": [], "b": []}
