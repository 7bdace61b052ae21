"""`odradek pipeline files`: the files that have a table's rows."""

from __future__ import annotations

from dataclasses import asdict

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json
from odradek.cli.pipeline.options import BATCH, FILE, FLOW, SINCE, UNTIL, load_flows, needs_extra

__all__ = ["files"]


@click.command(
    epilog=examples(
        "odradek pipeline files pipeline.toml",
        "odradek pipeline files pipeline.toml --flow orders --batch 17:",
        "odradek pipeline files pipeline.toml --since -24h --json",
    )
)
@FILE
@FLOW
@BATCH
@SINCE
@UNTIL
@JSON
@needs_extra
def files(
    file: str,
    flows: tuple[str, ...],
    numbers: tuple[str, ...],
    since: float | None,
    until: float | None,
    as_lines: bool,
) -> int:
    """Print the files that have a table's rows now, or those of some batches.

    With --json, print one line per file with its partition of the table, its number of rows, and its smallest and
    largest record time (s since the epoch).
    """
    from odradek.pipeline.selection import select
    from odradek.pipeline.tables import open_table

    loaded, names = load_flows(file, flows)
    for name in names:
        table = open_table(name, loaded.flows[name])
        for data_file in table.files_of(select(table, numbers=numbers, since=since, until=until)):
            path = str(table.root / data_file.path)
            if as_lines:
                echo_json({"flow": name, **asdict(data_file), "path": path})
            else:
                click.echo(path)
    return 0
