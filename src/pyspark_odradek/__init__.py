"""Register the Spark data source: Spark imports every module named `pyspark_*` and registers its `DefaultSource`.

`spark.read.format("odradek")` and `USING odradek` therefore work wherever odradek is installed.
"""

from contextlib import suppress

# Before Spark 4 there is no such class to derive from. An error here would keep Spark from finding any other source.
with suppress(ImportError):
    from odradek.spark.source import OdradekSource as DefaultSource

__all__ = ["DefaultSource"]
