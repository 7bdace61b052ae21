"""`odradek mirror groups`: groups of the source continue on the target."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

import odradek as od
from odradek.cli.mirror.options import FILE, needs_mirror
from odradek.cli.options import APPLY, JSON, examples
from odradek.cli.output import echo_rows

if TYPE_CHECKING:
    from odradek.mirror.groups import GroupPosition, GroupsResult

__all__ = ["groups"]

HEAD = ("group", "topic", "partition", "committed", "lag", "to", "offset", "to_lag", "match", "decision", "why")


@click.command(
    epilog=examples(
        "odradek mirror groups leave07.toml",
        "odradek mirror groups leave07.toml --apply",
        "odradek mirror groups leave07.toml --apply --follow 10",
    )
)
@FILE
@APPLY
@click.option(
    "--follow",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help="Do it again and again, with this pause, until SIGTERM or Ctrl-C.",
)
@JSON
@needs_mirror
def groups(file: str, apply: bool, follow: float | None, as_lines: bool) -> int:
    """Translate the positions of groups to offsets on the target, and with --apply commit them there.

    A consumer that begins at an offset whose match is `exact` gets the very record that comes next on the source.
    Positions are never written for a group with members on the target, and never behind what it has committed there.

    The exit code is 1 if a group cannot continue on the target: it has had records that are not copied yet, or a
    position that cannot be translated.
    """
    from odradek.mirror.config import load
    from odradek.mirror.groups import groups as translate

    def decided(result: GroupsResult) -> None:
        echo_rows(HEAD, [_row(position) for position in result.positions], as_lines)
        for name in result.silent:
            click.echo(f"odradek: group {name!r} has committed nothing on the source", err=True)

    result = od.run(partial(translate, load(file), apply=apply, follow=follow, decided=decided))
    return int(not result.ok)


def _row(position: GroupPosition) -> list[object]:
    target = None if position.target is None else str(position.target)
    return [
        position.group, position.source.topic, position.source.name, position.committed, position.source_lag, target,
        position.offset, position.target_lag, position.match, position.decision, position.why,
    ]  # fmt: skip
