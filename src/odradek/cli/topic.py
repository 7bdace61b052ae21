"""`odradek topic`: creates, describes, deletes and alters topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

import odradek as od
from odradek.cli.cluster_queries import delete_described
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_rows
from odradek.core.admin import ConfigSource, CreatedTopic, Results, TopicDescription

__all__ = ["topic"]

CONFIG = click.option(
    "--config", "-c", "settings", multiple=True, metavar="NAME=VALUE", help="An entry of the configuration."
)
Rows = list[list[object]]


@click.group(
    epilog=examples(
        "odradek topic create orders --partitions 6 --replicas 3",
        "odradek topic describe orders",
        "odradek topic alter orders --config retention.ms=3600000 --apply",
        "odradek topic delete orders --json",
    )
)
def topic() -> None:
    """Create, describe, delete and alter topics (Kafka 0.10.1 and later).

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
    config = dict(_setting(text) for text in settings)

    async def main() -> Results[str, CreatedTopic]:
        async with od.connect(url) as k:
            return await k.admin.create_topics(names, partitions=partitions, replicas=replicas, config=config)

    results = od.run(main)
    rows: Rows = [[each.name, each.partitions, each.replicas] for each in results.done.values()]
    echo_rows(["topic", "partitions", "replicas"], rows, as_lines)
    return echo_failures(results.failed)


@topic.command(epilog=examples("odradek topic describe orders", "odradek topic describe orders --configs --json"))
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--configs", is_flag=True, help="Print their configurations instead (0.11 and later).")
@JSON
@clustered
def describe(url: str, names: Sequence[str], configs: bool, as_lines: bool) -> int:
    """Print the leader, the replicas, and those in sync, of each partition of TOPICs (0.8 and later)."""

    async def partitions() -> tuple[Rows, Mapping[str, od.OdradekError]]:
        async with od.connect(url) as k:
            described = await k.admin.describe_topics(names)
        parts = [each for topic in described.done.values() for each in topic.partitions]
        rows: Rows = [
            [p.topic, p.name, each.leader, list(each.replicas), list(each.in_sync)]
            for each in parts
            for p in [each.partition]
        ]
        return rows, described.failed

    async def entries() -> tuple[Rows, Mapping[str, od.OdradekError]]:
        async with od.connect(url) as k:
            described = await k.admin.describe_topic_configs(names)
        rows: Rows = [
            [name, each.name, each.value, each.source.name.lower()]
            for name, configuration in described.done.items()
            for each in configuration.values()
        ]
        return rows, described.failed

    rows, failed = od.run(entries if configs else partitions)
    head = ["topic", "entry", "value", "source"] if configs else ["topic", "partition", "leader", "replicas", "in_sync"]
    echo_rows(head, rows, as_lines)
    return echo_failures(failed)


@topic.command(epilog=examples("odradek topic delete orders", "odradek topic delete orders payments --apply"))
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@APPLY
@JSON
@clustered
def delete(url: str, names: Sequence[str], apply: bool, as_lines: bool) -> int:
    """Delete TOPICs with all their records. It cannot be undone; without --apply, print what would be deleted."""

    async def main() -> Results[str, TopicDescription]:
        async with od.connect(url) as k:
            return await delete_described(k.admin.describe_topics, k.admin.delete_topics, names, apply)

    deleted = od.run(main)
    rows: Rows = [[name, len(each.partitions), apply] for name, each in deleted.done.items()]
    echo_rows(["topic", "partitions", "deleted"], rows, as_lines)
    if not apply:
        click.echo("nothing was deleted: add --apply", err=True)
    return echo_failures(deleted.failed)


@topic.command(
    epilog=examples(
        "odradek topic alter orders --partitions 12",
        "odradek topic alter orders -c retention.ms=3600000 --default cleanup.policy --apply",
    )
)
@click.argument("name", metavar="TOPIC")
@click.option("--partitions", "-p", type=click.IntRange(1), metavar="N", help="The number of partitions to reach.")
@CONFIG
@click.option(
    "--default", "-d", "resets", multiple=True, metavar="NAME", help="An entry that goes back to its default."
)
@APPLY
@JSON
@clustered
def alter(
    url: str,
    name: str,
    partitions: int | None,
    settings: Sequence[str],
    resets: Sequence[str],
    apply: bool,
    as_lines: bool,
) -> int:
    """Add partitions to TOPIC, and change its configuration (0.11 and later).

    Without --apply, print what would change; brokers check whether it can. Partitions cannot be removed again, and keys
    may go to other partitions from then on.
    """
    changes: dict[str, str | None] = dict(_setting(text) for text in settings)
    changes |= dict.fromkeys(resets)
    if partitions is None and not changes:
        raise click.UsageError("nothing to alter: give --partitions, --config or --default")
    rows = od.run(_alter, url, name, partitions, changes, apply)
    echo_rows(["topic", "entry", "before", "after"], [[name, *row] for row in rows], as_lines)
    if not apply:
        click.echo("nothing was changed: add --apply", err=True)
    return 0


async def _alter(url: str, name: str, partitions: int | None, changes: Mapping[str, str | None], apply: bool) -> Rows:
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
            rows += [[entry, own.get(entry, "default"), "default" if v is None else v] for entry, v in changes.items()]
            (await k.admin.alter_topic_configs({name: changes}, validate_only=True)).check()
        if apply and partitions is not None:
            (await k.admin.add_partitions({name: partitions})).check()
        if apply and changes:
            (await k.admin.alter_topic_configs({name: changes})).check()
    return rows


def _setting(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE")
    return name, value
