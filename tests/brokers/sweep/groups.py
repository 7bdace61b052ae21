"""Groups: shared, rebalanced by each protocol, blocked, with coordinators that end, and what is stored of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio
import pytest

import odradek as od
from odradek.io.kafka.coordinators import CoordinatorType

from .behaviour import Stand, behaviour
from .topics import grow, make_again
from .transactions import coordinator

CLASSIC: Any = {"since": (0, 9), "without": "groups came with 0.9"}
CONSUMER: Any = {"since": (4,), "without": "the protocol in which brokers assign is ready from 4.0 on"}
COUNT = 60


def options(group: str, protocol: str = "classic") -> dict[str, Any]:
    return {"group": group, "group_protocol": protocol, "join_within": 60.0, "start": od.EARLIEST, "exit_within": 30.0}


def new_group() -> str:
    return f"g{uuid4().hex[:12]}"


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - of members whose events are not for tests
        await anyio.sleep(0.02)


async def take(consumer: od.Consumer, taken: Counter[bytes | None]) -> None:
    """Count what this member gets, and mark it as done."""
    async for batch in consumer.batches():
        taken.update(record.value for record in batch)
        batch.done()


@asynccontextmanager
async def taking(consumer: od.Consumer, taken: Counter[bytes | None]) -> AsyncIterator[None]:
    """Have a member take records until the block ends."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, consumer, taken)
        yield
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def fill(stand: Stand, topic: str, partitions: int) -> AsyncIterator[list[bytes]]:
    """Write records to each partition, and more until the block ends; the list has all of them."""
    values: list[bytes] = []

    async def write(out: od.Producer, count: int) -> None:
        for _ in range(count):
            values.append(b"%d" % len(values))
            await out.send(topic, values[-1], partition=len(values) % partitions)

    async def go_on(out: od.Producer) -> None:
        while not stop.is_set():
            await write(out, 1)
            await anyio.sleep(0.05)

    stop = anyio.Event()
    async with stand.producer(deliver_within=60.0) as out, anyio.create_task_group() as tasks:
        await write(out, COUNT)
        tasks.start_soon(go_on, out)
        try:
            yield values
        finally:
            stop.set()


async def _share(stand: Stand, protocol: str, **more: Any) -> None:
    topic, group = await stand.create_topic(4), new_group()
    taken: Counter[bytes | None] = Counter()
    async with (
        fill(stand, topic, 4) as values,
        stand.connect() as cluster,
        cluster.consumer(topic, **options(group, protocol), **more) as first,
        taking(first, taken),
    ):
        await until(lambda: len(first.assignment) == 4)
        async with cluster.consumer(topic, **options(group, protocol), **more) as second, taking(second, taken):
            await until(lambda: len(first.assignment) == len(second.assignment) == 2)
            assert not first.assignment.keys() & second.assignment.keys()
            count = len(values)
            await until(lambda: taken.keys() >= set(values[:count]))
    async with stand.connect() as cluster, cluster.consumer(topic, **options(group, protocol), **more) as last:
        batches = aiter(last.batches())
        with anyio.fail_after(60):
            while not taken.keys() >= set(values):
                batch = await anext(batches)
                taken.update(record.value for record in batch)
                batch.done()
    assert taken == Counter(values)


@behaviour("classic: a member joins, both leave, another continues: each record once", **CLASSIC)
async def members_share_a_topic_by_the_classic_protocol(stand: Stand) -> None:
    await _share(stand, "classic")


@behaviour("cooperative: a member joins, both leave, another continues: each record once", **CLASSIC)
async def members_share_a_topic_by_cooperative_rebalances(stand: Stand) -> None:
    await _share(stand, "classic", assignors=["cooperative-sticky"])


@behaviour("consumer (KIP-848): a member joins, both leave, another continues: each record once", **CONSUMER)
async def members_share_a_topic_by_the_consumer_protocol(stand: Stand) -> None:
    await _share(stand, "consumer")


