"""The state of a pipeline without running it: from its ledgers, checkpoints and logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from odradek.errors import OdradekError
from odradek.pipeline.checkpoint import Checkpoint, checkpoint_dir
from odradek.pipeline.config import Pipeline
from odradek.pipeline.ledger import Ledger, Offsets, live_files
from odradek.pipeline.sources import PartitionBacklog, backlog_of, flow_options

__all__ = ["FlowPlan", "Status", "backlog", "plan", "status"]

STATUS_TIMEOUT_MS = 5000
"""Time limit of `status` for reading a flow's lag (ms)."""


class Status(NamedTuple):
    """The state of a flow.

    Args:
        flow: Name of the flow.
        batches: Number of committed batches.
        rows: Number of rows in the table.
        files: Number of current files.
        size: Bytes of those files.
        dead: Number of records that could not be decoded.
        gaps: Number of recorded gaps.
        last: When the newest batch was committed (s since the epoch); None: never.
        lag: Bytes of log that are not in the table; None: unknown.
    """

    flow: str
    batches: int
    rows: int
    files: int
    size: int
    dead: int
    gaps: int
    last: float | None
    lag: int | None


class FlowPlan(NamedTuple):
    """The ranges a run would read for a flow.

    Args:
        flow: Name of the flow.
        logs: The backlog of each partition.
        waiting: Total bytes to read.
        batches: Minimum number of commits.
    """

    flow: str
    logs: Sequence[PartitionBacklog]
    waiting: int
    batches: int


def reached(pipeline: Pipeline, name: str) -> Offsets | None:
    """Return the end of what a flow has read; None if it has not begun. Raises LedgerCorrupted, CheckpointMismatch."""
    entry = Ledger(pipeline.flows[name].sink.path, name).reached()
    if entry is not None:
        return entry.end
    checkpoint = Checkpoint(checkpoint_dir(pipeline.run.checkpoint, name))
    return None if checkpoint.done is None else checkpoint.offsets(checkpoint.done)


def backlog(pipeline: Pipeline, name: str, **options: str) -> list[PartitionBacklog]:
    """Return the backlog of a flow. Raises OdradekError if the logs do not answer or the ledger is corrupted."""
    return backlog_of({**flow_options(pipeline, pipeline.flows[name]), **options}, reached(pipeline, name))


def plan(pipeline: Pipeline, name: str) -> FlowPlan:
    """Return the ranges a run would read. Raises as `backlog`."""
    logs = backlog(pipeline, name)
    waiting = sum(log.waiting for log in logs)
    return FlowPlan(name, logs, waiting, -(-waiting // pipeline.batch_size))


def status(pipeline: Pipeline, name: str) -> Status:
    """Return the state of a flow. Raises LedgerCorrupted."""
    entries = Ledger(pipeline.flows[name].sink.path, name).entries()
    files = live_files(entries)
    appended = [entry for entry in entries if entry.kind == "append"]
    try:
        logs: Sequence[PartitionBacklog] | None = backlog(
            pipeline, name, **{"fetchOffset.deadlineMs": str(STATUS_TIMEOUT_MS)}
        )
    except (OdradekError, OSError):
        logs = None
    return Status(
        name, len(appended), sum(file.rows for file in files.values()), len(files),
        sum(file.size for file in files.values()), sum(entry.dead for entry in appended),
        sum(len(entry.gaps) for entry in appended),
        appended[-1].written if appended else None, None if logs is None else sum(log.waiting for log in logs),
    )  # fmt: skip
