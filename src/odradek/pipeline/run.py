"""A run of a pipeline: every flow, batch by batch, up to the ends of its logs at the start, or without an end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Protocol, TypeAlias

from odradek._version import __version__
from odradek.errors import ConfigError
from odradek.pipeline.commits import Commit
from odradek.pipeline.config import Pipeline
from odradek.pipeline.flow import Execute, FlowRun
from odradek.pipeline.monitoring import Monitor
from odradek.pipeline.report import FlowSummary, RunSummary, write_report
from odradek.pipeline.task import TaskJob, TaskOutput
from odradek.spark.errors import describe_error

__all__ = ["OnCommit", "Sessions", "TaskRunner", "execute", "on_spark"]

CANCEL_S = 0.2
"""Time between two attempts to cancel what runs (s)."""

OnCommit: TypeAlias = Callable[[str, Commit, int | None], None]
"""A callback for each commit: the flow's name, the record, and the size that is still to be read, if that is known.
Called from several threads."""


class TaskRunner(Protocol):
    """Runs the tasks of batches."""

    def run(self, jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        """Run the tasks of one batch; several threads may do so at the same time."""

    def cancel(self) -> None:
        """Make every `run` fail soon."""


Sessions: TypeAlias = Callable[[], AbstractContextManager[TaskRunner]]
"""Starts what runs tasks, when the first batch needs it."""


@contextmanager
def on_spark(
    master: str | None = None, remote: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[TaskRunner]:
    """Start Spark, and run tasks on it.

    Args:
        master: Spark's master; None: that of `spark-submit` if it started this process, else `local[*]`.
        remote: `sc://host:port` of a Spark Connect server, instead of a master.
        settings: Further settings of Spark.

    Raises:
        ConfigError: Spark cannot be started.
    """
    from odradek.spark.session import remote_session, session, submitted

    chosen = {"spark.ui.showConsoleProgress": "false", **(settings or {})}
    local = session("odradek-pipeline", master=master, settings=chosen)
    with local if remote is None else remote_session(remote, chosen) as spark:
        if remote is None and not submitted():
            spark.sparkContext.setLogLevel("OFF")  # failures are reported once, at the end
        from odradek.pipeline.task_source import SparkTasks

        yield SparkTasks(spark)


class _Executor(ExitStack):
    """Starts what runs tasks at the first batch of any flow; `close` ends it."""

    def __init__(self, sessions: Sessions) -> None:
        super().__init__()
        self._sessions, self._lock = sessions, Lock()
        self._runner: TaskRunner | None = None
        self.failure: ConfigError | None = None

    def __call__(self, jobs: Sequence[TaskJob]) -> list[TaskOutput]:
        with self._lock:
            if self.failure is not None:
                raise self.failure
            try:
                self._runner = runner = self._runner or self.enter_context(self._sessions())
            except ConfigError as error:
                self.failure = error
                raise
        return runner.run(jobs)

    def cancel(self) -> None:
        if self._runner is not None:
            self._runner.cancel()


# ---- flows ---------------------------------------------------------------------------------------------------


@dataclass
class _Limits:
    """The limits of a run, and what it has used of them. Every flow that has begun does at least one batch."""

    batch_size: int  # of a batch, in the unit of positions
    max_size: int | None  # of the run
    ends: float | None  # on the monotonic clock (s)
    stop: Event  # set once the run is being stopped: no further batch begins
    used: int = 0
    lock: Lock = field(default_factory=Lock)  # of this, and of the results of all flows

    @property
    def spent(self) -> bool:
        used_up = self.max_size is not None and self.used >= self.max_size
        return self.stop.is_set() or used_up or (self.ends is not None and time.monotonic() >= self.ends)


@dataclass
class _FlowLoop:
    """The batches of one flow, with their results."""

    flow: FlowRun
    limits: _Limits
    on_commit: OnCommit
    every_s: float | None

    def __post_init__(self) -> None:
        flow, now = self.flow, time.time()
        self.result = FlowSummary(flow.name, now, now, location=flow.table.where, unit=flow.pipeline.unit)

    def prepare(self) -> None:
        try:
            self.flow.prepare()
            self.result.lag_before = self.flow.waiting
        except Exception as error:  # of one flow; the others run
            self.result.error = describe_error(error)
        self.update(self.result.lag_before)

    def loop(self, execute: Execute) -> None:
        """Do batches until there is nothing left to do; a failure is stored in the result."""
        try:
            while not (self.limits.stop.is_set() or (self.limits.spent and self.result.batches)):
                if not self._step(execute):
                    if self.every_s is None:
                        return
                    self.limits.stop.wait(self.every_s)
        except Exception as error:
            if not self.limits.stop.is_set():
                self.result.error = describe_error(error)
            if self.every_s is not None:
                self.limits.stop.set()  # or nothing would tell of it while the other flows go on

    def _step(self, execute: Execute) -> bool:
        began = time.time()
        commit = self.flow.step(execute, self.limits.batch_size)
        if commit is None:
            return False
        lag = self.result.lag_after
        if self.every_s is not None:
            lag = self.refresh_lag()  # which the next step needs, too: its target moves
        elif lag is not None:
            lag = max(0, lag - commit.log_size)
        with self.limits.lock:
            self.limits.used += commit.log_size
            self.result.add(commit, commit.written - began)
            self.update(lag)
        self.on_commit(self.flow.name, commit, lag)
        return True

    def refresh_lag(self) -> int | None:
        """Look at the logs again; return the lag, or None if they cannot be read."""
        try:
            return self.flow.refresh_backlog() if self.result.lag_before is not None else None
        except Exception:
            return None

    def update(self, lag: int | None) -> None:
        result, flow = self.result, self.flow
        result.ended, result.lag_after, result.problems = time.time(), lag, tuple(flow.problems)
        result.partitions = {str(log.partition): log.waiting for log in flow.backlog}
        result.last_commit = flow.newest.written or None


def execute(
    pipeline: Pipeline,
    file: str,
    on_commit: OnCommit,
    sessions: Sessions = on_spark,
    *,
    every_s: float | None = None,
    stop: Event | None = None,
) -> RunSummary:
    """Run every flow up to the ends of its logs at the start, or until the run's limits are reached.

    Args:
        pipeline: The checked pipeline file.
        file: Its name.
        on_commit: Called for each commit.
        sessions: Starts what runs tasks.
        every_s: Follow the logs: look for more this long after there was none (s), until a flow fails; None: end
            then.
        stop: Set by the caller to stop after the batches that have begun.

    Returns:
        The summary. A failed flow has an error in it, and does not stop the other flows.

    Raises:
        ConfigError: Spark cannot be started.
    """
    started, minutes, follow = time.time(), pipeline.run.max_minutes, every_s is not None
    identity = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(started))}-{os.urandom(3).hex()}"
    ends = None if minutes is None else time.monotonic() + 60 * minutes
    limits = _Limits(pipeline.batch_size, pipeline.run_size, ends, stop or Event())
    monitor = Monitor(pipeline, file)

    def committed(name: str, commit: Commit, lag: int | None) -> None:
        on_commit(name, commit, lag)
        if follow:  # such a run has no end to wait for
            with limits.lock:
                summary.ended = time.time()
                monitor.publish_metrics(summary)

    loops = [
        _FlowLoop(FlowRun(name, pipeline, identity, follow), limits, committed, every_s) for name in pipeline.flows
    ]
    summary = RunSummary(identity, file, __version__, started, started, [loop.result for loop in loops])
    for loop in loops:
        loop.prepare()
    ready = [loop for loop in loops if not loop.result.error]
    if follow and len(ready) < len(loops):
        ready = []
    with closing(_Executor(sessions)) as executor:
        _run_loops(sorted(ready, key=lambda loop: loop.flow.newest.written), executor, limits)
    if executor.failure is not None:
        raise executor.failure
    for loop in loops:
        loop.update(loop.refresh_lag())
    summary.ended = time.time()
    warnings = []
    if summary.failed or any(loop.result.batches for loop in loops):
        try:
            summary.report = str(write_report(summary, pipeline.run.state))
        except OSError as error:  # such as a full disk, for which flows may have failed, too
            warnings.append(f"the report cannot be written: {error}")
    summary.warnings = (*warnings, *monitor.publish(summary))
    return summary


def _run_loops(loops: Sequence[_FlowLoop], executor: _Executor, limits: _Limits) -> None:
    """Run flows, all at the same time. An exception such as KeyboardInterrupt stops them."""
    if not loops:
        return
    with ThreadPoolExecutor(len(loops), thread_name_prefix="odradek-flow") as pool:
        running = [pool.submit(loop.loop, executor) for loop in loops]
        try:
            wait(running)
        except BaseException:
            limits.stop.set()
            while wait(running, CANCEL_S).not_done:
                executor.cancel()  # again, because a job may just have been starting
            raise
    for flow in running:
        flow.result()
