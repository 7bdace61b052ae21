"""`odradek ls`: the topics of a cluster, and the partitions of a topic."""

from __future__ import annotations

import click

import odradek as od
from odradek.cli.cluster_queries import extents, find_partitions
from odradek.cli.json_records import partition_id
from odradek.cli.options import JSON, clustered, examples
from odradek.cli.output import echo_rows

__all__ = ["ls"]


@click.command(epilog=examples("odradek ls", "odradek ls orders", "odradek ls --json | jq -r .topic"))
@click.argument("topic", required=False)
@JSON
@clustered
def ls(url: str, topic: str | None, as_lines: bool) -> int:
    """List topics, or the partitions of TOPIC with their brokers, positions and sizes.

    The size is the distance between the positions: bytes in Kafka 0.7, later records, or more than there are if the
    topic is compacted or has transactions.
    """
    if topic is None:
        echo_rows(["topic", "partitions", "brokers"], od.run(_topics, url), as_lines)
    else:
        size, rows = od.run(_partitions, url, topic)
        echo_rows(["partition", "broker", "address", "earliest", "latest", size], rows, as_lines)
    return 0


async def _topics(url: str) -> list[list[object]]:
    rows: list[list[object]] = []
    async with od.connect(url) as k:
        for topic in sorted(await k.topics()):
            leaders = [_leader(k, p) for p in await k.partitions(topic)]
            rows.append([topic, len(leaders), sorted({leader.id for leader in leaders if leader})])
    return rows


def _leader(k: od.Cluster, partition: od.TopicPartition) -> od.Broker | None:
    return k.driver.metadata.table.leader(partition)


async def _partitions(url: str, topic: str) -> tuple[str, list[list[object]]]:
    rows: list[list[object]] = []
    async with od.connect(url) as k:
        partitions = await find_partitions(k, topic)
        known = await extents(k, topic)
        for p in partitions:
            broker = _leader(k, p)
            extent = known.get(p)
            ends = [extent.earliest, extent.latest, extent.latest - extent.earliest] if extent else [None, None, None]
            rows.append([partition_id(p), broker.id if broker else None, broker.address if broker else None, *ends])
        return k.driver.logs.unit.name, rows
