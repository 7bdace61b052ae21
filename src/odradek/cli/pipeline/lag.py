"""`odradek pipeline lag`: the distance of tables from the end of their logs."""

from __future__ import annotations

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json, table
from odradek.cli.pipeline.options import FILE, backlog_json, backlog_row, load_file, needs_extra

__all__ = ["lag"]


@click.command(
    epilog=examples("odradek pipeline lag pipeline.toml", "odradek pipeline lag pipeline.toml --fail-over 1000000")
)
@FILE
@click.option("--fail-over", type=click.IntRange(min=0), metavar="N", help="Exit with 1 if a flow's lag exceeds N.")
@JSON
@needs_extra
def lag(file: str, fail_over: int | None, as_lines: bool) -> int:
    """Print how far tables are behind their logs, in bytes of log, or records of 0.8 and later. Asks the brokers."""
    from odradek.pipeline import view

    loaded = load_file(file)
    rows: list[list[object]] = []
    worst = 0
    for name in loaded.flows:
        logs = view.backlog(loaded, name)
        total = sum(log.waiting for log in logs)
        worst = max(worst, total)
        if as_lines:
            echo_json({"flow": name, "lag": total, "partitions": [backlog_json(log) for log in logs]})
            continue
        rows += [[name, *backlog_row(log)] for log in logs]
        rows.append([name, "total", "", "", "", total])

    if not as_lines:
        click.echo(table(["flow", "topic", "partition", "table", "log", "lag"], rows))
    return 1 if fail_over is not None and worst > fail_over else 0
