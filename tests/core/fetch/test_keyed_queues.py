"""Queues keep the order of a key, and keys are processed in parallel."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from odradek.core.fetch.keyed_queues import KeyedQueues


def test_items_of_one_key_are_processed_one_at_a_time() -> None:
    queues: KeyedQueues[int] = KeyedQueues()
    queues.put("a", 1)
    queues.put("a", 2)
    queues.put("b", 3)
    assert queues.ready == 2
    assert queues.pop() == ("a", 1) and queues.pop() == ("b", 3) and queues.pop() is None
    queues.finish("a")
    assert queues.pop() == ("a", 2)


def test_dropping_leaves_busy_keys_busy() -> None:
    queues: KeyedQueues[int] = KeyedQueues()
    for item in (1, 2):
        queues.put("a", item)
    queues.put("b", 3)
    assert queues.pop() == ("a", 1)
    assert sorted(queues.drop(lambda item: True)) == [2, 3]
    queues.put("a", 4)
    assert queues.ready == 0
    queues.finish("a")
    assert queues.pop() == ("a", 4)
    queues.put("b", 5)
    assert queues.pop() == ("b", 5)


def test_dropping_some_items_keeps_the_order_of_the_others() -> None:
    queues: KeyedQueues[int] = KeyedQueues()
    for item in range(6):
        queues.put("ab"[item % 2], item)
    queues.put("c", 7)
    assert queues.drop(lambda item: item in (2, 3, 7)) == [2, 3, 7]
    assert queues.ready == 2
    assert [queues.pop(), queues.pop()] == [("a", 0), ("b", 1)]
    queues.finish("a")
    assert queues.pop() == ("a", 4)


@given(st.lists(st.integers(0, 4)), st.integers(1, 5), st.randoms())
def test_every_item_comes_once_and_in_the_order_of_its_key(work: list[int], workers: int, chance: Random) -> None:
    queues: KeyedQueues[tuple[int, int]] = KeyedQueues()
    for number, key in enumerate(work):
        queues.put(key, (key, number))
    seen: list[tuple[int, int]] = []
    busy: list[int] = []
    while len(seen) < len(work):
        while len(busy) < workers and (popped := queues.pop()) is not None:
            at, item = popped
            assert isinstance(at, int) and at not in busy
            busy.append(at)
            seen.append(item)
        queues.finish(busy.pop(chance.randrange(len(busy))))
    for key in range(5):
        numbers = [number for at, number in seen if at == key]
        assert numbers == sorted(numbers) and len(numbers) == work.count(key)
