"""Fetch sessions, errors inside of them and the leader epochs of what they bring, on brokers of each generation.

2.8 is one of its own: it has topic ids in Metadata and not in Fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.samples import one_in, seed_of

import odradek as od
from odradek.client.options import Compression
from odradek.core.kafka.fetch_session import FetchSessionState
from odradek.io.connection import State
from odradek.io.kafka.broker_client import KafkaBrokerClient
from odradek.io.kafka.driver import KafkaDriver
from odradek.testing import KafkaBroker, KafkaCluster
from odradek.testing.kafka.releases import NEWEST

from .test_data import connect, has

pytestmark = [pytest.mark.anyio, pytest.mark.brokers, pytest.mark.timeout(300)]

WITHIN_S = 90.0


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(WITHIN_S):
        while not condition():  # noqa: ASYNC110 - of requests, which are not for users
            await anyio.sleep(0.02)


def poll_clients(cluster: od.Cluster) -> list[KafkaBrokerClient]:
    assert isinstance(cluster.driver, KafkaDriver)
    return [client for (_, purpose), client in cluster.driver._clients.items() if purpose.startswith("poll")]


def has_sent_poll(client: KafkaBrokerClient) -> bool:
    """One that waits for its connection is taken back, and the connection stays."""
    connection = client.connection.connection
    return client._in_session and connection.state is State.CONNECTED and connection.statistics().in_flight > 0


async def test_long_polls_go_on_in_one_session(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic, 3)
    async with connect(kafka) as cluster, cluster.producer() as out, cluster.reader(topic) as reader:
        await out.send(topic, b"first", partition=0)
        assert (await anext(reader)).value == b"first"
        await until(lambda: bool(poll_clients(cluster)))
        (client,) = poll_clients(cluster)
        session = client._session
        if has(kafka, (1, 1)):
            await until(lambda: session.state is FetchSessionState.OPEN)
        opened = session.session_id
        for n in range(5):
            await out.send(topic, b"%d" % n, partition=n % 3)
            assert (await anext(reader)).value == b"%d" % n
            assert session.session_id == opened
    assert (opened != 0) is has(kafka, (1, 1))


async def test_no_reader_waits_for_the_long_poll_of_another_one(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic, 3)
    async with connect(kafka) as cluster, AsyncExitStack() as readers:
        for number in range(3):
            await readers.enter_async_context(cluster.reader({od.TopicPartition(topic, number): od.LATEST}))
        await until(lambda: sum(client._in_session for client in poll_clients(cluster)) == 3)
    assert len(poll_clients(cluster)) == 3


async def test_no_reader_waits_for_the_long_poll_of_one_that_has_ended(kafka: KafkaBroker, topic: str) -> None:
    kafka.create_topic(topic, 2)
    async with connect(kafka) as cluster:
        clients: list[KafkaBrokerClient] = []

        def new_clients() -> list[KafkaBrokerClient]:
            return [client for client in poll_clients(cluster) if client not in clients]

        for number in range(2):
            async with cluster.reader({od.TopicPartition(topic, number): od.LATEST}):
                await until(lambda: any(map(has_sent_poll, new_clients())))
                clients.extend(new_clients())
    before, _ = clients
    assert not before.connection.is_open


@pytest.mark.parametrize("reset", ["fail", od.EARLIEST], ids=str)
async def test_a_position_that_leaves_the_log_under_a_reader_that_polls_is_an_error_or_a_reset(
    kafka: KafkaBroker, topic: str, reset: Any
) -> None:
    kafka.create_topic(topic)
    where = od.TopicPartition(topic, 0)
    async with connect(kafka) as cluster, cluster.producer() as out:
        if not has(kafka, (0, 11)):
            with pytest.raises(od.Unsupported):
                await cluster.admin.delete_records({where: od.Position(1)})
            return
        async with cluster.reader(topic, reset=reset) as reader:
            await out.send(topic, b"first")
            assert (await anext(reader)).value == b"first"
            await until(lambda: any(client._in_session for client in poll_clients(cluster)))
            reader.pause()
            await until(lambda: not any(client._in_session for client in poll_clients(cluster)))
            await out.send_many(topic, [b"lost"] * 3)
            await out.send(topic, b"last")
            (await cluster.admin.delete_records({where: od.Position(4)})).check()
            reader.resume()
            with anyio.fail_after(WITHIN_S):
                if reset == "fail":
                    with pytest.raises(od.OffsetOutOfRange):
                        await anext(reader)
                else:
                    assert (await anext(reader)).value == b"last"


async def take(consumer: od.Consumer, until_position: int) -> None:
    """Read the only partition up to a position, and mark everything as done."""
    async for batch in consumer.batches():
        batch.done()
        if max(record.next_position for record in batch) >= until_position:
            return


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One release in a run."""
    if "two" in metafunc.fixturenames:
        releases = one_in(2, (NEWEST, "2.8.2"), seed_of(metafunc.config))
        metafunc.parametrize("two", releases, indirect=True, scope="module")


