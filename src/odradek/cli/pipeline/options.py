"""Options and helpers that several verbs of `odradek pipeline` share."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from odradek.cli.options import moment, needs_extra
from odradek.errors import ConfigError

if TYPE_CHECKING:
    from odradek.pipeline.config import Pipeline

__all__ = [
    "APPLY",
    "BATCH",
    "FILE",
    "FLOW",
    "SINCE",
    "UNTIL",
    "duration",
    "format_size",
    "load_file",
    "load_flows",
    "needs_pipeline",
    "report_problems",
]

needs_pipeline = needs_extra(
    "pipeline", "deltalake", "fastavro", "pyarrow", "pydantic", "pyspark", "py4j", "tomlkit", "jinja2"
)
"""Decorates every command of a pipeline."""

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
DURATION = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def duration(text: str) -> float:
    """Parse a duration, such as `90s`, `15m`, `12h` or `7d`, to seconds. Raises click.BadParameter."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text, re.ASCII)
    if match is None:
        raise click.BadParameter(f"{text!r}: expected a duration such as 90s, 15m, 12h or 7d")
    return float(match[1]) * DURATION[match[2]]


def report_problems(flow: str, problems: Iterable[str]) -> None:
    """Print what of a flow's logs is not there."""
    for problem in problems:
        click.echo(f"odradek: {flow}: {problem}", err=True)


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
    from odradek.pipeline.report import log_text

    return "-" if size is None else log_text(size, unit)
