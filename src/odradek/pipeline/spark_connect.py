"""A run over Spark Connect: batches are committed in a process beside the Spark server.

The callback for a batch is pickled once per query and called in that process, so its state is not visible here. It
takes the table's lock itself, for each batch, because a query continues after the client that started it is gone. Both
sides read the ledgers: the server to keep the run's limits, the client to report its commits. Both machines need the
same storage under the same paths.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.pipeline.commit import log_bytes
from odradek.pipeline.config import Pipeline
from odradek.pipeline.ledger import Ledger
from odradek.pipeline.lock import table_lock
from odradek.pipeline.run import FlowRun, RunLimits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RemoteRun"]

POLL_S = 1
"""Interval of reading the ledgers while a query runs (s)."""


class RemoteRun(FlowRun):
    """One flow in one run, in a session of Spark Connect."""

    def lock_and_prepare(self, locks: ExitStack) -> None:
        with table_lock(self.table.root):
            self.prepare()

    def interrupt(self, spark: SparkSession) -> None:
        spark.interruptAll()

    def _committer(self) -> Callable[[DataFrame, int], None]:
        return _Committer(self.name, self.pipeline, self.run, self.budget.ends, str(Path.cwd()))

    def _wait(self) -> None:
        try:
            while not self._query.awaitTermination(POLL_S):
                self._read_ledger()
        finally:
            self._read_ledger()

    def _read_ledger(self) -> None:
        for entry in self.table.ledger.written_by(self.run)[len(self._entries) :]:
            self._committed(entry, self.checkpoint.batch(entry.micro_batch).planned)


@dataclass(frozen=True)
class _Committer:
    """The callback for micro-batches; runs beside Spark's server."""

    name: str
    pipeline: Pipeline
    run: str
    ends: float | None
    folder: str

    def __call__(self, rows: DataFrame, number: int) -> None:
        os.chdir(self.folder)  # where the run was started: paths may be relative to it
        flow = FlowRun(self.name, self.pipeline.flows[self.name], self.pipeline, self._budget(), self.run)
        flow.begin(rows.sparkSession)
        with table_lock(flow.table.root):
            flow.resume()
            flow.commit(rows, number)

    def _budget(self) -> RunLimits:
        ledgers = [Ledger(flow.sink.path, name) for name, flow in self.pipeline.flows.items()]
        entries = [entry for ledger in ledgers for entry in ledger.written_by(self.run)]
        used = sum(log_bytes(entry.start, entry.end) for entry in entries)
        return RunLimits(self.pipeline.run_size, self.ends, used)
