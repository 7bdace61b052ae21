"""A member of a group by odradek: by batches, by record, or by a handler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from typing import Any

import odradek as od

from .journal import Journal

__all__ = ["PAUSE_S", "TUNING", "Deliveries", "odradek"]

TUNING = od.Tuning(request_timeout=5.0, session_timeout=10.0)
PAUSE_S = 1.0
"""Pause between commits, and before a member that ended joins again (s)."""


class Deliveries:
    """What a member was given, written down: spans of positions, partitions, and positions that it stored."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._assigned: Collection[int] = ()

    def span(self, partition: int, first: int, last: int) -> None:
        self.journal.write("delivered", partition, first, last)

    def positions(self, partition: int, positions: Sequence[int]) -> None:
        """Note positions of one partition, in their order, as spans without holes."""
        first = 0
        for at in range(1, len(positions) + 1):
            if at == len(positions) or positions[at] != positions[at - 1] + 1:
                self.span(partition, positions[first], positions[at - 1])
                first = at

    def assigned(self, partitions: Collection[int]) -> None:
        """Note an assignment, unless it is the one before."""
        if set(partitions) != set(self._assigned):
            self._assigned = partitions
            self.journal.write("assigned", f"{time.monotonic():.3f}", *sorted(partitions))

    def stored(self, requested: float, positions: dict[int, int]) -> None:
        """Note positions whose commit, requested at that time, was confirmed now."""
        now = time.monotonic()
        for partition, position in positions.items():
            self.journal.write("stored", f"{requested:.3f}", f"{now:.3f}", partition, position)


async def _by_batches(consumer: od.Consumer, deliveries: Deliveries) -> None:
    async for batch in consumer.batches(max_records=500):
        deliveries.assigned([partition.partition for partition in consumer.assignment])
        deliveries.positions(batch.partition.partition, [record.position for record in batch])
        batch.done()


async def _by_record(consumer: od.Consumer, deliveries: Deliveries) -> None:
    async for record in consumer:
        deliveries.assigned([partition.partition for partition in consumer.assignment])
        deliveries.span(record.partition.partition, record.position, record.position)


async def _by_handler(consumer: od.Consumer, deliveries: Deliveries) -> None:
    async def handle(record: od.Record) -> None:
        deliveries.assigned([partition.partition for partition in consumer.assignment])
        deliveries.span(record.partition.partition, record.position, record.position)
        await asyncio.sleep(0.001)

    await consumer.each(handle, parallel=8, order="partition")


WAYS = {"batches": _by_batches, "record": _by_record, "handler": _by_handler}


async def _commit(consumer: od.Consumer, deliveries: Deliveries) -> None:
    while True:
        await asyncio.sleep(PAUSE_S)
        requested = time.monotonic()
        try:
            stored = await consumer.commit()
        except od.OdradekError as error:
            deliveries.journal.write("not_stored", repr(error))
        else:
            deliveries.stored(requested, {partition.partition: at for partition, at in stored.items()})


async def _member(deliveries: Deliveries, bootstrap: str, topic: str, way: str, options: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(od.connect(f"kafka://{bootstrap}", tuning=TUNING))
        consumer = await stack.enter_async_context(cluster.consumer(topic, **options))
        commits = asyncio.create_task(_commit(consumer, deliveries))
        stack.callback(commits.cancel)
        await WAYS[way](consumer, deliveries)


def odradek(journal: Journal, bootstrap: str, topic: str, way: str, options: dict[str, Any]) -> None:
    """Be a member until SIGTERM, and join again after an error."""
    deliveries = Deliveries(journal)

    async def forever() -> None:
        while True:
            try:
                await _member(deliveries, bootstrap, topic, way, options)
            except od.OdradekError as error:
                journal.write("ended", repr(error))
            await asyncio.sleep(PAUSE_S)

    od.run(forever)
