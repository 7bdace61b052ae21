"""Prove that a table is complete: read the log again and compare.

What is proved, of each batch that is checked: the rows of the table and of the dead letters, with what was skipped and
what had been lost before it was read, are exactly the messages that the log has in the batch's ranges. Rows are
compared by stretch of the log, as counts and checksums over position, index and, where the table keeps it, payload;
stretches that differ are then read a second time, row by row. Of decoded columns it proves that each row is there and
came of its message, not that it was decoded rightly.

Memory: a few batches of rows, 100 bytes for each stretch, and one stretch that differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from odradek.pipeline.compare import ComparisonCounts, Finding, LogComparison
from odradek.pipeline.config import Pipeline
from odradek.pipeline.ledger import check_ranges
from odradek.pipeline.logs import open_logs
from odradek.pipeline.tables import CommittedTable, batch_gaps, row_counts

__all__ = ["VerifyResult", "verify"]

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of `verify` for one table.

    Args:
        flow: Name of the flow.
        batches: Batches compared with the log.
        of: Batches there are.
        gaps: Bytes that had been lost before their batch.
        compared: Of each row: `position, payload` or, where the table does not keep the payload, `position`.
        found: What the comparison counted.
        findings: What is wrong; none, and the table is complete.
        seconds: How long it took.
    """

    flow: str
    batches: int
    of: int
    gaps: int
    compared: str
    counts: ComparisonCounts
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Return the result as an object for JSON."""
        body = asdict(self)
        return {"ok": self.ok, **body.pop("counts"), **body}


async def verify(
    pipeline: Pipeline,
    table: CommittedTable,
    batches: Collection[int] | None = None,
    advance: Advance = lambda size: None,
) -> VerifyResult:
    """Check a table's ledger and files, and its rows against the log.

    Args:
        pipeline: Says where the log is.
        table: The table.
        batches: Which batches to compare with the log; None: all of them.
        advance: Called with bytes of log that were read, now and then.

    Raises:
        OdradekError: The log could not be read.
    """
    begun = time.monotonic()
    findings = [*_of_ledger(table), *_of_files(table), *_of_delta(table)]
    unreadable = {finding.where for finding in findings if finding.kind == "unreadable"}
    chosen = [entry for entry in table.appends if batches is None or entry.batch in batches]
    comparison = LogComparison(table, chosen, unreadable, advance)
    if comparison.partitions:
        async with open_logs(pipeline.source, comparison.partitions) as logs:
            await comparison.run(logs)
    return VerifyResult(
        flow=table.name,
        batches=len(chosen),
        of=len(table.appends),
        gaps=sum(gap.size for entry in chosen for gap in batch_gaps(entry)),
        compared="position, payload" if table.keeps_payload else "position",
        counts=comparison.counts,
        findings=(*findings, *comparison.findings),
        seconds=time.monotonic() - begun,
    )


def _of_ledger(table: CommittedTable) -> Iterator[Finding]:
    for gap in check_ranges(table.entries):
        yield Finding("ledger", f"{gap.topic}/{gap.partition} [{gap.start}, {gap.end})", gap.reason)
    for entry in table.entries:
        listed = sum(file.rows for file in entry.files)
        if listed != entry.rows:
            yield Finding("ledger", f"batch {entry.batch}", f"it says {entry.rows} rows, and its files say {listed}")


def _of_files(table: CommittedTable) -> Iterator[Finding]:
    dead = [(table.dead_root, file) for entry in table.entries for file in entry.dead_files]
    for root, file in chain(((table.root, file) for file in table.live.values()), dead):
        try:
            size, rows = row_counts(root or table.root, file)
        except (OSError, pa.ArrowException) as error:
            yield Finding("unreadable", file.path, f"the file cannot be read: {error}", file.rows)
            continue
        if (size, rows) != (file.size, file.rows):
            what = f"the file has {rows} rows and {size} bytes; the ledger says {file.rows} and {file.size}"
            yield Finding("file", file.path, what, abs(rows - file.rows) or None)


def _of_delta(table: CommittedTable) -> Iterator[Finding]:
    """A Delta table has a log of its own, which lists the same files."""
    if table.flow.sink.kind != "delta":
        return
    from odradek.pipeline.delta import DeltaLog

    listed = DeltaLog(table.root, table.name, table.flow.sink.partition_by).files()
    for path in sorted(table.live.keys() - listed.keys()):
        yield Finding("file", path, "the ledger lists it, and the Delta table does not")
    for path in sorted(listed.keys() - table.live.keys()):
        yield Finding("file", path, "the Delta table lists it, and the ledger does not: `compact` takes it over")
