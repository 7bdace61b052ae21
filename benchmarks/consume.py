"""Consuming end to end: a reader by batch and by record, a group consumer by batch and by record.

    python benchmarks/consume.py [--quick]

The broker is the embedded one, in a process of its own, with two partitions and a real ZooKeeper (needs Java). From the
entered block to the last record, on asyncio; every payload's length is added up. The limit is a bare blocking loopback
socket that takes the same bytes from another process into a reused buffer.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import count

import anyio

from _common import Broker, Case, Stopwatch, broker, compare, peer, pull, quick
from odradek import LATEST, Cluster, connect
from odradek.batch import Batch
from odradek.client.consumer import GroupBatch
from odradek.types import MiB, Record
from odradek.wire.kafka07.message_set import entry_bytes

Way = Callable[[Broker, Cluster, str, int], Awaitable[tuple[Stopwatch, int]]]
"""Reads so many records of a topic; gives the time and the bytes of all payloads."""

BATCHES_AT_MOST, RECORDS_AT_MOST = 150.0, 200.0

_groups = count()


async def reader_batches(cluster: Broker, k: Cluster, topic: str, records: int) -> tuple[Stopwatch, int]:
    async with k.reader(topic, until=LATEST) as r:
        with Stopwatch(cluster.pid) as watch:
            size = await add_batches(r.batches(), records)
    return watch, size


async def reader_records(cluster: Broker, k: Cluster, topic: str, records: int) -> tuple[Stopwatch, int]:
    async with k.reader(topic, until=LATEST) as r:
        with Stopwatch(cluster.pid) as watch:
            size = await add_records(aiter(r), records)
    return watch, size


async def group_batches(cluster: Broker, k: Cluster, topic: str, records: int) -> tuple[Stopwatch, int]:
    async with k.consumer(topic, group=f"group-{next(_groups)}") as c:
        with Stopwatch(cluster.pid) as watch:
            size = await add_batches(c.batches(), records)
    return watch, size


async def group_records(cluster: Broker, k: Cluster, topic: str, records: int) -> tuple[Stopwatch, int]:
    async with k.consumer(topic, group=f"group-{next(_groups)}") as c:
        with Stopwatch(cluster.pid) as watch:
            size = await add_records(aiter(c), records)
    return watch, size


async def add_batches(batches: AsyncIterator[Batch], records: int) -> int:
    size = 0
    async for batch in batches:
        size += sum(map(len, batch.values))
        if isinstance(batch, GroupBatch):
            batch.done()
        records -= len(batch)
        if records <= 0:
            break
    assert records == 0
    return size


async def add_records(rows: AsyncIterator[Record], records: int) -> int:
    size = 0
    async for record in rows:
        size += len(record.value)
        records -= 1
        if not records:
            break
    assert records == 0
    return size


async def fill(cluster: Broker, topic: str, size: int, records: int) -> None:
    async with connect(cluster.cluster) as k, k.producer() as out:
        await out.send(topic, bytes(size))
        acks = await out.send_many(topic, [bytes(size)] * (records - 1))
        acks.check()
    assert cluster.appended(topic) == records * entry_bytes(size)


def consume(cluster: Broker, way: Way, topic: str, size: int, records: int) -> Stopwatch:
    async def main() -> tuple[Stopwatch, int]:
        async with connect(cluster.cluster) as k:
            return await way(cluster, k, topic, records)

    watch, received = anyio.run(main)
    assert received == size * records
    return watch


def cases(cluster: Broker, port: int, total: int) -> list[Case]:
    found = []
    for size in (100, 1000):
        topic, records = f"of-{size}", total // size
        anyio.run(fill, cluster, topic, size, records)
        width = records * entry_bytes(size)
        for way in (reader_batches, reader_records, group_batches, group_records):
            name = f"{way.__name__.replace('_', ', by ')}, {size} B"
            at_most = BATCHES_AT_MOST if way in (reader_batches, group_batches) else RECORDS_AT_MOST
            run = partial(consume, cluster, way, topic, size, records)
            found.append(Case(name, records, width, run, partial(pull, port, width), at_most))
    return found


def main() -> None:
    short = quick(__doc__)
    total, turns = (4 * MiB, 3) if short else (64 * MiB, 9)
    with peer() as port, broker({"num.partitions": 2, "log.flush.interval": 1}, zookeeper=True) as cluster:
        compare(cases(cluster, port, total), turns)


if __name__ == "__main__":
    main()
