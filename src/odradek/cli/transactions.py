"""`odradek transactions`: lists and describes transactions, and aborts those that nobody ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

import odradek as od
from odradek.cli.admin import Rows, ask, echo_dry_run, named_partitions
from odradek.cli.options import APPLY, JSON, clustered, examples
from odradek.cli.output import echo_failures, echo_rows, iso_time
from odradek.core.admin import Results
from odradek.core.admin_transactions import ProducerDescription

__all__ = ["transactions"]


@click.group(
    epilog=examples(
        "odradek transactions list --state Ongoing --longer-than 900 --json",
        "odradek transactions describe payments-1",
        "odradek transactions producers orders --open",
        "odradek transactions abort orders/3 --producer-id 4001 --apply",
    )
)
def transactions() -> None:
    """List, describe and abort transactions (3.0 and later)."""


@transactions.command(
    name="list",
    epilog=examples("odradek transactions list", "odradek transactions list --state Ongoing --longer-than 900"),
)
@click.option("--state", "states", multiple=True, metavar="STATE", help="In this state only: Ongoing, Empty and so on.")
@click.option(
    "--producer-id", "producers", multiple=True, type=click.IntRange(0), metavar="N", help="Of this producer."
)
@click.option(
    "--longer-than", type=click.FloatRange(0), metavar="SECONDS", help="Open for longer only (3.8 and later)."
)
@click.option("--pattern", metavar="REGEX", help="Whose id matches this pattern of Java's RE2 (4.1 and later).")
@JSON
@clustered
def list_transactions(
    url: str,
    states: Sequence[str],
    producers: Sequence[int],
    longer_than: float | None,
    pattern: str | None,
    as_lines: bool,
) -> int:
    """List transactional ids, and the states of their transactions."""
    listed = ask(
        url,
        lambda admin: admin.list_transactions(
            states=states, producer_ids=producers, longer_than=longer_than, pattern=pattern
        ),
    )
    echo_rows(["transactional_id", "producer_id", "state", "coordinator"], [list(each) for each in listed], as_lines)
    return 0


@transactions.command(epilog=examples("odradek transactions describe payments-1 --json"))
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@JSON
@clustered
def describe(url: str, names: Sequence[str], as_lines: bool) -> int:
    """Print states, beginnings and partitions of the transactions of TRANSACTIONAL_IDs."""
    described = ask(url, lambda admin: admin.describe_transactions(names))
    rows: Rows = [
        [
            each.transactional_id,
            each.state,
            each.producer_id,
            each.producer_epoch,
            iso_time(each.started),
            each.timeout_s,
            each.coordinator.id,
            [str(partition) for partition in each.partitions],
        ]
        for each in described.done.values()
    ]
    head = ["transactional_id", "state", "producer_id", "epoch", "started", "timeout", "coordinator", "partitions"]
    echo_rows(head, rows, as_lines)
    return echo_failures(described.failed)


@transactions.command(
    epilog=examples("odradek transactions producers orders", "odradek transactions producers orders/3 --open --json")
)
@click.argument("names", nargs=-1, required=True, metavar="TOPIC[/PARTITION]...")
@click.option("--open", "open_only", is_flag=True, help="Only those with an open transaction.")
@JSON
@clustered
def producers(url: str, names: Sequence[str], open_only: bool, as_lines: bool) -> int:
    """Print the producers that partitions know, and where their open transactions begin (2.8 and later).

    Consumers with read_committed do not go on behind the oldest of these positions.
    """
    described = od.run(_producers, url, names)
    rows: Rows = [
        [p.topic, p.partition, *_producer_row(each)]
        for p, known in sorted(described.done.items())
        for each in known
        if not open_only or each.transaction_start is not None
    ]
    head = ["topic", "partition", "producer_id", "epoch", "last_sequence", "last_time", "transaction_start"]
    echo_rows(head, rows, as_lines)
    return echo_failures(described.failed)


async def _producers(url: str, names: Sequence[str]) -> Results[od.TopicPartition, Sequence[ProducerDescription]]:
    async with od.connect(url) as k:
        return await k.admin.describe_producers(await named_partitions(k, names))


def _producer_row(each: ProducerDescription) -> list[object]:
    time = None if each.last_timestamp is None else iso_time(each.last_timestamp / 1000)
    return [each.producer_id, each.producer_epoch, each.last_sequence, time, each.transaction_start]


@transactions.command(epilog=examples("odradek transactions abort orders/3 --producer-id 4001 --apply"))
@click.argument("partition", metavar="TOPIC/PARTITION")
@click.option("--producer-id", required=True, type=click.IntRange(0), metavar="N", help="Whose transaction.")
@APPLY
@JSON
@clustered
def abort(url: str, partition: str, producer_id: int, apply: bool, as_lines: bool) -> int:
    """Abort the open transaction of a producer in one partition, if it is left over: one that its coordinator knows it
    ends itself, when its time is over (KIP-664).

    Without --apply, print what would be aborted.
    """
    if "/" not in partition:
        raise click.UsageError(f"{partition!r}: expected TOPIC/PARTITION")
    begins = od.run(_abort, url, partition, producer_id, apply)
    rows: Rows = [[p.topic, p.partition, producer_id, start, apply] for p, start in begins.items()]
    echo_rows(["topic", "partition", "producer_id", "transaction_start", "aborted"], rows, as_lines)
    echo_dry_run(apply, "aborted")
    return 0


async def _abort(url: str, name: str, producer_id: int, apply: bool) -> Mapping[od.TopicPartition, od.Position]:
    """Abort the transaction if `apply`; return where it begins."""
    async with od.connect(url) as k:
        (partition,) = await named_partitions(k, [name])
        known = (await k.admin.describe_producers(partition)).check()[partition]
        producer = next((each for each in known if each.producer_id == producer_id), None)
        if producer is None or producer.transaction_start is None:
            raise click.ClickException(f"{partition}: producer {producer_id} has no open transaction here")
        if apply:
            await k.admin.abort_transaction(partition, producer)
        return {partition: producer.transaction_start}
