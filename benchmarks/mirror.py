"""A mirror between two real brokers, against MirrorMaker 2 of Kafka 2.8.2 and of 4.3.1.

    python benchmarks/mirror.py [--quick]

The source is a broker of 2.8.2, the oldest kind that both releases of MirrorMaker 2 read, and the target one of 4.3.1,
each in a process of its own (needs Java). Whoever copies is a process of its own, too, and they take turns: odradek's
mirror, a bare loop of odradek that only reads and sends (`_mirror_odradek.py`), and MirrorMaker 2 (`_mirror_maker.py`
has all of its settings), also with the transactions that 4.3.1 has. odradek's mirror is always exactly once.

A clock runs from the first record that the target has to the last, by the ends of the target's logs, read every 50 ms:
neither start-up nor the making of topics is measured. `per core` is records per second of processor time of the process
that copies. `later half` is the same between half of the records and the last: by then Java has compiled what it runs,
so this is what goals are about. `times` is that of odradek's mirror over the line's in the same turn, and
`elapsed` the records a second, likewise. `brokers` is processors that both brokers used meanwhile. After each turn what
the target has is counted, and must be what the source has.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic
from typing import NamedTuple

import anyio
import psutil

from _common import spread
from _mirror_maker import Mirroring, MirrorMaker
from _results import Bar, Results, results
from odradek import LATEST, Cluster, connect
from odradek.testing import KafkaBroker
from odradek.types import MiB

SOURCE, TARGET = "2.8.2", "4.3.1"
PARTITIONS = 4
HEAP = "1g"
GOAL = 3.0
"""Times the records per second of processor time of each MirrorMaker 2."""
EVERY_S = 0.05
MARKERS = 4 * PARTITIONS
"""Positions by which logs grow between two looks when no records come: the ends of transactions have some."""
QUIET_S = 3.0
"""Time without new records after which all have come, if they are as many as the source has."""
LIMIT_S = 300.0

CONFIG = {"num.partitions": str(PARTITIONS), "log.segment.delete.delay.ms": "1000"}

FILE = """\
name = "{alias}"
[source]
url = "kafka://{source}"
[target]
url = "kafka://{target}"
[topics]
include = ["{topic}"]
target = "{alias}.{{topic}}"
[run]
tasks = {partitions}
compression = "{compression}"
"""

# ---- who copies ---------------------------------------------------------------------------------------------


@contextmanager
def odradek(work: str, mirroring: Mirroring) -> Iterator[psutil.Process]:
    """Run a process of odradek until the end of the block."""
    with tempfile.TemporaryDirectory() as directory:
        if work == "mirror":
            file = Path(directory) / "mirror.toml"
            file.write_text(FILE.format(**mirroring._asdict()))
            words = [str(file)]
        else:
            words = [mirroring.source, mirroring.target, mirroring.topic, mirroring.copied_to, mirroring.compression]
        command = [sys.executable, str(Path(__file__).with_name("_mirror_odradek.py")), work, *words]
        with psutil.Popen(command, stdin=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()


@contextmanager
def mirror_maker(version: str, exactly_once: bool, mirroring: Mirroring) -> Iterator[psutil.Process]:
    """Run a MirrorMaker 2 until the end of the block."""
    with MirrorMaker(version, mirroring, exactly_once=exactly_once) as maker:
        try:
            yield maker.process
        except SystemExit:
            print(maker.log_tail(), file=sys.stderr)
            raise


MIRROR = "odradek mirror"
BARE = "bare odradek loop"
COPIERS: dict[str, Callable[[Mirroring], AbstractContextManager[psutil.Process]]] = {
    MIRROR: partial(odradek, "mirror"),
    BARE: partial(odradek, "bare"),
    "MirrorMaker 2.8.2": partial(mirror_maker, "2.8.2", False),
    "MirrorMaker 4.3.1": partial(mirror_maker, "4.3.1", False),
    "MirrorMaker 4.3.1, exactly once": partial(mirror_maker, "4.3.1", True),
}

# ---- one turn -----------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """What was seen at one moment.

    Args:
        at: When (s).
        copied: Sum of the ends of the target's logs.
        computed: Processor time of the process that copies (s).
        resident: Memory of it (bytes).
        brokers: Processor time of the brokers (s).
    """

    at: float
    copied: int
    computed: float
    resident: int
    brokers: float


class Run(NamedTuple):
    """What one process reached.

    Args:
        rate: Records a second.
        per_core: Records per second of processor time.
        later: The same of the later half.
        busy, brokers: Processors used by the process, and by the brokers.
        peak: Its memory at most (bytes).
    """

    rate: float
    per_core: float
    later: float
    busy: float
    brokers: float
    peak: int


async def samples(target: Cluster, topic: str, process: psutil.Process, records: int) -> AsyncIterator[Sample]:
    """Look at the target until all records are there and no more come."""
    brokers = [each for each in psutil.Process().children() if each.pid != process.pid]
    began = grown = monotonic()
    copied = 0
    while copied < records or monotonic() - grown < QUIET_S:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE or monotonic() - began > LIMIT_S:
            raise SystemExit(f"{topic}: {copied} of {records} records, and no more came")
        ends = sum((await target.positions(topic, LATEST)).values())
        if ends > copied + MARKERS:
            grown = monotonic()
            used = sum(sum(broker.cpu_times()[:2]) for broker in brokers)
            yield Sample(grown, ends, sum(process.cpu_times()[:2]), process.memory_info().rss, used)
        copied = ends
        await anyio.sleep(EVERY_S)


async def count(target: Cluster, topic: str) -> int:
    async with target.reader(topic, until=LATEST, isolation="read_committed") as reader:
        return sum([len(batch) async for batch in reader.batches()])


async def copy_once(name: str, mirroring: Mirroring, records: int) -> Run:
    """Copy a topic once, to a topic that is removed afterwards, and check how many records have come."""
    async with connect(f"kafka://{mirroring.target}") as target:
        (await target.admin.create_topics(mirroring.copied_to, partitions=PARTITIONS)).check()
        with COPIERS[name](mirroring) as process:
            seen = [each async for each in samples(target, mirroring.copied_to, process, records)]
        if (counted := await count(target, mirroring.copied_to)) != records:
            raise SystemExit(f"{name} copied {counted} of {records} records")
        made = [topic for topic in await target.topics() if not topic.startswith("__")]
        (await target.admin.delete_topics(made)).check()
    return summary(seen, records)


def summary(seen: list[Sample], records: int) -> Run:
    first, last = seen[0], seen[-1]
    half = next(each for each in seen if each.copied >= (first.copied + last.copied) / 2)
    scale = records / last.copied  # positions are not all of records
    moved = (last.copied - first.copied) * scale
    seconds = last.at - first.at
    return Run(
        moved / seconds,
        moved / (last.computed - first.computed),
        (last.copied - half.copied) * scale / (last.computed - half.computed),
        (last.computed - first.computed) / seconds,
        (last.brokers - first.brokers) / seconds,
        max(each.resident for each in seen),
    )


# ---- comparing ----------------------------------------------------------------------------------------------


def compare(measured: Results, source: KafkaBroker, target: KafkaBroker, size: int, compression: str) -> None:
    """Let all copy the same records in turns, and make a table and a chart of it."""
    records = (100_000 if size == 100 else 50_000) if measured.quick else (2_000_000 if size == 100 else 500_000)
    topic = f"of-{size}-{compression}"
    anyio.run(fill, source.bootstrap, topic, size, compression, records)
    runs: dict[str, list[Run]] = {name: [] for name in COPIERS}
    for number in range(1 if measured.quick else 3):
        for index, name in enumerate(COPIERS):
            alias = f"{topic}-{number}-{index}"
            mirroring = Mirroring(source.bootstrap, target.bootstrap, topic, alias, PARTITIONS, compression)
            runs[name].append(anyio.run(copy_once, name, mirroring, records))
    title = f"Mirror, {size} B, {compression}"
    rows, bars = [], []
    for name, own in runs.items():
        times = [ours.later / its.later for ours, its in zip(runs[MIRROR], own, strict=True)]
        elapsed = [ours.rate / its.rate for ours, its in zip(runs[MIRROR], own, strict=True)]
        goal = measured.goal(f"{title}: times {name}", median(times), GOAL) if name.startswith("Mirror") else ""
        rows.append(row(name, own, times, elapsed, goal))
        bars.append(Bar(name, median(each.later for each in own)))
    head = ("", "records/s", "per core", "later half", "busy", "brokers", "MiB", "elapsed", "times", "spread", "goal")
    measured.table(title, "Records a second, and records per second of processor time.", head, rows)
    measured.chart(title, "records per second of processor time, later half", bars)


def row(name: str, runs: list[Run], times: list[float], elapsed: list[float], goal: str) -> tuple[str, ...]:
    return (
        name,
        f"{median(each.rate for each in runs):,.0f}",
        f"{median(each.per_core for each in runs):,.0f}",
        f"{median(each.later for each in runs):,.0f}",
        f"{median(each.busy for each in runs):.0%}",
        f"{median(each.brokers for each in runs):.0%}",
        f"{max(each.peak for each in runs) / MiB:,.0f}",
        f"{median(elapsed):.2f}",
        f"{median(times):.2f}",
        spread(times),
        goal,
    )


async def fill(bootstrap: str, topic: str, size: int, compression: str, records: int) -> None:
    """Write records that compress to about half."""
    chance = random.Random(topic)
    kinds = [chance.randbytes(size // 2) + b"the quick brown fox " * (size // 40) for _ in range(2000)]
    async with connect(f"kafka://{bootstrap}") as k:
        (await k.admin.create_topics(topic, partitions=PARTITIONS)).check()
        async with k.producer(compression=compression) as out:
            (await out.send_many(topic, (kinds[number % len(kinds)] for number in range(records)))).check()


def main() -> None:
    with results(__file__, __doc__) as measured:
        sizes = (100,) if measured.quick else (100, 1000)
        compressions = ("none",) if measured.quick else ("none", "lz4")
        with (
            KafkaBroker(SOURCE, config=CONFIG, heap=HEAP) as source,
            KafkaBroker(TARGET, config=CONFIG, heap=HEAP) as target,
        ):
            for size in sizes:
                for compression in compressions:
                    compare(measured, source, target, size, compression)


if __name__ == "__main__":
    main()
