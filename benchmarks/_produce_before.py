"""Producing against that of an earlier commit: processor time of the client's process, and the latency of `send`.

    python benchmarks/_produce_before.py TREE [--rounds N] [--kafka VERSION]

Not part of scripts/bench: it needs another checkout, TREE, with its engine built. Both have a process of their own
that lives through the whole run, and are asked in rounds to do the same with the same broker, so that a machine that is
busy with other things disturbs both alike. Processor time is that of the client's process, set-up left out; `ratio` is
the median over the rounds of now over before: less than 1 is better now.

How many records share a batch depends on how many come in a `latency`, and so on what else the machine does. With
`--rate N` time passes for the client as if N records a second were put: both batch alike, as on a quiet machine.
The broker is the embedded one of 0.7; with `--kafka VERSION` a real one of that release.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import anyio

from _paired import HEADING, ROOT, Rounds, Worker, kafka, measure_rounds, ratio_row

VALUE = bytes(100)
KEYS = [b"%d" % number for number in range(50_000)]
TOPICS = (1, 1000)
"""Topics `of-N` have N partitions."""


# ---- in each of the two: nothing here that one of them does not have ----------------------------------------

Way = Callable[[Any, int], Awaitable[list[float]]]


class Clock:
    """The client's, with `--rate`."""

    now = step = 0.0
    """Time that passed by records, and between two of them (s)."""

    def __call__(self) -> float:
        return self.now + perf_counter() / 50  # what waits ends, and hardly anything becomes due by it


clock = Clock()


async def send(out: Any, records: int) -> list[float]:
    """Return the time of each."""
    times = []
    for _ in range(records):
        begin = perf_counter()
        await out.send("of-1", VALUE)
        times.append(perf_counter() - begin)
    return times


async def send_at_once(out: Any, records: int) -> list[float]:
    async def some() -> None:
        for _ in range(records // 1000):
            await out.send("of-1", VALUE)

    async with anyio.create_task_group() as tasks:
        for _ in range(1000):
            tasks.start_soon(some)
    return []


async def send_many(out: Any, records: int) -> list[float]:
    (await out.send_many("of-1", [VALUE] * records)).check()
    return []


async def put(out: Any, records: int) -> list[float]:
    for _ in range(records):
        clock.now += clock.step
        await out.put("of-1", VALUE)
    await out.flush()
    return []


def put_with_keys(partitions: int) -> Way:
    async def way(out: Any, records: int) -> list[float]:
        topic = f"of-{partitions}"
        for key in islice(cycle(KEYS), records):
            clock.now += clock.step
            await out.put(topic, VALUE, key=key)
        await out.flush()
        return []

    return way


WAYS: dict[str, tuple[Way, int]] = {
    "send, one by one": (send, 2000),
    "send, 1,000 at once": (send_at_once, 20_000),
    "send_many": (send_many, 300_000),
    "put": (put, 100_000),
    **{f"put with keys, {count:,} partitions": (put_with_keys(count), 200_000) for count in TOPICS},
}


async def measure(cluster: str, name: str) -> tuple[float, float]:
    """Return the processor time of a record, and the median time of a call that was timed (both in us)."""
    from odradek import connect

    way, records = WAYS[name]
    async with connect(cluster) as k, k.producer() as out:
        for count in TOPICS:
            await out.send(f"of-{count}", VALUE)  # now it knows the topic
        begin = process_time()
        times = await way(out, records)
        spent = process_time() - begin
    return 1e6 * spent / records, 1e6 * median(times or [0.0])


def work(cluster: str, rate: float | None) -> None:
    if rate is not None:
        clock.step = 1 / rate
        time.monotonic = clock
    for line in sys.stdin:
        print(json.dumps(anyio.run(measure, cluster, line.strip())), flush=True)


# ---- the two of them ----------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="measure what has this in its name")
    parser.add_argument("--kafka", metavar="VERSION", help="a real broker of this release")
    parser.add_argument("--rate", type=float, help="records a second, by the client's clock (put only)")
    parser.add_argument("--work", metavar="CLUSTER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work, options.rate)
        return
    with kafka(options.kafka, TOPICS) if options.kafka else kafka07() as (cluster, wipe):
        rate = ["--rate", str(options.rate)] if options.rate else []
        workers = [Worker(__file__, tree, "--work", cluster, *rate) for tree in (options.tree, ROOT)]
        chosen = [name for name in WAYS if options.only in name]
        seen = measure_rounds(workers, chosen, options.rounds, wipe)
    report(seen)


@contextmanager
def kafka07() -> Iterator[tuple[str, Callable[[], object]]]:
    from _common import broker

    names = ",".join(f"of-{count}:{count}" for count in TOPICS)
    with broker({"topic.partition.count.map": names, "log.flush.interval": 1}) as started:
        yield started.cluster, lambda: [started.wipe(f"of-{count}") for count in TOPICS]


def report(seen: dict[str, Rounds]) -> None:
    print(HEADING)
    for name, rounds in seen.items():
        print(ratio_row(name, rounds))
        if rounds[0][0][1]:
            print(ratio_row(f"{name}: p50 of a call", rounds, 1))
    one, many = (f"put with keys, {count:,} partitions" for count in TOPICS)
    if one in seen and many in seen:
        for side, title in enumerate(("before", "now")):
            times = [m[side][0] / o[side][0] for o, m in zip(seen[one], seen[many], strict=True)]
            print(f"put with keys, {TOPICS[1]:,} partitions over one: {title} {median(times):.2f}")


if __name__ == "__main__":
    main()
