"""Topics that do not exist, grow, are deleted, and are made again."""

from __future__ import annotations

import json
from collections.abc import Sequence

import anyio
import pytest

import odradek as od
from odradek.testing.kafka.topics import leader_of, wait_for

from .behaviour import Stand, behaviour

DELETES = (0, 9)
NO_DELETES = "brokers before 0.9 delete a topic not at all, or not for certain"


async def delete(stand: Stand, topic: str) -> None:
    """Delete a topic and wait until no broker knows it."""
    if stand.has(0, 10, 1):
        async with stand.connect(direct=True) as cluster:
            (await cluster.admin.delete_topics(topic)).check()
    else:
        await stand.run(stand.cluster.brokers[0].setup.create, f"/admin/delete_topics/{topic}", {})

    def is_gone() -> bool:
        return all(topic not in {each.name for each in broker.metadata().topics} for broker in stand.cluster.brokers)

    await stand.run(wait_for, f"the end of {topic}", is_gone, 60.0)
    if stand.cluster.mode == "zookeeper":
        setup = stand.cluster.brokers[0].setup
        path = f"/admin/delete_topics/{topic}"
        await stand.run(wait_for, f"the deletion of {topic}", lambda: not setup.nodes(path), 60.0)


async def make_again(stand: Stand, topic: str, values: Sequence[bytes]) -> None:
    await delete(stand, topic)
    await stand.run(stand.cluster.create_topic, topic, 1, 1)
    await stand.write(topic, values, deliver_within=60.0)


@behaviour("a topic that does not exist: sending to it is an error that names it")
async def sending_to_no_topic(stand: Stand) -> None:
    async with stand.producer(deliver_within=3.0) as out:
        with pytest.raises((od.Rejected, od.NotWritten), match="no-such-topic"):
            await out.send("no-such-topic", b"v")


@behaviour("a partition that does not exist is refused at once, with the number of those that do")
async def sending_to_no_partition(stand: Stand) -> None:
    topic = await stand.create_topic(3)
    async with stand.producer() as out:
        await out.send(topic, b"v", partition=2)
        with anyio.fail_after(15), pytest.raises(od.Rejected, match="3"):
            await out.send(topic, b"v", partition=99)


@behaviour("a topic grows: a reader gets what is in the new partitions, from their first record on")
async def a_topic_grows_under_a_reader(stand: Stand) -> None:
    topic = await stand.create_topic()
    read: dict[int, list[bytes | None]] = {}

    async def follow(reader: od.Reader) -> None:
        async for record in reader:
            read.setdefault(record.partition.partition, []).append(record.value)
            if len(read.get(1, [])) == 3:
                return

    async with (
        stand.connect_attentive() as cluster,
        cluster.reader(topic) as reader,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(follow, reader)
        await stand.write(topic, [b"before"])
        await grow(stand, topic)
        async with stand.producer(deliver_within=60.0) as out:
            for n in range(3):
                await out.send(topic, b"%d" % n, partition=1)
    assert read == {0: [b"before"], 1: [b"0", b"1", b"2"]}


async def grow(stand: Stand, topic: str) -> None:
    """Add a partition, and wait until every broker knows its leader."""
    if stand.has(1, 0):
        async with stand.connect(direct=True) as cluster:
            (await cluster.admin.add_partitions({topic: 2})).check()
    else:
        broker = stand.cluster.brokers[0]
        replicas = [each.broker_id for each in await stand.replicas(topic)]
        nodes = json.dumps({"version": 1, "partitions": {"0": replicas, "1": replicas}}).encode()
        path = f"/{broker.zookeeper_connect.partition('/')[2]}/brokers/topics/{topic}"
        await stand.run(broker.zookeeper.set, path, nodes)

    def has_grown() -> bool:
        return all(leader_of(broker, topic, 1) > 0 for broker in stand.cluster.brokers)

    await stand.run(wait_for, f"the second partition of {topic}", has_grown, 60.0)


async def _read_one_that_is_made_again(stand: Stand, old: int, new: int, error: type[od.OdradekError]) -> None:
    topic = await stand.create_topic()
    await stand.write(topic, [b"old"] * old)
    async with stand.connect() as cluster, cluster.reader(topic) as reader:
        for _ in range(old):
            await anext(reader)
        await make_again(stand, topic, [b"new"] * new)
        with pytest.raises(error):
            await anext(reader)


@behaviour(
    "a topic is made again, shorter: the reader's position is out of range",
    since=DELETES,
    without=NO_DELETES,
)
async def a_topic_is_made_again_shorter(stand: Stand) -> None:
    await _read_one_that_is_made_again(stand, 10, 3, od.OffsetOutOfRange)


@behaviour(
    "a topic is made again, longer: TopicRecreated, nothing of it is skipped",
    since=(2, 8),
    without="topics have ids from 2.8 on: before, the new log cannot be told from the old one",
)
async def a_topic_is_made_again_longer(stand: Stand) -> None:
    await _read_one_that_is_made_again(stand, 5, 20, od.TopicRecreated)


@behaviour(
    "a topic is made again: `reset=EARLIEST` reads all that is in the new one",
    since=DELETES,
    without=NO_DELETES,
)
async def a_topic_is_made_again_and_read_from_its_start(stand: Stand) -> None:
    topic = await stand.create_topic()
    await stand.write(topic, [b"old"] * 10)
    async with stand.connect() as cluster, cluster.reader(topic, reset=od.EARLIEST) as reader:
        for _ in range(10):
            await anext(reader)
        await make_again(stand, topic, [b"%d" % n for n in range(5)])
        assert [(await anext(reader)).value for _ in range(5)] == [b"%d" % n for n in range(5)]


@behaviour(
    "a topic is made again under a producer: what it sends then is in the new one, once",
    since=DELETES,
    without=NO_DELETES,
)
async def a_topic_is_made_again_under_a_producer(stand: Stand) -> None:
    topic = await stand.create_topic()
    async with stand.producer(deliver_within=60.0) as out:
        for n in range(5):
            await out.send(topic, b"old %d" % n, partition=0)
        await delete(stand, topic)
        await stand.run(stand.cluster.create_topic, topic, 1, 1)
        for n in range(5):
            await out.send(topic, b"new %d" % n, partition=0)
    assert await stand.values(topic) == [b"new %d" % n for n in range(5)]


@behaviour(
    "a topic that is deleted under a producer: an error that says so, and other topics go on",
    since=DELETES,
    without=NO_DELETES,
)
async def a_topic_is_deleted_under_a_producer(stand: Stand) -> None:
    topic, other = await stand.create_topic(), await stand.create_topic()
    async with stand.producer(deliver_within=5.0) as out:
        await out.send(topic, b"v", partition=0)
        await delete(stand, topic)
        with pytest.raises((od.NotWritten, od.Rejected), match=topic):
            await out.send(topic, b"v", partition=0)
        await out.send(other, b"v", partition=0)
    assert await stand.values(other) == [b"v"]
