"""Retry topics on a real broker, while consumers and processes are restarted between the attempts."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import anyio
import pytest
from anyio import to_thread

import odradek as od
from odradek.testing import KafkaBroker

from .retrying import handle_all, retry_topics
from .topics import values

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

RECORDS = [b"fails always", b"fails twice"]
SCRIPT = Path(__file__).with_name("retrying.py")


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough for what real brokers do."""
    return "asyncio"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(60):
        while not await condition():  # noqa: ASYNC110 - brokers have no events for tests
            await anyio.sleep(0.05)


async def test_a_record_is_retried_until_it_is_a_dead_letter_whatever_is_restarted(odradek_kafka: KafkaBroker) -> None:
    """The first process is killed, in the middle of the second attempts; the next consumer leaves after them."""
    topic, bootstrap = uuid4().hex, odradek_kafka.bootstrap
    soon, later = retry_topics(topic)
    for name in (topic, soon, later, f"{topic}-failed"):
        await to_thread.run_sync(odradek_kafka.create_topic, name, 1)
    async with od.connect(f"kafka://{bootstrap}") as k:
        async with k.producer() as out:
            await out.send_many(topic, RECORDS)
        partitions = [od.TopicPartition(name, 0) for name in (topic, soon, later)]

        async def committed() -> list[int]:
            positions = await k.driver.offsets(topic).fetch(partitions)
            return [int(positions[partition] or 0) for partition in partitions]

        async def is_committed(*expected: int) -> bool:
            return all(now >= then for now, then in zip(await committed(), expected, strict=True))

        process = await anyio.open_process([sys.executable, str(SCRIPT), bootstrap, topic])
        try:
            await until(lambda: is_committed(2, 0, 0))
        finally:
            process.kill()
            await process.wait()
            await process.aclose()
        assert sorted(await values(k, soon), key=str) == RECORDS and await values(k, later) == []
        handled, ends = list[tuple[str, bytes | None, bytes]](), False

        async def handle(record: od.Record) -> None:
            if record.topic == later and not ends:
                await anyio.sleep_forever()
            handled.append((record.topic, record.value, dict(record.headers)["odradek.attempts"] or b""))
            if record.topic == soon or record.value == b"fails always":
                raise ValueError(f"attempt in {record.topic}")

        async def run_until(*expected: int) -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(handle_all, bootstrap, topic, handle)
                await until(lambda: is_committed(*expected))
                tasks.cancel_scope.cancel()

        await run_until(2, 2, 0)
        ends = True
        await run_until(2, 2, 2)
        assert {entry for entry in handled if entry[0] == soon} == {(soon, value, b"1") for value in RECORDS}
        assert {entry for entry in handled if entry[0] == later} == {(later, value, b"2") for value in RECORDS}
        async with k.reader(f"{topic}-failed", until=od.LATEST) as reader:
            dead = [record async for record in reader]
    assert [record.value for record in dead] == [b"fails always"]
    headers = dict(dead[0].headers)
    assert (headers["odradek.topic"], headers["odradek.position"]) == (topic.encode(), b"0")
    assert (headers["odradek.attempts"], headers["odradek.error_type"]) == (b"3", b"ValueError")