async def _block(stand: Stand, protocol: str) -> None:
    """Block a member's loop for half of its session again and again: its heartbeats go on beside."""
    topic, group = await stand.create_topic(4), new_group()
    taken: Counter[bytes | None] = Counter()
    async with (
        fill(stand, topic, 4) as values,
        stand.connect() as cluster,
        cluster.consumer(topic, **options(group, protocol)) as member,
        taking(member, taken),
    ):
        await until(lambda: len(member.assignment) == 4)
        joined = member.consumer_id
        for _ in range(3):
            time.sleep(5)  # noqa: ASYNC251 - that is what is tried
            await anyio.sleep(0.2)
        assert (member.consumer_id, len(member.assignment)) == (joined, 4)
        count = len(values)
        await until(lambda: taken.keys() >= set(values[:count]))
    assert taken.total() == len(taken)


@behaviour("classic: a member whose loop is blocked keeps its partitions", **CLASSIC, slow=True)
async def a_blocked_member_of_the_classic_protocol(stand: Stand) -> None:
    await _block(stand, "classic")


@behaviour("consumer (KIP-848): a member whose loop is blocked keeps its partitions", **CONSUMER, slow=True)
async def a_blocked_member_of_the_consumer_protocol(stand: Stand) -> None:
    await _block(stand, "consumer")


async def _kill_coordinator(stand: Stand, protocol: str) -> None:
    topic, group = await stand.create_topic(4, 3), new_group()
    taken: Counter[bytes | None] = Counter()
    async with (
        fill(stand, topic, 4) as values,
        stand.connect() as cluster,
        cluster.consumer(topic, **options(group, protocol)) as member,
        taking(member, taken),
    ):
        await until(lambda: taken.total() > 20)
        await member.commit()
        broker = await coordinator(stand, CoordinatorType.GROUP, group)
        await stand.run(broker.kill)
        count = len(values) + 20
        await until(lambda: len(values) > count and taken.keys() >= set(values[:count]))
        await stand.run(broker.start)
        await until(lambda: len(member.assignment) == 4)
    async with stand.connect() as cluster:
        stored = await cluster.driver.offsets(group).fetch(await cluster.partitions(topic))
    assert sum(position or 0 for position in stored.values()) >= count


@behaviour("classic: the coordinator is killed: the group goes on, and what is done is stored", **CLASSIC, slow=True)
async def the_coordinator_is_killed_under_the_classic_protocol(stand: Stand) -> None:
    await _kill_coordinator(stand, "classic")


@behaviour(
    "consumer (KIP-848): the coordinator is killed: the group goes on, and what is done is stored",
    **CONSUMER,
    slow=True,
)
async def the_coordinator_is_killed_under_the_consumer_protocol(stand: Stand) -> None:
    await _kill_coordinator(stand, "consumer")


@behaviour("seek back, commit: the group continues there", **CLASSIC)
async def seeking_back_is_stored(stand: Stand) -> None:
    topic, group = await stand.create_topic(), new_group()
    where = od.TopicPartition(topic, 0)
    await stand.write(topic, [b"%d" % n for n in range(10)])
    async with stand.connect() as cluster:
        async with cluster.consumer(topic, **options(group)) as member:
            async for batch in member.batches():
                batch.done()
                if max(record.next_position for record in batch) == 10:
                    break
            assert (await member.commit())[where] == 10
            member.seek(where, od.Position(4))
            await member.commit()
        async with cluster.consumer(topic, **options(group)) as member:
            assert (await anext(aiter(member))).position == 4


async def _continue(stand: Stand, protocol: str) -> None:
    """Let members take turns while the leader of the partition moves in between and in the middle."""
    topic, group = await stand.create_topic(1, 3), new_group()
    positions: list[int] = []
    for number in range(4):
        await stand.write(topic, [b"%d" % n for n in range(5)], deliver_within=60.0)
        async with stand.connect() as cluster, cluster.consumer(topic, **options(group, protocol)) as member:
            batches = aiter(member.batches(max_records=1))
            for n in range(3 if number % 2 else 5):
                batch = await anext(batches)
                positions += [record.position for record in batch]
                batch.done()
                if n == 1:
                    await stand.move_leader(topic)
    assert positions == list(range(16))


