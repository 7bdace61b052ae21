"""`odradek pipeline run`: read what the logs have now, and commit it."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.options import CONF, JSON, MASTER, QUIET, examples
from odradek.cli.output import echo_json, table
from odradek.cli.pipeline.options import FILE, format_size, load_file, needs_pipeline, report_problems

if TYPE_CHECKING:
    from odradek.pipeline.commits import Commit
    from odradek.pipeline.report import FlowSummary, RunSummary
    from odradek.pipeline.run import OnCommit

__all__ = ["run"]


@click.command(
    epilog=examples(
        "odradek pipeline run pipeline.toml",
        "odradek pipeline run pipeline.toml --master spark://host:7077 --conf spark.executor.memory=2g",
        "odradek pipeline run pipeline.toml --remote sc://host:15002",
        "odradek pipeline run pipeline.toml --json --quiet",
    )
)
@FILE
@click.option("--follow", is_flag=True, help="Go on with what is appended to the logs, until SIGTERM or Ctrl-C.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: look for more this long after there was none.",
)
@MASTER
@click.option("--remote", metavar="URL", help="A Spark Connect server, instead of a master.")
@CONF
@JSON
@QUIET
@needs_pipeline
def run(
    file: str,
    follow: bool,
    every_s: float,
    master: str | None,
    remote: str | None,
    settings: tuple[tuple[str, str], ...],
    as_lines: bool,
    quiet: bool,
) -> int:
    """Read what the logs have now, and commit it batch by batch.

    The exit code is 1 if a flow failed; the other flows continue, except with --follow, which ends then. However a run
    ends, the next one continues exactly after the last commit.
    """
    from odradek.pipeline.run import execute, on_spark

    if master is not None and remote is not None:
        raise click.UsageError("--master and --remote exclude each other")
    loaded = load_file(file)
    with (
        _shown(quiet, loaded.unit) as shown,
        _reported_if_interrupted(shown) as on_commit,
        _stopped_by_term(follow) as stop,
    ):
        sessions = partial(on_spark, master, remote, dict(settings))
        summary = execute(loaded, file, on_commit, sessions, every_s=every_s if follow else None, stop=stop)
    if as_lines:
        for flow in summary.flows:
            echo_json(_as_json(summary, flow))
    elif not quiet:
        click.echo(_run_table(summary))
        if summary.report:
            click.echo(f"report: {summary.report}")
    for flow in summary.flows:
        report_problems(flow.name, [*([flow.error] if flow.error else []), *flow.problems])
    for warning in summary.warnings:
        click.echo(f"odradek: {warning}", err=True)
    return 1 if summary.failed else 0


def _as_json(summary: RunSummary, flow: FlowSummary) -> dict[str, Any]:
    return {"run": summary.run, **asdict(flow)}


def _run_table(summary: RunSummary) -> str:
    head = ["flow", "batches", "rows", "rows/s", "read", "MB/s", "dead", "gaps", "files", "lag", "result"]
    return table(head, [_run_row(flow) for flow in summary.flows])


def _run_row(flow: FlowSummary) -> list[object]:
    busy = flow.seconds or 1
    return [
        flow.name, flow.batches, flow.rows, round(flow.rows / busy), format_size(flow.log_size, flow.unit),
        f"{flow.log_size / busy / 1e6:.1f}" if flow.unit == "bytes" else "-", flow.dead, flow.gap_count, flow.files,
        format_size(flow.lag_after, flow.unit),
        "failed" if flow.error else "incomplete" if flow.problems else "done",
    ]  # fmt: skip


@contextmanager
def _stopped_by_term(follow: bool) -> Iterator[Event]:
    """Yield an event that SIGTERM sets, if the run would never end: it ends after the batches that have begun."""
    stop = Event()
    if not follow:
        yield stop
        return
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _shown(quiet: bool, unit: str) -> Iterator[OnCommit]:
    """Show batches as they are committed: bars on a terminal, else a line for each."""
    if quiet:
        yield lambda _flow, _commit, _lag: None
    elif sys.stderr.isatty():
        with _bars(unit) as on_commit:
            yield on_commit
    else:
        yield lambda flow, commit, lag: click.echo(_line(flow, commit, lag, unit), err=True)


@contextmanager
def _reported_if_interrupted(shown: OnCommit) -> Iterator[OnCommit]:
    """Print what a run has committed if it is interrupted."""
    batches: Counter[str] = Counter()
    rows: Counter[str] = Counter()

    def on_commit(flow: str, commit: Commit, lag: int | None) -> None:
        batches[flow] += 1
        rows[flow] += commit.rows
        shown(flow, commit, lag)

    try:
        yield on_commit
    except KeyboardInterrupt:
        done = ", ".join(f"{flow}: {batches[flow]} batches with {rows[flow]} rows" for flow in sorted(batches))
        click.echo(f"odradek: stopped; committed: {done or 'nothing'}; the next run continues from there", err=True)
        raise


def _line(flow: str, commit: Commit, lag: int | None, unit: str) -> str:
    dead = f", {commit.dead} dead" if commit.dead else ""
    log, left = (format_size(size, unit) for size in (commit.log_size, lag))
    return f"{flow}: batch {commit.batch}: {commit.rows} rows{dead}, {log} of log, {left} left"


@contextmanager
def _bars(unit: str) -> Iterator[OnCommit]:
    from rich import progress
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    in_bytes = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    columns = (
        TextColumn("{task.description}"), progress.BarColumn(),
        *(in_bytes if unit == "bytes" else (progress.MofNCompleteColumn(), TextColumn(unit))),
        TextColumn("{task.fields[note]}"), progress.TimeElapsedColumn(),
    )  # fmt: skip
    lock = Lock()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        starting = bars.add_task("starting Spark", total=None, note="")
        tasks: dict[str, Any] = {}

        def on_commit(flow: str, commit: Commit, lag: int | None) -> None:
            size = commit.log_size
            with lock:
                bars.update(starting, visible=False)
                if flow not in tasks:
                    tasks[flow] = bars.add_task(flow, total=None if lag is None else lag + size, note="")
                bars.update(tasks[flow], advance=size, note=f"batch {commit.batch}, {commit.rows:,} rows")

        yield on_commit
