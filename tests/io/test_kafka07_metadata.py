"""Routing tables follow the nodes of a real ZooKeeper, through whatever happens to brokers, topics and the session."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

import anyio
import anyio.to_thread
import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.security import make_acl  # type: ignore[import-untyped]

from odradek.core.interfaces import ClusterMetadata
from odradek.core.kafka07.routing import Kafka07RoutingTable
from odradek.errors import Closed, ConfigError, DeadlineError, Unreachable, Unsupported
from odradek.io.gather import gather
from odradek.io.kafka07.metadata import (
    StaticMetadata,
    ZooKeeperMetadata,
    broker_list,
)
from odradek.io.zookeeper import NodeEvent, ZooKeeper
from odradek.testing import FaultProxy, ZooKeeperServer
from odradek.types import Broker, TopicPartition

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(zookeepers: Callable[[str], ZooKeeperServer]) -> ZooKeeperServer:
    """The newest alone; `zookeeper` of conftest.py is every version in turn."""
    return zookeepers("3.9.5")


@pytest.fixture
def root(server: ZooKeeperServer) -> str:
    """An empty node for this test alone."""
    path = f"/{uuid4().hex}"
    server.create(path)
    return path


class Nodes:
    """What brokers do, by an administrator's hands."""

    def __init__(self, zk: ZooKeeper) -> None:
        self.zk = zk

    async def broker(self, number: int, address: str) -> None:
        path = f"/brokers/ids/{number}"
        if await self.zk.exists(path):
            await self.zk.delete(path)
        await self.zk.create(path, f"h-1795206157048:{address}".encode(), ephemeral=True, parents=True)

    async def count(self, topic: str, broker: int, count: str) -> None:
        await self.zk.create(f"/brokers/topics/{topic}/{broker}", count.encode(), ephemeral=True, parents=True)


@asynccontextmanager
async def cluster(address: str) -> AsyncIterator[tuple[Nodes, ZooKeeper, ZooKeeperMetadata]]:
    async with (
        ZooKeeper(address, session_timeout=5, connect_timeout=10) as outside,
        ZooKeeper(address, session_timeout=5, connect_timeout=10) as zk,
        ZooKeeperMetadata(zk) as metadata,
    ):
        with anyio.fail_after(30):
            yield Nodes(outside), zk, metadata


async def until(metadata: ZooKeeperMetadata, wanted: Callable[[Kafka07RoutingTable], bool]) -> Kafka07RoutingTable:
    table = metadata.table
    while not wanted(table):
        table = await metadata.wait_for_newer(table.version)
    return table


def names(partitions: Sequence[TopicPartition]) -> list[str]:
    return [p.name for p in partitions]


