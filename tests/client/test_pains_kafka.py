"""Rows of the pains table about groups and restarts: what users of other clients suffer from, on a real broker."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Literal

import anyio
import anyio.to_thread
import pytest
from tests.loops import ASYNCIO, BOTH, on

import odradek as od
from odradek.client.options import Tuning
from odradek.errors import Fenced
from odradek.io.kafka.driver import KafkaDriver, KafkaOptions
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import NEWEST
from odradek.testing.kafka.requests import ask
from odradek.types import LATEST, Broker
from odradek.wire.kafka.messages.groups import DescribeGroupsRequest

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
anyio_backend = on(ASYNCIO)

PARTITIONS = 2
SESSION_S, BLOCKED_S = 3.0, 6.0
NUMBERS = count()
CONFIG = {
    "group.min.session.timeout.ms": "3000",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "600",
    "group.consumer.heartbeat.interval.ms": "600",
}
"""Members are removed after `SESSION_S` without a heartbeat: under KIP-848 that is the broker's decision."""

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(NEWEST, config=CONFIG) as broker:
        yield broker


def connect(broker: KafkaBroker) -> od.Cluster:
    """A client whose members of classic groups are removed after `SESSION_S` without a heartbeat."""
    options = KafkaOptions(session_timeout_s=SESSION_S, heartbeat_s=SESSION_S / 5)
    return od.Cluster(KafkaDriver([Broker(-1, broker.host, broker.port)], options), Tuning())


@asynccontextmanager
async def topic_with_records(broker: KafkaBroker, records: int) -> AsyncIterator[tuple[od.Cluster, str]]:
    topic = f"pain-{next(NUMBERS)}"
    await anyio.to_thread.run_sync(broker.create_topic, topic, PARTITIONS)
    async with connect(broker) as k:
        async with k.producer() as out:
            values = [b"%d" % n for n in range(records)]
            await out.send_many(topic, [od.ProducerRecord(value, key=value) for value in values])
        yield k, topic


def warnings(caplog: pytest.LogCaptureFixture, blocked: bool = False) -> list[str]:
    """What was warned of; of blocked loops only if the test blocks one: a busy machine does, too."""
    lines = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    return [line for line in lines if blocked or "has blocked the event loop" not in line]


def removals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in warnings(caplog) if "the group has removed this member" in line]


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - of members whose events are not for tests
            await anyio.sleep(0.02)


def has_members(broker: KafkaBroker, group: str) -> bool:
    """Whether a classic group has any, as its broker says."""
    (group_now,) = ask(broker.host, broker.port, DescribeGroupsRequest(groups=(group,)), 5).groups
    return bool(group_now.members)


async def handle_all(
    consumer: od.Consumer, block_s: float, records: int, blocked_while: Callable[[], bool] = lambda: False
) -> Counter[bytes]:
    """Handle so many records; the first handler blocks the event loop: so long, and as long as that is so."""
    handled: Counter[bytes] = Counter()
    with anyio.CancelScope() as scope:

        async def blocking_handler(record: od.Record) -> None:
            if not handled:
                time.sleep(block_s)  # noqa: ASYNC251  this is the pain
                while blocked_while():
                    time.sleep(0.1)  # noqa: ASYNC251
            handled[record.value or b""] += 1
            if handled.total() >= records:
                scope.cancel()

        await consumer.each(blocking_handler, parallel=1)
    return handled


@PROTOCOLS
@pytest.mark.parametrize("anyio_backend", BOTH)  # the thread that sends heartbeats reaches into the loop
async def test_pain_a_handler_that_blocks_the_loop_loses_neither_its_partitions_nor_records(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture, protocol: Literal["classic", "consumer"]
) -> None:
    async with topic_with_records(broker, 20) as (k, topic):
        async with k.consumer(topic, group=topic, group_protocol=protocol) as consumer:
            before, member = consumer.assignment, consumer.consumer_id
            assert await handle_all(consumer, BLOCKED_S, 20) == Counter(b"%d" % n for n in range(20))
            await consumer.commit()  # refused if the member was removed
            assert consumer.assignment is before and consumer.consumer_id == member
        committed = await k.driver.offsets(topic).fetch(await k.partitions(topic))
        assert committed == await k.positions(topic, LATEST)
    (line,) = (line for line in warnings(caplog, blocked=True) if "blocking_handler (" in line)
    assert "test_pains_kafka.py:" in line and "has blocked the event loop" in line
    with anyio.fail_after(10):
        while any(thread.name.startswith("odradek heartbeats") for thread in threading.enumerate()):  # noqa: ASYNC110
            await anyio.sleep(0.01)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("protocol", "max_blocked", "lines"),
    [
        ("classic", 0.0, []),
        ("classic", 2.0, ["has blocked the event loop", "no more heartbeats"]),
    ],
)
async def test_a_loop_that_is_blocked_beyond_the_bound_loses_its_partitions_and_no_record(
    broker: KafkaBroker,
    caplog: pytest.LogCaptureFixture,
    protocol: Literal["classic", "consumer"],
    max_blocked: float,
    lines: list[str],
) -> None:
    async with topic_with_records(broker, 20) as (k, topic):
        async with k.consumer(
            topic, group=topic, group_protocol=protocol, max_blocked=max_blocked, commit_every=None
        ) as consumer:
            with anyio.fail_after(60):
                handled = await handle_all(consumer, BLOCKED_S, 1, lambda: has_members(broker, topic))
                await until(lambda: bool(removals(caplog) and consumer.assignment))
                handled += await handle_all(consumer, 0.0, 20)
        assert handled.keys() == {b"%d" % n for n in range(20)}
    said = [line for line in warnings(caplog, blocked=True) if "blocking_handler (" in line]
    assert len(said) == len(lines) and all(part in line for part, line in zip(lines, said, strict=True)), said
    assert len(removals(caplog)) == 1


