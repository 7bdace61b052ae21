"""Rows of several partitions in one step, where they come from compressed messages or before damaged bytes."""

from __future__ import annotations

import pytest

from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.errors import CorruptMessage
from odradek.types import LATEST
from odradek.wire.compression import CompressionType

from .kafka07_bytes import Kafka07LogDriver, tp
from .one_member import numbered
from .reading import all_in_steps, assert_bounded, take_in_steps

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("max_bytes", [1, 5, 6, 7, 100, 1000, 1 << 20])
async def test_a_step_has_at_most_so_many_bytes_and_at_least_a_row(max_bytes: int) -> None:
    driver = Kafka07LogDriver(t=3)
    for n in range(3):
        driver.write(tp(n), numbered(100, 100 * n), CompressionType.SNAPPY if n else CompressionType.NONE)
    async with Reader(driver, "t", until=LATEST, tuning=Tuning(fetch_bytes=300)) as reader:
        steps = await all_in_steps(reader, max_bytes)
    assert_bounded(steps, max_bytes, [tp(0), tp(1), tp(2)])


async def test_an_error_comes_behind_what_is_good_and_alone() -> None:
    driver = Kafka07LogDriver()
    driver.write(tp(0), numbered(3))
    driver.write(tp(1), numbered(5, 10))
    driver.stored[tp(0)][-1] ^= 1
    async with Reader(driver, "t", until=LATEST) as reader:
        values: list[bytes] = []
        with pytest.raises(CorruptMessage, match="t/1-0"):
            await take_in_steps(reader, values)
        assert sorted(values[:2]) == numbered(2)
        await take_in_steps(reader, values)
    assert sorted(values) == numbered(2) + numbered(5, 10)
