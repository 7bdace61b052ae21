"""Rows of the pains table about groups and restarts: what users of other clients suffer from, on a real broker."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count

import anyio
import anyio.to_thread
import pytest

import odradek as od
from odradek.client.options import Tuning
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import NEWEST
from odradek.types import LATEST, Broker

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

PARTITIONS = 2
SESSION_S, BLOCKED_S = 1.5, 4.0
NUMBERS = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(NEWEST, config={"group.min.session.timeout.ms": "1000"}) as broker:
        yield broker


def connect(broker: KafkaBroker) -> od.Cluster:
    """A client whose members are removed after `SESSION_S` without a heartbeat."""
    options = KafkaOptions(group_session_timeout_s=SESSION_S, heartbeat_s=SESSION_S / 5)
    return od.Cluster(KafkaDriver([Broker(-1, broker.host, broker.port)], options), Tuning())


@asynccontextmanager
async def topic_with_records(broker: KafkaBroker, records: int) -> AsyncIterator[tuple[od.Cluster, str]]:
    topic = f"pain-{next(NUMBERS)}"
    await anyio.to_thread.run_sync(broker.create_topic, topic, PARTITIONS)
    async with connect(broker) as k:
        async with k.producer() as out:
            await out.send_many(topic, [b"%d" % n for n in range(records)])
        yield k, topic


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]


async def handle_all(consumer: od.Consumer, block_s: float, records: int) -> Counter[bytes]:
    """Handle so many records; the first handler blocks the event loop."""
    handled: Counter[bytes] = Counter()
    with anyio.CancelScope() as scope:

        async def blocking_handler(record: od.Record) -> None:
            if not handled:
                time.sleep(block_s)  # noqa: ASYNC251  this is the pain
            handled[record.value or b""] += 1
            if handled.total() >= records:
                scope.cancel()

        await consumer.each(blocking_handler, parallel=1)
    return handled


async def test_pain_a_handler_that_blocks_the_loop_loses_neither_its_partitions_nor_records(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with topic_with_records(broker, 20) as (k, topic):
        async with k.consumer(topic, group=topic) as consumer:
            before, member = consumer.assignment, consumer.consumer_id
            assert await handle_all(consumer, BLOCKED_S, 20) == Counter(b"%d" % n for n in range(20))
            await anyio.sleep(2 * SESSION_S)  # a member that was removed would have heard of it by now
            assert consumer.assignment is before and consumer.consumer_id == member
            await consumer.commit()
        committed = await k.driver.offsets(topic).fetch(await k.partitions(topic))
        assert committed == await k.positions(topic, LATEST)
    (line,) = warnings(caplog)
    assert "blocking_handler (" in line and "test_pains_kafka.py:" in line and "has blocked the event loop" in line
    with anyio.fail_after(10):
        while any(thread.name.startswith("odradek heartbeats") for thread in threading.enumerate()):  # noqa: ASYNC110
            await anyio.sleep(0.01)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("max_blocked", "lines"), [(0.0, []), (1.0, ["has blocked the event loop", "no more heartbeats"])]
)
async def test_a_loop_that_is_blocked_beyond_the_bound_loses_its_partitions_and_no_record(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture, max_blocked: float, lines: list[str]
) -> None:
    async with topic_with_records(broker, 20) as (k, topic):
        async with k.consumer(topic, group=topic, max_blocked=max_blocked, commit_every=None) as consumer:
            member = consumer.consumer_id
            with anyio.fail_after(60):
                handled = await handle_all(consumer, BLOCKED_S, 1)
                while consumer.consumer_id in ("", member) or not consumer.assignment:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
                handled += await handle_all(consumer, 0.0, 20)
        assert handled.keys() == {b"%d" % n for n in range(20)}
    said = [line for line in warnings(caplog) if "removed this member" not in line]
    assert len(said) == len(lines) and all(part in line for part, line in zip(lines, said, strict=True)), said
    assert any("the group has removed this member" in line for line in warnings(caplog))
