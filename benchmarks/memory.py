"""Memory: a slow user's read-ahead stays within its bound, and nothing grows while 10 GB pass through.

    python benchmarks/memory.py [--quick]

What counts is what the operating system counts (RSS): the compiled engine's buffers are not Python's. Each line is
measured in a process of its own, over what it took when it was connected and had not read or written anything.

**Slow user.** The user takes batch by batch and pauses after each until memory does not grow any more. `passed` is
what all records together would take in memory, `read_ahead_bytes` the bound that was asked for, and `peak` the most
that was taken: the read-ahead, the batch in hand, the one before it, the buffer of the socket, and what the engine
keeps. `1st half` and `2nd half` are the highest levels in either half of the run: the same, if nothing piles up.
`ratio` is peak over ahead. All of that is measured where the allocator gives back every large piece
(MALLOC_MMAP_THRESHOLD_=131072): then it is what odradek holds. `as is` is the ratio without: with what glibc keeps
for itself of the pieces that were freed, which it may.

**10 GB.** One reader reads the same log again and again, seeking back to its start whenever it is at its end, and one
producer writes the same values again and again, 1 KB each. The level is taken ten times on the way. `ratio` is the
highest level of the second half of the run over the highest of the first; each with all that the process takes.

To compare two branches run it on each and compare ratios.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, NamedTuple

import anyio
import psutil

from _common import Broker, broker
from _results import Line, Results, results
from engine import payloads
from odradek import LATEST, Batch, GroupBatch, Reader, connect
from odradek.engine.columns import PACKED_ROW_BYTES
from odradek.types import EARLIEST, MiB

SLOW_SIZE, SIZE = 100, 1000
PAUSE_S = 0.02
"""Memory that has not grown for so long is not going to: the next fetch follows the last one at once."""

READ_BYTES = MiB
"""The buffer of a connection."""

SLACK_BYTES = 8 * MiB
"""What the compiled codec keeps for columns to come (rust/engine/src/spare.rs)."""

FLAT = 1.1
TENTHS = 10


class Levels(NamedTuple):
    """RSS (bytes) again and again, over what it was before; that; and the size of the largest batch."""

    levels: list[int]
    base: int
    batch: int = 0

    @property
    def halves(self) -> tuple[int, int]:
        middle = len(self.levels) // 2
        return max(self.levels[:middle]), max(self.levels[middle:])


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@contextmanager
def giving_back() -> Iterator[None]:
    """Processes that begin inside of it map every large piece of memory by itself, and so give it back when freed. By
    default glibc stops doing so (mallopt(3), M_MMAP_THRESHOLD), and what it keeps in its heaps varies with the timing.
    """
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "131072"
    try:
        yield
    finally:
        del os.environ["MALLOC_MMAP_THRESHOLD_"]


def apart(work: Callable[..., Awaitable[Levels]], *args: Any) -> Levels:
    """In a process of its own."""
    with get_context("spawn").Pool(1) as pool:
        levels: Levels = pool.apply(anyio.run, (work, *args))
    return levels


# ---- a slow user --------------------------------------------------------------------------------------------


async def reader(cluster: Broker, topic: str, read_ahead_bytes: int, records: int) -> Levels:
    async with connect(cluster.cluster) as k, k.reader(topic, until=LATEST, read_ahead_bytes=read_ahead_bytes) as r:
        return await read_slowly(r.batches(), records)


async def consumer(cluster: Broker, topic: str, read_ahead_bytes: int, records: int) -> Levels:
    async with (
        connect(cluster.cluster) as k,
        k.consumer(topic, group=f"group-{os.getpid()}", read_ahead_bytes=read_ahead_bytes) as c,
    ):
        return await read_slowly(c.batches(), records)


async def read_slowly(batches: AsyncIterator[Batch], records: int) -> Levels:
    gc.collect()
    base, levels, largest = resident(), [], 0
    async for batch in batches:
        levels.append(await level() - base)
        if isinstance(batch, GroupBatch):
            batch.done()
        largest = max(largest, batch.columns.memory_bytes)
        records -= len(batch)
        if not records:
            break
    return Levels(levels, base, largest)


async def level() -> int:
    """The level, once it does not grow any more."""
    level, now = 0, resident()
    while now > level:
        level = now
        await anyio.sleep(PAUSE_S)
        now = resident()
    return level


async def fill(cluster: Broker, topic: str, compression: str, size: int, records: int) -> None:
    """The same values again and again, so that filling takes less memory than reading."""
    values = payloads(20_000, size)
    async with connect(cluster.cluster) as k, k.producer(compression=compression) as out:
        for start in range(0, records, len(values)):
            (await out.send_many(topic, values[: records - start])).check()


def slow_user(measured: Results, read_ahead_bytes: int, times: int) -> None:
    records = read_ahead_bytes * times // (SLOW_SIZE + PACKED_ROW_BYTES)
    rows = []
    with broker({"num.partitions": 2, "log.flush.interval": 1}, zookeeper=True) as cluster:
        for compression in ("none", "gzip", "snappy"):
            anyio.run(fill, cluster, compression, compression, SLOW_SIZE, records)
            for way in (reader, consumer):
                name = f"{way.__name__}, {compression}"
                as_is = max(apart(way, cluster, compression, read_ahead_bytes, records).levels)
                with giving_back():
                    levels = apart(way, cluster, compression, read_ahead_bytes, records)
                peak, most = max(levels.levels), bound(levels, read_ahead_bytes)
                numbers = (read_ahead_bytes * times, read_ahead_bytes, peak, *levels.halves)
                goal = measured.goal(f"Slow user: {name}, peak over its bound", peak / most, 1.0, at_most=True)
                ratios = (f"{peak / read_ahead_bytes:.2f}", f"{as_is / read_ahead_bytes:.2f}", goal)
                rows.append((name, *(f"{number / MiB:,.1f}" for number in numbers), *ratios))
                check_slow(measured, name, levels, read_ahead_bytes)
                measured.check(as_is <= 2 * most, f"{name}: {as_is:,} bytes as it is, the bound is {most:,}")
    note = (
        "Limit: the read-ahead asked for. Goal: not more than that, two batches, two buffers of a connection, "
        f"and {SLACK_BYTES // MiB} MiB to spare."
    )
    head = ("MiB", "passed", "ahead", "peak", "1st half", "2nd half", "ratio", "as is", "goal")
    measured.table("Slow user", note, head, rows)


def bound(levels: Levels, read_ahead_bytes: int) -> int:
    return read_ahead_bytes + 2 * levels.batch + 2 * READ_BYTES + SLACK_BYTES


def check_slow(measured: Results, name: str, levels: Levels, read_ahead_bytes: int) -> None:
    first, second = levels.halves
    measured.check(
        second <= bound(levels, read_ahead_bytes),
        f"{name}: {second:,} bytes, the bound is {bound(levels, read_ahead_bytes):,}",
    )
    measured.check(second >= read_ahead_bytes / 2, f"{name}: {second:,} bytes: never full, this measures nothing")
    measured.check(
        second <= 1.1 * first + levels.batch + SLACK_BYTES, f"{name}: it grows: {first:,}, then {second:,} bytes"
    )


# ---- 10 GB --------------------------------------------------------------------------------------------------


async def read_on(cluster: Broker, topic: str, rows: int, total: int, by: str) -> Levels:
    """The log, of so many rows, over and over, until `total` bytes have passed."""
    async with connect(cluster.cluster) as k, k.reader(topic) as r:
        gc.collect()
        base, got = resident(), 0
        levels: list[int] = []
        async for seen in counted(r, by):
            got += seen
            if got * SIZE >= total * (len(levels) + 1) // TENTHS:
                levels.append(resident() - base)
            if len(levels) == TENTHS:
                break
            if got % rows == 0:
                for partition in r.partitions:
                    r.seek(partition, EARLIEST)
    return Levels(levels, base)


async def counted(r: Reader, by: str) -> AsyncIterator[int]:
    """How many rows came, again and again."""
    if by == "records":
        async for _ in r:
            yield 1
    elif by == "batches":
        async for batch in r.batches():
            yield len(batch.values)
    else:
        async for table in r.arrow():
            yield table.num_rows


async def write_on(cluster: Broker, topic: str, rows: int, total: int, by: str) -> Levels:
    """So many rows over and over, until `total` bytes have passed."""
    values = payloads(rows, SIZE)
    async with connect(cluster.cluster) as k, k.producer() as out:
        await out.send(topic, values[0])
        gc.collect()
        base, got = resident(), 0
        levels: list[int] = []
        while len(levels) < TENTHS:
            if by == "send_many":
                (await out.send_many(topic, values)).check()
            else:
                for value in values:
                    await out.put(topic, value)
            got += rows
            if got * SIZE >= total * (len(levels) + 1) // TENTHS:
                levels.append(resident() - base)
                cluster.wipe(topic)
    return Levels(levels, base)


def much(measured: Results, total: int, rows: int) -> None:
    ways = [("read", read_on, by) for by in ("arrow", "batches", "records")]
    ways += [("write", write_on, by) for by in ("send_many", "put")]
    table, lines = [], []
    with broker({"num.partitions": 2, "log.flush.interval": 1, "log.file.size": 64 * MiB}) as cluster:
        anyio.run(fill, cluster, "read", "none", SIZE, rows)
        for topic, way, by in ways:
            name, levels = f"{topic}, {by}", apart(way, cluster, topic, rows, total, by)
            first, second = (level + levels.base for level in levels.halves)
            goal = measured.goal(f"Passing through: {name}", second / first, FLAT, at_most=True)
            numbers = (levels.base, levels.levels[0], *levels.halves)
            cells = tuple(f"{number / MiB:,.1f}" for number in numbers)
            table.append((name, f"{total / 1e9:.3g}", *cells, f"{second / first:.3f}", goal))
            lines.append(Line(name, [((i + 1) * total / TENTHS / 1e9, v / MiB) for i, v in enumerate(levels.levels)]))
            measured.check(second <= 1.5 * first, f"{name}: it grows: {levels.levels}")
    head = ("MiB", "GB", "before", "first tenth", "1st half", "2nd half", "ratio", "goal")
    measured.table("Passing through", "Limit: the highest level of the first half.", head, table)
    measured.chart("Passing through", "MiB over what was there before", lines=lines, across="GB")


def main() -> None:
    with results(__file__, __doc__) as measured:
        slow_user(measured, *((8 * MiB, 4) if measured.quick else (32 * MiB, 8)))
        much(measured, *((100_000_000, 10_000) if measured.quick else (10_000_000_000, 250_000)))


if __name__ == "__main__":
    main()
