"""A sink for Spark that takes Arrow batches and drops them, as the limit of what any sink for it can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

__all__ = ["DropSink"]


class DropSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "drop"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DropWriter()


class DropWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for batch in iterator:
            assert batch.num_rows
        return WriterCommitMessage()
