"""Random lives of readers: cancelled at any step, by asyncio or by anyio, and resumed from the bookmark."""

from __future__ import annotations

import random
from functools import partial

import pytest

from odradek.errors import ConnectionLost
from odradek.testing import MemoryCluster

from .reader_lives import Logs, live_through
from .reading import reading

pytestmark = pytest.mark.anyio

LOST = ConnectionLost("memory-1:9092", "reset", True)


def logs(chance: random.Random) -> Logs:
    """Return three partitions."""
    cluster = MemoryCluster(topics={"t": 3})
    values: list[bytes] = []
    for number in range(3):
        run = [b"%d" % (len(values) + n) for n in range(chance.randrange(1, 90))]
        cluster.append("t", run, partition=number)
        values += run
    return Logs(values, partial(reading, cluster), partial(disturb, cluster))


def disturb(cluster: MemoryCluster, chance: random.Random) -> None:
    """Perhaps let the next answer with records break off."""
    cluster.heal()
    if chance.randrange(3) == 0:
        cluster.fail("fetch", LOST, after_records=chance.randrange(10))


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_no_life_of_a_reader_hangs_skips_or_doubles(seed: int, native: bool, anyio_backend_name: str) -> None:
    await live_through(seed, native, anyio_backend_name, logs)
