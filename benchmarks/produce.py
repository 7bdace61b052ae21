"""Producing end to end, confirmed: `put`, `send_many`, and `send` one at a time.

    python benchmarks/produce.py [--quick]

The broker is the embedded one, in a process of its own, with two partitions. From the first record to the last
confirm, on asyncio. The limit of `put` and `send_many` is a bare blocking loopback socket that moves the same bytes
to a process which drops them. The limit of `send` is a bare request and response: the bytes of a produce of one record
and its confirm out, the 6 bytes of the answer back, over the same kind of stream.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise. What
the broker has on disk afterwards is checked to be exactly what was sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

import anyio

import _bare
from _common import Broker, Case, Stopwatch, broker, compare, peer, push, quick
from odradek import Producer, connect
from odradek.io.kafka07.api import CONFIRM
from odradek.types import MiB
from odradek.wire.kafka07.message_set import encode_set, entry_bytes
from odradek.wire.kafka07.requests import Produce, encode_request

Way = Callable[[Producer, str, list[bytes]], Awaitable[None]]

CONFIRM_ANSWER_BYTES = 6

PUT_AT_MOST, MANY_AT_MOST, SEND_AT_MOST = 500.0, 300.0, 25.0

_numbers = count()


async def put(out: Producer, topic: str, values: list[bytes]) -> None:
    for value in values:
        await out.put(topic, value)
    await out.flush()


async def send_many(out: Producer, topic: str, values: list[bytes]) -> None:
    acks = await out.send_many(topic, values)
    assert acks.check().written == len(values)


async def send(out: Producer, topic: str, values: list[bytes]) -> None:
    for value in values:
        await out.send(topic, value)


def produce(cluster: Broker, way: Way, values: list[bytes]) -> Stopwatch:
    """To a new topic, which is known to the broker and the producer before the clock starts."""
    topic = f"{way.__name__}-{next(_numbers)}"
    warm = b"the first record makes the topic"

    async def main() -> Stopwatch:
        async with connect(cluster.cluster) as k, k.producer() as out:
            await out.send(topic, warm)
            with Stopwatch(cluster.pid) as watch:
                await way(out, topic, values)
        assert out.statistics().written == len(values) + 1
        return watch

    watch = anyio.run(main)
    assert cluster.appended(topic) == sum(map(entry_bytes, map(len, [warm, *values])))
    return watch


def bare_exchanges(port: int, request: bytes, rounds: int) -> Stopwatch:
    return anyio.run(_bare.on_asyncio, port, request, CONFIRM_ANSWER_BYTES, rounds)


def cases(cluster: Broker, port: int, total: int, sends: int) -> list[Case]:
    found = []
    for size in (100, 1000):
        values = [bytes(size)] * (total // size)
        width = len(values) * entry_bytes(size)
        for way, at_most in ((put, PUT_AT_MOST), (send_many, MANY_AT_MOST)):
            run = partial(produce, cluster, way, values)
            found.append(
                Case(f"{way.__name__}, {size} B", len(values), width, run, partial(push, port, width), at_most)
            )
    values = [bytes(100)] * sends
    request = b"".join(encode_request(Produce("send-0", 0, encode_set(values[:1]))) + CONFIRM)
    found.append(
        Case(
            "send, 100 B, one at a time",
            sends,
            sends * entry_bytes(100),
            partial(produce, cluster, send, values),
            partial(bare_exchanges, port, request, sends),
            SEND_AT_MOST,
        )
    )
    return found


def main() -> None:
    short = quick(__doc__)
    total, sends, turns = (4 * MiB, 300, 3) if short else (64 * MiB, 5000, 9)
    with peer() as port, broker({"num.partitions": 2}) as cluster:
        compare(cases(cluster, port, total, sends), turns)


if __name__ == "__main__":
    main()
