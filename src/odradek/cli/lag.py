"""`odradek lag`: the distance of a consumer group from the end of its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import anyio
import click

import odradek as od
from odradek.cli.json_records import partition_id
from odradek.cli.options import JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_json, table
from odradek.client.group_lag import group_lag
from odradek.core.admin import GroupDescription, MemberDescription, PartitionLag
from odradek.types import Position, TopicPartition

__all__ = ["GroupLag", "lag"]

WATCH_SECONDS = 2.0


class GroupLag(NamedTuple):
    """The lag of a group.

    Args:
        rows: Its partitions.
        described: The group; None: the cluster does not describe groups.
        leaderless: Partitions of its topics that are not in `rows`, as no broker leads them now -> the position that
            the group has committed; None: none.
    """

    rows: Mapping[TopicPartition, PartitionLag]
    described: GroupDescription | None
    leaderless: Mapping[TopicPartition, Position | None] = MappingProxyType({})

    @property
    def total(self) -> int:
        """The sum of all partitions."""
        return sum(row.lag for row in self.rows.values())

    def of_member(self, member_id: str) -> int:
        """Return the lag of the partitions of one member."""
        return sum(row.lag for row in self.rows.values() if row.member == member_id)

    def member(self, partition: TopicPartition) -> MemberDescription | None:
        """Return the member that has a partition."""
        members = () if self.described is None else self.described.members
        return next((each for each in members if partition in each.partitions), None)

    @property
    def state(self) -> dict[str, object]:
        """The state of the group and the number of its members; None: not known."""
        if self.described is None:
            return {"state": None, "members": None}
        return {"state": self.described.state, "members": len(self.described.members)}


Lags = Mapping[str, GroupLag]


@click.command(
    epilog=examples(
        "odradek lag",
        "odradek lag billing",
        "odradek lag billing --watch",
        "odradek lag billing --fail-over 1000000 || page-on-call",
        "odradek lag billing --json > positions.json",
    )
)
@click.argument("group", required=False)
@click.option("--watch", is_flag=True, help="Print again every two seconds, until Ctrl-C.")
@click.option("--fail-over", type=click.IntRange(min=0), metavar="N", help="Exit with 1 if a group's lag exceeds N.")
@JSON
@clustered
def lag(url: str, group: str | None, watch: bool, fail_over: int | None, as_lines: bool) -> int:
    """Print the lag of GROUP on each partition (in messages; in Kafka 0.7: bytes), or the total of every group.

    Brokers of 0.9 and 0.10.0 list no group without members: name it.

    It names the member that has each partition, its client and host, and the state of the group. What --json prints of
    GROUP can be restored by `odradek seek --to-file`. Exits with 1 if a partition has no leader: its lag is not known.
    """
    return od.run(_lag, url, group, watch, fail_over, as_lines)


async def _lag(url: str, group: str | None, watch: bool, limit: int | None, as_lines: bool) -> int:
    async with od.connect(url) as k:
        while True:
            lags, failed = ({group: await _group_lag(k, group)}, {}) if group is not None else await _all_lags(k)
            if group is not None and not (lags[group].rows or lags[group].leaderless):
                raise click.ClickException(f"{group}: this group has no committed positions")
            _print(lags, group is None, as_lines, clear=watch)
            _warn(lags)
            code = echo_failures(failed) or int(any(each.leaderless for each in lags.values()))
            if limit is not None and any(each.total > limit for each in lags.values()):
                return 1
            if not watch:
                return code
            await anyio.sleep(WATCH_SECONDS)


async def _all_lags(k: od.Cluster) -> tuple[Lags, Mapping[str, od.OdradekError]]:
    """Return the lag of each group; one that cannot be read, or only in part, keeps no other from being printed."""
    lags: dict[str, GroupLag] = {}
    failed: dict[str, od.OdradekError] = {}
    for group in await k.driver.groups():
        try:
            lags[group] = await _group_lag(k, group)
        except od.OdradekError as error:
            failed[group] = error
    return lags, failed


async def _group_lag(k: od.Cluster, group: str) -> GroupLag:
    positions = await k.admin.group_positions(group)
    rows = await group_lag(k.driver, group, positions)
    topics = sorted({partition.topic for partition in positions})
    leaderless = {p: positions.get(p) for topic in topics for p in await k.partitions(topic) if p not in rows}
    try:
        described = (await k.admin.describe_groups(group)).done.get(group)
    except od.Unsupported:
        described = None
    return GroupLag(rows, described, leaderless)


def _warn(lags: Lags) -> None:
    for group, each in lags.items():
        for partition, row in each.rows.items():
            if row.committed is not None and row.committed > row.end:
                click.echo(f"{group}: {partition}: {row.committed} is beyond the end, {row.end}", err=True)
        if each.leaderless:
            names = ", ".join(map(str, each.leaderless))
            click.echo(f"{group}: no broker leads {names} now: the lag there is not known", err=True)


def _print(lags: Lags, totals_only: bool, as_lines: bool, *, clear: bool) -> None:
    totals = {group: each for group, each in lags.items() if each.rows}
    if as_lines:
        for group, each in {} if totals_only else lags.items():
            for row in [*_rows(each), *_leaderless_rows(each)]:
                echo_json({"group": group, **row})
        for group, each in totals.items():
            echo_json({"group": group, **each.state, "lag": each.total})
        return
    if clear:
        click.clear()  # does nothing unless standard output is a terminal
    if totals_only:
        lines = [[group, *map(_or_dash, each.state.values()), each.total] for group, each in totals.items()]
        click.echo(table(["group", "state", "members", "lag"], lines))
        return
    for each in totals.values():
        _print_partitions(each)


def _rows(group: GroupLag) -> list[dict[str, object]]:
    return [_row(group, p, row.committed, row.end, row.lag) for p, row in group.rows.items()]


def _leaderless_rows(group: GroupLag) -> list[dict[str, object]]:
    return [_row(group, partition, committed, None, None) for partition, committed in group.leaderless.items()]


def _row(
    group: GroupLag, partition: TopicPartition, committed: Position | None, end: Position | None, lag: int | None
) -> dict[str, object]:
    member = group.member(partition)
    return {
        "topic": partition.topic,
        "partition": partition_id(partition),
        "committed": committed,
        "end": end,
        "lag": lag,
        "member": None if member is None else member.member_id,
        "client": None if member is None else member.client_id,
        "host": None if member is None else member.host,
    }


def _print_partitions(group: GroupLag) -> None:
    """Print the partitions of one group, with its members if it has any."""
    rows = _rows(group)
    head = [*rows[0]][: None if any(row["member"] for row in rows) else 5]
    click.echo(table(head, [[_or_dash(row[name]) for name in head] for row in rows]))
    state = "" if group.described is None else f", {group.described.state}"
    click.echo(f"total {group.total}{state}")


def _or_dash(value: object) -> object:
    return "-" if value is None else value
