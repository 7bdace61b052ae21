"""The result of the demo: its numbers, the check that they are right, and their text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["DemoResult", "TableResult", "differences", "report"]


@dataclass
class TableResult:
    """The table that the pipeline wrote.

    Args:
        rows: Its rows.
        distinct: Distinct messages among them.
        dead: Records that could not be decoded.
        files: Number of files.
        file_bytes: Size of the files (bytes).
        commits: Number of committed batches.
        ranges: Log ranges read again for verification.
        log_size: Size of these ranges, in `log_unit`.
        findings: Descriptions of the faults that verification found.
        seconds: Duration of the run, including Spark's start and end (s).
        root: The table's directory.
        report: The report page.
        pipeline: The pipeline file.
        log_unit: `bytes`, or `records` of Kafka 0.8 and later.
    """

    rows: int
    distinct: int
    dead: int
    files: int
    file_bytes: int
    commits: int
    ranges: int
    log_size: int
    findings: list[str]
    seconds: float
    root: str
    report: str
    pipeline: str
    log_unit: str = "bytes"


@dataclass
class DemoResult:
    """The result of the whole demo; printed with --json.

    Args:
        messages: Messages written and confirmed.
        write_seconds: Time the worker spent writing, without the waits at the two gates (s).
        handle_seconds: Time from the first handled message to the last (s).
        best_per_second: Most messages handled within a second.
        rebalances: Number of assignments of partitions to consumers.
        duplicates: Number of repeated deliveries.
        lost: Number of messages that were never handled.
        first_lost: The first few of their numbers.
        table: The table, or None if messages were lost or the time was up before it was written.
        directory: Directory of the table, the pipeline file and the logs.
        seconds: Duration of the demo (s).
    """

    messages: int = 0
    write_seconds: float = 0.0
    handle_seconds: float = 0.0
    best_per_second: float = 0.0
    rebalances: int = 0
    duplicates: int = 0
    lost: int = 0
    first_lost: list[int] = field(default_factory=list)
    table: TableResult | None = None
    directory: str = ""
    seconds: float = 0.0


def differences(result: DemoResult) -> Iterator[str]:
    """Describe everything that is wrong; yield nothing if the demo succeeded."""
    table, messages = result.table, result.messages
    if result.lost:
        yield f"{result.lost:,} of {messages:,} messages were never handled; the first: {result.first_lost}"
    if table is None:
        yield "no table was written"
        return
    if table.distinct != messages:
        yield f"{messages - table.distinct:,} of {messages:,} messages are not in the table"
    if table.rows != table.distinct:
        yield f"{table.rows - table.distinct:,} rows of the table are duplicates or do not belong to a written message"
    if table.dead:
        yield f"{table.dead:,} messages could not be decoded"
    yield from table.findings


def report(result: DemoResult) -> str:
    """Format the result for people, in aligned lines."""
    lines = [*_message_lines(result), *_table_lines(result.table), ("total", f"{result.seconds:.0f} s")]
    lines += _path_lines(result)
    return "\n".join(f"{name:<11} {text}" for name, text in lines)


def _message_lines(result: DemoResult) -> Iterator[tuple[str, str]]:
    total, write_s, handle_s = result.messages, result.write_seconds, result.handle_seconds
    lost = f"{result.lost:,}" + (f" (the first: {result.first_lost})" if result.lost else "")
    yield "written", f"{total:,} messages in {write_s:.1f} s: {total / write_s:,.0f}/s, all confirmed"
    yield "handled", f"in {handle_s:.1f} s: {total / handle_s:,.0f}/s, at most {result.best_per_second:,.0f}/s"
    yield "rebalances", f"{result.rebalances} assignments to the three consumers"
    yield "duplicates", f"{result.duplicates:,} (handled but not yet committed by the killed consumer)"
    yield "lost", lost


def _table_lines(table: TableResult | None) -> Iterator[tuple[str, str]]:
    if table is None:
        return
    state = "NOT COMPLETE" if table.findings else "complete"
    size = f"{table.file_bytes / 1e6:.1f} MB"
    commits = f"{table.commits} commits, {table.seconds:.0f} s"
    yield "table", f"{table.rows:,} rows in {table.files} files of {size}, {commits}; counted by DuckDB"
    yield "dead", f"{table.dead:,} that could not be decoded"
    size = f"{table.log_size / 1e6:.1f} MB" if table.log_unit == "bytes" else f"{table.log_size:,} offsets"
    yield "verified", f"{table.ranges} log ranges, {size} read again: {state}"


def _path_lines(result: DemoResult) -> Iterator[tuple[str, str]]:
    if result.table is None:
        yield "see", result.directory
        return
    yield "report", result.table.report
    yield "table in", result.table.root
    yield "pipeline", result.table.pipeline
