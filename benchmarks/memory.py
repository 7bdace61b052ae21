"""Memory of a reader and of a group consumer whose user is slow: it must stay within `ahead`, however much comes.

    python benchmarks/memory.py [--quick]

The user takes batch by batch and pauses after each until memory does not grow any more. `passed` is what
all records together would take in memory, `ahead` the bound that was asked for, and `peak` the most that Python's
allocator had given out at one time (tracemalloc, over what was there before): the read-ahead, the batch in hand, the
one before it, and one read from the socket. `1st half` and `2nd half` are the highest levels between two batches in
either half of the run: the same, if nothing piles up. `ratio` is peak over ahead; `process` is how much the process
grew meanwhile, as the operating system sees it (with what tracemalloc itself needs).

To compare two branches run it on each and compare ratios.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import NamedTuple

import anyio
import psutil

from _common import Broker, broker, quick, table
from codec import payloads
from odradek import LATEST, Cluster, connect
from odradek.batch import Batch
from odradek.client.consumer import GroupBatch
from odradek.client.cursor import RECORD_OVERHEAD_BYTES
from odradek.types import MiB

SIZE = 100
RECORD_BYTES = SIZE + RECORD_OVERHEAD_BYTES

PAUSE_S = 0.02
"""Memory that has not grown for so long is not going to: the next fetch follows the last one at once."""

READ_BYTES = MiB
"""One read from the socket (`io.connection`)."""

Way = Callable[[Cluster, str, int, int], Awaitable["Levels"]]

_groups = count()


class Levels(NamedTuple):
    """Bytes given out: the peak, the level at each batch, and the size of the largest batch."""

    peak: int
    levels: list[int]
    batch: int

    def check(self, ahead: int) -> None:
        bound = ahead + 2 * self.batch + 2 * READ_BYTES
        first, second = self.halves
        assert self.peak <= bound, f"{self.peak:,} bytes, the bound is {bound:,}"
        assert self.peak >= ahead / 2, f"{self.peak:,} bytes: the read-ahead was never full, this measures nothing"
        assert second <= 1.1 * first + self.batch + READ_BYTES, f"it grows: {first:,}, then {second:,} bytes"

    @property
    def halves(self) -> tuple[int, int]:
        middle = len(self.levels) // 2
        return max(self.levels[:middle]), max(self.levels[middle:])


async def reader(k: Cluster, topic: str, ahead: int, records: int) -> Levels:
    async with k.reader(topic, until=LATEST, ahead=ahead) as r:
        return await read_slowly(r.batches(), records)


async def consumer(k: Cluster, topic: str, ahead: int, records: int) -> Levels:
    async with k.consumer(topic, group=f"group-{next(_groups)}", ahead=ahead) as c:
        return await read_slowly(c.batches(), records)


async def read_slowly(batches: AsyncIterator[Batch], records: int) -> Levels:
    base, levels, largest = tracemalloc.get_traced_memory()[0], [], 0
    tracemalloc.reset_peak()
    async for batch in batches:
        await pause()
        if isinstance(batch, GroupBatch):
            batch.done()
        levels.append(tracemalloc.get_traced_memory()[0] - base)
        largest = max(largest, len(batch) * RECORD_BYTES)
        records -= len(batch)
        if not records:
            break
    return Levels(tracemalloc.get_traced_memory()[1] - base, levels, largest)


async def pause() -> None:
    level, now = 0, tracemalloc.get_traced_memory()[0]
    while now > level:
        level = now
        await anyio.sleep(PAUSE_S)
        now = tracemalloc.get_traced_memory()[0]


async def fill(cluster: Broker, topic: str, codec: str, records: int) -> None:
    """The same values again and again, so that filling takes less memory than reading."""
    values = payloads(20_000, SIZE)
    async with connect(cluster.cluster) as k, k.producer(codec=codec) as out:
        for start in range(0, records, len(values)):
            (await out.send_many(topic, values[: records - start])).check()


def measure(cluster: Broker, way: Way, topic: str, ahead: int, records: int) -> tuple[Levels, int]:
    async def main() -> Levels:
        async with connect(cluster.cluster) as k:
            return await way(k, topic, ahead, records)

    before = psutil.Process().memory_info().rss
    tracemalloc.start()
    try:
        levels = anyio.run(main)
    finally:
        tracemalloc.stop()
    return levels, psutil.Process().memory_info().rss - before


def main() -> None:
    ahead, times = (2 * MiB, 8) if quick(__doc__) else (16 * MiB, 12)
    records = ahead * times // RECORD_BYTES
    rows, found = [], []
    with broker({"num.partitions": 2, "log.flush.interval": 1}, zookeeper=True) as cluster:
        for codec in ("none", "gzip", "snappy"):
            anyio.run(fill, cluster, codec, codec, records)
            for way in (reader, consumer):
                levels, grown = measure(cluster, way, codec, ahead, records)
                numbers = (records * RECORD_BYTES, ahead, levels.peak, *levels.halves, grown)
                ratio = f"{levels.peak / ahead:.2f}"
                rows.append((f"{way.__name__}, {codec}", *(f"{number / MiB:,.1f}" for number in numbers), ratio))
                found.append(levels)
    table(("MiB", "passed", "ahead", "peak", "1st half", "2nd half", "process", "ratio"), rows)
    for levels in found:
        levels.check(ahead)


if __name__ == "__main__":
    main()
