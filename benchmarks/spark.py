"""Topics into Spark, with local[2]: from the embedded broker and from its log directories.

    python benchmarks/spark.py [--quick]

Four partitions of 100-byte messages go to Spark's `noop` sink and to its Parquet sink. The limit is a source that
yields the same Arrow batches out of memory into the same sink: what Spark lets through at most. The ratio is that of
the processor time of all processes but the broker: Spark's Java, its Python workers, and the driver.

**Memory** is the largest of a Python worker of Spark, and of its Java process, while they read (resident set, with the
pages that are shared with others): first of a log of an eighth of the size, then of a log of 3 GiB. `ratio` is that of
the workers: about 1, if what is held depends on the options and not on what waits to be read.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from _common import Broker, Case, broker, compare
from _results import Results, results
from _spark import FLAT, PARTITIONS, Peaks, TreeStopwatch, peaks, write_batches, write_logs
from _spark_memory import MemorySource
from odradek.spark.session import session
from odradek.types import GiB, MiB
from odradek.wire.compression import CompressionType

VALUE_BYTES = 100

INTO_NOOP = {"broker, plain": 0.84, "broker, snappy": None, "directories, plain": 0.84, "directories, snappy": None}
INTO_PARQUET = {"broker, plain": 0.87, "broker, snappy": None, "directories, plain": 0.87, "directories, snappy": None}


def half_noise(topic: str) -> Callable[[int], bytes]:
    """Return a function that makes values: half of each is noise, half of it words."""
    chance = random.Random(topic)
    words = (b"the quick brown fox " * VALUE_BYTES)[: VALUE_BYTES // 2]
    values = [chance.randbytes(VALUE_BYTES // 2) + words for _ in range(5000)]
    return lambda number: values[number % len(values)]


class Workload(NamedTuple):
    """Where everything is: Spark, the broker, and a directory with the broker's logs in it."""

    spark: Any
    served: Broker
    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def ways(self) -> dict[str, dict[str, str]]:
        host, port = self.served.address
        return {"broker": {"kafka.broker.list": f"1:{host}:{port}"}, "directories": {"path": f"1@{self.logs}"}}

    def rows(self, name: str, options: dict[str, str]) -> Any:
        return self.spark.read.format(name).options(**options).load()

    def into_noop(self, name: str, options: dict[str, str]) -> TreeStopwatch:
        rows = self.rows(name, options)
        with TreeStopwatch(self.served.pid) as watch:
            rows.write.format("noop").mode("overwrite").save()
        return watch

    def into_parquet(self, name: str, options: dict[str, str]) -> TreeStopwatch:
        rows = self.rows(name, options)
        with tempfile.TemporaryDirectory(dir=self.root) as table, TreeStopwatch(self.served.pid) as watch:
            rows.write.mode("overwrite").parquet(table, compression="zstd")
        return watch


def measure_rates(measured: Results, workload: Workload, rows: int, rounds: int) -> None:
    noop, parquet = [], []
    for topic in ("plain", "snappy"):
        batches = {"path": str(workload.root / f"{topic}.batches")}
        write_batches(workload.logs, topic, Path(batches["path"]))
        for way, options in workload.ways.items():
            options = {**options, "subscribe": topic, "minPartitions": str(PARTITIONS)}
            assert workload.rows("odradek", options).count() == rows
            name, size = f"{way}, {topic}", rows * (VALUE_BYTES + 10)
            for into, sink, goals in (
                (noop, workload.into_noop, INTO_NOOP),
                (parquet, workload.into_parquet, INTO_PARQUET),
            ):
                run, limit = partial(sink, "odradek", options), partial(sink, "memory", batches)
                into.append(Case(name, rows, size, run, limit, 0.05, goals[name]))
        workload.into_noop("memory", batches)  # from now on its batches are in memory
    compare(measured, "Into Spark, to `noop`", NOTE, noop, rounds, computing=True)
    note = f"{NOTE} Both write Parquet with zstd."
    compare(measured, "Into Spark, to Parquet", note, parquet, rounds, computing=True)


def measure_memory(measured: Results, workload: Workload, sizes: Sequence[int]) -> None:
    table = []
    for way, options in workload.ways.items():
        for compression in (CompressionType.NONE, CompressionType.SNAPPY):
            most = []
            for size in sizes:
                topic = f"{way}-{compression.name}-{size}".lower()
                rows = size // (VALUE_BYTES + 10)
                write_logs(workload.logs, topic, rows, half_noise(topic), compression)
                with peaks() as seen:
                    workload.into_noop("odradek", {**options, "subscribe": topic, "minPartitions": str(PARTITIONS)})
                most.append(Peaks(*map(max, zip(*seen, strict=True))))
                for log in workload.logs.glob(f"{topic}-*"):
                    shutil.rmtree(log)
            name, ratio = f"{way}, {compression.name.lower()}", most[-1].worker / most[0].worker
            goal = measured.goal(f"Memory of an executor: {name}", ratio, FLAT, at_most=True)
            sizes_seen = [f"{each / MiB:.0f} MiB" for peak in most for each in peak]
            table.append((name, *sizes_seen, f"{ratio:.2f}", goal))
    head = [f"{what}, {size / MiB:.0f} MiB" for size in sizes for what in ("worker", "Java")]
    measured.table("Memory of an executor", MEMORY_NOTE, ("", *head, "ratio", "goal"), table)


NOTE = (
    "Rows of 100 bytes with all columns, local[2]; the limit yields the same batches out of memory. Rates and ratio "
    "are of processor time, of all processes but the broker."
)
MEMORY_NOTE = (
    "While logs of two sizes are read to `noop`, four partitions, two tasks at a time; defaults of all options."
)


def main() -> None:
    with results(__file__, __doc__) as measured, tempfile.TemporaryDirectory() as scratch:
        rows = 200_000 if measured.quick else 4_000_000
        logs = Path(scratch, "logs")
        write_logs(logs, "plain", rows, half_noise("plain"))
        write_logs(logs, "snappy", rows, half_noise("snappy"), CompressionType.SNAPPY)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        with (
            broker({"log.dir": logs, "num.partitions": PARTITIONS, "brokerid": 1}) as served,
            session("benchmark", master="local[2]", settings={"spark.ui.showConsoleProgress": "false"}) as spark,
        ):
            spark.sparkContext.setLogLevel("ERROR")
            spark.dataSource.register(MemorySource)
            workload = Workload(spark, served, Path(scratch))
            most = 128 * MiB if measured.quick else 3 * GiB
            measure_memory(measured, workload, (most // 8, most))
            measure_rates(measured, workload, rows, 2 if measured.quick else 5)


if __name__ == "__main__":
    main()
