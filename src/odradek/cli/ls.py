"""`odradek ls`: the topics of a cluster, and the partitions of a topic."""

from __future__ import annotations

import click

import odradek as od
from odradek.cli.cluster_queries import extents, find_partitions
from odradek.cli.options import JSON, clustered, examples
from odradek.cli.output import echo_rows

__all__ = ["ls"]


@click.command(epilog=examples("odradek ls", "odradek ls orders", "odradek ls --json | jq -r .topic"))
@click.argument("topic", required=False)
@JSON
@clustered
def ls(url: str, topic: str | None, as_lines: bool) -> int:
    """List topics, or the partitions of TOPIC with their brokers, positions and sizes in bytes."""
    if topic is None:
        echo_rows(["topic", "partitions", "brokers"], od.run(_topics, url), as_lines)
    else:
        head = ["partition", "broker", "address", "earliest", "latest", "bytes"]
        echo_rows(head, od.run(_partitions, url, topic), as_lines)
    return 0


async def _topics(url: str) -> list[list[object]]:
    rows: list[list[object]] = []
    async with od.connect(url) as k:
        for topic in sorted(await k.topics()):
            partitions = await k.partitions(topic)
            rows.append([topic, len(partitions), sorted({p.broker for p in partitions})])
    return rows


async def _partitions(url: str, topic: str) -> list[list[object]]:
    rows: list[list[object]] = []
    async with od.connect(url) as k:
        partitions = await find_partitions(k, topic)
        known = await extents(k, topic)
        for p in partitions:
            broker = k.driver.metadata.table.leader(p)
            extent = known.get(p)
            ends = [extent.earliest, extent.latest, extent.latest - extent.earliest] if extent else [None, None, None]
            rows.append([p.name, p.broker, broker.address if broker else None, *ends])
    return rows
