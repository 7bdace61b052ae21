"""One Spark for the whole run, and topics for it to read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import odradek
from odradek.spark.session import session

from ..ranges.conftest import disconnected
from .classes import STARTUP, java_options, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["disconnected", "spark"]

SOURCES = str(Path(odradek.__file__).parents[1])


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2]. Its Python processes import the sources that are tested. Tests share it."""
    paths = os.pathsep.join(filter(None, [str(STARTUP), SOURCES, os.environ.get("PYTHONPATH")]))
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.executorEnv.PYTHONPATH": paths,
        "spark.sql.streaming.stopTimeout": "120s",
        "spark.driver.extraJavaOptions": java_options(),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", paths)
        patch.setenv("SPARK_HOME", str(spark_home()))
        with session("odradek-tests", master="local[2]", settings=settings) as spark:
            spark.sparkContext.setLogLevel("OFF")
            yield spark
