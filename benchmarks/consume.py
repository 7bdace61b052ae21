"""Consuming end to end: a reader and a group consumer, by Arrow table, by batch, and by record.

    python benchmarks/consume.py [--quick]

The broker is the embedded one, in a process of its own, with two partitions and a real ZooKeeper (needs Java). From the
entered block to the last record, on asyncio. Of every table the bytes of its values are added up; of every batch its
list of values is made; of every record its value is looked at.

The limit is a bare socket that copies the same bytes: a blocking loopback socket takes them, from a process that has
them in memory, into a reused buffer of 1 MiB, and does nothing with them. It asks once, where a consumer asks for each
piece.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

import anyio
import pyarrow.compute as pc

from _common import Broker, Case, Stopwatch, broker, compare, peer, pull
from _results import results
from odradek import LATEST, Batch, Cluster, GroupBatch, GroupTable, connect
from odradek.types import MiB, Record
from odradek.wire.kafka07.message_set import entry_bytes

Way = Callable[[Broker, Cluster, str, int], Awaitable[tuple[Stopwatch, int]]]
"""Reads so many records of a topic; gives the time and the bytes of all payloads."""

SIZES = (100, 1000)
GOALS = {"reader_arrow": 0.5, "reader_batches": 0.35}
FLOORS = {"arrow": 0.03, "batches": 0.03, "records": 0.01}

_groups = count()


async def reader_arrow(cluster: Broker, k: Cluster, topic: str, rows: int) -> tuple[Stopwatch, int]:
    async with k.reader(topic, until=LATEST) as r:
        with Stopwatch(cluster.pid) as watch:
            size = await add_tables(r.arrow(), rows)
    return watch, size


async def reader_batches(cluster: Broker, k: Cluster, topic: str, rows: int) -> tuple[Stopwatch, int]:
    async with k.reader(topic, until=LATEST) as r:
        with Stopwatch(cluster.pid) as watch:
            size = await add_batches(r.batches(), rows)
    return watch, size


async def reader_records(cluster: Broker, k: Cluster, topic: str, rows: int) -> tuple[Stopwatch, int]:
    async with k.reader(topic, until=LATEST) as r:
        with Stopwatch(cluster.pid) as watch:
            size = await add_records(aiter(r), rows)
    return watch, size


async def group_arrow(cluster: Broker, k: Cluster, topic: str, rows: int) -> tuple[Stopwatch, int]:
    async with k.consumer(topic, group=f"group-{next(_groups)}") as c:
        with Stopwatch(cluster.pid) as watch:
            size = await add_tables(c.arrow(), rows)
    return watch, size


async def group_batches(cluster: Broker, k: Cluster, topic: str, rows: int) -> tuple[Stopwatch, int]:
    async with k.consumer(topic, group=f"group-{next(_groups)}") as c:
        with Stopwatch(cluster.pid) as watch:
            size = await add_batches(c.batches(), rows)
    return watch, size


async def group_records(cluster: Broker, k: Cluster, topic: str, rows: int) -> tuple[Stopwatch, int]:
    async with k.consumer(topic, group=f"group-{next(_groups)}") as c:
        with Stopwatch(cluster.pid) as watch:
            size = await add_records(aiter(c), rows)
    return watch, size


async def add_tables(tables: AsyncIterator[Any], rows: int) -> int:
    size = 0
    async for part in tables:
        table = part.table if isinstance(part, GroupTable) else part
        size += pc.sum(pc.binary_length(table["value"])).as_py()
        if isinstance(part, GroupTable):
            part.done()
        rows -= table.num_rows
        if rows <= 0:
            break
    assert rows == 0
    return size


async def add_batches(batches: AsyncIterator[Batch], rows: int) -> int:
    size = 0
    async for batch in batches:
        rows -= len(batch.values)
        size += batch.columns.payload_bytes
        if isinstance(batch, GroupBatch):
            batch.done()
        if rows <= 0:
            break
    assert rows == 0
    return size


async def add_records(records: AsyncIterator[Record], rows: int) -> int:
    size = 0
    async for record in records:
        size += len(record.value)
        rows -= 1
        if not rows:
            break
    assert rows == 0
    return size


async def fill(cluster: Broker, topic: str, size: int, rows: int) -> None:
    async with connect(cluster.cluster) as k, k.producer() as out:
        await out.send(topic, bytes(size))
        acks = await out.send_many(topic, [bytes(size)] * (rows - 1))
        acks.check()
    assert cluster.appended(topic) == rows * entry_bytes(size)


def consume(cluster: Broker, way: Way, topic: str, size: int, rows: int) -> Stopwatch:
    async def main() -> tuple[Stopwatch, int]:
        async with connect(cluster.cluster) as k:
            return await way(cluster, k, topic, rows)

    watch, received = anyio.run(main)
    assert received == size * rows
    return watch


def cases(cluster: Broker, port: int, total: int) -> list[Case]:
    cases = []
    for size in SIZES:
        topic, rows = f"of-{size}", total // size
        anyio.run(fill, cluster, topic, size, rows)
        width = rows * entry_bytes(size)
        for way in (reader_arrow, reader_batches, reader_records, group_arrow, group_batches, group_records):
            who, how = way.__name__.split("_")
            run, limit = partial(consume, cluster, way, topic, size, rows), partial(pull, port, width)
            goal = GOALS.get(way.__name__) if size == 100 or how == "batches" else None
            cases.append(Case(f"{who}, {how}, {size} B", rows, width, run, limit, FLOORS[how], goal))
    return cases


def main() -> None:
    with (
        results(__file__, __doc__) as measured,
        peer() as port,
        broker({"num.partitions": 2, "log.flush.interval": 1}, zookeeper=True) as cluster,
    ):
        total, rounds = (4 * MiB, 3) if measured.quick else (64 * MiB, 9)
        compare(
            measured, "Consume", "Limit: a bare socket that copies the same bytes.", cases(cluster, port, total), rounds
        )


if __name__ == "__main__":
    main()
