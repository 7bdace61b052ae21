"""`odradek pipeline plan`: what a run would read now."""

from __future__ import annotations

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json, table
from odradek.cli.pipeline.options import FILE, backlog_json, backlog_row, load_file, lost, needs_extra

__all__ = ["plan"]


@click.command(epilog=examples("odradek pipeline plan pipeline.toml", "odradek pipeline plan pipeline.toml --json"))
@FILE
@JSON
@needs_extra
def plan(file: str, as_lines: bool) -> int:
    """Print what a run would read now. Asks the brokers; changes nothing."""
    from odradek.pipeline import view

    loaded = load_file(file)
    rows: list[list[object]] = []
    for name in loaded.flows:
        planned = view.plan(loaded, name)
        if as_lines:
            totals = {"flow": name, "waiting": planned.waiting, "batches": planned.batches}
            echo_json({**totals, "partitions": [backlog_json(log) for log in planned.logs]})
            continue
        rows += [[name, *backlog_row(log), lost(log)] for log in planned.logs]
        rows.append([name, "total", "", f"{planned.batches} batches", "", planned.waiting, ""])

    if not as_lines:
        click.echo(table(["flow", "topic", "partition", "from", "to", loaded.unit, "lost"], rows))
    return 0
