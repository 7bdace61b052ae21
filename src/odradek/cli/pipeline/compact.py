"""`odradek pipeline compact`: merge small files of tables, and delete what no reader needs any more."""

from __future__ import annotations

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json
from odradek.cli.pipeline.options import FILE, FLOW, duration, load_flows, needs_pipeline
from odradek.errors import ConfigError

__all__ = ["clean", "compact"]


@click.command(epilog=examples("odradek pipeline compact pipeline.toml --flow orders"))
@FILE
@FLOW
@JSON
@needs_pipeline
def compact(file: str, flows: tuple[str, ...], as_lines: bool) -> int:
    """Merge small files of tables into files of about `sink.file_bytes`.

    Runs may write meanwhile. The old files stay for readers of older versions, until `clean`.
    """
    from odradek.pipeline.committed import open_committed

    loaded, names = load_flows(file, flows)
    for name in names:
        done = open_committed(loaded, name).table.compact(loaded.flows[name].sink.file_bytes)
        if as_lines:
            echo_json({"flow": name, **done})
        else:
            click.echo(f"{name}: {done['removed']} files became {done['added']}")
    return 0


@click.command(epilog=examples("odradek pipeline clean pipeline.toml --older-than 7d --dry-run"))
@FILE
@FLOW
@click.option(
    "--older-than",
    "older_s",
    type=duration,
    default="7d",
    show_default=True,
    metavar="TIME",
    help="Keep what versions of this time need.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@JSON
@needs_pipeline
def clean(file: str, flows: tuple[str, ...], older_s: float, dry_run: bool, as_lines: bool) -> int:
    """Delete files that no newer version of a table needs, with Delta's `vacuum`, or by expiry of Iceberg's snapshots.

    That includes the files of attempts that were never committed. No run may be so old.
    """
    from odradek.pipeline.committed import open_committed

    loaded, names = load_flows(file, flows)
    for name in names:
        committed = open_committed(loaded, name)
        newest = committed.commits[-1] if committed.commits else None
        if committed.dead and newest and newest.dead_files and not committed.dead.has(newest):
            raise ConfigError(
                f"flow {name}: the dead letters of batch {newest.batch} are not in their table yet, so their files "
                "would be deleted: run the pipeline first"
            )
        for table in filter(None, (committed.table, committed.dead)):
            for path in table.clean(older_s, dry_run=dry_run):
                if as_lines:
                    echo_json({"flow": name, "path": path, "deleted": not dry_run})
                else:
                    click.echo(f"{name}: {path}")
    return 0
