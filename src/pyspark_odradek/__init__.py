"""What Spark looks for: `DefaultSource` of any module called `pyspark_*` is registered by itself, so that
`spark.read.format("odradek")` and `USING odradek` work wherever odradek is installed."""

from contextlib import suppress

# Where odradek is installed without what its source needs (`odradek[spark]`): an error here would keep Spark from
# finding any other source.
with suppress(ImportError):
    from odradek.spark.source import OdradekSource as DefaultSource

__all__ = ["DefaultSource"]
