"""The group of all commands, and the handling of errors, signals and exit codes that they share."""

from __future__ import annotations

import os
import signal
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

import odradek
from odradek import engine

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["cli", "run"]


VERBS: Mapping[str, tuple[str, str]] = {
    "acl": ("acl", "List, add and remove entries of access control (0.11 and later; patterns 2.0 and later)."),
    "broker": ("broker", "Run a broker for tests, of any release of Kafka, until Ctrl-C."),
    "cat": ("cat", "Print the messages of TOPICs, from the beginning to their current ends."),
    "cluster": (
        "cluster",
        "Describe and change a cluster: brokers, their configurations and directories, replicas, leaders, features.",
    ),
    "demo": (
        "demo.command",
        "Write a million messages, read them with a group that loses a member, put them into a table, count them all.",
    ),
    "doctor": (
        "doctor",
        "Find out why a cluster cannot be reached, a group rebalances or falls behind, or a producer is slow.",
    ),
    "explain": (
        "doctor",
        "Explain NAME: a cause that `doctor` names, an error of odradek, or an error code of brokers.",
    ),
    "group": ("group", "List, describe and delete groups."),
    "lag": (
        "lag",
        "Print the lag of GROUP on each partition (in messages; in Kafka 0.7: bytes), or the total of every group.",
    ),
    "log": (
        "log",
        "Print, list, dump or verify segment files and log directories of a broker, of 0.7 and of 0.8 to 4.x.",
    ),
    "ls": ("ls", "List topics, or the partitions of TOPIC with their brokers, positions and sizes."),
    "mirror": (
        "mirror.group",
        "Copy topics from a cluster of any release to another one, every record exactly once, and move groups.",
    ),
    "offsets": (
        "offsets",
        "Print the oldest position and the end of each partition of TOPIC, or its position at TIME.",
    ),
    "pipeline": ("pipeline.group", "Turn topics into tables with Spark: Delta or Iceberg, every record exactly once."),
    "put": ("put", "Write the lines of FILEs, or of standard input, to TOPIC."),
    "quotas": ("quotas", "List, set and remove quotas of clients (2.6 and later)."),
    "seek": ("seek", "Change the positions that GROUP has committed, on all partitions of the topics it has read."),
    "topic": ("topic", "Create, describe, delete and alter topics, and delete their records (Kafka 0.10.1 and later)."),
    "transactions": ("transactions", "List, describe and abort transactions (3.0 and later)."),
    "users": (
        "users",
        "List users that log in by SCRAM, set and remove their passwords (2.7 and later; in KRaft mode 3.5).",
    ),
}
"""Name of each command -> its module in this package, and the first sentence of its help: a list of commands imports
none of them."""

COMPLETION_WIDTH = 100
"""Characters of the help beside a name that a shell completes."""


class _Commands(UserDict[str, Any]):
    """Commands by name. The module of one is imported when the command is asked for."""

    def __getitem__(self, name: str) -> click.Command:
        if self.data[name] is None:
            self.data[name] = getattr(import_module(f"odradek.cli.{VERBS[name][0]}"), name)
        command: click.Command = self.data[name]
        return command


class _Group(click.Group):
    """A group that imports the command that is run, and no other. Commands succeed when the reader of their output
    closes the pipe; click's exit code would be 1."""

    def _short_help(self, name: str, limit: int) -> str:
        command = click.Command(name, help=VERBS[name][1]) if name in VERBS else self.commands[name]
        return command.get_short_help_str(limit)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of commands and the beginnings of their helps."""
        names = self.list_commands(context)
        limit = formatter.width - 6 - max(map(len, names))
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._short_help(name, limit)) for name in names])

    def shell_complete(self, context: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, and options, that begin like this."""
        from click.shell_completion import CompletionItem

        names = [name for name in self.list_commands(context) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._short_help(name, COMPLETION_WIDTH)) for name in names]
        return [*commands, *click.Command.shell_complete(self, context, incomplete)]

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            return _output_closed()


@click.group(
    cls=_Group,
    commands=_Commands(dict.fromkeys(VERBS)),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Name the cluster with --cluster, ODRADEK_CLUSTER or --profile. Every command has examples in its --help.",
)
@click.version_option(odradek.__version__, message=f"odradek %(version)s (engine: {engine.active.NAME})")
def cli() -> None:
    """Inspect, read, write and look after Kafka clusters of any version, turn topics into tables, run test brokers."""


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
