"""Configurations of topics of real brokers."""

from __future__ import annotations

from collections.abc import Mapping

import anyio

import odradek as od

__all__ = ["alter_topic"]


async def alter_topic(cluster: od.Cluster, topic: str, entries: Mapping[str, str | None]) -> None:
    """Set entries, and wait until brokers have them: a controller of KRaft answers before they do."""
    (await cluster.admin.alter_topic_configs({topic: entries})).check()
    with anyio.fail_after(60):
        while not await _has(cluster, topic, entries):  # noqa: ASYNC110 - brokers notify nobody
            await anyio.sleep(0.02)


async def _has(cluster: od.Cluster, topic: str, entries: Mapping[str, str | None]) -> bool:
    now = (await cluster.admin.describe_topic_configs(topic)).check()[topic]
    return all(value is None or now[name].value == value for name, value in entries.items())
