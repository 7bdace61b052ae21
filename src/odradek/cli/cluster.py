"""`odradek cluster`: the brokers of a cluster."""

from __future__ import annotations

import click

import odradek as od
from odradek.cli.options import JSON, clustered, examples
from odradek.cli.output import echo_rows
from odradek.core.admin import ClusterDescription

__all__ = ["cluster"]


@click.command(epilog=examples("odradek cluster", "odradek cluster --json | jq -r .address"))
@JSON
@clustered
def cluster(url: str, as_lines: bool) -> int:
    """Print the brokers of the cluster, and which of them is the controller."""

    async def main() -> ClusterDescription:
        async with od.connect(url) as k:
            return await k.admin.describe_cluster()

    described = od.run(main)
    rows: list[list[object]] = [
        [each.id, each.address, described.racks.get(each.id), each.id == described.controller]
        for each in described.brokers
    ]
    if not as_lines and described.cluster_id is not None:
        click.echo(f"cluster {described.cluster_id}")
    echo_rows(["broker", "address", "rack", "controller"], rows, as_lines)
    return 0
