"""`odradek pipeline plan` and `odradek pipeline lag`: what a run would read, and how far tables are behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json, table
from odradek.cli.pipeline.options import FILE, load_file, needs_pipeline, report_problems
from odradek.errors import OdradekError

if TYPE_CHECKING:
    from odradek.pipeline.config import Pipeline
    from odradek.pipeline.flow import FlowRun
    from odradek.pipeline.source import PartitionBacklog

__all__ = ["lag", "plan"]


@click.command(epilog=examples("odradek pipeline plan pipeline.toml", "odradek pipeline plan pipeline.toml --json"))
@FILE
@JSON
@needs_pipeline
def plan(file: str, as_lines: bool) -> int:
    """Print what a run would read now. Asks the brokers; changes nothing.

    The exit code is 1 if a topic does not exist, a partition has no broker, or a run would fail: for lost data, or for
    columns that the file names and that there are not.
    """
    loaded = load_file(file)
    rows: list[list[object]] = []
    failed = False
    for flow, problems in _flows(loaded, check=True):
        failed |= bool(problems)
        if as_lines:
            waiting = {"flow": flow.name, "waiting": flow.waiting, "unit": loaded.unit, "batches": flow.batches}
            _echo(waiting, flow, problems)
            continue
        rows += [[flow.name, *_row(log), _lost(log)] for log in flow.backlog]
        rows.append([flow.name, "total", "", f"{flow.batches} batches", "", flow.waiting, ""])

    if not as_lines:
        click.echo(table(["flow", "topic", "partition", "from", "to", loaded.unit, "lost"], rows))
    return int(failed)


@click.command(
    epilog=examples("odradek pipeline lag pipeline.toml", "odradek pipeline lag pipeline.toml --fail-over 1000000")
)
@FILE
@click.option("--fail-over", type=click.IntRange(min=0), metavar="N", help="Exit with 1 if a flow's lag exceeds N.")
@JSON
@needs_pipeline
def lag(file: str, fail_over: int | None, as_lines: bool) -> int:
    """Print how far tables are behind their logs: in records, or in bytes of log for 0.7. Asks the brokers.

    The exit code is 1 also if a topic does not exist or a partition has no broker, whose lag is unknown then, and if a
    run would fail for lost data.
    """
    loaded = load_file(file)
    rows: list[list[object]] = []
    failed = False
    for flow, problems in _flows(loaded, check=False):
        failed |= bool(problems) or (fail_over is not None and flow.waiting > fail_over)
        if as_lines:
            _echo({"flow": flow.name, "lag": flow.waiting, "unit": loaded.unit}, flow, problems)
            continue
        rows += [[flow.name, *_row(log), _lost(log)] for log in flow.backlog]
        rows.append([flow.name, "total", "", "", "", flow.waiting, ""])

    if not as_lines:
        click.echo(table(["flow", "topic", "partition", "table", "log", f"lag ({loaded.unit})", "lost"], rows))
    return int(failed)


def _flows(loaded: Pipeline, *, check: bool) -> Iterator[tuple[FlowRun, list[str]]]:
    """Yield the flows with their problems, which are printed; with `check` also what is wrong with their columns."""
    from odradek.pipeline.flow import open_flow

    for name in loaded.flows:
        flow = open_flow(loaded, name)
        problems = [*flow.problems, *flow.losses]
        try:
            if check:
                flow.check()
        except OdradekError as error:
            problems.append(str(error))
        report_problems(name, problems)
        yield flow, problems


def _echo(totals: dict[str, Any], flow: FlowRun, problems: list[str]) -> None:
    partitions = [
        {
            "topic": log.partition.topic, "partition": log.partition.name, "reached": log.reached,
            "earliest": log.earliest, "latest": log.latest, "waiting": log.waiting, "lost": _lost(log),
        }
        for log in flow.backlog
    ]  # fmt: skip
    echo_json({**totals, "problems": problems, "partitions": partitions})


def _row(log: PartitionBacklog) -> list[object]:
    """Return topic, partition, first and last position and size of a partition's backlog."""
    begin = log.earliest if log.reached is None else log.reached
    end, waiting = ("?", "unknown") if log.waiting is None else (log.latest, log.waiting)
    return [log.partition.topic, log.partition.name, begin, end, waiting]


def _lost(log: PartitionBacklog) -> str:
    """Describe the data that retention deleted before the pipeline read it; empty if there is none."""
    return "" if log.gap is None else str(log.gap)
