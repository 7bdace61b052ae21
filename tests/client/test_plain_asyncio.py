"""A program under `asyncio.run`, without anyio, as most users write it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

import odradek as od
from odradek.testing import Kafka07Broker

from ..payloads import payload


async def write_and_read(url: str, topic: str) -> list[bytes]:
    async with od.connect(url) as cluster:
        async with cluster.producer() as out:
            await out.send(topic, b"0")  # makes the topic: the producer looks it up again, in a callback
            await asyncio.gather(*(out.send(topic, b"%d" % number) for number in range(1, 100)))
            (await out.send_many(topic, [bytes(200_000) for _ in range(40)])).check()
        async with cluster.reader(topic, start=od.EARLIEST, until=od.LATEST) as reader:
            return [payload(record.value) async for record in reader]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_program_that_knows_nothing_of_anyio(run: Callable[[Awaitable[list[bytes]]], list[bytes]]) -> None:
    with Kafka07Broker(config={"log.flush.interval": "1"}) as broker:
        values = run(write_and_read(f"kafka07://{broker.address}", "plain"))
    assert sorted(value for value in values if len(value) < 9) == sorted(b"%d" % number for number in range(100))
    assert len(values) == 140
