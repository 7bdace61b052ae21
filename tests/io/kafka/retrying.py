"""A process that handles records, with retry topics, until it is killed.

usage: python retrying.py BOOTSTRAP TOPIC

A handler of a record of TOPIC fails; one of a retry topic never ends.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

import odradek as od

__all__ = ["handle_all", "retry_topics"]


def retry_topics(topic: str) -> dict[str, float]:
    """The retry topics of a topic, with their delays (s)."""
    return {f"{topic}-soon": 0.2, f"{topic}-later": 0.5}


async def handle_all(bootstrap: str, topic: str, handle: Callable[[od.Record], Awaitable[object]]) -> None:
    """Handle the records of a topic until cancelled. One member at a time: a new one takes the place of the last, at
    once with the classic protocol."""
    later = retry_topics(topic)
    options: dict[str, Any] = {"group": topic, "group_protocol": "classic", "consumer_id": "only"}
    async with (
        od.connect(f"kafka://{bootstrap}") as k,
        k.consumer([topic, *later], **options, commit_every=0.05, start=od.EARLIEST, join_within=120.0) as consumer,
    ):
        await consumer.each(handle, retry_topics=later, dead_letter=f"{topic}-failed")


async def fail(record: od.Record) -> None:
    """Fail, or never end."""
    if record.topic in retry_topics(sys.argv[2]):
        await anyio.sleep_forever()
    raise ValueError("the first attempt")


if __name__ == "__main__":
    anyio.run(handle_all, sys.argv[1], sys.argv[2], fail)
