"""`odradek mirror cutover`: whether consumers and producers can use the target alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import click

import odradek as od
from odradek.cli.mirror.options import FILE, needs_mirror
from odradek.cli.options import JSON, examples
from odradek.cli.output import echo_json

if TYPE_CHECKING:
    from odradek.mirror.cutover import First

__all__ = ["cutover"]


@click.command(
    epilog=examples(
        "odradek mirror cutover leave07.toml --first consumers",
        "odradek mirror cutover leave07.toml --first producers --apply",
    )
)
@FILE
@click.option(
    "--first",
    type=click.Choice(["consumers", "producers"]),
    required=True,
    help="Who moves first: consumers read on the target what is still written on the source; or producers write on the "
    "target what consumers read there once they have moved.",
)
@click.option(
    "--quiet-seconds",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long nothing may be written to the source.",
)
@click.option("--apply", is_flag=True, help="Finish the mirror if nothing is missing: it copies nothing any more.")
@JSON
@needs_mirror
def cutover(file: str, first: str, quiet_seconds: float, apply: bool, as_lines: bool) -> int:
    """Check step by step whether consumers and producers can use the target alone, and say what is missing.

    The exit code is 0 if nothing is missing. A finished mirror cannot be run again; another one may then copy back.
    """
    from odradek.mirror.config import load
    from odradek.mirror.cutover import cutover as examine

    result = od.run(partial(examine, load(file), cast("First", first), apply=apply, quiet_s=quiet_seconds))
    for check in result.checks:
        if as_lines:
            echo_json({"step": check.step, "ok": check.ok, "evidence": check.evidence})
        else:
            click.echo(f"{'done   ' if check.ok else 'MISSING'}  {check.step}: {check.evidence}")
    if result.finished and not as_lines:
        click.echo("done: the mirror is finished; consumers and producers use the target alone")
    return int(not result.ok)
