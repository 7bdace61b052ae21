"""`odradek ls` and `odradek offsets`: what there is in a cluster."""

from __future__ import annotations

import click

import odradek as od
from odradek.cli.look import extents, find
from odradek.cli.options import JSON, clustered, examples, moment
from odradek.cli.output import echo_json, table

__all__ = ["ls", "offsets"]


@click.command(epilog=examples("odradek ls", "odradek ls orders", "odradek ls --json | jq -r .topic"))
@click.argument("topic", required=False)
@JSON
@clustered
def ls(url: str, topic: str | None, as_lines: bool) -> int:
    """List topics, or the partitions of TOPIC with their brokers and extents (bytes)."""
    if topic is None:
        rows = od.run(_topics, url)
        head = ["topic", "partitions", "brokers"]
    else:
        rows = od.run(_partitions, url, topic)
        head = ["partition", "broker", "address", "earliest", "latest", "bytes"]
    _print(head, rows, as_lines)
    return 0


def _print(head: list[str], rows: list[list[object]], as_lines: bool) -> None:
    if not as_lines:
        click.echo(table(head, [[_cell(cell) for cell in row] for row in rows]))
        return
    for row in rows:
        echo_json(dict(zip(head, row, strict=True)))


def _cell(value: object) -> object:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value is None else value


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
        partitions = await find(k, topic)
        known = await extents(k, topic)
        for p in partitions:
            broker = k.driver.metadata.table.leader(p)
            extent = known.get(p)
            ends = [extent.earliest, extent.latest, extent.latest - extent.earliest] if extent else [None, None, None]
            rows.append([p.name, p.broker, broker.address if broker else None, *ends])
    return rows


@click.command(
    epilog=examples(
        "odradek offsets orders",
        "odradek offsets orders --at -1h",
        "odradek offsets orders --at 2026-11-21T12:00 --json",
    )
)
@click.argument("topic")
@click.option("--at", metavar="TIME", help="2026-11-21T12:00, -15m, or seconds since the epoch.")
@JSON
@clustered
def offsets(url: str, topic: str, at: str | None, as_lines: bool) -> int:
    """Print the oldest position and the end of each partition of TOPIC, or where TIME is in it.

    Kafka 0.7 keeps no timestamps: TIME is answered by the age of segment files, with the newest boundary that is surely
    not after it, or the oldest position when all is younger.
    """
    when = None if at is None else od.AtTime(moment(at))
    head = ["partition", "earliest", "latest"] if when is None else ["partition", "position"]
    _print(head, od.run(_offsets, url, topic, when), as_lines)
    return 0


async def _offsets(url: str, topic: str, when: od.AtTime | None) -> list[list[object]]:
    async with od.connect(url) as k:
        partitions = await find(k, topic)
        if when is not None:
            found = await k.positions(topic, when)
            return [[p.name, found.get(p)] for p in partitions]
        known = await extents(k, topic)
        return [[p.name, *known.get(p, (None, None))] for p in partitions]
