"""`odradek pipeline repair`: rebuild lost checkpoints, and remove files that were never committed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from odradek.cli.options import JSON, QUIET, examples
from odradek.cli.output import echo_json
from odradek.cli.pipeline.options import APPLY, FILE, FLOW, load_flows, needs_extra

__all__ = ["repair"]


@click.command(
    epilog=examples("odradek pipeline repair pipeline.toml", "odradek pipeline repair pipeline.toml --apply")
)
@FILE
@FLOW
@APPLY
@JSON
@QUIET
@needs_extra
def repair(file: str, flows: tuple[str, ...], apply: bool, as_lines: bool, quiet: bool) -> int:
    """Rebuild lost checkpoints from the ledger, and remove files that were never committed.

    Afterwards, `run` continues exactly after the newest commit. A checkpoint that does not match is kept under another
    name. Without --apply, only print what would be done, and exit with 1 if there is anything to do.
    """
    from odradek.pipeline.repair import plan_repair
    from odradek.pipeline.repair import repair as apply_repair

    loaded, names = load_flows(file, flows)
    needed = False
    for name in names:
        plan = apply_repair(loaded, name) if apply else plan_repair(loaded, name)
        needed |= plan.needed
        if as_lines:
            fields = asdict(plan) | {
                "checkpoint": str(plan.checkpoint), "orphans": [str(path) for path in plan.orphans],
                "entry": plan.entry.batch if plan.entry else None, "applied": apply,
            }  # fmt: skip
            echo_json(fields)
        elif not quiet:
            _print_plan(plan, apply)
    return 1 if needed and not apply else 0


def _print_plan(plan: Any, applied: bool) -> None:
    created, removed = ("created", "removed") if applied else ("would be created", "would be removed")
    if plan.entry is not None:
        after = f"batch {plan.entry.batch} of the ledger, micro-batch {plan.entry.micro_batch}"
        click.echo(f"{plan.flow}: {plan.checkpoint}: {plan.why}; a new one {created}, to continue after {after}")
    for path in plan.orphans:
        click.echo(f"{plan.flow}: {path}: no entry lists it; {removed}")
    if not plan.needed:
        click.echo(f"{plan.flow}: nothing to repair")
    elif not applied:
        click.echo(f"{plan.flow}: nothing was changed; use --apply to repair")
