"""Producing and reading against an earlier commit: instructions that the client's process executes for a record.

    python benchmarks/_instructions_before.py TREE [--only WORD] [--kafka VERSION]
    python benchmarks/_instructions_before.py TREE --start [--kafka VERSION]   # whole programs, up to the first record

Not part of scripts/bench: it needs valgrind and another checkout, TREE, with its engine built. Times on a machine that
does other things vary by several per cent; the instructions of the same work hardly do, so this shows whether a change
costs 3 % where `_produce_before.py` and `_consume_before.py` cannot. Each work runs in a process of its own with few
records and with many: the difference is what records cost, without the start. `--rate` of `_produce_before.py` is
300,000, so that batches have as many records as on a fast machine. The kernel's instructions are not counted.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio

from _paired import ROOT, kafka
from _produce_before import TOPICS, VALUE, WAYS, clock, kafka07

FEW, SCALE = 0.05, 0.25
"""Shares of the records of `WAYS` in the two processes: valgrind takes some fifty times as long."""
RATE = 300_000
READ = 200_000
"""Records in the topic that is read."""

FIRST_RECORD = """
import asyncio, sys
import odradek as od

async def main():
    async with od.connect(sys.argv[1]) as k, k.reader("of-1", start=od.EARLIEST) as reader:
        await anext(aiter(reader))

asyncio.run(main())
"""
STARTS = {
    **{bare: bare for bare in ("pass", "import asyncio", "import anyio", "import click", "import odradek")},
    "first record": FIRST_RECORD,
    "odradek ls": "import sys; from odradek.cli import main; main(['ls', '--cluster', sys.argv[1]])",
}
READING = ("batches", "tables", "records")
ROUNDS = 2


# ---- in each of the two: nothing here that one of them does not have ----------------------------------------


async def produce(cluster: str, name: str, share: float) -> None:
    from odradek import connect

    way, records = WAYS[name]
    async with connect(cluster) as k, k.producer() as out:
        for count in TOPICS:
            await out.send(f"of-{count}", VALUE)
        await way(out, int(records * share))


async def read(cluster: str, name: str, share: float) -> None:
    from odradek import EARLIEST, LATEST, connect

    wanted, rows = int(READ * share), 0
    async with connect(cluster) as k, k.reader("of-1", start=EARLIEST, until=LATEST) as r:
        if name == "records":
            async for _ in r:
                rows += 1
                if rows >= wanted:
                    return
        parts: Any = r.arrow() if name == "tables" else r.batches()
        async for part in parts:
            rows += part.num_rows if name == "tables" else len(part.values)
            if rows >= wanted:
                return


def work(cluster: str, name: str, share: float) -> None:
    clock.step = 1 / RATE
    if name.startswith("put"):
        time.monotonic = clock
    anyio.run(read if name in READING else produce, cluster, name, share)


# ---- the two of them ----------------------------------------------------------------------------------------


def instructions(tree: Path, cluster: str, name: str, share: float) -> int:
    """Return how many instructions one process executes."""
    return executed(tree, __file__, "--work", cluster, name, str(share))


def environment(tree: Path) -> dict[str, str]:
    """Return the environment of a process that uses a checkout, and caches its byte code."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"}


def executed(tree: Path, *arguments: str) -> int:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [sys.executable, *arguments]
    done = subprocess.run(command, env=environment(tree), capture_output=True, text=True, check=True)
    counted = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    assert counted is not None, done.stderr
    return int(counted[1].replace(",", ""))


def per_record(tree: Path, cluster: str, name: str) -> float:
    records = READ if name in READING else WAYS[name][1]
    few, many = (instructions(tree, cluster, name, share) for share in (FEW, SCALE))
    return (many - few) / (records * (SCALE - FEW))


def compare_starts(tree: Path, cluster: str) -> None:
    """Print how many instructions, in millions, whole programs execute. Byte code is cached by a run before."""
    for name, program in STARTS.items():
        for each in (tree, ROOT):
            subprocess.run([sys.executable, "-c", program, cluster], env=environment(each), stdout=DEVNULL, check=True)
        before, now = (executed(each, "-c", program, cluster) for each in (tree, ROOT))
        print(f"{name:44} {before / 1e6:9.1f} {now / 1e6:9.1f} {now / before:7.2f}", flush=True)


async def fill(cluster: str) -> None:
    from odradek import connect

    async with connect(cluster) as k, k.producer() as out:
        for _ in range(10):
            (await out.send_many("of-1", [VALUE] * (READ // 10))).check()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", type=Path)
    parser.add_argument("--only", default="", help="measure what has this in its name")
    parser.add_argument("--start", action="store_true", help="measure whole programs that end after their first result")
    parser.add_argument("--kafka", metavar="VERSION", help="a real broker of this release")
    parser.add_argument("--work", nargs=3, metavar=("CLUSTER", "NAME", "SHARE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        cluster, name, share = options.work
        work(cluster, name, float(share))
        return
    counted = "instructions (millions)" if options.start else "instructions a record"
    print(f"{counted:44} {'before':>9} {'now':>9} {'ratio':>7} {'of rounds':>14}")
    with kafka(options.kafka, TOPICS) if options.kafka else kafka07() as (cluster, _):
        anyio.run(fill, cluster)
        if options.start:
            compare_starts(options.tree, cluster)
            return
        for name in (each for each in (*READING, *WAYS) if options.only in each):
            rounds = [[per_record(tree, cluster, name) for tree in (options.tree, ROOT)] for _ in range(ROUNDS)]
            before, now = (sorted(side)[ROUNDS // 2] for side in zip(*rounds, strict=True))
            ratios = sorted(n / b for b, n in rounds)
            spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
            print(f"{name:44} {before:9.0f} {now:9.0f} {ratios[ROUNDS // 2]:7.3f} {spread:>14}", flush=True)


if __name__ == "__main__":
    main()
