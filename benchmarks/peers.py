"""Consuming and producing on a real broker, against confluent-kafka (blocking and asyncio), aiokafka and kafka-python.

    python benchmarks/peers.py [--quick]

The broker is the newest release, in a process of its own (needs Java). Every client is a process of its own too
(`_peers_clients.py` says what each does), and they take turns. `of odradek` is what a peer reaches of odradek's
records a second in the same turn, so 0.5 is half as fast; `client` is processor time of the client's process for one
record. `busy` is the share of one processor that the client's process used: 100 % means that it is the limit, and far
less that it waited for the broker.

At 20 ms, a proxy between clients and broker holds every byte for 10 ms on each way, and the same proxy without delay is
what that is compared with.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import anyio

from _common import spread
from _peers_clients import WORKS, Work
from _results import Bar, Results, results
from odradek import connect
from odradek.testing import FaultProxy, KafkaBroker

PARTITIONS = 2
CLIENTS = ("confluent", "confluent_asyncio", "aiokafka", "kafka_python")
TITLES = {
    "consume_batches": "Consume in batches",
    "consume_records": "Consume record by record",
    "consume_arrow": "Consume as Arrow tables",
    "produce_many": "Produce many records",
    "send_one": "Send one record after another, each acknowledged",
    "send_concurrent": "Send from 1,000 tasks at the same time, each record acknowledged",
}
GOALS = {
    ("consume_batches", "confluent"): 3.0,
    ("consume_records", "confluent"): 1.5,
    ("produce_many", "confluent"): 1.3,
}
"""Times the records a second of that peer."""
KEPT_AT_20_MS = 0.85
HEAP = "1g"
HOLD_S = 0.01
SLOW = {"confluent_asyncio send_one": 20}
"""Records where each takes about a second: its buffer is only looked at that often."""


class Run(NamedTuple):
    """What one process measured."""

    rate: float
    computed: float
    busy: float
    p50: float


def run(name: str, work: Work) -> Run:
    """Run a client in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("_peers_clients.py"))]
    asked = json.dumps({"name": name, "work": work._asdict()})
    done = subprocess.run([*command, asked], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    read = json.loads(done.stdout)
    records, seconds, computed = read["records"], read["seconds"], read["computed"]
    return Run(records / seconds, computed / records, computed / seconds, read["p50"])


class Size(NamedTuple):
    """How many records of each work make a turn of about a second."""

    consumed: int
    produced: int
    one: int
    concurrent: int
    distant: int
    """To be consumed at 20 ms: enough that the first small fetches do not matter."""

    def of(self, work: str) -> int:
        return {"send_one": self.one, "send_concurrent": self.concurrent, "produce_many": self.produced}.get(
            work, self.consumed
        )


QUICK = Size(20_000, 10_000, 100, 5000, 20_000)
FULL = Size(500_000, 200_000, 1000, 30_000, 3_000_000)


def compare(measured: Results, bootstrap: str, topic: str, work: str, size: int, compression: str, rounds: int) -> None:
    """Let all clients do one work in turns, and make a table and a chart of it."""
    names = [name for client in ("odradek", *CLIENTS) if (name := f"{client} {work}") in WORKS]
    runs: dict[str, list[Run]] = {name: [] for name in names}
    sizes = (QUICK if measured.quick else FULL).of(work)
    senders = 1000 if work == "send_concurrent" else 1
    for _ in range(rounds):
        for name in names:
            records = min(sizes, SLOW.get(name, sizes))
            runs[name].append(run(name, Work(bootstrap, topic, records, size, compression, PARTITIONS, senders)))
    title = f"{TITLES[work]}, {size} B, {compression}"
    own = [one.rate for one in runs[names[0]]]
    rows, bars = [], []
    for name in names:
        client = name.split()[0]
        shares = [one.rate / rate for one, rate in zip(runs[name], own, strict=True)]
        goal, bound = "", GOALS.get((work, client))
        if bound is not None:
            goal = measured.goal(f"{title}: times {client}", 1 / median(shares), bound)
        elif work == "send_one" and client != "odradek":
            ours, its = (median(one.p50 for one in runs[n]) for n in (names[0], name))
            goal = measured.goal(f"{title}: p50 over that of {client}", ours / its, 1.0, at_most=True)
        rows.append(row(client, runs[name], shares, goal))
        bars.append(Bar(client, median(one.rate for one in runs[name]) / median(own)))
    head = ("", "records/s", "client", "busy", "p50", "of odradek", "spread", "goal")
    measured.table(title, "Records a second, and their share of odradek's in the same turn.", head, rows)
    measured.chart(title, "records a second, times those of odradek", bars)


def row(client: str, runs: Sequence[Run], shares: Sequence[float], goal: str) -> tuple[str, ...]:
    p50 = median(one.p50 for one in runs)
    return (
        client.replace("_", " "),
        f"{median(one.rate for one in runs):,.0f}",
        f"{median(one.computed for one in runs) * 1e6:.2f} us",
        f"{median(one.busy for one in runs):.0%}",
        f"{p50 * 1e3:.2f} ms" if p50 else "",
        f"{median(shares):.2f}",
        spread([one.rate for one in runs]),
        goal,
    )


def fill(bootstrap: str, topic: str, size: int, compression: str, records: int) -> None:
    async def main() -> None:
        async with connect(f"kafka://{bootstrap}") as k, k.producer(compression=compression) as out:
            (await out.send_many(topic, Work("", topic, records, size, compression, PARTITIONS).values())).check()

    anyio.run(main)


def more_senders(measured: Results, bootstrap: str, rounds: int) -> None:
    """Compare 4,000 tasks with 1,000: the records a second must not depend on how many wait."""
    records = 20_000 if measured.quick else 100_000
    rows = []
    for client in ("odradek", "aiokafka"):
        name, ratios = f"{client} send_concurrent", []
        for _ in range(rounds):
            few, many = (
                run(name, Work(bootstrap, "senders", records // (1 if client == "odradek" else 5), 100, "none", 2, n))
                for n in (1000, 4000)
            )
            ratios.append(many.rate / few.rate)
        title = "4,000 tasks over 1,000"
        goal = measured.goal(f"{title}: {client}", median(ratios), KEPT_AT_20_MS) if client == "odradek" else ""
        rows.append((client, f"{median(ratios):.2f}", spread(ratios), goal))
    note = "Records a second of 4,000 tasks that each await a send, over those of 1,000 tasks."
    measured.table("Concurrent senders", note, ("", "ratio", "spread", "goal"), rows)


@contextmanager
def broker_behind_proxy() -> Iterator[tuple[str, FaultProxy]]:
    """Start a broker that tells clients to come through the proxy."""
    broker = KafkaBroker(heap=HEAP)
    broker.reserve()
    with FaultProxy(broker.host, broker.port) as proxy:
        bootstrap = f"{proxy.host}:{proxy.port}"
        broker.config |= {"advertised.listeners": f"PLAINTEXT://{bootstrap}", "num.partitions": str(PARTITIONS)}
        with broker:
            yield bootstrap, proxy


def distant(measured: Results, rounds: int) -> None:
    """Compare odradek and confluent-kafka with themselves at 20 ms."""
    size = QUICK if measured.quick else FULL
    rows = []
    with broker_behind_proxy() as (bootstrap, proxy):
        fill(bootstrap, "distant", 100, "none", size.distant)
        for work in ("consume_batches", "produce_many"):
            consumes = work.startswith("consume")
            topic = "distant" if consumes else "distant-produced"
            records = size.distant if consumes else size.of(work)
            for client in ("odradek", "confluent"):
                ratios = []
                for _ in range(rounds):
                    rates = []
                    for hold_s in (0.0, HOLD_S):
                        proxy.delay(hold_s)
                        asked = Work(bootstrap, topic, records, 100, "none", PARTITIONS)
                        rates.append(run(f"{client} {work}", asked).rate)
                    ratios.append(rates[1] / rates[0])
                name = f"{TITLES[work]}, {client}"
                bound = KEPT_AT_20_MS if client == "odradek" and not measured.quick else None
                goal = measured.goal(f"20 ms over loopback: {name}", median(ratios), bound) if bound else ""
                rows.append((name, f"{median(ratios):.2f}", spread(ratios), goal))
        proxy.delay(0.0)
    note = "Records a second through a proxy that adds 20 ms to every round trip, over those through it without delay."
    measured.table("20 ms away", note, ("", "ratio", "spread", "goal"), rows)


def main() -> None:
    with results(__file__, __doc__) as measured:
        rounds = 1 if measured.quick else 5
        sizes = (100,) if measured.quick else (100, 1000)
        compressions = ("none",) if measured.quick else ("none", "lz4")
        with KafkaBroker(config={"num.partitions": str(PARTITIONS)}, heap=HEAP) as broker:
            for size in sizes:
                for compression in compressions:
                    topic = f"of-{size}-{compression}"
                    fill(broker.bootstrap, topic, size, compression, (QUICK if measured.quick else FULL).consumed)
                    for work in TITLES:
                        target = topic if work.startswith("consume") else f"{topic}-produced"
                        compare(measured, broker.bootstrap, target, work, size, compression, rounds)
            more_senders(measured, broker.bootstrap, rounds)
        distant(measured, rounds)


if __name__ == "__main__":
    main()
