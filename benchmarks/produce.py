"""Producing end to end, confirmed: `send_many`, `send_arrow`, `put`, and `send` one at a time.

    python benchmarks/produce.py [--quick]

The broker is the embedded one, in a process of its own, with two partitions; it checks and stores what comes. From the
first record to the last confirm, on asyncio. The limit of the first three is a bare socket that moves the same bytes: a
blocking loopback socket gives them, 1 MiB at a time, to a process that reads and drops them, until it says it has them.

`send` is measured one by one: half of them take less than `p50`, one in a hundred takes more than `p99`. The limit is
a bare request and response over the same kind of stream, asyncio's BufferedProtocol, with the same kind of peer, the
embedded broker: the very bytes of a produce of one record and its confirm out, the 6 bytes of the answer back, nothing
made of either. The last line is the same with a peer that only counts bytes: what a broker that takes no time would
leave.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise. What
the broker has on disk afterwards is checked to be exactly what was sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import anyio
import pyarrow as pa

from _bare import exchanges
from _common import Broker, Case, Stopwatch, broker, compare, peer, push, spread
from _peer import HEAD
from _results import Results, results
from odradek import Producer, connect
from odradek.io.kafka07.broker_client import CONFIRM
from odradek.types import MiB
from odradek.wire.kafka07.message_set import encode_set, entry_bytes
from odradek.wire.kafka07.requests import Produce, encode_request

Way = Callable[[Producer, str, Any], Awaitable[None]]

ANSWER_BYTES = 6
"""Of a confirm."""

SIZES = (100, 1000)
MANY_GOAL, SEND_GOAL = 0.35, 1.5
FLOORS = {"send_many": (0.03, 0.04), "send_arrow": (0.03, 0.04), "put": (0.002, 0.015)}
"""With either size."""

SEND_AT_MOST = 15.0

_numbers = count()


async def send_many(out: Producer, topic: str, values: list[bytes]) -> None:
    acks = await out.send_many(topic, values)
    assert acks.check().written == len(values)


async def send_arrow(out: Producer, topic: str, values: Any) -> None:
    acks = await out.send_arrow(topic, values)
    assert acks.check().written == values.num_rows


async def put(out: Producer, topic: str, values: list[bytes]) -> None:
    for value in values:
        await out.put(topic, value)
    await out.flush()


def produce(cluster: Broker, way: Way, values: Any, size: int) -> Stopwatch:
    """To a new topic, which is known to the broker and the producer before the clock starts."""
    topic, rows = f"{way.__name__}-{next(_numbers)}", len(values)
    warm = b"the first record makes the topic"

    async def main() -> Stopwatch:
        async with connect(cluster.cluster) as k, k.producer() as out:
            await out.send(topic, warm)
            with Stopwatch(cluster.pid) as watch:
                await way(out, topic, values)
        assert out.statistics().written == rows + 1
        return watch

    watch = anyio.run(main)
    assert cluster.appended(topic) == entry_bytes(len(warm)) + rows * entry_bytes(size)
    cluster.wipe(topic)
    return watch


def cases(cluster: Broker, port: int, total: int) -> list[Case]:
    cases = []
    for column, size in enumerate(SIZES):
        values = [bytes(size)] * (total // size)
        table = pa.table({"value": pa.array(values, pa.binary())})
        width = len(values) * entry_bytes(size)
        for way, payload in ((send_many, values), (send_arrow, table), (put, values)):
            name = way.__name__
            run, goal = partial(produce, cluster, way, payload, size), MANY_GOAL if way is send_many else None
            floor, limit = FLOORS[name][column], partial(push, port, width)
            cases.append(Case(f"{name}, {size} B", len(values), width, run, limit, floor, goal))
    return cases


# ---- one at a time ------------------------------------------------------------------------------------------


async def send_times(cluster: Broker, topic: str, value: bytes, rounds: int) -> list[float]:
    async with connect(cluster.cluster) as k, k.producer() as out:
        times = []
        await out.send(topic, value)
        for _ in range(rounds):
            begin = perf_counter()
            await out.send(topic, value)
            times.append(perf_counter() - begin)
    return times


def latency(measured: Results, cluster: Broker, port: int, rounds: int, repeats: int) -> None:
    """`send` against the two bare exchanges, in turns."""
    value = bytes(100)
    request = b"".join(encode_request(Produce("bare", 0, encode_set([value]))) + CONFIRM)
    hello, address = HEAD.pack(len(request), ANSWER_BYTES), ("127.0.0.1", port)
    ways: dict[str, Callable[[], Any]] = {
        "send": partial(send_times, cluster, "sent", value, rounds),
        "bare, to the broker": partial(exchanges, cluster.address, b"", request, ANSWER_BYTES, rounds),
        "bare, to a counter": partial(exchanges, address, hello, request, ANSWER_BYTES, rounds),
    }
    halves: dict[str, list[float]] = {name: [] for name in ways}
    tails: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            times = anyio.run(way)
            halves[name].append(median(times))
            tails[name].append(quantiles(times, n=100)[-1])
    rows, ratios = [], [ours / bare for ours, bare in zip(halves["send"], halves["bare, to the broker"], strict=True)]
    goal = measured.goal("send: p50, times a bare request and response", median(ratios), SEND_GOAL, at_most=True)
    for name in ways:
        p50, p99 = median(halves[name]), median(tails[name])
        mine = (f"{median(ratios):.3g}", spread(ratios), goal) if name == "send" else ("", "", "")
        rows.append((name, f"{1 / p50:,.0f}", f"{p50 * 1e6:,.0f}", f"{p99 * 1e6:,.0f}", *mine))
    note = "Limit: a bare request and response with the broker, over the same kind of stream. `ratio` is that of p50."
    measured.table("Send, one at a time", note, ("100 B", "1/s", "p50, us", "p99, us", "ratio", "spread", "goal"), rows)
    measured.check(min(ratios) <= SEND_AT_MOST, f"send: at best {min(ratios):.3g} times a bare exchange")


def main() -> None:
    with results(__file__, __doc__) as measured, peer() as port, broker({"num.partitions": 2}) as cluster:
        total, sends, repeats = (4 * MiB, 300, 3) if measured.quick else (64 * MiB, 5000, 9)
        compare(
            measured, "Produce", "Limit: a bare socket that moves the same bytes.", cases(cluster, port, total), repeats
        )
        latency(measured, cluster, port, sends, repeats)


if __name__ == "__main__":
    main()
