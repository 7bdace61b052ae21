"""`odradek mirror plan`: what a run would copy where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import odradek as od
from odradek.cli.mirror.options import FILE, needs_mirror
from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_rows

if TYPE_CHECKING:
    from odradek.mirror.planning import PlannedTopic

__all__ = ["plan"]

HEAD = ("topic", "partition", "to", "to_partition", "task", "target")


@click.command(epilog=examples("odradek mirror plan leave07.toml", "odradek mirror plan leave07.toml --json"))
@FILE
@JSON
@needs_mirror
def plan(file: str, as_lines: bool) -> int:
    """Print which partitions a run would copy where. Asks both clusters; changes nothing.

    The exit code is 2 if a run would refuse to copy; standard error has the reasons.
    """
    from odradek.mirror.config import load
    from odradek.mirror.run import plan as decide

    decided = od.run(decide, load(file))
    echo_rows(HEAD, [row for topic in decided.topics for row in _rows(topic)], as_lines)
    if not decided.exactly_once:
        click.echo(
            "odradek: the target has no transactions (0.11): after an error records may be copied twice", err=True
        )
    return 0


def _rows(topic: PlannedTopic) -> list[list[object]]:
    copied = topic.copied
    what = "exists" if topic.create is None else "will be made"
    if topic.grow is not None:
        what = f"will have {topic.grow} partitions"
    return [
        [source.topic, source.name, copied.target, to.partition if copied.rule is None else None, to.task, what]
        for source, to in sorted(copied.partitions.items())
    ]
