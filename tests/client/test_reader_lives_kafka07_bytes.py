"""Random lives of readers of compressed messages: cancelled at any step, resumed from a bookmark inside one of them."""

from __future__ import annotations

import random
from functools import partial

import pytest

from odradek.client.consumer.reader import Reader
from odradek.wire.compression import CompressionType

from .kafka07_bytes import Kafka07LogDriver, tp
from .reader_lives import Logs, live_through

pytestmark = pytest.mark.anyio


def logs(chance: random.Random) -> Logs:
    """Return three partitions, some of it compressed."""
    driver = Kafka07LogDriver(t=3)
    values: list[bytes] = []
    for number in range(3):
        for _ in range(chance.randrange(4)):
            run = [b"%d" % (len(values) + n) for n in range(chance.randrange(1, 30))]
            driver.write(tp(number), run, chance.choice([CompressionType.NONE, CompressionType.GZIP]))
            values += run
    return Logs(values, partial(Reader, driver, "t"), partial(disturb, driver))


def disturb(driver: Kafka07LogDriver, chance: random.Random) -> None:
    """Perhaps let the next response break off."""
    driver.b1.cut_after = chance.choice([None, None, chance.randrange(100)])


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_no_life_of_a_reader_hangs_skips_or_doubles(seed: int, native: bool, anyio_backend_name: str) -> None:
    await live_through(seed, native, anyio_backend_name, logs)
