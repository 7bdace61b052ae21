"""`odradek mirror run`: copy what the source has."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import click

import odradek as od
from odradek.cli.mirror.metrics import METRICS, served
from odradek.cli.mirror.options import FILE, needs_mirror
from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_rows

if TYPE_CHECKING:
    from odradek.mirror.run import MirrorResult

__all__ = ["run"]


@click.command(
    epilog=examples(
        "odradek mirror run leave07.toml",
        "odradek mirror run leave07.toml --follow --metrics 127.0.0.1:9400",
        "odradek mirror run leave07.toml --follow --processes 4",
    )
)
@FILE
@click.option("--follow", is_flag=True, help="Go on with what is appended to the logs, until SIGTERM or Ctrl-C.")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Copy in N processes that share the tasks. The same command on other machines joins them.",
)
@METRICS
@JSON
@QUIET
@needs_mirror
def run(
    file: str, follow: bool, processes: int | None, metrics: tuple[str, int] | None, as_lines: bool, quiet: bool
) -> int:
    """Copy what the logs of the source have now, and note on the target how far that is.

    However a run ends, the next one continues exactly after what was committed. A second run of the same mirror takes
    over from the first, which ends with the exit code 1; with --processes it shares the work instead.

    A terminal shows a bar for each topic that is being copied, the rates of the last 10 s, and the time that is left;
    with --follow the lag instead: how many records are not copied yet, of Kafka 0.7 how many bytes of its logs.
    """
    from odradek.cli.mirror.bars import bars
    from odradek.mirror.config import load
    from odradek.mirror.processes import run_processes
    from odradek.mirror.run import run as run_here

    config = load(file)
    copy = run_here if processes is None else partial(run_processes, processes=processes)
    with served(metrics) as observer, bars(follow=follow, quiet=quiet) as shown:
        copying = partial(copy, config, follow=follow, committed=shown.committed, lags=shown.lags, observer=observer)
        result = od.run(copying)
    if not quiet:
        echo_rows(("topic", "records"), _rows(result), as_lines)
    return 0


def _rows(result: MirrorResult) -> list[tuple[str, int]]:
    records: Counter[str] = Counter()
    for partition, count in result.records.items():
        records[partition.topic] += count
    return sorted(records.items())
