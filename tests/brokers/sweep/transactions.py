"""Transactions: what is committed, aborted, fenced, and what a coordinator that ends does to them."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import anyio
import pytest

import odradek as od
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.testing import KafkaBroker

from .behaviour import Stand, behaviour

SINCE: Any = {"since": (0, 11), "without": "transactions came with 0.11"}


def new_id() -> str:
    return f"x{uuid4().hex[:12]}"


async def coordinator(stand: Stand, kind: CoordinatorType, name: str) -> KafkaBroker:
    """Return the broker that is the coordinator, as soon as there is one."""
    async with stand.connect(direct=True) as cluster:
        driver: Any = cluster.driver
        while True:
            try:
                node = await driver.coordinators.find(kind, name)
            except od.BrokerError as error:
                if not error.retriable:
                    raise
                await anyio.sleep(0.1)
            else:
                return next(each for each in stand.cluster.brokers if each.broker_id == node.id)


async def write(out: od.Producer, topic: str, value: bytes) -> None:
    async with out.transaction():
        await out.send(topic, value, partition=0)


@behaviour("what is committed is read, what is aborted is not; both are read without read_committed", **SINCE)
async def committed_and_aborted(stand: Stand) -> None:
    topic = await stand.create_topic()
    async with stand.producer(transactional_id=new_id()) as out:
        await write(out, topic, b"1")
        with pytest.raises(ValueError, match="no"):
            async with out.transaction():
                await out.send(topic, b"2", partition=0)
                raise ValueError("no")
        await write(out, topic, b"3")
    assert await stand.committed(topic) == [b"1", b"3"]
    assert await stand.values(topic) == [b"1", b"2", b"3"]


@behaviour("a reader of committed records gets those of an open transaction when it is committed", **SINCE)
async def an_open_transaction_is_not_read(stand: Stand) -> None:
    topic = await stand.create_topic()
    async with (
        stand.producer(transactional_id=new_id()) as out,
        stand.connect() as cluster,
        cluster.reader(topic, isolation="read_committed") as reader,
    ):
        async with out.transaction():
            await out.send(topic, b"open", partition=0)
            await stand.write(topic, [b"plain"])
            with anyio.move_on_after(2) as waited:
                await anext(reader)
            assert waited.cancelled_caught
            assert await stand.values(topic, isolation="read_committed") == []
        assert [(await anext(reader)).value for _ in range(2)] == [b"open", b"plain"]


@behaviour("a second producer with the id fences the first, whose open transaction is aborted", **SINCE)
async def a_second_producer_fences_the_first(stand: Stand) -> None:
    topic, name = await stand.create_topic(), new_id()
    async with stand.connect() as cluster:
        with pytest.raises(od.Fenced):
            async with (
                cluster.producer(transactional_id=name, exit_within=10.0) as first,
                first.transaction(),
            ):
                await first.send(topic, b"first", partition=0)
                async with stand.producer(transactional_id=name) as second:
                    await write(second, topic, b"second")
                await first.send(topic, b"more", partition=0)
    assert await stand.committed(topic) == [b"second"]


@behaviour(
    "the coordinator is killed inside of a transaction: it is committed or aborted as a whole", **SINCE, slow=True
)
async def the_coordinator_of_a_transaction_is_killed(stand: Stand) -> None:
    topic, name = await stand.create_topic(replicas=3), new_id()
    options: Any = {"deliver_within": 60.0, "exit_within": 60.0}
    committed: list[bytes] = []
    async with stand.producer(transactional_id=name, **options) as out:
        await write(out, topic, b"before")
        broker = await coordinator(stand, CoordinatorType.TRANSACTION, name)
        try:
            async with out.transaction():
                for n in range(5):
                    await out.send(topic, b"%d" % n, partition=0)
                await stand.run(broker.kill)
                for n in range(5, 10):
                    await out.send(topic, b"%d" % n, partition=0)
            committed = [b"%d" % n for n in range(10)]
        except od.TransactionAborted:
            pass
        finally:
            await stand.run(broker.start)
        await write(out, topic, b"after")
    expected = [b"before", *committed, b"after"]
    assert await stand.committed(topic) == expected


@behaviour("records are written and positions stored together: a group reads each input once", **SINCE)
async def positions_are_part_of_transactions(stand: Stand) -> None:
    source, target, group = await stand.create_topic(2), await stand.create_topic(), new_id()
    async with stand.producer() as out:
        for n in range(20):
            await out.send(source, b"%d" % n, partition=n % 2)
    options: Any = {"group": group, "group_protocol": "classic", "join_within": 60.0, "isolation": "read_committed"}
    seen = 0
    for limit in (7, 20):
        async with (
            stand.connect() as cluster,
            cluster.producer(transactional_id=group) as out,
            cluster.consumer(source, start=od.EARLIEST, **options) as consumer,
        ):
            async for batch in consumer.batches(max_records=5):
                async with out.transaction() as transaction:
                    for record in batch:
                        await out.put(target, record.value, partition=0)
                    transaction.done(batch)
                seen += len(batch)
                if seen >= limit:
                    break
    values = await stand.committed(target)
    assert sorted(int(value or b"-1") for value in values) == list(range(20))
