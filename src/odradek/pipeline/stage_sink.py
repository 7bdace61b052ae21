"""A Spark sink that writes the rows of a batch to files; only the ledger commits them.

Spark's commit protocol is used for one thing: to choose one attempt of each task. The outputs of those attempts go to a
file that the driver reads. Spark's own file sink would leave files that only its own readers ignore, and `mapInArrow`,
the other way to get Arrow batches, needs pandas.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from odradek.pipeline.staging import StageJob, Stager, TaskOutput

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMAT", "StageSink", "collect", "write_options"]

FORMAT = "odradek-stage"


class _Done(WriterCommitMessage):
    def __init__(self, output: TaskOutput) -> None:
        self.output = output


class StageSink(DataSource):
    """A sink for the rows of a micro-batch; options: `write_options`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _Writer(pickle.loads(bytes.fromhex(self.options["job"])), self.options["output_file"])


class _Writer(DataSourceArrowWriter):
    def __init__(self, job: StageJob, output_file: str) -> None:
        self._job, self._output_file = job, output_file

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        stager = Stager(self._job)
        try:
            for batch in iterator:
                stager.add(batch)
            return _Done(stager.finish())
        except BaseException:
            stager.abandon()
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        total = TaskOutput()
        for message in messages:
            assert isinstance(message, _Done)
            total.add(message.output)
        target = Path(self._output_file)
        scratch = target.with_name(target.name + ".tmp")
        scratch.write_bytes(pickle.dumps(total))
        scratch.replace(target)


def write_options(job: StageJob, output_file: Path) -> dict[str, str]:
    """Return the options of a write.

    Args:
        job: The work to do.
        output_file: A file on the driver's machine; has the result after the write (`collect`).
    """
    return {"job": pickle.dumps(job).hex(), "output_file": str(output_file)}


def collect(output_file: Path) -> TaskOutput:
    """Read the result of a write, and remove its file."""
    output = pickle.loads(output_file.read_bytes())
    output_file.unlink()
    assert isinstance(output, TaskOutput)
    return output
