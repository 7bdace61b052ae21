"""Tasks on Spark: a data source that does the work of a batch, and whose rows are the accounts of it.

Records never go through the JVM: a task reads, decodes and writes, and gives back one row. Spark's result has one row
for each task, whatever attempts failed: what such an attempt has written is in no output, so it is in no table.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from odradek.pipeline.task import TaskJob, TaskOutput, run_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkTasks", "TaskSource"]

FORMAT = "odradek-tasks"


class TaskSource(DataSource):
    """The accounts of the tasks in the option `jobs`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "output binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _TaskReader(self.options["jobs"])


class _TaskReader(DataSourceReader):
    def __init__(self, jobs: str) -> None:
        self._jobs = jobs

    def partitions(self) -> list[InputPartition]:
        jobs: list[bytes] = pickle.loads(bytes.fromhex(self._jobs))
        self._jobs = ""  # which goes to every task with this reader
        return [InputPartition(job) for job in jobs]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        yield (pickle.dumps(run_task(pickle.loads(partition.value))),)


class SparkTasks:
    """Runs tasks on a Spark session, also one of Spark Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        spark.dataSource.register(TaskSource)

    def run(self, jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        """Run tasks and return their accounts. Raises what Spark raises when a task fails for good."""
        pickled = pickle.dumps([pickle.dumps(job) for job in jobs]).hex()
        rows = self._spark.read.format(FORMAT).option("jobs", pickled).load().collect()
        return [pickle.loads(bytes(row["output"])) for row in rows]

    def cancel(self) -> None:
        """Cancel all jobs of the session."""
        if hasattr(self._spark, "interruptAll"):
            self._spark.interruptAll()
        else:
            self._spark.sparkContext.cancelAllJobs()
