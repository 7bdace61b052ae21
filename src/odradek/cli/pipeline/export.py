"""`odradek pipeline export`: a table as plain Parquet files."""

from __future__ import annotations

from pathlib import Path

import click

from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json, progress
from odradek.cli.pipeline.options import FILE, load_flows, needs_pipeline

__all__ = ["export"]


@click.command(
    epilog=examples(
        "odradek pipeline export pipeline.toml --flow orders --to /data/orders-files",
        "odradek pipeline export pipeline.toml --flow orders --to /data/by-day --partition-by date",
    )
)
@FILE
@click.option("--flow", required=True, metavar="NAME", help="The flow whose table is exported.")
@click.option("--to", "folder", required=True, type=click.Path(file_okay=False), help="A new directory.")
@click.option(
    "--partition-by",
    "by",
    multiple=True,
    metavar="COLUMN",
    help="A column that makes directories; can be repeated (default: as the table).",
)
@JSON
@QUIET
@needs_pipeline
def export(file: str, flow: str, folder: str, by: tuple[str, ...], as_lines: bool, quiet: bool) -> int:
    """Write all rows of a table to Parquet files in directories like `topic=orders/date=2026-11-21`."""
    from odradek.pipeline.committed import export_table, open_committed
    from odradek.pipeline.layout import parse_columns

    loaded, (name,) = load_flows(file, (flow,))
    sink, table = loaded.flows[name].sink, open_committed(loaded, name).table
    columns = parse_columns(by, "delta") if by else sink.columns
    total = sum(each.rows for each in table.files())
    with progress(f"{name}: rows", total, quiet=quiet) as advance:
        files = export_table(table, Path(folder), columns, sink.compression, advance)
    rows = sum(each.footer.num_rows for each in files)
    if as_lines:
        echo_json({"flow": name, "rows": rows, "files": len(files), "path": folder})
    elif not quiet:
        click.echo(f"{name}: {rows} rows in {len(files)} files below {folder}")
    return 0
