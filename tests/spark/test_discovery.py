"""How Spark finds the source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.spark.source import OdradekSource
from odradek.wire.kafka07.message_set import encode_set

from .child import PATHS
from .classes import spark_environ
from .made import write_log

OLD_SPARK = """
import sys
sys.modules["pyspark.sql.datasource"] = None
import pyspark_odradek
assert not hasattr(pyspark_odradek, "DefaultSource")
"""
LOOKED_FOR = """
import sys
import pyspark_odradek
assert pyspark_odradek.DefaultSource.name() == "odradek"
assert {"odradek.ranges", "odradek.client.cluster", "numpy", "pyarrow"}.isdisjoint(sys.modules)
"""


def test_spark_finds_it_by_the_name_of_a_module() -> None:
    import pyspark_odradek

    assert pyspark_odradek.DefaultSource is OdradekSource
    assert OdradekSource.name() == "odradek"


def test_a_pyspark_without_such_sources_does_not_keep_spark_from_finding_others() -> None:
    subprocess.run([sys.executable, "-c", OLD_SPARK], check=True)


def test_the_process_that_looks_for_sources_imports_nothing_that_only_queries_need() -> None:
    subprocess.run([sys.executable, "-c", LOOKED_FOR], check=True)


KILLED = """
import os, signal
from pathlib import Path

if not Path(__file__).with_name("looked").exists():
    Path(__file__).with_name("looked").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""A module that Spark's look for sources imports, and that kills it the first time."""

DRIVER = """
import sys
from odradek.spark.session import session
from odradek.spark.source import OdradekSource

def count():
    return spark.read.format("odradek").option("path", sys.argv[1]).load().count()

with session("killed", master="local[1]") as spark:
    for attempt in range(2):
        try:
            count()
        except Exception as error:
            print(error)
    spark.dataSource.register(OdradekSource)
    print("rows:", count())
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_lookup_is_what_the_how_to_page_says_and_registering_helps(tmp_path: Path) -> None:
    write_log(tmp_path / "logs", "orders", 0, encode_set([b"a", b"b"]))
    (tmp_path / "pyspark_killed").mkdir()
    (tmp_path / "pyspark_killed" / "__init__.py").write_text(KILLED)
    run = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "logs")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), PATHS]),
            **spark_environ(),
        },
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    page = (Path(__file__).parents[2] / "docs" / "howto" / "spark-read.md").read_text("utf-8")
    said = run.stdout + run.stderr
    for text in (
        "Failed to find the data source: odradek",
        "SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND]",
        "ClassNotFoundException: odradek.DefaultSource",
        "Skipping the lookup of Python Data Sources due to the failure",
    ):
        assert text in said
        assert text in page
    assert run.stdout.count("Caused by: java.lang.ClassNotFoundException: odradek.DefaultSource") == 2
    assert run.stdout.endswith("rows: 2\n")
