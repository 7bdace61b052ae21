"""Topics into Spark, with local[2]: from the embedded broker and from its log directories.

    python benchmarks/spark.py [--quick]

Four partitions of 100-byte messages go to Spark's `noop` sink. The limit is a source that yields the same Arrow batches
out of memory: what Spark's way from Python to Java lets through at most. The broker is in a process of its own and has
to share the cores with Spark, which the limit has for itself. Memory is the largest of a Python worker of Spark while
it reads (resident set, with the pages that it shares with others).

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from _common import Broker, Case, Stopwatch, broker, compare
from _results import Results, results
from _spark_memory import MemorySource
from odradek import segments
from odradek.spark.schema import COLUMNS, Projection, join_small
from odradek.spark.session import local_session
from odradek.types import MiB
from odradek.wire.compression import Codec
from odradek.wire.kafka07.message_set import encode_set

PARTITIONS = 4
VALUE_BYTES = 100
TOGETHER = 200
"""Messages that are compressed together."""

GOALS = {
    ("broker", "plain"): 0.5,
    ("broker", "snappy"): 0.35,
    ("directories", "plain"): 0.6,
    ("directories", "snappy"): None,
}


def write_logs(log_dir: Path, topic: str, rows: int, compression: Codec) -> None:
    """What a broker has after so many messages: half of each is noise, half of it words."""
    chance = random.Random(topic)
    words = (b"the quick brown fox " * VALUE_BYTES)[: VALUE_BYTES // 2]
    noise = [chance.randbytes(VALUE_BYTES // 2) + words for _ in range(5000)]
    for number in range(PARTITIONS):
        place = log_dir / f"{topic}-{number}"
        place.mkdir(parents=True)
        with (place / f"{0:020}.kafka").open("wb") as file:
            for first in range(0, rows // PARTITIONS, TOGETHER):
                chosen = [noise[(first + step) % len(noise)] for step in range(TOGETHER)]
                file.write(encode_set(chosen, compression))


def write_batches(log_dir: Path, topic: str, place: Path) -> None:
    """The batches that our source yields of it."""
    place.mkdir()
    projection = Projection(COLUMNS)
    for log in segments.logs(log_dir):
        if log.partition.topic == topic:
            named = log.partition._replace(broker=1)
            made = (one for batch in log.batches() for one in projection.batches(named, batch.columns))
            with pa.ipc.new_file(str(place / f"{named.partition}.arrow"), projection.schema) as file:
                for batch in join_small(made):
                    file.write_batch(batch)


def run(spark: Any, served: Broker, name: str, options: dict[str, str]) -> Stopwatch:
    frame = spark.read.format(name).options(**options).load()
    with Stopwatch(served.pid) as watch:
        frame.write.format("noop").mode("overwrite").save()
    return watch


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The largest resident set of a Python process below this one while the block runs, in bytes."""
    found, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.name().startswith("python") and "pyspark" in " ".join(process.cmdline()):
                        found[0] = max(found[0], process.memory_info().rss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def cases(spark: Any, served: Broker, log_dir: Path, rows: int) -> Iterator[Case]:
    host, port = served.address
    ways = {"broker": {"kafka.broker.list": f"1:{host}:{port}"}, "directories": {"path": f"1@{log_dir}"}}
    for topic in ("plain", "snappy"):
        place = log_dir.with_name(f"{topic}.batches")
        write_batches(log_dir, topic, place)
        for way, options in ways.items():
            options = {**options, "subscribe": topic, "minPartitions": str(PARTITIONS)}
            assert spark.read.format("odradek").options(**options).load().count() == rows
            yield Case(
                f"{way}, {topic}",
                rows,
                rows * (VALUE_BYTES + 10),
                partial(run, spark, served, "odradek", options),
                partial(run, spark, served, "memory", {"path": str(place)}),
                0.05,
                GOALS[way, topic],
            )


def measure(found: Results, spark: Any, served: Broker, log_dir: Path, rows: int, turns: int) -> None:
    chosen, peaks = [], []
    for case in cases(spark, served, log_dir, rows):
        with peak_memory() as peak:
            case.run()
        chosen.append(case)
        peaks.append((case.name, f"{peak[0] / MiB:.0f} MiB"))
    found.table("Memory of a Python worker", "", ("", "resident"), peaks)
    for case in chosen:
        case.limit()  # its batches are in memory from now on
    compare(found, "Into Spark, to `noop`", NOTE, chosen, turns)


NOTE = "Rows of 100 bytes with all columns, local[2]; the limit yields the same batches out of memory."


def main() -> None:
    with results(__file__, __doc__) as found:
        rows = 200_000 if found.quick else 4_000_000
        with tempfile.TemporaryDirectory() as scratch:
            log_dir = Path(scratch, "logs")
            write_logs(log_dir, "plain", rows, Codec.NONE)
            write_logs(log_dir, "snappy", rows, Codec.SNAPPY)
            os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
            with (
                broker({"log.dir": log_dir, "num.partitions": PARTITIONS, "brokerid": 1}) as served,
                local_session("benchmark") as spark,
            ):
                spark.dataSource.register(MemorySource)
                measure(found, spark, served, log_dir, rows, 2 if found.quick else 5)


if __name__ == "__main__":
    main()
