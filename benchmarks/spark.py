"""Topics into Spark, with local[2]: from the embedded broker and from its log directories, and on into Parquet.

    python benchmarks/spark.py [--quick]

Four partitions of 100-byte messages go to Spark's `noop` sink, to its Parquet sink, and through a flow of the pipeline
into a table. The limit is a source that yields the same Arrow batches out of memory into the same sink (for the flow:
into Spark's Parquet sink): what Spark lets through at most. The broker is in a process of its own and has to share the
cores with Spark, which the limit has for itself.

**Memory** is the largest of a Python worker of Spark, and of its Java process, while they read (resident set, with the
pages that are shared with others): first of a log of an eighth of the size, then of a log of 1 GiB. `ratio` is that of
the workers: about 1, if what is held depends on the options and not on what waits to be read.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa

from _common import Broker, Case, Stopwatch, broker, compare
from _results import Results, results
from _spark_memory import MemorySource
from odradek import segments
from odradek.pipeline.config import load
from odradek.pipeline.run import execute, run_flows
from odradek.spark.schema import COLUMNS, Projection, join_small
from odradek.spark.session import local_session
from odradek.types import MiB
from odradek.wire.compression import CompressionType
from odradek.wire.kafka07.message_set import encode_set

PARTITIONS = 4
VALUE_BYTES = 100
TOGETHER = 200
"""Messages that are compressed together."""

INTO_NOOP = {"broker, plain": 0.5, "broker, snappy": 0.35, "directories, plain": 0.6, "directories, snappy": None}
INTO_PARQUET = {"broker, plain": 0.6, "broker, snappy": None, "directories, plain": 0.6, "directories, snappy": None}

FLOW = """
[source]
logs = ["1@{logs}"]
[run]
checkpoint = "{root}/checkpoint"
[flows.benchmark]
topics = ["{topic}"]
[flows.benchmark.sink]
path = "{root}/table"
"""


def write_logs(log_dir: Path, topic: str, rows: int, compression: CompressionType) -> None:
    """What a broker has after so many messages: half of each is noise, half of it words."""
    chance = random.Random(topic)
    words = (b"the quick brown fox " * VALUE_BYTES)[: VALUE_BYTES // 2]
    noise = [chance.randbytes(VALUE_BYTES // 2) + words for _ in range(5000)]
    for number in range(PARTITIONS):
        workload = log_dir / f"{topic}-{number}"
        workload.mkdir(parents=True)
        with (workload / f"{0:020}.kafka").open("wb") as file:
            for first in range(0, rows // PARTITIONS, TOGETHER):
                chosen = [noise[(first + step) % len(noise)] for step in range(TOGETHER)]
                file.write(encode_set(chosen, compression))


def write_batches(log_dir: Path, topic: str, workload: Path) -> None:
    """The batches that our source yields of it."""
    workload.mkdir()
    projection = Projection(COLUMNS)
    for log in segments.logs(log_dir):
        if log.partition.topic == topic:
            named = log.partition._replace(broker=1)
            made = (one for batch in log.batches() for one in projection.batches(named, batch.columns))
            with pa.ipc.new_file(str(workload / f"{named.partition}.arrow"), projection.schema) as file:
                for batch in join_small(made):
                    file.write_batch(batch)


class Peaks(NamedTuple):
    """The largest resident sets (bytes) of one Python worker of Spark, and of its Java."""

    worker: int = 0
    java: int = 0


def resident() -> Peaks:
    peaks = Peaks()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            size = process.memory_info().rss
            if process.name() == "java":
                peaks = peaks._replace(java=max(peaks.java, size))
            elif "pyspark" in " ".join(process.cmdline()):
                peaks = peaks._replace(worker=max(peaks.worker, size))
    return peaks


@contextmanager
def peaks() -> Iterator[list[Peaks]]:
    """What is resident again and again, while the block runs."""
    peaks, done = [Peaks()], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peaks.append(resident())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


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

    def into_noop(self, name: str, options: dict[str, str]) -> Stopwatch:
        rows = self.rows(name, options)
        with Stopwatch(self.served.pid) as watch:
            rows.write.format("noop").mode("overwrite").save()
        return watch

    def into_parquet(self, name: str, options: dict[str, str]) -> Stopwatch:
        rows = self.rows(name, options)
        with tempfile.TemporaryDirectory(dir=self.root) as table, Stopwatch(self.served.pid) as watch:
            rows.write.mode("overwrite").parquet(table, compression="zstd")
        return watch

    def through_flow(self, topic: str, rows: int) -> Stopwatch:
        with tempfile.TemporaryDirectory(dir=self.root) as root:
            file = Path(root, "pipeline.toml")
            file.write_text(FLOW.format(logs=self.logs, root=root, topic=topic))
            pipeline = load(str(file))
            with Stopwatch() as watch:
                summary = execute(pipeline, str(file), lambda *_: None, lambda flows: run_flows(flows, self.spark))
            (flow,) = summary.flows
            assert not flow.error, flow.error
            assert sum(batch.rows for batch in flow.batches) == rows
        return watch


def measure_rates(measured: Results, workload: Workload, rows: int, rounds: int) -> None:
    noop, parquet, flow = [], [], []
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
        limit = partial(workload.into_parquet, "memory", batches)
        flow.append(Case(f"directories, {topic}", rows, size, partial(workload.through_flow, topic, rows), limit, 0.02))
        workload.into_noop("memory", batches)  # from now on its batches are in memory
    compare(measured, "Into Spark, to `noop`", NOTE, noop, rounds)
    compare(measured, "Into Spark, to Parquet", f"{NOTE} Both write Parquet with zstd.", parquet, rounds)
    compare(measured, "Through a flow of the pipeline", FLOW_NOTE, flow, rounds)


def measure_memory(measured: Results, workload: Workload, sizes: Sequence[int]) -> None:
    table = []
    for way, options in workload.ways.items():
        for compression in (CompressionType.NONE, CompressionType.SNAPPY):
            most = []
            for size in sizes:
                topic = f"{way}-{compression.name}-{size}".lower()
                rows = size // (VALUE_BYTES + 10)
                write_logs(workload.logs, topic, rows, compression)
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


NOTE = "Rows of 100 bytes with all columns, local[2]; the limit yields the same batches out of memory."
FLOW_NOTE = (
    "A run of one flow: plan, read, count, checksum, write Parquet (zstd), commit. The limit only writes the same rows "
    "out of memory, with Spark's own Parquet sink."
)
MEMORY_NOTE = (
    "While logs of two sizes are read to `noop`, four partitions, two tasks at a time; defaults of all options."
)
FLAT = 1.15


def main() -> None:
    with results(__file__, __doc__) as measured, tempfile.TemporaryDirectory() as scratch:
        rows = 200_000 if measured.quick else 4_000_000
        logs = Path(scratch, "logs")
        write_logs(logs, "plain", rows, CompressionType.NONE)
        write_logs(logs, "snappy", rows, CompressionType.SNAPPY)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        with (
            broker({"log.dir": logs, "num.partitions": PARTITIONS, "brokerid": 1}) as served,
            local_session("benchmark", settings={"spark.ui.showConsoleProgress": "false"}) as spark,
        ):
            spark.sparkContext.setLogLevel("ERROR")
            spark.dataSource.register(MemorySource)
            workload = Workload(spark, served, Path(scratch))
            most = (64 if measured.quick else 1024) * MiB
            measure_memory(measured, workload, (most // 8, most))
            measure_rates(measured, workload, rows, 2 if measured.quick else 5)


if __name__ == "__main__":
    main()
