"""The group `odradek mirror` and its verbs."""

from __future__ import annotations

import click

from odradek.cli.mirror.plan import plan
from odradek.cli.mirror.run import run
from odradek.cli.options import examples

__all__ = ["mirror"]


@click.group(epilog=examples("odradek mirror plan leave07.toml", "odradek mirror run leave07.toml --follow"))
def mirror() -> None:
    """Copy topics from a cluster of any release to another one, every record exactly once.

    One TOML file says from where, to where and what. The target remembers how far a mirror is.
    """


for command in (plan, run):
    mirror.add_command(command)
