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
from odradek.cli.json_records import json_line
from odradek.cli.log_rows import HEAD, dump_batches, epochs_of, log_row
from odradek.cli.options import COUNT, FORMAT, JSON, QUIET, examples
from odradek.cli.output import Render, as_json, echo_rows, formatter, progress
from odradek.segments import KafkaLog, LogCheckResult, SegmentedLog

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
        "odradek log --ls --json /var/kafka",
        "odradek log --dump /var/kafka/orders-0 | grep transactional",
        "odradek log --read-committed -f '%o %k %s\\n' /var/kafka/orders-0",
        "odradek log -O parquet /var/kafka/orders-* > orders.parquet",
    )
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--verify", is_flag=True, help="Check the files and print faults; exit with 1 if there are any.")
@click.option("--ls", "lists", is_flag=True, help="List the logs: positions, sizes, topic ids, leader epochs.")
@click.option(
    "--dump",
    is_flag=True,
    help="Print the headers of batches, whether each is sound, and the states of producers (0.8 and later).",
)
@click.option(
    "--read-committed", is_flag=True, help="Without records of transactions that were aborted or are open (0.11 on)."
)
@FORMAT
@OUTPUT
@COUNT
@JSON
@QUIET
def log(
    files: tuple[str, ...],
    verify: bool,
    lists: bool,
    dump: bool,
    read_committed: bool,
    format: str | None,
    output: str | None,
    count: int | None,
    as_lines: bool,
    quiet: bool,
) -> int:
    """Print, list, dump or verify segment files and log directories of a broker, of 0.7 and of 0.8 to 4.x.

    FILE is a segment file, the directory of a partition, or a broker's directory of many. Compressed messages are
    printed one by one. An incomplete message at the end, as a killed broker leaves it, is not printed; --verify
    reports it. It names other facts of a log, such as records behind the high watermark, and directories that it leaves
    out, on standard error.
    """
    if verify + lists + dump > 1:
        raise click.UsageError("only one of --verify, --ls and --dump is possible")
    if (verify or lists or dump) and (output or format is not None or read_committed):
        raise click.UsageError("--verify, --ls and --dump cannot be combined with --output, --format, --read-committed")
    if output and (as_lines or format is not None):
        raise click.UsageError("--output cannot be combined with --json or --format")
    logs = [named for file in files for named in _opened(file)]
    if not quiet:
        _echo_notes(files, logs)
    if verify:
        return _verify(logs, as_lines, quiet)
    if lists:
        echo_rows(HEAD, [log_row(log) for _, log in logs], as_lines)
    elif dump:
        dump_batches([log for _, log in logs], as_lines, count)
    elif output:
        od.run(write_tables, _tables(logs, read_committed), output, count)
    else:
        render: Render = json_line if as_lines else formatter(format or "%s\\n")
        _print(logs, render, count, read_committed)
    return 0


def _opened(file: str) -> list[Named]:
    opened = segments.logs(file)
    return [(file if len(opened) == 1 else str(log.segments[0].path.parent), log) for log in opened]


def _echo_notes(files: Sequence[str], logs: Sequence[Named]) -> None:
    for file in files:
        for line in segments.left_out(file):
            click.echo(f"odradek: {line}", err=True)
    for _, log in logs:
        for note in log.notes:
            click.echo(f"odradek: {note}", err=True)


async def _tables(logs: Sequence[Named], read_committed: bool) -> AsyncIterator[pa.Table]:
    from pyarrow import Table

    for _, log in logs:
        for batch in log.arrow(read_committed=read_committed):
            yield Table.from_batches([batch])


def _print(logs: Sequence[Named], render: Render, count: int | None, read_committed: bool) -> None:
    batches = (batch for _, log in logs for batch in log.batches(read_committed=read_committed))
    records = (record for batch in batches for record in batch)
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
            click.echo(_as_json(name, log, result) if as_lines else _as_text(name, log, result))
    return 1 if bad else 0


def _as_text(file: str, log: SegmentedLog, result: LogCheckResult) -> str:
    lines = [f"{fault.path}: at {fault.position}: {fault.reason}" for fault in result.faults]
    state = "damaged" if lines else "ok"
    epochs = ", ".join(epochs_of(log))
    known = f", leader epochs {epochs}" if epochs else ""
    return "\n".join([*lines, f"{file}: {state}, {result.messages} messages, {result.size} bytes{known}"])


def _as_json(file: str, log: SegmentedLog, result: LogCheckResult) -> str:
    faults = [{"file": str(fault.path), "position": fault.position, "reason": fault.reason} for fault in result.faults]
    line = {"file": file, "ok": not faults, "messages": result.messages, "bytes": result.size, "faults": faults}
    if isinstance(log, KafkaLog):
        line |= {"topic_id": log.facts.topic_id, "leader_epochs": epochs_of(log), "notes": log.notes}
    return as_json(line)
