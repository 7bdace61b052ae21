"""What observers cost: processor time of a record of 100 B, produced and consumed with each of them and without one.

    python benchmarks/observe.py [--quick]

The same work is done without an observer, with one that does nothing, with `PrometheusObserver`, and with
`OpenTelemetryObserver` (metrics of the SDK, without spans), one after the other in each round; who begins changes from
round to round. `ratio` is the median over the rounds of the processor time with the observer over that without one in
the same round, and the quartiles say how far the rounds lie apart. The broker is the embedded one, in a process of its
own, with two partitions.

What observers cost by having places where they are asked for is seen with `_produce_before.py` and
`_consume_before.py`, against a commit without them.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from statistics import median
from time import process_time

import anyio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from _common import Broker, broker
from _results import Results, results
from odradek import EARLIEST, LATEST, Cluster, connect
from odradek.observe import Observer
from odradek.observe.otel import OpenTelemetryObserver
from odradek.observe.prometheus import PrometheusObserver

VALUE = bytes(100)
NONE = "none"
GOALS = {"prometheus": 1.03, "otel": 1.05}

Work = Callable[[Cluster, str, int], Awaitable[float]]
"""A function that moves so many records of a topic, and returns the processor time (s)."""

_numbers = count()


async def send_many(k: Cluster, topic: str, records: int) -> float:
    values = [VALUE] * records
    async with k.producer() as out:
        await out.send(topic, VALUE)
        begin = process_time()
        acks = await out.send_many(topic, values)
        assert acks.check().written == records
        return process_time() - begin


async def put(k: Cluster, topic: str, records: int) -> float:
    async with k.producer() as out:
        await out.send(topic, VALUE)
        begin = process_time()
        for _ in range(records):
            await out.put(topic, VALUE)
        await out.flush()
        return process_time() - begin


async def send(k: Cluster, topic: str, records: int) -> float:
    """One at a time, a request for each: the most that an observer can cost."""
    async with k.producer() as out:
        await out.send(topic, VALUE)
        begin = process_time()
        for _ in range(records // 500):
            await out.send(topic, VALUE)
        return (process_time() - begin) * 500


async def batches(k: Cluster, topic: str, records: int) -> float:
    begin = process_time()
    async with k.reader("filled", start=EARLIEST, until=LATEST) as r:
        assert sum([len(batch.values) async for batch in r.batches()]) == records
    return process_time() - begin


WORK: Mapping[str, Work] = {"batches": batches, "send_many": send_many, "put": put, "send": send}


def new_observer(name: str) -> Observer | None:
    match name:
        case "nothing":
            return Observer()
        case "prometheus":
            return PrometheusObserver(CollectorRegistry())
        case "otel":
            return OpenTelemetryObserver(meter_provider=MeterProvider([InMemoryMetricReader()]))
    return None


def measure(cluster: Broker, observer: Observer | None, work: Work, records: int) -> float:
    async def main() -> float:
        async with connect(cluster.cluster, observer=observer) as k:
            return await work(k, f"t-{next(_numbers) % 8}", records)

    gc.collect()
    return anyio.run(main)


async def fill(cluster: Broker, records: int) -> None:
    async with connect(cluster.cluster) as k, k.producer() as out:
        (await out.send_many("filled", [VALUE] * records)).check()


def compare(measured: Results, cluster: Broker, records: int, rounds: int) -> None:
    observers = {name: new_observer(name) for name in (NONE, "nothing", *GOALS)}
    rows = []
    for title, work in WORK.items():
        times: dict[str, list[float]] = {name: [] for name in observers}
        for number in range(rounds + 1):
            names = list(observers)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                times[name].append(measure(cluster, observers[name], work, records))
        rows += [row(measured, title, name, times, records) for name in observers]
    head = ["way, observer", "ns a record", "ratio", "quartiles", "goal"]
    measured.table("Observers", "Processor time of this process.", head, rows)


def row(measured: Results, title: str, name: str, times: Mapping[str, list[float]], records: int) -> list[str]:
    """Return one line; the first round has warmed up."""
    ratios = sorted(now / without for now, without in zip(times[name][1:], times[NONE][1:], strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    ratio = median(ratios)
    goal = ""
    if name in GOALS and title != "send" and not measured.quick:
        goal = measured.goal(f"{title}, {name}", ratio, GOALS[name], at_most=True)
    cost = 1e9 * median(times[name][1:]) / records
    return [f"{title}, {name}", f"{cost:.0f}", f"{ratio:.3f}", f"{low:.3f} to {high:.3f}", goal]


def main() -> None:
    with (
        results(__file__, __doc__) as measured,
        broker({"num.partitions": 2, "log.flush.interval": 1}, zookeeper=True) as cluster,
    ):
        records, rounds = (20_000, 2) if measured.quick else (200_000, 21)
        anyio.run(fill, cluster, records)
        compare(measured, cluster, records, rounds)


if __name__ == "__main__":
    main()
