"""`odradek pipeline compact`: replace many small files of a table by few large ones."""

from __future__ import annotations

import re

import click

from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json, table
from odradek.cli.pipeline.options import FILE, FLOW, load_flows, needs_extra

__all__ = ["compact"]


def _duration(text: str) -> float:
    """Parse a duration, such as `90s`, `15m`, `12h` or `7d`, to seconds. Raises click.BadParameter."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{text!r}: expected a duration such as 90s, 15m, 12h or 7d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


@click.command(
    epilog=examples(
        "odradek pipeline compact pipeline.toml --dry-run",
        "odradek pipeline compact pipeline.toml --delete-older-than 7d",
    )
)
@FILE
@FLOW
@click.option("--dry-run", is_flag=True, help="Only print what would be done.")
@click.option(
    "--delete-older-than",
    "older_than",
    type=_duration,
    metavar="TIME",
    help="Delete files that were replaced longer ago than this, such as 12h or 7d (default: keep them).",
)
@JSON
@QUIET
@needs_extra
def compact(
    file: str, flows: tuple[str, ...], dry_run: bool, older_than: float | None, as_lines: bool, quiet: bool
) -> int:
    """Merge small files into files of about `sink.file_bytes`, in one commit per flow.

    A reader that uses the table's ledger sees either the old files or the new ones. Readers that started before the
    commit need the old files: delete those when no reader can be that old. No run can write the table meanwhile.
    """
    from odradek.pipeline import compact as module
    from odradek.pipeline.tables import open_table

    loaded, names = load_flows(file, flows)
    rows: list[list[object]] = []
    for name in names:
        flow = loaded.flows[name]
        if dry_run:
            groups = module.plan_compaction(open_table(name, flow))
            before, after, count = sum(len(group.files) for group in groups), len(groups), sum(g.rows for g in groups)
            deleted = 0
        else:
            entry = module.compact(name, flow)
            before, after = (len(entry.removed), len(entry.files)) if entry else (0, 0)
            count = entry.rows if entry else 0
            deleted = 0 if older_than is None else len(module.delete_retired(name, flow, older_than=older_than))
        rows.append([name, before, after, count, deleted])
    if as_lines:
        for row in rows:
            keys = ("flow", "files_before", "files_after", "rows", "deleted")
            echo_json({**dict(zip(keys, row, strict=True)), "applied": not dry_run})
    elif not quiet:
        click.echo(table(["flow", "files", "become", "rows", "old ones deleted"], rows))
        if dry_run:
            click.echo("nothing was changed")

    return 0
