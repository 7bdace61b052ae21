"""What Spark looks for: `DefaultSource` of any module called `pyspark_*` is registered by itself, so that
`spark.read.format("odradek")` and `USING odradek` work wherever odradek is installed."""

from odradek.spark.source import OdradekSource as DefaultSource

__all__ = ["DefaultSource"]
