"""`odradek log`: segment files, read without a broker."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import click

import odradek as od
from odradek import segments
from odradek.cli.arrow_output import OUTPUT, write_tables
from odradek.cli.options import COUNT, FORMAT, JSON, QUIET, examples
from odradek.cli.output import Render, as_json, formatter, json_line, progress
from odradek.segments import LogCheckResult, SegmentedLog

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["log"]

Named = tuple[str, SegmentedLog]
"""A log and its name in the output."""


@click.command(
    epilog=examples(
        "odradek log /var/kafka/orders-0",
        "odradek log -f '%o %S %s\\n' -c 10 00000000000536870912.kafka",
        "odradek log --verify /var/kafka",
        "odradek log -O parquet /var/kafka/orders-* > orders.parquet",
    )
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--verify", is_flag=True, help="Check the files and print faults; exit with 1 if there are any.")
@FORMAT
@OUTPUT
@COUNT
@JSON
@QUIET
def log(
    files: tuple[str, ...],
    verify: bool,
    format: str | None,
    output: str | None,
    count: int | None,
    as_lines: bool,
    quiet: bool,
) -> int:
    """Dump or verify segment files and log directories of a 0.7 broker.

    FILE is a segment file, the directory of a partition, or a broker's directory of many. Compressed messages are
    printed one by one. An incomplete message at the end, as a killed broker leaves it, is not printed; --verify
    reports it.
    """
    if output and (verify or as_lines or format is not None):
        raise click.UsageError("--output cannot be combined with --verify, --json or --format")
    logs = [named for file in files for named in _opened(file)]
    if verify:
        return _verify(logs, as_lines, quiet)
    if output:
        od.run(write_tables, _tables(logs), output, count)
        return 0
    render: Render = json_line if as_lines else formatter(format or "%s\\n")
    _dump(logs, render, count)
    return 0


def _opened(file: str) -> list[Named]:
    opened = segments.logs(file)
    return [(file if len(opened) == 1 else str(log.segments[0].path.parent), log) for log in opened]


async def _tables(logs: Sequence[Named]) -> AsyncIterator[pa.Table]:
    from pyarrow import Table

    for _, log in logs:
        for batch in log.arrow():
            yield Table.from_batches([batch])


def _dump(logs: Sequence[Named], render: Render, count: int | None) -> None:
    records = (record for _, log in logs for batch in log for record in batch)
    out = sys.stdout.buffer
    for record in islice(records, count):
        out.write(render(record))
    out.flush()


def _verify(logs: Sequence[Named], as_lines: bool, quiet: bool) -> int:
    total = sum(log.size for _, log in logs)
    bad = 0
    with progress("verifying", total, quiet=quiet) as advance:
        for name, log in logs:
            result = log.verify(advance)
            bad += bool(result.faults)
            click.echo(_as_json(name, result) if as_lines else _as_text(name, result))
    return 1 if bad else 0


def _as_text(file: str, result: LogCheckResult) -> str:
    lines = [f"{fault.path}: at {fault.position}: {fault.reason}" for fault in result.faults]
    state = "damaged" if lines else "ok"
    return "\n".join([*lines, f"{file}: {state}, {result.messages} messages, {result.size} bytes"])


def _as_json(file: str, result: LogCheckResult) -> str:
    faults = [{"file": str(fault.path), "position": fault.position, "reason": fault.reason} for fault in result.faults]
    return as_json(
        {"file": file, "ok": not faults, "messages": result.messages, "bytes": result.size, "faults": faults}
    )
