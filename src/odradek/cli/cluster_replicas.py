"""`odradek cluster log-dirs` and `odradek cluster elect`: where replicas are, and which of them lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

import odradek as od
from odradek.cli.admin import Rows, ask, describe_topics, echo_dry_run, named_partitions
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_rows
from odradek.core.admin import PartitionDescription, Results
from odradek.core.admin_cluster import LogDirectory

__all__ = ["elect", "log_dirs"]


@click.command(
    name="log-dirs",
    epilog=examples(
        "odradek cluster log-dirs",
        "odradek cluster log-dirs 1 2 --json",
        "odradek cluster log-dirs --topic orders",
    ),
)
@click.argument("brokers", nargs=-1, type=click.IntRange(0), metavar="[BROKER]...")
@click.option("--topic", "-t", "topics", multiple=True, metavar="TOPIC", help="Print the replicas of this topic.")
@click.option("--replicas", is_flag=True, help="Print all replicas.")
@JSON
@clustered
def log_dirs(url: str, brokers: Sequence[int], topics: Sequence[str], replicas: bool, as_lines: bool) -> int:
    """Print the log directories of all brokers, or of BROKERs: the size of the volume and what is free (3.3 and later),
    what replicas take (bytes; 1.0 and later). The exit code is 1 if a directory has failed.
    """
    described = ask(url, lambda admin: admin.describe_log_dirs(brokers or None))
    directories = [(broker, each) for broker, known in sorted(described.done.items()) for each in known]
    if topics or replicas:
        head = ["broker", "path", "topic", "partition", "size", "lag", "future"]
        echo_rows(head, [row for each in directories for row in _replica_rows(*each, topics)], as_lines)
    else:
        head = ["broker", "path", "state", "total", "free", "replicas", "size"]
        echo_rows(head, [_directory_row(*each) for each in directories], as_lines)
    failed = {(broker, each.path): each.error for broker, each in directories if each.error is not None}
    return echo_failures({**described.failed, **failed})


def _replica_rows(broker: int, directory: LogDirectory, topics: Sequence[str]) -> Rows:
    return [
        [broker, directory.path, p.topic, p.partition, each.size, each.lag, each.is_future]
        for p, each in sorted(directory.replicas.items())
        if not topics or p.topic in topics
    ]


def _directory_row(broker: int, directory: LogDirectory) -> list[object]:
    state = "failed" if directory.error else "cordoned" if directory.is_cordoned else "ok"
    size = sum(each.size for each in directory.replicas.values())
    space = [directory.total_bytes, directory.usable_bytes]
    return [broker, directory.path, state, *space, len(directory.replicas), size]


@click.command(
    epilog=examples(
        "odradek cluster elect",
        "odradek cluster elect orders payments/3 --apply",
        "odradek cluster elect orders --unclean --apply",
    )
)
@click.argument("names", nargs=-1, metavar="[TOPIC[/PARTITION]]...")
@click.option(
    "--unclean",
    is_flag=True,
    help="Partitions without a leader: let any replica lead. Records that it lacks are lost (2.4 and later).",
)
@APPLY
@JSON
@clustered
def elect(url: str, names: Sequence[str], unclean: bool, apply: bool, as_lines: bool) -> int:
    """Let the preferred replica lead each partition that another one leads (2.2 and later).

    It is about all partitions, or about those that are named. Without --apply, print what would be elected.
    """
    chosen, results = od.run(_elect, url, names, unclean, apply)
    rows: Rows = [
        [p.topic, p.partition, each.leader, each.replicas[0], list(each.in_sync), results.done.get(p, False)]
        for p, each in chosen.items()
        if p not in results.failed
    ]
    echo_rows(["topic", "partition", "leader", "preferred", "in_sync", "elected"], rows, as_lines)
    echo_dry_run(apply, empty=not rows)
    return echo_failures(results.failed)


Elected = tuple[Mapping[od.TopicPartition, PartitionDescription], Results[od.TopicPartition, bool]]


async def _elect(url: str, names: Sequence[str], unclean: bool, apply: bool) -> Elected:
    async with od.connect(url) as k:
        await k.admin.elect_leaders([], unclean=unclean)  # raises Unsupported where no leaders can be elected
        wanted = set(await named_partitions(k, names))
        described = (await describe_topics(k, {partition.topic for partition in wanted})).check()
        chosen = {
            each.partition: each
            for topic in described.values()
            for each in topic.partitions
            if (not names or each.partition in wanted) and _needs_election(each, unclean)
        }
        if not apply or not chosen:
            return chosen, Results({}, {})
        return chosen, await k.admin.elect_leaders(chosen, unclean=unclean)


def _needs_election(partition: PartitionDescription, unclean: bool) -> bool:
    if unclean:
        return partition.leader is None
    return partition.leader != partition.replicas[0]
