"""`odradek topic`: creates, describes, deletes and alters topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

import odradek as od
from odradek.cli.admin import (
    APPEND,
    SUBTRACT,
    Rows,
    ask,
    change_text,
    config_changes,
    describe_topics,
    echo_dry_run,
    named_partitions,
    setting,
    topics_or_all,
    unchanged,
)
from odradek.cli.cluster_queries import delete_described
from odradek.cli.options import APPLY, JSON, Last, clustered, examples, start_position
from odradek.cli.output import echo_failures, echo_rows
from odradek.core.admin import (
    ConfigChange,
    ConfigSource,
    PartitionDescription,
    Results,
)
from odradek.types import EARLIEST, LATEST, AtTime, Position, PositionSpec, StartPosition, TopicPartition

__all__ = ["topic"]

CONFIG = click.option(
    "--config", "-c", "settings", multiple=True, metavar="NAME=VALUE", help="An entry of the configuration."
)


@click.group(
    epilog=examples(
        "odradek topic create orders --partitions 6 --replicas 3",
        "odradek topic describe orders",
        "odradek topic alter orders --config retention.ms=3600000 --apply",
        "odradek topic delete orders --json",
    )
)
def topic() -> None:
    """Create, describe, delete and alter topics, and delete their records (Kafka 0.10.1 and later).

    Older brokers create a topic when it is written to.
    """


@topic.command(
    epilog=examples(
        "odradek topic create orders",
        "odradek topic create orders payments -p 6 -r 3 -c retention.ms=3600000 -c cleanup.policy=compact",
    )
)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--partitions", "-p", type=click.IntRange(1), metavar="N", help="Default: the brokers' (2.4 and later).")
@click.option("--replicas", "-r", type=click.IntRange(1), metavar="N", help="Default: the brokers' (2.4 and later).")
@CONFIG
@JSON
@clustered
def create(
    url: str,
    names: Sequence[str],
    partitions: int | None,
    replicas: int | None,
    settings: Sequence[str],
    as_lines: bool,
) -> int:
    """Create TOPICs that are alike."""
    config = dict(setting(text) for text in settings)

    results = ask(
        url, lambda admin: admin.create_topics(names, partitions=partitions, replicas=replicas, config=config)
    )
    # Brokers before 2.4 do not say the numbers, and take no others than those that are given.
    rows: Rows = [
        [each.name, each.partitions or partitions, each.replicas or replicas] for each in results.done.values()
    ]
    echo_rows(["topic", "partitions", "replicas"], rows, as_lines)
    return echo_failures(results.failed)


@topic.command(
    epilog=examples(
        "odradek topic describe orders",
        "odradek topic describe orders --configs --json",
        "odradek topic describe --unhealthy || page-on-call",
    )
)
@click.argument("names", nargs=-1, metavar="[TOPIC]...")
@click.option("--configs", is_flag=True, help="Print their configurations instead (0.11 and later).")
@click.option(
    "--unhealthy",
    is_flag=True,
    help="Print only partitions without a leader, or with replicas that are not in sync; exit with 1 if there are any.",
)
@JSON
@clustered
def describe(url: str, names: Sequence[str], configs: bool, unhealthy: bool, as_lines: bool) -> int:
    """Print the leader, the replicas, and those in sync, of each partition of TOPICs, or of all (0.8 and later).

    The state is `leaderless` if no broker leads it, and `under-replicated` if a replica is not in sync.
    """
    if unhealthy and configs:
        raise click.UsageError("--unhealthy cannot be combined with --configs")

    async def partitions() -> tuple[Rows, Mapping[str, od.OdradekError]]:
        async with od.connect(url) as k:
            described = await (
                describe_topics(k, names) if unhealthy else k.admin.describe_topics(await topics_or_all(k, names))
            )
        parts = [each for topic in described.done.values() for each in topic.partitions]
        rows: Rows = [
            [p.topic, p.partition, each.leader, list(each.replicas), list(each.in_sync), state]
            for each in parts
            for p, state in [(each.partition, _state(each))]
            if not unhealthy or state != "ok"
        ]
        return rows, described.failed

    async def entries() -> tuple[Rows, Mapping[str, od.OdradekError]]:
        async with od.connect(url) as k:
            described = await k.admin.describe_topic_configs(await topics_or_all(k, names))
        rows: Rows = [
            [name, each.name, each.value, each.source.name.lower()]
            for name, configuration in described.done.items()
            for each in configuration.values()
        ]
        return rows, described.failed

    rows, failed = od.run(entries if configs else partitions)
    head = ["topic", "partition", "leader", "replicas", "in_sync", "state"]
    echo_rows(["topic", "entry", "value", "source"] if configs else head, rows, as_lines)
    return echo_failures(failed) or int(unhealthy and bool(rows))


def _state(partition: PartitionDescription) -> str:
    if partition.leader is None:
        return "leaderless"
    return "ok" if set(partition.replicas) <= set(partition.in_sync) else "under-replicated"


@topic.command(epilog=examples("odradek topic delete orders", "odradek topic delete orders payments --apply"))
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@APPLY
@JSON
@clustered
def delete(url: str, names: Sequence[str], apply: bool, as_lines: bool) -> int:
    """Delete TOPICs with all their records. It cannot be undone; without --apply, print what would be deleted."""

    deleted = ask(url, lambda admin: delete_described(admin.describe_topics, admin.delete_topics, names, apply))
    rows: Rows = [[name, len(each.partitions), apply] for name, each in deleted.done.items()]
    echo_rows(["topic", "partitions", "deleted"], rows, as_lines)
    echo_dry_run(apply or not rows, "deleted")
    return echo_failures(deleted.failed)


@topic.command(
    epilog=examples(
        "odradek topic alter orders --partitions 12",
        "odradek topic alter orders -c retention.ms=3600000 --default cleanup.policy --apply",
        "odradek topic alter orders --append cleanup.policy=compact --apply",
    )
)
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", "-p", type=click.IntRange(1), metavar="N", help="The number of partitions to reach.")
@CONFIG
@click.option(
    "--default", "-d", "resets", multiple=True, metavar="NAME", help="An entry that goes back to its default."
)
@APPEND
@SUBTRACT
@APPLY
@JSON
@clustered
def alter(
    url: str,
    name: str,
    partitions: int | None,
    settings: Sequence[str],
    resets: Sequence[str],
    appended: Sequence[str],
    subtracted: Sequence[str],
    apply: bool,
    as_lines: bool,
) -> int:
    """Add partitions to TOPIC, and change its configuration (0.11 and later).

    Without --apply, print what would change; brokers check whether it can. Partitions cannot be removed again, and keys
    may go to other partitions from then on.
    """
    changes = config_changes(settings, resets, appended, subtracted)
    if partitions is None and not changes:
        raise click.UsageError("nothing to alter: give --partitions, --config, --default, --append or --subtract")
    rows = od.run(_alter, url, name, partitions, changes, apply)
    echo_rows(["topic", "entry", "before", "after"], [[name, *row] for row in rows], as_lines)
    echo_dry_run(apply, empty=unchanged(rows))
    return 0


async def _alter(url: str, name: str, partitions: int | None, changes: Mapping[str, ConfigChange], apply: bool) -> Rows:
    """Check all changes before any of them is made."""
    rows: Rows = []
    async with od.connect(url) as k:
        if partitions is not None:
            before = (await k.admin.describe_topics(name)).check()[name]
            rows.append(["partitions", len(before.partitions), partitions])
            (await k.admin.add_partitions({name: partitions}, validate_only=True)).check()
        if changes:
            entries = (await k.admin.describe_topic_configs(name)).check()[name]
            own = {entry.name: entry.value for entry in entries.values() if entry.source is ConfigSource.TOPIC}
            rows += [[entry, own.get(entry, "default"), change_text(change)] for entry, change in changes.items()]
            (await k.admin.alter_topic_configs({name: changes}, validate_only=True)).check()
        if apply and partitions is not None:
            (await k.admin.add_partitions({name: partitions})).check()
        if apply and changes:
            (await k.admin.alter_topic_configs({name: changes})).check()
    return rows


@topic.command(
    name="delete-records",
    epilog=examples(
        "odradek topic delete-records orders --before @-7d",
        "odradek topic delete-records orders/3 --before 4096 --apply",
        "odradek topic delete-records scratch --before end --json --apply",
    ),
)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC[/PARTITION]...")
@click.option(
    "--before", "-o", required=True, metavar="POSITION", help="The first that is kept: end, a number, or @TIME."
)
@APPLY
@JSON
@clustered
def delete_records(url: str, names: Sequence[str], before: str, apply: bool, as_lines: bool) -> int:
    """Delete the oldest records of partitions (0.11 and later). It cannot be undone; without --apply, print where their
    logs would begin."""
    at = start_position(before)
    if isinstance(at, Last) or at is EARLIEST:
        raise click.BadParameter(f"{before!r}: expected end, a number or @TIME", param_hint="--before")
    rows, failed = od.run(_delete_records, url, names, at, apply)
    echo_rows(["topic", "partition", "begins", "will_begin"], rows, as_lines)
    echo_dry_run(apply, "deleted", empty=unchanged(rows))
    return echo_failures(failed)


async def _delete_records(
    url: str, names: Sequence[str], at: StartPosition, apply: bool
) -> tuple[Rows, Mapping[TopicPartition, od.OdradekError]]:
    async with od.connect(url) as k:
        await k.admin.delete_records({})  # raises Unsupported where no records can be deleted
        partitions = await named_partitions(k, names)
        begins, ends = await _positions(k, partitions, EARLIEST), await _positions(k, partitions, LATEST)
        wanted = dict.fromkeys(partitions, Position(at)) if isinstance(at, int) else await _positions(k, partitions, at)
        if beyond := [f"{p}: {wanted[p]} is beyond the end, {ends[p]}" for p in partitions if wanted[p] > ends[p]]:
            raise click.ClickException("; ".join(beyond))
        planned = {p: max(begins[p], wanted[p]) for p in partitions}
        results = await k.admin.delete_records(planned) if apply else Results(planned, {})
        return [[p.topic, p.partition, begins[p], each] for p, each in sorted(results.done.items())], results.failed


async def _positions(
    k: od.Cluster, partitions: Sequence[TopicPartition], at: PositionSpec | AtTime
) -> Mapping[TopicPartition, Position]:
    """Return where `at` is in each partition. Raises click.ClickException for one that no broker leads."""
    positions: dict[TopicPartition, Position] = {}
    for topic in {partition.topic for partition in partitions}:
        positions |= await k.positions(topic, at)
    if missing := [str(partition) for partition in partitions if partition not in positions]:
        raise click.ClickException(f"no broker leads {', '.join(missing)} now")
    return positions
