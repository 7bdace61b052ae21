"""The group `odradek mirror` and its verbs."""

from __future__ import annotations

import click

from odradek.cli.mirror.cutover import cutover
from odradek.cli.mirror.groups import groups
from odradek.cli.mirror.plan import plan
from odradek.cli.mirror.run import run
from odradek.cli.mirror.status import status
from odradek.cli.mirror.verify import verify
from odradek.cli.options import examples

__all__ = ["mirror"]


@click.group(
    epilog=examples(
        "odradek mirror plan leave07.toml",
        "odradek mirror run leave07.toml --follow",
        "odradek mirror status leave07.toml --json",
        "odradek mirror verify leave07.toml",
        "odradek mirror groups leave07.toml --apply",
        "odradek mirror cutover leave07.toml --first consumers",
    )
)
def mirror() -> None:
    """Copy topics from a cluster of any release to another one, every record exactly once, and move groups.

    One TOML file says from where, to where and what. The target remembers how far a mirror is.
    """


for command in (plan, run, status, verify, groups, cutover):
    mirror.add_command(command)
