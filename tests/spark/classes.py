"""Options with which a Spark that lives for seconds takes half the processor time."""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

import odradek
from odradek.spark.session import environment
from odradek.testing.class_archive import ClassArchive
from odradek.wire.kafka07.message_set import encode_set

from .made import write_log

SPARK_HOME = Path(pyspark.__file__).parent
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
STARTUP = Path(__file__).with_name("startup")
"""Belongs on PYTHONPATH, or its file among the packages: see there."""

PROGRAM = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.parallelize([0], 1).map(str).collect()
rows = spark.read.format("odradek").option("path", sys.argv[1]).load()
rows.groupBy("value").count().orderBy("value").toArrow()
rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet("batch")
stream = spark.readStream.schema(rows.schema).parquet("batch").writeStream.format("parquet")
stream.options(path="stream", checkpointLocation="checkpoint").trigger(availableNow=True).start().awaitTermination()
"""
"""What most tests do: their classes are those that it needs. Java ends by itself after it, and writes the archive."""


@cache
def java_options() -> str:
    """Return what the variable JDK_JAVA_OPTIONS must have. The first call on a machine writes the archive."""
    archive = ClassArchive(f"spark-{pyspark.__version__}", sorted((SPARK_HOME / "jars").iterdir()))
    with TemporaryDirectory(prefix="odradek-spark-classes-") as directory:
        if archive.is_missing():
            _run_program(Path(directory), shlex.join([*QUICK, *archive.options(Path(directory))]))
            archive.keep(Path(directory))
        assert not archive.is_missing()
        return shlex.join([*QUICK, *archive.options(Path(directory))])


def _run_program(folder: Path, options: str) -> None:
    write_log(folder / "logs", "t", 0, encode_set([b"value"]))
    (folder / "program.py").write_text(PROGRAM)
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-java-options", options]
    paths = {"PYTHONPATH": str(Path(odradek.__file__).parents[1]), "SPARK_HOME": str(SPARK_HOME)}
    subprocess.run(
        [*command, "program.py", "logs"], cwd=folder, env={**os.environ, **environment(folder), **paths},
        capture_output=True, check=True,
    )  # fmt: skip
