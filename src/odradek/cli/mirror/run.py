"""`odradek mirror run`: copy what the source has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import odradek as od
from odradek.cli.mirror.options import FILE, needs_mirror
from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_rows, progress

if TYPE_CHECKING:
    from odradek.mirror.run import MirrorResult
    from odradek.mirror.task import CopiedRecords

__all__ = ["run"]


@click.command(epilog=examples("odradek mirror run leave07.toml", "odradek mirror run leave07.toml --follow"))
@FILE
@click.option("--follow", is_flag=True, help="Go on with what is appended to the logs, until SIGTERM or Ctrl-C.")
@JSON
@QUIET
@needs_mirror
def run(file: str, follow: bool, as_lines: bool, quiet: bool) -> int:
    """Copy what the logs of the source have now, and note on the target how far that is.

    However a run ends, the next one continues exactly after what was committed. A second run of the same mirror takes
    over from the first, which ends with the exit code 1.
    """
    from odradek.mirror.config import load
    from odradek.mirror.run import run as copy

    config = load(file)
    with progress("records copied", None, quiet=quiet) as advance:

        def committed(copied: Sequence[CopiedRecords]) -> None:
            advance(sum(each.records for each in copied))

        result = od.run(lambda: copy(config, follow=follow, committed=committed))
    if not quiet:
        echo_rows(("topic", "records"), _rows(result), as_lines)
    return 0


def _rows(result: MirrorResult) -> list[tuple[str, int]]:
    records: Counter[str] = Counter()
    for partition, count in result.records.items():
        records[partition.topic] += count
    return sorted(records.items())
