"""`odradek pipeline accept`: go on with the tables that are there now."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json
from odradek.cli.pipeline.options import FILE, FLOW, load_flows, needs_pipeline

__all__ = ["accept"]


@click.command(epilog=examples("odradek pipeline accept pipeline.toml --flow orders"))
@FILE
@FLOW
@JSON
@needs_pipeline
def accept(file: str, flows: tuple[str, ...], as_lines: bool) -> int:
    """Go on with what is at sink.path now, although it is not the table that was written last.

    A run refuses a table that is gone, another one, or an older version. After this it continues where the table that
    is there ends; where there is none, it makes a new one from the start of the logs. Dead letters of batches that are
    read again come twice. If a catalog of Iceberg has a table of this name that is gone, or elsewhere, it keeps it
    under another name.
    """
    from odradek.pipeline.commits import forget
    from odradek.pipeline.flow import dead_options, table_options
    from odradek.pipeline.table import make_table

    loaded, names = load_flows(file, flows)
    for name in names:
        both = filter(None, (table_options(loaded, name), dead_options(loaded, name)))
        released = [done for options in both if (done := make_table(options).release())]
        known = forget(Path(loaded.run.state), name)
        if as_lines:
            echo_json({"flow": name, "forgotten": None if known is None else asdict(known), "released": released})
            continue
        what = "nothing was remembered" if known is None else f"forgotten: batch {known.batch} at {known.location}"
        for text in (what, *released):
            click.echo(f"{name}: {text}")
    return 0
