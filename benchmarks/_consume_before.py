"""Reading against that of an earlier commit: processor time of the client's process.

    python benchmarks/_consume_before.py TREE [--rounds N] [--only WORD]

Not part of scripts/bench: it needs another checkout, TREE, with its engine built; see `_paired.py`. A reader that ends
where it begins is measured right before, and its time subtracted: what is left is what the records cost. Arrow tables
are also made in memory, of parts as fetches of 16 KiB and of 1 MiB bring them.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import anyio

from _paired import HEADING, ROOT, Rounds, Worker, measure_rounds, ratio_row

VALUE = bytes(100)
RECORDS = 2_000_000
COUNTS = (1, 10_000)
"""Topics `of-N` have N partitions."""
PART_BYTES = (16 << 10, 1 << 20)
TABLE_ROWS, TABLES = 100_000, 10


# ---- in each of the two: nothing here that one of them does not have ----------------------------------------

Way = Callable[[Any], Awaitable[int]]


async def tables(r: Any) -> int:
    return sum([table.num_rows async for table in r.arrow()])


async def batches(r: Any) -> int:
    return sum([len(batch.values) async for batch in r.batches()])


async def records(r: Any) -> int:
    got = 0
    async for _ in r:
        got += 1
    return got


async def read(k: Any, topic: str, way: Way, start: Any, expected: int) -> float:
    from odradek import LATEST

    gc.collect()
    begin = process_time()
    async with k.reader(topic, start=start, until=LATEST) as r:
        assert await way(r) == expected
    return process_time() - begin


async def reading(cluster: str, way: Way, count: int, fetch_bytes: int) -> float:
    """Return the processor time of a record (us)."""
    from odradek import EARLIEST, LATEST, Tuning, connect

    topic = f"of-{count}"
    async with connect(cluster, tuning=Tuning(fetch_bytes=fetch_bytes)) as k:
        await read(k, topic, way, LATEST, 0)  # now it knows the topics
        nothing = await read(k, topic, way, LATEST, 0)
        return 1e6 * (await read(k, topic, way, EARLIEST, RECORDS) - nothing) / RECORDS


async def making_tables(cluster: str, fetch_bytes: int) -> float:
    """Return the processor time of a row (us)."""
    from odradek import EARLIEST, LATEST, Tuning, connect
    from odradek.arrow import table

    parts, rows = [], 0
    tuning = Tuning(fetch_bytes=fetch_bytes)
    async with connect(cluster, tuning=tuning) as k, k.reader("of-1", start=EARLIEST, until=LATEST) as r:
        async for batch in r.batches():
            parts.append((batch.partition, batch.columns))
            if (rows := rows + len(batch)) >= TABLE_ROWS:
                break
    begin = process_time()
    for _ in range(TABLES):
        assert table(parts).num_rows == rows
    return 1e6 * (process_time() - begin) / TABLES / rows


def work(cluster: str) -> None:
    for line in sys.stdin:
        print(json.dumps([anyio.run(MEASURED[line.strip()], cluster)]), flush=True)


WAYS: dict[str, Way] = {"batches": batches, "tables": tables, "records": records}
MEASURED: dict[str, Callable[[str], Awaitable[float]]] = {
    **{
        f"{name}, {count:,} partitions": partial(reading, way=way, count=count, fetch_bytes=1 << 20)
        for name, way in WAYS.items()
        for count in COUNTS
    },
    **{
        f"{name}, fetches of 16 KiB": partial(reading, way=way, count=1, fetch_bytes=16 << 10)
        for name, way in WAYS.items()
    },
    **{f"table() of parts of {size >> 10} KiB": partial(making_tables, fetch_bytes=size) for size in PART_BYTES},
}


# ---- the two of them ----------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="measure what has this in its name")
    parser.add_argument("--work", metavar="CLUSTER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work)
        return
    from partitions import fill, topics

    names = [name for name in MEASURED if options.only in name]
    with topics(COUNTS) as cluster:
        for count in COUNTS:
            fill(cluster, f"of-{count}", count, RECORDS)
        workers = [Worker(__file__, tree, "--work", cluster.cluster) for tree in (options.tree, ROOT)]
        seen = measure_rounds(workers, names, options.rounds)
    report(seen)


def report(seen: dict[str, Rounds]) -> None:
    print(HEADING)
    for name, rounds in seen.items():
        print(ratio_row(name, rounds))
    for way in WAYS:
        one, many = (seen.get(f"{way}, {count:,} partitions") for count in COUNTS)
        if one and many:
            before, now = ([m[side][0] / o[side][0] for o, m in zip(one, many, strict=True)] for side in (0, 1))
            print(f"{way}, {COUNTS[1]:,} partitions over one: before {median(before):.2f}, now {median(now):.2f}")


if __name__ == "__main__":
    main()
