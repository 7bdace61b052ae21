"""What observers cost: processor time of a record of 100 B, produced and consumed with each of them and without one.

    python benchmarks/observe.py [--quick]

The same work is done without an observer, with one that does nothing, with `PrometheusObserver`, and with
`OpenTelemetryObserver` (metrics of the SDK, without spans), by four clients that stay connected, one after the other in
each round; who begins changes from round to round. `ratio` is the median over the rounds of the processor time with the
observer over that without one in the same round, and the quartiles say how far the rounds lie apart. The brokers are
the embedded one of 0.7, in a process of its own, with two partitions, and, but for `--quick`, a real one of 4.3.1.

What observers cost by having places where they are asked for is seen with `_produce_before.py` and
`_consume_before.py`, against a commit without them.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from itertools import count
from statistics import median
from time import process_time

import anyio
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from _common import broker
from _results import Results, results
from odradek import EARLIEST, LATEST, Cluster, connect
from odradek.observe import Observer
from odradek.observe.otel import OpenTelemetryObserver
from odradek.observe.prometheus import PrometheusObserver
from odradek.testing import KafkaBroker

VALUE = bytes(100)
NONE = "none"
RELEASE = "4.3.1"
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
    assert await read(k) == records
    return process_time() - begin


async def read(k: Cluster) -> int:
    async with k.reader("filled", start=EARLIEST, until=LATEST) as r:
        return sum([len(batch.values) async for batch in r.batches()])


async def fill(k: Cluster, records: int) -> None:
    """Write what is read, until it is there: 0.7 acknowledges nothing."""
    async with k.producer() as out:
        (await out.send_many("filled", [VALUE] * records)).check()
    while await read(k) < records:  # noqa: ASYNC110  # no event tells it
        await anyio.sleep(0.1)


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


async def compare(measured: Results, broker: str, url: str, records: int, rounds: int) -> None:
    async with AsyncExitStack() as clients:
        observers = {name: new_observer(name) for name in (NONE, "nothing", *GOALS)}
        connected = {
            name: await clients.enter_async_context(connect(url, observer=observer))
            for name, observer in observers.items()
        }
        await fill(connected[NONE], records)
        rows = []
        for title, work in WORK.items():
            times = await measure_rounds(connected, work, records, rounds)
            rows += [row(measured, broker, title, name, times, records) for name in observers]
    head = ["way, observer", "ns a record", "ratio", "quartiles", "goal"]
    measured.table(f"Observers, {broker}", "Processor time of this process.", head, rows)


async def measure_rounds(
    clients: Mapping[str, Cluster], work: Work, records: int, rounds: int
) -> Mapping[str, list[float]]:
    """Return the times of all rounds, of which the first has warmed up."""
    times: dict[str, list[float]] = {name: [] for name in clients}
    names = list(clients)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            gc.collect()
            times[name].append(await work(clients[name], f"t-{next(_numbers) % 8}", records))
    return times


def row(
    measured: Results, broker: str, title: str, name: str, times: Mapping[str, list[float]], records: int
) -> list[str]:
    """Return one line; the first round has warmed up."""
    ratios = sorted(now / without for now, without in zip(times[name][1:], times[NONE][1:], strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    ratio = median(ratios)
    goal = ""
    if name in GOALS and title != "send" and not measured.quick:
        goal = measured.goal(f"{title}, {name}, {broker}", ratio, GOALS[name], at_most=True)
    cost = 1e9 * median(times[name][1:]) / records
    return [f"{title}, {name}", f"{cost:.0f}", f"{ratio:.3f}", f"{low:.3f} to {high:.3f}", goal]


def main() -> None:
    with results(__file__, __doc__) as measured:
        records, rounds = (20_000, 2) if measured.quick else (200_000, 21)
        with broker({"num.partitions": 2, "log.flush.interval": 1}, zookeeper=True) as embedded:
            anyio.run(compare, measured, "0.7", embedded.cluster, records, rounds)
        if not measured.quick:
            with KafkaBroker(RELEASE, config={"num.partitions": "2"}) as real:
                anyio.run(compare, measured, RELEASE, f"kafka://{real.bootstrap}", records, rounds)


if __name__ == "__main__":
    main()
