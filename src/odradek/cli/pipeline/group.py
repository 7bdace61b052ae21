"""The group `odradek pipeline` and its verbs."""

from __future__ import annotations

import click

from odradek.cli.options import examples
from odradek.cli.pipeline.accept import accept
from odradek.cli.pipeline.compact import clean, compact
from odradek.cli.pipeline.export import export
from odradek.cli.pipeline.files import files
from odradek.cli.pipeline.lag import lag, plan
from odradek.cli.pipeline.replay import replay
from odradek.cli.pipeline.run import run
from odradek.cli.pipeline.status import status
from odradek.cli.pipeline.verify import verify

__all__ = ["pipeline"]


@click.group(
    epilog=examples(
        "odradek pipeline plan pipeline.toml",
        "odradek pipeline run pipeline.toml",
        "odradek pipeline status pipeline.toml --json",
    )
)
def pipeline() -> None:
    """Turn topics into tables with Spark: Delta or Iceberg, every record exactly once.

    One TOML file says what to read, how to decode it and where to write it. All verbs but `run` work without Spark.
    """


for command in (run, plan, lag, status, verify, files, replay, accept, compact, clean, export):
    pipeline.add_command(command)
