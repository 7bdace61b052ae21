"""The group consumer of compressed messages, inside which no position exists."""

from __future__ import annotations

import pytest

from odradek.client.consumer.consumer import Consumer
from odradek.client.options import Tuning
from odradek.types import Position
from odradek.wire.compression import CompressionType

from .kafka07_bytes import Kafka07LogDriver, tp

pytestmark = pytest.mark.anyio


def make(driver: Kafka07LogDriver) -> Consumer:
    return Consumer(driver, "t", group="g", commit_every=None, tuning=Tuning(fetch_idle=0.001))


async def test_inside_a_wrapper_its_start_is_committed() -> None:
    driver = Kafka07LogDriver(t=1)
    driver.write(tp(), [b"first"])
    driver.write(tp(), [b"one", b"two"], CompressionType.GZIP)
    driver.initial = {tp(): 0}
    async with make(driver) as consumer:
        batch = await anext(consumer.batches(max_records=2))
        assert batch.values == [b"first", b"one"] and batch.done()
        assert await consumer.commit() == {tp(): 15}
    driver.store.stored[tp()] = Position(15)
    async with make(driver) as consumer:
        assert (await anext(consumer)).value == b"one"
