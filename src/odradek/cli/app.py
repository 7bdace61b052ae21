"""The group of commands, and what is the same for all of them: errors, signals and exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

import odradek
from odradek import engine
from odradek.cli.broker import broker
from odradek.cli.demo import demo
from odradek.cli.groups import lag
from odradek.cli.log import log
from odradek.cli.messages import cat, put
from odradek.cli.pipeline import pipeline
from odradek.cli.pipeline_tools import COMMANDS as ON_TABLES
from odradek.cli.topics import ls, offsets

__all__ = ["cli", "run"]


class _Group(click.Group):
    """Lets the end of a pipe be no failure: click's own way with it is exit code 1."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            return _seen_enough()


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="--cluster URL or ODRADEK_CLUSTER says which cluster. Every command has examples in its --help.",
)
@click.version_option(odradek.__version__, message=f"odradek %(version)s (codec: {engine.active.NAME})")
def cli() -> None:
    """Look into, read from and write to Kafka 0.7 clusters; make tables of them; run test brokers; see it all work."""


for command in (demo, ls, cat, put, offsets, lag, log, broker, pipeline):
    cli.add_command(command)
for command in ON_TABLES:
    pipeline.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code and lets no exception through that has an explanation."""
    with _terminated_like_interrupted() as ended:
        try:
            code = cli.main(arguments, prog_name="odradek", standalone_mode=False)
            sys.stdout.flush()
            return int(code or 0)
        except BaseException as error:
            return _explain(_innermost(error), ended)


def _explain(error: BaseException, ended: list[int]) -> int:
    match error:
        case BrokenPipeError():
            return _seen_enough()
        case SystemExit(code=int(code)):
            return code
        case KeyboardInterrupt() | click.Abort():
            return 128 + (ended[0] if ended else signal.SIGINT)
        case click.ClickException():
            error.show()
            return error.exit_code
        case odradek.ConfigError():
            click.echo(f"odradek: {error}", err=True)
            return 2
        case odradek.OdradekError() | OSError():
            click.echo(f"odradek: {error}", err=True)
            return 1
        case _:
            raise error


def _seen_enough() -> int:
    """Whoever read our output is gone, and that is fine. The interpreter flushes once more at exit: into nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _innermost(error: BaseException) -> BaseException:
    """The first error of a group: an error is explained alike whether or not a task group was around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def _terminated_like_interrupted() -> Iterator[list[int]]:
    """SIGTERM takes the way of Ctrl-C, which unwinds everything; yields what ended us."""
    ended: list[int] = []

    def terminate(number: int, _frame: FrameType | None) -> None:
        ended.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start background jobs
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGTERM, before)
