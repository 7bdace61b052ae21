"""`odradek pipeline status`: what the tables have, and when they were last written."""

from __future__ import annotations

import time

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json, table
from odradek.cli.pipeline.options import FILE, format_size, load_file, needs_extra

__all__ = ["status"]


@click.command(epilog=examples("odradek pipeline status pipeline.toml", "odradek pipeline status pipeline.toml --json"))
@FILE
@JSON
@needs_extra
def status(file: str, as_lines: bool) -> int:
    """Print the size of tables, the time of their last commit, and, if their logs can be reached, their lag."""
    from odradek.pipeline import view

    loaded = load_file(file)
    flows = [view.status(loaded, name) for name in loaded.flows]
    if as_lines:
        for flow in flows:
            echo_json(flow._asdict())
        return 0
    unit = loaded.unit
    head = ["flow", "batches", "rows", "files", "size", "dead", "gaps", "last commit", "lag"]
    click.echo(
        table(
            head,
            [[*s[:4], format_size(s.size), s.dead, s.gaps, _when(s.last), format_size(s.lag, unit)] for s in flows],
        )
    )

    return 0


def _when(moment: float | None) -> str:
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
