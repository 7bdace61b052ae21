"""`odradek cluster reassign`: moves replicas to other brokers, as a plan says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import anyio
import click

import odradek as od
from odradek.cli.admin import Rows, ask, echo_dry_run
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import as_json, echo_failures, echo_json, echo_rows
from odradek.core.admin import Results
from odradek.core.admin_cluster import Reassignment

__all__ = ["reassign"]

POLL_SECONDS = 1.0
"""Interval of looks at moves in progress, with --wait."""

Targets = Mapping[od.TopicPartition, Sequence[int]]


@click.command(
    epilog=examples(
        "odradek cluster reassign",
        "odradek cluster reassign plan.json",
        "odradek cluster reassign plan.json --apply --wait",
        "odradek cluster reassign plan.json --cancel --apply",
    )
)
@click.argument("plan", required=False, type=click.File("r", encoding="utf-8"), metavar="[PLAN]")
@click.option("--cancel", is_flag=True, help="Cancel the moves of the plan, or all, that are in progress.")
@click.option("--wait", is_flag=True, help="With --apply: return when no move of the plan is in progress any more.")
@APPLY
@JSON
@clustered
def reassign(url: str, plan: TextIO | None, cancel: bool, wait: bool, apply: bool, as_lines: bool) -> int:
    """Move replicas as the file PLAN says, or print the moves that are in progress (2.4 and later).

    PLAN is that of kafka-reassign-partitions.sh, `-` standard input: {"partitions": [{"topic": "orders", "partition":
    0, "replicas": [1, 2]}]}. The first replica becomes the preferred leader. Without --apply, print what would move.
    The last line undoes it.
    """
    if wait and (plan is None or cancel or not apply):
        raise click.UsageError("--wait goes with PLAN and --apply")
    targets = None if plan is None else _read_plan(plan)
    if targets is None or cancel:
        return _in_progress(url, None if targets is None else list(targets), cancel, apply, as_lines)
    before, results = od.run(_move, url, targets, apply)
    rows: Rows = [[p.topic, p.partition, list(before[p]), targets[p]] for p in results.done]
    echo_rows(["topic", "partition", "before", "after"], rows, as_lines)
    if apply and results.done:
        undo = _undo({p: before[p] for p in results.done})
        echo_json({"undo": undo}) if as_lines else click.echo(f"undo: {undo}")
    echo_dry_run(apply, empty=all(list(before[p]) == list(targets[p]) for p in targets))
    code = echo_failures(results.failed)
    if wait and results.done:
        od.run(_wait, url, list(results.done))
    return code


async def _move(url: str, targets: Targets, apply: bool) -> tuple[Targets, Results[od.TopicPartition, None]]:
    """Begin to move replicas if all partitions and brokers exist. Return where they were, or were to be: while a move
    is in progress, a partition has those that it leaves as well."""
    async with od.connect(url) as k:
        known = {broker.id for broker in (await k.admin.describe_cluster()).brokers}
        if unknown := {number for numbers in targets.values() for number in numbers} - known:
            raise click.ClickException(f"no broker has the id {', '.join(map(str, sorted(unknown)))}")
        described = (await k.admin.describe_topics({partition.topic for partition in targets})).check()
        present = {each.partition: each.replicas for topic in described.values() for each in topic.partitions}
        if missing := [str(partition) for partition in targets if partition not in present]:
            raise click.ClickException(f"there is no partition {', '.join(missing)}")
        moves = await k.admin.list_reassignments(list(targets))  # raises Unsupported where none can be made
        removing = {partition: move.removing for partition, move in moves.items()}
        before = {p: [each for each in present[p] if each not in removing.get(p, ())] for p in targets}
        if not apply:
            return before, Results(dict.fromkeys(targets), {})
        return before, await k.admin.reassign_partitions(targets)


async def _wait(url: str, partitions: Sequence[od.TopicPartition]) -> None:
    async with od.connect(url) as k:
        while moves := await k.admin.list_reassignments(partitions):
            waits = sum(bool(move.missing) for move in moves.values())
            click.echo(f"{len(moves)} in progress, {waits} of them not in sync", err=True)
            await anyio.sleep(POLL_SECONDS)


def _in_progress(
    url: str, partitions: Sequence[od.TopicPartition] | None, cancel: bool, apply: bool, as_lines: bool
) -> int:
    """Print moves that are in progress, and cancel them if asked to."""
    moves = ask(url, lambda admin: admin.list_reassignments(partitions))
    failed: Mapping[od.TopicPartition, od.OdradekError] = {}
    if cancel and apply and moves:
        failed = ask(url, lambda admin: admin.cancel_reassignments(moves)).failed
    head = ["topic", "partition", "replicas", "adding", "removing", "missing", "cancelled"]
    rows = [[*_move_row(p, move), apply and p not in failed] for p, move in sorted(moves.items())]
    width = len(head) if cancel else len(head) - 1
    echo_rows(head[:width], [row[:width] for row in rows], as_lines)
    if cancel:
        echo_dry_run(apply, "cancelled", empty=not moves)
    return echo_failures(failed)


def _move_row(partition: od.TopicPartition, move: Reassignment) -> list[object]:
    brokers = [list(each) for each in (move.replicas, move.adding, move.removing, move.missing)]
    return [partition.topic, partition.partition, *brokers]


def _undo(before: Targets) -> str:
    """Return the command that moves replicas back."""
    parts = [{"topic": p.topic, "partition": p.partition, "replicas": list(each)} for p, each in before.items()]
    plan = shlex.quote(as_json({"version": 1, "partitions": parts}))
    return f"echo {plan} | odradek cluster reassign - --apply"


# ---- the plan -----------------------------------------------------------------------------------------------


def _read_plan(file: TextIO) -> Targets:
    """Return partition -> brokers. Raises ConfigError with the place of a mistake."""
    try:
        plan = json.load(file)
    except json.JSONDecodeError as error:
        raise od.ConfigError(f"{file.name}:{error.lineno}: not JSON: {error.msg}") from None
    except UnicodeDecodeError:
        raise od.ConfigError(f"{file.name}: not JSON: it is not UTF-8") from None
    parts = plan.get("partitions") if isinstance(plan, dict) else None
    if not isinstance(parts, list) or not parts:
        raise od.ConfigError(
            f"{file.name}: partitions: must be a list of moves, as kafka-reassign-partitions.sh has it"
        )
    targets: dict[od.TopicPartition, Sequence[int]] = {}
    for number, part in enumerate(parts):
        try:
            partition, replicas = _read_move(part)
        except ValueError as error:
            raise od.ConfigError(f"{file.name}: partitions[{number}]: {error}") from None
        if partition in targets:
            raise od.ConfigError(f"{file.name}: partitions[{number}]: {partition} comes twice")
        targets[partition] = replicas
    return targets


def _read_move(part: Any) -> tuple[od.TopicPartition, Sequence[int]]:
    if not isinstance(part, dict):
        raise ValueError("must be an object with topic, partition and replicas")
    topic, partition, replicas = part.get("topic"), part.get("partition"), part.get("replicas")
    if not isinstance(topic, str) or not topic:
        raise ValueError("topic: must be a name")
    if not isinstance(partition, int) or not _is_count(partition):
        raise ValueError("partition: must be a number")
    if not isinstance(replicas, list) or not replicas or not all(map(_is_count, replicas)):
        raise ValueError("replicas: must be a list of ids of brokers")
    if len(set(replicas)) < len(replicas):
        raise ValueError("replicas: a broker comes twice")
    if part.get("log_dirs", "any") not in ("any", ["any"] * len(replicas)):
        raise ValueError("log_dirs: must be `any` for each: kafka-reassign-partitions.sh moves between directories")
    return od.TopicPartition(topic, partition), replicas


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
