"""`odradek mirror run`: copy what the source has."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import click

import odradek as od
from odradek.cli.mirror.metrics import METRICS, served
from odradek.cli.mirror.options import FILE, needs_mirror
from odradek.cli.options import CONF, JSON, MASTER, QUIET, examples, needs_extra
from odradek.cli.output import echo_rows, progress

if TYPE_CHECKING:
    from odradek.mirror.config import MirrorConfig
    from odradek.mirror.run import MirrorResult

__all__ = ["run"]


@click.command(
    epilog=examples(
        "odradek mirror run leave07.toml",
        "odradek mirror run leave07.toml --follow --metrics 127.0.0.1:9400",
        "odradek mirror run leave07.toml --follow --processes 4",
        "odradek mirror run leave07.toml --spark --master spark://host:7077 --follow",
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
@click.option("--spark", is_flag=True, help="Let Spark copy what is there now; --follow goes on in this process.")
@MASTER
@CONF
@METRICS
@JSON
@QUIET
@needs_extra("spark", "pyspark", "py4j")
@needs_mirror
def run(
    file: str,
    follow: bool,
    processes: int | None,
    spark: bool,
    master: str | None,
    settings: tuple[tuple[str, str], ...],
    metrics: tuple[str, int] | None,
    as_lines: bool,
    quiet: bool,
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

    if not spark and (master is not None or settings):
        raise click.UsageError("--master and --conf need --spark")
    if spark and not follow and (processes is not None or metrics is not None):
        raise click.UsageError("--processes and --metrics with --spark are for what comes after it: add --follow")
    config = load(file)
    result = None
    if spark:
        result = _run_on_spark(config, master, dict(settings), quiet=quiet)
    if follow or result is None:
        copy = run_here if processes is None else partial(run_processes, processes=processes)
        with served(metrics) as observer, bars(follow=follow, quiet=quiet) as shown:
            call = partial(copy, config, follow=follow, committed=shown.committed, lags=shown.lags, observer=observer)
            result = od.run(call)
    if not quiet:
        echo_rows(("topic", "records"), _rows(result), as_lines)
    return 0


def _run_on_spark(config: MirrorConfig, master: str | None, settings: dict[str, str], *, quiet: bool) -> MirrorResult:
    """Start Spark, and stop it once it has copied."""
    from odradek.mirror.spark import run_on_spark
    from odradek.spark.session import session, submitted

    chosen = {"spark.ui.showConsoleProgress": "false", **settings}
    with (
        session("odradek-mirror", master=master, settings=chosen) as spark,
        progress("records copied", None, quiet=quiet) as advance,
    ):
        if not submitted():
            spark.sparkContext.setLogLevel("OFF")  # failures are reported once, at the end
        return run_on_spark(config, spark, committed=lambda copied: advance(sum(each.records for each in copied)))


def _rows(result: MirrorResult) -> list[tuple[str, int]]:
    records: Counter[str] = Counter()
    for partition, count in result.records.items():
        records[partition.topic] += count
    return sorted(records.items())
