"""What tests of transactions write to topics and read from them."""

from __future__ import annotations

from typing import Any

import anyio

import odradek as od

__all__ = ["fill", "until_committed", "values"]


async def values(k: od.Cluster, topic: str, isolation: Any = "read_committed") -> list[bytes | None]:
    async with k.reader(topic, until=od.LATEST, isolation=isolation) as reader:
        return [record.value async for record in reader]


async def until_committed(k: od.Cluster, topic: str, expected: list[bytes]) -> None:
    """Markers are written after the commit has been answered."""
    with anyio.fail_after(30):
        while await values(k, topic) != expected:  # noqa: ASYNC110 - brokers have no events for tests
            await anyio.sleep(0.05)


async def fill(k: od.Cluster, topic: str, count: int) -> list[bytes]:
    rows = [b"%d" % n for n in range(count)]
    async with k.producer() as out:
        await out.send_many(topic, rows)
    return rows
