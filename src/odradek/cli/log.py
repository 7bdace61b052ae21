"""`odradek log`: segment files, without a broker."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import click

from odradek.cli.options import COUNT, FORMAT, JSON, QUIET, examples
from odradek.cli.output import Render, as_json, formatter, json_line, progress
from odradek.segments import Log, Verdict, open_log

__all__ = ["log"]


@click.command(
    epilog=examples(
        "odradek log /var/kafka/orders-0",
        "odradek log -f '%o %S %s\\n' -c 10 00000000000536870912.kafka",
        "odradek log --verify /var/kafka/*-*",
    )
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--verify", is_flag=True, help="Print nothing but what is wrong; exit code 1 when something is.")
@FORMAT
@COUNT
@JSON
@QUIET
def log(
    files: tuple[str, ...], verify: bool, format: str | None, count: int | None, as_lines: bool, quiet: bool
) -> int:
    """Dump or verify segment files and log directories of a 0.7 broker.

    FILE is a segment file or the directory of a partition. Compressed messages are printed one by one. A torn
    tail, as a killed broker leaves it, is left out silently; --verify names it.
    """
    logs = [open_log(Path(file)) for file in files]
    if verify:
        return _verify(files, logs, as_lines, quiet)
    render: Render = json_line if as_lines else formatter(format or "%s\\n")
    _dump(logs, render, count)
    return 0


def _dump(logs: Sequence[Log], render: Render, count: int | None) -> None:
    records = (record for log in logs for batch in log for record in batch)
    out = sys.stdout.buffer
    for record in islice(records, count):
        out.write(render(record))
    out.flush()


def _verify(files: Sequence[str], logs: Sequence[Log], as_lines: bool, quiet: bool) -> int:
    total = sum(segment.size for log in logs for segment in log.segments)
    bad = 0
    with progress("verifying", total, quiet=quiet) as advance:
        for file, one in zip(files, logs, strict=True):
            verdict = one.verify(advance)
            bad += bool(verdict.faults)
            click.echo(_json_verdict(file, verdict) if as_lines else _text_verdict(file, verdict))
    return 1 if bad else 0


def _text_verdict(file: str, verdict: Verdict) -> str:
    lines = [f"{fault.path}: at {fault.position}: {fault.reason}" for fault in verdict.faults]
    state = "damaged" if lines else "ok"
    return "\n".join([*lines, f"{file}: {state}, {verdict.messages} messages, {verdict.size} bytes"])


def _json_verdict(file: str, verdict: Verdict) -> str:
    faults = [{"file": str(fault.path), "position": fault.position, "reason": fault.reason} for fault in verdict.faults]
    return as_json(
        {"file": file, "ok": not faults, "messages": verdict.messages, "bytes": verdict.size, "faults": faults}
    )
