"""Flows of the pipeline, with local[2], compared with what Spark alone does with the same rows.

    python benchmarks/spark_pipeline.py [--quick]

The limit of a flow is Spark with the same Arrow batches out of memory: its `from_json` for JSON, and its own Parquet
sink (zstd) for all. A flow plans, reads log directories, decodes, writes a Delta table with statistics, checks what was
read, and commits. Rows out of memory are not read from a log, and nothing of them is checked.

`ratio` is that of the processor time of all processes: Spark's Java, its Python workers, and the driver. Other users of
the machine do not matter to it much. Above 1 the flow is cheaper than Spark.

**Late rows**: a table by date and hour, of which 5 % of the rows belong to any of the last 720 hours, compared with the
same table of rows of one hour, and its number of files with that of Spark's `partitionBy`.

**Many partitions**: the same rows in 10, 100 and 1,000 partitions of a topic. **Memory**: the largest resident set of a
Python worker while a flow reads backlogs of two sizes.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from _common import Case, compare, spread
from _results import Results, results
from _spark import FLAT, PARTITIONS, Peaks, TreeStopwatch, peaks, write_batches, write_logs
from _spark_memory import MemorySource
from odradek.pipeline.config import load
from odradek.pipeline.run import execute
from odradek.pipeline.task_source import SparkTasks
from odradek.spark.session import session
from odradek.types import GiB, MiB

LATE_GOAL = 1.5
HOURS = 720

FILE = """
[source]
logs = ["1@{logs}"]
fetchers_per_broker = 64
[flows.benchmark]
topics = ["{topic}"]
{decode}
[flows.benchmark.sink]
path = "table"
partition_by = {columns}
"""

DECODE = """[flows.benchmark.dead]
path = "dead"
[flows.benchmark.decode]
kind = "json"
fields = "{fields}"
time = "at"
"""

NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def raw(number: int, chance: random.Random) -> bytes:
    """Half of it noise, half of it words."""
    return chance.randbytes(50) + b"the quick brown fox the quick brown fox the quick "


def flat(number: int, chance: random.Random, at: datetime = NOW) -> bytes:
    return json.dumps({
        "id": number, "user": f"user-{chance.randrange(10**6):06}", "amount": chance.randrange(10**5) / 100,
        "at": at.strftime("%Y-%m-%dT%H:%M:%SZ"), "ok": number % 3 == 0,
    }).encode()  # fmt: skip


def late(number: int, chance: random.Random) -> bytes:
    at = NOW - timedelta(hours=chance.randrange(HOURS)) if chance.random() < 0.05 else NOW
    return flat(number, chance, at)


def nested(number: int, chance: random.Random) -> bytes:
    return json.dumps({
        "id": number, "user": {"name": f"n{number}", "mail": f"u{number}@example.org", "age": number % 90},
        "items": [{"sku": f"s{each * 7}", "n": each, "price": each * 1.25} for each in range(4)],
        "tags": ["a", "b", "longer tag"], "at": "2026-11-22T10:00:00Z", "geo": {"lat": 52.1234, "lon": 13.4321},
    }).encode()  # fmt: skip


class Shape(NamedTuple):
    """Records of one kind.

    Args:
        value: Makes the value of one record.
        fields: Fields of it, as Spark and the pipeline name them; empty: it is stored as it is.
        columns: Partition columns.
        goal: The ratio to reach.
    """

    value: Callable[[int, random.Random], bytes]
    fields: str = ""
    columns: tuple[str, ...] = ()
    goal: float | None = None


FLAT_FIELDS = "id bigint, user string, amount double, at timestamp, ok boolean"
NESTED_FIELDS = (
    "id bigint, user struct<name: string, mail: string, age: int>, "
    "items array<struct<sku: string, n: int, price: double>>, tags array<string>, at timestamp, "
    "geo struct<lat: double, lon: double>"
)
SHAPES = {
    "raw": Shape(raw, goal=0.85),
    "flat JSON": Shape(flat, FLAT_FIELDS, goal=1.5),
    "nested JSON": Shape(nested, NESTED_FIELDS, goal=1.5),
}
BY_HOUR = {name: Shape(value, FLAT_FIELDS, ("date", "hour")) for name, value in {"none": flat, "5 %": late}.items()}


class Workload(NamedTuple):
    """Spark, and a directory for logs and tables."""

    spark: Any
    root: Path

    def write(self, topic: str, shape: Shape, rows: int, partitions: int = PARTITIONS) -> int:
        chance = random.Random(topic)
        return write_logs(
            self.root / "logs", topic, rows, lambda number: shape.value(number, chance), partitions=partitions
        )

    def remove(self, topic: str) -> None:
        for log in (self.root / "logs").glob(f"{topic}-*"):
            shutil.rmtree(log)

    def new_folder(self) -> Path:
        """Make a directory for one table. It is kept until the end: ext4 leaves out inodes that were deleted minutes
        ago, and searches through all of them for each file of the next table."""
        return Path(tempfile.mkdtemp(dir=self.root))

    def flow(self, topic: str, shape: Shape, rows: int) -> tuple[TreeStopwatch, int]:
        """Run a flow over a topic. Return also its number of files."""
        file = self.new_folder() / "pipeline.toml"
        decode = DECODE.format(fields=shape.fields) if shape.fields else ""
        columns = json.dumps(shape.columns)
        file.write_text(FILE.format(logs=self.root / "logs", topic=topic, decode=decode, columns=columns))

        @contextmanager
        def started() -> Iterator[SparkTasks]:
            yield SparkTasks(self.spark)

        with TreeStopwatch() as watch:
            summary = execute(load(str(file)), str(file), lambda *_: None, started)
        (flow,) = summary.flows
        assert not flow.error and flow.rows == rows, (flow.error, flow.rows)
        return watch, flow.files

    def spark_alone(self, topic: str, shape: Shape) -> tuple[TreeStopwatch, int]:
        """Write the rows of a topic, which are in memory, with Spark. Return also its number of files."""
        rows = self.spark.read.format("memory").option("path", str(self.root / f"{topic}.batches")).load()
        if shape.fields:
            parsed = rows.selectExpr("*", f"from_json(cast(value AS string), '{shape.fields}') AS v")
            rows = parsed.selectExpr("* EXCEPT (value, v)", "v.*")
        if shape.columns:
            rows = rows.selectExpr("*", "to_date(at) AS date", "hour(at) AS hour")
        table = self.new_folder()
        with TreeStopwatch() as watch:
            rows.write.mode("overwrite").partitionBy(*shape.columns).parquet(str(table), compression="zstd")
        return watch, sum(1 for _ in table.rglob("*.parquet"))


def measure_rates(measured: Results, workload: Workload, rows: int, rounds: int) -> None:
    cases = []
    for name, shape in SHAPES.items():
        topic = name.replace(" ", "-")
        size = workload.write(topic, shape, rows)
        write_batches(workload.root / "logs", topic, workload.root / f"{topic}.batches")
        flow, limit = partial(workload.flow, topic, shape, rows), partial(workload.spark_alone, topic, shape)
        flow(), limit()  # the batches are in memory now, and code is compiled
        cases.append(
            Case(name, rows, size, lambda flow=flow: flow()[0], lambda limit=limit: limit()[0], 0.05, shape.goal)  # type: ignore[misc]
        )
    compare(measured, "Through a flow of the pipeline", NOTE, cases, rounds, computing=True)


def measure_late(measured: Results, workload: Workload, rows: int, rounds: int) -> None:
    cpu: dict[str, list[float]] = {name: [] for name in BY_HOUR}
    table = []
    for name, shape in BY_HOUR.items():
        workload.write(name[0], shape, rows)
        write_batches(workload.root / "logs", name[0], workload.root / f"{name[0]}.batches")
        workload.flow(name[0], shape, rows)
    for _ in range(rounds):
        for name, shape in BY_HOUR.items():
            cpu[name].append(workload.flow(name[0], shape, rows)[0].cpu)
    ratios = [late / none for none, late in zip(*cpu.values(), strict=True)]
    spark_cpu: list[float] = []
    for name, shape in BY_HOUR.items():
        workload.spark_alone(name[0], shape)
        files, (watch, sparks) = workload.flow(name[0], shape, rows)[1], workload.spark_alone(name[0], shape)
        spark_cpu.append(watch.cpu)
        measured.check(files <= sparks, f"{name} late rows: {files} files, more than Spark's {sparks}")
        late = name != "none"
        goal = measured.goal("Late rows: cost", median(ratios), LATE_GOAL, at_most=True) if late else ""
        cost = f"{spark_cpu[-1] / spark_cpu[0]:.2f}" if late else ""
        cells = (f"{median(ratios):.2f}", spread(ratios), goal) if late else ("", "", "")
        table.append((name, f"{rows / median(cpu[name]):,.0f}", str(files), *cells, str(sparks), cost))
    head = ("late rows", "records/s of processor time", "files", "cost", "spread", "goal", "Spark's files", "its cost")
    measured.table("Late rows, by date and hour", LATE_NOTE, head, table)


def measure_partitions(measured: Results, workload: Workload, rows: int) -> None:
    table = []
    for partitions in (10, 100, 1000):
        topic = f"many{partitions}"
        workload.write(topic, SHAPES["raw"], rows, partitions)
        workload.flow(topic, SHAPES["raw"], rows)
        watch, files = workload.flow(topic, SHAPES["raw"], rows)
        table.append((str(partitions), f"{rows / watch.seconds:,.0f}", f"{rows / watch.cpu:,.0f}", str(files)))
    head = ("partitions", "records/s", "records/s of processor time", "files")
    measured.table("Many partitions", "The same rows of 100 bytes, through a flow.", head, table)


def measure_memory(measured: Results, workload: Workload, sizes: tuple[int, int]) -> None:
    most = []
    block = [raw(number, random.Random(number)) for number in range(5000)]
    for size in sizes:
        topic, rows = f"backlog{size}", size // 110
        write_logs(workload.root / "logs", topic, rows, lambda number: block[number % len(block)])
        with peaks() as seen:
            workload.flow(topic, SHAPES["raw"], rows)
        most.append(Peaks(*map(max, zip(*seen, strict=True))))
        workload.remove(topic)
    ratio = most[-1].worker / most[0].worker
    goal = measured.goal("Memory of a worker in a flow", ratio, FLAT, at_most=True)
    sizes_seen = [f"{each / MiB:.0f} MiB" for peak in most for each in peak]
    head = [f"{what}, {size / MiB:.0f} MiB" for size in sizes for what in ("worker", "Java")]
    rows_ = [("raw", *sizes_seen, f"{ratio:.2f}", goal)]
    measured.table("Memory of a worker in a flow", MEMORY_NOTE, ("", *head, "ratio", "goal"), rows_)


NOTE = (
    "Rows of 100 bytes (nested JSON: 350) out of log directories into a Delta table; the limit writes the same rows "
    "out of memory with Spark's Parquet sink, after `from_json` where they are JSON. Rates and ratio are of processor "
    "time, of all processes together."
)
LATE_NOTE = (
    "Flat JSON; 5 % of the rows belong to any of the last 720 hours. Cost: processor time over that without late rows, "
    "of a flow and of Spark's `partitionBy`."
)
MEMORY_NOTE = "While a flow reads backlogs of two sizes in batches of 1 GiB, two tasks at a time."


def main() -> None:
    with results(__file__, __doc__) as measured, tempfile.TemporaryDirectory() as scratch:
        rows = 100_000 if measured.quick else 1_000_000
        rounds = 2 if measured.quick else 5
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        with session("benchmark", master="local[2]", settings={"spark.ui.showConsoleProgress": "false"}) as spark:
            spark.sparkContext.setLogLevel("ERROR")
            spark.dataSource.register(MemorySource)
            workload = Workload(spark, Path(scratch))
            measure_memory(measured, workload, (64 * MiB, 128 * MiB) if measured.quick else (384 * MiB, 3 * GiB))
            measure_rates(measured, workload, rows, rounds)
            measure_late(measured, workload, rows // 4 * 5, rounds)  # as many as one task reads
            measure_partitions(measured, workload, rows)


if __name__ == "__main__":
    main()
