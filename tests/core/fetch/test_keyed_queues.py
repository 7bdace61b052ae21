"""Lanes keep order within, and share the hands between."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.fetch.keyed_queues import KeyedQueues


def test_a_lane_is_worked_one_item_at_a_time() -> None:
    lanes: KeyedQueues[int] = KeyedQueues()
    lanes.put("a", 1)
    lanes.put("a", 2)
    lanes.put("b", 3)
    assert lanes.ready == 2
    assert lanes.take() == ("a", 1) and lanes.take() == ("b", 3) and lanes.take() is None
    lanes.finish("a")
    assert lanes.take() == ("a", 2)


def test_dropping_leaves_busy_lanes_busy() -> None:
    lanes: KeyedQueues[int] = KeyedQueues()
    for item in (1, 2):
        lanes.put("a", item)
    lanes.put("b", 3)
    assert lanes.take() == ("a", 1)
    assert sorted(lanes.drop()) == [2, 3]
    lanes.put("a", 4)
    assert lanes.ready == 0
    lanes.finish("a")
    assert lanes.take() == ("a", 4)
    lanes.put("b", 5)
    assert lanes.take() == ("b", 5)


@given(st.lists(st.integers(0, 4)), st.integers(1, 5), st.randoms())
def test_every_item_comes_once_and_in_the_order_of_its_lane(work: list[int], hands: int, chance: Random) -> None:
    lanes: KeyedQueues[tuple[int, int]] = KeyedQueues()
    for number, lane in enumerate(work):
        lanes.put(lane, (lane, number))
    seen: list[tuple[int, int]] = []
    busy: list[int] = []
    while len(seen) < len(work):
        while len(busy) < hands and (taken := lanes.take()) is not None:
            at, item = taken
            assert isinstance(at, int) and at not in busy
            busy.append(at)
            seen.append(item)
        lanes.finish(busy.pop(chance.randrange(len(busy))))
    for lane in range(5):
        numbers = [number for at, number in seen if at == lane]
        assert numbers == sorted(numbers) and len(numbers) == work.count(lane)
