"""Readers, by default of an in-memory topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from odradek.batch import Batch
from odradek.client.consumer.consumer import Consumer
from odradek.client.consumer.reader import Reader
from odradek.client.options import Tuning
from odradek.errors import BrokerError, CorruptMessage, MessageTooLarge
from odradek.testing import MemoryCluster
from odradek.types import LATEST, TopicPartition

from ..payloads import payload, payloads
from .one_member import numbered

__all__ = [
    "all_in_steps",
    "assert_bounded",
    "cancelled_after",
    "collect",
    "held",
    "next_values",
    "one_step",
    "read",
    "reading",
    "take_in_steps",
    "take_until",
    "values_of",
]


@asynccontextmanager
async def reading(
    cluster: MemoryCluster, topics: Any = "t", *, tuning: Tuning | None = None, **options: Any
) -> AsyncIterator[Reader]:
    """A reader, by default of the topic `t` and without an end."""
    async with cluster.connect(tuning=tuning) as k, k.reader(topics, **options) as reader:
        yield reader


async def values_of(reader: Reader) -> list[bytes]:
    """Read to the end."""
    return [payload(record.value) async for record in reader]


async def next_values(reader: Reader | Consumer, count: int) -> list[bytes]:
    """Read so many records."""
    with anyio.fail_after(60):
        return [payload((await anext(reader)).value) for _ in range(count)]


async def read(cluster: MemoryCluster, topics: Any = "t", **options: Any) -> list[bytes]:
    """Return everything that is there, unless the options say something else."""
    async with reading(cluster, topics, **{"until": LATEST, **options}) as reader:
        return await values_of(reader)


async def collect(reader: Reader) -> tuple[list[bytes], list[Exception]]:
    """Read to the end, and go on after every error."""
    values: list[bytes] = []
    errors: list[Exception] = []
    while True:
        try:
            async for record in reader:
                values.append(payload(record.value))
        except (CorruptMessage, MessageTooLarge, BrokerError) as error:
            errors.append(error)
        else:
            return values, errors


def held(reader: Reader | Consumer) -> int:
    """Return the memory that waits to be taken (bytes)."""
    return sum(cursor.held_bytes for cursor in reader._fetcher.cursors.values())


async def one_step(reader: Reader, max_bytes: int) -> list[Batch]:
    """Return rows of several partitions in one step; nothing at the end."""
    return await reader._stream.next_batches(max_bytes)


async def all_in_steps(reader: Reader, max_bytes: int) -> list[list[Batch]]:
    """Return the steps up to the end."""
    steps: list[list[Batch]] = []
    while step := await one_step(reader, max_bytes):
        steps.append(step)
    return steps


async def take_in_steps(reader: Reader, values: list[bytes]) -> None:
    """Append all values of each step, up to the end or an error."""
    while step := await one_step(reader, 1 << 20):
        values += [value for batch in step for value in payloads(batch.values)]


def assert_bounded(steps: list[list[Batch]], max_bytes: int, partitions: Sequence[TopicPartition]) -> None:
    """Assert that steps over partitions of a hundred values each have all of them, within the limit."""
    sizes = [sum(batch.columns.payload_bytes for batch in step) for step in steps]
    assert max(sizes) <= max(6, max_bytes)
    values: dict[TopicPartition, list[bytes]] = {partition: [] for partition in partitions}
    for step in steps:
        for batch in step:
            values[batch.partition] += payloads(batch.values)
    assert values == {partition: numbered(100, 100 * n) for n, partition in enumerate(partitions)}


async def take_until(reader: Reader, values: list[bytes], count: int, *, in_batches: bool) -> None:
    """Append the values of records, or of batches, until there are so many."""
    while len(values) < count:
        if in_batches:
            values += payloads((await anext(reader.batches(max_records=3))).values)
        else:
            values.append(payload((await anext(reader)).value))


@asynccontextmanager
async def cancelled_after(steps: int) -> AsyncIterator[anyio.CancelScope]:
    """Cancel the block after so many steps of the event loop, unless it has ended."""
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()

            tasks.start_soon(cancel)
            yield scope
            tasks.cancel_scope.cancel()