async def test_brokers_come_go_and_change_their_address(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with cluster(zookeeper.address + chroot) as (nodes, _, metadata):
        same: ClusterMetadata = metadata
        assert (same.table.version, dict(same.table.brokers)) == (0, {})  # /brokers does not even exist
        await nodes.broker(2, "h:9092")
        table = await until(metadata, lambda t: 2 in t.brokers)
        assert table.brokers[2] == Broker(2, "h", 9092)
        await nodes.broker(10, "h:9093")
        await until(metadata, lambda t: set(t.brokers) == {2, 10})
        await nodes.broker(2, "elsewhere:1")  # deleted and created at once: often within one watch
        table = await until(metadata, lambda t: t.brokers.get(2) == Broker(2, "elsewhere", 1))
        await nodes.zk.set("/brokers/ids/2", b"c:third:3")
        table = await until(metadata, lambda t: t.brokers.get(2) == Broker(2, "third", 3))
        assert names(table.partitions("new")) == ["2-0", "10-0"]
        await nodes.zk.delete("/brokers/ids/2")
        await until(metadata, lambda t: set(t.brokers) == {10})
        assert repr(metadata).startswith("<ZooKeeperMetadata v") and "10@h:9093" in repr(metadata)


async def test_a_topic_appears_grows_and_goes(zookeeper: ZooKeeperServer, chroot: str) -> None:
    async with cluster(zookeeper.address + chroot) as (nodes, _, metadata):
        await nodes.broker(1, "h:1")
        await nodes.broker(2, "h:2")
        await until(metadata, lambda t: set(t.brokers) == {1, 2})
        table = await metadata.table_for_topic("t")  # /brokers/topics does not exist
        assert (names(table.partitions("t")), table.topics) == (["1-0", "2-0"], frozenset())
        await nodes.count("t", 1, "2")
        table = await until(metadata, lambda t: bool(t.registered("t")))
        assert (names(table.partitions("t")), names(table.registered("t"))) == (["1-0", "1-1", "2-0"], ["1-0", "1-1"])
        await nodes.count("t", 2, "3")
        await until(metadata, lambda t: names(t.partitions("t")) == ["1-0", "1-1", "2-0", "2-1", "2-2"])
        await nodes.zk.set("/brokers/topics/t/2", b"1")
        await until(metadata, lambda t: names(t.partitions("t")) == ["1-0", "1-1", "2-0"])
        await nodes.zk.delete("/brokers/topics/t/1")
        await until(metadata, lambda t: names(t.registered("t")) == ["2-0"])
        assert await metadata.table_for_topic("t") is metadata.table


async def test_listing_finds_all_topics_and_keeps_finding_them(server: ZooKeeperServer, root: str) -> None:
    async with cluster(server.address + root) as (nodes, _, metadata):
        assert await metadata.all_topics() == frozenset()
        await nodes.broker(1, "h:1")
        await nodes.count("a", 1, "1")
        await nodes.count("b", 1, "1")
        await until(metadata, lambda t: t.topics == {"a", "b"})
        assert await metadata.all_topics() == {"a", "b"}
        await nodes.count("c", 1, "1")
        await until(metadata, lambda t: "c" in t.topics)


async def test_malformed_nodes_cost_one_line_and_nothing_else(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(server.address + root) as (nodes, _, metadata):
        await nodes.zk.create("/brokers/ids/7", b"nonsense", parents=True)
        await nodes.zk.create("/brokers/ids/x", b"c:h:1")
        await nodes.count("t", 1, "many")
        await nodes.broker(1, "h:1")
        await nodes.count("t", 2, "1")
        await nodes.broker(2, "h:2")
        await until(metadata, lambda t: set(t.brokers) == {1, 2})
        table = await metadata.table_for_topic("t")
        assert names(table.registered("t")) == ["2-0"]
        await metadata.refresh()
        await metadata.refresh()
        await nodes.zk.set("/brokers/ids/7", b"c:h:7")
        await until(metadata, lambda t: 7 in t.brokers)
    lines = sorted(r.getMessage() for r in caplog.records if r.name == "odradek.metadata")
    assert lines == [
        "ignored: /brokers/ids/7: not creator:host:port: 'nonsense'",
        "ignored: /brokers/ids/x: not named by a broker id",
        "ignored: /brokers/topics/t/1: not a number in 0..100000: 'many'",
    ]
    assert all(r.levelno == logging.WARNING for r in caplog.records if r.name == "odradek.metadata")


def forbid(address: str, path: str) -> None:
    """Let nobody read a node."""
    client = KazooClient(address)
    client.start()
    try:
        client.set_acls(path, [make_acl("world", "anyone", create=True, delete=True)])
    finally:
        client.stop()
        client.close()


async def test_nodes_that_an_acl_forbids_do_not_keep_others_from_being_followed(
    server: ZooKeeperServer, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(server.address + root) as (nodes, zk, metadata):
        for number in (1, 7):
            await nodes.broker(number, f"h:{number}")
        await nodes.count("t", 1, "1")
        await until(metadata, lambda t: set(t.brokers) == {1, 7})
        await metadata.table_for_topic("t")
        await metadata.table_for_topic("u")
        for path in ("/brokers/topics/t", "/brokers/ids/7"):
            await anyio.to_thread.run_sync(forbid, server.address + root, path)
        await nodes.broker(3, "h:3")
        await until(metadata, lambda t: set(t.brokers) == {1, 3})
        server.expire(zk.session_id)  # everything is read again
        await nodes.count("u", 3, "1")
        table = await until(metadata, lambda t: "u" in t.topics)
        assert names(table.registered("t")) == ["1-0"]
        async with ZooKeeperMetadata(zk) as later:
            assert set(later.table.brokers) == {1, 3}
            assert await later.all_topics() == {"u"}
            with pytest.raises(ConfigError, match=r"topics/t: the credentials are refused or not"):
                await later.table_for_topic("t")
    lines = [r.getMessage() for r in caplog.records if r.name == "odradek.metadata"]
    assert any(line.startswith("stays as it was: ") and "/brokers/topics/t" in line for line in lines)
    assert sum("/brokers/ids/7" in line for line in lines) == 2, "once for each table"


async def test_the_table_stands_while_the_session_is_suspended_and_catches_up_after(
    server: ZooKeeperServer, root: str
) -> None:
    with FaultProxy(server.host, server.port) as proxy:
        async with (
            ZooKeeper(server.address + root, session_timeout=5, connect_timeout=10) as outside,
            ZooKeeper(proxy.address + root, session_timeout=5, connect_timeout=10) as zk,
            ZooKeeperMetadata(zk) as metadata,
        ):
            nodes = Nodes(outside)
            with anyio.fail_after(30):
                await nodes.broker(1, "h:1")
                await nodes.count("t", 1, "1")
                await metadata.table_for_topic("t")
                await until(metadata, lambda t: names(t.registered("t")) == ["1-0"] and 1 in t.brokers)
                proxy.refuse()
                proxy.cut()
                await nodes.broker(1, "h:2")
                await nodes.count("t", 2, "1")
                await nodes.broker(2, "h:3")
                assert names(metadata.table.registered("t")) == ["1-0"]
                assert metadata.table.brokers == {1: Broker(1, "h", 1)}
                proxy.accept()
                table = await until(metadata, lambda t: names(t.registered("t")) == ["1-0", "2-0"])
                assert table.brokers[1].port == 2


async def test_an_expired_session_is_replaced_and_everything_read_and_watched_again(
    server: ZooKeeperServer, root: str
) -> None:
    async with cluster(server.address + root) as (nodes, zk, metadata):
        await nodes.broker(1, "h:1")
        await metadata.table_for_topic("t")
        await until(metadata, lambda t: 1 in t.brokers)
        first = zk.session_id
        server.expire(first)
        await nodes.broker(2, "h:2")
        await nodes.count("t", 2, "1")
        await until(metadata, lambda t: names(t.registered("t")) == ["2-0"] and 2 in t.brokers)
        await nodes.count("t", 1, "1")  # heard of through the new session's watches
        await until(metadata, lambda t: names(t.registered("t")) == ["1-0", "2-0"])
        assert zk.session_id not in (0, first)


async def test_a_read_that_failed_in_a_living_session_is_tried_again(
    server: ZooKeeperServer, root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("odradek.io.kafka07.metadata.RETRY_S", 0.01)
    async with cluster(server.address + root) as (nodes, zk, metadata):
        await metadata.table_for_topic("t")
        children, failures = zk.children, [DeadlineError("children", 0.1), DeadlineError("children", 0.1)]

        async def sometimes(path: str, watch: bool = False) -> list[str] | None:
            if failures:
                raise failures.pop()
            return await children(path, watch)

        monkeypatch.setattr(zk, "children", sometimes)
        await nodes.broker(1, "h:1")
        await until(metadata, lambda t: 1 in t.brokers)
        assert "cannot read the cluster's nodes, retrying in 0.01 s: children: no answer within 0.1 s" in caplog.text


async def test_a_background_failure_is_raised_from_changed_from_topic_and_at_exit(
    server: ZooKeeperServer, root: str
) -> None:
    async with ZooKeeper(server.address + root) as zk:
        with pytest.raises(Closed):
            async with ZooKeeperMetadata(zk) as metadata:
                await zk.aclose()
                with anyio.fail_after(10):
                    for wait in (metadata.wait_for_newer(99), metadata.table_for_topic("t"), metadata.refresh()):
                        with pytest.raises(Closed):
                            await wait


async def test_cancelled_waits_and_a_cancelled_block_leave_nothing_behind(server: ZooKeeperServer, root: str) -> None:
    async with ZooKeeper(server.address + root) as zk:
        with anyio.CancelScope() as scope:
            async with ZooKeeperMetadata(zk) as metadata:
                with anyio.move_on_after(0.01) as brief:
                    await metadata.wait_for_newer(metadata.table.version)
                assert brief.cancelled_caught
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        async with ZooKeeperMetadata(zk) as metadata:  # the session is still there for the next
            assert await metadata.all_topics() == frozenset()


async def test_concurrent_first_uses_of_topics_see_them_all(server: ZooKeeperServer, root: str) -> None:
    async with cluster(server.address + root) as (nodes, _, metadata):
        await nodes.broker(1, "h:1")
        for n in range(5):
            await nodes.count(f"t{n}", 1, "1")
        await until(metadata, lambda t: 1 in t.brokers)
        wanted = [f"t{n % 5}" for n in range(20)]
        tables = await gather(metadata.table_for_topic, wanted)
        assert all(table.topics >= {topic} for table, topic in zip(tables, wanted, strict=True))


# ---- without ZooKeeper --------------------------------------------------------------------------------------

B0, B1 = Broker(0, "a", 9092), Broker(1, "b", 9093)


async def test_a_topic_published_while_it_is_first_read_is_not_missed(
    server: ZooKeeperServer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(server.address + root) as (nodes, zk, metadata):
        await nodes.broker(1, "h:1")
        events, real = zk.events(), zk.children

        async def children(path: str, watch: bool = False) -> list[str] | None:
            answer = await real(path, watch)
            if path == "/brokers/topics/t" and answer is None:  # it comes right after it was looked for
                await nodes.count("t", 1, "3")
                async for event in events:
                    if isinstance(event, NodeEvent) and event.path == path:
                        break
                await anyio.wait_all_tasks_blocked()  # whoever follows the watches has seen it
            return answer

        monkeypatch.setattr(zk, "children", children)
        await metadata.table_for_topic("t")
        table = await until(metadata, lambda t: bool(t.registered("t")))
        assert names(table.registered("t")) == ["1-0", "1-1", "1-2"]


async def test_a_static_list_probes_each_topic_once_and_again_at_refresh() -> None:
    counts = {("t", 0): 2, ("t", 1): 0}
    asked: list[tuple[str, int]] = []

    async def probe(broker: Broker, topic: str) -> int:
        asked.append((topic, broker.id))
        return counts[topic, broker.id]

    async with StaticMetadata([B0, B1], probe) as metadata:
        assert names(metadata.table.partitions("t")) == ["0-0", "1-0"]
        assert asked == []
        table = await metadata.table_for_topic("t")
        assert names(table.registered("t")) == ["0-0", "0-1"]
        await metadata.table_for_topic("t")
        assert sorted(asked) == [("t", 0), ("t", 1)]
        counts["t", 1] = 1
        table = await metadata.refresh()
        assert names(table.registered("t")) == ["0-0", "0-1", "1-0"]
        assert table.version > 1
        with pytest.raises(Unsupported, match="listing topics is not supported here: it needs ZooKeeper"):
            await metadata.all_topics()
    with pytest.raises(Closed):
        await metadata.wait_for_newer(metadata.table.version)


async def test_a_static_list_lives_with_brokers_that_do_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    away = {0}

    async def probe(broker: Broker, topic: str) -> int:
        if broker.id in away:
            raise Unreachable("tcp", broker.address, "refused")
        return 1

    async with StaticMetadata([B0, B1], probe) as metadata:
        assert names((await metadata.table_for_topic("t")).registered("t")) == ["1-0"]
        assert "broker 0 at a:9092 does not list its partitions of t" in caplog.text
        away = {1}
        assert names((await metadata.refresh()).registered("t")) == ["0-0", "1-0"]  # keeps what it knew
        away = {0, 1}
        with pytest.raises(Unreachable, match="a:9092"):
            await metadata.table_for_topic("u")


def test_broker_lists() -> None:
    assert broker_list(["a:9092", " b:9093"]) == [B0, B1]
    assert broker_list(["7@a:1", "3@[::1]:2"]) == [Broker(7, "a", 1), Broker(3, "::1", 2)]


@pytest.mark.parametrize(
    "addresses", [[], ["a"], ["a:"], [":1"], ["a:x"], ["a:0"], ["a:65536"], ["x@a:1"], ["-1@a:1"], ["1@a:1", "b:2"]]
)
def test_broker_lists_that_cannot_be(addresses: list[str]) -> None:
    with pytest.raises(ConfigError):
        broker_list(addresses)
