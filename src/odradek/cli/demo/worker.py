"""The processes of the demo that use the library: the ingestion worker and the consumers.

    python -m odradek.cli.demo.worker '{"role": "consume", ...}'

Each reports events as lines of JSON on standard output, and exits when its standard input ends: the demo has closed it,
or is gone.

"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

import odradek as od
from odradek.cli.demo.counts import HandledCounts, numbered

__all__ = ["WorkerTask", "texts", "times"]

Gate = MemoryObjectReceiveStream[None]
"""A stream with an item for each line on standard input: continue."""

POLL_SECONDS = 0.05
"""Interval of checks for a new assignment."""
CHUNK_ROWS = 5_000
"""Messages handed to the producer between two checks of gates and clock."""

DAY_SECONDS = 86_400
CURVE = 0.08
"""Unevenness of messages over the day; from 1 / tau on, time would run backwards."""


class WorkerTask(NamedTuple):
    """The task of one worker; passed as JSON on its command line.

    Args:
        role: The kind of worker.
        url: The cluster.
        topics: Topics to write or read.
        messages: Total number of messages.
        counts: A consumer's file of counts.
        group: The consumers' group.
        gates: Message numbers before which the ingestion worker waits for a line on its standard input.
        input: File whose lines are the messages; None generates messages.
    """

    role: Literal["produce", "consume"]
    url: str
    topics: list[str]
    messages: int
    counts: str = ""
    group: str = ""
    gates: Sequence[int] = ()
    input: str | None = None


def report(event: str, **fields: Any) -> None:
    """Send an event to the demo."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def texts(source: str | None) -> Iterator[bytes]:
    """Yield JSON strings: the lines of a file, or endless generated log lines of 55 bytes (100 as a message)."""
    if source is not None:
        with Path(source).open(encoding="utf-8", errors="replace", newline="\n") as file:
            yield from (json.dumps(line.rstrip("\r\n")).encode() for line in file)
        return
    chance = random.Random(7)
    words = b"GET POST /orders /users /cart 200 404 503 Mozilla curl eu us".split()
    lines = [b" ".join([b"%08x" % chance.getrandbits(32), *chance.choices(words, k=12)])[:55] for _ in range(1000)]
    yield from cycle(b'"%s"' % line for line in lines)


def times(messages: int, now: float) -> Iterator[int]:
    """Yield ascending times of messages (ms since the epoch) in the day before `now`, denser around its middle."""
    begin, step = (now - DAY_SECONDS) * 1000, 1 / messages
    for number in range(messages):
        share = number * step
        yield int(begin + DAY_SECONDS * 1000 * (share + CURVE * math.sin(math.tau * share)))


# ---- ingestion ----------------------------------------------------------------------------------------------


async def produce(task: WorkerTask, gate: Gate) -> None:
    """Write all messages, numbered, to the topics in rotation; wait at the gates."""
    messages = map(numbered, range(task.messages), times(task.messages, time.time()), texts(task.input))
    topics, busy, written = cycle(task.topics), 0.0, 0
    async with od.connect(task.url) as k, k.producer(compression="snappy", deliver_within=60) as out:
        for begin, end in pairwise([0, *task.gates, task.messages]):
            if begin:
                report("waiting", written=begin)
                await gate.receive()
            started = time.monotonic()
            section = islice(messages, end - begin)
            while rows := list(islice(section, CHUNK_ROWS)):
                topic = next(topics)
                for row in rows:
                    await out.put(topic, row)
                written += len(rows)
                report("written", messages=written)
            await out.flush()
            busy += time.monotonic() - started
    report("finished", messages=written, seconds=busy)


# ---- consumers ----------------------------------------------------------------------------------------------


async def consume(task: WorkerTask, gate: Gate) -> None:
    """Handle messages, which here means counting them, until cancelled."""
    counts = HandledCounts(Path(task.counts), task.messages)
    async with od.connect(task.url) as k:
        consumer = k.consumer(task.topics, group=task.group)
        async with consumer as c, anyio.create_task_group() as tasks:
            tasks.start_soon(_report_assignments, c)
            async for batch in c.batches():
                counts.add(value or b"" for value in batch.values)
                batch.done()


async def _report_assignments(c: od.Consumer) -> None:
    before = None
    while True:
        if c.assignment is not before:
            before = c.assignment
            report("assigned", partitions=len(before))
        await anyio.sleep(POLL_SECONDS)


# ---- both ---------------------------------------------------------------------------------------------------


async def work(task: WorkerTask) -> None:
    """Do the task; when standard input ends, stop it and close everything."""
    lines, gate = anyio.create_memory_object_stream[None](len(task.gates))
    async with anyio.create_task_group() as tasks, lines, gate:
        tasks.start_soon(_read_lines, lines, tasks.cancel_scope)
        await {"produce": produce, "consume": consume}[task.role](task, gate)
        tasks.cancel_scope.cancel()


async def _read_lines(lines: MemoryObjectSendStream[None], work: anyio.CancelScope) -> None:
    pipe = sys.stdin.fileno()
    await anyio.wait_readable(pipe)
    while os.read(pipe, 4096):
        lines.send_nowait(None)
        await anyio.wait_readable(pipe)
    work.cancel()


if __name__ == "__main__":
    anyio.run(work, WorkerTask(**json.loads(sys.argv[1])))
