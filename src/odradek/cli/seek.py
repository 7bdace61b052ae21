"""`odradek seek`: other positions for a group."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping

import click

import odradek as od
from odradek.cli.cluster_queries import find_partitions
from odradek.cli.options import APPLY, JSON, Last, clustered, examples, start_position
from odradek.cli.output import echo_failures, echo_json, echo_rows
from odradek.core.admin import PositionChange
from odradek.types import LATEST, Position, StartPosition, TopicPartition

__all__ = ["seek"]

NO_POSITION = "none"

Targets = Mapping[str, StartPosition | None]
"""Partition, as `TOPIC/PARTITION` -> its position; None: none."""


@click.command(
    epilog=examples(
        "odradek seek billing --to beginning",
        "odradek seek billing --to @-1h --topic orders --apply",
        "odradek seek billing --to orders/0=4096,orders/1=none --apply",
        "odradek seek billing --to end --json",
    )
)
@click.argument("group")
@click.option(
    "--to",
    required=True,
    metavar="POSITION",
    help="beginning, end, a number, @TIME, none (delete the position), or TOPIC/PARTITION=POSITION,...",
)
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Only this topic, which GROUP need not have read.",
)
@click.option("--force", is_flag=True, help="Also to a position beyond the end of its partition.")
@APPLY
@JSON
@clustered
def seek(url: str, group: str, to: str, topics: tuple[str, ...], force: bool, apply: bool, as_lines: bool) -> int:
    """Change the positions that GROUP has committed, on all partitions of the topics it has read.

    Without --apply, print what would change. With it, print the command that undoes the change as well. The group must
    have no members meanwhile: they would commit over it. A position beyond the end is refused without --force: no log
    has it, so the next consumer would begin where its own settings say (`reset`, auto.offset.reset).
    """
    targets = _targets(to) if "=" in to else None
    if targets is not None and topics:
        raise click.UsageError("--topic cannot be combined with --to TOPIC/PARTITION=POSITION")
    everywhere = _position(to) if targets is None else None
    changes, failed = od.run(_seek, url, group, targets, everywhere, topics, force, apply)
    _print(changes, as_lines)
    if apply and changes:
        undo = _undo(group, changes)
        echo_json({"undo": undo}) if as_lines else click.echo(f"undo: {undo}")
    elif not apply:
        click.echo("nothing was changed: add --apply", err=True)
    return echo_failures(failed)


def _position(text: str) -> StartPosition | None:
    if text == NO_POSITION:
        return None
    position = start_position(text)
    if isinstance(position, Last):
        raise click.BadParameter(f"{text!r}: expected beginning, end, a position, @TIME or {NO_POSITION}")
    return position


def _targets(text: str) -> Targets:
    targets: dict[str, StartPosition | None] = {}
    for item in text.split(","):
        partition, mark, position = item.strip().rpartition("=")
        if not mark or not re.fullmatch(r".+/(\d+-)?\d+", partition):
            raise click.BadParameter(f"{item.strip()!r}: expected TOPIC/PARTITION=POSITION")
        targets[partition] = _position(position)
    return targets


async def _seek(
    url: str,
    group: str,
    targets: Targets | None,
    everywhere: StartPosition | None,
    topics: Collection[str],
    force: bool,
    apply: bool,
) -> tuple[Mapping[TopicPartition, PositionChange], Mapping[TopicPartition, od.OdradekError]]:
    async with od.connect(url) as k:
        if targets is None:
            wanted = dict.fromkeys(await _partitions(k, group, topics), everywhere)
        else:
            wanted = {await _named(k, name): position for name, position in targets.items()}
        if not force:
            await _refuse_beyond_end(k, wanted)
        results = await k.admin.reset_positions(group, wanted, dry_run=not apply)
    return {p: results.done[p] for p in sorted(results.done)}, results.failed


async def _refuse_beyond_end(k: od.Cluster, wanted: Mapping[TopicPartition, StartPosition | None]) -> None:
    exact = {p: at for p, at in wanted.items() if isinstance(at, int)}
    for topic in {partition.topic for partition in exact}:
        ends = await k.positions(topic, LATEST)
        for partition in exact.keys() & ends.keys():
            if exact[partition] > ends[partition]:
                raise click.ClickException(
                    f"{partition}: {exact[partition]} is beyond the end, {ends[partition]}: the group would continue "
                    "where the settings of its next consumer say; --force commits it nevertheless"
                )


async def _partitions(k: od.Cluster, group: str, topics: Collection[str]) -> list[TopicPartition]:
    """Return the partitions of these topics; none: of those that the group has read."""
    names = topics or {partition.topic for partition in await k.admin.group_positions(group)}
    if not names:
        raise click.ClickException(f"{group}: this group has no committed positions; name topics with --topic")
    return [partition for topic in sorted(names) for partition in await find_partitions(k, topic)]


async def _named(k: od.Cluster, name: str) -> TopicPartition:
    """Return the partition that is called `TOPIC/PARTITION`."""
    topic, _, number = name.rpartition("/")
    for partition in await find_partitions(k, topic):
        if partition.name == number:
            return partition
    raise click.ClickException(f"{name}: there is no such partition")


def _print(changes: Mapping[TopicPartition, PositionChange], as_lines: bool) -> None:
    head = ["topic", "partition", "before", "after", "distance"]
    echo_rows(head, [[p.topic, p.name, c.before, c.after, _distance(c)] for p, c in changes.items()], as_lines)


def _distance(change: PositionChange) -> int | None:
    return None if change.before is None or change.after is None else change.after - change.before


def _undo(group: str, changes: Mapping[TopicPartition, PositionChange]) -> str:
    """Return the command that commits the positions from before."""
    positions = ",".join(f"{partition}={_text(change.before)}" for partition, change in changes.items())
    return shlex.join(["odradek", "seek", group, "--to", positions, "--apply"])


def _text(position: Position | None) -> str:
    return NO_POSITION if position is None else str(position)
