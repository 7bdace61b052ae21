"""A process that moves records from one topic to another, in transactions, until it is killed.

usage: python mover.py BOOTSTRAP SOURCE TARGET
"""

from __future__ import annotations

import sys
from uuid import uuid4

import anyio

import odradek as od

__all__ = ["move"]


async def move(bootstrap: str, source: str, target: str) -> None:
    """Move records until cancelled. Those of a transaction are named after it, with their number and how many."""
    async with (
        od.connect(f"kafka://{bootstrap}", tuning=od.Tuning(request_timeout=3.0)) as k,
        k.producer(transactional_id=source) as out,
        k.consumer(source, group=source, consumer_id="mover", join_within=120.0) as consumer,
    ):
        async for batch in consumer.batches(max_records=2):
            name = uuid4().hex
            async with out.transaction() as tx:
                await anyio.sleep(0.005)  # its work
                for number, record in enumerate(batch):
                    text = f"{name} {number} {len(batch)} {(record.value or b'').decode()}"
                    await out.put(target, text.encode(), key=record.value)
                tx.done(batch)


if __name__ == "__main__":
    anyio.run(move, sys.argv[1], sys.argv[2], sys.argv[3])
