"""Prove that a table is complete: read the log again and compare.

For each checked batch it proves: the rows of the table and the dead letters, plus skipped messages and recorded gaps,
are exactly the messages that the log has in the batch's ranges. Rows are compared by slice of the log, as counts and
checksums over position, index and, if the table keeps it, payload; slices that differ are then read a second time, row
by row. For decoded columns it proves that each message has its row, not that it was decoded correctly.

Memory: a few batches of rows, 100 bytes for each slice, and one slice that differs.
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
        batches: Number of batches compared with the log.
        of: Number of all batches.
        gaps: Bytes of log in the recorded gaps.
        compared: Compared parts of a row: `position, payload`, or `position` if the table does not keep the payload.
        counts: Counts of the comparison.
        findings: Everything that is wrong; the table is complete if there are none.
        seconds: Duration (s).
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
        pipeline: The pipeline file, which locates the log.
        table: The table.
        batches: Batches to compare with the log; None: all of them.
        advance: Called with the number of log bytes that were read, from time to time.

    Raises:
        OdradekError: The log cannot be read.
    """
    begun = time.monotonic()
    findings = [*_of_ledger(table), *_of_files(table), *_of_delta(table)]
    unreadable = {finding.where for finding in findings if finding.kind == "unreadable"}
    chosen = [entry for entry in table.appends if batches is None or entry.batch in batches]
    comparison = LogComparison(table, chosen, unreadable, advance, by_records=pipeline.source.kafka is not None)
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
    """Compare the ledger with the log of a Delta table, which must list the same files."""
    if table.flow.sink.kind != "delta":
        return
    from odradek.pipeline.delta import DeltaLog

    listed = DeltaLog(table.root, table.name, table.flow.sink.partition_by).files()
    for path in sorted(table.live.keys() - listed.keys()):
        yield Finding("file", path, "the ledger lists it, and the Delta table does not")
    for path in sorted(listed.keys() - table.live.keys()):
        yield Finding("file", path, "the Delta table lists it, and the ledger does not: `compact` adds it")
