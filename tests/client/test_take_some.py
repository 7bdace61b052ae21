"""Rows of several partitions in one step: bounded in bytes, fair, errors in their place."""

from __future__ import annotations

from itertools import pairwise

import pytest

from odradek.client.options import Tuning
from odradek.errors import CorruptMessage
from odradek.types import LATEST

from .one_member import make_cluster, numbered, tp
from .reading import all_in_steps, assert_bounded, reading, take_in_steps

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("max_bytes", [1, 5, 6, 7, 100, 1000, 1 << 20])
async def test_a_step_has_at_most_so_many_bytes_and_at_least_a_row(max_bytes: int) -> None:
    cluster = make_cluster(100, 100, 100)
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=300)) as reader:
        steps = await all_in_steps(reader, max_bytes)
    assert_bounded(steps, max_bytes, [tp(0), tp(1), tp(2)])


async def test_partitions_take_turns_within_a_step() -> None:
    cluster = make_cluster(400, 400)
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=160)) as reader:
        steps = await all_in_steps(reader, 1 << 20)
    order = [batch.partition.partition for step in steps for batch in step]
    assert len(order) > 20, "of many fetches"
    assert sum(a != b for a, b in pairwise(order)) > len(order) // 2


async def test_an_error_comes_behind_what_is_good_and_alone() -> None:
    cluster = make_cluster(3, 5)
    cluster.corrupt(tp(0), 2)
    async with reading(cluster, until=LATEST) as reader:
        values: list[bytes] = []
        with pytest.raises(CorruptMessage, match="t/0 at 2"):
            await take_in_steps(reader, values)
        assert sorted(values[:2]) == numbered(2)
        await take_in_steps(reader, values)
    assert sorted(values) == [*numbered(2), *numbered(5, 3)]
