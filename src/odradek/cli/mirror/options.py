"""Options and helpers that several verbs of `odradek mirror` share."""

from __future__ import annotations

import click

from odradek.cli.options import needs_extra

__all__ = ["FILE", "needs_mirror"]

FILE = click.argument("file", metavar="FILE.toml", type=click.Path(dir_okay=False))

needs_mirror = needs_extra("mirror", "jinja2", "pydantic", "tomlkit")
"""Decorates every command of a mirror."""
