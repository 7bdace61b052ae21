"""`odradek pipeline`: topics into tables, on Spark. What it needs is imported when a command of it runs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json, table
from odradek.errors import ConfigError

if TYPE_CHECKING:
    from odradek.pipeline.config import Pipeline
    from odradek.pipeline.sources import PartitionBacklog
    from odradek.pipeline.summary import BatchSummary, FlowSummary, RunSummary

__all__ = ["FILE", "needing", "pipeline"]

EXTRA = ("deltalake", "fastavro", "pyarrow", "pydantic", "pyspark", "py4j")

FILE = click.argument("file", metavar="FILE.toml", type=click.Path(dir_okay=False))


@click.group(
    epilog=examples(
        "odradek pipeline plan pipeline.toml",
        "odradek pipeline run pipeline.toml",
        "odradek pipeline status pipeline.toml --json",
    )
)
def pipeline() -> None:
    """Make tables of topics, on Spark: Parquet or Delta, each record in them exactly once.

    One TOML file says what is read, how it is decoded and where it goes. Commands print JSON with --json.
    """


def needing(command: Callable[..., int]) -> Callable[..., int]:
    """For commands of the group: a package that is missing is named, with what to install."""

    @wraps(command)
    def checked(*arguments: Any, **options: Any) -> int:
        try:
            return command(*arguments, **options)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing not in EXTRA:
                raise
            raise ConfigError(f"{missing} is not installed: pip install 'odradek[pipeline]'") from None

    return checked


def _load(file: str) -> Pipeline:
    from odradek.pipeline.config import load

    return load(file)


# ---- run -----------------------------------------------------------------------------------------------------


def _setting(text: str) -> tuple[str, str]:
    """`key=value`, as `spark-submit --conf` takes it. Raises click.BadParameter."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.BadParameter(f"{text!r}: expected key=value, such as spark.executor.memory=2g")
    return key, value


@pipeline.command(
    epilog=examples(
        "odradek pipeline run pipeline.toml",
        "odradek pipeline run pipeline.toml --master spark://host:7077 --conf spark.executor.memory=2g",
        "odradek pipeline run pipeline.toml --remote sc://host:15002",
        "odradek pipeline run pipeline.toml --json --quiet",
    )
)
@FILE
@click.option("--master", metavar="URL", help="Of the Spark cluster. Default: what spark-submit says, else local[*].")
@click.option("--remote", metavar="URL", help="Of a Spark Connect server, in place of a master.")
@click.option("--conf", "settings", type=_setting, multiple=True, metavar="KEY=VALUE", help="A setting of Spark.")
@JSON
@QUIET
@needing
def run(
    file: str,
    master: str | None,
    remote: str | None,
    settings: tuple[tuple[str, str], ...],
    as_lines: bool,
    quiet: bool,
) -> int:
    """Read what the logs have now, and commit it batch by batch.

    Exit code 1 when a flow failed; the others do not stop for it. Whatever ends a run, the next one goes on exactly
    where the last commit ended.
    """
    from odradek.pipeline.run import report_path
    from odradek.pipeline.run import run as run_pipeline

    if master is not None and remote is not None:
        raise click.UsageError("--master or --remote, not both")
    loaded = _load(file)
    with _shown(quiet) as shown, _told_if_stopped(shown) as watch:
        summary = run_pipeline(loaded, file, watch, master=master, remote=remote, settings=dict(settings))
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
    sums = {"rows": flow.rows, "log_bytes": flow.log_bytes, "dead": flow.dead}
    return {"run": summary.run, **asdict(flow), **sums}


def _run_table(summary: RunSummary) -> str:
    head = ["flow", "batches", "rows", "rows/s", "read", "MB/s", "dead", "gaps", "files", "lag", "result"]
    return table(head, [_run_row(flow) for flow in summary.flows])


def _run_row(flow: FlowSummary) -> list[object]:
    busy = sum(batch.seconds for batch in flow.batches) or 1
    return [
        flow.name, len(flow.batches), flow.rows, round(flow.rows / busy), _size(flow.log_bytes),
        f"{flow.log_bytes / busy / 1e6:.1f}", flow.dead, len(flow.gaps), flow.files,
        _size(flow.lag_after), "failed" if flow.error else "done",
    ]  # fmt: skip


@contextmanager
def _shown(quiet: bool) -> Iterator[Callable[[str, BatchSummary], None]]:
    """Show batches as they are committed: bars on a terminal, else a line for each."""
    if quiet:
        yield lambda _flow, _batch: None
    elif sys.stderr.isatty():
        with _bars() as watch:
            yield watch
    else:
        yield lambda flow, batch: click.echo(_line(flow, batch), err=True)


@contextmanager
def _told_if_stopped(shown: Callable[[str, BatchSummary], None]) -> Iterator[Callable[[str, BatchSummary], None]]:
    """Whoever ends a run learns what it has committed."""
    batches: Counter[str] = Counter()
    rows: Counter[str] = Counter()

    def watch(flow: str, batch: BatchSummary) -> None:
        batches[flow] += 1
        rows[flow] += batch.rows
        shown(flow, batch)

    try:
        yield watch
    except KeyboardInterrupt:
        done = ", ".join(f"{flow}: {batches[flow]} batches with {rows[flow]} rows" for flow in sorted(batches))
        click.echo(f"odradek: stopped; committed: {done or 'nothing'}; the next run goes on from there", err=True)
        raise


