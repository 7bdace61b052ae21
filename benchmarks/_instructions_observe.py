"""What observers cost: instructions that the client's process executes for a record of 100 B, without the kernel's.

    python benchmarks/_instructions_observe.py [--kafka VERSION]

Not part of scripts/bench: it needs valgrind. It does the work of `observe.py`, whose times vary by several per cent on
many machines, while the instructions of the same work hardly do. Each work runs in a process of its own, with few
records and with many, and the difference is what records cost. `ratio` is that with an observer over that without one,
the median of the rounds. The broker is the embedded one of 0.7, with two partitions; with `--kafka` a real one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractContextManager
from statistics import median
from typing import Any

import anyio

from _common import broker
from _instructions_before import ROOT, executed
from observe import GOALS, NONE, WORK, fill, new_observer
from odradek import connect
from odradek.testing import KafkaBroker

WAYS = ("batches", "send_many", "put")
OBSERVERS = (NONE, "nothing", *GOALS)
FEW, MORE = 100_000, 500_000
ROUNDS = 3


async def work(cluster: str, way: str, observer: str, records: int) -> None:
    async with connect(cluster, observer=new_observer(observer)) as k:
        await WORK[way](k, "written", records)


async def fill_topic(cluster: str, records: int) -> None:
    async with connect(cluster) as k:
        await fill(k, records)


def count(cluster: str, records: int) -> Mapping[tuple[str, str], list[int]]:
    """Return the instructions of the processes that do each work with each observer and so many records, by round."""
    return {
        (way, observer): [
            executed(ROOT, __file__, "--work", cluster, way, observer, str(records)) for _ in range(ROUNDS)
        ]
        for way in WAYS
        for observer in OBSERVERS
    }


def started(version: str | None) -> AbstractContextManager[Any]:
    if version is None:
        return broker({"num.partitions": 2, "log.flush.interval": 1}, zookeeper=True)
    return KafkaBroker(version, config={"num.partitions": "2"})


def compare(cluster: str) -> None:
    anyio.run(fill_topic, cluster, FEW)
    for observer in OBSERVERS:  # byte code is cached by it
        executed(ROOT, __file__, "--work", cluster, "send_many", observer, "1")
    few = count(cluster, FEW)
    anyio.run(fill_topic, cluster, MORE)
    many = count(cluster, FEW + MORE)
    print(f"{'instructions a record':30} {'without':>9} {'with':>9} {'ratio':>7} {'of rounds':>14}")
    for way in WAYS:
        without, *others = (
            [(more - less) / MORE for less, more in zip(few[way, each], many[way, each], strict=True)]
            for each in OBSERVERS
        )
        for observer, cost in zip(OBSERVERS[1:], others, strict=True):
            ratios = sorted(now / before for before, now in zip(without, cost, strict=True))
            spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
            name = f"{way}, {observer}"
            print(f"{name:30} {median(without):9.1f} {median(cost):9.1f} {median(ratios):7.3f} {spread:>14}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", metavar="VERSION", help="a real broker of this release")
    parser.add_argument("--work", nargs=4, metavar=("CLUSTER", "WAY", "OBSERVER", "RECORDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        cluster, way, observer, records = options.work
        anyio.run(work, cluster, way, observer, int(records))
        return
    with started(options.kafka) as server:
        compare(server.cluster if options.kafka is None else f"kafka://{server.bootstrap}")


if __name__ == "__main__":
    main()
