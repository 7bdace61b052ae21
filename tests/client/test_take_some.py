"""Rows of several partitions in one step: bounded in bytes, fair, errors in their place."""

from __future__ import annotations

from itertools import pairwise

import pytest

from odradek.client.options import Tuning
from odradek.errors import CorruptMessage
from odradek.types import LATEST

from ..payloads import payloads
from .one_member import make_cluster, numbered, tp
from .reading import all_in_steps, one_step, reading

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("max_bytes", [1, 5, 6, 7, 100, 1000, 1 << 20])
async def test_a_step_has_at_most_so_many_bytes_and_at_least_a_row(max_bytes: int) -> None:
    cluster = make_cluster(100, 100, 100)
    async with reading(cluster, until=LATEST, tuning=Tuning(fetch_bytes=300)) as reader:
        steps = await all_in_steps(reader, max_bytes)
    sizes = [sum(batch.columns.payload_bytes for batch in step) for step in steps]
    assert max(sizes) <= max(6, max_bytes)
    batches = [batch for step in steps for batch in step]
    for n in range(3):
        values = [value for batch in batches if batch.partition == tp(n) for value in batch.values]
        assert values == numbered(100, 100 * n)


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
            while step := await one_step(reader, 1 << 20):
                values += [value for batch in step for value in payloads(batch.values)]
        assert sorted(values[:2]) == numbered(2)
        while step := await one_step(reader, 1 << 20):
            values += [value for batch in step for value in payloads(batch.values)]
    assert sorted(values) == [*numbered(2), *numbered(5, 3)]