@behaviour("classic: the next member continues where the last one ended, however leaders moved", **CLASSIC)
async def the_next_member_of_the_classic_protocol_continues(stand: Stand) -> None:
    await _continue(stand, "classic")


@behaviour("consumer (KIP-848): the next member continues where the last one ended, however leaders moved", **CONSUMER)
async def the_next_member_of_the_consumer_protocol_continues(stand: Stand) -> None:
    await _continue(stand, "consumer")


@behaviour("a topic is made again under a group: `reset=EARLIEST` gives it all of the new one", **CLASSIC)
async def a_topic_is_made_again_under_a_group(stand: Stand) -> None:
    topic, group = await stand.create_topic(), new_group()
    taken: Counter[bytes | None] = Counter()
    old, new = [b"old %d" % n for n in range(10)], [b"new %d" % n for n in range(5)]
    await stand.write(topic, old)
    async with (
        stand.connect_attentive() as cluster,
        cluster.consumer(topic, **options(group), reset=od.EARLIEST) as member,
        taking(member, taken),
    ):
        await until(lambda: len(taken) == len(old))
        await member.commit()
        await make_again(stand, topic, new)
        await until(lambda: len(taken) == len(old) + len(new))
    assert taken == Counter(old + new)


@behaviour("a topic grows: its group gets the new partition, from its first record on", **CLASSIC)
async def a_topic_grows_under_a_group(stand: Stand) -> None:
    topic, group = await stand.create_topic(), new_group()
    taken: Counter[bytes | None] = Counter()
    await stand.write(topic, [b"before"])
    async with (
        stand.connect_attentive() as cluster,
        cluster.consumer(topic, **options(group)) as member,
        taking(member, taken),
    ):
        await until(lambda: taken.total() == 1)
        await grow(stand, topic)
        async with stand.producer(deliver_within=60.0) as out:
            await out.send(topic, b"after", partition=1)
        await until(lambda: taken.total() == 2)
    assert taken == Counter([b"before", b"after"])


@behaviour(
    "a member that is silent for longer than its session loses its partitions, and says so",
    since=(0, 10, 2),
    without="groups came with 0.9, and before 0.10.2 brokers reach each other through the proxies, too",
    proxied=True,
    slow=True,
)
async def a_silent_member_loses_its_partitions(stand: Stand) -> None:
    topic, group = await stand.create_topic(2), new_group()
    await stand.write(topic, [b"%d" % n for n in range(5)])
    lines = [broker.proxy for broker in stand.cluster.brokers]
    async with stand.connect() as cluster, cluster.consumer(topic, **options(group)) as silent:
        batch = await anext(aiter(silent.batches()))
        for line in lines:
            line.stall()
        async with stand.connect(direct=True) as direct:
            limit = time.monotonic() + 60
            while (await direct.admin.describe_groups(group)).check()[group].members:
                assert time.monotonic() < limit
                await anyio.sleep(0.5)
        for line in lines:
            line.heal()
            line.cut()
        batch.done()
        await until(lambda: len(silent.assignment) == 2)
        again = await anext(aiter(silent.batches()))
        assert next(iter(again)).position == 0


@behaviour(
    "positions of a group are stored and read without members",
    since=(0, 8, 1),
    without="0.8.0 stores no positions",
)
async def positions_are_stored_without_members(stand: Stand) -> None:
    topic, group = await stand.create_topic(2), new_group()
    async with stand.connect() as cluster:
        offsets, partitions = cluster.driver.offsets(group), await cluster.partitions(topic)
        assert set((await offsets.fetch(partitions)).values()) == {None}
        await offsets.commit({partitions[1]: od.Position(2)})
    async with stand.connect() as cluster:
        assert await cluster.driver.offsets(group).fetch(partitions) == {partitions[0]: None, partitions[1]: 2}


@behaviour("a group is refused, and the first release that has them named", before=(0, 9), without="0.9 has them")
async def groups_are_refused(stand: Stand) -> None:
    topic = await stand.create_topic()
    async with stand.connect() as cluster:
        with pytest.raises(od.Unsupported, match=r"0\.9"):
            cluster.consumer(topic, group="g", group_protocol="classic")
