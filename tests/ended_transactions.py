"""Transactions of real brokers, which write their ends after the commit, or the abort, was answered."""

from __future__ import annotations

import anyio

import odradek as od

__all__ = ["transactions_ended"]


async def transactions_ended(cluster: od.Cluster, topic: str) -> None:
    """Wait until readers of committed records get everything that a topic has: no transaction of it is open."""
    with anyio.fail_after(60):
        while await _ends(cluster, topic, committed=True) != await _ends(cluster, topic, committed=False):  # noqa: ASYNC110 - brokers notify nobody
            await anyio.sleep(0.02)


async def _ends(cluster: od.Cluster, topic: str, *, committed: bool) -> list[int | None]:
    latest = dict.fromkeys(await cluster.partitions(topic), od.LATEST)
    listed = (await cluster.admin.list_offsets(latest, read_committed=committed)).check()
    return [listed[partition].position for partition in latest]