async def test_pain_a_handler_slower_than_the_session_is_not_expelled_and_gets_no_record_twice(
    broker: KafkaBroker,
) -> None:
    async with topic_with_records(broker, 2) as (k, topic), k.consumer(topic, group=topic) as consumer:
        before, member, handled = consumer.assignment, consumer.consumer_id, Counter[bytes]()
        with anyio.move_on_after(60) as scope:

            async def slow(record: od.Record) -> None:
                handled[record.value or b""] += 1
                await anyio.sleep(1.5 * SESSION_S)
                if handled.total() == 2:
                    scope.cancel()

            await consumer.each(slow)
        assert handled == {b"0": 1, b"1": 1}
        assert consumer.assignment is before and consumer.consumer_id == member


async def test_pain_a_slow_handler_is_named_before_a_rebalance_cancels_it_and_its_record_is_handled_once(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with topic_with_records(broker, 40) as (k, topic):
        finished, hanging = Counter[tuple[od.TopicPartition, int]](), 0
        partitions = await k.partitions(topic)

        async def handle_slowly(record: od.Record) -> None:
            nonlocal hanging
            if record.position == 0 and len(first.assignment) == PARTITIONS:
                hanging += 1
                await anyio.sleep_forever()
            finished[record.partition, record.position] += 1

        async with (
            k.consumer(topic, group=topic, revoke_within=0.5, assignors=["range"]) as first,
            anyio.create_task_group() as handlers,
        ):
            handlers.start_soon(first.each, handle_slowly)
            await until(lambda: hanging == PARTITIONS)
            async with (
                k.consumer(topic, group=topic, assignors=["range"]) as second,
                anyio.create_task_group() as handlers_of_second,
            ):
                handlers_of_second.start_soon(second.each, handle_slowly)
                ends = await k.positions(topic, LATEST)
                await until(lambda: len(finished) == sum(ends.values()))
                handlers_of_second.cancel_scope.cancel()
                handlers.cancel_scope.cancel()
        assert finished.keys() == {(p, n) for p in partitions for n in range(ends[p])}
        assert set(finished.values()) == {1}
    said = warnings(caplog)
    named = [n for n, line in enumerate(said) if line.startswith("slow: handler") and "handle_slowly" in line]
    cancelled = [n for n, line in enumerate(said) if line.startswith("cancelled because its partition is revoked")]
    assert len(named) == len(cancelled) == PARTITIONS and max(named) < min(cancelled), said


async def test_pain_a_batch_is_kept_for_its_consumer_within_the_bound_and_not_longer(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with topic_with_records(broker, 40) as (k, topic):
        first = k.consumer(topic, group=topic, revoke_within=0.5, commit_every=None)
        async with first:
            batches = [await anext(first.batches()) for _ in range(PARTITIONS)]
            assert {batch.partition for batch in batches} == first.assignment.keys()
            async with k.consumer(topic, group=topic) as second:
                await until(lambda: len(second.assignment) == 1)
                assert [batch.done() for batch in batches if batch.partition in second.assignment] == [False]
                assert (await anext(second.batches())).columns.positions[0] == 0
    slow, ended = warnings(caplog)
    assert f"slow: consumer {first.consumer_id} still processes records of" in slow
    assert "rebalance continues without" in ended


async def test_pain_what_ends_a_consumer_in_the_background_is_raised_where_it_iterates(broker: KafkaBroker) -> None:
    async with topic_with_records(broker, 0) as (k, topic):
        older, newer = (k.consumer(topic, group=topic, consumer_id="one", group_protocol="classic") for _ in range(2))
        async with older, newer:
            with pytest.raises(Fenced, match="one"), anyio.fail_after(60):
                await anext(older)


async def test_pain_a_consumer_survives_restarts_of_its_broker(
    broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with topic_with_records(broker, 10) as (k, topic):
        seen: Counter[bytes] = Counter()

        async def consume() -> None:
            async for record in consumer:
                seen[record.value or b""] += 1

        def arrived(prefix: bytes) -> bool:
            return sum(value.startswith(prefix) for value in seen) == 10

        async with k.consumer(topic, group=topic) as consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(consume)
            await until(lambda: len(seen) == 10)
            for restart in (b"killed", b"terminated"):
                await anyio.to_thread.run_sync(broker.kill if restart == b"killed" else broker.terminate)
                await anyio.to_thread.run_sync(broker.start)
                async with k.producer(deliver_within=60) as out:
                    await out.send_many(topic, [restart + b"%d" % n for n in range(10)])
                await until(partial(arrived, restart))
            tasks.cancel_scope.cancel()
        assert len(seen) == 30
    assert len(warnings(caplog)) < 40, warnings(caplog)
