"""Programs of transactions see the same of a cluster in memory as of a real broker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from uuid import uuid4

import anyio
import pytest
from anyio import to_thread
from tests.testing.transaction_programs import SOURCE_RECORDS, Run, Seen, Step, make_program, run_program

import odradek as od
from odradek.testing import KafkaBroker, MemoryCluster

SEEDS = range(int(os.environ["ODRADEK_PROGRAMS"])) if "ODRADEK_PROGRAMS" in os.environ else (1, 10)
"""Seeds of the programs that run on a real broker; ODRADEK_PROGRAMS=100 runs that many."""


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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_sees_the_same_in_memory_and_on_a_real_broker(odradek_kafka: KafkaBroker, seed: int) -> None:
    name, steps = uuid4().hex, make_program(seed)
    expected = anyio.run(in_memory, name, steps)
    assert anyio.run(in_memory, name, steps, backend="trio") == expected
    anyio.run(on_broker, odradek_kafka, name, steps, expected)
