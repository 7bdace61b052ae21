"""Rows of several partitions in one step: bounded in bytes, fair, errors in their place."""

from __future__ import annotations

from itertools import pairwise

import pytest

from odradek.batch import Batch
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.errors import CorruptMessage
from odradek.types import LATEST
from odradek.wire.compression import CompressionType

from ..payloads import payloads
from .consuming import LogDriver, tp

pytestmark = pytest.mark.anyio


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%06d" % n for n in range(first, first + count)]


async def some(reader: Reader, max_bytes: int) -> list[Batch]:
    return await reader._stream.next_batches(max_bytes)


async def all_in_steps(reader: Reader, max_bytes: int) -> list[list[Batch]]:
    steps: list[list[Batch]] = []
    while step := await some(reader, max_bytes):
        steps.append(step)
    return steps


@pytest.mark.parametrize("max_bytes", [1, 5, 6, 7, 100, 1000, 1 << 20])
async def test_a_step_has_at_most_so_many_bytes_and_at_least_a_row(max_bytes: int) -> None:
    driver = LogDriver(t=3)
    for n in range(3):
        driver.write(tp(n), numbered(100, 100 * n), CompressionType.SNAPPY if n else CompressionType.NONE)
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=300)) as reader:
        steps = await all_in_steps(reader, max_bytes)
    sizes = [sum(batch.columns.payload_bytes for batch in step) for step in steps]
    assert max(sizes) <= max(6, max_bytes)
    batches = [batch for step in steps for batch in step]
    for n in range(3):
        values = [value for batch in batches if batch.partition == tp(n) for value in batch.values]
        assert values == numbered(100, 100 * n)


async def test_partitions_take_turns_within_a_step() -> None:
    driver = LogDriver()
    for n in range(2):
        driver.write(tp(n), numbered(400))
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=160)) as reader:
        steps = await all_in_steps(reader, 1 << 20)
    order = [batch.partition.partition for step in steps for batch in step]
    assert sum(a != b for a, b in pairwise(order)) > len(order) // 2


async def test_an_error_comes_behind_what_is_good_and_alone() -> None:
    driver = LogDriver()
    driver.write(tp(0), numbered(3))
    driver.write(tp(1), numbered(5, 10))
    driver.logs[tp(0)][-1] ^= 1
    async with Reader(driver, "t", until=LATEST) as reader:
        values: list[bytes] = []
        with pytest.raises(CorruptMessage, match="t/1-0"):
            while step := await some(reader, 1 << 20):
                values += [value for batch in step for value in payloads(batch.values)]
        assert sorted(values[:2]) == numbered(2)
        while step := await some(reader, 1 << 20):
            values += [value for batch in step for value in payloads(batch.values)]
    assert sorted(values) == numbered(2) + numbered(5, 10)
