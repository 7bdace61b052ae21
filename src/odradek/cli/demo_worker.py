"""The processes of the demo that use the library: the ingestion worker and the consumers.

    python -m odradek.cli.demo_worker '{"role": "consume", ...}'

Each tells what happens in lines of JSON on standard output, and ends when its standard input does: when the demo says
so, or is gone.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

import odradek as od
from odradek.cli.demo_count import Tally, numbered

__all__ = ["Task", "texts"]

Orders = MemoryObjectReceiveStream[None]
"""An item for each line on standard input: go on."""

LOOK_SECONDS = 0.05
"""How often to look whether there was a rebalance."""
ROWS = 5_000
"""Messages handed to the producer at a time; between two of them the worker looks at gates and the clock."""


class Task(NamedTuple):
    """What one worker is to do; travels as JSON on its command line.

    Args:
        role: Which of the two workers.
        url: The cluster.
        topics: Where to write and read.
        messages: How many there are in all.
        tally: A consumer's file of counts.
        group: The consumers' group.
        gates: Message numbers before which the ingestion worker waits for a line on its standard input.
        input: A file whose lines are the messages; None makes some up.
    """

    role: Literal["produce", "consume"]
    url: str
    topics: list[str]
    messages: int
    tally: str = ""
    group: str = ""
    gates: Sequence[int] = ()
    input: str | None = None


def tell(event: str, **what: Any) -> None:
    """One line to the demo."""
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


def texts(source: str | None) -> Iterator[bytes]:
    """The lines of a file, or lines like those of a log, without an end: 89 bytes, 100 with the number."""
    if source is not None:
        with Path(source).open("rb") as file:
            yield from (line.rstrip(b"\r\n") for line in file)
        return
    dice = random.Random(7)
    words = b"GET POST /orders /users /cart 200 404 503 Mozilla curl eu us".split()
    lines = [b" ".join([b"%08x" % dice.getrandbits(32), *dice.choices(words, k=20)])[:89] for _ in range(1000)]
    yield from cycle(lines)


# ---- ingestion ----------------------------------------------------------------------------------------------


async def produce(task: Task, orders: Orders) -> None:
    """Write all messages, numbered, topic by topic in turn; stop at the gates."""
    numbers = (numbered(number, text) for number, text in enumerate(islice(texts(task.input), task.messages)))
    topics, busy, written = cycle(task.topics), 0.0, 0
    async with od.connect(task.url) as k, k.producer(codec="snappy", deliver_within=60) as out:
        for begin, end in _stretches(task):
            if begin:
                tell("waiting", written=begin)
                await orders.receive()
            started = time.monotonic()
            stretch = islice(numbers, end - begin)
            while rows := list(islice(stretch, ROWS)):
                topic = next(topics)
                for row in rows:
                    await out.put(topic, row)
                written += len(rows)
                tell("written", messages=written)
            await out.flush()
            busy += time.monotonic() - started
    tell("finished", messages=written, seconds=busy)


def _stretches(task: Task) -> Iterator[tuple[int, int]]:
    marks = [0, *task.gates, task.messages]
    return zip(marks, chain(marks[1:]), strict=False)


# ---- consumers ----------------------------------------------------------------------------------------------


async def consume(task: Task, orders: Orders) -> None:
    """Handle messages, which here means counting them, until told to end."""
    tally = Tally(Path(task.tally), task.messages)
    async with od.connect(task.url) as k:
        consumer = k.consumer(task.topics, group=task.group)
        async with consumer as c, anyio.create_task_group() as tasks:
            tasks.start_soon(_tell_assignments, c)
            async for batch in c.batches():
                tally.add(batch.values)
                batch.done()


async def _tell_assignments(c: od.Consumer) -> None:
    before = None
    while True:
        if c.assignment is not before:
            before = c.assignment
            tell("assigned", partitions=len(before))
        await anyio.sleep(LOOK_SECONDS)


# ---- both ---------------------------------------------------------------------------------------------------


async def work(task: Task) -> None:
    """Do it, and stop in an orderly way when standard input ends."""
    heard, orders = anyio.create_memory_object_stream[None](len(task.gates))
    async with anyio.create_task_group() as tasks, heard, orders:
        tasks.start_soon(_listen, heard, tasks.cancel_scope)
        await {"produce": produce, "consume": consume}[task.role](task, orders)
        tasks.cancel_scope.cancel()


async def _listen(heard: MemoryObjectSendStream[None], work: anyio.CancelScope) -> None:
    pipe = sys.stdin.fileno()
    await anyio.wait_readable(pipe)
    while os.read(pipe, 4096):
        heard.send_nowait(None)
        await anyio.wait_readable(pipe)
    work.cancel()


if __name__ == "__main__":
    anyio.run(work, Task(**json.loads(sys.argv[1])))
