"""Options that several commands share, and the parsers of their values."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import Any, NamedTuple

import click

from odradek.cli.connection import CLUSTER, CONNECTION, connection
from odradek.client.options import LARGEST_MESSAGE
from odradek.errors import ConfigError
from odradek.types import EARLIEST, LATEST, AtTime, Position, StartPosition

__all__ = [
    "APPLY",
    "CLUSTER",
    "CONF",
    "COUNT",
    "FORMAT",
    "JSON",
    "MASTER",
    "MAX_MESSAGE",
    "QUIET",
    "TOPIC",
    "Last",
    "clustered",
    "examples",
    "moment",
    "needs_extra",
    "one_topic",
    "start_position",
]

JSON = click.option("--json", "-J", "as_lines", is_flag=True, help="Print JSON, one object per line.")
QUIET = click.option("--quiet", "-q", is_flag=True, help="Print neither progress nor a summary.")
TOPIC = click.option("--topic", "-t", "named", metavar="TOPIC", help="The topic, as an option (for users of kcat).")
COUNT = click.option("--count", "-c", type=click.IntRange(min=0), metavar="N", help="Stop after N messages.")
MAX_MESSAGE = click.option(
    "--max-message-bytes",
    type=click.IntRange(1, (1 << 31) - 1),
    metavar="N",
    help=f"Size limit of a message. Default: {LARGEST_MESSAGE:,}; in 0.7 {4 << 20:,} to read, and 1,000,000 to write: "
    "the default of its brokers, which silently drop larger ones.",
)
FORMAT = click.option(
    "--format",
    "-f",
    metavar="TEXT",
    help="Format of a message: %s value, %S its size, %R its size as 4 bytes, %k key, %K its size, %h headers, "
    "%T timestamp (ms), %t topic, %p partition, %o position, %n next position, %i index in its compressed message "
    "(0.7); \\n \\t \\r \\0 \\xHH. Default: %s\\n",
)
APPLY = click.option("--apply", is_flag=True, help="Do it; without this, print what would be done.")
MASTER = click.option("--master", metavar="URL", help="Spark's master (default: spark-submit's, else local[*]).")


def _setting(text: str) -> tuple[str, str]:
    """Parse `key=value`, as in `spark-submit --conf`. Raises click.BadParameter."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.BadParameter(f"{text!r}: expected key=value, such as spark.executor.memory=2g")
    return key, value


CONF = click.option("--conf", "settings", type=_setting, multiple=True, metavar="KEY=VALUE", help="A Spark setting.")


def examples(*lines: str) -> str:
    """Format the examples at the end of a command's help, one per line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def clustered(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that name a cluster and say how to log in there, and pass the URL as the argument `url`; what
    else they say, `connect` finds in the environment. A signal that ends a change is no silent end of it."""

    @wraps(command)
    def with_url(*arguments: Any, **options: Any) -> int:
        with connection(options) as url:
            try:
                return command(*arguments, url=url, **options)
            except SystemExit:
                if options.get("apply"):
                    click.echo(
                        "odradek: interrupted: what was to be done may have been done, or a part of it", err=True
                    )
                raise

    decorated: Callable[..., int] = with_url
    for option in reversed(CONNECTION):
        decorated = option(decorated)
    return decorated


def needs_extra(extra: str, *packages: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a command raise ConfigError with the extra to install when one of its packages is missing.

    Args:
        extra: Name of the extra.
        packages: Its top-level packages.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def checked(*arguments: Any, **options: Any) -> int:
            try:
                return command(*arguments, **options)
            except ModuleNotFoundError as error:
                missing = (error.name or "").partition(".")[0]
                if missing not in packages:
                    raise
                raise ConfigError(f"{missing} is not installed: pip install 'odradek[{extra}]'") from None

        return checked

    return decorate


def one_topic(argument: str | None, option: str | None) -> str:
    """Return the topic, given as the argument TOPIC or as the option --topic. Raises click.UsageError."""
    if (argument is None) == (option is None):
        raise click.UsageError("exactly one TOPIC is required")
    return argument or option or ""


def moment(text: str) -> float:
    """Parse a time (s since the epoch): `2026-11-21T12:00`, `-15m` (15 minutes ago) or a number of seconds.

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


def start_position(text: str) -> StartPosition | Last:
    """Parse the value of -o: `beginning`, `end`, a position, `-N` (the last N messages) or `@TIME`.

    Raises click.BadParameter.
    """
    if text in _NAMED:
        return _NAMED[text]

    if text.startswith("@"):
        return AtTime(moment(text.removeprefix("@")))
    if not re.fullmatch(r"-?\d{1,99}", text):
        raise click.BadParameter(f"{text!r}: expected beginning, end, a position, -N or @TIME")
    number = int(text)
    return Last(-number) if text.startswith("-") else Position(number)


_NAMED = {"beginning": EARLIEST, "earliest": EARLIEST, "end": LATEST, "latest": LATEST}
