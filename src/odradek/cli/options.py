"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from odradek.types import EARLIEST, LATEST, AtTime, Position, StartPosition

__all__ = ["BROKERS", "CLUSTER", "COUNT", "FORMAT", "JSON", "QUIET", "Last", "clustered", "examples", "moment", "place"]

JSON = click.option("--json", "-J", "as_lines", is_flag=True, help="Print JSON, one object a line.")
QUIET = click.option("--quiet", "-q", is_flag=True, help="Neither progress nor a summary.")
COUNT = click.option("--count", "-c", type=click.IntRange(min=0), metavar="N", help="Stop after N messages.")
FORMAT = click.option(
    "--format",
    "-f",
    metavar="TEXT",
    help="How to print a message: %s value, %S its size, %k key, %K its size, %t topic, %p partition, %o position, "
    "%n next position, %i index in its wrapper; \\n \\t \\r \\0 \\xHH. Default: %s\\n",
)
CLUSTER = click.option(
    "--cluster",
    envvar="ODRADEK_CLUSTER",
    metavar="URL",
    help="kafka07+zk://ZOOKEEPER,.../CHROOT or kafka07://BROKER,... (default: $ODRADEK_CLUSTER).",
)
BROKERS = click.option(
    "--brokers", "-b", metavar="HOST:PORT,...", help="Brokers, without ZooKeeper: short for --cluster kafka07://..."
)


def examples(*lines: str) -> str:
    """The examples at the end of a command's help, one a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def clustered(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options --cluster and -b, and pass it what they come to as the argument `url`."""

    @wraps(command)
    def with_url(*arguments: Any, cluster: str | None, brokers: str | None, **options: Any) -> int:
        return command(*arguments, url=_url(cluster, brokers), **options)

    return CLUSTER(BROKERS(with_url))


def _url(cluster: str | None, brokers: str | None) -> str:
    if brokers and click.get_current_context().get_parameter_source("cluster") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--cluster and --brokers say the same thing twice: give one")
    if brokers:
        return f"kafka07://{brokers}"
    if not cluster:
        raise click.UsageError("no cluster: give --cluster URL (or -b HOST:PORT), or set ODRADEK_CLUSTER")
    return cluster


def moment(text: str) -> float:
    """A time as seconds since the epoch, from `2026-11-21T12:00`, `-15m` (that long ago) or a number of seconds.

    A time without a zone is local. Raises click.BadParameter.
    """
    if match := re.fullmatch(r"-(\d+(?:\.\d+)?)([smhd])", text):
        return time.time() - float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise click.BadParameter(f"{text!r}: expected 2026-11-21T12:00, -15m, or seconds since the epoch") from None


class Last(NamedTuple):
    """The last `messages` of every partition."""

    messages: int


def place(text: str) -> StartPosition | Last:
    """Where to begin, as -o says it: `beginning`, `end`, a position, `-N` (the last N messages) or `@TIME`."""
    if text in _NAMED:
        return _NAMED[text]
    if text.startswith("@"):
        return AtTime(moment(text.removeprefix("@")))
    if not re.fullmatch(r"-?\d+", text):
        raise click.BadParameter(f"{text!r}: expected beginning, end, a position, -N or @TIME")
    number = int(text)
    return Last(-number) if text.startswith("-") else Position(number)


_NAMED = {"beginning": EARLIEST, "earliest": EARLIEST, "end": LATEST, "latest": LATEST}
