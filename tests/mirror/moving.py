"""What tests of groups share: a mirror between two clusters, and what a group still has to read on each side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import anyio

import odradek as od
from odradek.mirror.config import MirrorConfig
from odradek.types import StartPosition, TopicPartition

Values = dict[int, list[bytes]]
"""Number of a partition -> values of its records, in order."""


def mirror_of(source: str, target: str, topic: str, **tables: Mapping[str, Any]) -> MirrorConfig:
    """A mirror of one topic, with small transactions. `tables`: more of the file."""
    file: dict[str, Any] = {
        "name": uuid4().hex,
        "source": {"url": source},
        "target": {"url": target},
        "topics": {"include": [topic]},
        "run": {"tasks": 2, "transaction_bytes": 400, "transaction_seconds": 0.01},
    }
    return MirrorConfig.model_validate({**file, **tables})


async def rest_of(cluster: od.Cluster, starts: Mapping[TopicPartition, StartPosition]) -> Values:
    """Return what comes from these positions on."""
    rest: Values = {partition.partition: [] for partition in starts}
    async with cluster.reader(starts, until=od.LATEST, isolation="read_committed") as reader:
        async for record in reader:
            assert isinstance(record.value, bytes)
            rest[record.partition.partition].append(record.value)
    return rest


async def span(cluster: od.Cluster, partition: TopicPartition) -> tuple[int, int]:
    """Return the offset of the first record of a partition, and the one after that of the last."""
    async with cluster.reader({partition: od.EARLIEST}, until=od.LATEST, isolation="read_committed") as reader:
        offsets = [record.position async for record in reader]
    return offsets[0], offsets[-1] + 1


END = b"the end"
"""The value of a record that ends what a group reads."""


async def end_all(cluster: od.Cluster, topic: str) -> None:
    """Write the last record of each partition."""
    async with cluster.producer() as producer:
        for partition in await cluster.partitions(topic):
            await producer.send(topic, END, partition=partition.partition)


async def rest_of_group(cluster: od.Cluster, topic: str, group: str) -> Values:
    """Let a member of a group read all partitions to their ends, and return what came before."""
    rest: Values = {partition.partition: [] for partition in await cluster.partitions(topic)}
    unread = set(rest)
    async with cluster.consumer(topic, group=group, isolation="read_committed", reset="fail") as consumer:
        while unread:
            with anyio.fail_after(60):
                record = await anext(consumer)
            if record.value == END:
                unread.remove(record.partition.partition)
            else:
                assert isinstance(record.value, bytes)
                rest[record.partition.partition].append(record.value)
    return rest
