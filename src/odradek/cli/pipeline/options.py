"""Options and helpers that several verbs of `odradek pipeline` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from odradek.cli.options import moment
from odradek.errors import ConfigError

if TYPE_CHECKING:
    from odradek.pipeline.config import Pipeline
    from odradek.pipeline.sources import PartitionBacklog

__all__ = [
    "APPLY",
    "BATCH",
    "FILE",
    "FLOW",
    "SINCE",
    "UNTIL",
    "backlog_json",
    "backlog_row",
    "format_size",
    "load_file",
    "load_flows",
    "lost",
    "needs_extra",
]

EXTRA = ("deltalake", "fastavro", "pyarrow", "pydantic", "pyspark", "py4j")
"""Top-level packages of the extra `pipeline`."""

FILE = click.argument("file", metavar="FILE.toml", type=click.Path(dir_okay=False))
FLOW = click.option("--flow", "flows", multiple=True, metavar="NAME", help="Only this flow; can be repeated.")
BATCH = click.option(
    "--batch",
    "numbers",
    multiple=True,
    metavar="N|A:B",
    help="Only these batches, such as 7, 3:9, 3: or :9; can be repeated.",
)
SINCE = click.option("--since", type=moment, metavar="TIME", help="Only batches committed at or after this time.")
UNTIL = click.option("--until", type=moment, metavar="TIME", help="Only batches committed before this time.")
APPLY = click.option("--apply", is_flag=True, help="Apply the changes. Without it, only print them.")


def needs_extra(command: Callable[..., int]) -> Callable[..., int]:
    """Make a command raise ConfigError with the extra to install when one of its packages is missing."""

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


def load_file(file: str) -> Pipeline:
    """Read and check a pipeline file. Raises ConfigError."""
    from odradek.pipeline.config import load

    return load(file)


def load_flows(file: str, flows: Iterable[str]) -> tuple[Pipeline, list[str]]:
    """Read a pipeline file; return it and the chosen flows, or all if `flows` is empty. Raises ConfigError."""
    loaded = load_file(file)
    for name in flows:
        if name not in loaded.flows:
            raise ConfigError(f"{file}: no flow {name!r}; choose from {', '.join(loaded.flows)}")
    return loaded, list(dict.fromkeys(flows)) or list(loaded.flows)


def format_size(size: int | None, unit: str = "bytes") -> str:
    """Format a size of log for people, in its unit; None becomes a dash."""
    from odradek.pipeline import plots

    return "-" if size is None else plots.log_size(size, unit)


def backlog_json(log: PartitionBacklog) -> dict[str, Any]:
    """Return a partition's backlog as an object for JSON."""
    return {
        "topic": log.partition.topic, "partition": log.partition.name, "reached": log.reached,
        "earliest": log.earliest, "latest": log.latest, "waiting": log.waiting, "lost": lost(log),
    }  # fmt: skip


def backlog_row(log: PartitionBacklog) -> list[object]:
    """Return topic, partition, first and last position and size of a partition's backlog."""
    begin = log.earliest if log.reached is None else log.reached
    return [log.partition.topic, log.partition.name, begin, log.latest, log.waiting]


def lost(log: PartitionBacklog) -> str:
    """Describe the data that retention deleted before the pipeline read it; empty if there is none."""
    return "" if log.gap is None else str(log.gap)
