"""Consuming end to end: a reader and a group consumer, by Arrow table, by batch, and by record.

    python benchmarks/consume.py [--quick]

The broker is the embedded one, in a process of its own, with two partitions and a real ZooKeeper (needs Java). From the
entered block to the last record, on asyncio. Of every table the bytes of its values are added up; of every batch its
list of values is made; of every record its value is looked at.

The limit is its parts alone, in this process: a blocking loopback socket takes the same bytes into a reused buffer, and
the engine decodes as many bytes from memory, in pieces as large as a fetch, into the same tables, lists or records.
What counts is processor time, of the limit as of the thing itself: everything between the parts is the difference.
Their time by the clock does not repeat: that of a bare socket depends on how two processes share the processors, and
that of a consumer hardly does.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from itertools import count
from typing import Any

import anyio
import pyarrow.compute as pc

from _common import Broker, Case, Stopwatch, broker, compare, peer, pull
from _results import results
from odradek import LATEST, Batch, Cluster, GroupBatch, GroupTable, connect
from odradek.arrow import table as arrow_table
from odradek.core.interfaces import DecoderOptions
from odradek.types import Columns, KiB, MiB, Position, Record, TopicPartition
from odradek.wire.kafka07.message_set import MessageSetDecoder, encode_set, entry_bytes

Way = Callable[[Broker, Cluster, str, int], Awaitable[tuple[Stopwatch, int]]]
"""Reads so many records of a topic; gives the time and the bytes of all payloads."""

SIZES = (100, 1000)
GOALS = {"reader_arrow": 0.4, "reader_batches": 0.5}
FLOORS = {"arrow": 0.05, "batches": 0.1, "records": 0.2}
READ_BYTES, FETCH_BYTES, TABLE_FETCHES = 256 * KiB, MiB, 16
"""Of one read of a socket, of one fetch, and fetches of a table: what a reader has by default."""
PARTITION = TopicPartition("t", 0, 1)

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
        size += len(record.value or b"")
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


def parts_alone(port: int, how: str, size: int, rows: int) -> Stopwatch:
    """Take the bytes from a bare socket, then decode as many from memory."""
    width = rows * entry_bytes(size)
    fetched = memoryview(encode_set([bytes(size)] * (FETCH_BYTES // entry_bytes(size))))
    fetches = [min(len(fetched), width - start) for start in range(0, width, len(fetched))]
    with Stopwatch() as watch:
        pull(port, width)
        for first in range(0, len(fetches), TABLE_FETCHES):
            decoded = (decode(fetched[:stop]) for stop in fetches[first : first + TABLE_FETCHES])
            received = USES[how](decoded)
            assert received
    return watch


def decode(fetched: memoryview) -> Columns:
    decoder = MessageSetDecoder(PARTITION, Position(0), DecoderOptions())
    for start in range(0, len(fetched), READ_BYTES):
        decoder.feed(fetched[start : start + READ_BYTES])
    return decoder.take()


def use_table(decoded: Iterable[Columns]) -> int:
    values = arrow_table([(PARTITION, columns) for columns in decoded])["value"]
    return int(pc.sum(pc.binary_length(values)).as_py())


def use_batches(decoded: Iterable[Columns]) -> int:
    return sum(len(Batch(PARTITION, columns).values) for columns in decoded)


def use_records(decoded: Iterable[Columns]) -> int:
    return sum(len(record.value or b"") for columns in decoded for record in Batch(PARTITION, columns))


USES: dict[str, Callable[[Iterable[Columns]], int]] = {
    "arrow": use_table,
    "batches": use_batches,
    "records": use_records,
}


def cases(cluster: Broker, port: int, total: int) -> list[Case]:
    cases = []
    for size in SIZES:
        topic, rows = f"of-{size}", total // size
        anyio.run(fill, cluster, topic, size, rows)
        width = rows * entry_bytes(size)
        for way in (reader_arrow, reader_batches, reader_records, group_arrow, group_batches, group_records):
            who, how = way.__name__.split("_")
            run, limit = partial(consume, cluster, way, topic, size, rows), partial(parts_alone, port, how, size, rows)
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
        note = (
            "Limit: a bare socket that takes the same bytes, and the engine that decodes as many from memory. Rates "
            "and ratios are those of processor time."
        )
        compare(measured, "Consume", note, cases(cluster, port, total), rounds, computing=True)


if __name__ == "__main__":
    main()
