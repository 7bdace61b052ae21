"""What came of the demo: the numbers, whether they are right, and how they are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["DemoResult", "TableResult", "differences", "report"]


@dataclass
class TableResult:
    """The table that was made of the topics.

    Args:
        rows: Rows that its ledger leads to.
        distinct: Different messages among them.
        dead: Records that could not be decoded.
        files: Its files.
        file_bytes: Their size.
        commits: Batches of it.
        ranges: Ranges of logs that were read again to verify it.
        log_bytes: Their size.
        findings: What that found wrong, in words.
        seconds: To make it, Spark's start and end included.
        root: Its directory.
        ledger: The directory of its ledger.
        report: The page about the run.
        pipeline: The file that says it all.
    """

    rows: int
    distinct: int
    dead: int
    files: int
    file_bytes: int
    commits: int
    ranges: int
    log_bytes: int
    findings: list[str]
    seconds: float
    root: str
    ledger: str
    report: str
    pipeline: str


@dataclass
class DemoResult:
    """What came of it all; printed with --json.

    Args:
        messages: Written and confirmed.
        write_seconds: Time the worker spent writing them, waits at the two points left out.
        handle_seconds: From the first message handled to the last.
        best_per_second: Most messages handled in a second.
        rebalances: How often a consumer was given partitions.
        duplicates: How often a message was handled again.
        lost: How many were never handled.
        first_lost: The first few of them.
        table: None: it was not made, because messages were lost or the time was up.
        directory: Where everything is that was left: the table, the pipeline's file, logs.
        seconds: The whole show.
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


def differences(account: DemoResult) -> Iterator[str]:
    """What is not as it must be, in words; nothing when all is right."""
    made, messages = account.table, account.messages
    if account.lost:
        yield f"{account.lost:,} of {messages:,} messages were never handled; the first: {account.first_lost}"
    if made is None:
        yield "no table was made"
        return
    if made.distinct != messages:
        yield f"{messages - made.distinct:,} of {messages:,} messages are not in the table"
    if made.rows != made.distinct:
        yield f"{made.rows - made.distinct:,} rows of the table repeat others, or are of no message that was written"
    if made.dead:
        yield f"{made.dead:,} messages could not be decoded"
    yield from made.findings


def report(account: DemoResult) -> str:
    """The account for people, in aligned lines."""
    told = [*_of_messages(account), *_of_table(account.table), ("all in", f"{account.seconds:.0f} s")]
    told += _places(account)
    return "\n".join(f"{name:<11} {what}" for name, what in told)


def _of_messages(account: DemoResult) -> Iterator[tuple[str, str]]:
    total, write_s, handle_s = account.messages, account.write_seconds, account.handle_seconds
    lost = f"{account.lost:,}" + (f" (the first: {account.first_lost})" if account.lost else "")
    yield "written", f"{total:,} messages in {write_s:.1f} s: {total / write_s:,.0f}/s, all confirmed"
    yield "handled", f"in {handle_s:.1f} s: {total / handle_s:,.0f}/s, {account.best_per_second:,.0f}/s at best"
    yield "rebalances", f"{account.rebalances} assignments given to the three consumers"
    yield "duplicates", f"{account.duplicates:,} (what the killed consumer had handled and not yet committed)"
    yield "lost", lost


def _of_table(made: TableResult | None) -> Iterator[tuple[str, str]]:
    if made is None:
        return
    result = "NOT COMPLETE" if made.findings else "complete"
    size = f"{made.file_bytes / 1e6:.1f} MB"
    yield "table", f"{made.rows:,} rows in {made.files} files of {size}, {made.commits} commits, {made.seconds:.0f} s"
    yield "dead", f"{made.dead:,} that could not be decoded"
    yield "verified", f"{made.ranges} ranges of the logs, {made.log_bytes / 1e6:.1f} MB read again: {result}"


def _places(account: DemoResult) -> Iterator[tuple[str, str]]:
    if account.table is None:
        yield "see", account.directory
        return
    yield "report", account.table.report
    yield "rows in", account.table.root
    yield "ledger in", account.table.ledger
    yield "pipeline", account.table.pipeline
