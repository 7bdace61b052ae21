"""`odradek pipeline files`: the files that have a table's rows."""

from __future__ import annotations

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json
from odradek.cli.pipeline.options import FILE, FLOW, load_flows, needs_pipeline

__all__ = ["files"]


@click.command(
    epilog=examples("odradek pipeline files pipeline.toml", "odradek pipeline files pipeline.toml --flow orders --json")
)
@FILE
@FLOW
@JSON
@needs_pipeline
def files(file: str, flows: tuple[str, ...], as_lines: bool) -> int:
    """Print the files that have a table's rows now. With --json, one line per file with its size and rows."""
    from odradek.pipeline.committed import open_committed

    loaded, names = load_flows(file, flows)
    for name in names:
        table = open_committed(loaded, name).table
        for data_file in table.files():
            path = data_file.path if "://" in data_file.path else table.options.storage.url(data_file.path)
            if as_lines:
                echo_json({"flow": name, **data_file._asdict(), "path": path})
            else:
                click.echo(path)
    return 0
