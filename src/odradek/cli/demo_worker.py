"""The processes of the demo that use the library: the ingestion worker and the consumers.

    python -m odradek.cli.demo_worker '{"role": "consume", ...}'

Each tells what happens in lines of JSON on standard output, and ends when its standard input does: when the demo says
so, or is gone.
"""

from __future__ import annotations

import json
import math
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
from odradek.cli.demo_count import HandledCounts, numbered

__all__ = ["WorkerTask", "texts", "times"]

Orders = MemoryObjectReceiveStream[None]
"""An item for each line on standard input: go on."""

LOOK_SECONDS = 0.05
"""How often to look whether there was a rebalance."""
ROWS = 5_000
"""Messages handed to the producer at a time; between two of them the worker looks at gates and the clock."""

DAY_SECONDS = 86_400
CURVE = 0.08
"""How uneven the day is; from 1 / tau on, time would run backwards."""


class WorkerTask(NamedTuple):
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
    """JSON strings: the lines of a file, or 55 bytes like those of a log, 100 with all around, without an end."""
    if source is not None:
        with Path(source).open(encoding="utf-8", errors="replace", newline="\n") as file:
            yield from (json.dumps(line.rstrip("\r\n")).encode() for line in file)
        return
    dice = random.Random(7)
    words = b"GET POST /orders /users /cart 200 404 503 Mozilla curl eu us".split()
    lines = [b" ".join([b"%08x" % dice.getrandbits(32), *dice.choices(words, k=12)])[:55] for _ in range(1000)]
    yield from cycle(b'"%s"' % line for line in lines)


def times(messages: int, now: float) -> Iterator[int]:
    """When the messages happened (ms since the epoch): one after the other in the day before `now`, more of them around
    its middle than at both ends."""
    begin, step = (now - DAY_SECONDS) * 1000, 1 / messages
    for number in range(messages):
        share = number * step
        yield int(begin + DAY_SECONDS * 1000 * (share + CURVE * math.sin(math.tau * share)))


# ---- ingestion ----------------------------------------------------------------------------------------------


async def produce(task: WorkerTask, orders: Orders) -> None:
    """Write all messages, numbered, topic by topic in turn; stop at the gates."""
    made = map(numbered, range(task.messages), times(task.messages, time.time()), texts(task.input))
    topics, busy, written = cycle(task.topics), 0.0, 0
    async with od.connect(task.url) as k, k.producer(compression="snappy", deliver_within=60) as out:
        for begin, end in _stretches(task):
            if begin:
                tell("waiting", written=begin)
                await orders.receive()
            started = time.monotonic()
            stretch = islice(made, end - begin)
            while rows := list(islice(stretch, ROWS)):
                topic = next(topics)
                for row in rows:
                    await out.put(topic, row)
                written += len(rows)
                tell("written", messages=written)
            await out.flush()
            busy += time.monotonic() - started
    tell("finished", messages=written, seconds=busy)


def _stretches(task: WorkerTask) -> Iterator[tuple[int, int]]:
    marks = [0, *task.gates, task.messages]
    return zip(marks, chain(marks[1:]), strict=False)


# ---- consumers ----------------------------------------------------------------------------------------------


async def consume(task: WorkerTask, orders: Orders) -> None:
    """Handle messages, which here means counting them, until told to end."""
    tally = HandledCounts(Path(task.tally), task.messages)
    async with od.connect(task.url) as k:
        consumer = k.consumer(task.topics, group=task.group)
        async with consumer as c, anyio.create_task_group() as tasks:
            tasks.start_soon(_tell_assignments, c)
            async for batch in c.batches():
                tally.add(value or b"" for value in batch.values)
                batch.done()


async def _tell_assignments(c: od.Consumer) -> None:
    before = None
    while True:
        if c.assignment is not before:
            before = c.assignment
            tell("assigned", partitions=len(before))
        await anyio.sleep(LOOK_SECONDS)


# ---- both ---------------------------------------------------------------------------------------------------


async def work(task: WorkerTask) -> None:
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
    anyio.run(work, WorkerTask(**json.loads(sys.argv[1])))
