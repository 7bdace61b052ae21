"""Results of a run, for the command's table, for `--json` and for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from odradek.pipeline.ledger import LedgerGap

__all__ = ["BatchSummary", "FlowSummary", "RunSummary", "Volume"]


@dataclass(frozen=True, slots=True)
class Volume:
    """Some records.

    Args:
        rows: How many.
        bytes: Of their payloads.
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
        seconds: What it took.
        rows: Records in the table.
        log_bytes: Of log that were read.
        dead: Records that could not be decoded.
        lag: Bytes of log that were still to be read behind it, as of the start of the run; None: not known.
    """

    batch: int
    ended: float
    seconds: float
    rows: int
    log_bytes: int
    dead: int
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """The results of a run for one flow.

    Args:
        name: Of the flow.
        started, ended: Seconds since the epoch.
        batches: What was committed, in order.
        bytes: Of payloads in the table.
        reasons: Why records are dead -> how many.
        lag_before, lag_after: Bytes of log that were to be read, when it started and ended; None: not known.
        hours: Topic -> hour of the records' times (seconds since the epoch, its start) -> how much.
        gaps: What was lost before it could be read.
        files: Data files that were added.
        file_bytes: Bytes of those.
        error: Why it did not get to its end, in words; "" when it did.
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
        run: Identifies it; `Entry.run` of what it committed.
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
