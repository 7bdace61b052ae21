"""`odradek pipeline status`: what the tables have, and when they were last written."""

from __future__ import annotations

import time

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json, table
from odradek.cli.pipeline.options import FILE, format_size, load_file, needs_pipeline, report_problems

__all__ = ["status"]


@click.command(epilog=examples("odradek pipeline status pipeline.toml", "odradek pipeline status pipeline.toml --json"))
@FILE
@JSON
@needs_pipeline
def status(file: str, as_lines: bool) -> int:
    """Print the size of tables, the time of their last commit, and, if their logs can be reached, their lag.

    The exit code is 1 if a flow cannot continue as it is, a topic does not exist, or a partition has no broker.
    """
    from odradek.pipeline.status import status as status_of

    loaded = load_file(file)
    flows = [status_of(loaded, name) for name in loaded.flows]
    for flow in flows:
        report_problems(flow.flow, flow.problems)
    if as_lines:
        for flow in flows:
            echo_json(flow._asdict())
    else:
        head = ["flow", "batches", "rows", "files", "size", "dead", "last commit", "lag", "table"]
        rows: list[list[object]] = [
            [*s[:4], format_size(s.size), s.dead, _when(s.last), format_size(s.lag, loaded.unit), s.location]
            for s in flows
        ]
        click.echo(table(head, rows))
    return int(any(flow.problems for flow in flows))


def _when(moment: float | None) -> str:
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
