"""A run of a pipeline that says on standard output which step it, or one of its tasks, has reached.

crash.py all FILE.toml [MASTER]: says each step, and goes on.
crash.py STEP FILE.toml [MASTER]: says so at this step, the first time, and stays there.

Tasks run on Spark if its master is given, else in this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial, wraps
from pathlib import Path
from threading import Event
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from odradek.pipeline import task_source
from odradek.pipeline.config import load
from odradek.pipeline.flow import FlowRun, table_options
from odradek.pipeline.layout import Storage
from odradek.pipeline.run import execute, on_spark
from odradek.pipeline.table import make_table
from odradek.pipeline.task import TaskJob, TaskOutput, run_task

STEP, OUTPUT = "ODRADEK_TEST_STEP", "ODRADEK_TEST_OUTPUT"
"""Variables of the environment, which processes of Spark inherit: the step, and where steps are said."""


def say(step: str) -> None:
    """Say that this process has reached a step; stay there if it is the wanted one, and no process stays there yet."""
    if os.environ[STEP] not in (step, "all"):
        return
    if os.environ[STEP] == step:
        try:
            os.close(os.open(f"{os.environ['TMPDIR']}/stayed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    with Path(os.environ[OUTPUT]).open("ab", buffering=0) as file:
        file.write(f"{step}\n".encode())
    if os.environ[STEP] == step:
        Event().wait()


def before(step: str, owner: Any, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @wraps(original)
    def patched(*arguments: Any, **options: Any) -> Any:
        say(step)
        return original(*arguments, **options)

    setattr(owner, name, patched)


def after(step: str, owner: Any, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @wraps(original)
    def patched(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        say(step)
        return result

    setattr(owner, name, patched)


STEPS = (
    "creating", "created", "planned", "writing", "written", "checked", "appended", "letters", "lettered",
    "remembering", "renaming", "remembered",
)  # fmt: skip


def install_driver_steps(table: type) -> None:
    before("creating", table, "create")
    after("created", table, "create")
    before("planned", FlowRun, "_jobs")
    after("checked", FlowRun, "_check")
    after("appended", table, "append")
    before("letters", FlowRun, "_add_dead_letters")
    after("lettered", FlowRun, "_add_dead_letters")
    before("remembering", FlowRun, "_remember")
    before("renaming", Path, "replace")
    after("remembered", FlowRun, "_remember")


@cache
def install_task_steps() -> None:
    """Let this process say steps of tasks; Spark uses one for several of them."""
    before("writing", Storage, "size")
    after("written", Storage, "sync")


class StepSource(task_source.TaskSource):
    """The source of tasks, which say their steps."""

    def reader(self, schema: StructType) -> DataSourceReader:
        return StepReader(super().reader(schema))


class StepReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Any:
        install_task_steps()
        return self._reader.read(partition)


class InProcess:
    """Runs tasks one after another, in this process."""

    def run(self, jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        return [run_task(job) for job in jobs]

    def cancel(self) -> None:
        """Do nothing."""


@contextmanager
def in_process() -> Iterator[InProcess]:
    yield InProcess()


def main(step: str, file: str, master: str = "") -> int:
    os.environ |= {STEP: step, OUTPUT: f"/proc/{os.getpid()}/fd/{sys.stdout.fileno()}"}
    pipeline = load(file)
    install_driver_steps(type(make_table(table_options(pipeline, "orders"))))
    if master:
        task_source.TaskSource = StepSource  # type: ignore[misc]
        summary = execute(pipeline, file, lambda *_: None, partial(on_spark, master))
    else:
        install_task_steps()
        summary = execute(pipeline, file, lambda *_: None, in_process)
    for flow in summary.flows:
        if flow.error:
            sys.stderr.write(f"{flow.error}\n")
    return int(summary.failed)


if __name__ == "__main__":
    from tests.pipeline import crash  # Spark's processes import the module by this name

    sys.exit(crash.main(*sys.argv[1:]))
