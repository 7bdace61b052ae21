"""The data source beside Spark's own Kafka connector: the same topics and options, with local[2] and one real broker.

    python benchmarks/spark_kafka.py [--quick]

Topics of four partitions with values of 100 bytes are read into Spark's `noop` sink, into Parquet, and by a stream in
five batches; rows that Spark has cached are written to a topic. Only the format's name differs: `odradek`, or `kafka`.
Both take turns. The ratios are Spark's time over that of odradek: once the time that passes, and once the processor
time of all processes but the broker, which does not depend much on who else uses the machine.

**First query** is the first of a session whose Java has run another query: 10,000 rows into `noop`. Each turn starts
Spark again.

Spark's connector comes from Maven, with exactly the jars that Spark does not have itself.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

import odradek as od
from _common import spread
from _peers_settings import BROKER
from _results import Results, results
from _spark import PARTITIONS, TreeStopwatch
from odradek.spark.session import session
from odradek.testing import KafkaBroker
from odradek.testing.jars import maven_jars

CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.2.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""Spark's own connector: the newest that Maven has, and what it needs."""

FORMATS = ("kafka", "odradek")
READ_GOAL, WRITE_GOAL, FIRST_GOAL = 2.0, 1.2, 1.0
FIRST_ROWS = 10_000
STREAM_BATCHES = 5
VALUE_BYTES = 100


class Case(NamedTuple):
    """What both do.

    Args:
        name: What it is.
        rows: How many.
        run: Does it with a format.
        goal: For both ratios.
    """

    name: str
    rows: int
    run: Callable[[str], TreeStopwatch]
    goal: float


class Workload(NamedTuple):
    """A broker, its process, and a directory."""

    address: str
    broker: int
    root: Path

    @contextmanager
    def spark(self) -> Iterator[Any]:
        """Start Spark, with its own connector."""
        jars = ",".join(map(str, maven_jars(CONNECTOR, transitive=False)))
        settings = {"spark.ui.showConsoleProgress": "false", "spark.jars": jars}
        with session("benchmark", master="local[2]", settings=settings) as spark:
            spark.sparkContext.setLogLevel("OFF")
            assert spark.range(1000).count() == 1000
            yield spark

    def options(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.address, "subscribe": topic, "startingOffsets": "earliest"}

    def into_noop(self, spark: Any, topic: str, name: str) -> TreeStopwatch:
        with TreeStopwatch(self.broker) as watch:
            rows = spark.read.format(name).options(**self.options(topic)).load()
            rows.write.format("noop").mode("overwrite").save()
        return watch

    def into_parquet(self, spark: Any, topic: str, name: str) -> TreeStopwatch:
        with tempfile.TemporaryDirectory(dir=self.root) as table, TreeStopwatch(self.broker) as watch:
            rows = spark.read.format(name).options(**self.options(topic)).load().select("key", "value", "offset")
            rows.write.mode("overwrite").parquet(table, compression="zstd")
        return watch

    def stream(self, spark: Any, topic: str, rows: int, name: str) -> TreeStopwatch:
        options = {**self.options(topic), "maxOffsetsPerTrigger": str(-(-rows // STREAM_BATCHES))}
        with tempfile.TemporaryDirectory(dir=self.root) as checkpoint, TreeStopwatch(self.broker) as watch:
            read = spark.readStream.format(name).options(**options).load()
            sink = read.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = sink.trigger(availableNow=True).start()
            query.awaitTermination()
        assert sum(progress["numInputRows"] for progress in query.recentProgress) == rows
        return watch

    def write(self, frame: Any, name: str) -> TreeStopwatch:
        target = {"kafka.bootstrap.servers": self.address, "topic": "written"}
        with TreeStopwatch(self.broker) as watch:
            frame.write.format(name).mode("append").options(**target).save()
        return watch

    def first_query(self, name: str) -> TreeStopwatch:
        with self.spark() as spark:
            return self.into_noop(spark, "small", name)


async def fill(address: str, sizes: dict[str, int]) -> None:
    """Make topics with this many records; half of each value is noise, half of it words."""
    chance, words = random.Random(1), (b"the quick brown fox " * VALUE_BYTES)[: VALUE_BYTES // 2]
    values = [chance.randbytes(VALUE_BYTES // 2) + words for _ in range(5000)]
    async with od.connect(f"kafka://{address}") as k, k.producer() as out:
        for topic, rows in sizes.items():
            (await k.admin.create_topics(topic, partitions=PARTITIONS)).check()
            for first in range(0, rows, len(values)):
                partition = first // len(values) % PARTITIONS
                (await out.send_many(topic, values[: rows - first], partition=partition)).check()


def cases(workload: Workload, spark: Any, rows: int) -> list[Case]:
    value = "cast(rpad(sha2(cast(id as string), 256), 100, 'the quick brown fox ') as binary)"
    frame = spark.range(0, rows, 1, PARTITIONS).selectExpr(f"{value} value").cache()
    assert frame.count() == rows
    return [
        Case("into noop", rows, lambda name: workload.into_noop(spark, "large", name), READ_GOAL),
        Case("into Parquet", rows, lambda name: workload.into_parquet(spark, "large", name), READ_GOAL),
        Case("stream into noop", rows, lambda name: workload.stream(spark, "large", rows, name), READ_GOAL),
        Case("to a topic", rows, lambda name: workload.write(frame, name), WRITE_GOAL),
    ]


def measure(measured: Results, cases: Sequence[Case], rounds: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each case, whose two formats take turns."""
    for case in cases:
        pairs = [[case.run(name) for name in FORMATS] for _ in range(rounds)]
        elapsed = [theirs.seconds / ours.seconds for theirs, ours in pairs]
        computed = [theirs.cpu / ours.cpu for theirs, ours in pairs]
        best = [min(watch.seconds for watch in watches) for watches in zip(*pairs, strict=True)]
        cells = [f"{case.rows / seconds:,.0f}" for seconds in best]
        for what, ratios in (("time", elapsed), ("processor time", computed)):
            goal = measured.goal(f"Beside Spark's connector: {case.name}, {what}", median(ratios), case.goal)
            cells += [f"{median(ratios):.2f}", spread(ratios), goal]
        yield (case.name, *cells)


def main() -> None:
    with (
        results(__file__, __doc__) as measured,
        tempfile.TemporaryDirectory() as scratch,
        KafkaBroker(**BROKER) as broker,
    ):
        rows, rounds = (200_000, 2) if measured.quick else (5_000_000, 5)
        (process,) = [each for each in psutil.Process().children() if "java" in each.name()]
        workload = Workload(broker.bootstrap, process.pid, Path(scratch))
        asyncio.run(fill(workload.address, {"large": rows, "small": FIRST_ROWS, "written": 0}))
        head = ("", "kafka, rows/s", "odradek, rows/s")
        head += ("ratio of time", "spread", "goal", "of processor time", "spread", "goal")
        first = [Case("first query", FIRST_ROWS, workload.first_query, FIRST_GOAL)]
        table = list(measure(measured, first, rounds))
        with workload.spark() as spark:
            warm = cases(workload, spark, rows)
            for case in warm:
                for name in FORMATS:
                    case.run(name)
            table += measure(measured, warm, rounds)
        measured.table("Beside Spark's own Kafka connector", NOTE, head, table)


NOTE = "Values of 100 bytes in four partitions, local[2]. Ratios are the connector's time over that of odradek."


if __name__ == "__main__":
    main()