def _line(flow: str, batch: BatchSummary) -> str:
    seconds = batch.seconds or 1e-9
    dead = f", {batch.dead} dead" if batch.dead else ""
    return (
        f"{flow}: batch {batch.batch}: {batch.rows} rows{dead}, {_size(batch.log_bytes)} in {seconds:.1f} s "
        f"({batch.rows / seconds:.0f} rows/s, {batch.log_bytes / seconds / 1e6:.1f} MB/s), {_size(batch.lag)} to go"
    )


@contextmanager
def _bars() -> Iterator[Callable[[str, BatchSummary], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TextColumn("{task.fields[said]}"), TimeElapsedColumn(),
    )  # fmt: skip
    lock = Lock()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        starting = bars.add_task("starting Spark", total=None, said="")
        tasks: dict[str, Any] = {}

        def watch(flow: str, batch: BatchSummary) -> None:
            with lock:
                bars.update(starting, visible=False)
                if flow not in tasks:
                    total = None if batch.lag is None else batch.lag + batch.log_bytes
                    tasks[flow] = bars.add_task(flow, total=total, said="")
                rate = batch.rows / (batch.seconds or 1e-9)
                bars.update(tasks[flow], advance=batch.log_bytes, said=f"batch {batch.batch}, {rate:,.0f} rows/s")

        yield watch


# ---- look ----------------------------------------------------------------------------------------------------


@pipeline.command(epilog=examples("odradek pipeline plan pipeline.toml", "odradek pipeline plan pipeline.toml --json"))
@FILE
@JSON
@needing
def plan(file: str, as_lines: bool) -> int:
    """Print what a run would read now. Asks the brokers, starts nothing and changes nothing."""
    from odradek.pipeline import view

    loaded = _load(file)
    rows: list[list[object]] = []
    for name in loaded.flows:
        planned = view.plan(loaded, name)
        if as_lines:
            sums = {"flow": name, "waiting": planned.waiting, "batches": planned.batches}
            echo_json({**sums, "partitions": [_log_json(log) for log in planned.logs]})
            continue
        rows += [[name, *_log_row(log), _lost(log)] for log in planned.logs]
        rows.append([name, "in all", "", f"{planned.batches} batches", "", planned.waiting, ""])
    if not as_lines:
        click.echo(table(["flow", "topic", "partition", "from", "to", "bytes", "lost"], rows))
    return 0


@pipeline.command(
    epilog=examples("odradek pipeline lag pipeline.toml", "odradek pipeline lag pipeline.toml --fail-over 1000000")
)
@FILE
@click.option("--fail-over", type=click.IntRange(min=0), metavar="N", help="Exit code 1 when a flow is more behind.")
@JSON
@needing
def lag(file: str, fail_over: int | None, as_lines: bool) -> int:
    """Print how far tables are behind their logs, in bytes of log. Asks the brokers; needs no Spark."""
    from odradek.pipeline import view

    loaded = _load(file)
    rows: list[list[object]] = []
    worst = 0
    for name in loaded.flows:
        logs = view.outlook(loaded, name)
        total = sum(log.waiting for log in logs)
        worst = max(worst, total)
        if as_lines:
            echo_json({"flow": name, "lag": total, "partitions": [_log_json(log) for log in logs]})
            continue
        rows += [[name, *_log_row(log)] for log in logs]
        rows.append([name, "in all", "", "", "", total])
    if not as_lines:
        click.echo(table(["flow", "topic", "partition", "table", "log", "lag"], rows))
    return 1 if fail_over is not None and worst > fail_over else 0


@pipeline.command(
    epilog=examples("odradek pipeline status pipeline.toml", "odradek pipeline status pipeline.toml --json")
)
@FILE
@JSON
@needing
def status(file: str, as_lines: bool) -> int:
    """Print what is in the tables, when they were written last, and, if logs can be asked, how far behind they are."""
    from odradek.pipeline import view

    loaded = _load(file)
    found = [view.status(loaded, name) for name in loaded.flows]
    if as_lines:
        for each in found:
            echo_json(each._asdict())
        return 0
    head = ["flow", "batches", "rows", "files", "size", "dead", "gaps", "last commit", "lag"]
    click.echo(table(head, [[*s[:4], _size(s.size), s.dead, s.gaps, _when(s.last), _size(s.lag)] for s in found]))
    return 0


def _log_json(log: PartitionBacklog) -> dict[str, Any]:
    return {
        "topic": log.partition.topic, "partition": log.partition.name, "reached": log.reached,
        "earliest": log.earliest, "latest": log.latest, "waiting": log.waiting, "lost": _lost(log),
    }  # fmt: skip


def _log_row(log: PartitionBacklog) -> Sequence[object]:
    begin = log.earliest if log.reached is None else log.reached
    return [log.partition.topic, log.partition.name, begin, log.latest, log.waiting]


def _lost(log: PartitionBacklog) -> str:
    return "" if log.gap is None else str(log.gap)


def _size(size: int | None) -> str:
    from odradek.pipeline import plots

    return "-" if size is None else plots.size(size)


def _when(moment: float | None) -> str:
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
