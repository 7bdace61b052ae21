"""The state of a flow: counts of its tables, and how far they are behind the logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from odradek.errors import OdradekError
from odradek.pipeline.config import Pipeline
from odradek.pipeline.errors import StorageError
from odradek.pipeline.flow import FlowRun
from odradek.pipeline.table import TableTotals

__all__ = ["Status", "status"]

STATUS_TIMEOUT_S = 5.0
"""Time limit for reading the lag (s)."""


class Status(NamedTuple):
    """The state of a flow: counts of its table, and its lag."""

    flow: str
    batches: int
    rows: int
    files: int
    size: int  # of the files (bytes)
    dead: int
    last: float | None  # when the newest batch was committed (s since the epoch); None: never
    lag: int | None  # size of log that is not in the table, in `unit`; None: unknown
    unit: str  # `bytes`, or `records` of 0.8 and later
    location: str  # of the table
    problems: Sequence[str]  # why it cannot continue as it is, and what could not be read


def status(pipeline: Pipeline, name: str) -> Status:
    """Return the state of a flow. Raises OdradekError if its table cannot be read."""
    flow = FlowRun(name, pipeline, deadline_s=STATUS_TIMEOUT_S)
    lag: int | None = None
    try:
        flow.open()
        lag, problems = flow.waiting, [*flow.problems, *flow.losses]
    except StorageError:
        raise
    except (OdradekError, OSError) as error:
        problems = [str(error)]
    table, dead = flow.table, flow.dead
    newest, has_letters = flow.newest, dead is not None and (dead.exists or dead.refresh())
    totals = table.totals() if table.exists else TableTotals()
    letters = dead.totals().rows if dead is not None and has_letters else 0
    return Status(
        name, max(0, newest.batch), totals.rows, totals.files, totals.size, letters,
        newest.written if newest.batch > 0 else None, lag, pipeline.unit, table.options.storage.root, problems,
    )  # fmt: skip
