"""What a record costs when its topic has many partitions: consuming and producing, with 1 to 10,000 of them.

    python benchmarks/partitions.py [--quick]

The same number of records of 100 B each time, spread evenly, on one broker: the embedded one, in a process of its own.
A cost is the processor time this process spends on a record, so neither the broker's work nor that of its file system
is in it. Left out is also what has to be done once for each partition, whatever comes: a reader that ends where it
begins is measured right before. The limit is the same with one partition: flat would be a ratio of 1.

Consuming is a reader's, by Arrow table, by batch and by record, with the read-ahead it has by default: with 10,000
partitions that is 6.7 KB for each. Producing is `put` and `send_many` of records without keys, which fill one
partition's batch after the other, and `put` of records whose keys spread them over all partitions.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from statistics import median
from time import process_time

import anyio

from _common import Broker, broker, spread
from _results import Line, Results, results
from odradek import LATEST, Cluster, Producer, Reader, connect
from odradek.io.kafka07.broker_client import CONFIRM
from odradek.types import EARLIEST, StartPosition
from odradek.wire.kafka07.message_set import encode_set, entry_bytes
from odradek.wire.kafka07.requests import MultiProduce, Produce, encode_request

VALUE = bytes(100)
FLAT, AT_MOST = 1.3, 20.0
ROWS = 10_000
"""Of one request, when filling."""

Read = Callable[[Reader], Awaitable[int]]
Write = Callable[[Producer, str, int], Awaitable[None]]
Cost = Callable[[int], float]
"""Of one record (s of processor time), with so many partitions."""


# ---- consuming ----------------------------------------------------------------------------------------------


def fill(cluster: Broker, topic: str, partitions: int, records: int) -> None:
    """Past odradek's producer, to be quick."""
    rows = min(records // partitions, ROWS)
    part = encode_set([VALUE] * rows)
    parts = (Produce(topic, number, part) for number in range(partitions) for _ in range(records // partitions // rows))
    with socket.create_connection(cluster.address) as bare:
        while several := tuple(islice(parts, max(1, ROWS // rows))):
            bare.sendall(b"".join(encode_request(MultiProduce(several)) + CONFIRM))
            assert bare.recv(6, socket.MSG_WAITALL)
    assert cluster.appended(topic) == records * entry_bytes(len(VALUE))


async def arrow(r: Reader) -> int:
    return sum([table.num_rows async for table in r.arrow()])


async def batches(r: Reader) -> int:
    return sum([len(batch.values) async for batch in r.batches()])


async def by_record(r: Reader) -> int:
    got = 0
    async for _ in r:
        got += 1
    return got


async def read(k: Cluster, topic: str, way: Read, start: StartPosition, expected: int) -> float:
    begin = process_time()
    async with k.reader(topic, start=start, until=LATEST) as r:
        assert await way(r) == expected
    return process_time() - begin


def consuming(cluster: Broker, way: Read, records: int, partitions: int) -> float:
    topic = f"of-{partitions}"

    async def main() -> float:
        async with connect(cluster.cluster) as k:
            await read(k, topic, way, LATEST, 0)  # now it knows the topics, and has what it imports late
            nothing = await read(k, topic, way, LATEST, 0)
            return await read(k, topic, way, EARLIEST, records) - nothing

    return anyio.run(main) / records


# ---- producing ----------------------------------------------------------------------------------------------


async def send_many(out: Producer, topic: str, records: int) -> None:
    (await out.send_many(topic, [VALUE] * records)).check()


async def put(out: Producer, topic: str, records: int) -> None:
    for _ in range(records):
        await out.put(topic, VALUE)
    await out.flush()


async def put_with_keys(out: Producer, topic: str, records: int) -> None:
    for key in islice(cycle([b"%d" % number for number in range(50_000)]), records):
        await out.put(topic, VALUE, key=key)
    await out.flush()


def producing(cluster: Broker, way: Write, records: int, partitions: int) -> float:
    topic = f"of-{partitions}"

    async def main() -> float:
        async with connect(cluster.cluster) as k, k.producer() as out:
            await out.send(topic, VALUE)  # now it knows the topic
            begin = process_time()
            await way(out, topic, records)
            spent = process_time() - begin
        assert out.statistics().written == records + 1
        return spent

    spent = anyio.run(main)
    cluster.wipe(topic)
    return spent / records


# ---- all of it ----------------------------------------------------------------------------------------------


def flatness(measured: Results, title: str, counts: Sequence[int], ways: Mapping[str, Cost], rounds: int) -> None:
    """Each way with each number of partitions, in turns."""
    costs: dict[tuple[str, int], list[float]] = {(name, number): [] for name in ways for number in counts}
    for _ in range(rounds):
        for (name, number), seen in costs.items():
            seen.append(ways[name](number))
    rows, lines = [], []
    for name in ways:
        points = []
        for number in counts:
            ns = [1e9 * cost for cost in costs[name, number]]
            ratios = [cost / one for cost, one in zip(costs[name, number], costs[name, counts[0]], strict=True)]
            who, ratio, goal = f"{name}, {number:,}", median(ratios), ""
            if number > counts[0]:
                goal = measured.goal(f"{title}: {who}", ratio, FLAT, at_most=True)
            rows.append((who, f"{median(ns):,.0f}", f"{ratio:.2f}", spread(ratios), goal))
            points.append((float(number), median(ns)))
            measured.check(min(ratios) <= AT_MOST, f"{title}: {who}: at best {min(ratios):.1f} times the cost with one")
        lines.append(Line(name, points, FLAT * points[0][1]))
    note = "Limit: the same with one partition. Processor time of this process, set-up left out."
    measured.table(title, note, ("way, partitions", "ns a record", "ratio", "spread", "goal"), rows)
    measured.chart(title, "ns a record", lines=lines, across="partitions")


@contextmanager
def topics(counts: Sequence[int]) -> Iterator[Broker]:
    """A broker with a topic of so many partitions each, named after their number."""
    names = ",".join(f"of-{number}:{number}" for number in counts)
    with broker({"topic.partition.count.map": names, "log.flush.interval": 1}) as cluster:
        yield cluster


def main() -> None:
    with results(__file__, __doc__) as measured:
        counts = (1, 100) if measured.quick else (1, 10, 100, 1000, 10_000)
        records, rounds = (200_000, 3) if measured.quick else (2_000_000, 5)
        with topics(counts) as cluster:
            for number in counts:
                fill(cluster, f"of-{number}", number, records)
            reads: dict[str, Read] = {"arrow": arrow, "batches": batches, "records": by_record}
            ways = {name: partial(consuming, cluster, way, records) for name, way in reads.items()}
            flatness(measured, "Consuming from many partitions", counts, ways, rounds)
        with topics(counts) as cluster:
            writes: dict[str, Write] = {"send_many": send_many, "put": put, "put with keys": put_with_keys}
            ways = {name: partial(producing, cluster, way, records) for name, way in writes.items()}
            flatness(measured, "Producing to many partitions", counts, ways, rounds)


if __name__ == "__main__":
    main()
