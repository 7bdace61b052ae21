"""Results of a run, for the command's table, for `--json` and for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from odradek.pipeline.ledger import LedgerGap

__all__ = ["BatchSummary", "FlowSummary", "RunSummary", "Volume"]


@dataclass(frozen=True, slots=True)
class Volume:
    """A number of records.

    Args:
        rows: Number of records.
        bytes: Bytes of their payloads.
    """

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Volume) -> Volume:
        return Volume(self.rows + other.rows, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """One commit.

    Args:
        batch: Its number in the ledger.
        ended: When it was committed, seconds since the epoch.
        seconds: Duration (s).
        rows: Records in the table.
        log_bytes: Size of log that was read, in `unit`.
        dead: Records that could not be decoded.
        lag: Size of log that was still to be read after it, as of the start of the run; None: unknown.
        unit: Unit of positions: `bytes`, or `records` of 0.8 and later.
    """

    batch: int
    ended: float
    seconds: float
    rows: int
    log_bytes: int
    dead: int
    lag: int | None = None
    unit: str = "bytes"


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """The results of a run for one flow.

    Args:
        name: Name of the flow.
        started, ended: Seconds since the epoch.
        batches: The commits, in order.
        bytes: Bytes of payloads in the table.
        reasons: Why records are dead -> how many.
        lag_before, lag_after: Size of log to read at its start and end; None: unknown.
        hours: Topic -> hour of the records' times (start of the hour, s since the epoch) -> volume.
        gaps: Ranges that were lost before they could be read.
        files: Number of added data files.
        file_bytes: Bytes of those files.
        error: Why the flow failed; "" if it did not.
        unit: As in `BatchSummary`.
    """

    name: str
    started: float
    ended: float
    batches: Sequence[BatchSummary] = ()
    bytes: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    lag_before: int | None = None
    lag_after: int | None = None
    hours: Mapping[str, Mapping[int, Volume]] = field(default_factory=dict)
    gaps: Sequence[LedgerGap] = ()
    files: int = 0
    file_bytes: int = 0
    error: str = ""
    unit: str = "bytes"

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def log_bytes(self) -> int:
        return sum(batch.log_bytes for batch in self.batches)

    @property
    def dead(self) -> int:
        return sum(batch.dead for batch in self.batches)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The results of a run.

    Args:
        run: Identifies the run; `LedgerEntry.run` of its commits.
        file: The pipeline's file.
        code: Version of odradek.
        started, ended: Seconds since the epoch.
        flows: In the order of the file.
    """

    run: str
    file: str
    code: str
    started: float
    ended: float
    flows: Sequence[FlowSummary] = ()

    @property
    def failed(self) -> bool:
        return any(flow.error for flow in self.flows)
