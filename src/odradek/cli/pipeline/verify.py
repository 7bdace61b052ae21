"""`odradek pipeline verify`: compare tables with the log they were made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json, progress, table
from odradek.cli.pipeline.options import BATCH, FILE, FLOW, SINCE, UNTIL, load_flows, needs_pipeline

if TYPE_CHECKING:
    from odradek.pipeline.verify import VerifyResult

__all__ = ["verify"]


@click.command(
    epilog=examples(
        "odradek pipeline verify pipeline.toml",
        "odradek pipeline verify pipeline.toml --flow orders --since -24h",
        "odradek pipeline verify pipeline.toml --batch 3:9 --json",
    )
)
@FILE
@FLOW
@BATCH
@SINCE
@UNTIL
@JSON
@QUIET
@needs_pipeline
def verify(
    file: str,
    flows: tuple[str, ...],
    numbers: tuple[str, ...],
    since: float | None,
    until: float | None,
    as_lines: bool,
    quiet: bool,
) -> int:
    """Read the log again and prove that tables are complete; exit with 1 if they are not.

    The records of all batches are always checked. The chosen batches are compared with the log: rows, dead letters,
    skipped messages and recorded gaps must account for every message of the log, by position and, if the table keeps
    payloads (decode.kind = "raw"), by payload; the column `compared` says which. What retention has deleted since, or
    what was in a topic that was made again (with data_loss = "skip": or deleted), cannot be compared, and is counted
    as expired; rows whose records a compacted topic does not have any more are counted as compacted.
    """
    from odradek.pipeline.committed import open_committed, select
    from odradek.pipeline.verify import verify as check

    loaded, names = load_flows(file, flows)
    results: list[VerifyResult] = []
    for name in names:
        committed = open_committed(loaded, name)
        batches = select(committed.batches, numbers=numbers, since=since, until=until)
        total = sum(part.size for commit in batches for part in commit.ranges())
        with progress(f"{name}: log, in {loaded.unit}", total, quiet=quiet) as advance:
            result = check(loaded, committed, batches, advance)
        results.append(result)
        if as_lines:
            echo_json(result.as_dict())
        else:
            for finding in result.findings:
                click.echo(f"{name}: {finding.kind}: {finding.where}: {finding.what}")
    if not as_lines and not quiet:
        click.echo(table(_head(loaded.unit), [_row(result) for result in results]))
    return 0 if all(result.ok for result in results) else 1


def _head(unit: str) -> list[str]:
    """Return the names of the columns; those of sizes of log have their unit."""
    sizes = (f"log ({unit})", f"lost before ({unit})", f"expired ({unit})")
    return ["flow", "checked", "rows", "dead", "skipped", "compacted", *sizes, "seconds", "compared", "result"]


def _row(result: VerifyResult) -> list[object]:
    return [
        result.flow, f"{result.batches} of {result.of} batches", result.rows, result.dead, result.skipped,
        result.compacted, result.size, result.gaps, result.expired, f"{result.seconds:.1f}", result.compared,
        "complete" if result.ok else "NOT COMPLETE",
    ]  # fmt: skip
