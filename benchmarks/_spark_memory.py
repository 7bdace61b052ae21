"""A source for Spark that yields Arrow batches out of memory, as the limit of what any source for it can do.

Batches come from Arrow files, one a task, which every Python worker of Spark reads once and keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from odradek.ranges.projection import COLUMNS
from odradek.spark.schema import SPARK_TYPES

__all__ = ["MemorySource"]


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> str:
        return ", ".join(f"{column.name} {SPARK_TYPES[column.name]}" for column in COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return MemoryReader(self.options["path"])


class MemoryReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self.path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(file)) for file in sorted(Path(self.path).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return iter(load(partition.value))


@cache
def load(path: str) -> list[pa.RecordBatch]:
    with pa.OSFile(path) as file, pa.ipc.open_file(file) as reader:
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
