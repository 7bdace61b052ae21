"""Programs of transactions see the same of a cluster in memory as of a real broker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from itertools import count
from uuid import uuid4

import anyio
from anyio import to_thread
from hypothesis import Phase, given, settings
from tests.testing.transaction_programs import SOURCE_RECORDS, Run, Seen, Step, programs, run_program

import odradek as od
from odradek.testing import KafkaBroker, MemoryCluster

PROGRAMS = int(os.environ.get("ODRADEK_PROGRAMS", "4"))
"""Programs that run on a real broker."""

NAME, NUMBERS = uuid4().hex, count()


async def in_memory(name: str, steps: Sequence[Step]) -> list[Seen]:
    cluster = MemoryCluster({f"{name}-in": 1, f"{name}-out": 2})
    cluster.append(f"{name}-in", [b"%d" % n for n in range(SOURCE_RECORDS)])
    seen: list[Seen] = []

    async def observe(number: int, step: Step, run: Run, outcome: list[str]) -> None:
        seen.append(await run.observe(outcome))

    async with cluster.connect() as k:
        await run_program(k, name, steps, observe)
    return seen


async def on_broker(broker: KafkaBroker, name: str, steps: Sequence[Step], expected: Sequence[Seen]) -> None:
    """Run a program on a real broker. It has to be seen what is expected; markers are written after the commit has
    been answered."""
    await to_thread.run_sync(broker.create_topic, f"{name}-in", 1)
    await to_thread.run_sync(broker.create_topic, f"{name}-out", 2)

    async def observe(number: int, step: Step, run: Run, outcome: list[str]) -> None:
        seen = await run.observe(outcome)
        with anyio.move_on_after(30):
            while seen != expected[number]:
                await anyio.sleep(0.02)
                seen = await run.observe(outcome)
        for field, real, memory in zip(Seen._fields, seen, expected[number], strict=True):
            assert real == memory, f"{field} after step {number}, {step}"

    async with od.connect(f"kafka://{broker.bootstrap}") as k:
        async with k.producer() as out:
            await out.send_many(f"{name}-in", [b"%d" % n for n in range(SOURCE_RECORDS)])
        await run_program(k, name, steps, observe)


@settings(max_examples=PROGRAMS, database=None, derandomize=PROGRAMS == 4, phases=[Phase.generate])
@given(steps=programs())
def test_a_program_sees_the_same_in_memory_and_on_a_real_broker(odradek_kafka: KafkaBroker, steps: list[Step]) -> None:
    name = f"{NAME}-{next(NUMBERS)}"
    expected = anyio.run(in_memory, name, steps)
    anyio.run(partial(on_broker, odradek_kafka, name, steps, expected))
