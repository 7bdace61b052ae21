"""Data frames into topics, with local[2], by the embedded broker.

    python benchmarks/spark_write.py [--quick]

Rows of 100 bytes that Spark has cached go to one topic of four partitions, to a hundred topics that a column names, to
partitions that their keys choose, and compressed. The limit is a sink that drops the same batches: what Spark's way
from Java to Python lets through at most. The broker is in a process of its own and has to share the cores with Spark,
which the limit has for itself.

To compare two branches run it on each, in turns, and compare ratios; differences within the spread are noise.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from _common import Broker, Case, Stopwatch, broker, compare
from _results import Results, results
from _spark_drop import DropSink
from odradek.spark.session import session

TASKS, PARTITIONS, TOPICS = 4, 4, 100
VALUE_BYTES = 100

NOTE = "Rows of 100 bytes out of Spark's cache, local[2]; the limit drops the same batches."

CASES = {
    "one topic": (["value"], {}),
    "one topic, snappy": (["value"], {"compression": "snappy"}),
    "100 topics": (["value", "concat('many', cast(id % 100 as string)) topic"], {}),
    "keys": (["value", "cast(id as string) key"], {}),
}
"""Columns and options of each."""


def run(frame: Any, name: str, options: dict[str, str]) -> Stopwatch:
    with Stopwatch() as watch:
        frame.write.format(name).mode("append").options(**options).save()
    return watch


def write(served: Broker, frame: Any, options: dict[str, str], topic: str) -> Stopwatch:
    watch = run(frame, "odradek", options)
    served.wipe(topic)
    return watch


def measure(results: Results, spark: Any, served: Broker, rows: int, rounds: int) -> None:
    host, port = served.address
    words, noise = (
        "rpad(cast(id as string), 50, 'the quick brown fox ')",
        "substr(sha2(cast(id as string), 256), 1, 50)",
    )
    value = f"cast(concat({words}, {noise}) as binary)"
    every = spark.range(0, rows, 1, TASKS).selectExpr("id", f"{value} value").cache()
    assert every.count() == rows
    cases = []
    for name, (columns, options) in CASES.items():
        topic = "many*" if name == "100 topics" else "one"
        chosen = {"kafka.broker.list": f"1:{host}:{port}", **options, **({"topic": topic} if topic == "one" else {})}
        frame = every.selectExpr(*columns)
        work, limit = partial(write, served, frame, chosen, topic), partial(run, frame, "drop", {})
        work()
        limit()
        cases.append(Case(name, rows, rows * (VALUE_BYTES + 10), work, limit, 0.02, None))
    compare(results, "Out of Spark, from data frames to topics", NOTE, cases, rounds)


def main() -> None:
    with results(__file__, __doc__) as measured:
        rows = 100_000 if measured.quick else 2_000_000
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        with (
            broker({"num.partitions": PARTITIONS, "brokerid": 1}) as served,
            session("benchmark", master="local[2]") as spark,
        ):
            spark.dataSource.register(DropSink)
            measure(measured, spark, served, rows, 2 if measured.quick else 5)


if __name__ == "__main__":
    main()
