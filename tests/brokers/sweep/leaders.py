"""Leaders that move, brokers that end and freeze, lines that break, logs that are cut: for readers and producers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio

import odradek as od
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import KRAFT
from odradek.testing.kafka.requests import ask
from odradek.testing.kafka.topics import leader_of, wait_for
from odradek.wire.kafka.messages.admin import ElectLeadersRequest
from odradek.wire.kafka.messages.common import TopicPartitions

from .behaviour import Stand, behaviour

COUNT = 120
UNCLEAN = 1
"""The type of an election among replicas that are not in sync (KIP-460)."""
Break = Callable[[Stand, str], Awaitable[None]]


async def _nothing_is_lost(stand: Stand, break_something: Break, *, replicas: int = 3) -> None:
    """Send and read records one by one while things break: each is read once, and in order.

    Where the producer is not idempotent (before 0.11), a record may be in the log twice, if its Ack says so.
    """
    topic = await stand.create_topic(replicas=replicas)
    values = [b"%d" % n for n in range(COUNT)]
    read: list[od.Record] = []
    repeated: set[bytes] = set()

    async def follow(reader: od.Reader) -> None:
        async for record in reader:
            read.append(record)
            if record.value == b"end":
                return

    async def break_and_set() -> None:
        await break_something(stand, topic)
        broken.set()

    broken = anyio.Event()
    options = {"deliver_within": 120.0, "exit_within": 60.0}
    async with (
        stand.producer(**options) as out,
        stand.connect() as cluster,
        cluster.reader(topic) as reader,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(follow, reader)
        tasks.start_soon(break_and_set)
        for n, value in enumerate(values):
            if n == COUNT - 20:
                await broken.wait()
            if (await out.send(topic, value, partition=0)).repeated:
                repeated.add(value)
            await anyio.sleep(0.02)
        await out.send(topic, b"end", partition=0)
    stored = await stand.stored(topic)
    assert [record.position for record in read] == [record.position for record in stored][: len(read)]
    assert [record.value for record in read] == [record.value for record in stored][: len(read)]
    once = list(dict.fromkeys(record.value for record in read))
    assert once == [*values, b"end"]
    doubled = {record.value for record in stored if sum(other.value == record.value for other in stored) > 1}
    assert doubled <= repeated
    assert not (stand.has(0, 11) and doubled)


async def _move_twice(stand: Stand, topic: str) -> None:
    for _ in range(2):
        await stand.move_leader(topic)
        await anyio.sleep(0.3)


async def _kill(stand: Stand, topic: str) -> None:
    leader = await stand.leader(topic)
    await stand.run(leader.kill)
    await stand.leader(topic)
    await stand.run(leader.start)


async def _terminate(stand: Stand, topic: str) -> None:
    leader = await stand.leader(topic)
    await stand.run(leader.terminate)
    await stand.leader(topic)
    await stand.run(leader.start)


async def _freeze(stand: Stand, topic: str) -> None:
    leader = await stand.leader(topic)
    await stand.run(leader.pause)
    await anyio.sleep(7)
    await stand.run(leader.resume)


async def _cut(stand: Stand, topic: str) -> None:
    leader = await stand.leader(topic)
    for _ in range(10):
        await stand.run(leader.proxy.cut)
        await anyio.sleep(0.15)


async def _cut_inside(stand: Stand, topic: str, limits: Iterable[dict[str, int]]) -> None:
    leader = await stand.leader(topic)
    for limit in limits:
        await stand.run(leader.proxy.cut)
        await stand.run(leader.proxy.cut_after, **limit)
        await anyio.sleep(0.15)


async def _cut_requests(stand: Stand, topic: str) -> None:
    """Cut connections in the middle of requests."""
    await _cut_inside(stand, topic, [{"client_bytes": size} for size in range(150, 400, 25)])


async def _cut_answers(stand: Stand, topic: str) -> None:
    """Cut connections in the middle of answers, also of those of produce requests that were applied."""
    await _cut_inside(stand, topic, [{"server_bytes": size} for size in range(50, 700, 50)])


async def _stall(stand: Stand, topic: str) -> None:
    leader = await stand.leader(topic)
    await stand.run(leader.proxy.stall)
    await anyio.sleep(7)
    await stand.run(leader.proxy.heal)
    await stand.run(leader.proxy.cut)


async def _split(stand: Stand, topic: str) -> None:
    leader = await stand.leader(topic)
    await stand.run(leader.proxy.split, 3)
    await anyio.sleep(1)
    await stand.run(leader.proxy.heal)


@behaviour(
    "the leader moves while records are written: every record once, in order",
    since=(0, 11),
    without="brokers before 0.11 lose confirmed records when a leader moves while records are written (KIP-101)",
)
async def the_leader_moves(stand: Stand) -> None:
    await _nothing_is_lost(stand, _move_twice)


@behaviour("the leader is killed, another is elected: nothing confirmed is lost", slow=True)
async def the_leader_is_killed(stand: Stand) -> None:
    await _nothing_is_lost(stand, _kill)


@behaviour("the leader hands over and ends: nothing is lost", slow=True)
async def the_leader_is_terminated(stand: Stand) -> None:
    await _nothing_is_lost(stand, _terminate)


@behaviour("the only broker of a partition is killed and comes back: nothing confirmed is lost", slow=True)
async def the_only_replica_is_killed(stand: Stand) -> None:
    async def kill(stand: Stand, topic: str) -> None:
        await stand.restart_leader(topic)

    await _nothing_is_lost(stand, kill, replicas=1)


@behaviour("the leader freezes for longer than requests wait: nothing is lost", slow=True)
async def the_leader_freezes(stand: Stand) -> None:
    await _nothing_is_lost(stand, _freeze)


@behaviour("connections are cut: nothing is lost", proxied=True)
async def connections_are_cut(stand: Stand) -> None:
    await _nothing_is_lost(stand, _cut, replicas=1)


@behaviour("connections are cut inside of requests, before the append: nothing is lost", proxied=True)
async def connections_are_cut_inside_of_requests(stand: Stand) -> None:
    await _nothing_is_lost(stand, _cut_requests, replicas=1)


@behaviour("connections are cut inside of answers, after the append: nothing is lost", proxied=True)
async def connections_are_cut_inside_of_answers(stand: Stand) -> None:
    await _nothing_is_lost(stand, _cut_answers, replicas=1)


@behaviour("a line that takes bytes and brings none: nothing is lost", proxied=True, slow=True)
async def a_line_stalls(stand: Stand) -> None:
    await _nothing_is_lost(stand, _stall, replicas=1)


@behaviour("answers come in pieces of three bytes: nothing is lost", proxied=True)
async def a_line_brings_few_bytes(stand: Stand) -> None:
    await _nothing_is_lost(stand, _split, replicas=1)


@behaviour("the broker is killed in the middle of a large answer: every record is read once", proxied=True, slow=True)
async def the_broker_is_killed_in_the_middle_of_an_answer(stand: Stand) -> None:
    topic = await stand.create_topic()
    async with stand.producer() as out:
        values = [b"%04d" % n + bytes(5_000) for n in range(200)]
        for begin in range(0, len(values), 20):
            (await out.send_many(topic, values[begin : begin + 20], partition=0)).check()
    leader = await stand.leader(topic)
    await stand.run(leader.proxy.throttle, 200_000)
    read: list[bytes | None] = []
    async with stand.connect() as cluster, cluster.reader(topic, until=od.LATEST) as reader:
        async for record in reader:
            read.append(record.value)
            if len(read) == 5:
                await stand.restart_leader(topic)
                await stand.run(leader.proxy.heal)
    assert read == values


async def _elect_behind(stand: Stand, topic: str, behind: KafkaBroker) -> None:
    """Have a leader elected that is not in sync, where the controller does not do it for the topic's setting: KRaft
    before 4.0 (KAFKA-12670)."""
    if stand.cluster.mode != KRAFT or stand.has(4):
        return
    partitions = TopicPartitions(topic=topic, partitions=(0,))
    request = ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=(partitions,))

    def is_elected() -> bool:
        ask(behind.host, behind.plaintext_port, request, 1)  # not needed while the other one seems to be there
        return leader_of(behind, topic, 0) == behind.broker_id

    await stand.run(wait_for, f"an election for {topic}", is_elected, 60.0)


async def _read_of_a_log_that_is_cut(
    stand: Stand, more: int, *, start: od.PositionSpec = od.EARLIEST
) -> tuple[od.OffsetOutOfRange | None, list[bytes | None]]:
    """Read ten records, or begin behind them, of which a new leader has five, and go on when it has `more` others.

    Returns:
        The error of the reader, if there was one, and the values that it read after the cut.
    """
    topic = await stand.create_topic(replicas=2, config={"unclean.leader.election.enable": "true"})
    await stand.write(topic, [b"kept"] * 5)
    ahead = await stand.leader(topic)
    behind = next(each for each in await stand.replicas(topic) if each is not ahead)
    await stand.run(behind.kill)
    await stand.write(topic, [b"lost"] * 5, acks=1, deliver_within=60.0)
    async with stand.connect() as cluster, cluster.reader(topic) as reader:
        for _ in range(10):  # the last ones are there as soon as the replica is not waited for any more
            await anext(reader)
    async with stand.connect() as cluster, cluster.reader(topic, start=start, reset="fail") as reader:
        for _ in range(10 if start is od.EARLIEST else 0):
            await anext(reader)
        assert set(reader.positions().values()) == {10}
        reader.pause()
        await stand.run(ahead.kill)
        await stand.run(behind.start)
        await _elect_behind(stand, topic, behind)
        assert await stand.leader(topic) is behind
        await stand.write(topic, [b"new"] * more, acks=1, deliver_within=60.0)
        reader.resume()
        values: list[bytes | None] = []
        error = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stand.write_later, topic, b"end")
                try:
                    while b"end" not in values:
                        values.append((await anext(reader)).value)
                except od.OffsetOutOfRange as caught:
                    error = caught
        finally:
            await stand.run(ahead.start)
        return error, values


@behaviour("a leader without the last records is elected: what was read is gone, and that is an error", slow=True)
async def the_log_is_cut_below_the_position(stand: Stand) -> None:
    error, values = await _read_of_a_log_that_is_cut(stand, 2)
    assert error is not None
    assert values == []


@behaviour(
    "a leader without the last records has overtaken the position: LogTruncated, nothing is skipped",
    since=(2, 4),
    without="readers of brokers before 2.4 know no leader epochs: the new log cannot be told from the old one",
    slow=True,
)
async def the_log_is_cut_and_grows_past_the_position(stand: Stand) -> None:
    error, values = await _read_of_a_log_that_is_cut(stand, 20)
    assert isinstance(error, od.LogTruncated)
    assert values == []


@behaviour(
    "a reader that begins at the end has read nothing when the log is cut and grows past it: LogTruncated",
    since=(2, 4),
    without="readers of brokers before 2.4 know no leader epochs: the new log cannot be told from the old one",
    slow=True,
)
async def the_log_is_cut_before_the_end_where_a_reader_begins(stand: Stand) -> None:
    error, values = await _read_of_a_log_that_is_cut(stand, 20, start=od.LATEST)
    assert isinstance(error, od.LogTruncated)
    assert values == []


@behaviour(
    "the leader moves under readers that begin at the end and have read nothing: no error, then what is written next",
    slow=True,
)
async def the_leader_moves_under_readers_at_the_end(stand: Stand) -> None:
    configs = [{}, {"message.format.version": "0.10.2"}] if stand.has(0, 11) and not stand.has(3) else [{}]
    topics = [await stand.create_topic(replicas=3, config=config) for config in configs]
    for topic in topics:
        await stand.write(topic, [b"old"] * 5)
    if stand.has(0, 11):
        topics.append(await _emptied_topic(stand))
    async with stand.connect() as cluster, cluster.reader(topics, start=od.LATEST, reset="fail") as reader:
        assert set(reader.positions().values()) == {5}
        for topic in topics:
            await stand.move_leader(topic)
            await stand.move_leader(topic)
            await stand.write_later(topic, b"new")
            record = await anext(reader)
            assert (record.topic, record.position, record.value) == (topic, 5, b"new")


async def _emptied_topic(stand: Stand) -> str:
    """Make a topic whose only partition had five records, which are deleted."""
    topic = await stand.create_topic(replicas=3)
    await stand.write(topic, [b"deleted"] * 5)
    async with stand.connect() as cluster:
        (await cluster.admin.delete_records({od.TopicPartition(topic, 0): od.Position(5)})).check()
    return topic
