"""`odradek seek`: other positions for a group."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TextIO

import click

import odradek as od
from odradek.cli.admin import echo_dry_run
from odradek.cli.cluster_queries import PartitionExtent, extents, find_partitions
from odradek.cli.json_records import partition_id
from odradek.cli.options import APPLY, JSON, Last, clustered, examples, start_position
from odradek.cli.output import echo_failures, echo_json, echo_rows
from odradek.core.admin import PositionChange
from odradek.types import Position, StartPosition, TopicPartition

__all__ = ["seek"]

NO_POSITION = "none"

Targets = Mapping[str, StartPosition | None]
"""Partition, as `TOPIC/PARTITION` -> its position; None: none."""
Wanted = Mapping[TopicPartition, StartPosition | None]
Find = Callable[[od.Cluster], Awaitable[Wanted]]
"""Finds out where a group is to continue."""


@click.command(
    epilog=examples(
        "odradek seek billing --to beginning",
        "odradek seek billing --to @-1h --topic orders --apply",
        "odradek seek billing --to orders/0=4096,orders/1=none --apply",
        "odradek seek billing --to end --json",
        "odradek seek billing --shift -100 --apply",
        "odradek seek billing --to-group billing-v1 --apply",
        "odradek lag billing --json > positions.json && odradek seek billing --to-file positions.json --apply",
    )
)
@click.argument("group")
@click.option(
    "--to",
    metavar="POSITION",
    help="beginning, end, a number, @TIME, none (delete the position; 2.4 on), or TOPIC/PARTITION=POSITION,...",
)
@click.option(
    "--shift",
    type=int,
    metavar="N",
    help="N messages on, or back if N is negative, from what is committed, at most to the end or the oldest (0.8 on).",
)
@click.option("--to-group", "other", metavar="GROUP", help="To the positions of this group, where it has some.")
@click.option(
    "--to-file",
    "file",
    type=click.File(encoding="utf-8", errors="replace"),  # the line is refused, with its number
    metavar="FILE",
    help="To the positions in this file, which `odradek lag GROUP --json` has printed; - is standard input.",
)
@click.option(
    "--topic",
    "-t",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Only this topic, which GROUP need not have read.",
)
@click.option("--force", is_flag=True, help="Also to a position that the log of its partition does not have.")
@APPLY
@JSON
@clustered
def seek(
    url: str,
    group: str,
    to: str | None,
    shift: int | None,
    other: str | None,
    file: TextIO | None,
    topics: tuple[str, ...],
    force: bool,
    apply: bool,
    as_lines: bool,
) -> int:
    """Change the positions that GROUP has committed, on all partitions of the topics it has read.

    Without --apply, print what would change. With it, print the command that undoes the change as well. The group must
    have no members meanwhile: they would commit over it. A position beyond the end, or before the beginning, is refused
    without --force: no log has it, so the next consumer would begin where its own settings say (`reset`,
    auto.offset.reset).
    """
    if sum(each is not None for each in (to, shift, other, file)) != 1:
        raise click.UsageError("exactly one of --to, --shift, --to-group and --to-file is required")
    targets = _file_targets(file) if file is not None else _targets(to) if to is not None and "=" in to else None
    if targets is not None and topics:
        raise click.UsageError("--topic cannot be combined with --to TOPIC/PARTITION=POSITION and --to-file")
    find: Find
    if targets is not None:
        find = partial(_find_targets, targets=targets)
    elif shift is not None:
        find = partial(_shifted, group=group, topics=topics, distance=shift)
    elif other is not None:
        find = partial(_committed, group=other, topics=topics)
    else:
        find = partial(_everywhere, group=group, topics=topics, position=_position(to or ""))
    changes, failed, back = od.run(_seek, url, group, find, force, apply)
    if changes or not failed:
        _print(changes, as_lines)
    if back.positions:
        undo = _undo(group, back)
        echo_json({"undo": undo}) if as_lines else click.echo(f"undo: {undo}")
    for why in dict.fromkeys(map(str, back.failed.values())):
        click.echo(f"odradek: this cannot be undone: {why}", err=True)
    echo_dry_run(apply or bool(failed), empty=all(each.before == each.after for each in changes.values()))
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
        if partition in targets:
            raise click.BadParameter(f"{partition} comes twice")
        targets[partition] = _position(position)
    return targets


def _file_targets(file: TextIO) -> Targets:
    """Return the positions that `odradek lag GROUP --json` has printed. Lines without a topic are totals."""
    targets: dict[str, StartPosition | None] = {}
    groups = set()
    for number, line in enumerate(file, 1):
        try:
            row = json.loads(line)
            if "topic" in row:
                position = row["committed"]
                if position is not None and (type(position) is not int or position < 0):
                    raise ValueError(f"{position!r} is no position")
                if (partition := f"{row['topic']}/{row['partition']}") in targets:
                    raise ValueError(f"{partition} comes twice")
                targets[partition] = position
                groups.add(row.get("group"))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            why = f"line {number} is not from `odradek lag GROUP --json`: {error!r}"
            raise click.BadParameter(why, param_hint="--to-file") from None
    if len(groups) != 1:
        raise click.BadParameter("it must have the positions of one group", param_hint="--to-file")
    return targets


class _Back(NamedTuple):
    """How changes can be undone.

    Args:
        positions: The positions from before.
        failed: Partitions where that one cannot be committed again, and why.
        force: True if one of them is outside of its log.
    """

    positions: Mapping[TopicPartition, Position | None]
    failed: Mapping[TopicPartition, od.OdradekError]
    force: bool


async def _seek(
    url: str, group: str, find: Find, force: bool, apply: bool
) -> tuple[Mapping[TopicPartition, PositionChange], Mapping[TopicPartition, od.OdradekError], _Back]:
    """Change positions. Return the changes, what has failed, and how to undo it."""
    async with od.connect(url) as k:
        wanted = await find(k)
        for partition, why in ({} if force else await _outside(k, wanted)).items():
            raise click.ClickException(
                f"{partition}: {wanted[partition]} is {why}: the group would continue where the settings of its next "
                "consumer say; --force commits it nevertheless"
            )
        results = await k.admin.reset_positions(group, wanted, dry_run=not apply)
        back = await _way_back(k, group, results.done) if apply else _Back({}, {}, False)
    return {p: results.done[p] for p in sorted(results.done)}, results.failed, back


async def _way_back(k: od.Cluster, group: str, changes: Mapping[TopicPartition, PositionChange]) -> _Back:
    """Return how to undo changes that were made; what a broker does not say counts as possible, with --force."""
    back = _Back({partition: change.before for partition, change in changes.items()}, {}, True)
    with suppress(od.OdradekError):
        checked = await k.admin.reset_positions(group, back.positions, dry_run=True)
        back = _Back({p: back.positions[p] for p in checked.done}, checked.failed, True)
        back = back._replace(force=bool(await _outside(k, back.positions)))
    return back


async def _outside(k: od.Cluster, positions: Mapping[TopicPartition, object]) -> dict[TopicPartition, str]:
    """Return the partitions whose log does not have the position, and where that is. Only numbers can be outside."""
    exact = {p: at for p, at in positions.items() if isinstance(at, int)}
    known = await _extents_of_topics(k, exact)
    late = {p: f"beyond the end, {known[p].latest}" for p, at in exact.items() if p in known and at > known[p].latest}
    early = {p: at for p, at in exact.items() if p in known and at < known[p].earliest}
    return late | {p: f"before the beginning, {known[p].earliest}" for p in early}


async def _extents_of_topics(
    k: od.Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, PartitionExtent]:
    """Return the extents of all partitions of the topics of these."""
    known: dict[TopicPartition, PartitionExtent] = {}
    for topic in {partition.topic for partition in partitions}:
        known |= await extents(k, topic)
    return known


async def _find_targets(k: od.Cluster, targets: Targets) -> Wanted:
    return {await _named(k, name): position for name, position in targets.items()}


async def _everywhere(k: od.Cluster, group: str, topics: Collection[str], position: StartPosition | None) -> Wanted:
    return dict.fromkeys(await _partitions(k, group, topics), position)


async def _committed(k: od.Cluster, group: str, topics: Collection[str]) -> Mapping[TopicPartition, Position]:
    """Return what a group has committed in these topics; none: in all."""
    positions = await k.admin.group_positions(group)
    chosen = {p: at for p, at in positions.items() if not topics or p.topic in topics}
    if not chosen:
        raise click.ClickException(f"{group}: this group has no committed positions{' in these topics' * bool(topics)}")
    return chosen


async def _shifted(k: od.Cluster, group: str, topics: Collection[str], distance: int) -> Wanted:
    """Return the positions of a group, so many messages further on, within the logs."""
    if k.driver.logs.unit.exact:
        raise click.UsageError("--shift counts messages, and positions of Kafka 0.7 are bytes: use --to")
    committed = await _committed(k, group, topics)
    known = await _extents_of_topics(k, committed)
    if missing := [str(partition) for partition in sorted(committed) if partition not in known]:
        raise click.ClickException(f"no broker leads {', '.join(missing)} now")
    shifted = {p: max(at + distance, known[p].earliest) for p, at in committed.items()}
    return {p: Position(min(at, known[p].latest)) for p, at in shifted.items()}


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
    echo_rows(head, [[p.topic, partition_id(p), c.before, c.after, _distance(c)] for p, c in changes.items()], as_lines)


def _distance(change: PositionChange) -> int | None:
    return None if change.before is None or change.after is None else change.after - change.before


def _undo(group: str, back: _Back) -> str:
    """Return the command that commits the positions from before."""
    positions = ",".join(f"{partition}={_text(back.positions[partition])}" for partition in sorted(back.positions))
    return shlex.join(["odradek", "seek", group, "--to", positions, *["--force"] * back.force, "--apply"])


def _text(position: Position | None) -> str:
    return NO_POSITION if position is None else str(position)
