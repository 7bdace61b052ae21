"""A broker's log directory, a pipeline file over it, and runs of it in this process, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from odradek.pipeline.commits import Commit
from odradek.pipeline.config import Pipeline, load
from odradek.pipeline.flow import Execute, open_table, table_options
from odradek.pipeline.report import RunSummary
from odradek.pipeline.run import execute
from odradek.pipeline.table import Table
from odradek.pipeline.task import TaskJob, TaskOutput, run_task
from odradek.wire.kafka07.message_set import encode_set

__all__ = ["Workspace", "in_process"]


@dataclass
class InProcess:
    """Runs tasks one after another, in this process."""

    run: Execute

    def cancel(self) -> None:
        """Do nothing: a task that has begun is finished."""


@contextmanager
def in_process() -> Iterator[InProcess]:
    yield InProcess(run_all)


def run_all(jobs: Sequence[TaskJob]) -> list[TaskOutput]:
    return [run_task(job) for job in jobs]


@dataclass
class Workspace:
    """One flow over a log directory.

    Args:
        root: Where everything is.
        kind: Of the table.
        more: Lines of the flow; `run`: lines of the run; `sink`: lines of the sink.
    """

    root: Path
    kind: str = "delta"
    more: str = ""
    run_lines: str = ""
    sink: str = 'partition_by = ["topic"]'
    summaries: list[RunSummary] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        (self.root / "logs").mkdir(exist_ok=True)
        self.write_file()

    def write_file(self) -> None:
        (self.root / "pipeline.toml").write_text(
            f"""
[source]
logs = ["1@logs"]
[run]
{self.run_lines}
[flows.orders]
pattern = ".*"
{self.more}
[flows.orders.dead]
path = "tables/dead"
[flows.orders.sink]
kind = {json.dumps(self.kind)}
path = "tables/orders"
{self.sink}
"""
        )

    @property
    def pipeline(self) -> Pipeline:
        return load(self.root / "pipeline.toml")

    def append(self, values: Sequence[bytes] | bytes, topic: str = "orders", partition: int = 0) -> None:
        """Append messages to a log, or bytes."""
        folder = self.root / "logs" / f"{topic}-{partition}"
        folder.mkdir(exist_ok=True)
        with (folder / f"{0:020}.kafka").open("ab") as file:
            file.write(values if isinstance(values, bytes) else encode_set(list(values)))

    def run(self, execute_tasks: Execute = run_all) -> RunSummary:
        @contextmanager
        def session() -> Iterator[InProcess]:
            yield InProcess(execute_tasks)

        return self.run_with(session)

    def run_with(self, session: Callable[[], object]) -> RunSummary:
        summary = execute(self.pipeline, "pipeline.toml", lambda *_: None, session)  # type: ignore[arg-type]
        self.summaries.append(summary)
        return summary

    def error(self) -> str:
        """Run, and return the flow's error."""
        return self.run().flows[0].error

    @property
    def table(self) -> Table:
        result = open_table(table_options(self.pipeline, "orders"))
        assert result is not None
        return result

    @property
    def newest(self) -> Commit:
        commit = self.table.newest()
        assert commit is not None
        return commit

    def values(self, table: Table | None = None) -> list[bytes]:
        """Return the values in the files of the table, sorted, as DuckDB reads them."""
        table = table or self.table
        names = [str(Path(table.options.storage.root, file.path)) for file in table.files()]
        if not names:
            return []
        return sorted(row[0] for row in duckdb.execute(f"select value from read_parquet({names!r})").fetchall())
