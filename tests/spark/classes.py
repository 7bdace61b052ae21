"""Options with which a Spark that lives for seconds takes half the processor time."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pyspark

import odradek
from odradek.spark.session import environment
from odradek.testing.class_archive import ClassArchive
from odradek.testing.jars import cache_directory
from odradek.wire.kafka07.message_set import encode_set

from .made import write_log

INSTALLED = Path(pyspark.__file__).parent
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
def spark_home() -> Path:
    """Return Spark's own files in the cache: an archive holds for jars in one place, and every checkout has others."""
    home = cache_directory() / "classes" / f"spark-{pyspark.__version__}" / "pyspark"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        copy = Path(mkdtemp(prefix=".", dir=home.parent))
        for name in ("bin", "jars", "python", "sbin"):
            shutil.copytree(INSTALLED / name, copy / name, copy_function=_linked)
        with suppress(OSError):  # another process was first
            copy.rename(home)
        shutil.rmtree(copy, ignore_errors=True)
    return home


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)


@cache
def java_options() -> str:
    """Return Java's options. The first call on a machine writes the archive."""
    archive = ClassArchive(f"spark-{pyspark.__version__}", sorted((spark_home() / "jars").iterdir()))
    with TemporaryDirectory(prefix="odradek-spark-classes-") as directory:
        if archive.is_missing():
            _run_program(Path(directory), shlex.join([*QUICK, *archive.options(Path(directory))]))
            archive.keep(Path(directory))
        assert not archive.is_missing()
        return shlex.join([*QUICK, *archive.options(Path(directory))])


def spark_environ() -> dict[str, str]:
    """Return what the environment must have of a process that starts Spark."""
    return {"SPARK_HOME": str(spark_home()), "JDK_JAVA_OPTIONS": java_options()}


def _run_program(folder: Path, options: str) -> None:
    write_log(folder / "logs", "t", 0, encode_set([b"value"]))
    (folder / "program.py").write_text(PROGRAM)
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", "--driver-java-options", options]
    paths = {"PYTHONPATH": str(Path(odradek.__file__).parents[1]), "SPARK_HOME": str(spark_home())}
    subprocess.run(
        [*command, "program.py", "logs"], cwd=folder, env={**os.environ, **environment(folder), **paths},
        capture_output=True, check=True,
    )  # fmt: skip
