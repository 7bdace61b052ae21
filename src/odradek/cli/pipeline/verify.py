"""`odradek pipeline verify`: compare tables with the log they were made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import odradek as od
from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json, progress, table
from odradek.cli.pipeline.options import BATCH, FILE, FLOW, SINCE, UNTIL, load_flows, needs_extra

if TYPE_CHECKING:
    from odradek.pipeline.verify import VerifyResult

__all__ = ["verify"]


@click.command(
    epilog=examples(
        "odradek pipeline verify pipeline.toml",
        "odradek pipeline verify pipeline.toml --flow orders --since -24h",
        "odradek pipeline verify pipeline.toml --sample 5 --json",
    )
)
@FILE
@FLOW
@BATCH
@SINCE
@UNTIL
@click.option(
    "--sample",
    type=click.FloatRange(min=0, min_open=True, max=100),
    metavar="PERCENT",
    help="Check only this share of the batches, drawn at random.",
)
@JSON
@QUIET
@needs_extra
def verify(
    file: str,
    flows: tuple[str, ...],
    numbers: tuple[str, ...],
    since: float | None,
    until: float | None,
    sample: float | None,
    as_lines: bool,
    quiet: bool,
) -> int:
    """Read the log again and prove that tables are complete; exit with 1 if they are not.

    The ledger and every file are always checked. The chosen batches are compared with the log: rows, dead letters,
    skipped messages and recorded gaps must account for every message of the log, by position and, if the table keeps
    payloads (decode.kind = "raw"), by payload; the column `compared` says which. What retention has deleted since
    cannot be compared, and is counted as expired.
    """
    from odradek.pipeline.selection import select
    from odradek.pipeline.tables import batch_ranges, open_table
    from odradek.pipeline.verify import verify as check

    loaded, names = load_flows(file, flows)
    results: list[VerifyResult] = []
    for name in names:
        committed = open_table(name, loaded.flows[name])
        batches = select(committed, numbers=numbers, since=since, until=until, sample=sample)
        total = sum(part.size for entry in committed.appends if entry.batch in batches for part in batch_ranges(entry))
        with progress(f"{name}: bytes of log", total, quiet=quiet) as advance:
            result = od.run(check, loaded, committed, batches, advance)
        results.append(result)
        if as_lines:
            echo_json(result.as_dict())
        else:
            for finding in result.findings:
                click.echo(f"{name}: {finding.kind}: {finding.where}: {finding.what}")
    if not as_lines and not quiet:
        click.echo(table(HEAD, [_row(result) for result in results]))
    return 0 if all(result.ok for result in results) else 1


HEAD = [
    "flow",
    "checked",
    "rows",
    "dead",
    "skipped",
    "log bytes",
    "lost before",
    "expired",
    "seconds",
    "compared",
    "result",
]


def _row(result: VerifyResult) -> list[object]:
    counts = result.counts
    return [
        result.flow, f"{result.batches} of {result.of} batches", counts.rows, counts.dead, counts.skipped, counts.size,
        result.gaps, counts.expired, f"{result.seconds:.1f}", result.compared,
        "complete" if result.ok else "NOT COMPLETE",
    ]  # fmt: skip
