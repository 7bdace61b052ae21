"""How Spark finds the source."""

from __future__ import annotations

import subprocess
import sys

from odradek.spark.source import OdradekSource

WITHOUT = """
import sys
sys.modules["pyarrow"] = None
import pyspark_odradek
assert not hasattr(pyspark_odradek, "DefaultSource")
"""


def test_spark_finds_it_by_the_name_of_a_module() -> None:
    import pyspark_odradek

    assert pyspark_odradek.DefaultSource is OdradekSource
    assert OdradekSource.name() == "odradek"


def test_where_something_is_missing_it_does_not_stand_in_the_way_of_others() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=60)