@pytest.fixture(scope="module")
def two(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """Two brokers, which clients reach through proxies."""
    with KafkaCluster(request.param, 2, proxied=True, config={"auto.leader.rebalance.enable": "false"}) as cluster:
        yield cluster


def other_broker(two: KafkaCluster, topic: str) -> KafkaBroker:
    return next(broker for broker in two.brokers if broker is not two.leader(topic))


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_the_next_member_gets_nothing_that_was_committed_when_the_leader_has_changed(
    two: KafkaCluster, topic: str, compression: Compression
) -> None:
    """A position that is committed with the epoch of an earlier leader seems to be behind the end of the log."""
    options: dict[str, Any] = {"group": topic, "group_protocol": "classic", "join_within": WITHIN_S}
    two.create_topic(topic)
    async with od.connect(f"kafka://{two.bootstrap}") as cluster, cluster.producer(compression=compression) as out:
        with anyio.fail_after(WITHIN_S):
            await out.send_many(topic, [b"1"] * 10)
            async with cluster.consumer(topic, start=od.EARLIEST, **options) as consumer:
                await take(consumer, 10)
                following = other_broker(two, topic)
                await anyio.to_thread.run_sync(two.move_leader, topic, 0, following)
                await until(
                    lambda: any(c._in_session and c.broker.id == following.broker_id for c in poll_clients(cluster))
                )
                await out.send_many(topic, [b"2"] * 5)
                await take(consumer, 15)
            await out.send(topic, b"last")
            async with cluster.consumer(topic, **options) as consumer:
                record = await anext(aiter(consumer))
                assert (record.position, record.value) == (15, b"last")


async def test_the_next_member_continues_where_a_reply_of_a_new_leader_was_cut(two: KafkaCluster, topic: str) -> None:
    """What arrived before the cut is delivered and committed, with the epoch of the new leader."""
    options: dict[str, Any] = {"group": topic, "group_protocol": "classic", "join_within": WITHIN_S}
    two.create_topic(topic)
    where, follower = od.TopicPartition(topic, 0), other_broker(two, topic)
    direct = ",".join(f"{broker.host}:{broker.plaintext_port}" for broker in two.brokers)
    async with od.connect(f"kafka://{two.bootstrap}") as cluster, cluster.producer() as out:
        await out.send_many(topic, [b"1"] * 10)
        with anyio.fail_after(WITHIN_S):
            async with cluster.consumer(topic, **options) as consumer:
                await take(consumer, 10)
                await consumer.commit()
                follower.proxy.refuse()
                follower.proxy.cut()
                await anyio.to_thread.run_sync(two.move_leader, topic, 0, follower)
                await write_many(f"kafka://{direct}", topic)
                follower.proxy.throttle(4_000)
                follower.proxy.accept()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cut_again_and_again, follower)
                    await take(consumer, 11)
                    tasks.cancel_scope.cancel()
                follower.proxy.heal()
                await consumer.commit()
    async with od.connect(f"kafka://{direct}") as cluster:
        stored = (await cluster.admin.group_positions(topic))[where]
        assert 10 < stored < 210
        with anyio.fail_after(WITHIN_S):
            async with cluster.consumer(topic, **options) as consumer:
                assert (await anext(aiter(consumer))).position == stored


async def write_many(url: str, topic: str) -> None:
    """Write 200 batches of one record."""
    async with od.connect(url) as cluster, cluster.producer() as out:
        for _ in range(200):
            await out.send(topic, bytes(500))


async def cut_again_and_again(broker: KafkaBroker) -> None:
    """Cut the line each time a few records have passed, in the middle of a reply that has all of them."""
    for passed in count(broker.proxy.statistics().server_bytes + 8_000, 8_000):
        await until(lambda passed=passed: broker.proxy.statistics().server_bytes > passed)  # type: ignore[misc]
        broker.proxy.cut()
