"""What `mirror.py` compares MirrorMaker 2 with, in a process of its own; once all is copied, it waits for its end.

    python benchmarks/_mirror_odradek.py mirror FILE
    python benchmarks/_mirror_odradek.py bare SOURCE TARGET TOPIC COPIED_TO COMPRESSION

`mirror` runs the mirror of a file. `bare` is the least a mirror with odradek can do: a task for each partition reads
batches and sends their values, without timestamps, transactions or any record of how far it is.
"""

from __future__ import annotations

import sys

import anyio

from odradek import EARLIEST, LATEST, Cluster, connect
from odradek.mirror.config import load
from odradek.mirror.run import run
from odradek.types import MiB, TopicPartition

AT_ONCE_BYTES = 4 * MiB
"""Values that are sent before their acknowledgements are waited for."""


async def mirror(file: str) -> None:
    await run(load(file))


async def bare(source: str, target: str, topic: str, copied_to: str, compression: str) -> None:
    async with (
        connect(f"kafka://{source}") as old,
        connect(f"kafka://{target}") as new,
        anyio.create_task_group() as group,
    ):
        for partition in await old.partitions(topic):
            group.start_soon(copy, old, new, partition, copied_to, compression)


async def copy(old: Cluster, new: Cluster, partition: TopicPartition, copied_to: str, compression: str) -> None:
    async with (
        new.producer(compression=compression) as out,
        old.reader({partition: EARLIEST}, until=LATEST) as reader,
    ):
        rows: list[bytes | None] = []
        size = 0
        async for batch in reader.batches():
            rows += batch.values
            size += batch.columns.payload_bytes
            if size > AT_ONCE_BYTES:
                (await out.send_many(copied_to, rows, partition=partition.partition)).check()
                rows, size = [], 0
        (await out.send_many(copied_to, rows, partition=partition.partition)).check()


WORKS = {"mirror": mirror, "bare": bare}


def main() -> None:
    work, *arguments = sys.argv[1:]
    anyio.run(WORKS[work], *arguments)
    sys.stdin.read()


if __name__ == "__main__":
    main()
