"""A real broker of 0.8 or later for tests of Spark: what is written to it, and the source without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import anyio

import odradek as od
from odradek.ranges.projection import columns
from odradek.spark.readers import BatchReader, StreamReader
from odradek.spark.source import OdradekSource
from odradek.testing import KafkaBroker

from ..topic_configs import alter_topic
from .made import names, types_of

__all__ = ["alter", "batch", "delete", "numbers", "recreate", "rows", "stream", "values", "write"]


def write(kafka: KafkaBroker, topic: str, values: Sequence[bytes], partition: int = 0, **options: Any) -> None:
    """Write values to one partition."""

    async def send() -> None:
        async with od.connect(f"kafka://{kafka.bootstrap}") as k, k.producer(**options) as out:
            (await out.send_many(topic, values, partition=partition)).check()

    anyio.run(send)


def delete(kafka: KafkaBroker, topic: str) -> None:
    """Delete a topic."""

    async def change() -> None:
        async with od.connect(f"kafka://{kafka.bootstrap}") as k:
            (await k.admin.delete_topics(topic)).check()

    anyio.run(change)


def recreate(kafka: KafkaBroker, topic: str, partitions: int) -> None:
    """Delete a topic and make it again."""

    async def change() -> None:
        async with od.connect(f"kafka://{kafka.bootstrap}") as k:
            (await k.admin.delete_topics(topic)).check()
            with anyio.fail_after(30):
                while (await k.admin.create_topics(topic, partitions=partitions)).failed:  # noqa: ASYNC110
                    await anyio.sleep(0.05)

    anyio.run(change)


def add_partitions(kafka: KafkaBroker, topic: str, total: int) -> None:
    """Give a topic so many partitions in all."""

    async def change() -> None:
        async with od.connect(f"kafka://{kafka.bootstrap}") as k:
            (await k.admin.add_partitions({topic: total})).check()

    anyio.run(change)


def alter(kafka: KafkaBroker, topic: str, entries: dict[str, str | None]) -> None:
    """Set entries of the configuration of a topic."""

    async def change() -> None:
        async with od.connect(f"kafka://{kafka.bootstrap}") as k:
            await alter_topic(k, topic, entries)

    anyio.run(change)


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(first, first + count)]


def batch(kafka: KafkaBroker, *more: str, **options: object) -> BatchReader:
    """A batch query's reader with the usual columns and some more; options as for `made.names`."""
    named = {"kafka.bootstrap.servers": kafka.bootstrap, **names(**options)}
    reader = OdradekSource(named).reader(_schema(named, more))
    assert isinstance(reader, BatchReader)
    return reader


def stream(kafka: KafkaBroker, *more: str, **options: object) -> StreamReader:
    """The same for a streaming query."""
    named = {"kafka.bootstrap.servers": kafka.bootstrap, **names(**options)}
    reader = OdradekSource(named).streamReader(_schema(named, more))
    assert isinstance(reader, StreamReader)
    return reader


def _schema(options: dict[str, str], more: Iterable[str]) -> Any:
    chosen = columns(headers=options.get("includeheaders") == "true", positions=False)
    return types_of([*(column.name for column in chosen), *more])


def rows(reader: BatchReader | StreamReader, partitions: Iterable[Any]) -> list[dict[str, Any]]:
    """What these tasks read, in the order of the logs."""
    read = [row for each in partitions for table in reader.read(each) for row in table.to_pylist()]
    return sorted(read, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def values(reader: BatchReader) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value of everything."""
    return [(row["partition"], row["offset"], row["value"]) for row in rows(reader, reader.partitions())]
