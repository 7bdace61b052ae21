"""The group of all commands, and the handling of errors, signals and exit codes that they share."""

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
from odradek.cli.acl import acl
from odradek.cli.broker import broker
from odradek.cli.cat import cat
from odradek.cli.cluster import cluster
from odradek.cli.demo.command import demo
from odradek.cli.doctor import doctor, explain
from odradek.cli.group import group
from odradek.cli.lag import lag
from odradek.cli.log import log
from odradek.cli.ls import ls
from odradek.cli.offsets import offsets
from odradek.cli.pipeline.group import pipeline
from odradek.cli.put import put
from odradek.cli.quotas import quotas
from odradek.cli.seek import seek
from odradek.cli.topic import topic
from odradek.cli.transactions import transactions
from odradek.cli.users import users

__all__ = ["cli", "run"]


class _Group(click.Group):
    """A group whose commands succeed when the reader of their output closes the pipe; click's exit code would be 1."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            return _output_closed()


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Name the cluster with --cluster, ODRADEK_CLUSTER or --profile. Every command has examples in its --help.",
)
@click.version_option(odradek.__version__, message=f"odradek %(version)s (engine: {engine.active.NAME})")
def cli() -> None:
    """Inspect, read, write and look after Kafka clusters of any version, turn topics into tables, run test brokers."""


for command in (
    *(demo, ls, cat, put, offsets, lag, seek, topic, group),
    *(doctor, explain, cluster, acl, users, quotas, transactions),
    *(log, broker, pipeline),
):
    cli.add_command(command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; expected errors are printed, others are raised."""
    with _sigterm_as_interrupt() as signals:
        try:
            code = cli.main(arguments, prog_name="odradek", standalone_mode=False)
            sys.stdout.flush()
            return int(code or 0)
        except BaseException as error:
            return _print_error(_innermost(error), signals)


def _print_error(error: BaseException, signals: list[int]) -> int:
    match error:
        case BrokenPipeError():
            return _output_closed()
        case SystemExit(code=int(code)):
            return code
        case KeyboardInterrupt() | click.Abort():
            return 128 + (signals[0] if signals else signal.SIGINT)
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


def _output_closed() -> int:
    """Succeed although the reader of the output is gone. The interpreter flushes again at exit: to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _innermost(error: BaseException) -> BaseException:
    """Return the first error of a group: errors are printed alike whether or not a task group raised them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def _sigterm_as_interrupt() -> Iterator[list[int]]:
    """Handle SIGTERM like Ctrl-C, which unwinds everything; yield the list of such signals received."""
    signals: list[int] = []

    def terminate(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start background jobs
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, before)
