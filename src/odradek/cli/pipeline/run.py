"""`odradek pipeline run`: read what the logs have now, and commit it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json, table
from odradek.cli.pipeline.options import FILE, format_size, load_file, needs_extra

if TYPE_CHECKING:
    from odradek.pipeline.summary import BatchSummary, FlowSummary, RunSummary

__all__ = ["run"]


def _setting(text: str) -> tuple[str, str]:
    """Parse `key=value`, as in `spark-submit --conf`. Raises click.BadParameter."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.BadParameter(f"{text!r}: expected key=value, such as spark.executor.memory=2g")
    return key, value


@click.command(
    epilog=examples(
        "odradek pipeline run pipeline.toml",
        "odradek pipeline run pipeline.toml --master spark://host:7077 --conf spark.executor.memory=2g",
        "odradek pipeline run pipeline.toml --remote sc://host:15002",
        "odradek pipeline run pipeline.toml --json --quiet",
    )
)
@FILE
@click.option("--master", metavar="URL", help="Spark's master (default: spark-submit's, else local[*]).")
@click.option("--remote", metavar="URL", help="A Spark Connect server, instead of a master.")
@click.option("--conf", "settings", type=_setting, multiple=True, metavar="KEY=VALUE", help="A Spark setting.")
@JSON
@QUIET
@needs_extra
def run(
    file: str,
    master: str | None,
    remote: str | None,
    settings: tuple[tuple[str, str], ...],
    as_lines: bool,
    quiet: bool,
) -> int:
    """Read what the logs have now, and commit it batch by batch.

    The exit code is 1 if a flow failed; the other flows continue. However a run ends, the next one continues exactly
    after the last commit.
    """
    from odradek.pipeline.run import report_path
    from odradek.pipeline.run import run as run_pipeline

    if master is not None and remote is not None:
        raise click.UsageError("--master and --remote exclude each other")
    loaded = load_file(file)
    with _shown(quiet) as shown, _reported_if_interrupted(shown) as on_commit:
        summary = run_pipeline(loaded, file, on_commit, master=master, remote=remote, settings=dict(settings))
    if as_lines:
        for flow in summary.flows:
            echo_json(_as_json(summary, flow))
    elif not quiet:
        click.echo(_run_table(summary))
        click.echo(f"report: {report_path(loaded, summary)}")
    for flow in summary.flows:
        if flow.error:
            click.echo(f"odradek: {flow.name}: {flow.error}", err=True)
    return 1 if summary.failed else 0


def _as_json(summary: RunSummary, flow: FlowSummary) -> dict[str, Any]:
    totals = {"rows": flow.rows, "log_bytes": flow.log_bytes, "dead": flow.dead}
    return {"run": summary.run, **asdict(flow), **totals}


def _run_table(summary: RunSummary) -> str:
    head = ["flow", "batches", "rows", "rows/s", "read", "MB/s", "dead", "gaps", "files", "lag", "result"]
    return table(head, [_run_row(flow) for flow in summary.flows])


def _run_row(flow: FlowSummary) -> list[object]:
    busy = sum(batch.seconds for batch in flow.batches) or 1
    return [
        flow.name, len(flow.batches), flow.rows, round(flow.rows / busy), format_size(flow.log_bytes, flow.unit),
        f"{flow.log_bytes / busy / 1e6:.1f}" if flow.unit == "bytes" else "-", flow.dead, len(flow.gaps), flow.files,
        format_size(flow.lag_after, flow.unit), "failed" if flow.error else "done",
    ]  # fmt: skip


@contextmanager
def _shown(quiet: bool) -> Iterator[Callable[[str, BatchSummary], None]]:
    """Show batches as they are committed: bars on a terminal, else a line for each."""
    if quiet:
        yield lambda _flow, _batch: None
    elif sys.stderr.isatty():
        with _bars() as on_commit:
            yield on_commit
    else:
        yield lambda flow, batch: click.echo(_line(flow, batch), err=True)


@contextmanager
def _reported_if_interrupted(
    shown: Callable[[str, BatchSummary], None],
) -> Iterator[Callable[[str, BatchSummary], None]]:
    """Print what a run has committed if it is interrupted."""
    batches: Counter[str] = Counter()
    rows: Counter[str] = Counter()

    def on_commit(flow: str, batch: BatchSummary) -> None:
        batches[flow] += 1
        rows[flow] += batch.rows
        shown(flow, batch)

    try:
        yield on_commit
    except KeyboardInterrupt:
        done = ", ".join(f"{flow}: {batches[flow]} batches with {rows[flow]} rows" for flow in sorted(batches))
        click.echo(f"odradek: stopped; committed: {done or 'nothing'}; the next run continues from there", err=True)
        raise


def _line(flow: str, batch: BatchSummary) -> str:
    seconds = batch.seconds or 1e-9
    dead = f", {batch.dead} dead" if batch.dead else ""
    rates = f"{batch.rows / seconds:.0f} rows/s"
    if batch.unit == "bytes":
        rates += f", {batch.log_bytes / seconds / 1e6:.1f} MB/s"
    log, lag = format_size(batch.log_bytes, batch.unit), format_size(batch.lag, batch.unit)
    return f"{flow}: batch {batch.batch}: {batch.rows} rows{dead}, {log} in {seconds:.1f} s ({rates}), {lag} left"


@contextmanager
def _bars() -> Iterator[Callable[[str, BatchSummary], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TextColumn("{task.fields[note]}"), TimeElapsedColumn(),
    )  # fmt: skip
    lock = Lock()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        starting = bars.add_task("starting Spark", total=None, note="")
        tasks: dict[str, Any] = {}

        def on_commit(flow: str, batch: BatchSummary) -> None:
            with lock:
                bars.update(starting, visible=False)
                if flow not in tasks:
                    total = None if batch.lag is None else batch.lag + batch.log_bytes
                    tasks[flow] = bars.add_task(flow, total=total, note="")
                rate = batch.rows / (batch.seconds or 1e-9)
                bars.update(tasks[flow], advance=batch.log_bytes, note=f"batch {batch.batch}, {rate:,.0f} rows/s")

        yield on_commit
